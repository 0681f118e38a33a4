"""The decoded cache: right values, shared by processes, bounded, and unharmed by a kill."""

from __future__ import annotations

import contextlib
import errno
import gc
import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
import hyperslab.engine.read as engine_read
from hyperslab.array import Array
from hyperslab.engine import limits, source
from hyperslab.engine.stats import ReadStats
from hyperslab.errors import (
    CapacityError,
    ChunkDecodeError,
    MissingFileError,
    PerformanceWarning,
    StaleIndexError,
)
from hyperslab.testing import make_cohort
from hyperslab.torch.decoded import cached_case, case_cache, case_folder, memory_cache
from hyperslab.torch.decoded.case_cache import CaseCache
from hyperslab.torch.decoded.case_folder import CaseFolder, InUseError, human
from hyperslab.torch.decoded.memory_cache import _MemoryFolder
from hyperslab.torch.decoded.preload import preload

FORK = multiprocessing.get_context("fork")
CHUNKS = (8, 8, 3)
SHAPE = (16, 24, 10)  # 2 x 3 x 4 chunks a dataset
N_CHUNKS = 24
ENTRY_NBYTES = 128 + 16 * 24 * 10 * 4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("source") / "cohort.h5"
    make_cohort(found, n_cases=12, shape=SHAPE, chunks=CHUNKS, inputs=["MR"])
    return found


@pytest.fixture
def arrays(path: Path) -> list[Array]:
    group = hs.open(path)["MR"]
    return [group[name] for name in group]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "decoded"


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that `memory_cache` uses in this test."""
    folder = tmp_path / "shared"
    monkeypatch.setattr(memory_cache, "_folder", lambda: str(folder))
    yield folder
    gc.collect()  # errors that were caught refer to caches
    assert not folder.exists() or os.listdir(folder) == [".users"]


@pytest.fixture
def total(monkeypatch: pytest.MonkeyPatch) -> ReadStats:
    """What all reads of this process did."""
    found = ReadStats()
    monkeypatch.setattr(engine_read, "remember", found.add)
    return found


class Child:
    """A forked process that runs a function, and answers with what the function sends."""

    def __init__(self, work: Callable[[Any], None]) -> None:
        self.pipe, theirs = FORK.Pipe()

        def run() -> None:
            try:
                work(theirs)
                theirs.send("done")
            except BaseException:  # noqa: BLE001 - told to the parent
                theirs.send(traceback.format_exc())

        self.process = FORK.Process(target=run, daemon=True)
        self.process.start()
        theirs.close()

    def answer(self) -> Any:
        assert self.pipe.poll(60), "the child says nothing"
        return self.pipe.recv()

    def go_on(self) -> None:
        self.pipe.send("go on")

    def end(self) -> None:
        assert self.answer() == "done"
        self.process.join(60)
        assert self.process.exitcode == 0
        self.close()

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(60)
        self.close()

    def close(self) -> None:
        self.pipe.close()
        self.process.close()


def wanted(array: Array, axis: int) -> np.ndarray[Any, Any]:
    """What h5py reads, slices first, in native byte order."""
    with h5py.File(array.file) as h5:
        values = h5[array.name][()]
    return np.moveaxis(values.astype(values.dtype.newbyteorder("=")), axis, 0)


def files(folder: Path) -> list[str]:
    """Names of what is in the folder, without its locks."""
    return sorted(path.name for path in folder.iterdir() if path.suffix in (".npy", ".part"))


def assert_right(case: Any, array: Array, axis: int = 2) -> None:
    want = wanted(array, axis)
    assert case is not None
    assert (case.shape, case.dtype) == (want.shape, want.dtype)
    assert np.array_equal(case[...], want, equal_nan=want.dtype.kind == "f")


def corrupt(path: Path) -> None:
    """Damage the last stored chunk."""
    with h5py.File(path) as h5:
        info = h5["a"].id.get_chunk_info(h5["a"].id.get_num_chunks() - 1)
    with path.open("r+b") as stream:
        stream.seek(info.byte_offset)
        stream.write(b"\xff" * info.size)


def age(folder: Path, seconds: float = 3600) -> None:
    """Make every entry's last use lie so far back."""
    for entry in folder.glob("*.npy"):
        status = entry.stat()
        os.utime(entry, ns=(status.st_atime_ns - int(seconds * 1e9), status.st_mtime_ns))


# --- values


