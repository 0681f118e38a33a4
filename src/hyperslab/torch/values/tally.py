"""Extremes, moments and quantiles of a volume that is seen part by part; NumPy only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Tally", "add_values", "cut_parts", "quantiles_of"]

_BLOCK = 1 << 17  # elements looked at together: as float64 they fit a core's own cache


@dataclass(slots=True)
class Tally:
    """What the values seen so far are like; infinities are counted, since they sort as values."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    n: int = 0
    mean: float = 0.0
    squares: float = 0.0  # of the deviations from the mean, summed
    n_minus_inf: int = 0


def cut_parts(
    shape: tuple[int, ...], cell: tuple[int, ...], most: int
) -> Iterator[tuple[slice, ...]]:
    """Yield parts of whole cells, of at most `most` elements (or one cell), in storage order."""
    size = [min(c, n) for c, n in zip(cell, shape, strict=True)]
    for k in reversed(range(len(shape))):
        size[k] = min(shape[k], size[k] * max(1, most // max(1, math.prod(size))))
    starts = [range(0, n, max(1, s)) for n, s in zip(shape, size, strict=True)]
    for corner in itertools.product(*starts):
        yield tuple(slice(a, min(a + s, n)) for a, s, n in zip(corner, size, shape, strict=True))


def add_values(tally: Tally, values: NDArray[Any], axis: int, first: int) -> None:
    """Take in the values of some slices, `first` and those after it.

    Every block gets its own mean and deviations, in two passes; blocks are joined by the formula
    of Chan, Golub and LeVeque (1983), which loses nothing where the mean is large.
    """
    others = tuple(k for k in range(values.ndim) if k != axis)
    work = np.empty(min(_BLOCK, values.size), np.float64)
    is_float = values.dtype.kind == "f"
    for part in cut_parts(values.shape, (1,) * values.ndim, _BLOCK):
        given = values[part]
        block = work[: given.size].reshape(given.shape)
        with np.errstate(over="ignore", invalid="ignore"):
            block[...] = given
            n, bad = block.size, None
            if is_float and not (finite := np.isfinite(block)).all():
                bad = ~finite
                n -= int(np.count_nonzero(bad))
                tally.n_minus_inf += int(np.count_nonzero(block == -np.inf))
                block[bad] = np.inf
            slices = slice(first + part[axis].start, first + part[axis].stop)
            np.minimum(tally.low[slices], block.min(axis=others), out=tally.low[slices])
            if bad is not None:
                block[bad] = -np.inf
            np.maximum(tally.high[slices], block.max(axis=others), out=tally.high[slices])
            if n == 0:
                continue
            if bad is not None:
                block[bad] = 0
            mean = float(block.sum()) / n
            block -= mean
            if bad is not None:
                block[bad] = 0
            np.multiply(block, block, out=block)  # `dot` would start BLAS's own threads
            squares = float(block.sum())
        apart, both = mean - tally.mean, tally.n + n
        tally.squares += squares + apart * apart * (tally.n * n / both)
        tally.mean += apart * (n / both)
        tally.n = both


def quantiles_of(
    values: NDArray[Any], quantiles: Sequence[float], tally: Tally
) -> dict[float, float]:
    """Return quantiles of all finite `values`, which end up in another order."""
    if not quantiles or not tally.n:
        return dict.fromkeys(map(float, quantiles), math.nan)
    positions = [(tally.n - 1) * (q / 100) for q in quantiles]
    last = tally.n - 1
    # In sorted order: minus infinity, the finite values, infinity, NaN.
    ranks = {min(int(p) + k, last): tally.n_minus_inf for p in positions for k in (0, 1)}
    flat = values.reshape(-1)
    flat.partition(sorted(rank + skip for rank, skip in ranks.items()))
    value = {rank: float(flat[rank + skip]) for rank, skip in ranks.items()}
    found = {}
    for q, position in zip(quantiles, positions, strict=True):
        a, b, t = value[int(position)], value[min(int(position) + 1, last)], position % 1
        # From the nearer end, as NumPy does: then t = 1 would give b exactly.
        found[float(q)] = b - (b - a) * (1 - t) if t >= 0.5 else a + (b - a) * t
    return found
