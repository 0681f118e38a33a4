"""Contrast limits: the file's where they make sense, else from a single coarse plane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.exports.planes import read_plane

if TYPE_CHECKING:
    from hyperslab.level import Level

__all__ = ["contrast_limits", "make_sense", "measure_limits"]

_PERCENTILES = (0.1, 99.9)
_WINDOW = 2048  # pixels each way that are looked at: enough for percentiles, whatever the level


def make_sense(limits: tuple[float, float] | None, dtype: np.dtype) -> bool:
    """Tell whether limits that a file gives can be those of its data.

    Examples
    --------
    >>> make_sense((0, 65535), np.dtype("u2")), make_sense((0, 65536), np.dtype("u2"))
    (True, False)
    >>> make_sense((7, 7), np.dtype("u2")), make_sense((0, np.inf), np.dtype("f4"))
    (False, False)
    """
    if limits is None or not all(map(math.isfinite, limits)) or limits[0] >= limits[1]:
        return False
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return info.min <= limits[0] and limits[1] <= info.max
    return True


def contrast_limits(
    given: tuple[float, float] | None, levels: Sequence[Level], channel: int
) -> tuple[float, float]:
    """Return the `given` limits if they make sense; else those of the coarsest level."""
    if given is not None and make_sense(given, levels[0].dtype):
        return float(given[0]), float(given[1])
    coarsest = levels[-1]
    if coarsest.dtype.kind == "b" or not coarsest.size:
        return 0.0, 1.0
    return measure_limits(read_plane(coarsest, channel, window=_WINDOW))


def measure_limits(values: NDArray[Any]) -> tuple[float, float]:
    """Return the 0.1st and 99.9th percentile; what is no finite number does not count.

    Where those are equal, the least and the greatest value; where these are equal too, that value
    and one more, or one less where the dtype ends.

    Examples
    --------
    >>> measure_limits(np.arange(1001))
    (1.0, 999.0)
    >>> measure_limits(np.full((3, 3), 7))
    (7.0, 8.0)
    """
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if not finite.size:
        return 0.0, 1.0
    # Values that are there, not numbers between them: integers stay integers.
    low, high = (float(v) for v in np.percentile(finite, _PERCENTILES, method="nearest"))
    if low == high:
        low, high = float(finite.min()), float(finite.max())
    if low < high:
        return low, high
    if values.dtype.kind in "iu" and low == np.iinfo(values.dtype).max:
        return low - 1, low
    return low, math.nextafter(low, math.inf) if low + 1 == low else low + 1
