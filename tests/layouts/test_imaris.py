"""Imaris files: what is described must be what the file, as h5py shows it, says."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hyperslab.errors import LayoutError, MetadataWarning, MissingSourceError
from hyperslab.index.session import session
from hyperslab.layouts import ImageSpec, describe, imaris, recognise
from hyperslab.testing import make_imaris

IMAGE = "DataSetInfo/Image"
CHANNEL = "DataSet/ResolutionLevel 0/TimePoint 0/Channel 0"


def described(path: str | Path) -> ImageSpec:
    with session(str(path)) as h5:
        return describe(h5, str(path))


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., str]:
    """Write a small file, let a function change it through h5py, and give its path."""

    def write(edit: Callable[[h5py.File], None], **options: Any) -> str:
        path = tmp_path / "edited.ims"
        make_imaris(path, **{"thumbnail": False, **options})
        with h5py.File(path, "r+") as h5:
            edit(h5)
        return str(path)

    return write


def chars(text: str | bytes) -> np.ndarray:
    """The vendor's way of writing text: an array of one-byte strings."""
    raw = text if isinstance(text, bytes) else text.encode()
    return np.frombuffer(raw, dtype="S1")


def put(where: str, name: str, value: Any) -> Callable[[h5py.File], None]:
    """Make an edit that sets one attribute; `str` is written the vendor's way."""

    def edit(h5: h5py.File) -> None:
        h5[where].attrs[name] = chars(value) if isinstance(value, str) else value

    return edit


# --- the ordinary file ---------------------------------------------------------------------------


def test_padded_levels_have_their_true_size(tmp_path: Path) -> None:
    facts = make_imaris(tmp_path / "a.ims", shape=(2, 2, 5, 70, 90), chunks=(8, 64, 64))
    with h5py.File(facts.path) as h5:
        data = h5[f"{CHANNEL}/Data"]
        assert data.shape == (8, 128, 128)
        assert data[5:].min() == data[:, 70:].min() == data[..., 90:].min() == 65535
        assert data[:5, :70, :90].max() < 65535
        assert h5[f"{CHANNEL}"].attrs["ImageSizeX"].dtype == "S1"
    spec = described(facts.path)
    assert [level.shape for level in spec.levels] == [(2, 2, 5, 70, 90), (2, 2, 5, 35, 45)]
    assert (spec.axes, spec.n_outer, spec.dtype, spec.layout) == ("TCZYX", 2, "uint16", "imaris")
    assert spec.file == facts.path
    assert spec.levels[1].datasets == tuple(
        f"/DataSet/ResolutionLevel 1/TimePoint {t}/Channel {c}/Data"
        for t in range(2)
        for c in range(2)
    )


