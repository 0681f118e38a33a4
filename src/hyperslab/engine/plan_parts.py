"""Planning for nodes made of other nodes: virtual datasets, and grids of datasets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.builder import Builder
from hyperslab.engine.node import Grid, Mosaic, Node, library_node
from hyperslab.engine.plan import Scatter
from hyperslab.errors import DamagedFileError
from hyperslab.grid import Pieces, cut, grid_strides
from hyperslab.index.records import Mapping
from hyperslab.selection import Axis, Points, Range, Selection

__all__ = ["add_grid", "add_mosaic"]

Array = NDArray[Any]

_MOST_NESTED = 16  # virtual datasets of virtual datasets


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A part of one axis group: `src` per axis of the child, `dst` per result axis `out`.

    Indices are integers and slices, or (if `tables`) tables of one length.
    """

    src: list[tuple[int, Any]]
    out: tuple[int, ...]
    dst: tuple[Any, ...]
    tables: bool


def _restrict(
    parts: list[_Part], constants: dict[int, int], dest: Array
) -> tuple[Selection, Array, Scatter | None]:
    """Return a part of a request as a request to a child of its own.

    Where it lands on a regular part of `dest`, that part is its destination; where tables spread
    it, memory of its own is, together with the `Scatter` that moves it from there.
    """
    entries: dict[int, Axis] = dict(constants)
    places: dict[int, Any] = {}
    for part in parts:
        places.update(zip(part.out, part.dst, strict=True))
    tied = [part for part in parts if part.tables]
    spread = [axis for part in tied for axis in part.out]
    kept = [axis for axis in range(dest.ndim) if axis not in spread]
    # Where only the outer axes are indexed by tables, all their entries are the same child: it is
    # read once, and the scatter repeats it.
    shape = [len(part.dst[0]) if part.src else 1 for part in tied]
    shape += [len(range(*places[axis].indices(dest.shape[axis]))) for axis in kept]
    for i, part in enumerate(tied):
        for axis, table in part.src:
            entries[axis] = Points(np.asarray(table, np.int64), (i,))
    for part in parts:
        if part.tables:
            continue
        out = len(tied) + kept.index(part.out[0]) if part.out else -1
        for axis, src in part.src:
            if isinstance(src, slice):
                size = len(range(src.start, src.stop, src.step or 1))
                entries[axis] = Range(src.start, src.step or 1, size, out)
            else:
                entries[axis] = int(src)
    selection = Selection(tuple(shape), tuple(entries[axis] for axis in sorted(entries)))
    slices = tuple(places[axis] for axis in kept)
    if not tied:
        return selection, dest[(*slices, ...)], None
    own = np.empty(shape, dest.dtype)
    tables = []
    for i, part in enumerate(tied):
        lead = [1] * len(tied)
        lead[i] = -1
        tables += [table.reshape(lead) for table in part.dst]
    moved = np.moveaxis(dest, spread, range(len(spread)))
    return selection, own, Scatter(moved, (*tables, *slices), own)


def _add_child(
    builder: Builder, node: Node, parts: list[_Part], constants: dict[int, int], dest: Array
) -> None:
    selection, part, scatter = _restrict(parts, constants, dest)
    builder.add_typed(node, *_in_axis_order(selection, part))
    if scatter is not None:
        builder.plan.scatters.append(scatter)


def _in_axis_order(selection: Selection, dest: Array) -> tuple[Selection, Array]:
    """Turn the destination so that ranges run along it in the order of the axes they come from."""
    outs = [entry.out for entry in selection.axes if isinstance(entry, Range)]
    if outs == sorted(outs):
        return selection, dest
    order = list(range(dest.ndim))
    for place, out in zip(sorted(outs), outs, strict=True):
        order[place] = out
    at = {out: place for place, out in enumerate(order)}
    axes = tuple(
        Range(e.start, e.step, e.size, at[e.out]) if isinstance(e, Range) else e
        for e in selection.axes
    )
    turned = dest.transpose(order)
    return Selection(turned.shape, axes), turned


def add_grid(builder: Builder, node: Grid, selection: Selection, dest: Array) -> None:
    """Add a selection of a grid of datasets: one request for each dataset that it meets."""
    n = node.n_outer
    cell = (1,) * n + node.shape[n:]
    strides = grid_strides(node.shape[:n]) + (0,) * (len(cell) - n)
    groups = cut(selection, node.shape, cell, strides)
    for position in np.ndindex(*(len(group.src) for group in groups)):
        number = 0
        parts: list[_Part] = []
        for group, i in zip(groups, position, strict=True):
            number += group.number[i]
            src = [
                (node.order[axis - n], index)
                for axis, index in zip(group.axes, group.src[i], strict=True)
                if axis >= n
            ]
            parts.append(_Part(src, group.out, group.dst[i], group.tables))
        child = node.child(number)
        if child is not None:
            _add_child(builder, child, parts, {}, dest)
            continue
        builder.plan.n_filled += 1
        _, part, scatter = _restrict(parts, {}, dest)
        builder.plan.fills.append((part, np.zeros((), dest.dtype)))
        if scatter is not None:
            builder.plan.scatters.append(scatter)


