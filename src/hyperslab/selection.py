"""NumPy's indexing rules as arithmetic: an index and a shape in, a `Selection` out.

A selection says, for every axis of the source, where the elements of the result come from::

    result[r] = source[I0(r), I1(r), ...]

where each ``I`` is a constant, an arithmetic progression along one result axis, or a table over
one or more result axes. That form is closed under composition, so a view of a view is again one
selection, and no I/O happens until it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.errors import SelectionError

__all__ = ["Axis", "Points", "Range", "Selection", "compose", "select", "select_all"]


# Not frozen, any of these, though nothing ever changes one: a read makes several, and freezing
# would double what that costs.
@dataclass(slots=True)
class Range:
    """Source indices ``start + step * r`` for ``r`` along result axis `out`.

    Attributes
    ----------
    start, step, size
        First source index, stride (negative: backwards; never 0), number of elements.
    out
        The result axis, of length `size`.
    """

    start: int
    step: int
    size: int
    out: int


@dataclass(slots=True, eq=False)
class Points:
    """Source indices from a table over the result axes `out`.

    Attributes
    ----------
    index
        int64, non-negative, one dimension per entry of `out`; a dimension of length 1 broadcasts.
    out
        Result axes, increasing.
    """

    index: NDArray[np.int64]
    out: tuple[int, ...]


Axis = int | Range | Points


@dataclass(slots=True, eq=False)
class Selection:
    """A normalised index.

    Attributes
    ----------
    shape
        Shape of the result.
    axes
        One entry per source axis: a constant index, a `Range` or `Points`. A result axis that no
        entry names is a new axis of length 1.
    plain
        True if it is known to have neither new axes, nor tables, nor backward ranges.
    """

    shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    plain: bool = False

    @property
    def size(self) -> int:
        """Number of elements of the result."""
        n = 1
        for extent in self.shape:
            n *= extent
        return n


def select_all(shape: tuple[int, ...]) -> Selection:
    """Return the selection of a whole array of `shape`."""
    return Selection(shape, tuple(Range(0, 1, n, i) for i, n in enumerate(shape)))


def select(index: Any, shape: tuple[int, ...]) -> Selection:
    """Normalise `index`, anything that NumPy takes between brackets, for an array of `shape`.

    Parameters
    ----------
    index
        Integer, slice, ellipsis, None, boolean mask, integer array or list, or a tuple of these.
    shape
        Shape of the indexed array.

    Returns
    -------
    Selection
        Whose `shape` is what NumPy would give.

    Raises
    ------
    SelectionError
        Out of bounds, too many indices, a mask of the wrong shape, an index of the wrong type.

    Notes
    -----
    Cost: microseconds for basic indices; for masks and lists, a few passes over them.
    """
    items = index if type(index) is tuple else (index,)
    return _select_basic(items, shape) or _select_advanced(items, shape)


def _select_basic(items: tuple[Any, ...], shape: tuple[int, ...]) -> Selection | None:
    """Integers, slices, ellipsis and None; None if `items` hold anything else."""
    n_used = 0
    has_ellipsis = False
    for item in items:
        kind = type(item)
        if kind is slice or kind is int:
            n_used += 1
        elif item is Ellipsis:
            if has_ellipsis:
                raise SelectionError("an index can hold only one ellipsis ('...')")
            has_ellipsis = True
        elif item is not None:
            if not isinstance(item, np.integer):
                return None
            n_used += 1
    if n_used > len(shape):
        raise _too_many(n_used, shape)
    axes: list[Axis] = []
    out: list[int] = []
    plain = True
    for item in items if has_ellipsis else (*items, Ellipsis):
        if item is None:
            plain = False
            out.append(1)
        elif item is Ellipsis:
            for n in shape[len(axes) : len(axes) + len(shape) - n_used]:
                axes.append(Range(0, 1, n, len(out)))
                out.append(n)
        elif type(item) is slice:
            entry = _range(item, shape[len(axes)], len(out))
            plain = plain and entry.step > 0
            axes.append(entry)
            out.append(entry.size)
        else:
            axes.append(_wrap(int(item), len(axes), shape))
    return Selection(tuple(out), tuple(axes), plain)


def _range(item: slice, extent: int, out: int) -> Range:
    try:
        start, stop, step = item.indices(extent)
    except (TypeError, ValueError) as error:
        raise SelectionError(f"{item}: {error}") from None
    return Range(start, step, len(range(start, stop, step)), out)


def _wrap(item: int, axis: int, shape: tuple[int, ...]) -> int:
    extent = shape[axis]
    if not -extent <= item < extent:
        raise SelectionError(
            f"index {item} is out of bounds for axis {axis} with size {extent} (shape {shape})"
        )
    return item + extent if item < 0 else item


def _too_many(n_used: int, shape: tuple[int, ...]) -> SelectionError:
    return SelectionError(
        f"too many indices: {n_used} were given for an array of {len(shape)} axes (shape {shape})"
    )


def _as_index_array(item: Any) -> NDArray[Any]:
    try:
        array = np.asarray(item)
    except ValueError as error:  # lists of different lengths
        raise SelectionError(f"an index array must be regular: {error}") from None
    if array.size == 0 and not isinstance(item, np.ndarray):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iub":
        raise SelectionError(
            f"an index must be integers, slices, '...', None, or integer or boolean arrays, "
            f"not {type(item).__name__} with elements of {array.dtype}"
        )
    return array


def _select_advanced(items: tuple[Any, ...], shape: tuple[int, ...]) -> Selection:
    """NumPy's advanced indexing: arrays and masks, which broadcast with one another."""
    parts, n_used = _parse(items, shape)
    advanced: list[tuple[int | None, NDArray[np.int64]]] = []  # (source axis, index table)
    basic: list[tuple[int | None, Any]] = []  # (source axis, slice), or (None, None) = new axis
    first = last = -1  # positions of the first and last advanced item
    n_basic_before = 0
    axis = 0
    for position, part in enumerate(parts):
        if part is None:
            basic.append((None, None))
        elif part is Ellipsis:
            for _ in range(len(shape) - n_used):
                basic.append((axis, slice(None)))
                axis += 1
        elif isinstance(part, slice):
            basic.append((axis, part))
            axis += 1
        else:
            if first < 0:
                first, n_basic_before = position, len(basic)
            last = position
            for table in part:
                if table is _NO_AXIS_HIT or table is _NO_AXIS_MISS:
                    advanced.append((None, table))
                    continue
                advanced.append((axis, _check_bounds(table, axis, shape)))
                axis += 1
    try:
        joint = np.broadcast_shapes(*(table.shape for _, table in advanced))
    except ValueError:
        shapes = ", ".join(str(table.shape) for _, table in advanced)
        raise SelectionError(f"index arrays of shapes {shapes} do not broadcast together") from None
    adjacent = all(isinstance(p, list) for p in parts[first : last + 1])
    at = n_basic_before if adjacent else 0
    entries: dict[int, Axis] = {}
    out: list[int] = []
    for i, (source, item) in enumerate(basic):
        if i == at:
            out.extend(joint)
        if source is None:
            out.append(1)
        else:
            entry = _range(item, shape[source], len(out))
            entries[source] = entry
            out.append(entry.size)
    if at == len(basic):
        out.extend(joint)
    for source, table in advanced:
        if source is None:
            continue
        # The table's own dimensions are the last ones of the broadcast shape.
        own = range(at + len(joint) - table.ndim, at + len(joint))
        entries[source] = _points(table, tuple(own))
    return Selection(tuple(out), tuple(entries[i] for i in range(len(shape))))


