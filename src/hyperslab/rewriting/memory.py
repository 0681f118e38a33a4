"""Memory for one region after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["Memory"]


class Memory:
    """Memory that is used again: fresh memory costs page faults, as much as filling it."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def array(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array of any content; the one before is no longer good."""
        kind = np.dtype(dtype)
        nbytes = math.prod(shape) * kind.itemsize
        if self._bytes.nbytes < nbytes:
            self._bytes = np.empty(0, np.uint8)  # first let go of what there is
            self._bytes = np.empty(nbytes, np.uint8)
        return self._bytes[:nbytes].view(kind).reshape(tuple(shape))
