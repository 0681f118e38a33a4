"""The engine's parts: cache, threads, files, plans, and the index that feeds them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.engine import cache, source
from hyperslab.engine.limits import limits
from hyperslab.engine.pool import run_together
from hyperslab.errors import DamagedFileError, MissingFileError, StaleIndexError
from hyperslab.index.build import describe_dataset, load_chunk_table
from hyperslab.index.records import fingerprint
from hyperslab.index.session import library_lock
from tests.compare import assert_same

Array = np.ndarray[Any, Any]


# --- cache ---------------------------------------------------------------------------------------


@pytest.fixture
def budget() -> Iterator[int]:
    """An empty cache with room for four chunks of 100 bytes."""
    before = limits.cache_nbytes
    cache.clear()
    hs.configure(cache_nbytes=400)
    yield 400
    cache.clear()
    hs.configure(cache_nbytes=before)


def chunk(value: int, nbytes: int = 100) -> cache.Cached:
    return cache.Cached(np.full(nbytes, value, np.uint8), False)


def put(number: int, nbytes: int = 100) -> None:
    assert cache.claim((1, number)) is None
    cache.publish((1, number), chunk(number, nbytes))


def is_kept(number: int) -> bool:
    found = cache.claim((1, number), decode=False)
    if isinstance(found, cache.Cached):
        assert (found.buffer == number).all()
        cache.done_with(found)
    return found is not None


@pytest.mark.usefixtures("budget")
def test_cache_keeps_what_was_used_last() -> None:
    for number in range(4):
        put(number)
    assert cache.nbytes() == 400
    assert is_kept(0)  # and is now the last one used
    put(4)
    assert cache.nbytes() == 400
    assert [is_kept(number) for number in range(5)] == [True, False, True, True, True]


@pytest.mark.usefixtures("budget")
def test_cache_stays_within_its_budget() -> None:
    put(0, 401)  # handed to those who wait, but too large to keep
    assert cache.nbytes() == 0
    assert not is_kept(0)
    for number, nbytes in enumerate([100, 300, 200, 50, 390], start=1):
        put(number, nbytes)
        assert cache.nbytes() <= 400
    assert is_kept(5)
    cache.clear()
    assert cache.nbytes() == 0
    assert not is_kept(5)


@pytest.mark.usefixtures("budget")
def test_two_threads_never_decode_the_same_chunk() -> None:
    assert cache.claim((1, 7)) is None  # ours
    together = threading.Barrier(5)

    def other() -> int:
        waiting = cache.claim((1, 7))
        assert isinstance(waiting, cache.Pending)
        together.wait(10)
        assert waiting.done.wait(10)
        assert waiting.result is not None
        cache.done_with(waiting.result)
        return int(waiting.result.buffer[0])

    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(other) for _ in range(4)]
        together.wait(10)
        cache.publish((1, 7), chunk(9))
        assert [found.result(10) for found in others] == [9] * 4


@pytest.mark.usefixtures("budget")
def test_a_chunk_that_was_given_up_is_the_next_ones_to_decode() -> None:
    assert cache.claim((1, 7)) is None
    waiting = cache.claim((1, 7))
    assert isinstance(waiting, cache.Pending)
    cache.abandon((1, 7))
    assert waiting.done.is_set()
    assert waiting.result is None
    assert cache.claim((1, 7)) is None
    cache.abandon((1, 7))


@pytest.mark.usefixtures("budget")
def test_memory_that_is_being_read_is_not_used_again() -> None:
    put(0)
    held = cache.claim((1, 0))
    assert isinstance(held, cache.Cached)
    for number in range(1, 9):
        assert cache.claim((1, number)) is None
        room = cache.room(100)
        room[:] = number
        cache.publish((1, number), cache.Cached(room, False))
        assert not np.shares_memory(room, held.buffer)
    assert (held.buffer == 0).all()
    cache.done_with(held)


# --- threads -------------------------------------------------------------------------------------


def test_work_is_done_by_as_many_threads_as_asked() -> None:
    together = threading.Barrier(3)  # passes only if three are at it
    seen: set[int] = set()

    def work() -> None:
        together.wait(20)
        seen.add(threading.get_ident())

    run_together(work, 3, threading.Event())
    assert len(seen) == 3
    assert threading.get_ident() in seen


def test_one_thread_is_the_callers() -> None:
    seen: list[int] = []
    run_together(lambda: seen.append(threading.get_ident()), 1, threading.Event())
    assert seen == [threading.get_ident()]


def test_whoever_holds_the_library_works_alone() -> None:
    """Helpers may need its lock, be it to delete one of h5py's objects that are garbage."""
    seen: list[int] = []
    with library_lock:
        assert library_lock.is_mine
        run_together(lambda: seen.append(threading.get_ident()), 3, threading.Event())
    assert seen == [threading.get_ident()]
    assert not library_lock.is_mine
    with ThreadPoolExecutor(1) as pool, library_lock:
        assert not pool.submit(lambda: library_lock.is_mine).result()


