"""`ComputedLevel`: a level at half the resolution of the one before, made when it is read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.node import Cells, Node, computed_node
from hyperslab.engine.planner import plan_read
from hyperslab.engine.read import execute
from hyperslab.engine.stats import ReadStats
from hyperslab.exports.planes import plane_axes
from hyperslab.level import Level
from hyperslab.pyramid.mean import every_second, halve
from hyperslab.pyramid.saved import load_level
from hyperslab.pyramid.steps import halved, steps
from hyperslab.selection import select

if TYPE_CHECKING:
    from hyperslab.image import Image

__all__ = ["ComputedLevel", "computed_levels"]

_LEAST_CELL = 256  # pixels each way in the plane: smaller ones cost more to manage than to compute
_MOST_CELL_NBYTES = 16 << 20


class ComputedLevel(Level):
    """A level that the file does not hold: means of pairs of the next finer level.

    What was computed is kept among the decoded chunks, and so are the levels between. Where the
    level was saved (`Image.save_levels`), it is read from there.
    """

    computed = True

    def __init__(self, image: Image, finer: Level, axes: tuple[int, ...]) -> None:
        super().__init__(image, finer.number + 1, halved(finer.shape, axes))
        self._finer = finer
        self._halved = axes
        self._nearest = image.spec.labels or finer.dtype.kind == "b"
        self._node: Cells | None = None
        self._saved: Node | None = None

    @property
    def dtype(self) -> np.dtype:
        """Element type, the finer level's."""
        return self._finer.dtype

    @property
    def node(self) -> Cells:
        """What reads are planned from: cells to be computed."""
        if self._node is None:
            self._saved = load_level(self)
            self._node = computed_node(
                self._compute,
                file=self._image.file,
                name=f"{self._image.key}, level {self.number}",
                fingerprint=self._image.container.fingerprint,
                sources=self._image.sources,
                shape=self.shape,
                dtype=self.dtype,
                cell=self.chunks,
            )
        return self._node

    def forget_saved(self) -> None:
        """Look again, at the next read, whether the level has been saved."""
        self._node = None

    def _compute(self, origin: tuple[int, ...], out: NDArray[Any]) -> ReadStats:
        if self._saved is not None:
            there = tuple(slice(a, a + n) for a, n in zip(origin, out.shape, strict=True))
            return execute(plan_read([(self._saved, select(there, self.shape), out)]))
        finer = self._finer
        there = tuple(
            slice(a * step, min((a + n) * step, whole))
            for a, n, whole, step in zip(origin, out.shape, finer.shape, self._steps(), strict=True)
        )
        selection = select(there, finer.shape)
        values = np.empty(selection.shape, self.dtype)
        plan = plan_read([(finer.node, selection, values)])
        stats = execute(plan)
        self._image.sources.update(plan.files)
        out[...] = (every_second if self._nearest else halve)(values, self._halved)
        return stats

    def _steps(self) -> tuple[int, ...]:
        return tuple(2 if axis in self._halved else 1 for axis in range(self.ndim))

    @property
    def chunks(self) -> tuple[int, ...]:
        """What is computed together.

        In the plane as large as the finer level's chunks; along other axes no more than these hold,
        so that a plane is computed from one slab of chunks.
        """
        plane = plane_axes(self.axes)
        cell = [
            min(whole, max(n, _LEAST_CELL) if axis in plane else -(-n // step))
            for axis, (n, step, whole) in enumerate(
                zip(self._finer.chunks, self._steps(), self.shape, strict=True)
            )
        ]
        for axis in range(self.ndim):
            while cell[axis] > 1 and math.prod(cell) * self.dtype.itemsize > _MOST_CELL_NBYTES:
                cell[axis] = -(-cell[axis] // 2)
        return tuple(cell)

    @property
    def scale(self) -> tuple[float, ...]:
        """Size of a pixel of this level along each axis: twice the finer level's, or the same."""
        return tuple(s * n for s, n in zip(self._finer.scale, self._steps(), strict=True))


def computed_levels(image: Image, coarsest: Level) -> list[ComputedLevel]:
    """Return the levels to be computed after the coarsest one of the file; none if it is small.

    Only numbers and booleans have them.
    """
    if coarsest.dtype.kind not in "biufc":
        return []
    levels: list[ComputedLevel] = []
    for axes in steps(image.axes, coarsest.shape, coarsest.scale):
        levels.append(ComputedLevel(image, levels[-1] if levels else coarsest, axes))
    return levels
