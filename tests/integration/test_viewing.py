"""What a viewer holds: lazy views of a channel, and read-ahead while it scrolls."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hyperslab as hs
from hyperslab.engine import cache
from hyperslab.engine.limits import configure, limits
from hyperslab.errors import ChunkDecodeError, SelectionError
from hyperslab.testing import make_imaris
from hyperslab.viewing import (
    ChannelView,
    ReadAheadStats,
    ahead,
    channel_views,
    read_ahead_stats,
    stop_read_ahead,
    volume_level,
)
from tests.compare import assert_same
from tests.images import h5py_imaris

pytestmark = pytest.mark.filterwarnings("ignore::hyperslab.errors.MetadataWarning")

N_PLANES, DEPTH = 48, 16
SHAPE, CHUNKS = (N_PLANES, 300, 280), (DEPTH, 256, 256)
PER_SLAB, N_SLABS = 4, 3
SLAB_NBYTES = PER_SLAB * 2 * DEPTH * 256 * 256
Since = Callable[[], ReadAheadStats]


def written(path: Path, values: Any, chunks: Any, **options: Any) -> Path:
    with h5py.File(path, "w") as h5:
        h5.create_dataset("x", data=values, chunks=chunks, **options)
    return path


def view_of(path: Path, axes: str = "ZYX") -> ChannelView:
    return ChannelView(hs.open_image(path, "x", axes=axes).levels[0])


@pytest.fixture(scope="module")
def values() -> np.ndarray[Any, Any]:
    z, y, x = np.ogrid[tuple(slice(n) for n in SHAPE)]
    return (7919 * z + 300 * y + x).astype(np.uint16)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, values: np.ndarray[Any, Any]) -> Path:
    folder = tmp_path_factory.mktemp("viewing")
    return written(folder / "volume.h5", values, CHUNKS, compression="gzip", compression_opts=1)


@pytest.fixture
def view(path: Path) -> ChannelView:
    return view_of(path)


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    """Begin, and leave, with no thread, nothing decoded, and a budget that fits all of it."""
    configure(cache_nbytes=64 << 20)
    stop_read_ahead()
    cache.clear()
    yield
    stop_read_ahead()
    cache.clear()


@pytest.fixture
def since() -> Since:
    """What read-ahead did since the test began."""
    start = read_ahead_stats()

    def difference() -> ReadAheadStats:
        now = read_ahead_stats()
        names = [field.name for field in fields(now)]
        return ReadAheadStats(**{n: getattr(now, n) - getattr(start, n) for n in names})

    return difference


def settle() -> None:
    """Wait until nothing is left to be decoded ahead."""
    give_up = time.monotonic() + 20
    while read_ahead_stats().slabs_waiting:
        assert time.monotonic() < give_up, "read-ahead does not come to an end"
        time.sleep(0.001)


@contextmanager
def nothing_begins(view: ChannelView) -> Iterator[None]:
    """Have somebody read meanwhile, from a view of their own: no piece may begin."""
    other = ChannelView(view.level)
    with ahead.reading(other._track, (0,) * view.level.ndim) as copied:
        assert not copied
        yield


def threads_ahead() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "hyperslab-ahead"]


def in_cache(view: ChannelView, index: Any) -> tuple[int, int]:
    """How many of the chunks that a part touches are decoded already, and how many are not.

    Asks by reading it behind read-ahead's back, and forgets nothing of what was there.
    """
    view.level.read(index)
    stats = hs.last_stats()
    return stats.chunks_cached, stats.chunks_decoded


def scroll(view: ChannelView, planes: Any, *, patient: bool = False) -> int:
    """Look at planes, one after the other; return how many chunks were decoded meanwhile."""
    n = 0
    for plane in planes:
        view[plane]
        n += hs.last_stats().chunks_decoded
        if patient:
            settle()
    return n


# --- views


@pytest.mark.parametrize(
    "index",
    [
        np.s_[...],
        np.s_[0],
        np.s_[1, 3],
        np.s_[-1, -2, 5, 7],
        np.s_[:, 2, ::-3, 10:50:7],
        np.s_[0, None, 4],
        np.s_[[1, 0, 1], :, [3, 4, 5]],
        np.s_[:, [4, 0], 2:9, [1, 8]],
        np.s_[0, np.arange(5) % 2 == 0],
        np.s_[1, 5:5],
        np.s_[1, 2, 3, 4, ...],
    ],
    ids=str,
)
@pytest.mark.parametrize("channel", [0, 1])
def test_a_view_is_indexed_as_numpy_indexes_the_channel(
    tmp_path: Path, channel: int, index: Any
) -> None:
    make_imaris(tmp_path / "a.ims", shape=(2, 2, 5, 70, 90), chunks=(4, 32, 32))
    views = channel_views(hs.open_image(tmp_path / "a.ims"), channel)
    for number, size in enumerate([(5, 70, 90), (5, 35, 45)]):
        want = h5py_imaris(tmp_path / "a.ims", number, (2, 2, *size))[:, channel]
        view = views[number]
        assert view.level.number == number
        assert (view.shape, view.dtype, view.axes) == (want.shape, want.dtype, "TZYX")
        assert (view.ndim, view.size, view.nbytes) == (want.ndim, want.size, want.nbytes)
        assert (len(view), view.chunks) == (2, (1, 4, 32, 32))
    want = h5py_imaris(tmp_path / "a.ims", 0, (2, 2, 5, 70, 90))[:, channel]
    assert_same(views[0][index], want[index])
    assert_same(np.asarray(views[0].lazy[index]), np.asarray(want[index]))


def test_making_views_and_asking_what_they_are_reads_nothing(path: Path) -> None:
    before = hs.last_stats()
    view = channel_views(hs.open_image(path, "x", axes="ZYX"))[0]
    text = repr(view), view.shape, view.dtype, view.lazy[3:9][2].shape
    assert "Z=48, Y=300, X=280" in text[0]
    assert hs.last_stats() is before


def test_a_view_as_an_array(view: ChannelView, values: np.ndarray[Any, Any]) -> None:
    assert_same(np.asarray(view), values)
    assert_same(np.asarray(view, dtype=np.float64), values.astype(np.float64))
    with pytest.raises(ValueError, match="always makes a copy"):
        np.array(view, copy=False)
    out = np.zeros(SHAPE[1:], np.uint16)
    assert view.read(3, out=out) is out
    assert_same(out, values[3])
    assert_same(view[7, 5, 5], values[7, 5, 5])  # a scalar, where NumPy has one


@pytest.mark.parametrize("axes", ["CYX", "YCX", "YXC"])
def test_the_channel_axis_may_be_anywhere(tmp_path: Path, axes: str) -> None:
    data = np.arange(3 * 40 * 50, dtype=np.int32).reshape(3, 40, 50)
    stored = np.moveaxis(data, 0, axes.index("C"))
    image = hs.open_image(written(tmp_path / "a.h5", stored, True), "x", axes=axes)
    for channel in range(3):
        view = ChannelView(image.levels[0], channel)
        assert (view.axes, view.shape) == ("YX", (40, 50))
        assert_same(view[3:9, ::-1], data[channel, 3:9, ::-1])


def test_a_channel_by_name(tmp_path: Path) -> None:
    make_imaris(tmp_path / "a.ims")
    image = hs.open_image(tmp_path / "a.ims")
    assert channel_views(image, "Membrane")[0].channel == 1
    assert channel_views(image, -1)[0].channel == 1
    with pytest.raises(SelectionError, match="no channel is called 'GFP'"):
        channel_views(image, "GFP")
    with pytest.raises(SelectionError, match="there is no channel 2"):
        ChannelView(image.levels[0], 2)


def test_without_a_channel_axis_the_view_is_the_level(view: ChannelView) -> None:
    assert view.axes == "ZYX"
    with pytest.raises(SelectionError, match="there is no channel 1"):
        ChannelView(view.level, 1)


def test_an_index_that_does_not_fit(view: ChannelView) -> None:
    with pytest.raises(SelectionError, match=r"volume\.h5, level 0: .*48"):
        view[48]


def test_a_view_pickles(tmp_path: Path) -> None:
    make_imaris(tmp_path / "a.ims")
    views = channel_views(hs.open_image(tmp_path / "a.ims"), 1)
    views[1][0, 0], views[1][0, 1]  # with a past
    again = pickle.loads(pickle.dumps(views[1]))
    assert (again.level.number, again.channel) == (1, 1)
    assert_same(again[1, 3], views[1][1, 3])
    assert len(pickle.dumps(views[1])) < 4096


# --- scrolling


@settings(max_examples=15)
@given(seed=st.integers(0, 1 << 32), n_steps=st.integers(1, 40))
def test_planes_are_those_of_h5py_in_any_order(path: Path, seed: int, n_steps: int) -> None:
    rng = random.Random(seed)
    view = view_of(path)
    window: Any = np.s_[:, :]
    z = 0
    with h5py.File(path) as h5:
        for _ in range(n_steps):
            match rng.choice(["on", "on", "on", "back", "back", "jump", "pan", "forget", "stop"]):
                case "on":
                    z = min(z + rng.randint(1, 3), N_PLANES - 1)
                case "back":
                    z = max(z - 1, 0)
                case "jump":
                    z = rng.randrange(N_PLANES)
                case "pan":
                    y, x = rng.randrange(200), rng.randrange(200)
                    window = np.s_[y : y + 90 : rng.choice([1, 1, 7]), x : x + 80]
                case "forget":
                    cache.forget()
                case "stop":
                    stop_read_ahead()
            assert_same(view[(z, *window)], h5["x"][(z, *window)])


@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize("way", [1, -1])
def test_each_chunk_is_decoded_once_over_a_whole_scroll(
    view: ChannelView, since: Since, way: int, patient: bool
) -> None:
    by_reads = scroll(view, range(N_PLANES)[::way], patient=patient)
    settle()
    assert by_reads + since().chunks_decoded == N_SLABS * PER_SLAB
    if patient:  # at a pace: only the first slab is waited for
        assert by_reads == PER_SLAB
        assert since() == ReadAheadStats(chunks_decoded=8, chunks_used=8)


def test_only_the_next_slab_is_decoded_and_only_the_window(view: ChannelView, since: Since) -> None:
    window = np.s_[10:200, 260:270]  # one of the four chunks of a slab
    view[(0, *window)]
    settle()
    assert since() == ReadAheadStats()  # nobody has moved yet
    view[(1, *window)]
    settle()
    assert since() == ReadAheadStats(chunks_decoded=1)
    assert in_cache(view, (DEPTH, *window)) == (1, 0)
    assert in_cache(view, (2 * DEPTH, *window)) == (0, 1)
    assert in_cache(view, DEPTH) == (1, 3)


def test_within_a_slab_there_is_nothing_to_do(view: ChannelView, since: Since) -> None:
    scroll(view, range(2), patient=True)
    cache.forget()  # so that whatever is asked for again is decoded again
    scroll(view, range(2, DEPTH), patient=True)
    assert since() == ReadAheadStats(chunks_decoded=PER_SLAB)


def test_it_turns_around(view: ChannelView, since: Since) -> None:
    scroll(view, [20, 19], patient=True)
    assert in_cache(view, 0) == (PER_SLAB, 0)
    assert since().chunks_decoded == PER_SLAB
    scroll(view, [20], patient=True)
    assert since().chunks_decoded == 2 * PER_SLAB
    assert in_cache(view, 40) == (PER_SLAB, 0)


def test_at_either_end_there_is_nothing_more(view: ChannelView, since: Since) -> None:
    with nothing_begins(view):
        scroll(view, [46, 47])
        assert since() == ReadAheadStats()
        scroll(view, [1, 0])
        assert since() == ReadAheadStats()


def test_a_step_over_some_planes_is_scrolling_too(view: ChannelView, since: Since) -> None:
    assert scroll(view, range(0, N_PLANES, 5), patient=True) == PER_SLAB
    assert since() == ReadAheadStats(chunks_decoded=8, chunks_used=8)


def test_a_jump_is_not_followed(view: ChannelView, since: Since) -> None:
    scroll(view, [0, 20, 40, 3, 47], patient=True)
    view[(3, np.s_[:100])]
    view[(4, np.s_[:101])]  # the window changed as well
    view[[5, 6]]
    view[[6, 7]]
    settle()
    assert since() == ReadAheadStats()


@pytest.mark.parametrize("index", [40, np.s_[2, :200], np.s_[2:4], np.s_[[1, 2]]], ids=str)
def test_a_jump_drops_what_was_to_be_decoded(view: ChannelView, since: Since, index: Any) -> None:
    with nothing_begins(view):
        scroll(view, [0, 1])
        assert since() == ReadAheadStats(slabs_waiting=1)
        view[index]
        assert since() == ReadAheadStats(slabs_dropped=1)
    settle()
    assert since() == ReadAheadStats(slabs_dropped=1)
    assert in_cache(view, DEPTH + 1)[1] > 0


def test_turning_around_drops_the_slab_behind(view: ChannelView, since: Since) -> None:
    with nothing_begins(view):
        scroll(view, [20, 21])
        scroll(view, [20])
        assert since() == ReadAheadStats(slabs_dropped=1, slabs_waiting=1)
    settle()
    assert in_cache(view, 0) == (PER_SLAB, 0)
    assert in_cache(view, 40) == (0, PER_SLAB)


def test_whoever_is_faster_is_not_held_up(view: ChannelView, since: Since) -> None:
    """A slab that the viewer reaches before read-ahead does is left to the viewer."""
    with nothing_begins(view):
        assert scroll(view, range(DEPTH + 1)) == 2 * PER_SLAB
        assert since() == ReadAheadStats(slabs_dropped=1, slabs_waiting=1)
    settle()
    assert since() == ReadAheadStats(slabs_dropped=1, chunks_decoded=PER_SLAB)


def test_nothing_is_decoded_for_a_view_that_nobody_holds(path: Path, since: Since) -> None:
    view, other = view_of(path), view_of(path)
    with nothing_begins(other):
        scroll(view, [0, 1])
        assert since().slabs_waiting == 1
        del view
        gc.collect()
        assert since().slabs_waiting == 0
    settle()
    assert since().chunks_decoded == 0


def test_the_next_planes_where_a_chunk_is_one_plane(
    tmp_path: Path, since: Since, values: np.ndarray[Any, Any]
) -> None:
    path = written(tmp_path / "a.h5", values[:20, :64, :64], (1, 64, 64), compression=1)
    view = view_of(path)
    scroll(view, [0, 1], patient=True)
    assert since() == ReadAheadStats(chunks_decoded=4)
    assert in_cache(view, np.s_[2:7]) == (4, 1)
    assert scroll(view, range(2, 20), patient=True) == 0
    assert since() == ReadAheadStats(chunks_decoded=18, chunks_used=18)
    assert_same(view[19], values[19, :64, :64])


def test_no_plane_is_asked_for_twice(tmp_path: Path, since: Since) -> None:
    path = written(tmp_path / "a.h5", np.ones((20, 64, 64), "u2"), (1, 64, 64), compression=1)
    view = view_of(path)
    scroll(view, [0, 1], patient=True)
    cache.forget()  # so that whatever is asked for again is decoded again
    scroll(view, [2], patient=True)
    assert since() == ReadAheadStats(chunks_decoded=5, chunks_used=1)


def test_time_is_scrolled_like_depth(tmp_path: Path, since: Since) -> None:
    make_imaris(tmp_path / "a.ims", shape=(9, 2, 8, 70, 90), chunks=(4, 64, 64))
    view = channel_views(hs.open_image(tmp_path / "a.ims"), 1)[0]
    for t in (7, 6):
        view[t, 5]
    settle()
    assert since() == ReadAheadStats(chunks_decoded=4 * 4)
    assert in_cache(view, np.s_[2:7, 1, 5]) == (5 * 4, 0)
    assert in_cache(view, np.s_[5, 1, 0]) == (0, 4)  # the other slab of the time point
    assert in_cache(view, np.s_[5, 0, 5]) == (0, 4)  # the other channel
    assert in_cache(view, np.s_[1, 1, 5]) == (0, 4)
    want = h5py_imaris(tmp_path / "a.ims", 0, (9, 2, 8, 70, 90))
    assert_same(view[5, 5], want[5, 1, 5])


def test_from_time_to_depth_the_one_is_given_up_for_the_other(tmp_path: Path, since: Since) -> None:
    make_imaris(tmp_path / "a.ims", shape=(9, 1, 16, 70, 90), chunks=(4, 64, 64))
    view = channel_views(hs.open_image(tmp_path / "a.ims"))[0]
    with nothing_begins(view):
        view[0, 5], view[1, 5]  # time points 2 to 5, and then slab 2
        assert since() == ReadAheadStats(slabs_waiting=4)
        view[1, 6]
        assert since() == ReadAheadStats(slabs_dropped=4, slabs_waiting=1)
    settle()
    assert since() == ReadAheadStats(slabs_dropped=4, chunks_decoded=4)
    assert in_cache(view, np.s_[1, 0, 8]) == (4, 0)


def test_volumes_over_time(tmp_path: Path, since: Since) -> None:
    """A chunk that is taken whole is kept only for those who come later."""
    make_imaris(tmp_path / "a.ims", shape=(6, 1, 4, 64, 64), chunks=(4, 64, 64))
    view = channel_views(hs.open_image(tmp_path / "a.ims"))[0]
    scroll(view, [0, 1], patient=True)
    assert since() == ReadAheadStats(chunks_decoded=4)
    assert scroll(view, range(2, 6), patient=True) == 0
    assert_same(view[5], h5py_imaris(tmp_path / "a.ims", 0, (6, 1, 4, 64, 64))[5, 0])


def test_computed_levels_are_scrolled_too(view: ChannelView, since: Since) -> None:
    image = view.level.image
    views = channel_views(image)
    want = np.asarray(image.levels[-1])
    for z in range(len(views[-1])):
        assert_same(views[-1][z], want[z])
        settle()
    assert since().n_failed == 0


def test_reads_within_a_slab_take_one_thread(view: ChannelView) -> None:
    configure(threads=2)
    used = []
    for z in range(DEPTH + 2):
        view[z]
        used.append(hs.last_stats().threads)
        settle()
    # At the second plane the chunks are not known yet; at the first of a slab they may be missing.
    assert [z for z, n in enumerate(used) if n > 1] == [0, 1, DEPTH]
    cache.forget()
    scroll(view, [DEPTH + 2])  # decodes, against all expectation
    scroll(view, [DEPTH + 3])
    assert hs.last_stats().threads == 2
    view.read(DEPTH + 4, threads=1)
    assert hs.last_stats().threads == 1
    scroll(view, [15, 16, 17])
    assert hs.last_stats().threads == 1
    view.read(18, threads=2)
    assert hs.last_stats().threads == 2


# --- the budget


def test_a_slab_that_does_not_fit_is_not_decoded_ahead(
    view: ChannelView, since: Since, values: np.ndarray[Any, Any]
) -> None:
    configure(cache_nbytes=2 * SLAB_NBYTES - 1)  # the next one would drop this one
    for z in range(3):
        assert_same(view[z], values[z])
        settle()
    assert since() == ReadAheadStats()
    assert limits.cache_nbytes == 2 * SLAB_NBYTES - 1  # set by the user, so left alone


def test_the_slabs_of_all_views_count(path: Path, since: Since) -> None:
    configure(cache_nbytes=3 * SLAB_NBYTES)
    first, second = view_of(path), view_of(path)
    scroll(first, [0, 1], patient=True)
    assert since().chunks_decoded == PER_SLAB
    cache.forget()
    scroll(second, [40, 39], patient=True)  # with what is shown of the first: four slabs in all
    assert since().chunks_decoded == PER_SLAB
    scroll(second, [38, 37] * 17, patient=True)  # the first is not looked at any more
    assert since().chunks_decoded == 2 * PER_SLAB


def test_the_slab_of_a_view_that_nobody_holds_does_not_count(path: Path, since: Since) -> None:
    configure(cache_nbytes=3 * SLAB_NBYTES)
    first, second = view_of(path), view_of(path)
    scroll(first, [0, 1], patient=True)
    del first
    gc.collect()
    cache.forget()
    scroll(second, [40, 39], patient=True)
    assert since().chunks_decoded == 2 * PER_SLAB


def test_the_budget_is_raised_for_what_is_scrolled(
    view: ChannelView, since: Since, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HYPERSLAB_CACHE_MB", raising=False)
    # As if the default were less than a slab, and somebody had not configured it.
    monkeypatch.setattr("hyperslab.viewing.budget.default_cache_nbytes", lambda: 1 << 20)
    configure(cache_nbytes=1 << 20)
    assert scroll(view, [0, 1], patient=True) == 2 * PER_SLAB  # of the first, nothing was kept
    assert limits.cache_nbytes == 2 * SLAB_NBYTES
    assert since().chunks_decoded == PER_SLAB
    assert scroll(view, range(2, N_PLANES), patient=True) == 0


def test_without_a_cache_there_is_no_read_ahead(
    view: ChannelView, since: Since, values: np.ndarray[Any, Any]
) -> None:
    configure(cache_nbytes=0)
    for z in range(3):
        assert_same(view[z], values[z])
    assert since() == ReadAheadStats()
    assert threads_ahead() == []


@pytest.mark.parametrize("chunks", [(4, 64, 64), None], ids=["chunked", "contiguous"])
def test_what_is_not_decoded_is_not_read_ahead(
    tmp_path: Path, since: Since, values: np.ndarray[Any, Any], chunks: Any
) -> None:
    view = view_of(written(tmp_path / "a.h5", values[:12, :64, :64], chunks))
    for z in range(12):
        assert_same(view[z], values[z, :64, :64])
        settle()
    assert since() == ReadAheadStats()


# --- faults


def damage(path: Path, chunk: tuple[int, ...]) -> None:
    with h5py.File(path) as h5:
        dataset = h5["x"]
        origin = tuple(i * n for i, n in zip(chunk, dataset.chunks, strict=True))
        found = dataset.id.get_chunk_info_by_coord(origin)
    with path.open("r+b") as stream:
        stream.seek(found.byte_offset + 2)
        stream.write(b"\xff" * (found.size - 2))


def test_a_damaged_chunk_ahead_is_told_to_whoever_reads_it(
    tmp_path: Path, since: Since, values: np.ndarray[Any, Any]
) -> None:
    path = tmp_path / "damaged.h5"
    written(path, values[:, :128, :100], (DEPTH, 64, 64), compression=1)
    damage(path, (1, 0, 1))
    view = view_of(path)
    for z in range(DEPTH):
        assert_same(view[z], values[z, :128, :100])
        settle()
    assert since().n_failed == 1
    with pytest.raises(ChunkDecodeError, match=r"damaged\.h5: /?x, chunk \(1, 0, 1\)"):
        view[DEPTH]
    assert_same(view[DEPTH, 64:], values[DEPTH, 64:128, :100])
    with pytest.raises(ChunkDecodeError) as caught:  # again: nothing wrong was kept
        view[DEPTH + 1]
    assert caught.value.chunk == (1, 0, 1)
    for z in range(2 * DEPTH, N_PLANES):
        assert_same(view[z], values[z, :128, :100])


def test_chunks_that_cannot_be_told_are_no_reason_not_to_show_a_plane(
    tmp_path: Path, since: Since
) -> None:
    facts = make_imaris(tmp_path / "a.ims", shape=(4, 1, 5, 70, 90), multi_file=True)
    view = channel_views(hs.open_image(tmp_path / "a.ims"))[0]
    want = h5py_imaris(tmp_path / "a.ims", 0, (4, 1, 5, 70, 90))
    Path(facts.linked_files[0]).unlink()  # time point 0, which tells the chunks of all
    for t in (1, 2, 3):
        assert_same(view[t, 0], want[t, 0, 0])
    settle()
    assert since().n_failed == 2
    assert since().chunks_decoded == 0


def test_what_read_ahead_does_is_not_the_last_read(view: ChannelView) -> None:
    scroll(view, [0, 1])
    mine = hs.last_stats()
    settle()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(hs.last_stats).result() is mine


# --- the thread


def test_the_thread_ends_when_idle_and_comes_back(
    view: ChannelView, since: Since, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_IDLE_S", 0.01)
    for planes in ([0, 1], [20, 19]):
        scroll(view, planes, patient=True)
        give_up = time.monotonic() + 10
        while threads_ahead():
            assert time.monotonic() < give_up, "the thread does not end"
            time.sleep(0.005)
    assert since().chunks_decoded + len(threads_ahead()) == PER_SLAB
    cache.forget()
    scroll(view, [20], patient=True)
    assert since().chunks_decoded == 2 * PER_SLAB


def test_the_thread_can_be_stopped_and_scrolling_starts_it_again(
    view: ChannelView, since: Since
) -> None:
    stop_read_ahead()  # none there
    scroll(view, [0, 1], patient=True)
    (thread,) = threads_ahead()
    assert thread.daemon
    stop_read_ahead()
    assert not thread.is_alive()
    stop_read_ahead()
    assert scroll(view, range(2, N_PLANES), patient=True) == 0
    assert since() == ReadAheadStats(chunks_decoded=8, chunks_used=8)


def test_stopping_gives_up_what_is_not_decoded(view: ChannelView, since: Since) -> None:
    with nothing_begins(view):
        scroll(view, [0, 1])
        stop_read_ahead()
        assert since() == ReadAheadStats(slabs_dropped=1)
    assert threads_ahead() == []


def test_a_thread_that_cannot_be_started_is_done_without(
    view: ChannelView,
    since: Since,
    values: np.ndarray[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    configure(threads=1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for z in range(3):
            assert_same(view[z], values[z])
    assert since().slabs_waiting == 0


def test_several_threads_at_once(path: Path, since: Since, values: np.ndarray[Any, Any]) -> None:
    """Two views scroll both ways from four threads; whoever needs a chunk, it is decoded once."""
    views = [view_of(path), view_of(path)]
    start = threading.Barrier(4)

    def run(number: int) -> int:
        start.wait()
        n = 0
        for z in range(N_PLANES)[:: 1 if number < 2 else -1]:
            assert_same(views[number % 2][z], values[z])
            n += hs.last_stats().chunks_decoded
        return n

    with ThreadPoolExecutor(4) as pool:
        by_reads = sum(pool.map(run, range(4)))
    settle()
    assert by_reads + since().chunks_decoded == N_SLABS * PER_SLAB


def _in_a_child(view: ChannelView, sender: Any) -> None:
    configure(cache_nbytes=64 << 20)
    before = read_ahead_stats()
    view[24]  # from 23: a step on
    by_reads = [hs.last_stats().chunks_decoded]
    for z in (23, *range(22, -1, -1)):
        view[z]
        settle()
        by_reads.append(hs.last_stats().chunks_decoded)
    sender.send((before, by_reads, view[0].tobytes(), read_ahead_stats()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_scrolls_on_its_own(
    view: ChannelView, values: np.ndarray[Any, Any], method: str
) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system has no {method}")
    scroll(view, [20, 21, 22, 23])  # a thread may be at work while the child is made
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_in_a_child, args=(view, sender))
    child.start()
    sender.close()
    with receiver:
        assert receiver.poll(60), "the child does not answer"
        before, by_reads, last, after = receiver.recv()
    child.join(60)
    assert child.exitcode == 0
    assert before == ReadAheadStats()
    assert last == values[0].tobytes()
    # A child has none of its parent's chunks: the slab at hand it reads, the one before it gets.
    assert sum(by_reads[:2]) == sum(by_reads) == PER_SLAB
    assert after.chunks_used == PER_SLAB
    assert scroll(view, range(24, 32)) == 0


# --- volumes


@pytest.mark.parametrize(
    ("budget_nbytes", "want"),
    [(1 << 40, 0), (5 * 70 * 90 * 2, 0), (5 * 70 * 90 * 2 - 1, 1), (5 * 35 * 45 * 2, 1), (0, 1)],
)
def test_the_level_of_a_volume(tmp_path: Path, budget_nbytes: int, want: int) -> None:
    make_imaris(tmp_path / "a.ims", shape=(2, 2, 5, 70, 90), chunks=(4, 32, 32), levels=2)
    image = hs.open_image(tmp_path / "a.ims")
    assert volume_level(image, budget_nbytes) == want
    assert volume_level(image.levels, budget_nbytes) == want
    assert volume_level(channel_views(image, 1), budget_nbytes) == want


def test_the_level_of_a_volume_without_axes_in_space(tmp_path: Path) -> None:
    image = hs.open_image(
        written(tmp_path / "a.h5", np.zeros((3, 8, 9), "u1"), None), "x", axes="TAB"
    )
    assert volume_level(image, 72) == volume_level(image, 71) == 0
