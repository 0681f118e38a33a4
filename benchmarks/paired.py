"""Two ways of doing the same work, timed in turn, so that a drifting machine touches both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Paired", "time_in_turn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Result of one comparison.

    Attributes
    ----------
    theirs_s, ours_s
        Median wall time, seconds.
    ratio
        Median of theirs / ours, pair by pair.
    low, high
        Quartiles of the pairs' ratios.
    n
        Pairs.
    """

    theirs_s: float
    ours_s: float
    ratio: float
    low: float
    high: float
    n: int


def time_in_turn(
    theirs: Callable[[int], object],
    ours: Callable[[int], object],
    *,
    before: Callable[[], object] = lambda: None,
    n: int = 9,
) -> Paired:
    """Time ``theirs(i)`` and ``ours(i)`` for i = 0, 1, ... n, A B A B; the first pair warms up.

    `before` runs, untimed, ahead of every call.
    """
    a: list[float] = []
    b: list[float] = []
    for i in range(n + 1):
        for work, times in ((theirs, a), (ours, b)):
            before()
            start = time.perf_counter()
            work(i)
            times.append(time.perf_counter() - start)
    a, b = a[1:], b[1:]
    ratios = sorted(x / y for x, y in zip(a, b, strict=True))
    quartiles = statistics.quantiles(ratios, n=4)
    return Paired(
        theirs_s=statistics.median(a),
        ours_s=statistics.median(b),
        ratio=statistics.median(ratios),
        low=quartiles[0],
        high=quartiles[2],
        n=n,
    )
