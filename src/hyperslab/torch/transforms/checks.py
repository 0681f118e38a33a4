"""Checks of what transforms are made with."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

__all__ = ["check_limit", "check_probability", "input_names", "window_size"]


def check_probability(p: float) -> None:
    """Raise unless 0 <= p <= 1."""
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p}; a probability is 0 to 1")


def check_limit(name: str, value: float) -> None:
    """Raise unless `value` is a finite number, 0 or more."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} is {value}; it has to be 0 or more, and finite")


def input_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return `names`, or the one name, as a tuple; raise where there is none, or one twice."""
    given = (names,) if isinstance(names, str) else tuple(names)
    if not given or len(set(given)) < len(given):
        raise ValueError(f"inputs is {names!r}; name each input once, such as 'A' or ('A', 'B')")
    return given


def window_size(size: int | Sequence[int]) -> tuple[int, int]:
    """Return (height, width) of a window given as that, or as one number for both."""
    given = tuple(size) if isinstance(size, Sequence) else (size, size)
    if len(given) != 2 or min(map(operator.index, given)) < 1:
        raise ValueError(f"size is {size!r}; give one number of pixels, or (height, width)")
    return given[0], given[1]
