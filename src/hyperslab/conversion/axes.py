"""The order in which formats want an image's axes."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["canonical_order"]

_RANKS = {"T": 0, "Z": 2, "Y": 3, "X": 4}  # channels, and whatever else there is, come between


def canonical_order(axes: Iterable[str]) -> tuple[int, ...]:
    """Return which axis of an image is the first, the second ...: time, others, Z, Y, X.

    Examples
    --------
    >>> canonical_order("YXC"), canonical_order("TCZYX"), canonical_order("ZEYX")
    ((2, 0, 1), (0, 1, 2, 3, 4), (1, 0, 2, 3))
    """
    letters = list(axes)
    return tuple(sorted(range(len(letters)), key=lambda axis: _RANKS.get(letters[axis], 1)))
