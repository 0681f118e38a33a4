"""Where elements can lie besides in filtered chunks, and how names lead to them."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import DamagedFileError, MissingObjectError, MissingSourceError
from tests.compare import assert_same, h5py_read
from tests.libhdf5 import leave_edges_unfiltered

INDICES: list[Any] = [
    np.s_[...],
    np.s_[2],
    np.s_[::-1, 1:5, ::3],
    np.s_[..., -1],
    np.s_[[3, 0, 0], :, 2],
    np.s_[1:1],
]


def check(path: Path, name: str = "x") -> np.ndarray[Any, Any]:
    want = h5py_read(path, name)
    array = hs.open(path)[name]
    for index in INDICES:
        assert_same(array[index], want[index])
    return want


# --- no elements, or one -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f4", ">i2", "?"])
def test_null_dataset(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as h5:
        h5["null"] = h5py.Empty(dtype)
    array = hs.open(path)["null"]
    assert array.is_null
    assert (array.shape, array.size, array.chunks) == ((0,), 0, None)
    assert_same(array[...], np.zeros(0, np.dtype(dtype).newbyteorder("=")))
    assert "null" in repr(array)


@pytest.mark.parametrize("dtype", ["f4", ">i2", "?", "c8", "u8"])
@pytest.mark.parametrize("how", ["contiguous", "compact", "unwritten", "virtual"])
def test_scalar_dataset(how: str, dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    value = np.array(1, dtype)
    with h5py.File(path, "w") as h5:
        if how == "contiguous":
            h5["x"] = value
        elif how == "unwritten":
            h5.create_dataset("x", (), dtype, fillvalue=value)
        elif how == "virtual":
            h5["s"] = value
            layout = h5py.VirtualLayout((), dtype)
            layout[()] = h5py.VirtualSource(".", "s", ())
            h5.create_virtual_dataset("x", layout)
        else:
            dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            dcpl.set_layout(h5py.h5d.COMPACT)
            kind = h5py.h5t.py_create(value.dtype, logical=True)
            space = h5py.h5s.create(h5py.h5s.SCALAR)
            h5py.Dataset(h5py.h5d.create(h5.id, b"x", kind, space, dcpl))[()] = value
    want = h5py_read(path, "x")
    array = hs.open(path)["x"]
    assert (array.shape, array.ndim, array.size) == ((), 0, 1)
    for index in [(), ..., None, (..., None), True]:
        assert_same(array[index], want[index])
    out = np.zeros((), want.dtype)
    assert array.read(out=out) is out
    assert out == 1
    assert_same(np.asarray(array), want)
    with pytest.raises(TypeError, match="0-d"):
        len(array)
    with pytest.raises(hs.errors.SelectionError):
        array[0]


@pytest.mark.parametrize("shape", [(0,), (0, 5), (4, 0, 3)])
def test_axes_of_length_zero(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as h5:
        h5.create_dataset("flat", shape, "f4")
        h5.create_dataset(
            "chunked", shape, "f4", chunks=(2,) * len(shape), maxshape=(None,) * len(shape)
        )
    for array in hs.open(path).values():
        assert isinstance(array, hs.Array)
        assert array.shape == shape
        assert_same(array[...], np.zeros(shape, "f4"))
        assert array[..., :1].shape == (*shape[:-1], min(1, shape[-1]))


# --- links ---------------------------------------------------------------------------------------


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    with h5py.File(tmp_path / "sub" / "other.h5", "w") as h5:
        h5["deep/y"] = np.arange(5, 9)
        h5["deep/onward"] = h5py.ExternalLink("third.h5", "/z")
    with h5py.File(tmp_path / "sub" / "third.h5", "w") as h5:
        h5["z"] = np.arange(3)
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as h5:
        h5["g/x"] = np.arange(4)
        h5["hard"] = h5["g/x"]
        h5["soft"] = h5py.SoftLink("/g/x")
        h5["g/relative"] = h5py.SoftLink("x")
        h5["chain"] = h5py.SoftLink("soft")
        h5["group"] = h5py.SoftLink("/g")
        h5["far"] = h5py.ExternalLink("sub/other.h5", "/deep/y")
        h5["far group"] = h5py.ExternalLink("sub/other.h5", "/deep")
        h5["absolute"] = h5py.ExternalLink(str(tmp_path / "sub" / "other.h5"), "deep/y")
        h5["dangling"] = h5py.SoftLink("/g/gone")
        h5["loop"] = h5py.SoftLink("/pool")
        h5["pool"] = h5py.SoftLink("/loop")
        h5["missing file"] = h5py.ExternalLink("gone.h5", "/x")
        h5["missing object"] = h5py.ExternalLink("sub/other.h5", "/gone")
        h5["to missing"] = h5py.SoftLink("/missing file")
    return path


@pytest.mark.parametrize(
    "name",
    [
        "g/x", "/g/x", "hard", "soft", "g/relative", "chain", "group/x", "group/relative", "far",
        "far group/y", "far group/onward", "absolute",
    ],
)  # fmt: skip
def test_links(name: str, linked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want = h5py_read(linked, name)
    file = hs.open(linked)
    monkeypatch.chdir(linked.parent / "sub")
    assert name in file
    assert_same(file[name][...], want)
    assert_same(file[name][::-2], want[::-2])


@pytest.mark.parametrize("name", ["dangling", "loop", "missing object", "g/gone", "g/x/y"])
def test_links_that_lead_nowhere(name: str, linked: Path) -> None:
    file = hs.open(linked)
    assert name not in file
    with pytest.raises(MissingObjectError, match=r"x\.h5") as caught:
        file[name]
    assert isinstance(caught.value, KeyError)
    assert caught.value.dataset == f"/{name}"


@pytest.mark.parametrize("name", ["missing file", "to missing"])
def test_external_links_to_files_that_are_missing(name: str, linked: Path) -> None:
    file = hs.open(linked)
    with pytest.raises(MissingSourceError, match=r"gone\.h5") as caught:
        file[name]
    assert caught.value.file == str(linked.parent / "gone.h5")
    assert file.kinds()[name] == "broken"


def test_a_file_that_an_external_link_leads_to_is_watched(linked: Path) -> None:
    array = hs.open(linked)["far"]
    array[...]
    with h5py.File(linked.parent / "sub" / "other.h5", "r+") as h5:
        h5["deep/y"][...] = 77
    with pytest.raises(hs.errors.StaleIndexError, match=r"other\.h5"):
        array[...]


def test_walking_does_not_follow_a_group_into_itself(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as h5:
        h5["g/x"] = np.arange(3)
        h5["g/up"] = h5py.SoftLink("/")
        h5["g/self"] = h5["g"]
    file = hs.open(path)
    assert_same(file["g/up/g/self/self/x"][...], np.arange(3))


# --- raw files -----------------------------------------------------------------------------------


def raw(tmp_path: Path, segments: list[tuple[str, int, int]], dtype: str = "i4") -> Path:
    """Dataset "x" of shape (4, 5, 6), spread over raw files."""
    values = np.arange(120).reshape(4, 5, 6).astype(dtype)
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as h5:
        external = [(str(tmp_path / name), offset, size) for name, offset, size in segments]
        h5.create_dataset("x", (4, 5, 6), dtype, external=external)[...] = values
    assert_same(h5py_read(path, "x"), values.astype(values.dtype.newbyteorder("=")))
    return path


@pytest.mark.parametrize("dtype", ["i4", ">i4", "f8", "u1"])
@pytest.mark.parametrize(
    "segments",
    [
        [("a.raw", 0, h5py.h5f.UNLIMITED)],
        [("a.raw", 100, 10_000)],
        [("a.raw", 3, 7), ("b.raw", 0, 50), ("a.raw", 1000, h5py.h5f.UNLIMITED)],
        [("a.raw", 0, 48), ("a.raw", 48, 48), ("c.raw", 5, 2000)],
    ],
    ids=["one", "with an offset", "split elements", "one file twice"],
)
def test_raw_files(segments: list[tuple[str, int, int]], dtype: str, tmp_path: Path) -> None:
    assert check(raw(tmp_path, segments, dtype)).any()


def test_raw_files_named_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 looks in the current folder, we also beside the file."""
    monkeypatch.chdir(tmp_path)
    values = np.arange(10)
    with h5py.File("x.h5", "w") as h5:
        h5.create_dataset("x", data=values, external=[("a.raw", 0, h5py.h5f.UNLIMITED)])
    assert_same(hs.open("x.h5")["x"][...], values)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert_same(hs.open(tmp_path / "x.h5")["x"][...], values)


