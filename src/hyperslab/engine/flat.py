"""Carry out the parts of a plan that are not in cells."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.place import pick, place
from hyperslab.engine.plan import Mapped, ReadPlan, Run
from hyperslab.engine.source import acquire, release
from hyperslab.engine.stats import ReadStats

__all__ = ["do_mapped", "do_runs"]

Array = NDArray[Any]


def do_runs(plan: ReadPlan, runs: list[Run], mine: ReadStats) -> None:
    """Bring bytes of a file straight into the result; `runs` are all of one file."""
    file = acquire(*plan.files[runs[0].file])
    try:
        for run in runs:
            nbytes = run.dest.nbytes
            mine.preads += file.read_into((run.dest,), run.byte_offset, nbytes)
            mine.bytes_read += nbytes
            mine.chunks_decoded += run.n_cells
    finally:
        release(file)


def do_mapped(plan: ReadPlan, mapped: Mapped, number: int, mine: ReadStats) -> None:
    """Copy piece `number` of `mapped` out of a memory map, or out of the index itself."""
    if mapped.file < 0:
        _copy(mapped, number, np.frombuffer(mapped.node.data or b"", np.uint8))
        return
    file = acquire(*plan.files[mapped.file])
    try:
        _copy(mapped, number, file.view())
    finally:
        release(file)
    mine.bytes_read += mapped.dest.nbytes // max(1, mapped.n_pieces)


def _copy(mapped: Mapped, number: int, raw: NDArray[np.uint8]) -> None:
    node = mapped.node
    elements: Array = np.ndarray(node.shape, node.index.file_dtype, raw.data, mapped.byte_offset)
    position = pick(mapped.groups, number)
    if elements.ndim:
        at = sum(g.number[i] for g, i in zip(mapped.groups, position, strict=True))
        rows = slice(at * mapped.rows, (at + 1) * mapped.rows)
        elements = elements[(slice(None),) * mapped.axis + (rows,)]
    place(elements, mapped.groups, position, mapped.dest, gather=mapped.gather)
