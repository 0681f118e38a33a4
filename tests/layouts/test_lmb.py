"""LMB and ImSwitch: numbered datasets, and datasets of detectors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import LayoutError, MetadataWarning, MissingSourceError
from tests.layouts.planes import assert_planes, described, names, recognised

PIXELS = np.random.default_rng(0).integers(0, 255, (3, 2, 4, 5, 6), dtype=np.uint8)
ELEMENT = np.array([2.0, 0.5, 0.25])


@pytest.fixture
def lmb(tmp_path: Path) -> Callable[..., Path]:
    def write(edit: Callable[[h5py.File], None] | None = None, pixels: np.ndarray = PIXELS) -> Path:
        with h5py.File(tmp_path / "a.h5", "w") as h5:
            for t, volumes in enumerate(pixels):
                for c, volume in enumerate(volumes):
                    item = h5.create_dataset(f"t{t}/channel{c}", data=volume)
                    item.attrs["element_size_um"] = ELEMENT
                    item.attrs["name"] = ("DAPI", "GFP")[c]
            if edit is not None:
                edit(h5)
        return tmp_path / "a.h5"

    return write


def test_time_points_and_channels(lmb: Callable[..., Path]) -> None:
    path = lmb()
    assert recognised(path) == ["lmb"]
    image = hs.open_image(path)
    assert (image.axes, image.shape, image.dtype) == ("TCZYX", PIXELS.shape, np.uint8)
    assert image.scale == (1.0, 1.0, 2.0, 0.5, 0.25)
    assert image.origin == (0.0, 0.0, -1.0, -0.25, -0.125)
    assert image.units == ("", "", "um", "um", "um")
    assert [channel.name for channel in image.channels] == ["DAPI", "GFP"]
    np.testing.assert_array_equal(image[...], PIXELS)


def test_planes(lmb: Callable[..., Path]) -> None:
    path = lmb(pixels=PIXELS[:, :, 0])
    spec = described(path)
    assert (spec.axes, spec.scale) == ("TCYX", (1.0, 1.0, 0.5, 0.25))
    np.testing.assert_array_equal(hs.open_image(path)[...], PIXELS[:, :, 0])


def test_order_and_gaps(lmb: Callable[..., Path]) -> None:
    def edit(h5: h5py.File) -> None:
        for t in range(3, 12):
            h5[f"t{t}/channel0"] = PIXELS[t % 3, 0] // 2
        del h5["t1/channel0"]
        h5["t1/notes"] = [1]
        h5["hints/t5"] = [1]

    with pytest.warns(MetadataWarning, match="time point 1 channel 0, .* and 5 more"):
        image = hs.open_image(lmb(edit))
    assert image.shape[:2] == (12, 2)
    assert image.spec.levels[0].datasets[20] == "/t10/channel0"
    np.testing.assert_array_equal(image[10, 0], PIXELS[1, 0] // 2)
    assert image[1, 0].max() == 0


@pytest.mark.parametrize("said", [[1.0, -1, 1], [1.0], "big", [np.nan] * 3, [1.0] * 4])
def test_sizes_that_make_no_sense(lmb: Callable[..., Path], said: object) -> None:
    def edit(h5: h5py.File) -> None:
        h5["t0/channel0"].attrs["element_size_um"] = said

    path = lmb(edit)
    with pytest.warns(MetadataWarning, match="using size 1 without a unit"):
        spec = described(path)
    assert (spec.scale, spec.units) == ((1.0,) * 5, ("",) * 5)


def test_without_attributes(lmb: Callable[..., Path]) -> None:
    def edit(h5: h5py.File) -> None:
        for c in (0, 1):
            for name in ("name", "element_size_um"):
                del h5[f"t0/channel{c}"].attrs[name]

    spec = described(lmb(edit))
    assert spec.scale == (1.0,) * 5
    assert [channel.name for channel in spec.channels] == ["Channel 0", "Channel 1"]


@pytest.mark.parametrize(
    "other", [PIXELS[0, 0, :2], PIXELS[0, 0].astype("f4"), PIXELS[0], PIXELS[0, 0].astype("S4")]
)
def test_channels_that_are_not_alike(lmb: Callable[..., Path], other: np.ndarray) -> None:
    def edit(h5: h5py.File) -> None:
        del h5["t0/channel1"]
        h5["t0/channel1"] = other

    with pytest.raises(LayoutError, match="not alike volumes"):
        described(lmb(edit))


def test_external_links(lmb: Callable[..., Path], tmp_path: Path) -> None:
    def edit(h5: h5py.File) -> None:
        with h5py.File(tmp_path / "b.h5", "w") as other:
            h5.copy("t1", other)
        del h5["t1"]
        for c in (0, 1):
            h5[f"t1/channel{c}"] = h5py.ExternalLink("b.h5", f"/t1/channel{c}")

    path = lmb(edit)
    np.testing.assert_array_equal(hs.open_image(path)[...], PIXELS)
    (tmp_path / "b.h5").unlink()
    with pytest.raises(MissingSourceError, match=r"b\.h5"):
        described(path)


@pytest.mark.parametrize("first", [np.zeros(3), np.zeros((3, 3), "S2")])
def test_what_is_not_lmb(tmp_path: Path, first: np.ndarray) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as h5:
        h5["t0/channel0"] = first
    assert recognised(tmp_path / "a.h5") == []


# --- ImSwitch ------------------------------------------------------------------------------------


def test_detectors(tmp_path: Path) -> None:
    frames = PIXELS[0]
    with h5py.File(tmp_path / "a.h5", "w") as h5:
        for name, data in (("CAM", frames[0]), ("Widefield", frames[1, 0]), ("Z", frames)):
            item = h5.create_dataset(f"{name}/data", data=data)
            item.attrs["detector_name"] = name
            item.attrs["element_size_um"] = [2.0, 0.5, 0.25]
        h5["table"] = np.zeros((3, 3))
    path = tmp_path / "a.h5"
    assert recognised(path) == ["lmb"]
    assert names(path) == ("CAM", "Widefield", "Z")
    stack = assert_planes(path, "CAM")
    assert (stack.axes, stack.shape) == ("TYX", (4, 5, 6))
    assert (stack.scale, stack.units) == ((1.0, 0.5, 0.25), ("", "um", "um"))
    assert stack.channels[0].name == "CAM"
    snap = assert_planes(path, "Widefield")
    assert (snap.axes, snap.scale) == ("YX", (0.5, 0.25))
    volume = assert_planes(path, "Z")
    assert (volume.axes, volume.scale) == ("TZYX", (1.0, 2.0, 0.5, 0.25))
    with pytest.raises(LayoutError, match="no image 'Q'"):
        described(path, "Q")
