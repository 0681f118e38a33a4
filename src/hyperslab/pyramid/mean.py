"""Arrays at half their size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["every_second", "halve"]

Array = NDArray[Any]


def every_second(source: Array, axes: tuple[int, ...]) -> Array:
    """Return every second element along `axes`, a view: for labels, which have no mean.

    Examples
    --------
    >>> every_second(np.array([3, 4, 5]), (0,))
    array([3, 5])
    """
    return source[tuple(slice(None, None, 2 if a in axes else 1) for a in range(source.ndim))]


def halve(source: Array, axes: tuple[int, ...]) -> Array:
    """Return the means of pairs along `axes`.

    Parameters
    ----------
    source
        Numbers of any dtype. An odd element at the end of an axis is its own mean.
    axes
        Which axes, each once.

    Returns
    -------
    numpy.ndarray
        Of the source's dtype, half its extent along `axes`, rounded up. Integers are rounded to
        the nearest, halves upwards. Where an element is NaN, so is the mean.

    Examples
    --------
    >>> halve(np.array([[1, 2, 9], [3, 4, 10]], np.uint8), (0, 1))
    array([[ 3, 10]], dtype=uint8)
    """
    kind, itemsize, n = source.dtype.kind, source.dtype.itemsize, len(axes)
    if kind in "fc":
        wide = np.promote_types(source.dtype, np.float64 if kind == "f" else np.complex128)
        # Scaled before they are added, so that great numbers do not overflow.
        scaled: Array = source.astype(wide) * 0.5**n
        return _sums(scaled, axes).astype(source.dtype)
    if itemsize < 8:
        # The sum of 2**n elements, for three axes in space, fits.
        sums = _sums(source.astype(np.int32 if itemsize < 4 else np.int64), axes)
        return ((sums + (1 << n >> 1)) >> n).astype(source.dtype)
    # 64 bits: quotients and rests are added on their own, so that neither overflows.
    rest = _sums(source & ((1 << n) - 1), axes)
    sums = _sums(source >> n, axes)
    sums += (rest + (1 << n >> 1)) >> n
    return sums


def _sums(values: Array, axes: tuple[int, ...]) -> Array:
    for axis in axes:
        before = (slice(None),) * axis
        even, odd = values[(*before, slice(0, None, 2))], values[(*before, slice(1, None, 2))]
        sums = even.copy()
        paired = (*before, slice(0, odd.shape[axis]))
        sums[paired] += odd
        if odd.shape[axis] < even.shape[axis]:
            alone = (*before, slice(odd.shape[axis], None))
            sums[alone] += even[alone]
        values = sums
    return values
