"""MINC 2: axes, positions and scaling, held against nibabel where it is installed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import LayoutError, MetadataWarning
from hyperslab.layouts import ImageSpec
from tests.layouts.planes import assert_planes, described, recognised

IMAGE = "minc-2.0/image/0/image"
SPACES = ("zspace", "yspace", "xspace")


@pytest.fixture
def minc(tmp_path: Path) -> Callable[..., Path]:
    """Write an image with a scaling for each slice, changed by a function; gives its path."""

    def write(
        edit: Callable[[h5py.File], None] | None = None,
        order: tuple[str, ...] = SPACES,
        shape: tuple[int, ...] = (4, 5, 6),
        dtype: str = "i2",
    ) -> Path:
        path = tmp_path / "head.mnc"
        pixels = np.random.default_rng(0).integers(0, 255, shape)
        with h5py.File(path, "w") as h5:
            h5[IMAGE] = pixels.astype(dtype)
            h5[IMAGE].attrs["dimorder"] = np.bytes_(",".join(order))
            h5[IMAGE].attrs["valid_range"] = np.array([0.0, 255.0])
            low = np.arange(shape[0]) - 2.0
            h5["minc-2.0/image/0/image-min"] = low
            h5["minc-2.0/image/0/image-max"] = low + 3 * (1 + np.arange(shape[0]))
            for i, name in enumerate(order):
                dimension = h5.create_dataset(f"minc-2.0/dimensions/{name}", data=0.0)
                place = (*SPACES, "time").index(name) if name in (*SPACES, "time") else 0
                dimension.attrs["step"] = (2.0, -0.5, 0.25, 1.5)[place]
                dimension.attrs["start"] = (-10.0, 20.0, -30.0, 0.0)[place]
                dimension.attrs["length"] = shape[i]
            if edit:
                edit(h5)
        return path

    return write


def real_values(path: Path | str, spec: ImageSpec) -> np.ndarray:
    """Read the image; and hold it against what its description says of what is stored."""
    values = np.asarray(hs.open_image(path)[...])
    stored = np.asarray(hs.open_image(path, physical=False)[...])
    if spec.intensity is None:
        np.testing.assert_array_equal(values, stored)
        return values
    assert values.dtype == np.float64
    assert stored.dtype == spec.dtype
    lead = stored.shape[: spec.intensity.n_axes]
    after = (1,) * (stored.ndim - len(lead))
    slope = np.array(spec.intensity.slope).reshape(lead + after)
    expected = slope * stored + np.array(spec.intensity.offset).reshape(lead + after)
    np.testing.assert_array_equal(values, expected)
    return values


def expected_values(path: Path | str, spec: ImageSpec) -> np.ndarray:
    """What the format says, along the axes of the file, brought to those of the image."""
    with h5py.File(path) as h5:
        stored = h5[IMAGE][...].astype(np.float64)
        low, high = (h5[f"minc-2.0/image/0/image-{end}"][...] for end in ("min", "max"))
    after = (1,) * (stored.ndim - low.ndim)
    low, high = low.reshape(low.shape + after), high.reshape(high.shape + after)
    values = (stored - 0.0) / 255.0 * (high - low) + low
    return values.transpose(spec.order or range(stored.ndim))


def test_minc(minc: Callable[..., Path]) -> None:
    path = minc()
    assert recognised(path) == ["minc2"]
    spec = assert_planes(path).spec
    assert (spec.axes, spec.order, spec.dtype, spec.name) == ("ZYX", (), "int16", "")
    assert spec.scale == (2.0, -0.5, 0.25)
    assert spec.translation == (-10.0, 20.0, -30.0)
    assert spec.origin == (-11.0, 20.25, -30.125)
    assert spec.units == ("mm", "mm", "mm")
    assert spec.intensity is not None
    assert (spec.intensity.n_axes, len(spec.intensity.slope)) == (1, 4)
    assert spec.intensity.slope[1] == pytest.approx(6 / 255)
    assert spec.intensity.offset == pytest.approx((-2, -1, 0, 1))
    np.testing.assert_allclose(real_values(path, spec), expected_values(path, spec), atol=1e-12)


@pytest.mark.parametrize(
    ("order", "axes", "n_axes"),
    [
        (("xspace", "yspace", "zspace"), "ZYX", 3),
        (("yspace", "zspace", "xspace"), "ZYX", 2),
        (("time", "xspace", "zspace", "yspace"), "TZYX", 1),
        (("vector_dimension", "yspace", "xspace"), "CYX", 1),
        (("zspace", "time", "vector_dimension", "xspace"), "TCZX", 3),
    ],
)
def test_orders(minc: Callable[..., Path], order: tuple[str, ...], axes: str, n_axes: int) -> None:
    path = minc(order=order, shape=(4, 3, 5, 6)[: len(order)])
    spec = assert_planes(path).spec
    assert spec.axes == axes
    assert spec.intensity is not None
    assert spec.intensity.n_axes == n_axes
    np.testing.assert_allclose(real_values(path, spec), expected_values(path, spec), atol=1e-12)
    sizes = {"T": 1.5, "C": 1.0, "Z": 2.0, "Y": -0.5, "X": 0.25}
    assert spec.scale == tuple(sizes[axis] for axis in axes)


def test_a_large_sagittal_image_keeps_its_slices_first(minc: Callable[..., Path]) -> None:
    path = minc(order=("xspace", "zspace", "yspace"), shape=(41, 40, 42), dtype="u1")
    spec = assert_planes(path).spec
    assert (spec.axes, spec.order) == ("XZY", ())
    assert spec.intensity is not None
    assert spec.intensity.n_axes == 1
    np.testing.assert_allclose(real_values(path, spec), expected_values(path, spec), atol=1e-12)


def test_one_scaling_for_all(minc: Callable[..., Path]) -> None:
    def edit(h5: h5py.File) -> None:
        for end, value in (("min", -1.0), ("max", 4.1)):
            h5[f"minc-2.0/image/0/image-{end}"][...] = value

    intensity = described(minc(edit, order=("xspace", "yspace", "zspace"))).intensity
    assert intensity is not None
    assert (intensity.n_axes, intensity.slope) == (0, pytest.approx((0.02,)))


def test_floats_are_real_values_already(minc: Callable[..., Path]) -> None:
    assert described(minc(dtype="f4")).intensity is None


def test_no_valid_range_is_the_whole_range(minc: Callable[..., Path]) -> None:
    def edit(h5: h5py.File) -> None:
        del h5[IMAGE].attrs["valid_range"]

    intensity = described(minc(edit, dtype="u2")).intensity
    assert intensity is not None
    assert intensity.slope[0] == pytest.approx(3 / 65535)
    assert intensity.offset[0] == -2.0


def test_labels_times_and_alignment(minc: Callable[..., Path]) -> None:
    def edit(h5: h5py.File) -> None:
        h5["minc-2.0"].attrs["class"] = b"label__"
        del h5["minc-2.0/dimensions/time"]
        time = h5.create_dataset("minc-2.0/dimensions/time", data=[0.5, 2.5, 4.5, 6.5])
        time.attrs["spacing"] = b"irregular"
        h5["minc-2.0/dimensions/xspace"].attrs["alignment"] = b"start_"
        h5["minc-2.0/dimensions/xspace"].attrs["units"] = b"micrometers"

    spec = described(minc(edit, order=("time", "yspace", "xspace")))
    assert spec.labels
    assert (spec.axes, spec.scale, spec.units) == ("TYX", (2.0, -0.5, 0.25), ("s", "mm", "um"))
    assert spec.translation == (0.5, 20.0, -29.875)
    assert spec.origin == (0.0, 20.25, -30.0)


@pytest.mark.parametrize(
    ("item", "attribute", "value", "message"),
    [
        ("dimensions/xspace", "step", 0.0, "xspace has step 0.0: using step 1."),
        ("dimensions/xspace", "step", b"wide", "xspace has step None: using step 1."),
        ("dimensions/yspace", "start", None, "yspace has start None: using start 0."),
        ("dimensions/xspace", "direction_cosines", [0.9, 0.1, 0.0], "without the rotation"),
        ("dimensions/xspace", "direction_cosines", [1.0, 0.0], "without the rotation"),
        ("image/0/image", "dimorder", b"zspace,yspace", "using zspace,yspace,xspace"),
        ("image/0/image", "dimorder", None, "using zspace,yspace,xspace"),
        ("image/0/image", "valid_range", [5.0, 5.0], "using -32768 to 32767"),
        ("image/0/image", "valid_range", [0.0, 1e9], "using -32768 to 32767"),
        ("image/0/image", "valid_range", [np.nan, 9.0], "using -32768 to 32767"),
    ],
)
def test_nonsense(
    minc: Callable[..., Path], item: str, attribute: str, value: Any, message: str
) -> None:
    def edit(h5: h5py.File) -> None:
        attributes = h5[f"minc-2.0/{item}"].attrs
        if attribute in attributes:
            del attributes[attribute]
        if value is not None:
            attributes[attribute] = value

    with pytest.warns(MetadataWarning, match=message):
        assert described(minc(edit)).axes == "ZYX"


@pytest.mark.parametrize(
    "limits", [None, np.zeros(3), np.zeros((4, 5, 6)), np.full(4, np.inf), b""]
)
def test_limits_that_make_no_sense(minc: Callable[..., Path], limits: Any) -> None:
    def edit(h5: h5py.File) -> None:
        del h5["minc-2.0/image/0/image-max"]
        if limits is not None:
            h5["minc-2.0/image/0/image-max"] = limits

    with pytest.warns(MetadataWarning, match="the stored numbers as they are"):
        assert described(minc(edit)).intensity is None


def test_without_dimensions(minc: Callable[..., Path]) -> None:
    def edit(h5: h5py.File) -> None:
        del h5["minc-2.0/dimensions"]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spec = described(minc(edit))
    assert len(caught) == 3
    assert (spec.scale, spec.translation) == ((1.0,) * 3, (0.0,) * 3)


def test_a_damaged_image_is_none(minc: Callable[..., Path]) -> None:
    def edit(h5: h5py.File) -> None:
        del h5[IMAGE]
        h5.create_group(IMAGE)

    path = minc(edit)
    assert recognised(path) == []
    with pytest.raises(LayoutError, match="no dataset of real numbers"):
        described(path, layout="minc2")


# --- real files ----------------------------------------------------------------------------------

REAL = {
    "minc2-nibabel/minc2-4d-d.mnc": ("TZYX", (5, 16, 16, 16)),
    "minc2-nibabel/minc2_1_scale.mnc": ("ZYX", (10, 20, 20)),
    "minc2-nibabel/minc2_4d.mnc": ("TZYX", (2, 10, 20, 20)),
    "minc2-nibabel/small.mnc": ("ZYX", (18, 28, 29)),
    "minc2-libminc/t3_grid_0.mnc": ("CZYX", (3, 1, 256, 224)),
    "minc2-libminc/test_float_grid_0.mnc": ("CZYX", (3, 20, 20, 20)),
    "minc2-libminc/test_short_grid_0.mnc": ("CZYX", (3, 20, 20, 20)),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(corpus: Any, name: str) -> None:
    path = corpus.path(name)
    assert recognised(path) == ["minc2"]
    img = assert_planes(path)
    assert (img.axes, img.shape) == REAL[name]
    with h5py.File(path) as h5:
        for axis, scale, first, unit in zip(
            img.axes, img.scale, img.translation, img.units, strict=True
        ):
            if axis in "XYZ":
                said = h5[f"minc-2.0/dimensions/{axis.lower()}space"].attrs
                assert (scale, first, unit) == (said["step"], said["start"], "mm")


@pytest.mark.parametrize("name", [name for name in REAL if "nibabel" in name])
def test_real_files_as_nibabel_has_them(corpus: Any, name: str) -> None:
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed")
    path = corpus.path(name)
    spec = described(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nibabel's own
        other = nibabel.load(path)
        values, affine = np.asarray(other.get_fdata()), other.affine
    # nibabel has the axes as they are in the file.
    order = spec.order or tuple(range(values.ndim))
    np.testing.assert_allclose(
        real_values(path, spec), values.transpose(order), rtol=1e-12, atol=1e-12
    )
    # Its affine gives x, y, z of an index: the position of the first pixel, and of its neighbours.
    for axis, (letter, scale, first) in enumerate(
        zip(spec.axes, spec.scale, spec.translation, strict=True)
    ):
        if letter not in "XYZ":
            continue
        place = "XYZ".index(letter)
        column = order[axis] - (values.ndim - 3)
        assert affine[place, 3] == pytest.approx(first)
        assert affine[place, column] == pytest.approx(scale)


def test_a_real_file_with_a_scaling_for_each_slice_along_x(corpus: Any) -> None:
    path = corpus.path("minc2-libminc/test_short_grid_0.mnc")
    spec = described(path)
    with h5py.File(path) as h5:
        stored = h5[IMAGE][...].astype(float)
        low, high = (
            h5[f"minc-2.0/image/0/image-{end}"][...][:, :, None, None] for end in ("min", "max")
        )
    want = (low + stored / 65535 * (high - low)).transpose(0, 3, 2, 1)
    np.testing.assert_allclose(real_values(path, spec), want, atol=1e-12)
    # The same displacements are kept as floats, whose writer did not have to scale them.
    floats = hs.open_image(corpus.path("minc2-libminc/test_float_grid_0.mnc"))[...]
    np.testing.assert_allclose(real_values(path, spec), floats, atol=1e-4)
