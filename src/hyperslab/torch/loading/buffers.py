"""`Buffers`: memory for batches, used again when nobody refers to it any more."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Buffers"]

_Key = tuple[tuple[int, ...], str]


class Buffers:
    """Hands out arrays, and hands one out again once all tensors and views of it are gone.

    Fresh memory costs a page fault for every 4 KiB, which for a batch of images takes as long as
    filling it. Nobody has to give anything back: an array that only this object refers to is free.

    Parameters
    ----------
    pinned
        Have page-locked memory, which a CUDA device copies from while the CPU goes on.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self._pinned = pinned
        self._known: dict[_Key, list[NDArray[Any]]] = {}

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> NDArray[Any]:
        """Return an array with any content; not thread-safe."""
        key = (tuple(shape), np.dtype(dtype).str)
        known = self._known.setdefault(key, [])
        for i in range(len(known)):
            if _references(known, i) == _FREE:
                return known[i]
        if len(known) > _MOST_OF_A_KIND:
            known.pop(0)  # whoever has it keeps it; it only is not used again
        if len(self._known) > _MOST_KINDS:
            self._known.pop(next(iter(self._known)))
            self._known[key] = known
        known.append(self._new(key[0], np.dtype(dtype)))
        return known[-1]

    def _new(self, shape: tuple[int, ...], dtype: np.dtype) -> NDArray[Any]:
        if not self._pinned:
            return np.empty(shape, dtype)
        nbytes = int(np.prod(shape)) * dtype.itemsize
        memory = torch.empty(max(1, nbytes), dtype=torch.uint8, pin_memory=True).numpy()
        return memory[:nbytes].view(dtype).reshape(shape)


_MOST_OF_A_KIND = 16
_MOST_KINDS = 64


def _references(known: list[NDArray[Any]], i: int) -> int:
    return sys.getrefcount(known[i])


# What that says of an array that only the list refers to, in this version of Python.
_FREE = _references([np.empty(1)], 0)
