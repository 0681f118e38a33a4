"""What a viewer is doing, told from two requests; what to decode ahead, and how much to keep."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.engine import limits as engine_limits
from hyperslab.engine.limits import configure, limits
from hyperslab.selection import Axis, Range, select
from hyperslab.viewing import budget, ensure_cache
from hyperslab.viewing.moves import Move, move_between, slab_nbytes, slab_pieces

SHAPE = (9, 20, 30)


@pytest.mark.parametrize(
    ("before", "after", "want"),
    [
        (np.s_[3], np.s_[4], Move(axis=0, before=3, after=4)),
        (np.s_[3, 2:9], np.s_[1, 2:9], Move(axis=0, before=3, after=1)),
        (np.s_[:, 7, ::-2], np.s_[:, 8, ::-2], Move(axis=1, before=7, after=8)),
        (np.s_[3, 4], np.s_[3, 9], Move(axis=1, before=4, after=9)),
        (np.s_[3], np.s_[3], None),
        (np.s_[3, 4], np.s_[4, 5], None),
        (np.s_[3, 2:9], np.s_[4, 2:8], None),
        (np.s_[3, 2:9], np.s_[4, 2], None),
        (np.s_[3, ::2], np.s_[4, ::-2], None),
        (np.s_[3, [1, 2]], np.s_[4, [1, 2]], None),
        (np.s_[3:4], np.s_[4:5], None),
    ],
    ids=str,
)
def test_one_index_moved_or_something_else_did(before: object, after: object, want: object) -> None:
    assert move_between(select(before, SHAPE).axes, select(after, SHAPE).axes) == want


def test_before_the_first_request_nothing_moved() -> None:
    assert move_between((), select(np.s_[3], SHAPE).axes) is None


def _touched(axes: tuple[Axis, ...], chunks: tuple[int, ...]) -> set[tuple[int, ...]]:
    """Coordinates of the chunks that hold an element of a request, by trying every element."""
    along = []
    for axis, length in zip(axes, chunks, strict=True):
        if isinstance(axis, Range):
            indices = [axis.start + axis.step * i for i in range(axis.size)]
        else:
            assert isinstance(axis, int)
            indices = [axis]
        along.append({i // length for i in indices})
    return set(product(*along))


@st.composite
def requests(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], object]:
    """Draw a shape, a chunk shape and an index of integers and slices."""
    n = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 30)) for _ in range(n))
    chunks = tuple(draw(st.integers(1, extent)) for extent in shape)
    index = tuple(
        draw(st.integers(0, extent - 1) | st.slices(extent).filter(lambda s: s.step != 0))
        for extent in shape
    )
    return shape, chunks, index


@given(request=requests(), itemsize=st.sampled_from([1, 2, 100_000, 10_000_000]))
def test_pieces_touch_the_chunks_of_the_request_each_once(
    request: tuple[tuple[int, ...], tuple[int, ...], object], itemsize: int
) -> None:
    shape, chunks, index = request
    whole = select(index, shape)
    if whole.size == 0:
        assert slab_nbytes(whole.axes, chunks, itemsize) == 0
        return
    chunk_nbytes = math.prod(chunks) * itemsize
    pieces = list(slab_pieces(whole.axes, chunks, itemsize))
    touched = Counter[tuple[int, ...]]()
    for piece in pieces:
        found = _touched(piece.axes, chunks)
        assert len(found) == 1 or len(found) * chunk_nbytes <= 2 << 20
        touched.update(found)
        kept = [axis for axis in piece.axes if isinstance(axis, Range)]
        assert piece.shape == tuple(axis.size for axis in kept)
        assert [axis.out for axis in kept] == list(range(len(kept)))
        assert all(axis.step > 0 for axis in kept)
    assert set(touched) == _touched(whole.axes, chunks)
    assert set(touched.values()) == {1}
    assert sum(math.prod(piece.shape) for piece in pieces) == whole.size
    # Steps longer than a chunk pass some over; all of them count, which errs on the safe side.
    assert slab_nbytes(whole.axes, chunks, itemsize) >= len(touched) * chunk_nbytes
    steps = [abs(axis.step) if isinstance(axis, Range) else 1 for axis in whole.axes]
    if all(step <= n for step, n in zip(steps, chunks, strict=True)):
        assert slab_nbytes(whole.axes, chunks, itemsize) == len(touched) * chunk_nbytes


# --- the budget


@pytest.fixture
def at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 40 GB free, where nobody has configured anything."""
    monkeypatch.delenv("HYPERSLAB_CACHE_MB", raising=False)
    monkeypatch.setattr(budget, "memory_at_hand", lambda: 40_000_000_000)
    monkeypatch.setattr(limits, "cache_nbytes", engine_limits.default_cache_nbytes())


@pytest.mark.usefixtures("at_hand")
def test_the_budget_is_raised_up_to_a_quarter_of_what_is_free_and_never_lowered() -> None:
    assert ensure_cache(2_000_000_000) == limits.cache_nbytes == 2_000_000_000
    assert ensure_cache(3_000_000_000) == limits.cache_nbytes == 3_000_000_000
    assert ensure_cache(1) == limits.cache_nbytes == 3_000_000_000
    assert ensure_cache(99_000_000_000) == limits.cache_nbytes == 10_000_000_000


@pytest.mark.usefixtures("at_hand")
def test_the_budget_is_not_lowered_where_little_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    default = limits.cache_nbytes
    monkeypatch.setattr(budget, "memory_at_hand", lambda: 4000)
    assert ensure_cache(default + 1) == limits.cache_nbytes == default


@pytest.mark.usefixtures("at_hand")
def test_a_configured_budget_is_left_alone() -> None:
    configure(cache_nbytes=1000)
    assert ensure_cache(2_000_000_000) == limits.cache_nbytes == 1000


@pytest.mark.usefixtures("at_hand")
def test_a_budget_configured_after_it_was_raised_is_left_alone() -> None:
    ensure_cache(2_000_000_000)
    configure(cache_nbytes=1_500_000_000)
    assert ensure_cache(2_500_000_000) == limits.cache_nbytes == 1_500_000_000


@pytest.mark.usefixtures("at_hand")
def test_the_environments_budget_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    default = limits.cache_nbytes
    monkeypatch.setenv("HYPERSLAB_CACHE_MB", str(default >> 20))
    assert ensure_cache(2_000_000_000) == limits.cache_nbytes == default
