"""Which level a viewer shows as a volume."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hyperslab.viewing.channel import ChannelView

if TYPE_CHECKING:
    from hyperslab.image import Image
    from hyperslab.level import Level

__all__ = ["volume_level"]


def volume_level(levels: Image | Sequence[Level | ChannelView], budget_nbytes: int) -> int:
    """Return the finest level of which a volume fits into `budget_nbytes`, else the coarsest.

    Parameters
    ----------
    levels
        An image, or its levels or views, finest first.
    budget_nbytes
        For one channel at one time point: the extents along Z, Y and X, times the element's size.
        Of an image that has none of these, along all axes but T and C.

    Returns
    -------
    int
        A position in `levels`.
    """
    found = levels if isinstance(levels, Sequence) else levels.levels
    for number, level in enumerate(found):
        if _volume_nbytes(level) <= budget_nbytes:
            return number
    return len(found) - 1


def _volume_nbytes(level: Level | ChannelView) -> int:
    sizes = dict(zip(level.axes, level.shape, strict=True))
    space = [n for axis, n in sizes.items() if axis in "ZYX"]
    space = space or [n for axis, n in sizes.items() if axis not in "TC"]
    return math.prod(space) * level.dtype.itemsize
