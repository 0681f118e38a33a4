"""BigDataViewer: what is described must be what the file and its xml say, and pixels unsigned."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import LayoutError, MetadataWarning, MissingSourceError
from hyperslab.layouts.bdv_xml import read_xml
from hyperslab.testing import make_bdv
from tests.layouts.planes import described, names, recognised

CELLS = "t00000/s00/0/cells"


def rewrite(path: str | None, edit: Callable[[ElementTree.Element], None]) -> None:
    assert path is not None
    tree = ElementTree.parse(path)
    edit(tree.getroot())
    tree.write(path)


def set_text(tag: str, text: str | None) -> Callable[[ElementTree.Element], None]:
    def edit(root: ElementTree.Element) -> None:
        item = root.find(f".//{tag}")
        assert item is not None
        item.text = text

    return edit


# --- the ordinary file ---------------------------------------------------------------------------


def test_the_file_and_its_xml(tmp_path: Path) -> None:
    facts = make_bdv(tmp_path / "a.h5", position=(-4.0, 10.0, 20.5))
    assert recognised(facts.path) == ["bdv"]
    spec = described(facts.path)
    assert (spec.layout, spec.axes, spec.n_outer, spec.dtype) == ("bdv", "TCZYX", 2, "uint16")
    assert [level.shape for level in spec.levels] == [(2, 2, 5, 70, 90), (2, 2, 5, 35, 45)]
    assert spec.levels[1].datasets == (
        "/t00000/s00/1/cells",
        "/t00000/s01/1/cells",
        "/t00001/s00/1/cells",
        "/t00001/s01/1/cells",
    )
    assert spec.scale == (1.0, 1.0, 2.0, 0.25, 0.25)
    assert spec.translation == (0.0, 0.0, -4.0, 10.0, 20.5)
    assert spec.origin == (0.0, 0.0, -5.0, 9.875, 20.375)
    assert spec.units == ("", "", "um", "um", "um")
    assert [channel.name for channel in spec.channels] == ["GFP", "Cherry"]
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    "storage",
    [
        {},
        {"chunks": (1, 70, 90), "compression": None},
        {"scaleoffset": 0, "compression": "gzip"},
    ],
)
def test_signed_storage_reads_unsigned(tmp_path: Path, storage: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    volumes = rng.integers(0, 1 << 16, (2, 2, 5, 70, 90), dtype=np.uint16)
    facts = make_bdv(tmp_path / "a.h5", data=lambda t, s: volumes[t, s], **storage)
    with h5py.File(facts.path) as h5:
        stored = h5[CELLS]
        assert stored.dtype == np.int16
        assert stored[...].min() < 0
        coarse = h5["t00001/s01/1/cells"][...].view(np.uint16)
    image = hs.open_image(facts.path)
    assert image.dtype == np.uint16
    np.testing.assert_array_equal(image[...], volumes)
    np.testing.assert_array_equal(image[1, 0, 2:4, ::-3, [5, 2]], volumes[1, 0, 2:4, ::-3, [5, 2]])
    np.testing.assert_array_equal(image.levels[1][1, 1], coarse)
    copy = pickle.loads(pickle.dumps(image))
    np.testing.assert_array_equal(copy[0, 1], volumes[0, 1])


def test_unsigned_fill_byte_order_and_virtual(tmp_path: Path) -> None:
    """Whatever holds the pixels: never written, big-endian, contiguous, compact, virtual."""
    pixels = np.array([[[0, 40000], [65535, 7]]], np.uint16)
    with h5py.File(tmp_path / "a.h5", "w") as h5:
        h5["s00/resolutions"] = np.ones((1, 3))
        h5.create_dataset("t00000/s00/0/cells", (1, 2, 2), "i2", fillvalue=-2, chunks=(1, 1, 2))
        h5["t00001/s00/0/cells"] = pixels.view("i2").astype(">i2")
        h5["t00002/s00/0/cells"] = pixels.view("i2")
        virtual = h5py.VirtualLayout((1, 2, 2), "i2")
        virtual[0] = h5py.VirtualSource(h5["t00002/s00/0/cells"])[0]
        h5.create_virtual_dataset("t00003/s00/0/cells", virtual, fillvalue=-1)
    with pytest.warns(MetadataWarning, match="no xml"):
        image = hs.open_image(tmp_path / "a.h5")
    assert image.dtype == np.uint16
    np.testing.assert_array_equal(image[0, 0], np.full((1, 2, 2), 65534))
    for t in (1, 2, 3):
        np.testing.assert_array_equal(image[t, 0], pixels)


@pytest.mark.parametrize(
    ("stored", "said", "meant"),
    [
        ("int16", None, "uint16"),
        ("int16", "int16", "int16"),
        ("int16", "uint16", "uint16"),
        ("uint16", "uint16", "uint16"),
        ("uint16", None, "uint16"),
        ("uint8", None, "uint8"),
        ("int8", "uint8", "uint8"),
        ("float32", None, "float32"),
        ("int32", None, "int32"),
    ],
)
def test_data_type(tmp_path: Path, stored: str, said: str | None, meant: str) -> None:
    pixels = np.array([-3, 5], "i1").astype(stored).reshape(1, 1, 2)
    facts = make_bdv(tmp_path / "a.h5", shape=(1, 1, 1, 1, 2), levels=1)
    with h5py.File(facts.path, "r+") as h5:
        del h5[CELLS]
        h5[CELLS] = pixels
        if said is not None:
            h5["s00"].attrs["dataType"] = said
    image = hs.open_image(facts.path)
    assert image.dtype == meant
    np.testing.assert_array_equal(image[0, 0], pixels.view(meant))


@pytest.mark.parametrize("said", ["uint8", "colour", "float16", ""])
def test_a_data_type_that_does_not_fit(tmp_path: Path, said: str) -> None:
    facts = make_bdv(tmp_path / "a.h5", levels=1, state_type=True)
    with h5py.File(facts.path, "r+") as h5:
        for name in ("s00", "s01"):
            h5[name].attrs["dataType"] = said
    if said:
        with pytest.warns(MetadataWarning, match="using uint16"):
            assert described(facts.path).dtype == "uint16"
    else:
        assert described(facts.path).dtype == "uint16"


def test_a_dataset_of_another_type_is_no_part_of_it(tmp_path: Path) -> None:
    facts = make_bdv(tmp_path / "a.h5", levels=1)
    with h5py.File(facts.path, "r+") as h5:
        del h5["t00001/s01/0/cells"]
        h5["t00001/s01/0/cells"] = np.full((5, 70, 90), 0.5, "f4")
    image = hs.open_image(facts.path)
    with pytest.raises(LayoutError, match=r"/t00001/s01/0/cells has .*float32"):
        image[1, 1, 0]
    assert image[1, 0, 0].shape == (70, 90)


# --- without the xml, and which xml --------------------------------------------------------------


def test_without_xml(tmp_path: Path) -> None:
    facts = make_bdv(tmp_path / "a.h5", xml=False)
    with pytest.warns(MetadataWarning, match="no xml file beside it.*setups for channels"):
        spec = described(facts.path)
    assert spec.levels[0].shape == facts.shape
    assert spec.scale == (1.0,) * 5
    assert spec.units == ("",) * 5
    assert [channel.name for channel in spec.channels] == ["Channel 0", "Channel 1"]


def test_setups_of_other_sizes_are_images_of_their_own(tmp_path: Path) -> None:
    facts = make_bdv(tmp_path / "a.h5", shape=(1, 3, 5, 70, 90), xml=False, levels=1)
    with h5py.File(facts.path, "r+") as h5:
        del h5["t00000/s01/0/cells"]
        h5["t00000/s01/0/cells"] = np.zeros((5, 70, 80), "i2")
    assert names(facts.path) == ("setups 0, 2", "setup 1")
    with pytest.raises(LayoutError, match="2 images"):
        described(facts.path)
    with pytest.warns(MetadataWarning, match="no xml"):
        assert described(facts.path, "setup 1").levels[0].shape == (1, 1, 5, 70, 80)


def test_an_xml_of_another_name(tmp_path: Path) -> None:
    facts = make_bdv(tmp_path / "a.h5")
    assert facts.xml_path is not None
    os.rename(facts.xml_path, tmp_path / "dataset.xml")
    (tmp_path / "aaa.xml").write_text("<SpimData><hdf5>b.h5</hdf5></SpimData>")
    (tmp_path / "aab.xml").write_text("<SpimData")
    assert described(facts.path).scale[2:] == facts.voxel


def test_opened_by_its_xml(tmp_path: Path) -> None:
    facts = make_bdv(tmp_path / "a.h5")
    assert facts.xml_path is not None
    image = hs.open_image(facts.xml_path)
    assert image.file == facts.path
    assert image.scale[2:] == facts.voxel
    assert hs.list_images(facts.xml_path) == ("",)
    (tmp_path / "other.xml").write_text("<html/>")
    with pytest.raises(hs.errors.NotHDF5Error, match=r"other\.xml"):
        hs.open_image(tmp_path / "other.xml")


# --- setups, angles, time points -----------------------------------------------------------------


def test_angles_are_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    volumes = rng.integers(0, 1 << 16, (2, 6, 2, 30, 40), dtype=np.uint16)
    facts = make_bdv(
        tmp_path / "a.h5",
        shape=(2, 3, 2, 30, 40),
        angles=2,
        levels=1,
        data=lambda t, s: volumes[t, s],
    )
    assert names(facts.path) == ("angle 0", "angle 90")
    with pytest.raises(LayoutError, match="'angle 0', 'angle 90'"):
        described(facts.path)
    image = hs.open_image(facts.path, image="angle 90")
    assert image.shape == (2, 3, 2, 30, 40)
    assert image.name == "angle 90"
    np.testing.assert_array_equal(image[...], volumes[:, 3:])
    np.testing.assert_array_equal(hs.open_image(facts.path, image=0)[...], volumes[:, :3])


def test_channels_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    facts = make_bdv(tmp_path / "a.h5")

    def swap(root: ElementTree.Element) -> None:
        for item in root.findall(".//ViewSetup/attributes/channel"):
            item.text = str(1 - int(item.text or ""))

    rewrite(facts.xml_path, swap)
    spec = described(facts.path)
    assert spec.levels[0].datasets[:2] == ("/t00000/s01/0/cells", "/t00000/s00/0/cells")
    assert [channel.name for channel in spec.channels] == ["GFP", "Cherry"]


def test_two_setups_of_one_channel(tmp_path: Path) -> None:
    facts = make_bdv(tmp_path / "a.h5")

    def same(root: ElementTree.Element) -> None:
        for item in root.findall(".//ViewSetup/attributes/channel"):
            item.text = "0"

    rewrite(facts.xml_path, same)
    assert names(facts.path) == ("setup 0", "setup 1")
    assert described(facts.path, "setup 1").levels[0].datasets[0] == "/t00000/s01/0/cells"


def test_names_of_setups(tmp_path: Path) -> None:
    facts = make_bdv(tmp_path / "a.h5", channel_names=["1", "2"])

    def name(root: ElementTree.Element) -> None:
        ElementTree.SubElement(root.findall(".//ViewSetup")[1], "name").text = "nuclei"

    rewrite(facts.xml_path, name)
    assert [c.name for c in described(facts.path).channels] == ["Channel 1", "nuclei"]


def test_colors_and_contrast(tmp_path: Path) -> None:
    facts = make_bdv(tmp_path / "a.h5")
    setup = (
        "<ConverterSetup><id>{}</id><min>{}</min><max>{}</max><color>{}</color></ConverterSetup>"
    )
    (tmp_path / "a.settings.xml").write_text(
        "<Settings><ConverterSetups>"
        + setup.format(0, 12.5, 900.0, -16711936)
        + setup.format(1, 5, 5, "blue")
        + "</ConverterSetups></Settings>"
    )
    first, second = described(facts.path).channels
    assert (first.color, first.contrast_limits) == ((0.0, 1.0, 0.0), (12.5, 900.0))
    assert (second.color, second.contrast_limits) == (None, None)
    (tmp_path / "a.settings.xml").write_text("<Settings>")
    assert described(facts.path).channels[0].color is None


def test_time_points_that_do_not_start_at_0(tmp_path: Path) -> None:
    facts = make_bdv(tmp_path / "a.h5", times=[10, 20], levels=1)
    spec = described(facts.path)
    assert spec.levels[0].shape[0] == 2
    assert spec.levels[0].datasets[2] == "/t00020/s00/0/cells"


def test_missing_views(tmp_path: Path) -> None:
    shape = (3, 2, 2, 8, 9)
    missing = {(1, 0), (2, 1)}
    facts = make_bdv(tmp_path / "a.h5", shape=shape, levels=1, missing=missing)
    spec = described(facts.path)  # the xml says so: no warning
    assert [name is None for name in spec.levels[0].datasets] == [0, 0, 1, 0, 0, 1]
    assert hs.open_image(facts.path)[1, 0].max() == 0

    with h5py.File(facts.path, "r+") as h5:
        del h5["t00001/s01"]
    with pytest.warns(MetadataWarning, match="no dataset for level 0 time point 1 channel 1: "):
        spec = described(facts.path)
    assert [name is None for name in spec.levels[0].datasets] == [0, 0, 1, 1, 0, 1]

    with h5py.File(facts.path, "r+") as h5:
        del h5["t00001"]
    with pytest.warns(MetadataWarning, match="time point 1 channel 1: "):
        spec = described(facts.path)
    assert [name is None for name in spec.levels[0].datasets] == [0, 0, 1, 1, 0, 1]

    with h5py.File(facts.path, "r+") as h5:
        del h5["t00002"]
    with pytest.warns(MetadataWarning, match="speaks of 3 time points, the file ends 2 earlier"):
        assert described(facts.path).levels[0].shape[0] == 1


def test_gaps_without_xml(tmp_path: Path) -> None:
    facts = make_bdv(tmp_path / "a.h5", shape=(4, 1, 1, 8, 9), levels=1, xml=False)
    with h5py.File(facts.path, "r+") as h5:
        del h5["t00001"]
    with pytest.warns(MetadataWarning) as caught:
        spec = described(facts.path)
    assert any("time point 1 channel 0: reads as zeros" in str(w.message) for w in caught)
    assert spec.levels[0].datasets[1] is None


# --- placement -----------------------------------------------------------------------------------


def set_affine(*chain: str) -> Callable[[ElementTree.Element], None]:
    def edit(root: ElementTree.Element) -> None:
        for view in root.iter("ViewRegistration"):
            for item in list(view):
                view.remove(item)
            for text in chain:
                step = ElementTree.SubElement(view, "ViewTransform", type="affine")
                ElementTree.SubElement(step, "affine").text = text

    return edit


def test_a_chain_of_transforms(tmp_path: Path) -> None:
    """The last in the file comes first: voxels of 0.25, 0.25, 2, then a shift in micrometres."""
    facts = make_bdv(tmp_path / "a.h5")
    shift = "1 0 0 100  0 1 0 200  0 0 1 300"
    calibration = "0.25 0 0 0  0 0.25 0 0  0 0 2 0"
    rewrite(facts.xml_path, set_affine(shift, calibration))
    assert described(facts.path).translation[2:] == (300.0, 200.0, 100.0)
    rewrite(facts.xml_path, set_affine(calibration, shift))
    assert described(facts.path).translation[2:] == (600.0, 50.0, 25.0)


def test_transforms_in_other_units_than_the_voxels(tmp_path: Path) -> None:
    """BigStitcher calibrates relative to the smallest side: a voxel is 1, 1, 8 of its units."""
    facts = make_bdv(tmp_path / "a.h5")
    rewrite(facts.xml_path, set_affine("1 0 0 10  0 1 0 20  0 0 8 40"))
    spec = described(facts.path)
    assert spec.scale[2:] == facts.voxel
    assert spec.translation[2:] == (10.0, 5.0, 2.5)


@pytest.mark.parametrize(
    "affine",
    ["0 -1 0 5  1 0 0 5  0 0 1 5", "1 0.1 0 5  0 1 0 5  0 0 1 5", "-1 0 0 5  0 1 0 5  0 0 1 5"],
)
def test_transforms_that_turn(tmp_path: Path, affine: str) -> None:
    facts = make_bdv(tmp_path / "a.h5")
    rewrite(facts.xml_path, set_affine(affine))
    with pytest.warns(MetadataWarning, match="rotates or shears setup 0"):
        spec = described(facts.path)
    assert spec.scale[2:] == facts.voxel
    assert spec.translation[2:] == (0.0, 0.0, 0.0)


def test_views_in_different_places(tmp_path: Path) -> None:
    facts = make_bdv(tmp_path / "a.h5", position=(1.0, 2.0, 3.0))

    def move(root: ElementTree.Element) -> None:
        item = root.findall(".//affine")[-1]
        item.text = "0.25 0 0 9  0 0.25 0 9  0 0 2 9"

    rewrite(facts.xml_path, move)
    with pytest.warns(MetadataWarning, match="places the views of this image differently"):
        assert described(facts.path).translation[2:] == (1.0, 2.0, 3.0)


@pytest.mark.parametrize("text", ["0 1 1", "many", "1 1", "-1 1 1", None])
def test_a_voxel_size_that_makes_no_sense(tmp_path: Path, text: str | None) -> None:
    facts = make_bdv(tmp_path / "a.h5", position=(1.0, 2.0, 3.0))
    rewrite(facts.xml_path, set_text("voxelSize/size", text))
    spec = described(facts.path)  # the transform has it as well
    assert spec.scale[2:] == facts.voxel
    assert spec.translation[2:] == (1.0, 2.0, 3.0)
    rewrite(facts.xml_path, set_affine("1 2 3"))
    with pytest.warns(MetadataWarning, match="gives setup 0 no voxel size: using 1"):
        assert described(facts.path).scale == (1.0,) * 5


def test_an_xml_with_little_in_it(tmp_path: Path) -> None:
    facts = make_bdv(tmp_path / "a.h5")
    assert facts.xml_path is not None
    Path(facts.xml_path).write_text("<SpimData><ViewSetup><id>x</id></ViewSetup></SpimData>")
    with pytest.warns(MetadataWarning, match="no voxel size"):
        spec = described(facts.path)
    assert spec.levels[0].shape == facts.shape
    Path(facts.xml_path).write_text("<SpimData><ViewSetup>")
    with pytest.warns(MetadataWarning, match="no xml"):
        assert described(facts.path).levels[0].shape == facts.shape


def test_a_size_that_differs(tmp_path: Path) -> None:
    facts = make_bdv(tmp_path / "a.h5")
    rewrite(facts.xml_path, set_text("ViewSetup/size", "91 70 5"))
    with pytest.warns(MetadataWarning, match=r"the size \(5, 70, 91\), its dataset has"):
        assert described(facts.path).levels[0].shape == facts.shape


@pytest.mark.parametrize(
    ("section", "times"),
    [
        ("<first>2</first><last>5</last>", (2, 3, 4, 5)),
        ("<integerpattern>0-6:3, 12,7</integerpattern>", (0, 3, 6, 7, 12)),
        ("<integerpattern></integerpattern>", None),
        ("<Timepoint><id>4</id></Timepoint><Timepoint><id>1</id></Timepoint>", (1, 4)),
        ("<first>0</first><last>99999999999</last>", None),
        ("<first>a</first><last>3</last>", None),
    ],
)
def test_kinds_of_time_points(tmp_path: Path, section: str, times: Any) -> None:
    path = tmp_path / "a.xml"
    path.write_text(
        "<SpimData><SequenceDescription><Timepoints>"
        f"{section}</Timepoints></SequenceDescription></SpimData>"
    )
    assert read_xml(str(path)).times == times


# --- levels and links ----------------------------------------------------------------------------


def test_levels_that_repeat_or_grow(tmp_path: Path) -> None:
    sizes = [(5, 70, 90), (5, 70, 90), (5, 35, 45), (6, 20, 20)]
    facts = make_bdv(tmp_path / "a.h5", levels=sizes)
    with pytest.warns(MetadataWarning, match=r"level 3 has the size \(6, 20, 20\)"):
        spec = described(facts.path)
    assert [level.shape[2:] for level in spec.levels] == [(5, 70, 90), (5, 35, 45)]


def test_partitions(tmp_path: Path) -> None:
    facts = make_bdv(tmp_path / "a.h5")
    before = hs.open_image(facts.path)[...]
    with h5py.File(facts.path, "r+") as h5, h5py.File(tmp_path / "part.h5", "w") as part:
        h5.copy("t00001", part)
        del h5["t00001"]
        for s in (0, 1):
            for level in (0, 1):
                way = f"t00001/s{s:02d}/{level}/cells"
                h5[way] = h5py.ExternalLink("part.h5", way)
    np.testing.assert_array_equal(hs.open_image(facts.path)[...], before)
    (tmp_path / "part.h5").unlink()
    with pytest.raises(MissingSourceError, match=r"part\.h5"):
        hs.open_image(facts.path)


def test_no_volume_at_all(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as h5:
        h5["s00/resolutions"] = np.ones((1, 3))
        h5["t00000/s00/0/cells"] = np.zeros((3, 3))
    with pytest.raises(LayoutError, match="no image in the layout 'bdv'"):
        described(tmp_path / "a.h5")


# --- real files ----------------------------------------------------------------------------------

REAL = {
    "bdv-pybdv/example.h5": [(1, 1, 6, 512, 512), (1, 1, 3, 256, 256)],
    "bdv-mastodon-tiny/tiny-dataset.h5": [(10, 1, 10, 10, 10)],
    "bdv-mastodon-datasethdf5/datasethdf5.h5": [(2, 1, 1, 128, 128)],
}
NAMES = {
    "bdv-pybdv/example.h5": "channel 1",
    "bdv-mastodon-tiny/tiny-dataset.h5": "channel 1",
    "bdv-mastodon-datasethdf5/datasethdf5.h5": "Channel 0",
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(corpus: Any, name: str) -> None:
    path = str(corpus.path(name))
    assert recognised(path) == ["bdv"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        image = hs.open_image(path)
    told = [str(warning.message) for warning in caught]
    if "datasethdf5" in name:  # a cut-out of a larger one, with the xml of that
        assert len(told) == 2
        assert "31 time points" in told[0]
        assert "(29, 101, 151)" in told[1]
    else:
        assert told == []
    assert [level.shape for level in image.levels] == REAL[name]
    root = ElementTree.parse(path.replace(".h5", ".xml")).getroot()
    x, y, z = map(float, (root.findtext(".//voxelSize/size") or "").split())
    assert image.scale == (1.0, 1.0, z, y, x)
    assert image.translation == (0.0,) * 5
    unit = (root.findtext(".//voxelSize/unit") or "").strip()
    assert image.units == ("", "", unit, unit, unit)
    assert [channel.name for channel in image.channels] == [NAMES[name]]
    assert image.dtype == np.uint16
    with h5py.File(path) as h5:
        for r, level in enumerate(image.levels):
            for t in {0, level.shape[0] - 1}:
                np.testing.assert_array_equal(
                    level[t, 0], h5[f"t{t:05d}/s00/{r}/cells"][...].view(np.uint16)
                )


def test_every_real_file_is_known_here(corpus: Any) -> None:
    kinds = {entry["name"] for entry in corpus.entries if entry["kind"] == "bdv"}
    assert {name for name in kinds if name.endswith(".h5")} == set(REAL)
