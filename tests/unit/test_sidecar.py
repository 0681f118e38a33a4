"""The index sidecar: what comes back is what was learnt, or nothing."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import pickle
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hyperslab.array import Array
from hyperslab.errors import MissingFileError, NotHDF5Error, StaleIndexError
from hyperslab.index import container as container_module
from hyperslab.index import sidecar
from hyperslab.index.container import FileIndex
from hyperslab.index.packed import COLUMNS
from hyperslab.index.records import Chunked, ChunkTable, DatasetIndex, fingerprint
from hyperslab.index.sidecar import SavedIndex, load_index, save_index
from tests.compare import assert_same, h5py_read
from tests.libhdf5 import leave_edges_unfiltered

RNG = np.random.default_rng(7)
ODD_NAN = np.array([0x7FA1_2345], np.uint32).view(np.float32)[0]  # signalling, with a payload

# What a file holds that depends on no other.
KEPT = [
    "/MR/gzip",
    "/MR/hard",
    "/MR/lzf noise",
    "/MR/sparse",
    "/MR/empty table",
    "/plain",
    "/plain, never written",
    "/compact",
    "/null",
    "/scalar",
    "/of no element",
    "/big-endian",
    "/big-endian chunks",
    "/bool",
    "/complex",
    "/17 bits",
    "/Größe\n2 µm",
    "/soft",
    "/through a soft/gzip",
]
LEFT_OUT = ["/virtual", "/linked", "/linked and back", "/raw file", "/long double"]


def write_mixed(path: Path, *, userblock_size: int = 0) -> None:
    """One dataset of each kind, and beside the file those that it leads to."""
    with h5py.File(path.with_name("other.h5"), "w") as other:
        other["elsewhere"] = np.arange(12.0).reshape(3, 4)
        other["back"] = h5py.ExternalLink(path.name, "/MR/gzip")
    with h5py.File(path, "w", userblock_size=userblock_size) as h5:
        volume = RNG.normal(size=(20, 17, 9)).astype(np.float32).round(1)
        mr = h5.create_group("MR")
        mr.create_dataset("gzip", data=volume, chunks=(8, 8, 4), compression=5, shuffle=True)
        mr["hard"] = mr["gzip"]
        noise = RNG.integers(0, 2**32, (50, 40), np.uint32)
        noise[:10] = 3
        mr.create_dataset("lzf noise", data=noise, chunks=(10, 40), compression="lzf")
        sparse = mr.create_dataset(
            "sparse", (30, 30), "f4", chunks=(8, 8), fillvalue=ODD_NAN, fletcher32=True
        )
        sparse[3, 3], sparse[20:, 11] = 1, 2
        mr.create_dataset("empty table", (9, 9), "i2", chunks=(4, 4), fillvalue=-3)
        h5["plain"] = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
        h5.create_dataset("plain, never written", (4, 5), "i4", fillvalue=77)
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        dcpl.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((3, 5))
        h5py.h5d.create(h5.id, b"compact", h5py.h5t.STD_I16BE, space, dcpl)
        h5["compact"][...] = np.arange(15).reshape(3, 5)
        h5["null"] = h5py.Empty("f8")
        h5["scalar"] = 4.5
        h5.create_dataset("of no element", (0, 3), "u1")
        h5.create_dataset("big-endian", data=volume.astype(">f8"))
        h5.create_dataset("big-endian chunks", data=volume.astype(">i4"), chunks=(5, 17, 9))
        h5.create_dataset("bool", data=volume > 0, chunks=(20, 17, 1))
        h5.create_dataset("complex", data=volume * 1j, compression="gzip")
        odd = h5py.h5t.STD_I32LE.copy()
        odd.set_precision(17)
        h5py.h5d.create(h5.id, b"17 bits", odd, h5py.h5s.create_simple((3,)))
        h5["Größe\n2 µm"] = np.arange(3, dtype=np.float16)
        h5["soft"] = h5py.SoftLink("/MR/gzip")
        h5["through a soft"] = h5py.SoftLink("/MR")
        mosaic = h5py.VirtualLayout((3, 4), "f8")
        mosaic[...] = h5py.VirtualSource("other.h5", "elsewhere", (3, 4))
        h5.create_virtual_dataset("virtual", mosaic)
        h5["linked"] = h5py.ExternalLink("other.h5", "/elsewhere")
        h5["linked and back"] = h5py.ExternalLink("other.h5", "/back")
        raw = path.with_name("raw.bin")
        raw.write_bytes(np.arange(6, dtype="<i4").tobytes())
        h5.create_dataset("raw file", (6,), "<i4", external=[(str(raw), 0, 24)])
        h5["long double"] = np.arange(3, dtype=np.longdouble)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    path = tmp_path / "mixed.h5"
    write_mixed(path)
    return path


def learn(path: Path, names: Sequence[str] = KEPT) -> FileIndex:
    container = FileIndex(path)
    container.load(list(names), tables=True)
    return container


def save(path: Path, *containers: FileIndex, **more: Any) -> SavedIndex:
    """Save and load again."""
    save_index(path, containers, facts=more.get("facts", {}), arrays=more.get("arrays", {}))
    found = load_index(path)
    assert found is not None
    return found


def assert_same_index(found: DatasetIndex | None, want: DatasetIndex) -> None:
    assert found is not None
    for entry in dataclasses.fields(DatasetIndex):
        if entry.name != "fill":
            assert getattr(found, entry.name) == getattr(want, entry.name), entry.name
    assert found.fill.shape == ()
    assert found.fill.dtype == want.fill.dtype
    assert found.fill.tobytes() == want.fill.tobytes()
    assert found.dtype.isnative
    assert type(found.shape) is tuple


def assert_same_table(found: ChunkTable | None, want: ChunkTable) -> None:
    assert found is not None
    for entry in dataclasses.fields(ChunkTable):
        mine, theirs = getattr(found, entry.name), getattr(want, entry.name)
        if isinstance(theirs, np.ndarray):
            assert mine.dtype == theirs.dtype, entry.name
            np.testing.assert_array_equal(mine, theirs)
        else:
            assert mine is theirs, entry.name


@contextmanager
def no_visits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Count the visits to the HDF5 library and the looks at a signature; there may be none."""
    visits: list[str] = []
    with monkeypatch.context() as patch:
        for name in ("session", "check_signature"):
            true: Callable[..., Any] = getattr(container_module, name)

            def noted(path: str, *, true: Callable[..., Any] = true, **options: Any) -> Any:
                visits.append(path)
                return true(path, **options)

            patch.setattr(container_module, name, noted)
        yield visits
    assert visits == []