def test_metadata(tmp_path: Path) -> None:
    facts = make_imaris(tmp_path / "a.ims")
    spec = described(facts.path)
    assert spec.name == "Synthetic cells"
    assert spec.scale == (1.0, 1.0, 2.0, 0.12345, 0.12345)
    assert spec.origin == (0.0, 0.0, -3.0, 20.25, 100.5)
    assert spec.translation == (0.0, 0.0, -2.0, 20.311725, 100.561725)
    assert spec.units == ("", "", "um", "um", "um")
    assert tuple(channel.name for channel in spec.channels) == facts.channel_names
    assert tuple(channel.color for channel in spec.channels) == facts.colors
    assert tuple(channel.contrast_limits for channel in spec.channels) == facts.ranges
    assert {(channel.gamma, channel.opacity) for channel in spec.channels} == {(1.0, 1.0)}
    assert spec.timestamps == facts.timestamps
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_names_and_order(tmp_path: Path) -> None:
    """12 time points, 11 channels, 11 levels: "10" sorts after "9", and channels count from 1."""
    facts = make_imaris(
        tmp_path / "order.ims",
        shape=(12, 11, 1, 2048, 2048),
        chunks=(1, 256, 256),
        levels=11,
        first_channel=1,
        soft_linked_dataset=True,
        sparse=True,
        colors=[(0.086, 0.608, 0.384)] * 11,
        origin=(100.5, 0.0, 0.0),
        voxel=(1.0, 0.12345, 0.12345),
        channel_names=[f"dye {c}" for c in range(11)],
        ranges=[(c, 1000.0 + c) for c in range(11)],
    )
    with h5py.File(facts.path) as h5:
        assert h5.get("DataSet", getlink=True).path == "/Workflows/InitialImages/DataSet"
        later = h5["DataSet/ResolutionLevel 0/TimePoint 1/Channel 0"]
        assert "HistogramMin" in h5[CHANNEL].attrs
        assert "HistogramMin" not in later.attrs
    spec = described(facts.path)
    assert spec.levels[0].shape == (12, 11, 1, 2048, 2048)
    assert [level.shape[-1] for level in spec.levels] == [2048 >> k for k in range(11)]
    assert spec.levels[10].datasets == tuple(
        f"/DataSet/ResolutionLevel 10/TimePoint {t}/Channel {c}/Data"
        for t in range(12)
        for c in range(11)
    )
    assert [channel.name for channel in spec.channels] == [f"dye {c}" for c in range(11)]
    assert spec.channels[10].contrast_limits == (10.0, 1010.0)
    assert {channel.color for channel in spec.channels} == {(0.086, 0.608, 0.384)}
    assert spec.scale[-1] == 0.12345
    assert spec.origin[-1] == 100.5
    assert spec.translation[-1] == 100.561725


def test_a_large_sparse_file_is_described_by_few_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = make_imaris(
        tmp_path / "large.ims",
        shape=(60, 3, 48, 2048, 5888),
        chunks=(16, 256, 256),
        levels=5,
        sparse=True,
    )
    assert Path(facts.path).stat().st_size < 10_000_000
    opened = []
    initialise = h5py.Dataset.__init__

    def count(self: h5py.Dataset, *args: Any, **kwargs: Any) -> None:
        opened.append(self)
        initialise(self, *args, **kwargs)

    monkeypatch.setattr(h5py.Dataset, "__init__", count)
    spec = described(facts.path)
    assert 0 < len(opened) < 20
    assert spec.levels[0].shape == (60, 3, 48, 2048, 5888)
    assert [level.shape[2:] for level in spec.levels] == list(facts.level_sizes)
    assert len(spec.levels) == 5
    assert sum(len(level.datasets) for level in spec.levels) == 900
    assert None not in spec.levels[4].datasets
    assert all(channel.contrast_limits for channel in spec.channels)


# --- links ---------------------------------------------------------------------------------------


def test_multi_file(tmp_path: Path) -> None:
    facts = make_imaris(tmp_path / "set.ims", multi_file=True)
    assert len(facts.linked_files) == 4
    spec = described(facts.path)
    assert [level.shape for level in spec.levels] == [(2, 2, 5, 70, 90), (2, 2, 5, 35, 45)]
    with h5py.File(facts.path) as h5:
        for level, size in zip(spec.levels, facts.stored_sizes, strict=True):
            assert {h5[name].shape for name in level.datasets} == {size}


def test_a_linked_file_that_is_gone(tmp_path: Path) -> None:
    facts = make_imaris(tmp_path / "set.ims", multi_file=True)
    gone = Path(facts.linked_files[2])
    gone.unlink()
    with pytest.raises(MissingSourceError, match="channel 0 of time point 1") as caught:
        described(facts.path)
    assert gone.name in str(caught.value)
    assert "not there" in str(caught.value)
    assert caught.value.file == facts.path
    assert pickle.loads(pickle.dumps(caught.value)).facts == caught.value.facts


def test_a_linked_file_without_the_object(tmp_path: Path) -> None:
    facts = make_imaris(tmp_path / "set.ims", multi_file=True)
    with h5py.File(facts.linked_files[3], "r+") as h5:
        del h5["ResolutionLevel 1"]
    with pytest.raises(MissingSourceError, match="that file is there") as caught:
        described(facts.path)
    assert "channel 1 of time point 1, level 1" in str(caught.value)


