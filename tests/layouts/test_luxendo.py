"""Luxendo: single files, sets of files, and main files that link to them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import HyperslabError, LayoutError, MetadataWarning, MissingSourceError
from hyperslab.layouts.luxendo_set import find_set
from tests.layouts.planes import described, names, recognised

SIZE = (4, 12, 16)
VOXEL = {"width": 0.4, "height": 0.5, "depth": 3}
EYE = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
SCALED = [[0.4, 0, 0], [0, 0.5, 0], [0, 0, 3]]


def pixels(t: int = 0, c: int = 0) -> np.ndarray:
    return np.random.default_rng([t, c]).integers(0, 1 << 16, SIZE, dtype=np.uint16)


def fill(group: h5py.Group, data: np.ndarray, **facts: Any) -> None:
    group.create_dataset("Data", data=data, chunks=(2, 8, 8), compression="gzip")
    group["Data_2_2_2"] = data[::2, ::2, ::2]
    said = {"voxel_size_um": VOXEL, "channel_description": "GFP"} | facts
    group["metadata"] = json.dumps({"processingInformation": said})


def lux(path: Path, data: np.ndarray | None = None, **facts: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as h5:
        fill(h5, pixels() if data is None else data, **facts)
    return path


# --- one file ------------------------------------------------------------------------------------


def test_one_file(tmp_path: Path) -> None:
    path = lux(
        tmp_path / "Cam_left.lux.h5",
        stack_description="embryo 3",
        affine_to_sample=[
            {"matrix": EYE, "translation": [-8, -6, -2]},
            {"matrix": SCALED, "translation": [0, 0, 0]},
            {"matrix": EYE, "translation": [100, 200, 300]},
        ],
    )
    assert recognised(path) == ["luxendo"]
    assert names(path) == ("",)
    spec = described(path)
    assert (spec.axes, spec.dtype, spec.name) == ("TCZYX", "uint16", "embryo 3")
    assert [level.shape[2:] for level in spec.levels] == [SIZE, (2, 6, 8)]
    assert spec.levels[1].datasets == ("/Data_2_2_2",)
    assert spec.scale == (1.0, 1.0, 3.0, 0.5, 0.4)
    assert spec.translation == pytest.approx((0, 0, 300 - 6, 200 - 3, 100 - 3.2))
    assert spec.units == ("", "", "um", "um", "um")
    assert [channel.name for channel in spec.channels] == ["GFP"]
    image = hs.open_image(path)
    np.testing.assert_array_equal(image[0, 0], pixels())
    np.testing.assert_array_equal(image.levels[1][0, 0], pixels()[::2, ::2, ::2])


@pytest.mark.filterwarnings("ignore:.*level Data_4_4_1")
def test_levels_by_their_factors(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.lux.h5", "w") as h5:
        for factor in (10, 3, 2):
            h5[f"Data_{factor}_{factor}_1"] = np.zeros((2, 60 // factor, 60 // factor), "u2")
        h5["Data"] = np.zeros((2, 60, 60), "u2")
        h5["Data_of_mine"] = np.zeros((2, 50, 50), "u2")
        h5["metadata"] = json.dumps({"processingInformation": {"voxel_size_um": VOXEL}})
    assert [level.shape[-1] for level in described(tmp_path / "a.lux.h5").levels] == [60, 30, 20, 6]


def test_what_is_not_luxendo(tmp_path: Path) -> None:
    """`Data` is a common name: without the metadata, or the extension, it is no sign."""
    with h5py.File(tmp_path / "a.h5", "w") as h5:
        h5["Data"] = np.zeros(SIZE, "u2")
    assert "luxendo" not in recognised(tmp_path / "a.h5")
    for text in ("{", "[1]", json.dumps({"other": 1}), json.dumps({"processingInformation": 1})):
        with h5py.File(tmp_path / "a.h5", "w") as h5:
            h5["Data"] = np.zeros(SIZE, "u2")
            h5["metadata"] = text
        assert "luxendo" not in recognised(tmp_path / "a.h5")
    with h5py.File(tmp_path / "b.h5", "w") as h5:
        h5["Data"] = np.zeros(SIZE[:2], "u2")
        h5["metadata"] = json.dumps({"processingInformation": {}})
    assert "luxendo" not in recognised(tmp_path / "b.h5")
    with pytest.raises(LayoutError, match="no volume 'Data'"):
        described(tmp_path / "b.h5", layout="luxendo")


def test_without_metadata(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.lux.h5", "w") as h5:
        h5["Data"] = np.zeros(SIZE, "u2")
    with pytest.warns(MetadataWarning, match="voxel size None: using 1 without a unit"):
        spec = described(tmp_path / "a.lux.h5")
    assert (spec.scale, spec.units) == ((1.0,) * 5, ("",) * 5)
    assert spec.channels[0].name == "Channel 0"
    with h5py.File(tmp_path / "a.lux.h5", "r+") as h5:
        h5["Data"].attrs["element_size_um"] = np.array([5, 0.2, 0.3], "f4")
    spec = described(tmp_path / "a.lux.h5")
    assert (spec.scale[2:], spec.units[2:]) == ((5.0, 0.2, 0.3), ("um", "um", "um"))


@pytest.mark.parametrize(
    "said", [None, 3, {"width": 1}, {**VOXEL, "depth": 0}, {**VOXEL, "depth": "deep"}]
)
def test_a_voxel_size_that_makes_no_sense(tmp_path: Path, said: Any) -> None:
    path = lux(tmp_path / "a.lux.h5", voxel_size_um=said)
    with pytest.warns(MetadataWarning, match="using 1 without a unit"):
        assert described(path).scale == (1.0,) * 5


@pytest.mark.parametrize(
    ("matrix", "told"),
    [
        ([[-0.4, 0, 0], [0, 0.5, 0], [0, 0, 3]], "flips, rotates or shears"),
        ([[0, 0.4, 0], [0.5, 0, 0], [0, 0, 3]], "flips, rotates or shears"),
        ([[1, 0], [0, 1]], "the image is put at 0"),
        ("none", "the image is put at 0"),
    ],
)
def test_transforms_that_cannot_be_shown(tmp_path: Path, matrix: Any, told: str) -> None:
    chain = [{"matrix": matrix, "translation": [1, 2, 3]}]
    path = lux(tmp_path / "a.lux.h5", affine_to_sample=chain, channel_description=None)
    with pytest.warns(MetadataWarning, match=told):
        spec = described(path)
    assert spec.scale[2:] == (3.0, 0.5, 0.4)
    assert spec.translation == (0.0,) * 5
    assert spec.channels[0].name == "Channel 0"


# --- sets of files -------------------------------------------------------------------------------


def test_names_in_one_folder(tmp_path: Path) -> None:
    for t in range(2):
        for c in range(2):
            lux(
                tmp_path / f"uni_tp-{t}_ch-{c}_st-0_obj-left.lux.h5",
                pixels(t, c),
                channel_description=f"dye {c}",
            )
    lux(tmp_path / "uni_tp-0_ch-0_st-1_obj-left.lux.h5")
    lux(tmp_path / "uni_tp-7_ch-0_st-0_obj-left.json.lux.h5")
    path = tmp_path / "uni_tp-1_ch-0_st-0_obj-left.lux.h5"
    image = hs.open_image(path)
    assert image.shape == (2, 2, *SIZE)
    assert [channel.name for channel in image.channels] == ["dye 0", "dye 1"]
    assert image.spec.levels[0].datasets[2] == "/Data"
    expected = np.array([[pixels(t, c) for c in range(2)] for t in range(2)])
    np.testing.assert_array_equal(image[...], expected)
    np.testing.assert_array_equal(image.levels[1][:, 1], expected[:, 1, ::2, ::2, ::2])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(image))[:, :, 2], expected[:, :, 2])


def test_a_folder_for_each_channel(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    for c, name in ((0, "-BF"), (1, "-GFP x_y"), (3, "")):
        for t in range(2):
            folder = raw / f"stack_0-L26A pos1_channel_{c}{name}_obj_bottom"
            lux(folder / f"Cam_long_{t:05d}.lux.h5", pixels(t, c), channel_description=name[1:])
    lux(raw / "stack_1-L26A pos1_channel_0-BF_obj_bottom" / "Cam_long_00000.lux.h5")
    for other in (
        "stack_1-L26A pos1_channel_5-BF_obj_bottom",
        "stack_0-L26A pos1_channel_6_obj_top",
    ):
        lux(raw / other / "Cam_long_00000.lux.h5")
    lux(raw / "stack_0-L26A pos1_channel_0-BF_obj_bottom" / "Cam_short_00000.lux.h5")
    path = raw / "stack_0-L26A pos1_channel_1-GFP x_y_obj_bottom" / "Cam_long_00000.lux.h5"
    image = hs.open_image(path)
    assert image.shape == (2, 3, *SIZE)
    assert [channel.name for channel in image.channels] == ["BF", "GFP x_y", "Channel 3"]
    for t in range(2):
        for i, c in enumerate((0, 1, 3)):
            np.testing.assert_array_equal(image[t, i], pixels(t, c))


def test_a_set_with_gaps(tmp_path: Path) -> None:
    for t in (0, 1, 3):
        lux(tmp_path / f"Cam_{t:05d}.lux.h5", pixels(t))
    with pytest.warns(MetadataWarning, match="level Data time point 2 channel 0.*reads as zeros"):
        image = hs.open_image(tmp_path / "Cam_00003.lux.h5")
    assert image.shape[:2] == (4, 1)
    np.testing.assert_array_equal(image[3, 0], pixels(3))
    assert image[2].max() == 0


def test_files_of_a_set_that_are_not_alike(tmp_path: Path) -> None:
    lux(tmp_path / "a_tp-0_ch-0.lux.h5", pixels(0, 0))
    lux(tmp_path / "a_tp-0_ch-1.lux.h5", pixels(0, 1)[:2])
    (tmp_path / "a_tp-0_ch-2.lux.h5").write_bytes(b"no HDF5")
    lux(tmp_path / "a_tp-1_ch-0.lux.h5", np.concatenate([pixels(), pixels()]))
    with pytest.warns(MetadataWarning) as caught:
        image = hs.open_image(tmp_path / "a_tp-0_ch-0.lux.h5")
    told = [str(warning.message) for warning in caught]
    assert "channel 1 is left out, from a_tp-0_ch-1.lux.h5: it has another size" in told[0]
    assert "channel 2 is left out" in told[1]
    assert image.shape == (2, 1, *SIZE)
    # A larger one is no padded one: its size is checked when it is read.
    with pytest.raises(LayoutError, match=r"a_tp-1_ch-0\.lux\.h5::/Data has shape \(8, 12, 16\)"):
        image[1, 0]
    np.testing.assert_array_equal(image[0, 0], pixels())


def test_a_file_of_a_set_that_went_away(tmp_path: Path) -> None:
    for t in range(2):
        lux(tmp_path / f"Cam_{t:05d}.lux.h5", pixels(t))
    image = hs.open_image(tmp_path / "Cam_00000.lux.h5")
    (tmp_path / "Cam_00001.lux.h5").unlink()
    with pytest.raises(HyperslabError, match=r"Cam_00001\.lux\.h5: no such file"):
        image[1]
    image.refresh()
    assert image.shape[0] == 1


def test_names_without_numbers(tmp_path: Path) -> None:
    path = lux(tmp_path / "fused.lux.h5")
    lux(tmp_path / "fused 2.lux.h5")
    assert find_set(str(path)) == {(0, 0): "fused.lux.h5"}
    assert find_set(str(tmp_path / "gone_tp-3_ch-1.lux.h5")) == {(3, 1): "gone_tp-3_ch-1.lux.h5"}


# --- main files ----------------------------------------------------------------------------------


@pytest.fixture
def main(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "main_raw.lux.h5", "w") as h5:
        for t in (0, 1, 10):
            for c in (0, 1):
                file = f"raw/t{t}_c{c}.lux.h5"
                lux(tmp_path / file, pixels(t, c), channel_description=f"dye {c}")
                for view in ("left", "right"):
                    group = h5.create_group(f"timepoint_{t}/channel_{c}/{view}")
                    for name in ("Data", "Data_2_2_2", "metadata"):
                        group[name] = h5py.ExternalLink(file, name)
        del h5["timepoint_1/channel_1/right"]
    return tmp_path / "main_raw.lux.h5"


def test_a_main_file(main: Path) -> None:
    assert recognised(main) == ["luxendo"]
    assert names(main) == ("left", "right")
    image = hs.open_image(main, image="left")
    assert image.shape == (3, 2, *SIZE)
    assert len(image.levels) == 2
    assert image.scale[2:] == (3.0, 0.5, 0.4)
    assert [channel.name for channel in image.channels] == ["dye 0", "dye 1"]
    for i, t in enumerate((0, 1, 10)):
        for c in (0, 1):
            np.testing.assert_array_equal(image[i, c], pixels(t, c))
    with pytest.warns(MetadataWarning, match="time point 1 channel 1"):
        assert hs.open_image(main, image="right")[1, 1].max() == 0


def test_a_main_file_whose_files_are_gone(main: Path) -> None:
    (main.parent / "raw" / "t10_c1.lux.h5").unlink()
    with pytest.raises(MissingSourceError, match=r"t10_c1\.lux\.h5"):
        described(main, "left")


def test_a_main_file_with_unlike_channels(main: Path) -> None:
    lux(main.parent / "raw" / "t0_c1.lux.h5", pixels()[:2])
    with pytest.raises(LayoutError, match="channels differ in size or type"):
        described(main, "left")


def test_a_main_file_of_the_first_kind(tmp_path: Path) -> None:
    lux(tmp_path / "pixels.lux.h5", pixels(), channel_description="GFP")
    with h5py.File(tmp_path / "main.lux.h5", "w") as h5:
        view = h5.create_group("timepoint_First/channel_First/view_First")
        for r, name in enumerate(("Data", "Data_2_2_2")):
            view[f"res_{r}/data"] = h5py.ExternalLink("pixels.lux.h5", name)
        view["res_0/metadata"] = h5py.ExternalLink("pixels.lux.h5", "metadata")
    image = hs.open_image(tmp_path / "main.lux.h5")
    assert image.name == "view_First"
    assert [level.shape for level in image.levels] == [(1, 1, *SIZE), (1, 1, 2, 6, 8)]
    assert image.channels[0].name == "GFP"
    assert image.scale[2:] == (3.0, 0.5, 0.4)
    np.testing.assert_array_equal(image[0, 0], pixels())