# --- round trip ----------------------------------------------------------------------------------


@pytest.mark.parametrize("userblock_size", [0, 1024])
def test_what_comes_back_is_what_was_learnt(tmp_path: Path, userblock_size: int) -> None:
    path = tmp_path / "mixed.h5"
    write_mixed(path, userblock_size=userblock_size)
    fresh = learn(path)
    # The mixture holds what this is about.
    tables = {name: fresh.chunk_table(name) for name in KEPT if is_chunked(fresh, name)}
    assert tables["/MR/gzip"].number is None
    assert tables["/MR/sparse"].number is not None
    assert tables["/MR/empty table"].byte_offset.size == 0
    assert set(tables["/MR/lzf noise"].filter_mask) == {0, 1}
    assert not fresh.dataset("/17 bits").direct
    assert len(tables) == 10

    saved = save(tmp_path / "index", fresh).of_file(path)
    assert saved is not None
    assert saved.user_block_nbytes == userblock_size
    assert saved.names() == sorted(KEPT, key=str.encode)
    for name in KEPT:
        assert_same_index(saved.dataset(name), fresh.dataset(name))
        if name in tables:
            assert_same_table(saved.table(name), tables[name])
        else:
            assert saved.table(name) is None


def is_chunked(container: FileIndex, name: str) -> bool:
    return isinstance(container.dataset(name).storage, Chunked)


