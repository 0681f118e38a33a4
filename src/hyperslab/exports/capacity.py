"""Refuse, before memory is taken, what does not fit into it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.array import Readable
from hyperslab.engine.limits import memory_at_hand
from hyperslab.errors import CapacityError
from hyperslab.exports.text import human_nbytes
from hyperslab.selection import Selection

__all__ = ["Guarded", "new_array"]

# Below this nobody looks how much memory there is: looking would cost as much as a small read.
_LOOK_NBYTES = 16 << 20


def new_array(shape: tuple[int, ...], dtype: np.dtype, **facts: str) -> NDArray[Any]:
    """Return an empty array for a part of an image, if it fits into memory.

    `facts` name what is to be read: `file`, `dataset`.

    Raises
    ------
    CapacityError
        It does not; attributes `wanted_nbytes` and `at_hand_nbytes` say by how much. An operating
        system would grant such memory, and end the process when it is filled.
    """
    wanted = math.prod(shape) * dtype.itemsize
    if wanted >= _LOOK_NBYTES and wanted > (at_hand := memory_at_hand()):
        raise CapacityError(
            f"{', '.join(facts.values())}: {shape} {dtype} takes {human_nbytes(wanted)}, and "
            f"{human_nbytes(at_hand)} of memory are free. Read a part (index it), or a coarser "
            "level (level=1 and up); work on it in parts with to_dask(); or give a file to fill, "
            "out=numpy.memmap(...).",
            wanted_nbytes=wanted,
            at_hand_nbytes=at_hand,
            **facts,
        )
    return np.empty(shape, dtype)


class Guarded(Readable):
    """What is read into new memory only if it fits."""

    def _read(
        self, selection: Selection, out: NDArray[Any] | None, threads: int | None
    ) -> NDArray[Any]:
        if out is None:
            out = new_array(selection.shape, self.dtype, **self._facts())
        return super()._read(selection, out, threads)
