"""From requests to a `ReadPlan`: which bytes to fetch, and where their elements go.

Planning touches no data. Chunks are columns of NumPy arrays, sorted by file and byte offset; a
chunk that several requests of a batch need appears once, with several placements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.node import Cells, Flat, Grid, Mosaic, Node
from hyperslab.errors import DamagedFileError
from hyperslab.grid import Pieces, cut, grid_strides
from hyperslab.index.build import bad_entries
from hyperslab.index.records import ChunkTable, Fingerprint, Mapping
from hyperslab.selection import Axis, Points, Range, Selection

__all__ = ["Mapped", "ReadPlan", "Run", "Scatter", "Target", "plan_read"]

Array = NDArray[Any]

_GAP_NBYTES = 16 << 10  # fetching a hole this small costs less than another call
_SPAN_NBYTES = 1 << 20  # most bytes that one call fetches ahead of their decoding
_RUN_NBYTES = 16 << 10  # shorter contiguous runs are copied from a map, not fetched one by one
_PART_NBYTES = 1 << 20  # what is not in cells is cut into parts of this size, for the threads
_MOST_NESTED = 16  # virtual datasets of virtual datasets
_ALL_SKIPPED = 0xFFFFFFFF
_NONE = np.zeros(0, np.int64)
_ZERO = np.zeros(1, np.int64)
_NEVER = np.zeros(0, np.bool_)


@dataclass(slots=True, eq=False)
class Target:
    """One request for elements of a node that comes in cells.

    Attributes
    ----------
    node
        Where the elements come from.
    dest
        Where they go, in the node's native dtype (booleans as uint8).
    groups
        The axis groups of the selection, cut along the grid of cells.
    gather
        True if any group has index tables; else all are slices and integers, in axis order.
    file
        Number of the node's file among the plan's.
    """

    node: Cells
    dest: Array
    groups: list[Pieces]
    gather: bool
    file: int


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Contiguous bytes that go straight into contiguous memory.

    Attributes
    ----------
    node
        Whose they are.
    file
        Number of the file among the plan's.
    byte_offset
        From the start of the file.
    dest
        As long as the run.
    """

    node: Flat
    file: int
    byte_offset: int
    dest: Array


@dataclass(frozen=True, slots=True, eq=False)
class Mapped:
    """Elements picked out of a dataset that lies in one piece, through a memory map.

    Attributes
    ----------
    node
        Where the elements come from.
    file
        Number of the file among the plan's; -1 where the node holds its data itself.
    byte_offset
        Of the dataset's first element.
    dest, groups, gather
        As in `Target`; the cells are `rows` indices of `axis` high.
    axis, rows
        How the dataset is cut, so that threads can share the work.
    """

    node: Flat
    file: int
    byte_offset: int
    dest: Array
    groups: list[Pieces]
    gather: bool
    axis: int
    rows: int

    @property
    def n_pieces(self) -> int:
        """Number of pieces, each of which is one task."""
        return math.prod(len(group.src) for group in self.groups)


@dataclass(frozen=True, slots=True, eq=False)
class Scatter:
    """Elements that were read into memory of their own first: ``dest[index] = source``."""

    dest: Array
    index: tuple[Any, ...]
    source: Array