# A boolean scalar indexes no axis; it adds a result axis of length 1 (True) or 0 (False).
_NO_AXIS_HIT = np.zeros(1, np.int64)
_NO_AXIS_MISS = np.zeros(0, np.int64)


def _parse(items: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[list[Any], int]:
    """Turn masks into integer tables; return the parts and how many source axes they use.

    A part is None, Ellipsis, a slice, or a list of integer tables.
    """
    parts: list[Any] = []
    n_used = 0
    for item in items:
        if item is None or item is Ellipsis:
            if item is Ellipsis and any(p is Ellipsis for p in parts):
                raise SelectionError("an index can hold only one ellipsis ('...')")
            parts.append(item)
        elif isinstance(item, slice):
            parts.append(item)
            n_used += 1
        else:
            array = _as_index_array(item)
            if array.dtype != np.bool_:
                parts.append([array.astype(np.int64, copy=False)])
                n_used += 1
            elif array.ndim == 0:
                parts.append([_NO_AXIS_HIT if array else _NO_AXIS_MISS])
            else:
                parts.append([array])  # resolved below, once its axis is known
                n_used += array.ndim
    if n_used > len(shape):
        raise _too_many(n_used, shape)
    if not any(p is Ellipsis for p in parts):
        parts.append(Ellipsis)
    axis = 0
    for i, part in enumerate(parts):
        if part is Ellipsis:
            axis += len(shape) - n_used
        elif isinstance(part, slice):
            axis += 1
        elif part is not None:
            array = part[0]
            if array is _NO_AXIS_HIT or array is _NO_AXIS_MISS:
                continue
            if array.dtype == np.bool_:
                want = shape[axis : axis + array.ndim]
                if array.shape != want:
                    raise SelectionError(
                        f"a boolean mask of shape {array.shape} does not fit axes {axis} to "
                        f"{axis + array.ndim - 1} of shape {want}"
                    )
                parts[i] = list(array.nonzero())
                axis += array.ndim
            else:
                axis += 1
    return parts, n_used


def _check_bounds(table: NDArray[np.int64], axis: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    extent = shape[axis]
    if table.size == 0:
        return table
    low, high = int(table.min()), int(table.max())
    if low < -extent or high >= extent:
        bad = high if high >= extent else low
        raise SelectionError(
            f"index {bad} is out of bounds for axis {axis} with size {extent} (shape {shape})"
        )
    return np.where(table < 0, table + extent, table) if low < 0 else table


def _points(table: NDArray[np.int64], out: tuple[int, ...]) -> Axis:
    return int(table) if table.ndim == 0 else Points(table, out)


def compose(outer: Selection, index: Any) -> Selection:
    """Return the selection that equals `outer` followed by ``[index]`` on its result.

    Raises
    ------
    SelectionError
        As `select` does, for ``outer.shape``.
    """
    inner = select(index, outer.shape)
    axes: list[Axis] = []
    for entry in outer.axes:
        if isinstance(entry, int):
            axes.append(entry)
        elif isinstance(entry, Range):
            axes.append(_compose_range(entry, inner.axes[entry.out]))
        else:
            axes.append(_compose_points(entry, inner))
    return Selection(inner.shape, tuple(axes))


def _compose_range(outer: Range, inner: Axis) -> Axis:
    if isinstance(inner, int):
        return outer.start + inner * outer.step
    if isinstance(inner, Range):
        start = outer.start + inner.start * outer.step
        return Range(start, outer.step * inner.step, inner.size, inner.out)
    return Points(outer.start + inner.index * outer.step, inner.out)


def _compose_points(outer: Points, inner: Selection) -> Axis:
    entries = [
        0 if length == 1 else inner.axes[axis]  # a broadcast dimension stays one
        for axis, length in zip(outer.out, outer.index.shape, strict=True)
    ]
    used: set[int] = set()
    for entry in entries:
        if isinstance(entry, Range):
            used.add(entry.out)
        elif isinstance(entry, Points):
            used.update(entry.out)
    out = tuple(sorted(used))
    tables: list[Any] = []
    for entry in entries:
        if isinstance(entry, int):
            tables.append(entry)
            continue
        if isinstance(entry, Range):
            table = entry.start + entry.step * np.arange(entry.size)
            own: tuple[int, ...] = (entry.out,)
        else:
            table, own = entry.index, entry.out
        lengths = iter(table.shape)
        tables.append(table.reshape([next(lengths) if axis in own else 1 for axis in out]))
    # An empty result keeps the axes that made it empty, so that shapes still agree.
    found = outer.index[tuple(tables)]
    if found.ndim == 0:
        return int(found) if not out else Points(found.reshape((1,) * len(out)), out)
    return Points(found, out)