def test_at_the_end_of_the_interpreter_the_caller_works_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    monkeypatch.setattr("hyperslab.engine.pool._executor", executor)
    seen: list[int] = []
    run_together(lambda: seen.append(threading.get_ident()), 3, threading.Event())
    assert seen == [threading.get_ident()]


@pytest.mark.parametrize("culprit", ["caller", "helper"])
def test_a_failure_comes_out_once_all_have_stopped(culprit: str) -> None:
    together = threading.Barrier(4)
    stop = threading.Event()
    running: list[int] = []
    caller = threading.get_ident()
    helpers = threading.Semaphore(1)

    def work() -> None:
        running.append(1)
        together.wait(20)
        mine = threading.get_ident() == caller
        if mine if culprit == "caller" else not mine and helpers.acquire(blocking=False):
            raise KeyError(culprit)
        assert stop.wait(20), "nobody said stop"
        time.sleep(0.01)
        running.pop()

    with pytest.raises(KeyError, match=culprit):
        run_together(work, 4, stop)
    assert len(running) == 1  # only the one that failed has not said goodbye


# --- files ---------------------------------------------------------------------------------------


@pytest.fixture
def bytes_file(tmp_path: Path) -> Path:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(200)))
    return path


def test_reads_into_several_buffers(bytes_file: Path) -> None:
    file = source.acquire(str(bytes_file), fingerprint(str(bytes_file)))
    buffers = [np.zeros(5, np.uint8), np.zeros((2, 3), np.uint8)]
    assert file.read_into(buffers, 10, 11) == 1
    source.release(file)
    assert np.concatenate([b.reshape(-1) for b in buffers]).tolist() == list(range(10, 21))


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="there is no preadv here")
def test_short_reads_are_carried_on(bytes_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operating system may return fewer bytes than were asked for, whenever it likes."""
    read = os.preadv
    calls: list[int] = []

    def read_little(fd: int, buffers: Any, offset: int) -> int:
        calls.append(offset)
        return read(fd, [memoryview(buffers[0]).cast("B")[:3]], offset)

    file = source.acquire(str(bytes_file), fingerprint(str(bytes_file)))
    monkeypatch.setattr(os, "preadv", read_little)
    buffers = [np.zeros(7, np.uint8), np.zeros(4, np.uint8)]
    assert file.read_into(buffers, 100, 11) == len(calls)
    source.release(file)
    assert np.concatenate(buffers).tolist() == list(range(100, 111))
    assert len(calls) > 3


def test_the_end_of_a_file_is_damage(bytes_file: Path) -> None:
    file = source.acquire(str(bytes_file), fingerprint(str(bytes_file)))
    with pytest.raises(DamagedFileError, match=r"bytes: 15 bytes are missing.*200") as caught:
        file.read_into([np.zeros(25, np.uint8)], 190, 25)
    source.release(file)
    assert caught.value.byte_offset == 200
    assert caught.value.file == str(bytes_file)


def test_descriptors_are_shared_and_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source.close_idle()
    monkeypatch.setattr(limits, "open_files", 3)
    paths = [tmp_path / str(i) for i in range(6)]
    for path in paths:
        path.write_bytes(b"x")
    held = [source.acquire(str(path), fingerprint(str(path))) for path in paths[:5]]
    assert source.n_open() == 5  # those in use stay open, whatever the limit
    again = source.acquire(str(paths[0]), fingerprint(str(paths[0])))
    assert again is held[0]
    for file in (*held, again):
        source.release(file)
    assert source.n_open() <= 3
    source.release(source.acquire(str(paths[5]), fingerprint(str(paths[5]))))
    assert source.n_open() <= 3
    source.close_idle()
    assert source.n_open() == 0


def test_a_file_that_is_not_what_it_was(bytes_file: Path, tmp_path: Path) -> None:
    before = fingerprint(str(bytes_file))
    source.release(source.acquire(str(bytes_file), before))
    (tmp_path / "new").write_bytes(b"other")
    os.replace(tmp_path / "new", bytes_file)
    source.close_idle()
    with pytest.raises(StaleIndexError):
        source.acquire(str(bytes_file), before)
    bytes_file.unlink()
    with pytest.raises(MissingFileError):
        source.acquire(str(bytes_file), before)


# --- plans: what a read costs --------------------------------------------------------------------


@pytest.fixture
def no_cache() -> Iterator[None]:
    before = limits.cache_nbytes
    hs.configure(cache_nbytes=0)
    yield
    hs.configure(cache_nbytes=before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Data of one shape, stored in several ways; the chunks of each lie side by side."""
    path = tmp_path / "x.h5"
    values = (np.arange(40 * 64 * 32) % 1000).astype("i4").reshape(40, 64, 32)
    with h5py.File(path, "w") as h5:
        h5.create_dataset("gzip", data=values, chunks=(1, 64, 32), compression="gzip")
        h5.create_dataset("planes", data=values, chunks=(1, 64, 32))
        h5.create_dataset("flat", data=values)
    return path


@pytest.mark.usefixtures("no_cache")
def test_chunks_that_lie_together_are_fetched_together(path: Path) -> None:
    array = hs.open(path)["gzip"]
    with h5py.File(path) as h5:
        stored = h5["gzip"].id.get_storage_size()
    whole = array.read(threads=1)
    stats = hs.last_stats()
    assert stats.chunks_decoded == 40
    assert stats.preads <= 10
    assert stored <= stats.bytes_read <= stored + 40 * 1024
    assert stats.bytes_decoded == whole.nbytes
    assert_same(array.read(np.s_[3:5], threads=1), whole[3:5])
    assert (hs.last_stats().chunks_decoded, hs.last_stats().preads) == (2, 1)


@pytest.mark.usefixtures("no_cache")
def test_a_batch_costs_no_more_than_its_chunks(path: Path) -> None:
    file = hs.open(path)
    requests: list[Any] = [(file["gzip"], k) for k in (5, 6, 5, 7, 6)]
    hs.read_many(requests, threads=1)
    assert (hs.last_stats().chunks_decoded, hs.last_stats().preads) == (3, 1)


def test_unfiltered_planes_come_straight_into_place(path: Path) -> None:
    array = hs.open(path)["planes"]
    plane = array[7]
    stats = hs.last_stats()
    assert (stats.preads, stats.bytes_read, stats.bytes_decoded) == (1, plane.nbytes, 0)
    assert (stats.chunks_decoded, stats.threads) == (1, 1)


def test_rows_of_a_dataset_in_one_piece_are_one_read(path: Path) -> None:
    array = hs.open(path)["flat"]
    part = array[3:9]
    assert (hs.last_stats().preads, hs.last_stats().bytes_read) == (1, part.nbytes)
    # A strided part is not fetched with all that lies between.
    part = array[:, :, 4]
    assert hs.last_stats().bytes_read <= part.nbytes


def test_a_view_costs_nothing_before_it_is_read(path: Path) -> None:
    array = hs.open(path)["gzip"]
    array[0]
    before = hs.last_stats()
    view = array.lazy[3:30, ::-1][5]
    assert hs.last_stats() is before
    assert_same(np.asarray(view), array[8, ::-1])


def test_small_reads_stay_in_the_callers_thread(path: Path) -> None:
    file = hs.open(path)
    for index in (0, np.s_[5, 3:9], np.s_[2:4, 0, 0]):
        file["gzip"].read(index, threads=8)
        assert hs.last_stats().threads == 1


def test_what_is_read_twice_is_decoded_once(path: Path) -> None:
    array = hs.open(path)["gzip"]
    cache.clear()
    array[4, 10]
    assert (hs.last_stats().chunks_decoded, hs.last_stats().chunks_cached) == (1, 0)
    array[4, 11:30]
    stats = hs.last_stats()
    assert (stats.chunks_decoded, stats.chunks_cached, stats.bytes_read) == (0, 1, 0)
    # The same dataset of another File, even one opened anew.
    hs.open(path)["gzip"][4, 0]
    assert hs.last_stats().chunks_cached == 1


def test_stats_add_up(path: Path) -> None:
    array = hs.open(path)["gzip"]
    part = array.read(np.s_[10:20])
    stats = hs.last_stats()
    assert stats.bytes_returned == part.nbytes
    assert stats.chunks_decoded + stats.chunks_cached + stats.chunks_filled == 10
    assert stats.seconds > 0
    assert stats.threads >= 1


# --- the chunk table -----------------------------------------------------------------------------


class CountingId:
    """Stands in for a dataset's id: passes calls on and counts them."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._inner, name)


class CountingDataset:
    def __init__(self, inner: h5py.Dataset) -> None:
        self._inner = inner
        self.id = CountingId(inner.id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_the_chunk_table_is_read_in_one_pass(tmp_path: Path) -> None:
    """To ask for one chunk after the other takes a time that grows with the square."""
    path = tmp_path / "many.h5"
    with h5py.File(path, "w") as h5:
        dataset = h5.create_dataset("x", (4096,), "u1", chunks=(1,), compression="gzip")
        dataset[::3] = 1
    with h5py.File(path) as h5:
        index = describe_dataset(h5["x"], str(path), name="/x")
        counting: Any = CountingDataset(h5["x"])
        table = load_chunk_table(counting, index)
    assert counting.id.calls.count("chunk_iter") == 1
    assert not [name for name in counting.id.calls if name.startswith("get_chunk_info")]
    assert table.number is not None
    assert table.number.tolist() == list(range(0, 4096, 3))
    assert table.rows(np.array([0, 1, 3, 4095])).tolist() == [0, -1, 1, 1365]
    columns = (table.byte_offset, table.nbytes, table.filter_mask)
    assert {column.size for column in columns} == {1366}


def test_a_dataset_is_indexed_when_it_is_touched(path: Path, monkeypatch: Any) -> None:
    """Opening a file, or naming its members, reads no chunk table."""
    from hyperslab.index import container

    asked: list[str] = []
    load = container.load_chunk_table

    def count(dataset: Any, index: Any) -> Any:
        asked.append(index.name)
        return load(dataset, index)

    monkeypatch.setattr(container, "load_chunk_table", count)
    file = hs.open(path)
    assert list(file) == ["flat", "gzip", "planes"]
    array = file["gzip"]
    assert (array.shape, array.chunks) == ((40, 64, 32), (1, 64, 32))
    assert asked == []
    array[0]
    array[1]
    file["gzip"][2]
    file["flat"][0]
    assert asked == ["/gzip"]