DTYPES = [">i2", "u1", "f2", "?", "f8", "c8"]


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("chunks", [(3, 4, 2), None])
def test_equals_h5py(axis: int, chunks: Any, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    raw = np.random.default_rng(0).integers(-300, 300, (7, 9, 5))
    with h5py.File(path, "w") as h5:
        for dtype in DTYPES:
            h5.create_dataset(dtype, data=raw.astype(dtype), chunks=chunks)
    cache = CaseCache(folder, nbytes=100_000)
    used = 0
    for dtype in DTYPES:
        array = hs.open(path)[dtype]
        assert cache.get(array, axis) is None
        case = cache.fill(array, axis)
        assert_right(case, array, axis)
        want = wanted(array, axis)
        assert np.array_equal(case[3], want[3])
        together = hs.read_many([(case, 4), (case, 0)])
        assert np.array_equal(together, want[[4, 0]])
        mapped = np.load(case.file, mmap_mode="r")
        assert mapped.dtype == want.dtype
        assert np.array_equal(mapped, want)
        del mapped
        assert case.chunks is None
        used += os.path.getsize(case.file)
        assert cache.used_nbytes() == used


def test_an_axis_is_an_entry_of_its_own(arrays: list[Array], folder: Path) -> None:
    cache = CaseCache(folder, nbytes=10**6)
    by_axis = [cache.fill(arrays[0], axis) for axis in (0, 1, 2)]
    assert len(files(folder)) == 3
    for axis, case in enumerate(by_axis):
        assert_right(case, arrays[0], axis)
    with pytest.raises(ValueError, match="no axis 3"):
        cache.get(arrays[0], 3)


def test_a_large_dataset_is_decoded_chunk_by_chunk_once(
    arrays: list[Array], folder: Path, total: ReadStats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_case, "_SLAB_NBYTES", 16 * 24 * 4 * 4)  # 4 slices, chunks have 3
    cache = CaseCache(folder, nbytes=10**6)
    case = cache.fill(arrays[0], 2)
    assert total.chunks_decoded == N_CHUNKS
    assert_right(case, arrays[0])


@pytest.mark.parametrize("shape", [(0, 4, 4), (4, 4, 0)])
def test_empty_dataset(shape: tuple[int, ...], folder: Path, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as h5:
        h5.create_dataset("a", shape, "f4")
    array = hs.open(tmp_path / "a.h5")["a"]
    assert_right(CaseCache(folder, nbytes=1000).fill(array, 2), array)


def test_reading_an_entry_decodes_nothing(
    arrays: list[Array], folder: Path, total: ReadStats
) -> None:
    cache = CaseCache(folder, nbytes=10**6)
    first = cache.fill(arrays[0], 2)
    assert total.chunks_decoded == N_CHUNKS
    assert cache.get(arrays[0], 2) is first
    assert cache.fill(arrays[0], 2) is first
    assert CaseCache(folder, nbytes=10**6).fill(arrays[0], 2) is not None
    assert_right(first, arrays[0])
    assert total.chunks_decoded == N_CHUNKS


# --- the source changes


def test_changed_source_is_not_served(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    make_cohort(path, n_cases=1, shape=SHAPE, inputs=["MR"], compression=None, seed=1)
    size = path.stat().st_size
    array = hs.open(path)["MR/1PA001"]
    cache = CaseCache(folder, nbytes=10**6)
    old = cache.fill(array, 2)
    assert old is not None
    before = old[...]
    make_cohort(path, n_cases=1, shape=SHAPE, inputs=["MR"], compression=None, seed=2)
    assert path.stat().st_size == size
    assert cache.get(array, 2) is None
    with pytest.raises(StaleIndexError) as caught:
        cache.fill(array, 2)
    assert caught.value.file == str(path)
    assert len(files(folder)) == 1
    fresh = hs.open(path)["MR/1PA001"]
    for reader in (cache, CaseCache(folder, nbytes=10**6)):
        assert reader.get(fresh, 2) is None or reader is not cache
        case = reader.get(fresh, 2) or reader.fill(fresh, 2)
        assert_right(case, fresh)
        assert not np.array_equal(case[...], before)


def test_virtual_dataset_goes_by_its_sources(folder: Path, tmp_path: Path) -> None:
    layout = h5py.VirtualLayout((2, 3, 4), "f4")
    for i in range(2):
        with h5py.File(tmp_path / f"{i}.h5", "w") as h5:
            h5["a"] = np.full((3, 4), i, "f4")
        layout[i] = h5py.VirtualSource(str(tmp_path / f"{i}.h5"), "a", (3, 4))
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as h5:
        h5.create_virtual_dataset("a", layout)
    cache = CaseCache(folder, nbytes=10**6)
    array = hs.open(path)["a"]
    assert_right(cache.fill(array, 0), array, 0)
    with h5py.File(tmp_path / "1.h5", "w") as h5:
        h5["a"] = np.full((3, 4), 7, "f4")
    os.utime(tmp_path / "1.h5", (1, 1))
    assert cache.get(array, 0) is None
    again = hs.open(path)["a"]
    assert cache.get(again, 0) is None
    assert_right(cache.fill(again, 0), again, 0)
    os.unlink(tmp_path / "1.h5")
    assert cache.get(again, 0) is None
    lacking = hs.open(path)["a"]
    assert cache.fill(lacking, 0) is None
    with pytest.warns(PerformanceWarning, match="1 of 1 datasets are not in the cache"):
        preload(cache, [(lacking, 0)], progress=False)


def test_damaged_source_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as h5:
        h5.create_dataset("a", data=np.zeros((8, 8, 8), "f4"), chunks=(8, 8, 2), compression=1)
    corrupt(path)
    array = hs.open(path)["a"]
    cache = CaseCache(folder, nbytes=10**6)
    with pytest.raises(ChunkDecodeError):
        cache.fill(array, 2)
    assert files(folder) == []
    assert cache.used_nbytes() == 0
    with pytest.raises(ChunkDecodeError):
        cache.fill(array, 2)  # nobody holds the entry's lock any more


# --- entries that are gone or wrong


def test_deleted_entry_is_told_and_filled_again(arrays: list[Array], folder: Path) -> None:
    cache = CaseCache(folder, nbytes=10**6)
    case = cache.fill(arrays[0], 2)
    assert case is not None
    source.close_idle()
    os.unlink(case.file)
    with pytest.raises(MissingFileError) as caught:
        case[0]
    assert caught.value.file == case.file
    assert cache.get(arrays[0], 2) is case  # it does not know
    assert cache.forget(caught.value.file)
    assert cache.get(arrays[0], 2) is None
    assert_right(cache.fill(arrays[0], 2), arrays[0])
    assert not cache.forget(arrays[0].file)
    assert not cache.forget(None)


def test_a_cache_beside_the_source_does_not_take_it_for_an_entry(tmp_path: Path) -> None:
    make_cohort(tmp_path / "a.h5", n_cases=1, shape=SHAPE, inputs=["MR"])
    array = hs.open(tmp_path / "a.h5")["MR/1PA001"]
    cache = CaseCache(tmp_path, nbytes=10**6)
    case = cache.fill(array, 2)
    assert case is not None
    assert not cache.forget(array.file)  # or whoever tries again after True would do so for ever
    assert cache.get(array, 2) is case
    assert cache.forget(case.file)
    assert cache.forget(case.file)  # another thread, after the same error


def test_entry_that_another_process_made_anew(arrays: list[Array], folder: Path) -> None:
    cache, other = (CaseCache(folder, nbytes=10**6) for _ in range(2))
    case = cache.fill(arrays[0], 2)
    assert case is not None
    os.unlink(case.file)
    time.sleep(0.02)  # the clock of file times is coarse, and the inode may be used again
    assert_right(other.fill(arrays[0], 2), arrays[0])
    with pytest.raises(StaleIndexError) as caught:
        case[0]
    assert cache.forget(caught.value.file)
    assert_right(cache.get(arrays[0], 2), arrays[0])


@pytest.mark.parametrize("harm", ["cut", "other shape", "no header", "empty"])
def test_wrong_entry_is_not_served(harm: str, arrays: list[Array], folder: Path) -> None:
    case = CaseCache(folder, nbytes=10**6).fill(arrays[0], 2)
    assert case is not None
    entry = Path(case.file)
    if harm == "cut":
        os.truncate(entry, entry.stat().st_size - 1)
    elif harm == "other shape":
        np.save(entry, case[...].reshape(10, 24, 16))
    elif harm == "no header":
        entry.write_bytes(bytes(entry.stat().st_size))
    else:
        entry.write_bytes(b"")
    cache = CaseCache(folder, nbytes=10**6)
    assert cache.get(arrays[0], 2) is None
    assert_right(cache.fill(arrays[0], 2), arrays[0])


# --- room


def test_budget_holds_and_first_come_is_kept(
    arrays: list[Array], folder: Path, total: ReadStats
) -> None:
    budget = 4 * ENTRY_NBYTES + ENTRY_NBYTES // 2
    cache = CaseCache(folder, nbytes=budget)
    assert cache.room() == budget
    kept = [cache.fill(array, 2) is not None for array in arrays]
    assert kept == [True] * 4 + [False] * 8
    assert cache.used_nbytes() == 4 * ENTRY_NBYTES <= budget
    assert cache.room() == ENTRY_NBYTES // 2
    # Epochs that come round again find the same ones.
    decoded = total.chunks_decoded
    for _ in range(2):
        again = [(cache.get(a, 2) or cache.fill(a, 2)) is not None for a in arrays]
        assert again == kept
    assert total.chunks_decoded == decoded


def test_room_is_asked_for_again_after_a_while(
    arrays: list[Array], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = CaseCache(folder, nbytes=ENTRY_NBYTES)
    first = cache.fill(arrays[0], 2)
    assert first is not None
    assert cache.fill(arrays[1], 2) is None
    os.unlink(first.file)
    assert cache.fill(arrays[1], 2) is None
    later = time.monotonic() + 11
    monkeypatch.setattr(case_cache.time, "monotonic", lambda: later)
    assert cache.fill(arrays[1], 2) is not None


def test_room_is_taken_from_what_earlier_runs_left(arrays: list[Array], folder: Path) -> None:
    earlier = CaseCache(folder, nbytes=3 * ENTRY_NBYTES)
    cases = [earlier.fill(array, 2) for array in arrays[:3]]
    age(folder, 3600)
    os.utime(cases[1].file, ns=(1, os.stat(cases[1].file).st_mtime_ns))  # the longest unused
    stranger = folder / "notes.txt"
    stranger.write_text("mine")
    os.utime(stranger, (0, 0))
    cache = CaseCache(folder, nbytes=3 * ENTRY_NBYTES + 4)
    assert cache.get(arrays[0], 2) is not None  # in use from now on
    assert cache.room() == 2 * ENTRY_NBYTES
    assert cache.fill(arrays[3], 2) is not None
    assert [cache.get(array, 2) is not None for array in arrays[:4]] == [True, False, True, True]
    assert cache.fill(arrays[4], 2) is None  # entry 2 has been got as well
    assert stranger.read_text() == "mine"
    assert cache.used_nbytes() <= cache.nbytes


def test_what_another_run_uses_is_kept(
    arrays: list[Array], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = CaseCache(folder, nbytes=ENTRY_NBYTES)
    assert other.fill(arrays[0], 2) is not None
    cache = CaseCache(folder, nbytes=ENTRY_NBYTES)  # made later than that use
    assert cache.fill(arrays[1], 2) is None
    age(folder, 3600)
    # The other run goes on using it, and notes so now and then.
    monkeypatch.setattr(case_cache, "_NOTE_S", 0.0)
    case = other.get(arrays[0], 2)
    assert case is not None
    other._of(arrays[0], 2).note_at_s = 0.0
    assert other.get(arrays[0], 2) is case
    with pytest.raises(CapacityError, match="no room"):
        cache.fill_now(arrays[1], 2)
    assert_right(case, arrays[0])  # whose fingerprint the notes have left alone
    age(folder, 3600)
    assert cache.fill_now(arrays[1], 2) is not None


def test_needs(arrays: list[Array], folder: Path) -> None:
    cache = CaseCache(folder, nbytes=10**6)
    pairs = [(array, 2) for array in arrays]
    assert cache.needs(pairs + pairs) == 12 * ENTRY_NBYTES
    cache.fill(arrays[5], 2)
    assert cache.needs(pairs) == 11 * ENTRY_NBYTES == cache.check_room(pairs)


@pytest.mark.parametrize("at", ["posix_fallocate", "fsync", "replace", "makedirs"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_disk_full_or_unwritable(
    at: str, number: int, arrays: list[Array], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    cache = CaseCache(folder, nbytes=10**6)
    monkeypatch.setattr(os, at, fail)
    with pytest.warns(PerformanceWarning, match=os.strerror(number)):
        found = cache.fill(arrays[0], 2)
    assert found is None
    assert cache.fill(arrays[0], 2) is None  # and no further warning, which would be an error
    cache._refused = (0, 0.0)
    assert cache.fill(arrays[1], 2) is None
    assert cache.get(arrays[0], 2) is None
    assert cache.used_nbytes() == 0
    with pytest.raises(CapacityError, match=os.strerror(number)):
        preload(cache, [(arrays[0], 2)], progress=False)
    monkeypatch.undo()
    cache._refused = (0, 0.0)
    assert_right(cache.fill(arrays[0], 2), arrays[0])


def test_an_error_of_the_source_is_not_the_caches(
    arrays: list[Array], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "the source's disk")

    monkeypatch.setattr(Array, "read", fail)
    cache = CaseCache(folder, nbytes=10**6)
    with pytest.raises(OSError, match="the source's disk") as caught:
        cache.fill(arrays[0], 2)
    assert type(caught.value) is OSError
    assert files(folder) == []


def test_room_on_the_disk_counts_what_is_reserved(
    arrays: list[Array], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = CaseCache(folder, nbytes=10**9)
    free = 2 * ENTRY_NBYTES + 100
    monkeypatch.setattr(CaseFolder, "free_nbytes", lambda self: free)
    monkeypatch.setattr(CaseFolder, "_allocate", lambda *_: None)
    assert cache.room() == free
    # The disk does not know yet of what another thread is about to write.
    with cache._folder.filling("ab" * 16), cache._folder.new_entry("ab" * 16, ENTRY_NBYTES):
        assert cache.room() == free - ENTRY_NBYTES
        assert cache.used_nbytes() == ENTRY_NBYTES


# --- preload


def test_preload_refuses_with_numbers(
    arrays: list[Array], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = CaseCache(folder, nbytes=5 * ENTRY_NBYTES)
    cache.fill(arrays[3], 2)
    pairs = [(array, 2) for array in arrays]
    with pytest.raises(CapacityError) as caught:
        preload(cache, pairs, progress=True)
    error = caught.value
    assert (error.needed_nbytes, error.n_missing) == (11 * ENTRY_NBYTES, 11)
    assert (error.budget_nbytes, error.room_nbytes) == (5 * ENTRY_NBYTES, 4 * ENTRY_NBYTES)
    for number in (11 * ENTRY_NBYTES, 5 * ENTRY_NBYTES, 4 * ENTRY_NBYTES, ENTRY_NBYTES):
        assert human(number) in error.message
    assert "11 of 12 datasets" in error.message
    assert "free on the disk" in error.message
    assert files(folder) == [os.path.basename(cache.get(arrays[3], 2).file)]
    assert capsys.readouterr().err == ""


def test_preload_says_what_it_needs_and_fills(
    arrays: list[Array], folder: Path, total: ReadStats, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = CaseCache(folder, nbytes=12 * ENTRY_NBYTES)
    pairs = [(array, 2) for array in arrays]
    cache.fill(arrays[0], 2)
    preload(cache, pairs, progress=True)
    told = capsys.readouterr()
    assert told.out == ""
    assert f"Decoding 11 of 12 datasets, {human(11 * ENTRY_NBYTES)}, into {folder}" in told.err
    assert total.chunks_decoded == 12 * N_CHUNKS
    preload(cache, pairs, progress=False)
    assert total.chunks_decoded == 12 * N_CHUNKS
    assert capsys.readouterr().err == ""
    for array in arrays:
        assert_right(cache.get(array, 2), array)


def test_preload_makes_room_but_keeps_what_it_wants(arrays: list[Array], folder: Path) -> None:
    earlier = CaseCache(folder, nbytes=10**6)
    for array in arrays[:4]:
        earlier.fill(array, 2)
    age(folder)
    cache = CaseCache(folder, nbytes=4 * ENTRY_NBYTES)
    before = files(folder)
    with pytest.raises(CapacityError, match="3 of 5 datasets"):
        preload(cache, [(array, 2) for array in arrays[2:7]], progress=False)
    assert files(folder) == before  # the two that are wanted are no room for the other three
    preload(cache, [(array, 2) for array in arrays[2:6]], progress=False)
    there = [cache.get(array, 2) is not None for array in arrays[:6]]
    assert there == [False, False, True, True, True, True]


@pytest.mark.parametrize("n_processes", [3])
def test_processes_share_the_work(n_processes: int, arrays: list[Array], folder: Path) -> None:
    cache = CaseCache(folder, nbytes=12 * ENTRY_NBYTES)
    pairs = [(array, 2) for array in arrays]

    def work(pipe: Any) -> None:
        found = ReadStats()
        engine_read.remember = found.add
        pipe.recv()
        preload(cache, pairs, progress=False)
        pipe.send((found.chunks_decoded, all(cache.get(*pair) is not None for pair in pairs)))

    children = [Child(work) for _ in range(n_processes)]
    for child in children:
        child.go_on()
    decoded, complete = zip(*[child.answer() for child in children], strict=True)
    for child in children:
        child.end()
    assert complete == (True,) * n_processes
    assert sum(decoded) == 12 * N_CHUNKS
    assert len(files(folder)) == 12
    for array in arrays:
        assert_right(cache.get(array, 2), array)


def test_budget_holds_among_processes(arrays: list[Array], folder: Path) -> None:
    cache = CaseCache(folder, nbytes=5 * ENTRY_NBYTES)

    def work(pipe: Any) -> None:
        survey = CaseFolder.survey

        def dawdle(*args: Any, **options: Any) -> Any:
            found = survey(*args, **options)
            time.sleep(0.02)  # long enough for others to find the same room
            return found

        CaseFolder.survey = dawdle  # type: ignore[method-assign]
        pipe.recv()
        most = 0
        for array in arrays:
            with contextlib.suppress(InUseError, CapacityError):
                cache.fill_now(array, 2)
            most = max(most, cache.used_nbytes())
        pipe.send(most)

    children = [Child(work) for _ in range(3)]
    for child in children:
        child.go_on()
    assert max(child.answer() for child in children) == 5 * ENTRY_NBYTES
    for child in children:
        child.end()
    assert len(files(folder)) == 5


# --- killed processes


def stall_in_fill(cache: CaseCache, array: Array) -> Child:
    """Return a process that has reserved room, has decoded, and goes no further."""

    def work(pipe: Any) -> None:
        read = Array.read

        def stall(*args: Any, **options: Any) -> Any:
            read(*args, **options)
            pipe.send("in the middle")
            time.sleep(600)

        Array.read = stall  # type: ignore[method-assign]
        cache.fill(array, 2)

    child = Child(work)
    assert child.answer() == "in the middle"
    return child


def test_killed_in_the_middle(arrays: list[Array], folder: Path) -> None:
    cache = CaseCache(folder, nbytes=2 * ENTRY_NBYTES)
    child = stall_in_fill(cache, arrays[0])
    (part,) = files(folder)
    assert part.endswith(".part")
    # Nobody reads it, nobody fills it as well, and its room is taken.
    assert cache.get(arrays[0], 2) is None
    assert cache.fill(arrays[0], 2) is None
    assert (cache.used_nbytes(), cache.room()) == (ENTRY_NBYTES, ENTRY_NBYTES)
    assert cache.needs([(arrays[0], 2)]) == 0
    child.kill()
    assert cache.get(arrays[0], 2) is None
    assert cache.needs([(arrays[0], 2)]) == ENTRY_NBYTES
    assert cache.room() == 2 * ENTRY_NBYTES
    assert_right(cache.fill(arrays[0], 2), arrays[0])
    assert files(folder) == [part.replace(".part", ".npy")]
    assert cache.used_nbytes() == ENTRY_NBYTES


def test_what_the_killed_left_goes_when_room_is_short(arrays: list[Array], folder: Path) -> None:
    cache = CaseCache(folder, nbytes=2 * ENTRY_NBYTES)
    dead = stall_in_fill(cache, arrays[0])
    dead.kill()
    alive = stall_in_fill(cache, arrays[1])
    assert len(files(folder)) == 2
    assert cache.fill(arrays[2], 2) is not None
    assert cache.fill(arrays[3], 2) is None  # what a living process has reserved stays
    assert sorted(name[-4:] for name in files(folder)) == [".npy", "part"]
    alive.kill()


def test_what_the_killed_left_may_share_the_lock(arrays: list[Array], folder: Path) -> None:
    cache = CaseCache(folder, nbytes=ENTRY_NBYTES)
    key = cache._of(arrays[0], 2).key
    assert key is not None
    folder.mkdir()
    (folder / f"{key.digest[:2]:f<32}.part").write_bytes(bytes(ENTRY_NBYTES))
    assert_right(cache.fill(arrays[0], 2), arrays[0])
    assert files(folder) == [f"{key.digest}.npy"]


def test_preload_waits_for_others_and_takes_over_from_the_killed(
    arrays: list[Array], folder: Path
) -> None:
    cache = CaseCache(folder, nbytes=2 * ENTRY_NBYTES)
    child = stall_in_fill(cache, arrays[0])
    pairs = [(arrays[0], 2), (arrays[1], 2)]
    waiter = Child(lambda pipe: preload(cache, pairs, progress=False))
    deadline = time.monotonic() + 30
    while cache.get(arrays[1], 2) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert cache.get(arrays[1], 2) is not None
    assert waiter.process.is_alive()
    child.kill()
    waiter.end()
    assert_right(cache.get(arrays[0], 2), arrays[0])


def test_locks_do_not_pile_up(arrays: list[Array], folder: Path) -> None:
    cache = CaseCache(folder, nbytes=10**9)
    for i in range(600):
        with cache._folder.filling(f"{i * 7919:032x}"[::-1]):
            pass
    assert len(list(folder.iterdir())) <= 257


@pytest.mark.skipif(os.name != "posix", reason="folders have no such mode")
def test_only_the_owner_may_look(arrays: list[Array], folder: Path, memory: Path) -> None:
    previous = os.umask(0)
    try:
        CaseCache(folder, nbytes=10**6).fill(arrays[0], 2)
        CaseCache(folder / "other", nbytes=10**6).check_room([])
        cache = memory_cache.memory_cache(10**6)
    finally:
        os.umask(previous)
    for made in (folder, folder / "other", Path(cache.folder)):
        assert made.stat().st_mode & 0o777 == 0o700


# --- processes


def test_pickles_small(arrays: list[Array], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CaseCache(folder, nbytes=10**6)
    for array in arrays:
        cache.fill(array, 2)
    text = pickle.dumps(cache)
    assert len(text) < 500
    twin = pickle.loads(text)
    assert (twin.folder, twin.nbytes) == (cache.folder, cache.nbytes)
    case = twin.get(arrays[0], 2)
    again = pickle.loads(pickle.dumps(case))
    assert (again.file, again.name) == (case.file, case.name)
    assert_right(again, arrays[0])
    # A worker's copy does not take what its parent has put there for what an earlier run left.
    monkeypatch.setattr(case_folder, "_IDLE_S", 0.0)
    assert twin.room() == 10**6 - 12 * ENTRY_NBYTES
    assert CaseCache(folder, nbytes=10**6).room() == 10**6


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_start_methods(method: str, arrays: list[Array], folder: Path, memory: Path) -> None:
    with multiprocessing.get_context(method).Pool(1) as pool:
        for cache in (CaseCache(folder, nbytes=10**6), memory_cache.memory_cache(10**6)):
            assert cache.fill(arrays[0], 2) is not None
            assert_right(pool.apply(CaseCache.get, (cache, arrays[0], 2)), arrays[0])
            assert_right(pool.apply(CaseCache.fill, (cache, arrays[1], 2)), arrays[1])
            assert_right(cache.get(arrays[1], 2), arrays[1])
        pool.close()
        pool.join()


def test_few_descriptors(folder: Path, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "many.h5"
    with h5py.File(path, "w") as h5:
        for i in range(150):
            h5[f"{i}"] = np.full((3, 4, 5), i, "i2")

    def work(pipe: Any) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        limits.limits.open_files = limits._open_files()
        CaseFolder._sync = lambda *_: None  # type: ignore[method-assign] # 150 times is slow
        file = hs.open(path)
        cache = CaseCache(folder, nbytes=10**6)
        arrays = [file[str(i)] for i in range(150)]
        cases = [cache.fill(array, 2) for array in arrays]
        batch = hs.read_many([(case, 2) for case in cases])
        assert np.array_equal(batch[:, 0, 0], np.arange(150))
        assert len(os.listdir("/proc/self/fd")) < 64

    Child(work).end()


# --- in memory


def test_memory_is_shared_and_goes_with_the_last_process(arrays: list[Array], memory: Path) -> None:
    def work(pipe: Any) -> None:
        cache = memory_cache.memory_cache(10**6)
        there = cache.get(arrays[0], 2) is not None
        assert_right(cache.get(arrays[0], 2) or cache.fill(arrays[0], 2), arrays[0])
        pipe.send(there)
        pipe.recv()

    first, second = Child(work), None
    assert first.answer() is False
    second = Child(work)
    assert second.answer() is True
    first.go_on()
    first.end()
    assert len(files(memory)) == 1
    second.go_on()
    second.end()
    assert os.listdir(memory) == [".users"]


def test_memory_of_a_killed_process_goes_with_the_next_call(
    arrays: list[Array], memory: Path
) -> None:
    def work(pipe: Any) -> None:
        cache = memory_cache.memory_cache(10**6)
        cache.fill(arrays[0], 2)
        pipe.send("filled")
        pipe.recv()

    child = Child(work)
    assert child.answer() == "filled"
    beside = memory_cache.memory_cache(10**6)
    assert beside.get(arrays[0], 2) is not None
    del beside  # the child still has it
    assert len(files(memory)) == 1
    child.kill()
    assert len(files(memory)) == 1
    cache = memory_cache.memory_cache(10**6)
    assert files(memory) == []
    assert cache.get(arrays[0], 2) is None


@pytest.mark.parametrize("first", ["parent", "child"])
def test_memory_outlives_whoever_leaves_first(
    first: str, arrays: list[Array], memory: Path
) -> None:
    cache: CaseCache | None = memory_cache.memory_cache(10**6)
    assert cache is not None
    cache.fill(arrays[0], 2)

    def work(pipe: Any) -> None:
        nonlocal cache
        pipe.recv()
        assert cache is not None
        assert_right(cache.get(arrays[0], 2), arrays[0])

    child = Child(work)
    if first == "parent":
        cache = None
        assert len(files(memory)) == 1
        child.go_on()
        child.end()
    else:
        child.go_on()
        child.end()
        assert len(files(memory)) == 1
        assert_right(cache.get(arrays[0], 2), arrays[0])
        cache = None
    assert os.listdir(memory) == [".users"]


def test_memory_cache_pickles(arrays: list[Array], memory: Path) -> None:
    cache = memory_cache.memory_cache(10**6)
    cache.fill(arrays[0], 2)
    twin = pickle.loads(pickle.dumps(cache))
    assert isinstance(twin._folder, _MemoryFolder)
    del cache
    assert_right(twin.get(arrays[0], 2), arrays[0])


def test_memory_is_not_taken_to_the_last(
    arrays: list[Array], memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = memory_cache.memory_cache(10**12)
    monkeypatch.setattr(memory_cache, "available_nbytes", lambda: 20_000)
    monkeypatch.setattr(memory_cache, "memory_at_hand", lambda: 1000 + 2 * ENTRY_NBYTES)
    monkeypatch.setattr(memory_cache, "memory_limit", lambda: 123_000_000)
    assert cache.room() == 2 * ENTRY_NBYTES
    with pytest.raises(CapacityError, match="cgroup's limit is 123 MB") as caught:
        preload(cache, [(array, 2) for array in arrays[:3]], progress=False)
    assert caught.value.needed_nbytes == 3 * ENTRY_NBYTES
    assert files(memory) == []


@pytest.mark.parametrize("trap", ["writable by all", "link", "file"])
def test_memory_folder_that_others_may_write_to_is_refused(
    trap: str, memory: Path, tmp_path: Path
) -> None:
    if trap == "writable by all":
        memory.mkdir()
        memory.chmod(0o777)
    elif trap == "link":
        (tmp_path / "elsewhere").mkdir()
        memory.symlink_to(tmp_path / "elsewhere")
    else:
        memory.write_text("")
    with pytest.raises(CapacityError, match="of your own"):
        memory_cache.memory_cache(10**6)
    if memory.is_dir() and not memory.is_symlink():
        memory.rmdir()
    else:
        memory.unlink()


def test_memory_at_hand_by_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path("/proc/self/cgroup").read_text()
    inner = next(line[3:] for line in text.splitlines() if line.startswith("0::"))
    monkeypatch.setattr(limits, "_GROUPS", str(tmp_path))
    free = limits.memory_at_hand()
    assert 0 < free <= limits.available_nbytes()
    assert limits.memory_limit() is None
    group = tmp_path / inner.strip("/")
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text("5000000\n")
    (group / "memory.current").write_text("3000000\n")
    (group / "memory.stat").write_text("anon 100\ninactive_file 500000\nactive_file 7\n")
    assert limits.memory_at_hand() == 2_500_000
    assert limits.memory_limit() == 5_000_000
    (group / "memory.max").write_text("max\n")
    assert limits.memory_limit() is None
    assert limits.memory_at_hand() > 2_500_000