def test_data_that_are_an_external_link(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        del h5[f"{CHANNEL}/Data"]
        h5[f"{CHANNEL}/Data"] = h5py.ExternalLink("elsewhere.h5", "/Data")

    with pytest.raises(MissingSourceError, match=r"elsewhere\.h5"):
        described(edited(edit))


def test_an_image_whose_soft_link_leads_nowhere(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        del h5["Workflows"]

    with pytest.raises(LayoutError, match="DataSet"):
        described(edited(edit, soft_linked_dataset=True))


def test_missing_time_points_and_channels(tmp_path: Path) -> None:
    facts = make_imaris(tmp_path / "gaps.ims", shape=(3, 2, 5, 70, 90), missing={(0, 0), (1, 1)})
    with pytest.warns(MetadataWarning, match="time point 0 channel 0, .*reads as zeros"):
        spec = described(facts.path)
    assert spec.levels[0].shape[:2] == (3, 2)
    assert [name is None for name in spec.levels[0].datasets] == [1, 0, 0, 1, 0, 0]
    assert [name is None for name in spec.levels[1].datasets] == [1, 0, 0, 1, 0, 0]
    # Contrast comes from the next dataset of that channel.
    assert spec.channels[0].contrast_limits == facts.ranges[0]


def test_an_interrupted_recording(tmp_path: Path) -> None:
    missing = {(t, c) for t in (2, 3) for c in (0, 1)}
    facts = make_imaris(tmp_path / "cut.ims", shape=(4, 2, 5, 70, 90), missing=missing)
    with pytest.warns(MetadataWarning, match="speaks of 4 time points, the file holds 2"):
        spec = described(facts.path)
    assert spec.levels[0].shape[0] == 2
    assert spec.timestamps == (facts.timestamps or ())[:2]


def test_orphans_in_the_image(edited: Callable[..., str]) -> None:
    """A Channel group without Data, a stray group, a stray dataset: none of them is a channel."""

    def edit(h5: h5py.File) -> None:
        time = h5["DataSet/ResolutionLevel 0/TimePoint 0"]
        time.create_group("Channel 7")
        time.create_group("Channel x")
        time["Channel 8"] = [1, 2]
        h5["DataSet"].create_group("ResolutionLevel 9/TimePoint 0")
        h5["DataSet/ResolutionLevel 0"].create_group("Time Point 5")

    assert [level.shape for level in described(edited(edit)).levels] == [
        (2, 2, 5, 70, 90),
        (2, 2, 5, 35, 45),
    ]


def test_groups_that_count_from_one(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        for level in h5["DataSet"].values():
            for t in (1, 0):
                level.move(f"TimePoint {t}", f"TimePoint {t + 1}")
            for time in level.values():
                for c in (1, 0):
                    time.move(f"Channel {c}", f"Channel {c + 1}")

    spec = described(edited(edit, first_channel=1))
    assert spec.levels[0].shape[:2] == (2, 2)
    assert spec.levels[0].datasets[0] == "/DataSet/ResolutionLevel 0/TimePoint 1/Channel 1/Data"
    assert [channel.name for channel in spec.channels] == ["DAPI", "Membrane"]


def test_renamed_directories(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        h5.move("DataSet", "Run%s5%p")
        h5.move("DataSetInfo", "Facts")
        h5.attrs["DataSetDirectoryName"] = chars("Run/5%")
        h5.attrs["DataSetInfoDirectoryName"] = chars("Facts")

    spec = described(edited(edit))
    assert spec.levels[0].datasets[0] == ("/Run%s5%p/ResolutionLevel 0/TimePoint 0/Channel 0/Data")
    assert spec.channels[0].name == "DAPI"


def test_a_root_attribute_that_leads_nowhere(edited: Callable[..., str]) -> None:
    spec = described(edited(put("/", "DataSetDirectoryName", "Nowhere")))
    assert spec.levels[0].shape == (2, 2, 5, 70, 90)


# --- levels --------------------------------------------------------------------------------------


def test_levels_that_repeat_are_left_out(tmp_path: Path) -> None:
    sizes = [(5, 70, 90), (5, 35, 45), (5, 35, 45), (5, 17, 22)]
    facts = make_imaris(tmp_path / "repeat.ims", levels=sizes)
    spec = described(facts.path)
    assert [level.shape[2:] for level in spec.levels] == [sizes[0], sizes[1], sizes[3]]
    assert spec.levels[2].datasets[0] == ("/DataSet/ResolutionLevel 3/TimePoint 0/Channel 0/Data")


def test_a_level_that_grows_is_left_out(tmp_path: Path) -> None:
    facts = make_imaris(tmp_path / "grow.ims", levels=[(5, 70, 90), (6, 35, 45)], sparse=True)
    with pytest.warns(MetadataWarning, match="level 1 has the size"):
        assert len(described(facts.path).levels) == 1


def test_one_level_only(tmp_path: Path) -> None:
    facts = make_imaris(tmp_path / "one.ims", levels=1)
    assert len(described(facts.path).levels) == 1


def test_stored_without_padding(tmp_path: Path) -> None:
    facts = make_imaris(tmp_path / "tight.ims", padding_value=None)
    assert facts.stored_sizes == facts.level_sizes
    assert [level.shape[2:] for level in described(facts.path).levels] == list(facts.level_sizes)


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["0", "-3", "many", "9999", "70.5"])
def test_image_size_that_makes_no_sense(edited: Callable[..., str], said: str) -> None:
    path = edited(put(CHANNEL, "ImageSizeY", said))
    with pytest.warns(MetadataWarning, match="ImageSizeY is .*using 70"):
        assert described(path).levels[0].shape == (2, 2, 5, 70, 90)


def test_image_size_of_other_types(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        h5[CHANNEL].attrs["ImageSizeX"] = np.uint64(90)
        h5[CHANNEL].attrs["ImageSizeY"] = "70"
        h5[CHANNEL].attrs["ImageSizeZ"] = np.array([5.0])

    assert described(edited(edit)).levels[0].shape == (2, 2, 5, 70, 90)


def without_image_size(h5: h5py.File, level: int) -> None:
    group = h5[f"DataSet/ResolutionLevel {level}/TimePoint 0/Channel 0"]
    for axis in "XYZ":
        del group.attrs[f"ImageSize{axis}"]


def test_size_from_datasetinfo(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        without_image_size(h5, 0)
        without_image_size(h5, 1)
        for axis, n in zip("ZYX", (5, 35, 45), strict=True):
            h5[IMAGE].attrs[f"{axis}1"] = chars(str(n))

    assert [level.shape[2:] for level in described(edited(edit)).levels] == [
        (5, 70, 90),
        (5, 35, 45),
    ]


def test_size_from_the_dataset(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        without_image_size(h5, 0)
        # Stale: would leave more padding than a chunk holds along X; and nothing along Y.
        h5[IMAGE].attrs["X"] = chars("10")
        del h5[IMAGE].attrs["Y"]

    path = edited(edit, levels=1)
    with pytest.warns(MetadataWarning, match="may include padding") as caught:
        assert described(path).levels[0].shape[2:] == (5, 128, 128)
    assert len(caught) == 2


# --- DataSetInfo ---------------------------------------------------------------------------------


def test_number_of_datasets_is_text(edited: Callable[..., str]) -> None:
    assert described(edited(put("/", "NumberOfDataSets", "1"))).levels[0].shape[0] == 2


def test_datasetinfo_is_missing(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        del h5["DataSetInfo"]

    path = edited(edit)
    with h5py.File(path) as h5:
        low, high = (
            float(h5[CHANNEL].attrs[f"Histogram{end}"].tobytes()) for end in ("Min", "Max")
        )
    with pytest.warns(MetadataWarning, match="voxel size 1"):
        spec = described(path)
    assert spec.scale == (1.0,) * 5
    assert spec.origin == (0.0,) * 5
    assert spec.translation == (0.0, 0.0, 0.5, 0.5, 0.5)
    assert spec.name == ""
    assert spec.timestamps is None
    assert [channel.name for channel in spec.channels] == ["Channel 0", "Channel 1"]
    assert spec.channels[0].color is None
    assert spec.channels[0].contrast_limits == (low, high)


def test_neither_histogram_nor_color_range(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        del h5["DataSetInfo/Channel 0"].attrs["ColorRange"]

    assert described(edited(edit, histogram=False)).channels[0].contrast_limits is None


@pytest.mark.parametrize(
    "said", ["5 5", "9 2", "nan 255", "0 inf", "low high", "0", "0 1 2", "-1e30 1e30", "0 70000"]
)
def test_color_range_that_makes_no_sense(edited: Callable[..., str], said: str) -> None:
    path = edited(put("DataSetInfo/Channel 0", "ColorRange", said))
    with pytest.warns(MetadataWarning, match="ColorRange = .*histogram"):
        low, high = described(path).channels[0].contrast_limits or (0, 0)
    assert 0 < low < high < 8192


def test_nothing_makes_sense_about_contrast(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        h5["DataSetInfo/Channel 0"].attrs["ColorRange"] = chars("1 0")
        h5[CHANNEL].attrs["HistogramMin"] = chars("3.4028e+38")
        h5[CHANNEL].attrs["HistogramMax"] = chars("-3.4028e+38")

    path = edited(edit, dtype="float32")
    with pytest.warns(MetadataWarning, match="using none"):
        assert described(path).channels[0].contrast_limits is None


def test_contrast_of_the_finer_histogram(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        del h5["DataSetInfo/Channel 0"].attrs["ColorRange"]
        for end, value in (("Min", "3.5"), ("Max", "99")):
            del h5[CHANNEL].attrs[f"Histogram{end}"]
            h5[CHANNEL].attrs[f"Histogram{end}1024"] = chars(value)

    assert described(edited(edit)).channels[0].contrast_limits == (3.5, 99.0)


def test_one_beyond_the_type_is_cut_off(edited: Callable[..., str]) -> None:
    edit = put("DataSetInfo/Channel 0", "ColorRange", "0.000 256.000")
    assert described(edited(edit, dtype="uint8")).channels[0].contrast_limits == (0.0, 255.0)


@pytest.mark.parametrize(
    ("said", "unit"),
    [("mm", "mm"), ("micrometers", "um"), ("\u00b5m", "um"), (b"\xb5m", "um"), ("[nm]", "nm")],
)
def test_spellings_of_units(edited: Callable[..., str], said: str | bytes, unit: str) -> None:
    spec = described(edited(put(IMAGE, "Unit", chars(said))))
    assert spec.units == ("", "", unit, unit, unit)


def test_a_unit_that_is_none(edited: Callable[..., str]) -> None:
    path = edited(put(IMAGE, "Unit", "furlong"))
    with pytest.warns(MetadataWarning, match="furlong.*using 'um'"):
        assert described(path).units[-1] == "um"


@pytest.mark.parametrize("said", ["", "nan", "far away", "1e999", "100.5"])
def test_extents_that_make_no_sense(edited: Callable[..., str], said: str) -> None:
    """The last is ExtMin itself, which a single plane can have; its voxel size is unknown."""
    path = edited(put(IMAGE, "ExtMax0", said or "\0"))
    with pytest.warns(MetadataWarning, match="no usable extent along x"):
        spec = described(path)
    assert spec.scale == (1.0, 1.0, 2.0, 0.12345, 1.0)
    assert (spec.origin[-1], spec.translation[-1]) == (100.5, 101.0)


def test_extents_the_wrong_way_round(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        attrs = h5[IMAGE].attrs
        low, high = attrs["ExtMin1"].tobytes(), attrs["ExtMax1"].tobytes()
        attrs["ExtMin1"], attrs["ExtMax1"] = chars(high), chars(low)

    spec = described(edited(edit))
    assert (spec.scale[3], spec.origin[3]) == (0.12345, 20.25)


@pytest.mark.parametrize(
    "value", ["-3.5", b"-3.5", np.float32(-3.5), np.array([-3.5]), np.array([b"-3.5"]), "-3,5"]
)
def test_numbers_of_any_type(edited: Callable[..., str], value: Any) -> None:
    def edit(h5: h5py.File) -> None:
        h5[IMAGE].attrs["ExtMin0"] = value

    assert described(edited(edit)).origin[-1] == -3.5


def test_color_range_as_numbers(edited: Callable[..., str]) -> None:
    edit = put("DataSetInfo/Channel 0", "ColorRange", np.array([1, 300], dtype=">i4"))
    assert described(edited(edit)).channels[0].contrast_limits == (1.0, 300.0)


def test_an_attribute_without_a_value(edited: Callable[..., str]) -> None:
    edit = put("DataSetInfo/Channel 0", "Name", h5py.Empty("f4"))
    assert described(edited(edit)).channels[0].name == "Channel 0"


@pytest.mark.parametrize("said", ["1 0", "255 0 0", "red", "0 0 -1"])
def test_a_color_that_makes_no_sense(edited: Callable[..., str], said: str) -> None:
    path = edited(put("DataSetInfo/Channel 1", "Color", said))
    with pytest.warns(MetadataWarning, match="channel 1 has Color"):
        spec = described(path)
    assert spec.channels[1].color is None
    assert spec.channels[0].color == (0.2, 0.4, 1.0)


@pytest.mark.parametrize(
    ("item", "said"), [("GammaCorrection", "0"), ("GammaCorrection", "x"), ("ColorOpacity", "7")]
)
def test_display_values_that_make_no_sense(
    edited: Callable[..., str], item: str, said: str
) -> None:
    path = edited(put("DataSetInfo/Channel 0", item, said))
    with pytest.warns(MetadataWarning, match=item):
        channel = described(path).channels[0]
    assert None in (channel.gamma, channel.opacity)
    assert 1.0 in (channel.gamma, channel.opacity)


@pytest.mark.parametrize("n_colors", [3, 256])
def test_color_tables(tmp_path: Path, n_colors: int) -> None:
    """A table of 256 colours is longer than 1024 characters, so it is a dataset."""
    table = [(k / n_colors, 0.5, 1.0) for k in range(n_colors)]
    facts = make_imaris(tmp_path / "table.ims", color_tables={1: table})
    with h5py.File(facts.path) as h5:
        section = h5["DataSetInfo/Channel 1"]
        assert ("ColorTable" in section, "ColorTable" in section.attrs) == (
            n_colors == 256,
            n_colors == 3,
        )
    plain, tabled = described(facts.path).channels
    assert plain.color_table is None
    assert tabled.color is None
    assert tabled.color_table == tuple((round(r, 3), g, b) for r, g, b in table)


def test_a_color_table_that_makes_no_sense(edited: Callable[..., str]) -> None:
    path = edited(put("DataSetInfo/Channel 0", "ColorMode", "TableColor"))
    with pytest.warns(MetadataWarning, match="TableColor"):
        channel = described(path).channels[0]
    assert channel.color_table is None
    assert channel.color == (0.2, 0.4, 1.0)


def test_sections_that_are_missing_or_too_many(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        del h5["DataSetInfo/Channel 0"]
        h5["DataSetInfo"].create_group("Channel 7").attrs["Name"] = chars("orphan")
        h5["DataSetInfo"].create_group("ImarisDataSet       0.0.0")

    spec = described(edited(edit))
    assert [channel.name for channel in spec.channels] == ["Channel 0", "Membrane"]


def test_placeholders_are_no_names(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        for where in (IMAGE, "DataSetInfo/Channel 0"):
            h5[where].attrs["Name"] = chars("(name not specified)")

    spec = described(edited(edit))
    assert (spec.name, spec.channels[0].name) == ("", "Channel 0")


@pytest.mark.parametrize("said", ["yesterday", "2024-13-45 00:00:00", "12"])
def test_timestamps_that_make_no_sense(edited: Callable[..., str], said: str) -> None:
    path = edited(put("DataSetInfo/TimeInfo", "TimePoint2", said))
    with pytest.warns(MetadataWarning, match="TimePoint2"):
        assert described(path).timestamps is None


def test_no_timestamps(tmp_path: Path) -> None:
    facts = make_imaris(tmp_path / "timeless.ims", time_stamps=False)
    assert described(facts.path).timestamps is None


ODD: dict[str, Any] = {
    "text": "nonsense",
    "no text": "",
    "not UTF-8": np.bytes_(b"\xff\xfe\x00\x80"),
    "one-byte strings": np.frombuffer(b"\0\0\0", dtype="S1"),
    "strings": np.array(["a", "b"], dtype=object),
    "no number": np.nan,
    "infinite": np.array([np.inf, -np.inf]),
    "huge": np.array([2**64 - 1], dtype="u8"),
    "negative": np.array([-1], dtype="i8"),
    "zero": 0,
    "many": np.arange(5000),
    "none": np.zeros(0),
    "no value": h5py.Empty("S1"),
    "compound": np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]),
    "complex": 1 + 2j,
    "truth": True,
    "huge exponent": "1e999999999",
    "tiny": "1e-999999999",
}


@pytest.mark.filterwarnings("ignore::hyperslab.errors.MetadataWarning")
@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_no_value_of_any_item_raises(edited: Callable[..., str], value: Any) -> None:
    def edit(h5: h5py.File) -> None:
        items = [h5]
        h5.visititems(lambda _, item: items.append(item))
        for item in items:
            for name in list(item.attrs):
                item.attrs[name] = value

    spec = described(edited(edit))
    assert spec.levels[0].shape[:2] == (2, 2)
    assert len(spec.channels) == 2
    assert np.isfinite([spec.scale, spec.origin, spec.translation]).all()
    assert min(spec.scale) > 0


# --- what is not an Imaris image -----------------------------------------------------------------


def test_matches(tmp_path: Path) -> None:
    facts = make_imaris(tmp_path / "a.ims")
    with h5py.File(facts.path, "r+") as h5:
        assert recognise(h5) == ["imaris"]
        for name in list(h5.attrs):
            del h5.attrs[name]
        assert imaris.matches(h5)
        del h5["DataSet"]
        assert not imaris.matches(h5)
    with h5py.File(tmp_path / "other.h5", "w") as h5:
        h5["DataSet"] = np.zeros(3)
        assert recognise(h5) == []


def test_an_imaris_file_without_an_image(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        del h5["DataSet"]
        h5["left/over"] = np.zeros((2, 3), dtype="i2")

    with pytest.raises(LayoutError, match=r"/left/over \(2, 3\) int16"):
        described(edited(edit))


def test_channels_of_different_type(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        data = "DataSet/ResolutionLevel 0/TimePoint 0/Channel 1/Data"
        del h5[data]
        h5[data] = np.zeros((8, 128, 128), dtype="float32")

    with pytest.raises(LayoutError, match="channel 0: uint16, channel 1: float32"):
        described(edited(edit))


def test_data_that_are_no_volume(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        del h5[f"{CHANNEL}/Data"]
        h5[f"{CHANNEL}/Data"] = np.zeros((8, 8))

    with pytest.raises(LayoutError, match=r"shape \(8, 8\)"):
        described(edited(edit))


def test_a_stray_number_does_not_fill_the_memory(edited: Callable[..., str]) -> None:
    def edit(h5: h5py.File) -> None:
        level = h5["DataSet/ResolutionLevel 0"]
        level.move("TimePoint 1", "TimePoint 999999999")

    with pytest.raises(LayoutError, match="999999999"):
        described(edited(edit))


# --- real files ----------------------------------------------------------------------------------

# Read off the files' attributes, by hand. `extent` is (ExtMin, ExtMax) of x, y, z.
REAL: dict[str, dict[str, Any]] = {
    "ims-imariswriter/Minimal_IMS_File.ims": {
        "dtype": "uint16",
        "shapes": [(1, 1, 1, 128, 128)],
        "extent": [(3.0, 10.0), (3.0, 10.0), (0.0, 0.1)],
        "name": "",
        "channels": [("Channel 0", None, (0.0, 256.0))],
        "timestamps": None,
    },
    "ims-multifile-mri-le/mri-stack-16bit-header.ims": {
        "dtype": "uint16",
        "shapes": [(1, 1, 27, 226, 186), (1, 1, 13, 113, 93)],
        "extent": [(0.0, 186.0), (0.0, 226.0), (0.0, 270.0)],
        "name": "",
        "channels": [("channel_0", (1.0, 0.0, 0.0), (0.0, 25500.0))],
        "timestamps": (datetime(2000, 1, 1),),
    },
    "ims-multifile-nc1-nt3-cube/volume.ims": {
        "dtype": "uint8",
        "shapes": [(3, 1, 27, 226, 186), (3, 1, 13, 113, 93)],
        "extent": [(0.0, 186.0), (0.0, 226.0), (0.0, 270.0)],
        "name": "",
        "channels": [("channel_0", (1.0, 1.0, 1.0), (38.0, 255.0))],
        "timestamps": tuple(datetime(2000, 1, 1, 0, 0, s) for s in range(3)),
    },
    "ims-multifile-rampdata/image-header.ims": {
        "dtype": "uint16",
        "shapes": [(1, 1, 30, 100, 100)],
        "extent": [(0.0, 100.0), (0.0, 100.0), (0.0, 30.0)],
        "name": "",
        "channels": [("channel_0", (1.0, 1.0, 1.0), (0.0, 99.0))],
        "timestamps": (datetime(2000, 1, 1),),
    },
    "ims-ptk2cell/PtK2Cell.ims": {
        "dtype": "uint8",
        "shapes": [(1, 4, 32, 256, 256)],
        "extent": [(-0.033, 17.118), (-0.033, 17.118), (-0.1, 6.3)],
        "name": "Spindle Formation in PtK2 Cell",
        "channels": [
            ("Kinetochores", (1.0, 0.0, 0.0), (0.0, 247.0)),
            ("Microtubules", (0.0, 1.0, 0.0), (0.0, 247.0)),
            ("DNA", (0.0, 0.0, 1.0), (0.0, 247.0)),
            ("Dynactin", (1.0, 1.0, 1.0), (0.0, 247.0)),
        ],
        "timestamps": (datetime(2002, 1, 1),),
    },
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(corpus: Any, name: str) -> None:
    known = REAL[name]
    path = str(corpus.path(name))
    spec = described(path)
    assert spec.dtype == known["dtype"]
    assert [level.shape for level in spec.levels] == known["shapes"]
    sizes = known["shapes"][0][:1:-1]
    steps = [(high - low) / n for (low, high), n in zip(known["extent"], sizes, strict=True)]
    assert spec.scale[:1:-1] == pytest.approx(steps, rel=1e-12)
    assert spec.origin[:1:-1] == tuple(low for low, _ in known["extent"])
    centres = [low + step / 2 for (low, _), step in zip(known["extent"], steps, strict=True)]
    assert spec.translation[:1:-1] == pytest.approx(centres, rel=1e-12, abs=1e-12)
    assert spec.units == ("", "", "um", "um", "um")
    assert spec.name == known["name"]
    assert [(c.name, c.color, c.contrast_limits) for c in spec.channels] == known["channels"]
    assert spec.timestamps == known["timestamps"]
    with h5py.File(path) as h5:
        for level in spec.levels:
            for dataset in level.datasets:
                assert np.all(np.array(h5[dataset].shape) >= level.shape[2:])
                assert h5[dataset].dtype == spec.dtype


def test_every_real_imaris_file_is_known_here(corpus: Any) -> None:
    names = {entry["name"] for entry in corpus.entries if entry["name"].endswith(".ims")}
    assert names == set(REAL)
    for path, entry in corpus.readable():
        if entry["kind"] in ("layout", "training-h5", "ilastik", "bdv"):
            with session(str(path)) as h5:
                assert "imaris" not in recognise(h5), path