@dataclass(slots=True, eq=False)
class ReadPlan:
    """Everything that a read will do.

    Attributes
    ----------
    files
        Path and expected fingerprint of every file concerned.
    targets
        What `target` counts in.
    target, piece
        Per placement: the target, and the row-major number of the piece among the product of its
        groups' pieces. Placements are ordered by the cell they need.
    first
        Per cell, and one more: its first placement.
    number, byte_offset, nbytes, filter_mask
        Per cell: linear cell number, where its stored bytes lie, and which filters it skipped.
    keep
        Per cell: True if it is only partly used, so that it is worth keeping decoded.
    batch
        Per batch of cells that one call fetches, and one more: its first cell.
    fills
        Memory to be set to a value first.
    runs, mapped
        What is not in cells.
    scatters
        What to do at the end, in this order.
    n_filled
        Cells that the file does not hold.
    """

    files: list[tuple[str, Fingerprint]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    target: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    piece: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    first: NDArray[np.int64] = field(default_factory=lambda: _ZERO)
    number: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    byte_offset: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    nbytes: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    filter_mask: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    keep: NDArray[np.bool_] = field(default_factory=lambda: _NEVER)
    batch: NDArray[np.int64] = field(default_factory=lambda: _ZERO)
    fills: list[tuple[Array, Array]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    mapped: list[Mapped] = field(default_factory=list)
    scatters: list[Scatter] = field(default_factory=list)
    n_filled: int = 0

    @property
    def n_cells(self) -> int:
        """Number of cells to fetch."""
        return self.number.size

    @property
    def decoded_nbytes(self) -> int:
        """Bytes that come out of decoders, were nothing in the cache."""
        return sum(
            self.targets[t].node.decoded_nbytes
            for t in self.target[self.first[:-1]].tolist()
            if not self.targets[t].node.raw
        )


class _Builder:
    """Collects columns, request by request."""

    def __init__(self) -> None:
        self.plan = ReadPlan()
        self.file_numbers: dict[str, int] = {}
        self.columns: list[tuple[NDArray[Any], ...]] = []
        self.cells: list[tuple[int, ...]] = []  # rows of the same columns
        self.depth = 0

    def file(self, path: str, expected: Fingerprint) -> int:
        number = self.file_numbers.get(path)
        if number is None:
            number = self.file_numbers[path] = len(self.plan.files)
            self.plan.files.append((path, expected))
        return number


def plan_read(requests: list[tuple[Node, Selection, Array]]) -> ReadPlan:
    """Plan the reading of many selections at once.

    Parameters
    ----------
    requests
        Node, selection and destination: an array of the selection's shape and the node's dtype,
        of any strides.

    Returns
    -------
    ReadPlan

    Raises
    ------
    DamagedFileError
        A chunk's entry in the file's index points outside the file.
    MissingSourceError and others
        That opening a virtual dataset's sources raises.

    Notes
    -----
    Cost: about 20 microseconds a request, 0.1 microsecond a chunk. No I/O but the indexing of
    sources that are met for the first time.
    """
    builder = _Builder()
    for node, selection, dest in requests:
        _add(builder, node, selection, dest)
    _finish(builder)
    return builder.plan


def _add(builder: _Builder, node: Node, selection: Selection, dest: Array) -> None:
    if 0 in dest.shape:
        return
    selection, dest = _canonical(selection, dest)
    match node:
        case Cells():
            _add_cells(builder, node, selection, dest)
        case Flat():
            _add_flat(builder, node, selection, dest)
        case Grid():
            _add_grid(builder, node, selection, dest)
        case Mosaic():
            _add_mosaic(builder, node, selection, dest)


def _canonical(selection: Selection, dest: Array) -> tuple[Selection, Array]:
    """Drop new axes from the destination, and turn it around where a range runs backwards.

    After that, every axis of the destination is filled by exactly one axis group, ranges keep the
    order of their axes, and every step is positive.
    """
    used = {e.out for e in selection.axes if isinstance(e, Range)}
    used.update(axis for e in selection.axes if isinstance(e, Points) for axis in e.out)
    backward = [e.out for e in selection.axes if isinstance(e, Range) and e.step < 0]
    if len(used) == dest.ndim and not backward:
        return selection, dest
    if backward:
        dest = np.flip(dest, tuple(backward))
    kept = sorted(used)
    dest = dest[(*(slice(None) if axis in used else 0 for axis in range(dest.ndim)), ...)]
    at = {axis: i for i, axis in enumerate(kept)}
    axes: list[Axis] = []
    for e in selection.axes:
        if isinstance(e, int):
            axes.append(e)
        elif isinstance(e, Points):
            axes.append(Points(e.index, tuple(at[axis] for axis in e.out)))
        elif e.step < 0:
            axes.append(Range(e.start + (e.size - 1) * e.step, -e.step, e.size, at[e.out]))
        else:
            axes.append(Range(e.start, e.step, e.size, at[e.out]))
    return Selection(dest.shape, tuple(axes)), dest


# --- cells ---------------------------------------------------------------------------------------


def _add_cells(builder: _Builder, node: Cells, selection: Selection, dest: Array) -> None:
    plan = builder.plan
    groups = cut(selection, node.shape, node.cell, node.strides)
    index = node.index
    target = Target(
        node=node,
        dest=dest.view(np.uint8) if dest.dtype == np.bool_ and not node.through_library else dest,
        groups=groups,
        gather=any(group.tables for group in groups),
        file=builder.file(index.file, index.fingerprint),
    )
    t = len(plan.targets)
    plan.targets.append(target)
    for segment, expected in node.segments:
        builder.file(segment.file, expected)
    table = node.table
    if all(len(group.src) == 1 for group in groups) and table is not None and table.sound:
        _add_cell(builder, target, t, table)
        return
    number: NDArray[np.int64] = np.zeros((), np.int64)
    whole: NDArray[np.bool_] = np.ones((), np.bool_)
    for group in groups:
        number = np.add.outer(number, np.array(group.number, np.int64))
        whole = np.logical_and.outer(whole, group.whole)
    number, whole = number.reshape(-1), whole.reshape(-1)
    piece = np.arange(number.size)
    if table is None:
        offset = number * node.decoded_nbytes
        nbytes = np.full(number.size, node.decoded_nbytes)
        mask = np.zeros(number.size, np.int64)
    else:
        row = table.rows(number)
        if table.number is not None:
            there = row >= 0
            n_missing = row.size - int(np.count_nonzero(there))
            if n_missing:
                plan.n_filled += n_missing
                plan.fills.append((dest, index.fill))
                row, number, piece = row[there], number[there], piece[there]
                whole = whole[there]
        offset, nbytes = table.byte_offset[row], table.nbytes[row]
        mask = table.filter_mask[row].astype(np.int64)
        if table.unfiltered_edges:
            mask[_partial(node, number)] = _ALL_SKIPPED
        if not table.sound:
            _check(node, number, offset, nbytes)
    builder.columns.append((np.full(number.size, t), piece, number, offset, nbytes, mask, whole))


def _add_cell(builder: _Builder, target: Target, t: int, table: ChunkTable) -> None:
    """Add a request that meets one cell only: the same as above, without the arrays."""
    node = target.node
    number = sum([group.number[0] for group in target.groups])
    row = number
    if table.number is not None:
        row = int(table.rows(np.array([number]))[0])
        if row < 0:
            builder.plan.n_filled += 1
            builder.plan.fills.append((target.dest, node.index.fill))
            return
    mask = int(table.filter_mask[row])
    if table.unfiltered_edges and _partial(node, np.array([number]))[0]:
        mask = _ALL_SKIPPED
    whole = all(group.whole[0] for group in target.groups)
    builder.cells.append(
        (t, 0, number, int(table.byte_offset[row]), int(table.nbytes[row]), mask, whole)
    )


def _partial(node: Cells, number: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which cells reach past the end of the dataset."""
    partial = np.zeros(number.size, np.bool_)
    for axis, stride in enumerate(node.strides):
        if node.shape[axis] % node.cell[axis]:
            partial |= number // stride % node.grid[axis] == node.grid[axis] - 1
    return partial


def _check(
    node: Cells, number: NDArray[np.int64], offset: NDArray[np.int64], nbytes: NDArray[np.int64]
) -> None:
    bad = bad_entries(node.index, offset, nbytes)
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        size, found = node.index.fingerprint.nbytes, int(nbytes[i])
        if found == node.decoded_nbytes or node.index.filters:
            reason = (
                f"its {found} bytes would lie outside the file, which has {size}; the file is "
                "truncated or damaged"
            )
        else:
            reason = (
                f"{found} bytes are stored, where an unfiltered chunk takes {node.decoded_nbytes}"
            )
        raise _damaged(node, int(number[i]), int(offset[i]), reason)


def _damaged(node: Cells, number: int, byte_offset: int, reason: str) -> DamagedFileError:
    chunk = tuple(int(i) for i in np.unravel_index(number, node.grid))
    return DamagedFileError(
        f"{node.index.file}: {node.index.name}, chunk {chunk} at byte offset {byte_offset}: "
        f"{reason}.",
        file=node.index.file,
        dataset=node.index.name,
        chunk=chunk,
        byte_offset=byte_offset,
    )


def _finish(builder: _Builder) -> None:
    """Sort the placements by where their bytes lie, merge equal cells, and cut batches."""
    plan = builder.plan
    if builder.cells:
        rows = np.array(builder.cells, np.int64)
        builder.columns.append((*rows.T[:-1], rows[:, -1].astype(np.bool_)))
    if not builder.columns:
        return
    if len(builder.columns) == 1 and not builder.cells:
        target, piece, number, offset, nbytes, mask, whole = builder.columns[0]
        file = uid = np.zeros(number.size, np.int64)
    else:
        target, piece, number, offset, nbytes, mask, whole = (
            np.concatenate(column) for column in zip(*builder.columns, strict=True)
        )
        file = np.array([t.file for t in plan.targets])[target]
        uid = np.array([t.node.uid for t in plan.targets])[target]
    if number.size > 1:
        order = np.lexsort((uid, offset, file))
        target, piece, number, offset, nbytes, mask, whole, file, uid = (
            column[order]
            for column in (target, piece, number, offset, nbytes, mask, whole, file, uid)
        )
        new = np.ones(number.size, np.bool_)
        new[1:] = (file[1:] != file[:-1]) | (offset[1:] != offset[:-1]) | (uid[1:] != uid[:-1])
        starts = np.flatnonzero(new)
    else:
        starts = np.zeros(1, np.int64)
    plan.target, plan.piece = target, piece
    plan.first = np.append(starts, number.size)
    plan.number, plan.byte_offset = number[starts], offset[starts]
    plan.nbytes, plan.filter_mask = nbytes[starts], mask[starts]
    used = np.add.reduceat(whole.astype(np.int64), starts)
    plan.keep = used == 0
    plan.batch = _batches(plan, file[starts])


def _batches(plan: ReadPlan, file: NDArray[np.int64]) -> NDArray[np.int64]:
    n = plan.n_cells
    if n == 1:
        return np.array([0, n])
    offset, nbytes = plan.byte_offset, plan.nbytes
    alone = np.array(
        [t.node.table is None for t in plan.targets], np.bool_
    )[plan.target[plan.first[:-1]]]  # fmt: skip
    gap = offset[1:] - (offset[:-1] + nbytes[:-1])
    apart = (file[1:] != file[:-1]) | (gap < 0) | (gap > _GAP_NBYTES) | alone[1:] | alone[:-1]
    run_start = np.append(0, np.flatnonzero(apart) + 1)
    run = np.append(0, np.cumsum(apart))
    # Enough batches to keep every thread busy to the end, none larger than one call should fetch.
    span = min(_SPAN_NBYTES, max(_GAP_NBYTES, int(nbytes.sum()) // 64))
    part = (offset - offset[run_start][run]) // span
    new = apart | (part[1:] != part[:-1])
    return np.concatenate(([0], np.flatnonzero(new) + 1, [n]))


# --- flat ----------------------------------------------------------------------------------------


def _add_flat(builder: _Builder, node: Flat, selection: Selection, dest: Array) -> None:
    plan = builder.plan
    if node.segment is None and node.data is None:
        plan.fills.append((dest, node.index.fill))
        return
    if dest.dtype == np.bool_:
        dest = dest.view(np.uint8)
    file, base = -1, 0
    if node.segment is not None and node.fingerprint is not None:
        file, base = builder.file(node.segment.file, node.fingerprint), node.segment.byte_offset
        if base < 0 or base > node.fingerprint.nbytes - node.segment.nbytes:
            raise DamagedFileError(
                f"{node.segment.file}: {node.index.name} at byte offset {base} takes "
                f"{node.segment.nbytes} bytes, but the file ends at {node.fingerprint.nbytes}. It "
                "is truncated.",
                file=node.segment.file,
                dataset=node.index.name,
                byte_offset=base,
            )
        if node.index.file_dtype.isnative:
            runs = _runs(node, base, selection, dest)
            if runs is not None:
                plan.runs.extend(Run(node, file, offset, part) for offset, part in runs)
                return
    _add_mapped(plan, node, file, base, selection, dest)


def _runs(
    node: Flat, base: int, selection: Selection, dest: Array
) -> list[tuple[int, Array]] | None:
    """Return the selection as contiguous runs (byte offset, memory), if they are few or long."""
    shape, itemsize = node.shape, dest.dtype.itemsize
    # From the last axis on: axes that are taken whole, and then one that may be taken in part.
    axis = len(shape)
    run = 1
    while axis:
        entry = selection.axes[axis - 1]
        if isinstance(entry, Points):
            return None
        if isinstance(entry, Range) and entry.step != 1 and entry.size != 1:
            break
        axis -= 1
        size = entry.size if isinstance(entry, Range) else 1
        run *= size
        if size != shape[axis]:
            break
    outer = selection.axes[:axis]
    if any(isinstance(entry, Points) for entry in outer):
        return None
    if dest.size > run and run * itemsize < _RUN_NBYTES:
        return None
    strides = [stride * itemsize for stride in grid_strides(shape)]
    start = base
    ranges: list[tuple[Range, int]] = []
    for entry, stride in zip(selection.axes, strides, strict=True):
        if isinstance(entry, int):
            start += entry * stride
        elif isinstance(entry, Range):
            start += entry.start * stride
    for entry, stride in zip(outer, strides, strict=False):
        if isinstance(entry, Range):
            ranges.append((entry, stride))
    found: list[tuple[int, Array]] = []
    part_size = max(1, _PART_NBYTES // itemsize)
    # The outer ranges make the first axes of the result.
    for position in np.ndindex(*(entry.size for entry, _ in ranges)):
        part = dest[(*position, ...)]
        if not part.flags.c_contiguous:
            return None
        offset = start
        for i, (entry, stride) in zip(position, ranges, strict=True):
            offset += i * entry.step * stride
        flat = part.reshape(-1)
        found.extend(
            (offset + i * itemsize, flat[i : i + part_size]) for i in range(0, flat.size, part_size)
        )
    return found


def _add_mapped(
    plan: ReadPlan, node: Flat, file: int, base: int, selection: Selection, dest: Array
) -> None:
    shape = node.shape
    # Cut along the first axis that the result runs over, so that threads can share the work.
    axis, rows = 0, max(1, shape[0]) if shape else 1
    n_parts = min(64, dest.nbytes // _PART_NBYTES)
    if n_parts > 1:
        axis = next(
            (i for i, e in enumerate(selection.axes) if isinstance(e, Range) and e.size > 1), 0
        )
        rows = max(1, -(-shape[axis] // n_parts))
    cell = tuple(rows if i == axis else n for i, n in enumerate(shape))
    strides = tuple(int(i == axis) for i in range(len(shape)))
    groups = cut(selection, shape, cell, strides)
    tables = any(group.tables for group in groups)
    plan.mapped.append(Mapped(node, file, base, dest, groups, tables, axis, rows))


# --- nodes made of other nodes -------------------------------------------------------------------


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
    shape = [len(part.dst[0]) for part in tied]
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
        lead[i] = shape[i]
        tables += [table.reshape(lead) for table in part.dst]
    moved = np.moveaxis(dest, spread, range(len(spread)))
    return selection, own, Scatter(moved, (*tables, *slices), own)


def _add_child(
    builder: _Builder, node: Node, parts: list[_Part], constants: dict[int, int], dest: Array
) -> None:
    selection, part, scatter = _restrict(parts, constants, dest)
    _add_typed(builder, node, selection, part)
    if scatter is not None:
        builder.plan.scatters.append(scatter)


def _add_typed(builder: _Builder, node: Node, selection: Selection, dest: Array) -> None:
    """Add a request for a node whose element type may differ from its destination's."""
    if node.dtype == dest.dtype:
        _add(builder, node, selection, dest)
        return
    own = np.empty(dest.shape, node.dtype)
    _add(builder, node, selection, own)
    builder.plan.scatters.append(Scatter(dest, (...,), own))


def _add_grid(builder: _Builder, node: Grid, selection: Selection, dest: Array) -> None:
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
                (axis - n, index)
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


def _add_mosaic(builder: _Builder, node: Mosaic, selection: Selection, dest: Array) -> None:
    builder.plan.fills.append((dest, node.index.fill))
    # One piece per axis group: the cell is the whole dataset.
    groups = cut(selection, node.shape, node.shape, (0,) * len(node.shape))
    low, high = _bounds(groups, len(node.shape))
    for i in np.flatnonzero(((node.high >= low) & (node.low <= high)).all(axis=1)).tolist():
        mapping = node.storage.mappings[i]
        parts = [_intersect(group, mapping, None) for group in groups]
        if any(part is None for part in parts):
            continue
        if builder.depth >= _MOST_NESTED:
            raise DamagedFileError(
                f"{node.index.file}: virtual dataset {node.index.name} leads through "
                f"{_MOST_NESTED} others; it probably contains itself.",
                file=node.index.file,
                dataset=node.index.name,
            )
        child = node.open_source(mapping.file, mapping.dataset)
        if len(child.shape) != len(mapping.source):
            raise DamagedFileError(
                f"{node.index.file}: virtual dataset {node.index.name} expects "
                f"{len(mapping.source)} axes of {mapping.dataset} in {mapping.file}, which has "
                f"shape {child.shape}.",
                file=mapping.file,
                dataset=mapping.dataset,
            )
        if any(t[-1] >= n for t, n in zip(mapping.source, child.shape, strict=True)):
            # The source has not grown that far (yet): beyond its end is fill.
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


def _intersect(group: Pieces, mapping: Mapping, limit: tuple[int, ...] | None) -> _Part | None:
    """Return the part of an axis group that `mapping` supplies, as indices of its source.

    `limit` is the shape of the source, where that may be smaller than the mapping.
    """
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
            source = mapping.source[follower[axis]][position]
            columns.append((follower[axis], source))
            if limit is not None:
                found &= source < limit[follower[axis]]
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
