"""Planning for datasets in one piece: long runs straight into place, the rest through a map."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.builder import Builder
from hyperslab.engine.node import Flat
from hyperslab.engine.plan import Mapped, ReadPlan, Run
from hyperslab.errors import DamagedFileError
from hyperslab.grid import cut, grid_strides
from hyperslab.selection import Points, Range, Selection

__all__ = ["add_flat"]

Array = NDArray[Any]

_RUN_NBYTES = 16 << 10  # shorter contiguous runs are copied from a map, not fetched one by one
_PART_NBYTES = 1 << 20  # larger reads are cut into parts of this size, for the threads


def add_flat(builder: Builder, node: Flat, selection: Selection, dest: Array) -> None:
    """Add a selection of a dataset in one piece: as runs if they are long, else as mapped."""
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
                plan.runs.extend(Run(file, offset, part, 0) for offset, part in runs)
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