def test_missing_raw_file(tmp_path: Path) -> None:
    path = raw(tmp_path, [("a.raw", 0, 100), ("b.raw", 0, h5py.h5f.UNLIMITED)])
    (tmp_path / "b.raw").unlink()
    with pytest.raises(MissingSourceError, match=r"b\.raw") as caught:
        hs.open(path)["x"][...]
    assert caught.value.dataset == "/x"


@pytest.mark.parametrize("n_files", [1, 2])
def test_truncated_raw_file(n_files: int, tmp_path: Path) -> None:
    """HDF5 reads zeros where the raw file has ended."""
    segments = [("a.raw", 0, 100), ("b.raw", 0, h5py.h5f.UNLIMITED)][-n_files:]
    path = raw(tmp_path, segments)
    os.truncate(tmp_path / "b.raw", 200)
    assert not h5py_read(path, "x")[-1].any()
    with pytest.raises(DamagedFileError, match=r"b\.raw") as caught:
        hs.open(path)["x"][...]
    assert caught.value.file == str(tmp_path / "b.raw")


def test_changed_raw_file(tmp_path: Path) -> None:
    path = raw(tmp_path, [("a.raw", 0, 100), ("b.raw", 0, h5py.h5f.UNLIMITED)])
    file = hs.open(path)
    file["x"][...]
    (tmp_path / "b.raw").write_bytes(bytes(500))
    with pytest.raises(hs.errors.StaleIndexError, match=r"b\.raw"):
        file["x"][...]
    file.refresh()
    assert_same(file["x"][...], h5py_read(path, "x"))


