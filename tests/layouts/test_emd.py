"""EMD of Berkeley, of py4DSTEM and of prismatic; HyperSpy's files; Velox files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hyperslab.errors import LayoutError, MetadataWarning
from tests.layouts.planes import assert_planes, described, names, recognised


def add_emd(h5: h5py.File, path: str, data: Any, dims: list[tuple[Any, str, str]]) -> h5py.Group:
    group = h5.create_group(path)
    group.attrs["emd_group_type"] = 1
    group["data"] = data
    for i, (values, name, units) in enumerate(dims, 1):
        group[f"dim{i}"] = values
        group[f"dim{i}"].attrs["name"] = name
        group[f"dim{i}"].attrs["units"] = units
    return group


@pytest.fixture
def emd(tmp_path: Path) -> Callable[..., Path]:
    """Write an EMD file with one array, changed by a function; gives its path."""

    def write(edit: Callable[[h5py.Group], None] | None = None) -> Path:
        path = tmp_path / "array.emd"
        with h5py.File(path, "w") as h5:
            h5.attrs["version_major"], h5.attrs["version_minor"] = 0, 2
            dims = [
                ([1.0, 1.5, 2.0, 2.5], "x", "[n_m]"),
                ([-1.0, -1.25], "y", "[n_m]"),
                (np.arange(6) * 2.0, "energy", "[eV]"),
            ]
            group = add_emd(h5, "data/spectrum image", np.arange(120).reshape(4, 5, 6), dims)
            if edit:
                edit(group)
        return path

    return write


def test_emd(emd: Callable[..., Path]) -> None:
    path = emd()
    assert recognised(path) == ["emd"]
    assert names(path) == ("data/spectrum image",)
    spec = assert_planes(path).spec
    assert (spec.axes, spec.order, spec.levels[0].shape) == ("EYX", (2, 1, 0), (6, 5, 4))
    assert spec.scale == (2.0, -0.25, 0.5)
    assert spec.translation == (0.0, -1.0, 1.0)
    assert spec.origin == (0.0, -0.875, 0.75)
    assert spec.units == ("eV", "nm", "nm")


def test_emd_axes_without_names(emd: Callable[..., Path]) -> None:
    def edit(group: h5py.Group) -> None:
        for name in ("dim1", "dim2", "dim3"):
            del group[name].attrs["name"]
        group["dim1"].attrs["name"] = "dim1"
        del group["dim3"]

    spec = assert_planes(emd(edit)).spec
    assert (spec.axes, spec.scale) == ("ZYX", (0.5, -0.25, 1.0))


def test_emd_names_of_channels(emd: Callable[..., Path]) -> None:
    def edit(group: h5py.Group) -> None:
        del group["dim3"]
        group["dim3"] = np.array([b"a", b"b", b"", b"d", b"e", b"f"], "S8")

    spec = described(emd(edit))
    assert spec.axes == "CYX"
    assert [c.name for c in spec.channels] == ["a", "b", "Channel 2", "d", "e", "f"]


def test_emd_vectors_that_make_no_sense(emd: Callable[..., Path]) -> None:
    def edit(group: h5py.Group) -> None:
        group["dim1"][...] = 3.0
        del group["dim2"]
        group["dim2"] = np.arange(3.0)

    with pytest.warns(MetadataWarning) as caught:
        spec = described(emd(edit))
    assert ["dim1" in str(w.message) or "dim2" in str(w.message) for w in caught] == [True] * 2
    assert spec.scale == (2.0, 1.0, 1.0)


def test_emd_with_an_unknown_image(emd: Callable[..., Path]) -> None:
    with pytest.raises(LayoutError, match="spectrum image"):
        described(emd(), "other")


def test_a_type_of_group_is_needed(emd: Callable[..., Path]) -> None:
    def edit(group: h5py.Group) -> None:
        group.attrs["emd_group_type"] = 2

    assert recognised(emd(edit)) == []


# Read off the files with h5dump: axes, shape, scale, translation, units, channels.
REAL: dict[str, dict[str, tuple[Any, ...]]] = {
    "emd/example_image.emd": {
        "signals/__unnamed__": ("YX", (3, 3), (1, 1), (0, 0), ("", "")),
    },
    "emd/example_metadata.emd": {
        "signals/This is a test!": ("YX", (3, 3), (1, 1), (0, 0), ("", "")),
    },
    "emd/example_signal.emd": {
        "signals/__unnamed__": ("ZYX", (3, 3, 3), (1, 1, 1), (0, 0, 0), ("", "", "")),
    },
    "emd/Si100_2x1x1_3D.emd": {
        "4DSTEM_simulation/data/realslices/annular_detector_depth0000": (
            "YX", (22, 44), (0.25, 0.25), (0, 0), ("nm", "nm"),
        ),
    },
    "emd/Si100_4D.emd": {
        f"4DSTEM_simulation/data/datacubes/CBED_array_depth000{i}": (
            "RSYX", (11, 11, 8, 8), (0.5, 0.5, 0.18416207, 0.18416207),
            (0, 0, -0.73664826, -0.73664826), ("nm", "nm", "nm^-1", "nm^-1"),
        )
        for i in (0, 1)
    },
    "emd/py4DSTEM_size2x3x4x5_bf20x30.h5": {
        "datacube_root/datacube": (
            "RSYX", (2, 3, 5, 4), (0.12679688, 0.12679688, 0.04425157, 0.04425157),
            (0, 0, 0, 0), ("nm", "nm", "A^-1", "A^-1"),
        ),
        "datacube_root/datacube/brightfield": (
            "YX", (20, 30), (1, 1), (0, 0), ("pixel", "pixel"),
        ),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_real_emd_files(corpus: Any, name: str) -> None:
    path = corpus.path(name)
    assert recognised(path) == ["emd"]
    assert names(path) == tuple(REAL[name])
    for image, (axes, shape, scale, translation, units) in REAL[name].items():
        img = assert_planes(path, image)
        assert (img.axes, img.shape, img.units) == (axes, shape, units)
        assert img.scale == pytest.approx(scale, rel=1e-6)
        assert img.translation == pytest.approx(translation, rel=1e-6)


def test_a_real_simulation_with_many_images(corpus: Any) -> None:
    path = corpus.path("emd/Si100_2D_3D_DPC_potential_2slices.emd")
    shapes = {}
    for image in names(path):
        img = assert_planes(path, image)
        shapes[image.rsplit("/", 1)[1]] = img.axes, img.shape
    assert shapes == {
        "DPC_CoM_depth0000": ("CYX", (2, 22, 22)),
        "DPC_CoM_depth0001": ("CYX", (2, 22, 22)),
        "annular_detector_depth0000": ("YX", (22, 22)),
        "annular_detector_depth0001": ("YX", (22, 22)),
        "ppotential": ("ZYX", (4, 16, 16)),
        "virtual_detector_depth0000": ("AYX", (18, 22, 22)),
        "virtual_detector_depth0001": ("AYX", (18, 22, 22)),
    }
    spec = described(path, "4DSTEM_simulation/data/realslices/DPC_CoM_depth0000")
    assert [c.name for c in spec.channels] == ["DPC_CoM_x", "DPC_CoM_y"]
    spec = described(path, "4DSTEM_simulation/data/realslices/ppotential")
    assert spec.scale == pytest.approx((1.3575, 0.339375, 0.339375), rel=1e-6)


def test_a_real_file_with_nonsense_for_dimensions(corpus: Any) -> None:
    path = corpus.path("emd/example_axis_len_1.emd")
    with pytest.warns(MetadataWarning, match="1 values for 5 pixels"):
        img = assert_planes(path)
    assert (img.axes, img.shape, img.scale) == ("ZYX", (5, 1, 5), (1.0, 1.0, 1.0))


# --- HyperSpy -----------------------------------------------------------------------------------


def write_hspy(path: Path, axes: list[dict[str, Any]]) -> Path:
    with h5py.File(path, "w") as h5:
        group = h5.create_group("Experiments/my scan")
        group["data"] = np.arange(60, dtype="u2").reshape(3, 4, 5)
        for i, attributes in enumerate(axes):
            axis = group.create_group(f"axis-{i}")
            axis.attrs.update(attributes)
        h5.create_group("Experiments/notes")
    return path


def test_hyperspy(tmp_path: Path) -> None:
    path = write_hspy(
        tmp_path / "a.hspy",
        [
            {"name": "x", "scale": 0.5, "offset": 2.0, "units": "nm"},
            {"name": "y", "scale": 0.25, "offset": -1.0, "units": "<undefined>"},
            {"name": "Energy loss", "scale": 3.1, "offset": 520.13, "units": "eV"},
        ],
    )
    assert recognised(path) == ["hyperspy"]
    assert names(path) == ("my scan",)
    spec = assert_planes(path).spec
    assert (spec.axes, spec.order, spec.name) == ("EYX", (2, 1, 0), "my scan")
    assert (spec.scale, spec.translation) == ((3.1, 0.25, 0.5), (520.13, -1.0, 2.0))
    assert spec.units == ("eV", "", "nm")


def test_hyperspy_axes_that_make_no_sense(tmp_path: Path) -> None:
    path = write_hspy(tmp_path / "a.hspy", [{}, {"scale": 0.0, "offset": 1.0}, {"scale": "wide"}])
    with pytest.warns(MetadataWarning) as caught:
        spec = described(path)
    assert [f"axis-{i}" in str(w.message) for i, w in enumerate(caught)] == [True] * 3
    assert (spec.axes, spec.scale, spec.translation) == ("ZYX", (1.0,) * 3, (0.0,) * 3)
    with pytest.raises(LayoutError, match="'my scan'"):
        described(path, "notes")


def test_real_hyperspy_files(corpus: Any) -> None:
    images = {}
    for path, entry in corpus.readable("em-hspy"):
        if recognised(path):
            img = assert_planes(path)
            assert (img.layout, img.axes, img.scale) == ("hyperspy", "YX", (1.0, 1.0))
            images[entry["name"]] = img.shape
    # The others hold spectra, single values, or colours as compound elements.
    assert images == {
        "hspy/example2_v2.2.hspy": (10, 10),
        "hspy/test_marker_point_y2_data_deleted.hdf5": (10, 10),
    }


# --- Velox --------------------------------------------------------------------------------------


def write_velox(path: Path, text: bytes) -> Path:
    with h5py.File(path, "w") as h5:
        group = h5.create_group("Data/Image/0a1b")
        group["Data"] = np.arange(60, dtype="i2").reshape(4, 5, 3)
        raw = np.zeros((2000, 3), "u1")
        raw[: len(text), 0] = np.frombuffer(text, "u1")
        group["Metadata"] = raw
    return path


def test_velox(tmp_path: Path) -> None:
    facts = {
        "Detector": "HAADF",
        "PixelSize": {"width": "2e-10", "height": "1e-10"},
        "PixelUnitX": "m",
        "PixelUnitY": "m",
        "Offset": {"x": "-5e-10", "y": "0"},
    }
    path = write_velox(tmp_path / "a.emd", json.dumps({"BinaryResult": facts}).encode())
    assert recognised(path) == ["velox"]
    spec = assert_planes(path).spec
    assert (spec.axes, spec.levels[0].shape) == ("TYX", (3, 4, 5))
    assert spec.scale == (1.0, 1e-10, 2e-10)
    assert spec.translation == (0.0, 0.0, -5e-10)
    assert spec.units == ("", "m", "m")
    assert spec.channels[0].name == "HAADF"


def write_display(path: Path, name: str, **facts: Any) -> None:
    with h5py.File(path, "r+") as h5:
        h5[f"Presentation/Displays/ImageDisplay/{name}"] = [json.dumps(facts)]


def test_velox_images_are_called_what_the_file_shows_them_as(tmp_path: Path) -> None:
    text = json.dumps({"BinaryResult": {"Detector": "DF4", "PixelSize": {"width": 1, "height": 1}}})
    path = write_velox(tmp_path / "a.emd", text.encode())
    write_display(path, "0", dataPath="/Data/Image/other", display={"label": "another"})
    assert [c.name for c in described(path).channels] == ["DF4"]
    write_display(
        path, "1", dataPath="/Data/Image/0a1b", display={"label": "DF4-A%20%28left%29"},
        displayLevelsRange={"begin": "-2.5", "end": "40"}, gamma="0.5",
    )  # fmt: skip
    (channel,) = described(path).channels
    assert (channel.name, channel.contrast_limits, channel.gamma) == (
        "DF4-A (left)", (-2.5, 40.0), 0.5,
    )  # fmt: skip


def test_velox_displays_that_make_no_sense(tmp_path: Path) -> None:
    text = json.dumps({"BinaryResult": {"Detector": "DF4", "PixelSize": {"width": 1, "height": 1}}})
    path = write_velox(tmp_path / "a.emd", text.encode())
    with h5py.File(path, "r+") as h5:
        displays = h5.create_group("Presentation/Displays/ImageDisplay")
        displays.create_group("0")
        displays["1"] = 3
        displays["2"] = [b"no JSON"]
        displays["3"] = [b"[" * 100_000]
    write_display(
        path, "4", dataPath="/Data/Image/0a1b", display=7,
        displayLevelsRange={"begin": "5", "end": "5"}, gamma="0",
    )  # fmt: skip
    (channel,) = described(path).channels
    assert (channel.name, channel.contrast_limits, channel.gamma) == ("DF4", None, None)


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b'{"BinaryResult": 3}', b"[" * 1900])
def test_velox_without_sense(tmp_path: Path, text: bytes) -> None:
    path = write_velox(tmp_path / "a.emd", text)
    with pytest.warns(MetadataWarning, match="no pixel size"):
        spec = described(path)
    assert (spec.scale, spec.units) == ((1.0, 1.0, 1.0), ("", "", ""))
    with pytest.raises(LayoutError, match="0a1b"):
        described(path, "other")


def test_real_velox_files(corpus: Any) -> None:
    path = corpus.path("emd/fei_example_tem_stack.emd")
    img = assert_planes(path)
    assert (img.axes, img.shape, img.units) == ("TYX", (2, 3, 3), ("", "m", "m"))
    assert img.scale[1:] == (8.1728831922978511e-12,) * 2
    assert img.translation[1:] == (-1.6738064777825999e-08,) * 2
    assert img.channels[0].name == "Ceta"
    path = corpus.path("emd/fei_example_dpc_titles.emd")
    with h5py.File(path) as h5:  # all but the Fourier transforms, of compound elements
        want = [i for i in h5["Data/Image"] if h5["Data/Image"][i]["Data"].dtype.names is None]
    assert list(names(path)) == want
    assert len(want) == 8
    for image in want:
        assert assert_planes(path, image).scale[1:] == (9.9619915558306547e-11,) * 2
