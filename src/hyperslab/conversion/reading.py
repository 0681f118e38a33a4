"""Reading for a conversion: nothing is kept that is not needed again."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from hyperslab.engine.read import read
from hyperslab.engine.stats import ReadStats
from hyperslab.level import Level
from hyperslab.selection import select

__all__ = ["read_once"]


def read_once(level: Level, selection: Any, out: NDArray[Any], *, threads: int) -> ReadStats:
    """Read a part of a level into `out`, and keep nothing decoded: nothing is needed twice.

    A level that is computed keeps of the finer ones what the process allows for decoded chunks.
    """
    chosen = select(selection, level.shape)
    return read([(level.node, chosen, out)], threads=threads, keep=False)
