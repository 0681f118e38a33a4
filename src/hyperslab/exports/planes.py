"""The one plane of a level that stands for the image: what is looked at to show it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from hyperslab.level import Level

__all__ = ["plane_axes", "read_plane"]

_SLAB_NBYTES = 64 << 20


def plane_axes(axes: str) -> tuple[int, int]:
    """Return which axes lie in a plane, downwards and to the right: Y and X, or the last two.

    With a single axis besides time and channels, time goes downwards; without time, that axis
    counts twice.

    Examples
    --------
    >>> plane_axes("TCZYX"), plane_axes("YXC"), plane_axes("CZX"), plane_axes("TCX")
    ((3, 4), (0, 1), (1, 2), (0, 2))
    """
    if "Y" in axes and "X" in axes:
        return axes.index("Y"), axes.index("X")
    last = [axis for axis, letter in enumerate(axes) if letter not in "TC"][-2:]
    last = last or [len(axes) - 1]
    if len(last) == 1 and "T" in axes:
        return axes.index("T"), last[0]
    return last[0], last[-1]


def read_plane(
    level: Level, channel: int, *, window: int | None = None, project: bool = False
) -> NDArray[Any]:
    """Read the middle plane of a channel at the first time point.

    Parameters
    ----------
    level, channel
        Of which. An image without channels has channel 0.
    window
        At most so many pixels each way, the middle ones.
    project
        Take the brightest of all the planes that share the middle plane's chunks; decodes no
        chunk more than the plane alone does.

    Returns
    -------
    numpy.ndarray
        (Y, X), of the level's dtype; magnitudes of complex numbers. Not a number only where all
        the planes are that.

    Notes
    -----
    Decodes the chunks of one plane. With `project`, at most 64 MiB are read; where the planes take
    more, only the middle one is.
    """
    down, right = plane_axes(level.axes)
    index: list[Any] = []
    for axis, (letter, n) in enumerate(zip(level.axes, level.shape, strict=True)):
        if axis in (down, right):
            start = 0 if window is None else max(0, (n - window) // 2)
            index.append(slice(start, n if window is None else min(n, start + window)))
        elif letter in "TC":
            index.append(channel if letter == "C" else 0)
        else:
            index.append(n // 2)
    if project and "Z" in level.axes and (z := level.axes.index("Z")) not in (down, right):
        index[z] = _slab(level, z, index)
    values = level.read(tuple(index))
    if values.dtype.kind == "c":
        values = np.abs(values)
    if values.ndim == 3:
        # Z has been kept, and stands where it stands among the plane's axes.
        values = np.fmax.reduce(values, axis=sum(axis < z for axis in (down, right)))
    if down == right:
        return values[None]
    return values.T if down > right else values


def _slab(level: Level, z: int, index: list[Any]) -> slice:
    """Return the planes in the chunks of plane ``index[z]``; that one alone if they are large."""
    middle, depth = index[z], max(1, level.chunks[z])
    start = middle // depth * depth
    planes = slice(start, min(start + depth, level.shape[z]))
    plane = [i.stop - i.start for i in index if isinstance(i, slice)]
    nbytes = math.prod(plane) * level.dtype.itemsize * (planes.stop - planes.start)
    return planes if nbytes <= _SLAB_NBYTES else slice(middle, middle + 1)
