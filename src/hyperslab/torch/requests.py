"""Slices of many cases as requests: neighbours together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.array import Array

__all__ = ["slice_requests"]


def slice_requests(
    arrays: Sequence[Array], slices: Sequence[int], axis: int, out: NDArray[Any]
) -> tuple[list[tuple[Array, Any]], list[NDArray[Any]]]:
    """Return what `read_many` is to read so that ``out[i]`` becomes slice i.

    Parameters
    ----------
    arrays, slices
        Per slice: its dataset, and its position along `axis`.
    axis
        The slice axis, not negative.
    out
        (slices, H, W).

    Returns
    -------
    requests, places
        One for each run of slices that follow one another in a dataset and in `out`: its elements
        are placed in one go, which for deep chunks is several times faster than one by one.
    """
    lead = (slice(None),) * axis
    requests: list[tuple[Array, Any]] = []
    places: list[NDArray[Any]] = []
    start = 0
    for i in range(1, len(slices) + 1):
        if i < len(slices) and arrays[i] is arrays[start] and slices[i] == slices[i - 1] + 1:
            continue
        if i - start == 1:
            requests.append((arrays[start], (*lead, slices[start])))
            places.append(out[start])
        else:
            run = slice(slices[start], slices[start] + i - start)
            requests.append((arrays[start], (*lead, run)))
            places.append(np.moveaxis(out[start:i], 0, axis))
        start = i
    return requests, places