def add_mosaic(builder: Builder, node: Mosaic, selection: Selection, dest: Array) -> None:
    """Add a selection of a virtual dataset: fill, then a request for each mapping it meets."""
    builder.plan.fills.append((dest, node.index.fill))
    # One piece per axis group: the cell is the whole dataset.
    groups = cut(selection, node.shape, node.shape, (0,) * len(node.shape))
    low, high = _bounds(groups, len(node.shape))
    for i in np.flatnonzero(((node.high >= low) & (node.low <= high)).all(axis=1)).tolist():
        mapping = node.storage.mappings[i]
        if any(_intersect(group, mapping, None) is None for group in groups):
            continue
        if builder.depth >= _MOST_NESTED:
            raise DamagedFileError(
                f"{node.index.file}: virtual dataset {node.index.name} leads through "
                f"{_MOST_NESTED} others; it probably contains itself.",
                file=node.index.file,
                dataset=node.index.name,
            )
        child = node.open_source(mapping.file, mapping.dataset)
        if not np.can_cast(child.dtype, node.dtype, "safe"):
            # HDF5 converts in ways of its own (it clips, for one).
            builder.add(library_node(node.index), selection, dest)
            return
        if mapping.source is None:
            resolved = _whole_source(mapping, child.shape)
            if resolved is None:
                # Only element by element do the two sides agree: a matter for the HDF5 library.
                builder.add(library_node(node.index), selection, dest)
                return
            mapping = resolved
        if mapping.source is None or len(child.shape) != len(mapping.source):
            raise DamagedFileError(
                f"{node.index.file}: virtual dataset {node.index.name} expects "
                f"{len(mapping.follows)} axes of {mapping.dataset} in {mapping.file}, which has "
                f"shape {child.shape}.",
                file=mapping.file,
                dataset=mapping.dataset,
            )
        if not mapping.grows:
            _demand_room(node, mapping, child.shape)
        # Where the source has not grown that far (yet), beyond its end is fill.
        parts = [_intersect(group, mapping, child.shape) for group in groups]
        constants = {
            axis: int(mapping.source[axis][0])
            for axis, virtual in enumerate(mapping.follows)
            if virtual is None
        }
        found = [part for part in parts if part is not None]
        if len(found) < len(parts) or any(c >= child.shape[a] for a, c in constants.items()):
            continue
        builder.depth += 1
        _add_child(builder, child, found, constants, dest)
        builder.depth -= 1


def _demand_room(node: Mosaic, mapping: Mapping, shape: tuple[int, ...]) -> None:
    """Raise unless the source, of `shape`, has all that the mapping takes from it."""
    if all(table[-1] < n for table, n in zip(mapping.source or (), shape, strict=True)):
        return
    raise DamagedFileError(
        f"{node.index.file}: virtual dataset {node.index.name} takes more from "
        f"{mapping.dataset} in {mapping.file} than its shape {shape} has. The source was replaced "
        "or cut.",
        file=mapping.file,
        dataset=mapping.dataset,
    )


def _bounds(groups: list[Pieces], ndim: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the lowest and highest source index along each axis."""
    low, high = np.zeros(ndim, np.int64), np.zeros(ndim, np.int64)
    for group in groups:
        for axis, index in zip(group.axes, group.src[0], strict=True):
            if isinstance(index, slice):
                low[axis], high[axis] = index.start, index.stop - 1
            else:
                low[axis], high[axis] = np.min(index), np.max(index)
    return low, high


def _whole_source(mapping: Mapping, shape: tuple[int, ...]) -> Mapping | None:
    """Return `mapping`, which means all of its source, now that the source's `shape` is known.

    None if their axes do not correspond one to one.
    """
    longs = [axis for axis, table in enumerate(mapping.virtual) if table.size != 1]
    source_longs = [axis for axis, n in enumerate(shape) if n != 1]
    if len(longs) != len(source_longs) or any(
        mapping.virtual[i].size > shape[j] for i, j in zip(longs, source_longs, strict=True)
    ):
        return None
    follows: list[int | None] = [None] * len(shape)
    for i, j in zip(longs, source_longs, strict=True):
        follows[j] = i
    return replace(mapping, source=tuple(np.arange(n) for n in shape), follows=tuple(follows))


def _intersect(group: Pieces, mapping: Mapping, limit: tuple[int, ...] | None) -> _Part | None:
    """Return the part of an axis group that `mapping` supplies, as indices of its source.

    `limit` is the shape of the source, where that may be smaller than the mapping.
    """
    source = mapping.source or ()
    follower = {v: axis for axis, v in enumerate(mapping.follows) if v is not None}
    hit: NDArray[np.bool_] | None = None
    columns: list[tuple[int, NDArray[np.int64]]] = []
    for axis, index in zip(group.axes, group.src[0], strict=True):
        wanted = (
            np.arange(index.start, index.stop, index.step)
            if isinstance(index, slice)
            else np.atleast_1d(np.asarray(index, np.int64))
        )
        table = mapping.virtual[axis]
        position = np.minimum(np.searchsorted(table, wanted), table.size - 1)
        found = table[position] == wanted
        if axis in follower:
            column = source[follower[axis]][position]
            columns.append((follower[axis], column))
            if limit is not None:
                found &= column < limit[follower[axis]]
        hit = found if hit is None else hit & found
    if hit is None or not hit.any():
        return None
    if not group.out:
        return _Part([(axis, int(c[0])) for axis, c in columns], (), (), False)
    columns = [(axis, column[hit]) for axis, column in columns]
    if group.tables:
        dst = tuple(np.asarray(place)[hit] for place in group.dst[0])
        return _Part(list(columns), group.out, dst, True)
    places = np.flatnonzero(hit)
    slices = [_as_slice(places), *(_as_slice(column) for _, column in columns)]
    if all(s is not None for s in slices):
        src = [(axis, s) for (axis, _), s in zip(columns, slices[1:], strict=True)]
        return _Part(src, group.out, (slices[0],), False)
    return _Part(list(columns), group.out, (places,), True)


def _as_slice(table: NDArray[np.int64]) -> slice | None:
    """Return `table` as a slice with a positive step, if it is one."""
    first = int(table[0])
    if table.size == 1:
        return slice(first, first + 1, 1)
    step = int(table[1]) - first
    if step < 1 or (np.diff(table) != step).any():
        return None
    return slice(first, int(table[-1]) + 1, step)
