"""What a person may give once for all inputs, or by input: made a mapping, and checked."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TypeVar

from hyperslab.errors import SampleError

__all__ = ["check_names", "check_probabilities", "count_by_input", "plane_size"]

V = TypeVar("V")


def check_names(option: str, given: Mapping[str, V], inputs: Sequence[str]) -> dict[str, V]:
    """Return a copy of `given`; raise where it names an input that is not there.

    Raises
    ------
    ValueError
    """
    unknown = [name for name in given if name not in inputs]
    if unknown:
        raise ValueError(f"{option} names {unknown}, but the inputs are {list(inputs)}")
    return dict(given)


def count_by_input(
    option: str, given: int | Mapping[str, int], inputs: Sequence[str]
) -> dict[str, int]:
    """Return a count, not negative, for every input; those left out of a mapping have 0."""
    if isinstance(given, Mapping):
        counts = dict.fromkeys(inputs, 0) | check_names(option, given, inputs)
    else:
        counts = dict.fromkeys(inputs, given)
    for name, count in counts.items():
        counts[name] = operator.index(count)
        if count < 0:
            raise ValueError(f"{option} of input {name!r} is {count}; it may be 0 or more")
    return counts


def check_probabilities(
    option: str, given: float | Mapping[str, float], inputs: Sequence[str], default: str
) -> dict[str, float]:
    """Return a probability above 0 by input; a number is that of input `default`."""
    if not isinstance(given, Mapping):
        given = {default: given} if given else {}
    found = check_names(option, given, inputs)
    for name, p in found.items():
        if not 0 <= p <= 1:
            raise ValueError(f"{option} of input {name!r} is {p}; a probability is 0 to 1")
    return {name: float(p) for name, p in found.items() if p}


def plane_size(option: str, given: int | Sequence[int] | None) -> tuple[int, int] | None:
    """Return (height, width), where one number stands for both."""
    if given is None:
        return None
    sizes = [given, given] if isinstance(given, int) else list(given)
    if len(sizes) != 2 or min(sizes) < 1:
        raise SampleError(f"{option} is {given}; give (height, width) in pixels, or one number")
    return operator.index(sizes[0]), operator.index(sizes[1])
