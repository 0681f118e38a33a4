"""xarray: `to_xarray`, and the engine "hyperslab" of `open_dataset`."""

from __future__ import annotations

import pickle
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import LayoutError, MissingExtraError
from hyperslab.exports import blocks
from hyperslab.exports.labelled import _times
from hyperslab.testing import make_imaris, make_stack
from tests.images import h5py_imaris

pytest.importorskip("dask", reason="dask is not installed (the extra `dask`)")
xr = pytest.importorskip("xarray", reason="xarray is not installed (the extra `dask`)")

SHAPE = (2, 2, 5, 70, 90)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "cells.ims"
    make_imaris(found, shape=SHAPE, chunks=(4, 32, 32))
    return found


def open_dataset(path: Path, **options: Any) -> Any:
    return xr.open_dataset(path, engine="hyperslab", **options)


# --- to_xarray


def test_what_axes_are_called(path: Path) -> None:
    img = hs.open_image(path)
    array = img.to_xarray()
    assert (array.dims, array.shape, array.dtype) == (tuple("TCZYX"), SHAPE, np.uint16)
    assert array.name == "image"
    assert array.attrs == {
        "name": "Synthetic cells",
        "layout": "imaris",
        "file": str(path),
        "level": 0,
    }
    assert array.C.values.tolist() == ["DAPI", "Membrane"]
    start = np.datetime64("2024-03-05T10:20:00")
    assert (array["T"].values == [start, start + np.timedelta64(30, "s")]).all()
    # make_imaris: voxels of 2 x 0.12345 x 0.12345 um, the first one's corner at 100.5, 20.25, -3.
    assert array.Z.values.tolist() == [-2, 0, 2, 4, 6]
    assert np.allclose(array.X.values, 100.5 + 0.12345 * (np.arange(90) + 0.5))
    assert [array[axis].attrs for axis in "ZYX"] == [{"units": "um"}] * 3


def test_levels_lie_on_each_other(path: Path) -> None:
    img = hs.open_image(path)
    fine, coarse = img.to_xarray(), img.to_xarray(1)
    assert coarse.shape == (2, 2, 5, 35, 45)
    assert coarse.attrs["level"] == 1
    assert np.allclose(coarse.X.values, fine.X.values.reshape(-1, 2).mean(axis=1))


def test_values_by_name_and_position(path: Path) -> None:
    want = h5py_imaris(path, 0, SHAPE)
    array = hs.open_image(path).to_xarray()
    plane = array.sel(C="Membrane", T="2024-03-05T10:20:30").sel(Z=4.3, method="nearest")
    assert np.array_equal(plane.compute(scheduler="sync"), want[1, 1, 3])
    plane = array.isel(T=0, C=0, Z=3)
    assert np.array_equal(plane.compute(scheduler="sync"), want[0, 0, 3])
    assert hs.last_stats().chunks_decoded == 9  # one slab, not the block


def test_what_is_not_known_is_not_said(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "plain.h5", "w") as h5:
        h5["x"] = np.arange(24.0).reshape(2, 3, 4)
    array = hs.open_image(tmp_path / "plain.h5", "x", axes="TYX").to_xarray()
    assert set(array.coords) == {"Y", "X"}
    assert array.X.values.tolist() == [0, 1, 2, 3]


def test_times_have_no_zone() -> None:
    noon = datetime(2024, 3, 5, 12, 0, 0, 5)
    there = noon.replace(tzinfo=timezone(timedelta(hours=2)))
    got = _times((noon, there, noon.replace(tzinfo=UTC)))
    assert got.dtype == "M8[ns]"
    assert [str(t) for t in got.astype("M8[us]")] == [
        "2024-03-05T12:00:00.000005",
        "2024-03-05T10:00:00.000005",
        "2024-03-05T12:00:00.000005",
    ]
    # Beyond what nanoseconds reach, where NumPy would wrap around without a word.
    assert _times((datetime(1, 1, 1),)).astype(str).tolist() == ["0001-01-01T00:00:00.000000"]


def test_xarray_is_asked_for_by_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    img = hs.open_image(path)
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(MissingExtraError, match=r"hyperslab\[dask\]"):
        img.to_xarray()


# --- the engine


def test_the_engine_is_there() -> None:
    assert "hyperslab" in xr.backends.list_engines()


