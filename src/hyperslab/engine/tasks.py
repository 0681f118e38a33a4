"""The parts of a plan that are not in cells, as tasks that any thread can take."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.place import pick, place
from hyperslab.engine.plan import Mapped, ReadPlan, Run
from hyperslab.engine.source import acquire, release
from hyperslab.engine.stats import ReadStats

__all__ = ["MappedTask", "RunTask"]

Array = NDArray[Any]


class MappedTask:
    """One piece of a `Mapped`: a strided copy out of a memory map."""

    __slots__ = ("mapped", "number", "plan")

    def __init__(self, plan: ReadPlan, mapped: Mapped, number: int) -> None:
        self.plan, self.mapped, self.number = plan, mapped, number

    def __call__(self, mine: ReadStats) -> None:
        mapped = self.mapped
        if mapped.file < 0:
            self._copy(np.frombuffer(mapped.node.data or b"", np.uint8), mine)
            return
        file = acquire(*self.plan.files[mapped.file])
        try:
            self._copy(file.view(), mine)
        finally:
            release(file)

    def _copy(self, raw: NDArray[np.uint8], mine: ReadStats) -> None:
        mapped = self.mapped
        index = mapped.node.index
        elements: Array = np.ndarray(
            mapped.node.shape, index.file_dtype, raw.data, mapped.byte_offset
        )
        position = pick(mapped.groups, self.number)
        at = sum(g.number[i] for g, i in zip(mapped.groups, position, strict=True))
        if elements.ndim:
            rows = slice(at * mapped.rows, (at + 1) * mapped.rows)
            elements = elements[(slice(None),) * mapped.axis + (rows,)]
        place(elements, mapped.groups, position, mapped.dest, gather=mapped.gather)
        if mapped.file >= 0:
            mine.bytes_read += mapped.dest.nbytes // max(1, mapped.n_pieces)


class RunTask:
    """One `Run`: bytes from the file straight into the result."""

    __slots__ = ("plan", "run")

    def __init__(self, plan: ReadPlan, run: Run) -> None:
        self.plan, self.run = plan, run

    def __call__(self, mine: ReadStats) -> None:
        run = self.run
        file = acquire(*self.plan.files[run.file])
        try:
            mine.preads += file.read_into((run.dest,), run.byte_offset, run.dest.nbytes)
        finally:
            release(file)
        mine.bytes_read += run.dest.nbytes