def test_edges_that_are_stored_unfiltered(tmp_path: Path) -> None:
    path = tmp_path / "edges.h5"
    values = np.arange(10 * 10, dtype=np.int32).reshape(10, 10)
    with h5py.File(path, "w", libver="latest") as h5:
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        dcpl.set_chunk((4, 10))
        dcpl.set_deflate(1)
        leave_edges_unfiltered(dcpl)
        space = h5py.h5s.create_simple((10, 10))
        h5py.h5d.create(h5.id, b"a", h5py.h5t.NATIVE_INT32, space, dcpl)
        h5["a"][...] = values
    fresh = learn(path, ["a"])
    assert fresh.chunk_table("a").unfiltered_edges
    saved = save(tmp_path / "index", fresh).of_file(path)
    assert saved is not None
    assert_same_table(saved.table("a"), fresh.chunk_table("a"))
    assert_same(Array(FileIndex(path, saved=saved), "a")[...], values)


def test_a_table_that_makes_no_sense_is_still_known_as_such(mixed: Path) -> None:
    fresh = learn(mixed, ["/MR/gzip"])
    table = fresh.chunk_table("/MR/gzip")
    fresh._tables["/MR/gzip"] = dataclasses.replace(table, sound=False)
    saved = save(mixed.with_name("index"), fresh).of_file(mixed)
    assert saved is not None
    found = saved.table("/MR/gzip")
    assert found is not None
    assert not found.sound