def test_the_engine_is_lazy(path: Path) -> None:
    before = hs.last_stats()
    with open_dataset(path) as ds:
        part = ds["image"][1, 0, 2, 3:30, 40:50]
        assert hs.last_stats() is before
        assert set(ds.data_vars) == {"image"}
        want = hs.open_image(path).to_xarray()
        assert ds["image"].coords.equals(want.coords)
        assert ds.attrs == want.attrs
        assert np.array_equal(part, hs.open_image(path)[1, 0, 2, 3:30, 40:50])
        assert hs.last_stats().chunks_decoded <= 4


INDICES: list[dict[str, Any]] = [
    {},
    {"T": 1},
    {"T": 1, "Z": 2, "C": -1},
    {"T": [1, 0], "Y": [5, 69, 5], "X": slice(80, 10, -7)},
    {"C": 0, "Z": [4, 0], "Y": slice(3, 3)},
    {"Z": np.array([True, False, True, False, True]), "X": 89},
]


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("level", [0, 1])
def test_the_engine_indexes_as_xarray_does(path: Path, index: dict[str, Any], level: int) -> None:
    shape = hs.open_image(path).levels[level].shape
    if level == 1:
        index = {axis: i for axis, i in index.items() if axis not in "YX"}
    want = xr.DataArray(h5py_imaris(path, level, shape), dims=tuple("TCZYX"))
    with open_dataset(path, level=level) as ds:
        got = ds["image"].isel(index)
        assert got.dims == want.isel(index).dims
        assert np.array_equal(got, want.isel(index))


def test_points_are_read_one_by_one(path: Path) -> None:
    want = h5py_imaris(path, 0, SHAPE)
    y, x = xr.DataArray([3, 40, 69], dims="p"), xr.DataArray([89, 0, 50], dims="p")
    with open_dataset(path) as ds:
        got = ds["image"].isel(T=0, C=1, Z=2, Y=y, X=x)
        assert np.array_equal(got, want[0, 1, 2, [3, 40, 69], [89, 0, 50]])


def test_chunks_are_whole_chunks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_LEAST_NBYTES", 1)
    with open_dataset(path, chunks={}) as ds:
        assert ds.chunksizes["X"] == (32, 32, 26)
        assert ds.chunksizes["Z"] == (4, 1)
        assert ds.chunksizes["T"] == (1, 1)
        got = ds["image"].isel(T=1, C=1).compute(scheduler="sync")
    assert np.array_equal(got, h5py_imaris(path, 0, SHAPE)[1, 1])


def test_what_is_dropped(path: Path) -> None:
    with open_dataset(path, drop_variables=["T", "Z"]) as ds:
        assert set(ds.variables) == {"image", "C", "Y", "X"}
    with open_dataset(path, drop_variables="image") as ds:
        assert set(ds.variables) == set("TCZYX")


def test_a_dataset_pickles(path: Path) -> None:
    with open_dataset(path) as ds:
        again = pickle.loads(pickle.dumps(ds["image"].variable._data))
        assert np.array_equal(np.asarray(again)[1], h5py_imaris(path, 0, SHAPE)[1])


def test_layouts_and_paths(tmp_path: Path) -> None:
    path = tmp_path / "stack.h5"
    make_stack(path, template="t{t}/c{c}/data", shape=(2, 2, 4, 20, 24))
    with open_dataset(path, layout="t{t}/c{c}/data") as ds:
        assert ds["image"].shape == (2, 2, 4, 20, 24)
    with open_dataset(path, layout="t1/c0/data", axes="ZYX") as ds, h5py.File(path) as h5:
        assert np.array_equal(ds["image"], h5["t1/c0/data"][...])
    with path.open("rb") as stream, pytest.raises(TypeError, match="path"):
        open_dataset(stream)
    with h5py.File(tmp_path / "none.h5", "w") as h5:
        h5["x"] = 1
    with pytest.raises(LayoutError, match=r"none\.h5"):
        open_dataset(tmp_path / "none.h5")


def test_what_is_guessed(path: Path, tmp_path: Path) -> None:
    guess = xr.backends.list_engines()["hyperslab"].guess_can_open
    assert guess(path)
    assert guess(str(path))
    with path.open("rb") as stream:
        assert not guess(stream)
    assert not guess(tmp_path / "absent.ims")
    (tmp_path / "text.ims").write_text("not HDF5")
    assert not guess(tmp_path / "text.ims")
    with h5py.File(tmp_path / "other.h5", "w") as h5:
        h5["x"] = 1
    assert not guess(tmp_path / "other.h5")
    path.rename(tmp_path / "cells.tif")
    assert not guess(tmp_path / "cells.tif")
