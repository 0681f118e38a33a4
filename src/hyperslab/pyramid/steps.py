"""Which coarser levels an image needs, and which axes each halves."""

from __future__ import annotations

import math

__all__ = ["halved", "steps"]

_PLANE = 1024  # pixels each way: about what a window shows
_VOLUME = 1 << 26  # elements of a channel at one time: what a graphics card shows without effort
_SPATIAL = "ZYX"


def halved(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return `shape` with `axes` at half their extent, rounded up.

    Examples
    --------
    >>> halved((3, 5, 8), (1, 2))
    (3, 3, 4)
    """
    return tuple(-(-n // 2) if axis in axes else n for axis, n in enumerate(shape))


def steps(axes: str, shape: tuple[int, ...], scale: tuple[float, ...]) -> list[tuple[int, ...]]:
    """Return which axes each computed level halves, from the coarsest stored level on.

    Parameters
    ----------
    axes
        One letter per axis.
    shape, scale
        Of the coarsest level that there is. Only the scale's proportions count.

    Returns
    -------
    list of tuple of int
        One entry per level to compute: axes of even the last one have at least two elements. Empty
        where the level is small enough: 1024 pixels each way in a plane, and 64 Mi elements in a
        volume.

    Notes
    -----
    The finest axes in space are halved, until the pixels are as good as cubes; from then on all
    are. An axis is fine if its step is less than 1.5 times the finest one's: halving it then makes
    it no coarser than the rest are. BigDataViewer proposes its levels by the same rule.

    Examples
    --------
    >>> steps("TCZYX", (1, 1, 48, 2048, 4096), (1, 1, 4, 1, 1))
    [(3, 4), (3, 4)]
    >>> steps("ZYX", (1000, 1000, 1000), (1, 1, 1))
    [(0, 1, 2), (0, 1, 2)]
    >>> steps("YX", (1024, 1024), (1, 1))
    []
    """
    found: list[tuple[int, ...]] = []
    step = [abs(s) for s in scale]
    while _too_large(axes, shape):
        long = [a for a, letter in enumerate(axes) if letter in _SPATIAL and shape[a] > 1]
        finest = min(step[a] for a in long)
        chosen = tuple(a for a in long if step[a] == finest or not step[a] >= 1.5 * finest)
        found.append(chosen)
        shape = halved(shape, chosen)
        for axis in chosen:
            step[axis] *= 2
    return found


def _too_large(axes: str, shape: tuple[int, ...]) -> bool:
    extent = {letter: n for letter, n in zip(axes, shape, strict=True) if letter in _SPATIAL}
    plane = max((extent.get(letter, 1) for letter in "YX"), default=1)
    size = math.prod(extent.values())
    return size > _VOLUME or (plane > _PLANE and size > 0)
