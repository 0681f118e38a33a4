"""HDF5 images: colours in three orders, palettes, labels of dimensions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hyperslab.errors import LayoutError, MetadataWarning
from tests.layouts.planes import assert_planes, described, names, recognised

RED_GREEN_BLUE = [("Red", (1, 0, 0)), ("Green", (0, 1, 0)), ("Blue", (0, 0, 1))]
TABLE = np.random.default_rng(0).integers(0, 256, (16, 3)).astype("u1")


@pytest.fixture
def picture(tmp_path: Path) -> Callable[..., Path]:
    """Write one image with attributes, changed by a function; gives its path."""

    def write(
        shape: tuple[int, ...],
        attributes: dict[str, Any],
        edit: Callable[[h5py.Dataset], None] | None = None,
    ) -> Path:
        path = tmp_path / "picture.h5"
        with h5py.File(path, "w") as h5:
            pixels = np.random.default_rng(1).integers(0, 16, shape).astype("u1")
            image = h5.create_dataset("a/picture", data=pixels)
            image.attrs.update({"CLASS": np.bytes_("IMAGE"), **attributes})
            if edit:
                edit(image)
        return path

    return write


@pytest.mark.parametrize(
    ("mode", "shape", "order"),
    [
        ("INTERLACE_PIXEL", (5, 6, 3), (2, 0, 1)),
        ("INTERLACE_LINE", (5, 3, 6), (1, 0, 2)),
        ("INTERLACE_PLANE", (3, 5, 6), ()),
    ],
)
def test_colours(
    picture: Callable[..., Path], mode: str, shape: tuple[int, ...], order: tuple[int, ...]
) -> None:
    path = picture(shape, {"IMAGE_SUBCLASS": b"IMAGE_TRUECOLOR", "INTERLACE_MODE": mode})
    assert recognised(path) == ["hdf5_image"]
    assert names(path) == ("a/picture",)
    spec = assert_planes(path).spec
    assert (spec.axes, spec.order, spec.levels[0].shape) == ("CYX", order, (3, 5, 6))
    assert [(c.name, c.color) for c in spec.channels] == RED_GREEN_BLUE


def test_colours_of_other_models(picture: Callable[..., Path]) -> None:
    said = {"IMAGE_SUBCLASS": "IMAGE_TRUECOLOR", "INTERLACE_MODE": "INTERLACE_PIXEL"}
    spec = described(picture((5, 6, 3), {**said, "IMAGE_COLORMODEL": "HSV"}))
    assert [(c.name, c.color) for c in spec.channels] == [("H", None), ("S", None), ("V", None)]
    spec = described(picture((5, 6, 4), said))
    assert [c.name for c in spec.channels] == ["Red", "Green", "Blue", "Alpha"]


@pytest.mark.parametrize(
    ("shape", "attributes", "axes", "using"),
    [
        ((5, 6, 3), {"IMAGE_SUBCLASS": "IMAGE_TRUECOLOR"}, "CYX", "axis 2"),
        ((3, 5, 6), {"INTERLACE_MODE": "INTERLACE_PIXEL"}, "CYX", "axis 0"),
        ((5, 6, 7), {"INTERLACE_MODE": 9}, "ZYX", "no axis"),
    ],
)
def test_colours_that_are_not_where_they_should_be(
    picture: Callable[..., Path],
    shape: tuple[int, ...],
    attributes: dict[str, Any],
    axes: str,
    using: str,
) -> None:
    with pytest.warns(MetadataWarning, match=f"using {using} as colours"):
        assert described(picture(shape, attributes)).axes == axes


def test_a_grey_image(picture: Callable[..., Path]) -> None:
    said = {"IMAGE_SUBCLASS": "IMAGE_GRAYSCALE", "IMAGE_MINMAXRANGE": np.array([2, 14], "u1")}
    spec = assert_planes(picture((5, 6), said)).spec
    assert (spec.axes, spec.name) == ("YX", "a/picture")
    (channel,) = spec.channels
    assert (channel.contrast_limits, channel.color_table) == ((2.0, 14.0), None)
    spec = described(picture((5, 6), {**said, "IMAGE_WHITE_IS_ZERO": np.uint8(1)}))
    assert spec.channels[0].color_table == ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0))
    for nonsense in ([7, 7], [1, 2, 3], "wide"):
        spec = described(picture((5, 6), {"IMAGE_MINMAXRANGE": nonsense}))
        assert spec.channels[0].contrast_limits is None
    assert described(picture((3, 5, 6), {"IMAGE_SUBCLASS": "IMAGE_GRAYSCALE"})).axes == "ZYX"


@pytest.mark.parametrize("listed", [False, True])
def test_palettes(picture: Callable[..., Path], listed: bool) -> None:
    def edit(image: h5py.Dataset) -> None:
        palette = image.file.create_dataset("palette", data=TABLE)
        reference = np.array([palette.ref], h5py.ref_dtype) if listed else palette.ref
        image.attrs["PALETTE"] = reference

    spec = described(picture((5, 6), {"IMAGE_SUBCLASS": "IMAGE_INDEXED"}, edit))
    (channel,) = spec.channels
    np.testing.assert_array_equal(np.array(channel.color_table) * 255, TABLE)
    assert channel.contrast_limits == (0.0, 15.0)


@pytest.mark.parametrize("what", ["text", "nowhere", "grey", "group", "floats"])
def test_palettes_that_are_none(picture: Callable[..., Path], what: str) -> None:
    def edit(image: h5py.Dataset) -> None:
        h5 = image.file
        if what == "text":
            image.attrs["PALETTE"] = "blue"
            return
        item = {
            "nowhere": lambda: h5.create_dataset("p", data=TABLE),
            "grey": lambda: h5.create_dataset("p", data=TABLE[:, 0]),
            "group": lambda: h5.create_group("p"),
            "floats": lambda: h5.create_dataset("p", data=TABLE / 255),
        }[what]()
        image.attrs["PALETTE"] = item.ref
        if what == "nowhere":
            del h5["p"]

    with pytest.warns(MetadataWarning, match="using grey"):
        assert described(picture((5, 6), {}, edit)).channels[0].color_table is None


def test_the_other_corners_are_told(picture: Callable[..., Path]) -> None:
    with pytest.warns(MetadataWarning, match="DISPLAY_ORIGIN = 'LL'"):
        described(picture((5, 6), {"DISPLAY_ORIGIN": "LL"}))
    assert described(picture((5, 6), {"DISPLAY_ORIGIN": "UL"})).scale == (1.0, 1.0)


def test_labels_and_scales_of_dimensions(picture: Callable[..., Path]) -> None:
    def edit(image: h5py.Dataset) -> None:
        h5 = image.file
        del image.attrs["CLASS"]  # the library attaches no scales to images; writers do so before
        for i, (label, values, unit) in enumerate(
            [("X", 0.25, "um"), ("Y", np.arange(5) * 0.5 + 3, "um"), ("", 0.0, "s")]
        ):
            scale = h5.create_dataset(f"scale{i}", data=values)
            scale.make_scale(label or "time")
            scale.attrs["UNIT"] = unit
            image.dims[i].attach_scale(scale)
            image.dims[i].label = label
        image.dims[3].label = "C"
        image.attrs["CLASS"] = np.bytes_("IMAGE")

    spec = assert_planes(picture((6, 5, 4, 2), {}, edit)).spec
    assert (spec.axes, spec.order) == ("TCYX", (2, 3, 1, 0))
    assert spec.scale == (1.0, 1.0, 0.5, 0.25)
    assert spec.translation == (0.0, 0.0, 3.0, 0.0)
    assert spec.units == ("", "", "um", "um")


def test_an_unknown_image(picture: Callable[..., Path]) -> None:
    with pytest.raises(LayoutError, match="'a/picture'"):
        described(picture((5, 6), {}), "other")
    assert recognised(picture((5, 6), {"CLASS": "PALETTE"})) == []


def test_names_of_an_acquisition(tmp_path: Path) -> None:
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as h5:
        for name, count in (("One", 1), ("Many", 3), ("Bands", 4)):
            image = h5.create_dataset(f"{name}/ImageData/Image", data=np.zeros((count, 5, 6), "u2"))
            for axis, label in zip(image.dims, "CYX", strict=True):
                axis.label = label
        h5["One/PhysicalData/ChannelDescription"] = ["Secondary electrons"]
        h5["Many/PhysicalData/ChannelDescription"] = ["DAPI", "", "Cy5"]
        h5["Bands/PhysicalData/ChannelDescription"] = ["Spectrum"]
        h5["Bands/ImageData/Scale"] = np.array([4e-7, 4.5e-7, 5e-7, 5.125e-7])
        h5["Bands/ImageData/Scale"].attrs["UNIT"] = "m"
        h5["Bands/ImageData/Scale"].make_scale("C")
        h5["Bands/ImageData/Image"].dims[0].attach_scale(h5["Bands/ImageData/Scale"])
        for name in ("One", "Many", "Bands"):  # once the scale is there: HDF5 takes it for one
            h5[f"{name}/ImageData/Image"].attrs["CLASS"] = np.bytes_("IMAGE")
    found = {
        image.split("/")[0]: [c.name for c in described(path, image).channels]
        for image in names(path)
    }
    assert found == {
        "One": ["Secondary electrons"],
        "Many": ["DAPI", "Channel 1", "Cy5"],
        "Bands": ["400 nm", "450 nm", "500 nm", "512.5 nm"],
    }


def test_names_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as h5:
        image = h5.create_dataset("A/ImageData/Image", data=np.zeros((5, 6), "u2"))
        image.attrs["CLASS"] = np.bytes_("IMAGE")
        h5.create_group("A/PhysicalData/ChannelDescription")
    assert [c.name for c in described(path).channels] == ["Channel 0"]


# --- real files ----------------------------------------------------------------------------------


def test_real_files(corpus: Any) -> None:
    found = {}
    for name in ("hdf5-image/ex_image2.h5", "hdfview/hdf5_test_2005.h5"):
        path = corpus.path(name)
        assert recognised(path) == ["hdf5_image"]
        for image in names(path):
            img = assert_planes(path, image)
            tables = [len(c.color_table) for c in img.channels if c.color_table]
            found[image] = (img.axes, img.shape, tables, img.channels[0].contrast_limits)
    assert found == {
        "image24bitpixel": ("CYX", (3, 149, 227), [], None),
        "image8bit": ("YX", (400, 300), [256], (0.0, 255.0)),
        "images/Iceberg": ("YX", (375, 375), [256], (0.0, 255.0)),
        "images/landcover.umd.199906.jpg": ("CYX", (3, 180, 360), [], (0.0, 255.0)),
        "images/pixel interlace": ("CYX", (3, 149, 227), [], (0.0, 255.0)),
        "images/plane interlace": ("CYX", (3, 149, 227), [], (0.0, 255.0)),
    }
    # The same picture, once with the colours last and once with them first.
    path = corpus.path("hdfview/hdf5_test_2005.h5")
    pixel, plane = (assert_planes(path, f"images/{kind} interlace") for kind in ("pixel", "plane"))
    assert pixel.shape == plane.shape
    with h5py.File(path) as h5:
        table = h5["images/iceberg_palette"][()]
    iceberg = described(path, "images/Iceberg").channels[0]
    np.testing.assert_allclose(np.array(iceberg.color_table) * 255, table, atol=1e-9)


def test_real_files_of_a_microscope(corpus: Any) -> None:
    path = corpus.path("delmic/sparc-hyperspectral.h5")
    img = assert_planes(path, "Acquisition2/ImageData/Image")
    assert (img.axes, img.shape) == ("TCZYX", (1, 128, 1, 3, 2))
    with h5py.File(path) as h5:
        size = h5["Acquisition2/ImageData/DimensionScaleX"][()]
    assert (img.scale[-1], img.units[-1]) == (size, "m")
    preview = assert_planes(path, "Preview/Image")
    assert (preview.axes, preview.shape) == ("CYX", (3, 512, 512))