def test_reads_equal_h5py_without_a_visit_to_the_library(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save(mixed.with_name("index"), learn(mixed)).of_file(mixed)
    names = [name for name in KEPT if name not in ("/null", "/17 bits")]
    with no_visits(monkeypatch):
        container = FileIndex(mixed, saved=saved)
        container.load(names, tables=True)
        found = {name: Array(container, name)[...] for name in names}
        again = FileIndex(mixed, saved=saved)
        found_singly = {name: Array(again, name)[...] for name in names}
        assert container.kind("/MR/gzip") == "dataset"
    for name in names:
        want = h5py_read(mixed, name)
        assert_same(np.asarray(found[name]), want)
        assert_same(np.asarray(found_singly[name]), want)


def test_what_depends_on_another_file_is_looked_up_anew(mixed: Path) -> None:
    fresh = learn(mixed, [*LEFT_OUT, "/plain"])
    saved = save(mixed.with_name("index"), fresh).of_file(mixed)
    assert saved is not None
    assert saved.names() == ["/plain"]
    container = FileIndex(mixed, saved=saved)
    container.load([*LEFT_OUT, "/plain"], tables=True)
    for name in LEFT_OUT:
        assert saved.dataset(name) is None
        assert saved.table(name) is None
        assert_same(Array(container, name)[...], h5py_read(mixed, name))


def test_facts_without_the_table_are_enough_for_facts(mixed: Path) -> None:
    fresh = FileIndex(mixed)
    fresh.load(["/MR/gzip", "/plain"])
    saved = save(mixed.with_name("index"), fresh).of_file(mixed)
    assert saved is not None
    assert saved.table("/MR/gzip") is None
    for load in (True, False):
        container = FileIndex(mixed, saved=saved)
        if load:
            container.load(["/MR/gzip"], tables=True)
        assert_same_table(container.chunk_table("/MR/gzip"), learn(mixed).chunk_table("/MR/gzip"))
        assert_same(Array(container, "/MR/gzip")[...], h5py_read(mixed, "/MR/gzip"))


def test_names_are_those_that_hdf5_takes_for_the_same(mixed: Path) -> None:
    fresh = learn(mixed, ["MR/gzip", "/MR//./hard/", "plain"])
    fresh.load(["/MR/gzip"])  # the same, this time without its table
    saved = save(mixed.with_name("index"), fresh).of_file(mixed)
    assert saved is not None
    assert saved.names() == ["/MR/gzip", "/MR/hard", "/plain"]
    for name in ("MR/gzip", "/MR/gzip", "./MR//gzip/"):
        assert_same_index(saved.dataset(name), fresh.dataset("/MR/gzip"))
        assert_same_table(saved.table(name), fresh.chunk_table("MR/gzip"))
    for name in ("", "/", "/MR", "/MR/gzi", "/MR/gzip2", "/zzz", "/M", "/MR/\udcff"):
        assert saved.dataset(name) is None
        assert saved.table(name) is None


def test_many_files_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{i}.h5" for i in (3, 1, 2)]
    containers = []
    for number, path in enumerate(paths):
        with h5py.File(path, "w", userblock_size=512 * number) as h5:
            for name in ("a", f"b{number}"):
                values = np.full((6, 6), 10 * number + len(name), np.int32)
                h5.create_dataset(name, data=values, chunks=(3, 3))
        names = ["/a", f"/b{number}"] if number != 1 else []
        containers.append(learn(path, names))
    index = save(tmp_path / "index", *containers)
    assert index.files == tuple(map(str, paths))
    prints = [fingerprint(str(path)) for path in paths]
    assert index.fingerprints == tuple((now.nbytes, now.mtime_ns) for now in prints)
    assert index.is_fresh()
    assert index.of_file(tmp_path / "4.h5") is None
    with no_visits(monkeypatch):
        for number in (0, 2):
            saved = index.of_file(os.path.relpath(paths[number]))
            container = FileIndex(paths[number], saved=saved)
            assert container.user_block_nbytes == 512 * number
            for name in ("/a", f"/b{number}"):
                assert (Array(container, name)[...] == 10 * number + len(name) - 1).all()
    nothing = index.of_file(paths[1])
    assert nothing is not None
    assert nothing.names() == []
    assert nothing.dataset("/a") is None
    with pytest.raises(ValueError, match="another file"):
        FileIndex(paths[0], saved=nothing)
    with pytest.raises(ValueError, match="twice"):
        save(tmp_path / "index", containers[0], containers[0])


def test_what_is_common_is_held_once(mixed: Path) -> None:
    saved = save(mixed.with_name("index"), learn(mixed)).of_file(mixed)
    assert saved is not None
    one, other = saved.dataset("/MR/gzip"), saved.dataset("/MR/hard")
    assert one is not None
    assert other is not None
    assert one.dtype is other.dtype
    assert one.filters is other.filters
    assert one.fill is other.fill


def test_saving_again_keeps_what_was_not_touched(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = mixed.with_name("index")
    first = save(path, learn(mixed, ["/MR/gzip", "/plain"])).of_file(mixed)
    more = FileIndex(mixed, saved=first)
    more.load(["/bool"], tables=True)
    second = save(path, more).of_file(mixed)
    assert second is not None
    assert second.names() == ["/MR/gzip", "/bool", "/plain"]
    fresh = learn(mixed)
    with no_visits(monkeypatch):
        container = FileIndex(mixed, saved=second)
        for name in ("/MR/gzip", "/bool"):
            assert_same_index(container.dataset(name), fresh.dataset(name))
            assert_same_table(container.chunk_table(name), fresh.chunk_table(name))
    # The first one is replaced, and whoever has it loaded has it whole.
    assert first is not None
    assert_same_table(first.table("/MR/gzip"), fresh.chunk_table("/MR/gzip"))


def test_facts_and_arrays_of_the_caller(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w"):
        pass
    strange = tmp_path / os.fsdecode(b"not utf-8 \xff.h5")
    shutil.copy(tmp_path / "a.h5", strange)
    facts = {"n": 3, "text": "Größe \udc80", "none": None, "list": [1.5, True, {"deep": []}]}
    arrays = {
        "shapes": np.arange(12).reshape(4, 3),
        "zero-d": np.array(2.5),
        "none": np.zeros((0, 3), np.float32),
        "big": np.arange(5, dtype=">u2"),
        "columns first": np.asfortranarray(RNG.normal(size=(3, 4))),
        "every other": np.arange(10)[::-2],
        "text": np.array(["a", "", "Größe"]),
        "dates": np.array(["2024-02-29", "NaT"], "datetime64[D]"),
        "fields": np.array([(1, [2, 3])], [("a", "<i2"), ("b", "<f4", (2,))]),
        "flags": np.array([True, False]),
    }
    index = save(tmp_path / "index", FileIndex(strange), facts=facts, arrays=arrays)
    assert index.files == (str(strange),)
    assert index.is_fresh()
    assert index.facts == facts
    assert list(index.arrays) == list(arrays)
    for name, want in arrays.items():
        found = index.arrays[name]
        assert found.dtype == want.dtype
        assert found.shape == want.shape
        assert found.tobytes() == want.tobytes()
        assert not found.flags.writeable
        assert found.flags.aligned


def test_arrays_outlive_the_index_and_its_file(mixed: Path) -> None:
    index = save(mixed.with_name("index"), learn(mixed), arrays={"a": np.arange(5000)})
    array, saved = index.arrays["a"], index.of_file(mixed)
    assert saved is not None
    table = saved.table("/MR/sparse")
    mixed.with_name("index").unlink()
    del index, saved
    np.testing.assert_array_equal(array, np.arange(5000))
    assert_same_table(table, learn(mixed).chunk_table("/MR/sparse"))


# --- the guard -----------------------------------------------------------------------------------


def rewrite(path: Path, *, grow: bool) -> None:
    """Give /MR/gzip other values, in a file of the same or another size."""
    before = path.stat()
    with h5py.File(path, "r+") as h5:
        moved = h5["MR/gzip"][...] + 1
        del h5["MR/gzip"], h5["MR/hard"]
        h5["MR"].create_dataset("gzip", data=moved)
        if grow:
            h5["more"] = np.zeros(5000)
    if not grow:
        os.truncate(path, max(before.st_size, path.stat().st_size))
    os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns + (0 if grow else 1)))


@pytest.mark.parametrize("grow", [True, False], ids=["size", "time"])
def test_a_changed_file_is_never_served(mixed: Path, grow: bool) -> None:
    index = save(mixed.with_name("index"), learn(mixed))
    saved = index.of_file(mixed)
    assert saved is not None
    before = mixed.stat()
    rewrite(mixed, grow=grow)
    if grow:  # each of the two on its own
        assert mixed.stat().st_mtime_ns == before.st_mtime_ns
        assert mixed.stat().st_size != before.st_size
    assert not index.is_fresh()
    assert not saved.is_fresh()
    assert saved.dataset("/MR/gzip") is None
    assert saved.table("/MR/gzip") is None
    container = FileIndex(mixed, saved=saved)
    assert_same(Array(container, "/MR/gzip")[...], h5py_read(mixed, "/MR/gzip"))
    assert not is_chunked(container, "/MR/gzip")


def test_only_the_time_changed(mixed: Path) -> None:
    index = save(mixed.with_name("index"), learn(mixed))
    now = mixed.stat()
    os.utime(mixed, ns=(now.st_atime_ns, now.st_mtime_ns - 1))
    assert not index.is_fresh()


def test_a_file_that_changes_under_the_reader(mixed: Path) -> None:
    saved = save(mixed.with_name("index"), learn(mixed)).of_file(mixed)
    container = FileIndex(mixed, saved=saved)
    container.load(["/bool"])
    rewrite(mixed, grow=True)
    for ask in (
        lambda: container.dataset("/MR/gzip"),
        lambda: container.load(["/MR/gzip"], tables=True),
        lambda: container.chunk_table("/bool"),
    ):
        with pytest.raises(StaleIndexError):
            ask()
    container.refresh()
    assert_same(Array(container, "/MR/gzip")[...], h5py_read(mixed, "/MR/gzip"))


def test_refresh_drops_what_was_saved(mixed: Path) -> None:
    saved = save(mixed.with_name("index"), learn(mixed)).of_file(mixed)
    container = FileIndex(mixed, saved=saved)
    assert len(container.learnt()[0]) == len(KEPT)
    container.refresh()
    assert container.learnt() == ({}, {})


def test_the_same_file_with_another_inode_is_served(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = learn(mixed)
    index = save(mixed.with_name("index"), fresh)
    shutil.copy2(mixed, mixed.with_name("copy"))
    os.replace(mixed.with_name("copy"), mixed)
    assert fingerprint(str(mixed)) != fresh.fingerprint
    assert index.is_fresh()
    with no_visits(monkeypatch):
        container = FileIndex(mixed, saved=index.of_file(mixed))
        found = Array(container, "/MR/sparse")[...]
    assert container.dataset("/MR/sparse").fingerprint == fingerprint(str(mixed))
    assert_same(found, h5py_read(mixed, "/MR/sparse"))


def test_a_file_that_is_gone(mixed: Path) -> None:
    index = save(mixed.with_name("index"), learn(mixed))
    saved = index.of_file(mixed)
    assert saved is not None
    mixed.unlink()
    assert not index.is_fresh()
    assert saved.dataset("/plain") is None
    with pytest.raises(MissingFileError):
        FileIndex(mixed, saved=saved)
    mixed.write_bytes(b"no HDF5")
    with pytest.raises(NotHDF5Error):
        FileIndex(mixed, saved=saved)


def test_what_was_learnt_of_another_state_of_the_file_is_left_out(mixed: Path) -> None:
    fresh = learn(mixed)
    index = fresh.dataset("/plain")
    other = dataclasses.replace(index.fingerprint, mtime_ns=index.fingerprint.mtime_ns - 5)
    fresh._datasets["/plain"] = dataclasses.replace(index, fingerprint=other)
    saved = save(mixed.with_name("index"), fresh).of_file(mixed)
    assert saved is not None
    assert saved.dataset("/plain") is None
    assert saved.dataset("/bool") is not None


# --- damage --------------------------------------------------------------------------------------


def damaged_copies(whole: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield copies with one bit flipped, and where."""
    header = int.from_bytes(whole[16:24], sys.byteorder)
    for at in [*range(64), *range(64, header, 3), *range(header, len(whole), 11)]:
        copy = bytearray(whole)
        copy[at] ^= 1 << (at % 8)
        yield at, bytes(copy)


def test_a_flipped_bit_never_gives_wrong_values(tmp_path: Path) -> None:
    path, place = tmp_path / "a.h5", tmp_path / "index"
    with h5py.File(path, "w") as h5:
        noise = RNG.integers(0, 255, (12, 12), np.uint8)
        h5.create_dataset("masked", data=noise, chunks=(6, 6), compression="lzf")
        h5.create_dataset("sparse", (9, 9), "f4", chunks=(3, 3))[4, 4] = 1
        h5["plain"] = np.arange(5)
    names = ["/masked", "/sparse", "/plain"]
    fresh = learn(path, names)
    facts, array = {"a": [1, 2]}, np.arange(7)
    save(place, fresh, facts=facts, arrays={"x": array})
    whole = place.read_bytes()
    header = int.from_bytes(whole[16:24], sys.byteorder)
    refused = lacking = untouched = 0
    for at, copy in damaged_copies(whole):
        place.write_bytes(copy)
        index = load_index(place)
        if index is None:
            refused += 1
            continue
        assert sidecar._PREFIX.size <= at < header
        assert index.facts == facts
        np.testing.assert_array_equal(index.arrays["x"], array)
        saved = index.of_file(path)
        assert saved is not None
        whole_here = True
        for name in names:
            dataset, table = saved.dataset(name), saved.table(name)
            whole_here &= dataset is not None and (name == "/plain") == (table is None)
            if dataset is not None:
                assert_same_index(dataset, fresh.dataset(name))
            if table is not None:
                assert_same_table(table, fresh.chunk_table(name))
        lacking += not whole_here
        untouched += whole_here
    assert refused > sidecar._PREFIX.size + array.nbytes // 3
    assert lacking > 100
    assert untouched < 64 + 6 * 64 // 3  # the padding between the parts


def test_a_damaged_sidecar_still_reads_right(mixed: Path) -> None:
    place = mixed.with_name("index")
    save(place, learn(mixed))
    whole = bytearray(place.read_bytes())
    header = int.from_bytes(whole[16:24], sys.byteorder)
    whole[64:header] = bytes(header - 64)
    place.write_bytes(whole)
    index = load_index(place)
    assert index is not None
    container = FileIndex(mixed, saved=index.of_file(mixed))
    assert_same(Array(container, "/MR/sparse")[...], h5py_read(mixed, "/MR/sparse"))
    assert container.learnt()[0].keys() == {"/MR/sparse"}


def test_a_sidecar_cut_short_is_none(mixed: Path) -> None:
    place = mixed.with_name("index")
    save(place, learn(mixed), arrays={"x": np.arange(9)})
    whole = place.read_bytes()
    for length in [*range(50), *range(50, len(whole), 37), len(whole) - 1]:
        place.write_bytes(whole[:length])
        assert load_index(place) is None
    place.write_bytes(whole + b"\0")
    assert load_index(place) is None
    place.write_bytes(whole)
    assert load_index(place) is not None


def test_no_sidecar_is_none(mixed: Path) -> None:
    assert load_index(mixed.with_name("absent")) is None
    assert load_index(mixed.parent) is None
    assert load_index(mixed) is None  # another file


def test_another_version_is_none(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = mixed.with_name("index")
    with monkeypatch.context() as patch:
        patch.setattr(sidecar, "_VERSION", sidecar._VERSION + 1)
        save(place, learn(mixed))
    assert load_index(place) is None


def write_header(place: Path, text: str) -> None:
    """Write a sidecar with nothing but a header, and the right checksum of that."""
    body = text.encode()
    crc = sidecar._header_crc(64, body)
    prefix = sidecar._PREFIX.pack(sidecar._MAGIC, sidecar._VERSION, crc, 64)
    place.write_bytes(prefix.ljust(64, b"\0") + body)


GOOD: dict[str, Any] = {
    "files": [],
    "facts": {},
    "rows": 64,
    "heap": 64,
    "columns": {name: [[0], 64] for name in COLUMNS},
    "arrays": {},
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "[" * 100_000,
        json.dumps({**GOOD, "arrays": 3}),
        json.dumps({**GOOD, "arrays": {"x": ["'|O'", [1], 0, 0]}}),
        json.dumps({**GOOD, "arrays": {"x": ["__import__('os').abort()", [1], 0, 0]}}),
        json.dumps({**GOOD, "arrays": {"x": ["'<i8'", [1 << 40], 0, 0]}}),
        json.dumps({**GOOD, "arrays": {"x": ["'<i8'", [-1], 0, 0]}}),
        json.dumps({**GOOD, "files": [["/a", 1, 1, 0, 1000]]}),
        json.dumps({**GOOD, "columns": {"number": [[0], 64]}}),
        json.dumps({**GOOD, "columns": {**GOOD["columns"], "number": [[1 << 50], 64]}}),
        json.dumps({**GOOD, "columns": {**GOOD["columns"], "number": [[1], 1 << 50]}}),
        json.dumps({**GOOD, "rows": -5}),
    ],
)
def test_a_header_that_is_not_ours_is_none(tmp_path: Path, text: str) -> None:
    place = tmp_path / "index"
    write_header(place, text)
    assert load_index(place) is None


def test_the_header_of_the_test_above_is_ours_otherwise(tmp_path: Path) -> None:
    place = tmp_path / "index"
    write_header(place, json.dumps(GOOD))
    found = load_index(place)
    assert found is not None
    assert found.files == ()


# --- writing -------------------------------------------------------------------------------------


def test_writers_at_the_same_time(mixed: Path) -> None:
    place = mixed.parent / "sub" / "index"
    place.parent.mkdir()
    save(place, learn(mixed), facts={"by": -1})

    def write(number: int) -> None:
        container = learn(mixed)
        for _ in range(10):
            save_index(place, [container], facts={"by": number}, arrays={"x": np.arange(number)})

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=write, args=(number,)) for number in (100, 2000)]
    threads = [threading.Thread(target=write, args=(number,)) for number in (3, 30)]
    for worker in (*processes, *threads):
        worker.start()
    wrote = set()
    while any(worker.is_alive() for worker in (*processes, *threads)):
        index = load_index(place)
        assert index is not None
        wrote.add(index.facts["by"])
        assert index.facts["by"] == -1 or index.arrays["x"].size == index.facts["by"]
        saved = index.of_file(mixed)
        assert saved is not None
        assert len(saved.names()) == len(KEPT)
    for worker in (*processes, *threads):
        worker.join()
    assert [process.exitcode for process in processes] == [0, 0]
    for process in processes:
        process.close()
    assert wrote & {3, 30, 100, 2000}
    assert os.listdir(place.parent) == ["index"]


@contextmanager
def full_disk(nbytes: int) -> Iterator[None]:
    """Let no file grow beyond `nbytes`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_what_was_there(mixed: Path) -> None:
    place = mixed.parent / "sub" / "index"
    place.parent.mkdir()
    container = learn(mixed)
    save(place, container, facts={"first": True})
    for nbytes in (0, 100, 5000):
        with full_disk(nbytes), pytest.raises(OSError, match="large"):
            save_index(place, [container], facts={}, arrays={"x": np.arange(9999)})
        assert os.listdir(place.parent) == ["index"]
        found = load_index(place)
        assert found is not None
        assert found.facts == {"first": True}


def test_where_nothing_can_be_written(mixed: Path) -> None:
    container = learn(mixed)
    before = sorted(os.listdir(mixed.parent))
    for place in (mixed.parent / "absent" / "index", mixed / "index", mixed.parent):
        with pytest.raises(OSError, match=r"No such|Not a|Is a|not permitted|busy"):
            save_index(place, [container], facts={}, arrays={})
    if os.geteuid():
        locked = mixed.parent / "locked"
        locked.mkdir(0o555)
        with pytest.raises(PermissionError):
            save_index(locked / "index", [container], facts={}, arrays={})
        locked.rmdir()
    assert sorted(os.listdir(mixed.parent)) == before


def test_what_cannot_be_saved_leaves_nothing(mixed: Path) -> None:
    container, place = learn(mixed), mixed.with_name("index")
    before = sorted(os.listdir(mixed.parent))
    with pytest.raises(TypeError, match="'x' holds Python objects"):
        save_index(place, [container], facts={}, arrays={"x": np.array([None])})
    with pytest.raises(TypeError, match="JSON"):
        save_index(place, [container], facts={"a": object()}, arrays={})
    assert sorted(os.listdir(mixed.parent)) == before


def test_others_may_read_it(mixed: Path) -> None:
    place = mixed.with_name("index")
    before = os.umask(0o022)
    try:
        save(place, learn(mixed))
    finally:
        os.umask(before)
    assert place.stat().st_mode & 0o777 == 0o644


# --- processes -----------------------------------------------------------------------------------


def test_an_index_with_something_saved_pickles_as_its_path(mixed: Path) -> None:
    saved = save(mixed.with_name("index"), learn(mixed)).of_file(mixed)
    container = FileIndex(mixed, saved=saved)
    container.load(KEPT[:-2], tables=True)
    pickled = pickle.dumps(container)
    assert len(pickled) < 200 + len(str(mixed))
    copy = pickle.loads(pickled)
    assert copy.path == container.path
    assert copy.learnt() == ({}, {})


def test_one_descriptor_a_sidecar(mixed: Path) -> None:
    def n_open() -> int:
        return len(os.listdir("/proc/self/fd"))

    save(mixed.with_name("index"), learn(mixed))
    before = n_open()
    index = load_index(mixed.with_name("index"))
    assert index is not None
    saved = index.of_file(mixed)
    assert saved is not None
    tables = [saved.table(name) for name in KEPT]
    assert n_open() == before + 1
    del index, saved, tables
    assert n_open() == before


def test_opening_takes_no_h5py(mixed: Path) -> None:
    place = mixed.with_name("index")
    save(place, learn(mixed))
    code = f"""
import sys
from hyperslab.index.container import FileIndex
from hyperslab.index.sidecar import load_index
index = load_index({str(place)!r})
assert index.is_fresh()
saved = index.of_file({str(mixed)!r})
assert saved.dataset("/MR/gzip").shape == (20, 17, 9)
FileIndex({str(mixed)!r}, saved=saved)
sys.exit("h5py" in sys.modules or "torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
