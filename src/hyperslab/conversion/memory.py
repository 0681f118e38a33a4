"""The memory of a conversion: nothing is kept that is not needed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hyperslab.engine.read import read
from hyperslab.engine.stats import ReadStats
from hyperslab.level import Level
from hyperslab.selection import select

__all__ = ["Room", "read_once"]


def read_once(level: Level, selection: Any, out: NDArray[Any], *, threads: int) -> ReadStats:
    """Read a part of a level into `out`, and keep nothing decoded: nothing is needed twice.

    A level that is computed keeps of the finer ones what the process allows for decoded chunks.
    """
    chosen = select(selection, level.shape)
    return read([(level.node, chosen, out)], threads=threads, keep=False)


class Room:
    """Memory for one region after the other: new memory costs as much as filling it."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)

    def array(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array of any content; the one before is no longer good."""
        kind = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        if self._buffer.nbytes < nbytes:
            self._buffer = np.empty(0, np.uint8)  # first given back
            self._buffer = np.empty(nbytes, np.uint8)
        return self._buffer[:nbytes].view(kind).reshape(tuple(shape))
