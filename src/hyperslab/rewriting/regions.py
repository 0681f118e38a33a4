"""Regions: what of a dataset is read at once, so that it fits under a ceiling.

A region is a box of whole chunks of both the old and the new grid, where memory allows: then every
old chunk is decoded once. Where it does not, regions follow the new grid only, and old chunks are
decoded once for each region that they reach into.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from hyperslab.errors import CapacityError

__all__ = ["decodings", "region_shape", "regions_of"]


def regions_of(shape: tuple[int, ...], region: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Yield the regions of that shape, in row-major order, cut at the end of the dataset."""
    ranges = [range(0, n, r) for n, r in zip(shape, region, strict=True)]
    for starts in itertools.product(*ranges):
        yield tuple(
            slice(start, min(start + r, n))
            for start, r, n in zip(starts, region, shape, strict=True)
        )


def region_shape(
    shape: tuple[int, ...],
    new: tuple[int, ...],
    old: tuple[int, ...] | None,
    itemsize: int,
    most_nbytes: int,
    path: str,
) -> tuple[int, ...]:
    """Return the largest region that fits, of whole chunks of both grids if there is one."""

    def nbytes(region: Sequence[int]) -> int:
        return math.prod(region) * itemsize

    if nbytes(new) > most_nbytes:
        raise CapacityError(
            f"{path}: one chunk of shape {new} takes {nbytes(new)} bytes, and {most_nbytes} are "
            "there for it. Raise the memory ceiling, or choose smaller chunks.",
            dataset=path,
            wanted_nbytes=nbytes(new),
            at_hand_nbytes=most_nbytes,
        )
    cell = old or new
    both = [min(n, math.lcm(a, b)) for n, a, b in zip(shape, new, cell, strict=True)]
    region = both if nbytes(both) <= most_nbytes else list(new)
    steps = both if region is both else list(new)
    # Grow along the last axes first: what lies together is then read together. Where not even one
    # box of both grids fits, first along the axes on which old chunks are longest.
    axes = list(range(len(shape) - 1, -1, -1))
    if region is not both:
        axes.sort(key=lambda axis: -(cell[axis] / new[axis]))
    for axis in axes:
        room = most_nbytes // max(1, nbytes(region) // region[axis])
        grown = min(shape[axis], max(region[axis], room // steps[axis] * steps[axis]))
        region[axis] = grown
    return tuple(region)


def decodings(
    shape: tuple[int, ...], region: tuple[int, ...], old: tuple[int, ...] | None
) -> float:
    """Return how many regions an old chunk reaches into, on average."""
    if old is None:
        return 1.0
    found = 1.0
    for n, r, c in zip(shape, region, old, strict=True):
        chunks = -(-n // c)
        met = sum(-(-min(start + r, n) // c) - start // c for start in range(0, n, r))
        found *= met / chunks
    return found
