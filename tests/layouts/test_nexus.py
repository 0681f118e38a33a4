"""NeXus: what NXdata groups say of their signals, in files of several facilities and in our own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hyperslab.errors import LayoutError, MetadataWarning, MissingSourceError
from tests.layouts.planes import assert_planes, described, names, recognised

SHAPE = (4, 5, 6)
PIXELS = np.arange(120, dtype="i4").reshape(SHAPE)


@pytest.fixture
def nexus(tmp_path: Path) -> Callable[..., Path]:
    """Write a file with one NXdata group, changed by a function; gives its path."""

    def write(edit: Callable[[h5py.File, h5py.Group], None] | None = None) -> Path:
        path = tmp_path / "scan.nxs"
        with h5py.File(path, "w") as h5:
            entry = h5.create_group("entry")
            entry.attrs["NX_class"] = "NXentry"
            data = entry.create_group("scan")
            data.attrs["NX_class"] = "NXdata"
            data.attrs["signal"] = "counts"
            data.attrs["axes"] = ["rotation_angle", "y", "x"]
            data["counts"] = PIXELS
            for name, values, unit in (
                ("rotation_angle", [90.0, 60.0, 30.0, 0.0], "degrees"),
                ("y", 10 + 0.5 * np.arange(5), "microns"),
                ("x", np.linspace(-3, 3, 7), "\u03bcm"),
            ):
                data[name] = values
                data[name].attrs["units"] = unit
            if edit:
                edit(h5, data)
        return path

    return write


def test_signal_and_axes(nexus: Callable[..., Path]) -> None:
    path = nexus()
    assert recognised(path) == ["nexus"]
    assert names(path) == ("entry/scan",)
    spec = assert_planes(path).spec
    assert (spec.axes, spec.name, spec.dtype) == ("AYX", "entry/scan", "int32")
    assert spec.scale == (-30.0, 0.5, 1.0)  # x has 7 values for 6 pixels: borders
    assert spec.translation == (90.0, 10.0, -2.5)
    assert spec.origin == (0.0, 9.75, -3.0)
    assert spec.units == ("deg", "um", "um")


def test_axes_by_index_and_without_a_dataset(nexus: Callable[..., Path]) -> None:
    def edit(h5: h5py.File, data: h5py.Group) -> None:
        data.attrs["axes"] = ["x"]
        data.attrs["x_indices"] = 2

    spec = described(nexus(edit))
    assert (spec.axes, spec.scale) == ("FYX", (1.0, 1.0, 1.0))
    assert spec.units == ("", "", "um")
    assert spec.translation == (0.0, 0.0, -2.5)


@pytest.mark.parametrize("text", ["energy:y:x", "energy,y,x", "[energy,y,x]"])
def test_old_signals_and_axes_as_one_text(nexus: Callable[..., Path], text: str) -> None:
    def edit(h5: h5py.File, data: h5py.Group) -> None:
        del data.attrs["signal"], data.attrs["axes"]
        data["counts"].attrs["signal"] = np.int32(1)
        data["counts"].attrs["axes"] = text

    spec = described(nexus(edit))
    assert (spec.axes, spec.units) == ("EYX", ("", "um", "um"))


def test_old_axis_numbers(nexus: Callable[..., Path]) -> None:
    def edit(h5: h5py.File, data: h5py.Group) -> None:
        del data.attrs["signal"], data.attrs["axes"], data["y"], data["x"]
        data["counts"].attrs["signal"] = b"1"
        data["rotation_angle"].attrs["axis"] = 1
        data["scan_time"] = np.arange(4) * 2.0
        data["scan_time"].attrs["axis"] = b"1"
        data["scan_time"].attrs["primary"] = b"1"
        data["width"] = np.arange(5) * 0.25  # along the rows' axis: the image is turned
        data["width"].attrs["axis"] = 2
        data["height"] = np.arange(6) * 0.125
        data["height"].attrs["axis"] = 3

    spec = assert_planes(nexus(edit)).spec
    assert (spec.axes, spec.order) == ("TYX", (0, 2, 1))
    assert spec.scale == (2.0, 0.125, 0.25)
    assert spec.levels[0].shape == (4, 6, 5)


def test_the_default_comes_first(nexus: Callable[..., Path]) -> None:
    def edit(h5: h5py.File, data: h5py.Group) -> None:
        other = h5.create_group("other")
        other.attrs["NX_class"] = "NXentry"
        h5.copy("entry/scan", other, "shown")
        h5["twin"] = h5["other"]  # a hard link: the same group, listed once
        h5["soft"] = h5py.SoftLink("/entry")
        h5.attrs["default"] = "other"
        other.attrs["default"] = "shown"

    path = nexus(edit)
    assert names(path) == ("other/shown", "entry/scan")
    assert described(path).levels[0].datasets == ("/other/shown/counts",)
    assert described(path, "entry/scan").levels[0].datasets == ("/entry/scan/counts",)


@pytest.mark.parametrize("entries", [1, 2])
def test_the_only_entry_is_the_default_one(nexus: Callable[..., Path], entries: int) -> None:
    def edit(h5: h5py.File, data: h5py.Group) -> None:
        h5.copy("entry/scan", "entry/later")
        h5["entry"].attrs["default"] = "scan"
        for i in range(1, entries):
            h5.create_group(f"entry{i}").attrs["NX_class"] = "NXentry"

    path = nexus(edit)
    assert set(names(path)) == {"entry/scan", "entry/later"}
    if entries == 1:
        assert described(path).name == names(path)[0] == "entry/scan"
    else:  # the file does not say which entry
        with pytest.raises(LayoutError, match="holds 2 images: 'entry/later', 'entry/scan'"):
            described(path)


@pytest.mark.parametrize("default", ["nowhere", "notes", "line"])
def test_a_default_that_is_no_image(nexus: Callable[..., Path], default: str) -> None:
    def edit(h5: h5py.File, data: h5py.Group) -> None:
        h5.copy("entry/scan", "entry/later")
        h5.create_group("entry/notes")
        line = h5.create_group("entry/line")
        line.attrs.update({"NX_class": "NXdata", "signal": "data"})
        line["data"] = np.zeros(5)
        h5["entry"].attrs["default"] = default

    with pytest.raises(LayoutError, match="holds 2 images"):
        described(nexus(edit))


def test_a_default_that_is_in_a_missing_file(nexus: Callable[..., Path]) -> None:
    def edit(h5: h5py.File, data: h5py.Group) -> None:
        del data["counts"]
        data["counts"] = h5py.ExternalLink("detector.h5", "counts")
        h5.copy("entry/scan", "entry/later")
        h5["entry"].attrs["default"] = "scan"

    path = nexus(edit)
    assert names(path) == ("entry/scan", "entry/later")
    with pytest.raises(MissingSourceError, match=r"detector\.h5"):
        described(path)


def test_parts_of_a_series_are_all_listed(nexus: Callable[..., Path]) -> None:
    def edit(h5: h5py.File, data: h5py.Group) -> None:
        for name in ("data_000001", "data_000002"):
            data[name] = PIXELS
        data.attrs["signal"] = "data_000001"
        h5.attrs["default"] = "entry"
        h5["entry"].attrs["default"] = "scan"

    path = nexus(edit)
    assert names(path) == ("entry/scan/data_000001", "entry/scan/data_000002")
    with pytest.raises(LayoutError, match="holds 2 images"):  # neither is the whole
        described(path)
    with h5py.File(path, "r+") as h5:
        del h5["entry/scan/data_000002"]
    assert described(path).levels[0].datasets == ("/entry/scan/data_000001",)


def test_one_axis_beside_channels(nexus: Callable[..., Path]) -> None:
    def edit(h5: h5py.File, data: h5py.Group) -> None:
        del data["counts"]
        data["counts"] = PIXELS[0]
        data.attrs["axes"] = ["channel", "x"]

    spec = assert_planes(nexus(edit)).spec  # 5 channels of one line each would be no planes
    assert (spec.axes, [c.name for c in spec.channels]) == ("SX", ["Channel 0"])
    assert spec.scale == (1.0, 1.0)


def test_measured_positions_stand_in_for_those_asked_for(nexus: Callable[..., Path]) -> None:
    def edit(h5: h5py.File, data: h5py.Group) -> None:
        data.attrs["axes"] = ["rotation_angle_set", "y_set", "x"]

    spec = described(nexus(edit))
    assert (spec.axes, spec.scale) == ("AYX", (-30.0, 0.5, 1.0))


def test_several_signals(nexus: Callable[..., Path]) -> None:
    def edit(h5: h5py.File, data: h5py.Group) -> None:
        data["errors"] = PIXELS * 2.0
        data["spectrum"] = np.zeros(4)
        data.attrs["auxiliary_signals"] = ["errors", "spectrum", "absent"]

    path = nexus(edit)
    assert names(path) == ("entry/scan/counts", "entry/scan/errors")
    assert described(path).name == "entry/scan/counts"  # the main one
    assert assert_planes(path, "entry/scan/errors").dtype == np.float64


def test_interpretation(nexus: Callable[..., Path]) -> None:
    def edit(h5: h5py.File, data: h5py.Group) -> None:
        del data["counts"]
        data["counts"] = np.arange(4 * 5 * 6 * 2).reshape(4, 5, 6, 2)
        data.attrs["axes"] = [".", "y", "x", "."]
        data.attrs["interpretation"] = "spectrum"

    spec = assert_planes(nexus(edit)).spec
    assert (spec.axes, spec.order) == ("FSYX", (0, 3, 1, 2))


def test_uneven_axes_are_told(nexus: Callable[..., Path]) -> None:
    def edit(h5: h5py.File, data: h5py.Group) -> None:
        data["rotation_angle"][...] = [0, 1, 5, 6]
        del data["y"]
        data["y"] = np.zeros(3)
        data["x"][3] = np.nan

    with pytest.warns(MetadataWarning) as caught:
        spec = described(nexus(edit))
    messages = [str(warning.message) for warning in caught]
    assert any("'rotation_angle'" in m and "not evenly spaced" in m for m in messages)
    assert any("'y'" in m and "3 values for 5 pixels" in m for m in messages)
    assert (spec.scale, spec.translation, spec.units) == ((1.0,) * 3, (0.0,) * 3, ("",) * 3)


def test_nonsense_attributes(nexus: Callable[..., Path]) -> None:
    def edit(h5: h5py.File, data: h5py.Group) -> None:
        data.attrs["axes"] = np.arange(3)
        data["counts"].attrs["interpretation"] = 7
        h5.attrs["default"] = h5py.Empty("S1")

    assert described(nexus(edit)).axes == "FYX"


def test_a_missing_file_is_named(nexus: Callable[..., Path]) -> None:
    def edit(h5: h5py.File, data: h5py.Group) -> None:
        del data["counts"]
        data["counts"] = h5py.ExternalLink("detector.h5", "/data")

    path = nexus(edit)
    assert names(path) == ("entry/scan",)
    with pytest.raises(MissingSourceError, match=r"detector\.h5"):
        described(path)
    with h5py.File(path.parent / "detector.h5", "w") as h5:
        h5["data"] = PIXELS
    assert assert_planes(path).shape == SHAPE


def test_what_is_no_image(nexus: Callable[..., Path]) -> None:
    def edit(h5: h5py.File, data: h5py.Group) -> None:
        del data["counts"]
        data["counts"] = np.arange(9)

    assert recognised(nexus(edit)) == []
    with pytest.raises(LayoutError, match="no image in the layout 'nexus'"):
        described(nexus(edit), layout="nexus")


# --- real files ----------------------------------------------------------------------------------

# Read off the files with h5dump: axes, shape, scale, translation, units.
REAL: dict[str, dict[str, tuple[Any, ...]]] = {
    "nexus-rsciio/nexus_dls_example.nxs": {
        "entry1/testdata/nexustest": ("SYX", (15, 10, 10), (1, 1, 1), (0, 0, 0), ("", "", "")),
    },
    "nexus-rsciio/nxdata_tagged_as_string.nxs": {
        "entry1/dummy_byte": ("YX", (2, 3), (1, 1), (0, 0), ("", "")),
    },
    "nexus-rsciio/saved_multi_signal.nxs": {
        "entry1/rocks": ("SNYX", (15, 1, 40, 40), (2, 1, 1, 1), (20, 20, 0, 0), ("",) * 4),
        "entry2/unnamed__1": ("EYX", (10, 30, 30), (0.01, 2, 2), (0.1, 20, 20), ("",) * 3),
    },
    "nexus-exampledata/APS/EPICSareaDetector/hdf5/AgBehenate_228.hdf5": {
        "entry/data": ("YX", (195, 487), (1, 1), (0, 0), ("", "")),
    },
    "nexus-exampledata/SLS/Sample_Image_2021-03-16_095.hdf5": {
        "entry1/counter0": (
            "YX", (50, 50), (1, 1), (5377.60695625, 5971.54336285), ("um", "um"),
        ),
    },
    "nexus-exampledata/code/hdf5/sans2009n012333.hdf": {
        "entry1/data1": ("YX", (128, 128), (1, 1), (-64, -64), ("", "")),
    },
    "nexus-exampledata/hdf5/simple3D.h5": {
        "entry/data": ("FYX", (2, 3, 4), (1, 1, 1), (0, 0, 0), ("", "", "")),
    },
    "tomo-savu/i12_test_data/dark_field.nxs01_savu.plugins.no_process_plugin_tomo.h5": {
        "1-NoProcessPlugin-tomo": ("FYX", (20, 10, 192), (1, 1, 1), (0, 0, 0), ("", "", "")),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_real_files(corpus: Any, name: str) -> None:
    path = corpus.path(name)
    assert recognised(path) == ["nexus"]
    assert names(path) == tuple(REAL[name])
    for image, (axes, shape, scale, translation, units) in REAL[name].items():
        img = assert_planes(path, image)
        assert (img.axes, img.shape, img.units) == (axes, shape, units)
        assert img.scale == pytest.approx(scale)
        assert img.translation == pytest.approx(translation)


def test_real_files_with_uneven_angles(corpus: Any) -> None:
    path = corpus.path("nexus-k11-diad/k11-18014.nxs")  # flat fields come first, at one angle
    assert names(path) == ("entry/imaging",)  # the file's other signals are missing
    with pytest.warns(
        MetadataWarning, match="'gts_theta_value_set' of 'entry/imaging' is not even"
    ):
        img = assert_planes(path)
    assert (img.axes, img.shape, img.scale) == ("AYX", (3201, 22, 26), (1.0, 1.0, 1.0))
    path = corpus.path("tomo-savu/stxm_single_sino.nxs")
    with pytest.warns(MetadataWarning, match="'theta'"):
        img = assert_planes(path)
    assert (img.axes, img.shape) == ("AX", (52, 101))
    with h5py.File(path) as h5:
        x = h5["entry1/stxm_entry/data/x"][()]
    assert img.scale == pytest.approx((1, (x[-1] - x[0]) / 100))


def test_real_files_without_their_detectors(corpus: Any) -> None:
    for name, image in (
        ("tomo-savu/24888.nxs", "entry1/tomo_entry/data"),
        ("tomo-savu/full_field_corrected/24737_processed.nxs", "entry/final_result_tomo"),
        ("nexus-exampledata/DLS/i16/hdf5/538039.nxs", "entry1/pil100k"),
    ):
        path = corpus.path(name)
        assert image in names(path)
        with pytest.raises(MissingSourceError, match="is not there"):
            described(path, image)
    for name, shape in (
        ("nexus-exampledata/DLS/i03_i04_NXmx/hdf5/Therm_6_2.nxs", (488, 4362, 4148)),
        ("eiger-arina/test_00_master.h5", (16, 192, 192)),
    ):
        assert described(corpus.path(name)).levels[0].shape == shape
