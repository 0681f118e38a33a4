"""`Part`: planes of one shape and dtype, as they are stored, for some of a batch's samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.array import Readable

__all__ = ["Part", "Parts", "Source", "TakeMemory", "slice_requests"]

TakeMemory = Callable[[tuple[int, ...], np.dtype], NDArray[Any]]
Source = tuple[Readable, int]  # a dataset, and its slice axis


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Planes of one input.

    Attributes
    ----------
    rows
        Which samples of the batch they belong to.
    planes
        (rows, C, H, W), in the stored dtype.
    """

    rows: list[int]
    planes: NDArray[Any]


Parts = dict[str, list[Part]]  # per input


def slice_requests(
    sources: Sequence[Source], slices: Sequence[int], out: NDArray[Any]
) -> tuple[list[tuple[Readable, Any]], list[NDArray[Any]]]:
    """Return what `read_many` is to read so that ``out[i]`` becomes slice i.

    Parameters
    ----------
    sources, slices
        Per slice: its dataset and slice axis, and its position along that.
    out
        (slices, H, W).

    Returns
    -------
    requests, places
        One for each run of slices that follow one another in a dataset and in `out`: its elements
        are placed in one go, which for deep chunks is several times faster than one by one.
    """
    requests: list[tuple[Readable, Any]] = []
    places: list[NDArray[Any]] = []
    start = 0
    for i in range(1, len(slices) + 1):
        if (
            i < len(slices)
            and sources[i][0] is sources[start][0]
            and slices[i] == slices[i - 1] + 1
        ):
            continue
        array, axis = sources[start]
        lead = (slice(None),) * axis
        if i - start == 1:
            requests.append((array, (*lead, slices[start])))
            places.append(out[start])
        else:
            run = slice(slices[start], slices[start] + i - start)
            requests.append((array, (*lead, run)))
            places.append(np.moveaxis(out[start:i], 0, axis))
        start = i
    return requests, places
