"""MATLAB v7.3: which variables are images, with the axes that MATLAB gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import LayoutError
from tests.layouts.planes import assert_planes, described, names, recognised

CLASSES = {"float64": "double", "float32": "single", "bool": "logical"}


def save(path: Path, **variables: np.ndarray) -> Path:
    """Write arrays as MATLAB does: user block, reversed axes, the class as an attribute."""
    with h5py.File(path, "w", userblock_size=512) as h5:
        for name, value in variables.items():
            stored = value.astype("u1") if value.dtype == bool else value
            item = h5.create_dataset(name, data=np.transpose(stored))
            item.attrs["MATLAB_class"] = np.bytes_(CLASSES.get(str(value.dtype), str(value.dtype)))
    with path.open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")
    return path


def drawn(*shape: int, dtype: str = "uint16") -> np.ndarray:
    return np.random.default_rng(0).integers(0, 200, shape).astype(dtype)


@pytest.mark.parametrize(
    ("value", "axes", "order"),
    [
        (drawn(20, 30), "YX", (0, 1)),
        (drawn(20, 30, 7, dtype="float32"), "ZYX", (2, 0, 1)),
        (drawn(20, 30, 3, dtype="float64"), "ZYX", (2, 0, 1)),
        (drawn(20, 30, 3, dtype="uint8"), "CYX", (2, 0, 1)),
        (drawn(20, 30, 4, 5), "TZYX", (3, 2, 0, 1)),
        (drawn(20, 30, 3, 5, dtype="uint8"), "TCYX", (3, 2, 0, 1)),
        (drawn(20, 30, 4, 2, 5), "TCZYX", (4, 3, 2, 0, 1)),
        (drawn(20, 30, 4, 2, 5, 6), "STCZYX", (5, 4, 3, 2, 0, 1)),
    ],
)
def test_axes(tmp_path: Path, value: np.ndarray, axes: str, order: tuple[int, ...]) -> None:
    path = save(tmp_path / "a.mat", img=value)
    assert recognised(path) == ["matlab"]
    image = assert_planes(path)
    assert (image.axes, image.name, image.dtype) == (axes, "img", value.dtype)
    np.testing.assert_array_equal(image[...], value.transpose(order))
    assert (image.scale, image.units) == ((1.0,) * value.ndim, ("",) * value.ndim)


def test_colors(tmp_path: Path) -> None:
    spec = described(save(tmp_path / "a.mat", img=drawn(20, 30, 3, dtype="uint8")))
    assert [(c.name, c.color) for c in spec.channels] == [
        ("Red", (1.0, 0.0, 0.0)),
        ("Green", (0.0, 1.0, 0.0)),
        ("Blue", (0.0, 0.0, 1.0)),
    ]
    spec = described(save(tmp_path / "b.mat", img=drawn(20, 30, 2, 2, 2)))
    assert [(c.name, c.color) for c in spec.channels] == [("Channel 0", None), ("Channel 1", None)]


def test_logical_arrays_are_labels(tmp_path: Path) -> None:
    mask = drawn(20, 30) > 100
    image = assert_planes(save(tmp_path / "a.mat", mask=mask))
    assert image.spec.labels
    np.testing.assert_array_equal(image[...], mask)
    assert not described(save(tmp_path / "b.mat", img=drawn(20, 30))).labels


def test_which_variables(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.mat",
        scalar=drawn(1, 1),
        row=drawn(1, 100),
        column=drawn(100, 1),
        matrix=drawn(3, 3),
        image=drawn(40, 50),
        frames=drawn(8, 9, 100),
    )
    with h5py.File(path, "r+") as h5:
        h5["text"] = drawn(30, 30)
        h5["text"].attrs["MATLAB_class"] = np.bytes_(b"char")
        h5["plain"] = drawn(30, 30)
        h5["none"] = drawn(30, 30)
        h5["none"].attrs["MATLAB_class"] = np.bytes_(b"double")
        h5["none"].attrs["MATLAB_empty"] = np.uint8(1)
        for way in ("s/field", "#refs#/a", "sparse/data", "s/deeper/field"):
            h5[way] = drawn(30, 30)
            h5[way].attrs["MATLAB_class"] = np.bytes_(b"uint16")
        h5["sparse"].attrs["MATLAB_sparse"] = np.uint64(30)
        h5["s"].attrs["MATLAB_class"] = np.bytes_(b"struct")
    assert set(names(path)) == {"image", "frames", "s/field", "s/deeper/field"}
    with pytest.raises(LayoutError, match="4 images"):
        described(path)
    assert assert_planes(path, "s/deeper/field").shape == (30, 30)
    with pytest.raises(LayoutError, match="no image 'text'"):
        described(path, "text")


def test_small_matrices_if_there_is_nothing_larger(tmp_path: Path) -> None:
    path = save(tmp_path / "a.mat", a=drawn(2, 3), b=drawn(1, 9))
    assert names(path) == ("a",)
    assert assert_planes(path).shape == (2, 3)


@pytest.mark.parametrize("kind", ["char", "cell", "function_handle", ""])
def test_what_is_no_image(tmp_path: Path, kind: str) -> None:
    path = save(tmp_path / "a.mat", a=drawn(30, 30))
    with h5py.File(path, "r+") as h5:
        h5["a"].attrs["MATLAB_class"] = np.bytes_(kind)
    assert "matlab" not in recognised(path)


# --- real files ----------------------------------------------------------------------------------

REAL: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {
    "mat73-matjl/array.mat": {"a2x2": ("YX", (2, 2)), "a2x2x2": ("ZYX", (2, 2, 2))},
    "mat73-matjl/logical.mat": {"logical_mat": ("YX", (3, 3))},
    "mat73-matjl/partial.mat": {"var1": ("YX", (128, 128)), "var2": ("YX", (128, 128))},
    "mat73-skjerns/testfile1.mat": {
        "data/arr_float": ("YX", (2, 3)),
        "data/arr_two_three": ("YX", (3, 2)),
    },
    "mat73-skjerns/testfile15.mat": {"x_10_10": ("YX", (10, 10))},
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(corpus: Any, name: str) -> None:
    path = corpus.path(name)
    assert recognised(path) == ["matlab"]
    assert set(names(path)) == set(REAL[name])
    for variable, (axes, shape) in REAL[name].items():
        image = assert_planes(path, variable)
        assert (image.axes, image.shape) == (axes, shape)
        with h5py.File(path) as h5:
            assert h5[variable].shape[-2:] == shape[:-3:-1]
            np.testing.assert_array_equal(image[...], np.moveaxis(h5[variable][...], -1, -2))


def test_a_real_array_as_matlab_shows_it(corpus: Any) -> None:
    """MATLAB shows [1 3; 4 2]: its rows are rows."""
    image = hs.open_image(corpus.path("mat73-matjl/array.mat"), image="a2x2")
    np.testing.assert_array_equal(image[...], [[1, 3], [4, 2]])


def test_other_real_files_have_no_image(corpus: Any) -> None:
    for path, entry in corpus.readable():
        if entry["kind"] == "matlab73" and entry["name"] not in REAL:
            assert recognised(path) == [], path
