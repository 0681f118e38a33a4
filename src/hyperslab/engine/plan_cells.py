"""Planning for nodes that come in cells: the columns, their order, and what is fetched together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.builder import Builder
from hyperslab.engine.node import Cells
from hyperslab.engine.place import contiguous_part
from hyperslab.engine.plan import ReadPlan, Run, Target
from hyperslab.errors import DamagedFileError
from hyperslab.grid import cut
from hyperslab.index.build import bad_entries
from hyperslab.index.records import ChunkTable
from hyperslab.selection import Range, Selection

__all__ = ["add_cells", "finish_cells"]

Array = NDArray[Any]

_GAP_NBYTES = 16 << 10  # fetching a hole this small costs less than another call
_SPAN_NBYTES = 1 << 20  # most bytes that one call fetches ahead of their decoding
_ALL_SKIPPED = 0xFFFFFFFF


def add_cells(builder: Builder, node: Cells, selection: Selection, dest: Array) -> None:
    """Add the cells that `selection` of `node` meets; missing ones become a fill of `dest`."""
    plan = builder.plan
    if node.raw and _add_row(builder, node, selection, dest):
        return
    groups = cut(selection, node.shape, node.cell, node.strides)
    index = node.index
    gather, single = False, True
    for group in groups:
        gather |= group.tables
        single &= len(group.src) == 1
    file = builder.file(index.file, index.fingerprint)
    for segment, expected in node.segments:
        builder.file(segment.file, expected)
    for path, expected in list(node.sources.items()):
        builder.file(path, expected)
    table = node.table
    if table is not None:
        together = builder.together(file, "raw" if node.raw else "coded", -1)
    else:
        together = builder.together(file, "other", node.uid)
    if node.one_byte:
        dest = dest.view(np.uint8)
    target = Target(node, dest, groups, gather, file, together)
    if single and table is not None and table.sound:
        _add_cell(builder, target, table)
        return
    t = len(plan.targets)
    plan.targets.append(target)
    number: NDArray[np.int64] = np.zeros((), np.int64)
    whole: NDArray[np.bool_] = np.ones((), np.bool_)
    for group in groups:
        number = np.add.outer(number, np.array(group.number, np.int64))
        whole = np.logical_and.outer(whole, group.whole)
    number, whole = number.reshape(-1), whole.reshape(-1)
    piece = np.arange(number.size)
    if table is None:
        offset = number  # in cells: all that matters is their order
        nbytes = np.ones(number.size, np.int64)
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
    if not number.size:
        return
    builder.columns.append((np.full(number.size, t), piece, number, offset, nbytes, mask, whole))


def _add_row(builder: Builder, node: Cells, selection: Selection, dest: Array) -> bool:
    """Add one whole unfiltered chunk that is one index of the first axis, if it is that.

    A slice of a slice-first file: the commonest of all requests, so it skips the general way.
    """
    table, axes = node.table, selection.axes
    if table is None or table.number is not None or not table.sound or not node.by_rows:
        return False
    first = axes[0]
    if not isinstance(first, int) or dest.nbytes != node.decoded_nbytes:
        return False
    if not dest.flags.c_contiguous or not all(isinstance(e, Range) for e in axes[1:]):
        return False
    index = node.index
    file = builder.file(index.file, index.fingerprint)
    builder.plan.runs.append(Run(file, table.byte_offset.item(first), dest, 1))
    return True


def _add_cell(builder: Builder, target: Target, table: ChunkTable) -> None:
    """Add a request that meets one cell only: the same as above, without the arrays."""
    plan, node, groups = builder.plan, target.node, target.groups
    number = 0
    for group in groups:
        number += group.number[0]
    row = number
    if table.number is not None:
        row = int(table.rows(np.array([number]))[0])
        if row < 0:
            plan.n_filled += 1
            plan.fills.append((target.dest, node.index.fill))
            return
    offset = table.byte_offset.item(row)
    if node.raw:
        skip, part = contiguous_part(target, [0] * len(groups))
        if part is not None:
            plan.runs.append(Run(target.file, offset + skip, part, 1))
            return
    mask = table.filter_mask.item(row)
    if table.unfiltered_edges and _partial(node, np.array([number]))[0]:
        mask = _ALL_SKIPPED
    whole = all(group.whole[0] for group in groups)
    builder.cells.append(
        (len(plan.targets), 0, number, offset, table.nbytes.item(row), mask, whole)
    )
    plan.targets.append(target)


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


def finish_cells(builder: Builder) -> None:
    """Sort the placements by where their bytes lie, merge equal cells, and cut batches."""
    plan = builder.plan
    if builder.cells:
        rows = np.array(builder.cells, np.int64)
        builder.columns.append((*rows.T[:-1], rows[:, -1].astype(np.bool_)))
    if not builder.columns:
        return
    if len(builder.columns) == 1 and not builder.cells:
        target, piece, number, offset, nbytes, mask, whole = builder.columns[0]
        group = uid = np.zeros(number.size, np.int64)
    else:
        target, piece, number, offset, nbytes, mask, whole = (
            np.concatenate(column) for column in zip(*builder.columns, strict=True)
        )
        group = np.array([t.together for t in plan.targets])[target]
        uid = np.array([t.node.uid for t in plan.targets])[target]
    if number.size > 1:
        order = np.lexsort((uid, offset, group))
        target, piece, number, offset, nbytes, mask, whole, group, uid = (
            column[order]
            for column in (target, piece, number, offset, nbytes, mask, whole, group, uid)
        )
        new = np.ones(number.size, np.bool_)
        new[1:] = (group[1:] != group[:-1]) | (offset[1:] != offset[:-1]) | (uid[1:] != uid[:-1])
        starts = np.flatnonzero(new)
    else:
        starts = np.zeros(1, np.int64)
    plan.target, plan.piece = target, piece
    plan.first = np.append(starts, number.size)
    plan.number, plan.byte_offset = number[starts], offset[starts]
    plan.nbytes, plan.filter_mask = nbytes[starts], mask[starts]
    used = np.add.reduceat(whole.astype(np.int64), starts)
    plan.keep = used == 0
    if builder.keep is not None:
        plan.keep[:] = builder.keep
    elif any(t.node.compute is not None for t in plan.targets):
        # What was computed is never cheaper to come by again.
        computed = np.array([t.node.compute is not None for t in plan.targets])
        plan.keep |= computed[target[starts]]
    plan.batch = _batches(plan, group[starts])


def _batches(plan: ReadPlan, group: NDArray[np.int64]) -> NDArray[np.int64]:
    n = plan.n_cells
    if n == 1:
        return np.array([0, n])
    offset, nbytes = plan.byte_offset, plan.nbytes
    gap = offset[1:] - (offset[:-1] + nbytes[:-1])
    apart = (group[1:] != group[:-1]) | (gap < 0) | (gap > _GAP_NBYTES)
    run_start = np.append(0, np.flatnonzero(apart) + 1)
    run = np.append(0, np.cumsum(apart))
    # Enough batches to keep every thread busy to the end, none larger than one call should fetch.
    span = min(_SPAN_NBYTES, max(_GAP_NBYTES, int(nbytes.sum()) // 64))
    part = (offset - offset[run_start][run]) // span
    new = apart | (part[1:] != part[:-1])
    return np.concatenate(([0], np.flatnonzero(new) + 1, [n]))
