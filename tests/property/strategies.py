"""What the property tests draw: shapes, NumPy indices, and recipes of datasets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import assume, settings
from hypothesis import strategies as st

__all__ = ["budget", "indices", "junk_indices", "shapes"]


def budget(share: float) -> int:
    """Return a number of examples: `share` of what the loaded profile gives a test."""
    return max(1, round(share * settings.default.max_examples))


def shapes(*, max_ndim: int = 4, max_side: int = 7) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes from 0-d on; sides of length 0 are rare, since little can go wrong there."""
    side = st.one_of(st.integers(1, max_side), st.integers(1, max_side), st.integers(0, 2))
    return st.lists(side, max_size=max_ndim).map(tuple)


# --- indices -------------------------------------------------------------------------------------

_INTEGER_TYPES = [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64]


def _slices(extent: int) -> st.SearchStrategy[slice]:
    bound = st.none() | st.integers(-extent - 2, extent + 2)
    step = st.sampled_from([None, 1, 1, 2, 3, -1, -1, -2, -5, 9])
    return st.builds(slice, bound, bound, step)


@st.composite
def _tables(draw: st.DrawFn, extent: int, joint: tuple[int, ...]) -> Any:
    """Integer indices of one axis, of a shape that broadcasts to `joint`."""
    shape = [draw(st.sampled_from([n, n, 1])) for n in joint]
    shape = shape[draw(st.sampled_from([0, 0, len(shape)])) :]
    size = math.prod(shape)
    if extent == 0 and size:
        shape, size = [0], 0
    kind = draw(st.sampled_from(_INTEGER_TYPES))
    low = 0 if np.issubdtype(kind, np.unsignedinteger) else -extent
    entry = st.integers(low, extent - 1) if extent else st.nothing()
    some = draw(st.lists(entry, min_size=size, max_size=size))
    table = np.array(some, kind).reshape(shape)
    form = draw(st.sampled_from(["array", "list", "list", "swapped", "strided"]))
    if form == "list":
        return table.tolist()
    if form == "swapped":
        return table.astype(table.dtype.newbyteorder())
    return np.repeat(table, 2, axis=-1)[..., ::2] if form == "strided" and table.ndim else table


@st.composite
def _masks(draw: st.DrawFn, extents: tuple[int, ...], joint: tuple[int, ...] | None) -> Any:
    """A mask over some axes; with as many hits as `joint` has room for, where that is given."""
    size = math.prod(extents)
    bits = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), np.bool_)
    if joint is not None:
        n = draw(st.sampled_from([joint[-1], 1])) if joint else 1
        bits[:] = False
        bits[draw(st.permutations(range(size)))[:n]] = True
    mask = bits.reshape(extents)
    return mask.tolist() if draw(st.booleans()) and size else mask


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...], *, advanced: bool = True) -> Any:
    """Whatever NumPy takes between brackets for an array of `shape`; nearly always in bounds.

    With `advanced` False, only integers, slices, ellipsis and None.
    """
    fancy = advanced and draw(st.booleans())
    joint: tuple[int, ...] | None = None
    items: list[Any] = []
    kinds = ["slice", "slice", "integer", "rest", "new", "stop"]
    if fancy:
        kinds += ["table", "table", "table", "mask", "bool"]
    axis = 0
    has_ellipsis = False
    for _ in range(len(shape) + 3):
        kind = draw(st.sampled_from(kinds))
        if kind == "stop":
            break
        if kind == "new":
            items.append(None)
        elif kind == "rest" and not has_ellipsis:
            has_ellipsis = True
            items.append(Ellipsis)
            axis += draw(st.integers(0, len(shape) - axis))
        elif kind == "bool":
            items.append(draw(st.sampled_from([True, True, np.True_, np.array(True), False])))
        elif axis == len(shape):
            continue
        elif kind == "slice":
            items.append(draw(_slices(shape[axis])))
            axis += 1
        elif kind == "integer" and shape[axis]:
            number = draw(st.integers(-shape[axis], shape[axis] - 1))
            items.append(draw(st.sampled_from([int, np.int16, np.int64]))(number))
            axis += 1
        elif kind == "table":
            if joint is None:
                joint = tuple(draw(st.lists(st.integers(0, 4), max_size=2)))
            items.append(draw(_tables(shape[axis], joint)))
            axis += 1
        elif kind == "mask":
            extents = shape[axis : axis + draw(st.integers(1, len(shape) - axis))]
            mask = draw(_masks(extents, joint if math.prod(extents) else None))
            if joint is None:
                joint = (int(np.count_nonzero(mask)),)
            items.append(mask)
            axis += len(extents)
    if has_ellipsis:
        # The axes that the ellipsis was meant to skip are those that nothing else takes.
        items += [draw(_slices(extent)) for extent in shape[axis:]]
    index = items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)
    try:
        np.broadcast_to(np.False_, shape)[index]
    except IndexError:
        assume(False)  # arrays that do not broadcast; `junk_indices` has enough of these
    return index


def junk_indices() -> st.SearchStrategy[Any]:
    """Indices that often do not fit: the right answer is mostly an error."""
    item = st.one_of(
        st.integers(-9, 9),
        st.sampled_from(
            [10**30, -(10**30), 2**63, 1.0, "a", b"b", 1j, {}, object(), np.float32(0)]
        ),
        st.builds(slice, st.none() | st.integers(-9, 9), st.none(), st.sampled_from([None, 0, -1])),
        st.sampled_from([slice(1.5), slice("a"), slice(None, None, 0.5), Ellipsis, Ellipsis, None]),
        st.lists(st.integers(-9, 9), max_size=3),
        st.lists(st.booleans(), max_size=3),
        st.sampled_from(
            [
                [],
                [[]],
                np.zeros(0),
                np.zeros((0, 2), bool),
                np.zeros((2, 0), int),
                np.ones((2, 2), bool),
                [1.5],
                ["a"],
                [None],
                [[1, 2], [3]],
                np.array(2.0),
                np.array([2**64 - 1], np.uint64),
                np.array([2**63], np.uint64),
                True,
                np.bool_(False),
                (0,),
                np.datetime64("2020-01-01"),
            ]
        ),
    )
    return item | st.lists(item, max_size=5).map(tuple)
