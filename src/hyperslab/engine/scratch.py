"""Memory that a thread works in, kept from read to read: fresh memory costs page faults."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

__all__ = ["scratch"]

_MOST_NBYTES = 64 << 20


class _Scratch(threading.local):
    """A thread's own buffers; each call may give the memory of the one before."""

    def __init__(self) -> None:
        self._stored = np.empty(0, np.uint8)
        self._cell = np.empty(0, np.uint8)

    def stored(self, nbytes: int) -> NDArray[np.uint8]:
        """Return room for stored bytes: uint8, (nbytes,)."""
        if self._stored.nbytes < nbytes:
            self._stored = np.empty(nbytes, np.uint8)
        return self._stored[:nbytes]

    def cell(self, nbytes: int) -> NDArray[np.uint8]:
        """Return room for a decoded cell: uint8, (nbytes,)."""
        if self._cell.nbytes < nbytes:
            self._cell = np.empty(nbytes, np.uint8)
        return self._cell[:nbytes]

    def trim(self) -> None:
        """Give back what an unusually large chunk took."""
        if self._stored.nbytes > _MOST_NBYTES:
            self._stored = np.empty(0, np.uint8)
        if self._cell.nbytes > _MOST_NBYTES:
            self._cell = np.empty(0, np.uint8)


scratch = _Scratch()