# --- edge chunks without filters -----------------------------------------------------------------


@pytest.mark.parametrize("maxshape", [(10, 11), (None, 11), (10, None), (None, None)])
@pytest.mark.parametrize("userblock", [0, 512])
@pytest.mark.parametrize("fletcher32", [False, True], ids=["gzip", "gzip-fletcher32"])
def test_partial_edge_chunks_without_filters(
    fletcher32: bool, userblock: int, maxshape: Any, tmp_path: Path
) -> None:
    path = tmp_path / "x.h5"
    values = (np.arange(110) % 7).reshape(10, 11).astype("i2")
    dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    dcpl.set_chunk((4, 4))
    leave_edges_unfiltered(dcpl)
    dcpl.set_shuffle()
    dcpl.set_deflate(6)
    if fletcher32:
        dcpl.set_fletcher32()
    with h5py.File(path, "w", libver="latest", userblock_size=userblock) as h5:
        most = tuple(h5py.h5s.UNLIMITED if n is None else n for n in maxshape)
        space, kind = h5py.h5s.create_simple((10, 11), most), h5py.h5t.py_create(values.dtype)
        dataset = h5py.Dataset(h5py.h5d.create(h5.id, b"x", kind, space, dcpl))
        dataset[...] = values
        edges = {
            info.size
            for info in (dataset.id.get_chunk_info_by_coord(c) for c in [(8, 0), (0, 8), (8, 8)])
            if info.byte_offset is not None
        }
        inner = dataset.id.get_chunk_info_by_coord((0, 0)).size
        # Many attributes move the layout message out of the first block of the object header.
        for i in range(6):
            dataset.attrs[f"attribute {i}"] = "text" * 20
    assert 32 in edges
    assert inner != 32
    assert_same(h5py_read(path, "x"), values)
    array = hs.open(path)["x"]
    for index in [np.s_[...], np.s_[9], np.s_[:, 10], np.s_[::-3, ::2], np.s_[[9, 0], [10, 3]]]:
        assert_same(array[index], values[index])


def test_edge_chunks_that_only_look_unfiltered(tmp_path: Path) -> None:
    """A filtered edge chunk whose stored size happens to be that of the decoded one."""
    path = tmp_path / "x.h5"
    stored = _zlib_stream_of(128)
    with h5py.File(path, "w", libver="latest") as h5:
        dataset = h5.create_dataset(
            "x", (3, 3), "i8", chunks=(4, 4), maxshape=(None, None), compression="gzip"
        )
        dataset.id.write_direct_chunk((0, 0), stored)
    assert h5py_read(path, "x").any()
    assert_same(hs.open(path)["x"][...], h5py_read(path, "x"))


def _zlib_stream_of(nbytes: int) -> bytes:
    """A zlib stream that is as long as what it decodes to."""
    rng = np.random.default_rng(0)
    for n_random in range(nbytes):
        part = rng.integers(0, 256, n_random, "u1").tobytes() + bytes(nbytes - n_random)
        stored = zlib.compress(part)
        if len(stored) == nbytes:
            return stored
    raise AssertionError("no such stream found")
