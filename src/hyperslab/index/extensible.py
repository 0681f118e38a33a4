"""Chunk coordinates of an extensible array, which `chunk_iter` gets wrong.

A dataset with one unlimited axis keeps its chunks in an extensible array, ordered with that axis
slowest (file format specification 3.0, section III.A.1, the Extensible Array index). HDF5 turns a
chunk's place in the array back into a coordinate as if the axes were in their own order. So where
the unlimited axis is not the first, what it reports is the place, in disguise (HDF5 1.14 and 2.0).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["chunk_coordinates", "misplaced_axis"]


def misplaced_axis(maxshape: Sequence[int | None]) -> int | None:
    """Return the unlimited axis that an extensible array would put first; None if none is moved."""
    endless = [axis for axis, most in enumerate(maxshape) if most is None]
    return endless[0] if len(endless) == 1 and endless[0] > 0 else None


def chunk_coordinates(
    reported: NDArray[np.int64], most: Sequence[int | None], axis: int
) -> NDArray[np.int64]:
    """Return the true coordinates of chunks of an extensible array.

    Parameters
    ----------
    reported
        ``(chunks, axes)`` int64: coordinates as `chunk_iter` gives them.
    most
        Largest number of chunks along each axis; None for the unlimited one.
    axis
        The unlimited axis, as `misplaced_axis` returns it.

    Returns
    -------
    numpy.ndarray
        ``(chunks, axes)`` int64; `reported` itself with an HDF5 library that reports the truth.
    """
    if not _reports_places():
        return reported
    others = [i for i in range(len(most)) if i != axis]
    extents = [most[i] or 1 for i in others]
    # Axes before the unlimited one are reported as 0: counting never comes to an end along it.
    place = reported[:, axis]
    for i in range(axis + 1, len(most)):
        place = place * (most[i] or 1) + reported[:, i]
    true = np.empty_like(reported)
    true[:, axis], rest = np.divmod(place, math.prod(extents))
    for i, column in zip(others, np.unravel_index(rest, extents), strict=True):
        true[:, i] = column
    return true


@functools.cache
def _reports_places() -> bool:
    """Ask the library: write one chunk of a dataset in memory, and see where it says that is."""
    import h5py

    with h5py.File("probe", "w", driver="core", backing_store=False, libver="latest") as h5:
        dataset = h5.create_dataset("x", (2, 2), "u1", chunks=(1, 1), maxshape=(2, None))
        dataset[1, 0] = 1
        found: list[tuple[int, ...]] = []
        dataset.id.chunk_iter(lambda info: found.append(tuple(info.chunk_offset)))
    return found != [(1, 0)]
