"""A plan in the making."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.node import Node
from hyperslab.engine.plan import ReadPlan, Scatter
from hyperslab.index.records import Fingerprint
from hyperslab.selection import Selection

__all__ = ["Builder"]

Add = Callable[["Builder", Node, Selection, NDArray[Any]], None]


class Builder:
    """Collects a plan, request by request.

    Attributes
    ----------
    plan
        What is there so far.
    columns
        Placements of cells: target, piece, cell number, byte offset, stored size, filter mask, and
        whether the whole cell is taken; all int64 but the last, bool.
    cells
        The same for single placements, a row of numbers each.
    keep
        Whether cells are to be kept decoded: all, none, or (None) those that are used in part.
    depth
        How many virtual datasets the request at hand is inside of.
    """

    def __init__(self, add: Add, *, keep: bool | None = None) -> None:
        self.plan = ReadPlan()
        self.keep = keep
        self.columns: list[tuple[NDArray[Any], ...]] = []
        self.cells: list[tuple[int, ...]] = []
        self.depth = 0
        self._add = add
        self._files: dict[str, int] = {}
        self._groups: dict[tuple[int, str, int], int] = {}

    def add(self, node: Node, selection: Selection, dest: NDArray[Any]) -> None:
        """Plan a request, or a part of one, for whatever kind of node."""
        self._add(self, node, selection, dest)

    def add_typed(self, node: Node, selection: Selection, dest: NDArray[Any]) -> None:
        """Plan a request for a node whose element type may differ from its destination's."""
        if node.dtype == dest.dtype:
            self.add(node, selection, dest)
            return
        own = np.empty(dest.shape, node.dtype)
        self.add(node, selection, own)
        self.plan.scatters.append(Scatter(dest, (...,), own))

    def file(self, path: str, expected: Fingerprint) -> int:
        """Return the number of a file among the plan's."""
        number = self._files.get(path)
        if number is None:
            number = self._files[path] = len(self.plan.files)
            self.plan.files.append((path, expected))
        return number

    def together(self, file: int, kind: str, uid: int) -> int:
        """Return the number of a group of cells that may be fetched together."""
        return self._groups.setdefault((file, kind, uid), len(self._groups))
