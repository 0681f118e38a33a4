"""One comparison, with what is promised of it."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.paired import Paired

__all__ = ["Row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes
    ----------
    work
        What was done.
    peer
        Who did it in turn with hyperslab.
    floor, aim
        Times faster: what is promised, and what is hoped for.
    result
        What came out.
    """

    work: str
    peer: str
    floor: float
    aim: float
    result: Paired
