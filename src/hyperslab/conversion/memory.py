"""The memory of a conversion: nothing is kept that is not needed again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hyperslab.engine import cache
from hyperslab.engine.limits import limits

__all__ = ["Room", "without_cache"]

_lock = threading.Lock()
_users = 0
_before = 0


@contextlib.contextmanager
def without_cache() -> Iterator[None]:
    """Keep no decoded chunks meanwhile; several threads of a process may ask for it at once."""
    global _users, _before
    with _lock:
        if not _users:
            _before = limits.cache_nbytes
            limits.cache_nbytes = 0
            cache.clear()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                limits.cache_nbytes = _before


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
