"""Ranges of slices: from what is damaged to what is whole."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from hyperslab.grid import grid_shape, grid_strides
from hyperslab.soundness.report import Slices

__all__ = ["common", "of_chunks", "of_elements", "rest", "slice_words"]


def of_chunks(
    number: NDArray[np.int64], shape: tuple[int, ...], chunks: tuple[int, ...], axis: int
) -> Slices:
    """Return the slices along `axis` that chunks with these linear numbers reach into."""
    grid = grid_shape(shape, chunks)
    along = np.unique(number // grid_strides(grid)[axis] % grid[axis])
    n, chunk = shape[axis], chunks[axis]
    return _merge((c * chunk, min((c + 1) * chunk, n)) for c in along.tolist())


def of_elements(first: int, stop: int, shape: tuple[int, ...], axis: int) -> Slices:
    """Return the slices along `axis` that elements `first` to `stop` in row-major order lie in.

    Examples
    --------
    >>> of_elements(5, 8, (3, 4), 0), of_elements(3, 5, (3, 4), 1)
    (((1, 2),), ((0, 1), (3, 4)))
    """
    n = shape[axis]
    stride = math.prod(shape[axis + 1 :])
    low, high = first // stride, -(-stop // stride)
    if high - low >= n:
        return ((0, n),) if n and first < stop else ()
    low, high = low % n, low % n + high - low
    return _merge([(low, min(high, n)), (0, max(0, high - n))])


def rest(bad: Iterable[tuple[int, int]], n: int) -> Slices:
    """Return the slices of 0 to `n` that are in none of these ranges, which may overlap.

    Examples
    --------
    >>> rest([(3, 5), (0, 1), (4, 7)], 10)
    ((1, 3), (7, 10))
    """
    found = []
    at = 0
    for low, high in _merge(bad):
        if low > at:
            found.append((at, min(low, n)))
        at = max(at, high)
    if at < n:
        found.append((at, n))
    return tuple(found)


def common(some: Iterable[Slices], n: int) -> Slices:
    """Return the slices of 0 to `n` that are in all of these."""
    return rest([span for slices in some for span in rest(slices, n)], n)


def slice_words(slices: Slices, n: int | None = None) -> str:
    """Return ranges for people, who count in last indices.

    Examples
    --------
    >>> slice_words(((0, 1), (4, 8))), slice_words(()), slice_words(((0, 5),), 5)
    ('0, 4-7', 'none', 'all')
    """
    if not slices:
        return "none"
    if slices == ((0, n),):
        return "all"
    return ", ".join(str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in slices)


def _merge(ranges: Iterable[tuple[int, int]]) -> Slices:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if low >= high:
            continue
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    return tuple(merged)
