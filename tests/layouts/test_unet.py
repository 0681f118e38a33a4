"""Training volumes and slices: `raw` and `label`; `image` with `label` or `mask`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import LayoutError, MetadataWarning
from tests.layouts.planes import assert_planes, described, names, recognised


def written(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], dtypes: dict[str, str] | None = None
) -> Path:
    path = tmp_path / "volume.h5"
    with h5py.File(path, "w") as h5:
        for i, (name, shape) in enumerate(shapes.items()):
            dtype = (dtypes or {}).get(name, "u1" if name in ("label", "mask") else "f4")
            h5[name] = (np.random.default_rng(i).random(shape) * 9).astype(dtype)
    return path


@pytest.mark.parametrize(
    ("shapes", "axes"),
    [
        ({"raw": (4, 5, 6), "label": (4, 5, 6)}, {"raw": "ZYX", "label": "ZYX"}),
        ({"raw": (2, 4, 5, 6), "label": (4, 5, 6)}, {"raw": "CZYX", "label": "ZYX"}),
        ({"raw": (4, 5, 6), "label": (3, 4, 5, 6)}, {"raw": "ZYX", "label": "CZYX"}),
        ({"raw": (2, 5, 6), "label": (5, 6)}, {"raw": "CYX", "label": "YX"}),
        (
            {"raw": (4, 5, 6), "label": (4, 5, 6), "weight": (4, 5, 6)},
            {"raw": "ZYX", "label": "ZYX", "weight": "ZYX"},
        ),
    ],
)
def test_volumes(tmp_path: Path, shapes: dict[str, tuple[int, ...]], axes: dict[str, str]) -> None:
    path = written(tmp_path, shapes)
    assert recognised(path) == ["unet"]
    assert names(path) == tuple(axes)
    for image, letters in axes.items():
        spec = assert_planes(path, image).spec
        assert (spec.axes, spec.labels, spec.units) == (
            letters,
            image == "label",
            ("",) * len(letters),
        )
        assert spec.levels[0].shape == shapes[image]
    with pytest.raises(LayoutError, match="'raw', 'label'"):
        hs.open_image(path)
    with pytest.raises(LayoutError, match="'raw', 'label'"):
        described(path, "other")


def test_element_sizes(tmp_path: Path) -> None:
    path = written(tmp_path, {"raw": (2, 5, 6), "label": (5, 6)})
    with h5py.File(path, "r+") as h5:
        h5["raw"].attrs["element_size_um"] = [0.5, 0.25, 0.125]
        h5["label"].attrs["element_size_um"] = [0.5, -0.25, 0.125]
    raw = described(path, "raw")
    assert (raw.scale, raw.units) == ((1.0, 0.25, 0.125), ("", "um", "um"))
    with pytest.warns(MetadataWarning, match="element_size_um"):
        label = described(path, "label")
    assert (label.scale, label.units) == ((1.0, 1.0), ("", ""))


def test_volumes_that_are_none(tmp_path: Path) -> None:
    assert recognised(written(tmp_path, {"raw": (9,)})) == []
    assert recognised(written(tmp_path, {"label": (4, 5, 6)}, {"label": "f4"})) == []
    assert recognised(written(tmp_path, {"raw": (1, 1, 2, 4, 5)})) == []
    assert recognised(written(tmp_path, {"raw/p1": (4, 5, 6), "label/p1": (4, 5, 6)})) == []
    assert recognised(written(tmp_path, {"MR/p1": (4, 5, 6), "MASK/p1": (4, 5, 6)})) == []
    path = written(tmp_path, {"raw": (4, 5)}, {"raw": "c8"})
    assert recognised(path) == []


@pytest.mark.parametrize(
    ("shapes", "axes"),
    [
        ({"image": (5, 6), "label": (5, 6)}, {"image": "YX", "label": "YX"}),
        ({"image": (9, 5, 16), "label": (9, 5, 16)}, {"image": "ZYX", "label": "ZYX"}),
        ({"image": (12, 14, 4), "mask": (12, 14, 3)}, {"image": "CYX", "mask": "CYX"}),
        ({"image": (12, 14, 4), "mask": (12, 14)}, {"image": "CYX", "mask": "YX"}),
    ],
)
def test_slices(tmp_path: Path, shapes: dict[str, tuple[int, ...]], axes: dict[str, str]) -> None:
    path = written(tmp_path, shapes)
    assert recognised(path) == ["slices"]
    assert names(path) == tuple(axes)
    for image, letters in axes.items():
        spec = assert_planes(path, image).spec
        assert (spec.axes, spec.labels) == (letters, image != "image")
    with pytest.raises(LayoutError, match="'image'"):
        described(path, "other")


def test_slices_that_do_not_belong_together(tmp_path: Path) -> None:
    assert recognised(written(tmp_path, {"image": (5, 6)})) == []
    assert recognised(written(tmp_path, {"image": (5, 6), "mask": (6, 5)})) == []
    assert recognised(written(tmp_path, {"image": (9, 5, 16), "mask": (9, 5)})) == []


# --- real files ----------------------------------------------------------------------------------

OVULE = ((0.235, 0.15, 0.15), ("um", "um", "um"))
PLAIN = ((1.0, 1.0, 1.0), ("", "", ""))
REAL: dict[str, dict[str, tuple[Any, ...]]] = {
    "pytorch3dunet/sample_cells.h5": {
        "label": ("ZYX", (151, 326, 566), (1.0, 1.0, 1.0), ("um", "um", "um")),
    },
    "plantseg/sample_ovule.h5": {
        "raw": ("ZYX", (32, 128, 128), *OVULE), "label": ("ZYX", (32, 128, 128), *OVULE),
    },
    "plantseg/training_sources/train_2Dc_2D.h5": {
        "raw": ("CYX", (2, 128, 128), (1.0, 0.15, 0.15), ("", "um", "um")),
        "label": ("YX", (128, 128), (0.15, 0.15), ("um", "um")),
    },
    "plantseg/training_sources/train_3D_3D.h5": {
        "raw": ("ZYX", (75, 75, 75), *PLAIN), "label": ("ZYX", (75, 75, 75), *PLAIN),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_real_files(corpus: Any, name: str) -> None:
    path = corpus.path(name)
    assert recognised(path) == ["unet"]
    assert names(path) == tuple(REAL[name])
    for image, (axes, shape, scale, units) in REAL[name].items():
        img = assert_planes(path, image)
        assert (img.axes, img.shape, img.units) == (axes, shape, units)
        assert img.scale == pytest.approx(scale)
        assert img.spec.labels == (image == "label")
