"""ilastik: axistags in any order, and what is made of tags that do not fit."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import LayoutError, MetadataWarning
from tests.layouts.planes import assert_planes, described, names, recognised

SIZES = {"t": 2, "z": 3, "y": 5, "x": 6, "c": 4}


def tags(keys: str, **resolutions: Any) -> str:
    return json.dumps(
        {
            "axes": [
                {"key": k, "typeFlags": 2, "resolution": resolutions.get(k, 0), "description": ""}
                for k in keys
            ]
        }
    )


def write(path: Path, keys: str, name: str = "volume/data", **attributes: Any) -> np.ndarray:
    """Write one dataset with axes `keys`; give it with its axes in the order of TCZYX."""
    shape = tuple(SIZES[key] for key in keys)
    data = np.random.default_rng(0).integers(0, 1 << 16, shape, dtype=np.uint16)
    with h5py.File(path, "a") as h5:
        item = h5.create_dataset(name, data=data, chunks=tuple(max(1, n // 2) for n in shape))
        for key, value in {"axistags": tags(keys), **attributes}.items():
            if value is not None:
                item.attrs[key] = value
    return data.transpose([keys.index(key) for key in "tczyx" if key in keys])


@pytest.mark.parametrize(
    "keys",
    ["".join(p) for p in itertools.permutations("yxc")]
    + ["tzyxc", "xyzct", "zcyxt", "yx", "xy", "czyx", "ztyx"],
)
def test_any_order(tmp_path: Path, keys: str) -> None:
    path = tmp_path / "a.h5"
    expected = write(path, keys)
    assert recognised(path) == ["ilastik"]
    image = assert_planes(path)
    assert image.axes == "".join(key for key in "TCZYX" if key.lower() in keys)
    assert (image.name, image.layout) == ("volume/data", "ilastik")
    np.testing.assert_array_equal(image[...], expected)
    np.testing.assert_array_equal(image[..., ::-1, 1], expected[..., ::-1, 1])


def test_resolutions_and_units(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write(
        path,
        "tzcyx",
        axistags=tags("tzcyx", t=120, z=0.54321, c=0.5, y=6.000024000096),
        axis_units=json.dumps({"t": "ms", "z": "\u03bcm", "c": "", "y": "mm", "x": "cm"}),
    )
    spec = described(path)
    assert spec.axes == "TCZYX"
    # No resolution is known along x, so no unit either.
    assert spec.scale == (120.0, 0.5, 0.54321, 6.000024000096, 1.0)
    assert spec.units == ("ms", "", "um", "mm", "")
    assert spec.translation == (0.0,) * 5
    assert spec.origin == pytest.approx((0, 0, -0.54321 / 2, -6.000024000096 / 2, -0.5))


@pytest.mark.parametrize(
    ("mode", "labels", "colors"),
    [
        ("grayscale", False, [None] * 4),
        ("default", False, [None] * 4),
        (None, False, [None] * 4),
        ("random-colortable", True, [None] * 4),
        ("binary-mask", True, [None] * 4),
        ("rgba", False, [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), None]),
    ],
)
def test_display_mode(tmp_path: Path, mode: str | None, labels: bool, colors: list[Any]) -> None:
    write(tmp_path / "a.h5", "yxc", display_mode=mode, drange=np.array([0, 255], "f4"))
    spec = described(tmp_path / "a.h5")
    assert spec.labels is labels
    assert [channel.color for channel in spec.channels] == colors
    assert {channel.contrast_limits for channel in spec.channels} == {(0.0, 255.0)}


@pytest.mark.parametrize("said", [[1, 1], [5, 2], "all", [0, np.inf], [0, 1, 2]])
def test_a_range_that_is_none(tmp_path: Path, said: Any) -> None:
    write(tmp_path / "a.h5", "yx", drange=said)
    with pytest.warns(MetadataWarning, match="drange.*using none"):
        assert described(tmp_path / "a.h5").channels[0].contrast_limits is None


@pytest.mark.parametrize(
    "said",
    ["{", "[]", "5", tags("zy"), json.dumps({"axes": [1, 2, 3]}), '{"axes": [{}, {}, {}]}'],
)
def test_tags_that_do_not_fit(tmp_path: Path, said: str) -> None:
    expected = write(tmp_path / "a.h5", "zyx", axistags=said)
    with pytest.warns(MetadataWarning, match="do not fit .*taking its axes for ZYX"):
        image = hs.open_image(tmp_path / "a.h5")
    assert (image.axes, image.scale) == ("ZYX", (1.0,) * 3)
    np.testing.assert_array_equal(image[...], expected)


def test_tags_with_strange_keys(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", "zyx", axistags=tags("zyx").replace('"z"', '"n"'))
    write(tmp_path / "b.h5", "zyx", axistags=tags("zyx").replace('"z"', '"y"'))
    assert described(tmp_path / "a.h5").axes == "NYX"
    assert described(tmp_path / "b.h5").axes[1:] == "YX"


@pytest.mark.parametrize("said", [-1, "fine", [1], None, {"a": 1}])
def test_a_resolution_that_makes_no_sense(tmp_path: Path, said: Any) -> None:
    write(
        tmp_path / "a.h5", "yx", axistags=tags("yx", y=said, x=2.0), axis_units='{"y":"m","x":"m"}'
    )
    if said is None:  # as good as 0
        spec = described(tmp_path / "a.h5")
    else:
        with pytest.warns(MetadataWarning, match="give axis y the resolution"):
            spec = described(tmp_path / "a.h5")
    assert (spec.scale, spec.units) == ((1.0, 2.0), ("", "m"))


@pytest.mark.parametrize("said", ["[1]", "m", "3"])
def test_units_that_make_no_sense(tmp_path: Path, said: str) -> None:
    write(tmp_path / "a.h5", "yx", axistags=tags("yx", y=1.5), axis_units=said)
    with pytest.warns(MetadataWarning, match="using no units"):
        assert described(tmp_path / "a.h5").units == ("", "")


def test_several_datasets(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write(path, "yx", name="a/raw")
    write(path, "zyx", name="b/c/probabilities")
    write(path, "yx", name="untagged", axistags=None)
    with h5py.File(path, "r+") as h5:
        h5["again"] = h5["a/raw"]
        h5["soft"] = h5py.SoftLink("/a/raw")
        h5["gone"] = h5py.ExternalLink("nowhere.h5", "/")
    assert set(names(path)) == {"again", "b/c/probabilities"}
    with pytest.raises(LayoutError, match="2 images"):
        described(path)
    assert assert_planes(path, "b/c/probabilities").axes == "ZYX"


def test_without_tags_it_has_to_be_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    data = write(path, "tczyx", axistags=None)
    assert recognised(path) == []
    assert names(path, "ilastik") == ("volume/data",)
    with pytest.warns(MetadataWarning, match="has no axistags: taking its axes for TZYXC"):
        image = hs.open_image(path, "ilastik")
    np.testing.assert_array_equal(image[...], data.transpose(0, 4, 1, 2, 3))
    with pytest.raises(LayoutError, match="no image 'nothing'"):
        hs.open_image(path, "ilastik", image="nothing")


# --- real files ----------------------------------------------------------------------------------


def test_real_file_with_tags(corpus: Any) -> None:
    path = corpus.path("ilastik4ij/test_axes.h5")
    assert recognised(path) == ["ilastik"]
    image = assert_planes(path)
    with h5py.File(path) as h5:
        dataset = h5["exported_data"]
        keys = [tag["key"] for tag in json.loads(dataset.attrs["axistags"])["axes"]]
        assert dataset.shape == (256, 256, 256, 1)
    assert keys == ["z", "y", "x", "c"]
    assert (image.axes, image.shape, image.dtype) == ("CZYX", (1, 256, 256, 256), np.float32)
    assert (image.scale, image.units) == ((1.0,) * 4, ("",) * 4)
    assert [channel.contrast_limits for channel in image.channels] == [(0.0, 1.0)]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("ilastik4ij/test.h5", (7, 3, 6, 5, 4)),
        ("ilastik4ij/2d_cells_apoptotic_1channel.h5", (1, 1, 1, 1024, 1344)),
    ],
)
def test_real_files_without_tags(corpus: Any, name: str, shape: tuple[int, ...]) -> None:
    path = corpus.path(name)
    assert recognised(path) == []
    with pytest.warns(MetadataWarning, match="taking its axes for TZYXC"):
        image = hs.open_image(path, "ilastik")
    assert (image.axes, image.shape) == ("TCZYX", shape)
    with h5py.File(path) as h5:
        (dataset,) = h5.values()
        np.testing.assert_array_equal(image[-1, -1, -1], dataset[-1, -1, :, :, -1])


def test_every_real_file_is_known_here(corpus: Any) -> None:
    assert {e["name"] for e in corpus.entries if e["kind"] == "ilastik"} == {
        "ilastik4ij/test.h5",
        "ilastik4ij/test_axes.h5",
        "ilastik4ij/2d_cells_apoptotic_1channel.h5",
    }
