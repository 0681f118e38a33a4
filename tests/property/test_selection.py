"""`select` and `compose` against NumPy, which has the last word on what an index means."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hyperslab.errors import SelectionError
from hyperslab.selection import Range, Selection, compose, select, select_all
from tests.property.strategies import budget, indices, junk_indices, shapes

Array = np.ndarray[Any, Any]


def numbered(shape: tuple[int, ...]) -> Array:
    """An array in which every element is told from every other."""
    return np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)


def carry_out(selection: Selection, source: Array) -> Array:
    """Do what a selection says, straight from its definition."""
    tables = []
    for entry in selection.axes:
        shape = [1] * len(selection.shape)
        if isinstance(entry, int):
            table = np.array(entry)
        elif isinstance(entry, Range):
            table = entry.start + entry.step * np.arange(entry.size)
            shape[entry.out] = entry.size
        else:
            assert entry.index.dtype == np.int64
            assert list(entry.out) == sorted(set(entry.out))
            table = entry.index
            for axis, length in zip(entry.out, entry.index.shape, strict=True):
                shape[axis] = length
        tables.append(table.reshape(shape))
    return np.broadcast_to(source[tuple(tables)], selection.shape)


def check_in_bounds(selection: Selection, shape: tuple[int, ...]) -> None:
    """Nothing downstream checks again, so no index may be negative or too large."""
    for entry, extent in zip(selection.axes, shape, strict=True):
        if isinstance(entry, int):
            assert 0 <= entry < extent
        elif isinstance(entry, Range):
            assert entry.step != 0
            if entry.size:
                last = entry.start + (entry.size - 1) * entry.step
                assert min(entry.start, last) >= 0
                assert max(entry.start, last) < extent
        elif entry.index.size:
            assert entry.index.min() >= 0
            assert entry.index.max() < extent


def ask_numpy(source: Array, index: Any) -> Array | None:
    """NumPy's answer; None where it refuses."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return np.asarray(source[index])
    except (IndexError, ValueError, TypeError, OverflowError, DeprecationWarning):
        # A zero step is a ValueError there, a bound that is no integer a TypeError, a huge number
        # an OverflowError; here each is a SelectionError. An index out of bounds in an otherwise
        # empty result is deprecated there and refused here.
        return None


@st.composite
def shape_and_index(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    shape = draw(shapes())
    return shape, draw(indices(shape))


@settings(max_examples=budget(6))
@given(shape_and_index())
@example(((3,), np.array([2**64 - 1], np.uint64)))
@example(((2, 3), (True, 1)))
@example(((2, 3), (False, [0, 1])))
@example(((4, 5, 6), ([0, 1], slice(None), [2, 3])))
@example(((4, 5, 6), (0, slice(None), [2, 3])))
@example(((4, 5, 6), ([0, 1], 3, slice(None, None, -1))))
@example(((4, 5), np.eye(4, 5) > 0))
@example(((), True))
@example(((), (None, Ellipsis, None)))
@example(((0, 3), np.zeros((0, 3), np.bool_)))
def test_select_means_what_numpy_means(case: tuple[tuple[int, ...], Any]) -> None:
    shape, index = case
    source = numbered(shape)
    want = ask_numpy(source, index)
    if want is None:
        with pytest.raises(SelectionError):
            select(index, shape)
        return
    found = select(index, shape)
    assert found.shape == want.shape
    assert found.size == want.size
    check_in_bounds(found, shape)
    np.testing.assert_array_equal(carry_out(found, source), want, strict=True)


@settings(max_examples=budget(4))
@given(shapes(max_ndim=3, max_side=4), junk_indices())
def test_select_refuses_what_numpy_refuses(shape: tuple[int, ...], index: Any) -> None:
    source = numbered(shape)
    want = ask_numpy(source, index)
    if want is None:
        with pytest.raises(SelectionError) as caught:
            select(index, shape)
        assert isinstance(caught.value, IndexError)
        assert str(caught.value)
    else:
        np.testing.assert_array_equal(carry_out(select(index, shape), source), want, strict=True)


@st.composite
def shape_and_indices(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Any]]:
    """An index, one of its result, and so on."""
    shape = draw(shapes())
    chain: list[Any] = []
    part = numbered(shape)
    for _ in range(draw(st.integers(2, 4))):
        index = draw(indices(part.shape))
        result = ask_numpy(part, index)
        if result is None or result.ndim > 6:
            continue
        part = result
        chain.append(index)
    return shape, chain


@settings(max_examples=budget(4))
@given(shape_and_indices())
@example(((3,), [None, [0, 0, -1]]))
@example(((), [None, [0, 0]]))
@example(((4, 2), [([[2, 1, 1]],), ([[0, 0, 0]],)]))
def test_compose_is_indexing_twice(case: tuple[tuple[int, ...], list[Any]]) -> None:
    shape, chain = case
    source = numbered(shape)
    want: Any = source
    found = select_all(shape)
    for index in chain:
        want = np.asarray(want[index])
        found = compose(found, index)
        assert found.shape == want.shape
        check_in_bounds(found, shape)
        np.testing.assert_array_equal(carry_out(found, source), want, strict=True)


@settings(max_examples=budget(1))
@given(shape_and_index(), junk_indices())
def test_compose_refuses_what_numpy_refuses(case: tuple[tuple[int, ...], Any], junk: Any) -> None:
    shape, index = case
    first = ask_numpy(numbered(shape), index)
    if first is None:
        return
    outer = select(index, shape)
    want = ask_numpy(first, junk)
    if want is None:
        with pytest.raises(SelectionError):
            compose(outer, junk)
    else:
        found = carry_out(compose(outer, junk), numbered(shape))
        np.testing.assert_array_equal(found, want, strict=True)


@given(st.integers(0, 40), st.data())
def test_slices_become_ranges(extent: int, data: st.DataObject) -> None:
    """A slice must not turn into a table: ranges are what reads are fast for."""
    index = data.draw(indices((extent, extent), advanced=False))
    assert all(isinstance(entry, int | Range) for entry in select(index, (extent, extent)).axes)
