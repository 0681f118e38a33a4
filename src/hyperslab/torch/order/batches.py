"""Which of the visited samples make up which batch: one after the other, or like with like."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["assign_batches", "count_batches"]

Ints = NDArray[np.int64]


def assign_batches(kind: Ints, batch_size: int, *, drop_last: bool) -> Ints:
    """Return the batch of every visited sample, int64; -1 for those that are left out.

    Parameters
    ----------
    kind
        Per sample, in the order in which they are visited: what it has to agree in with the others
        of its batch, a number.
    batch_size
        Samples in a batch; the last one of each kind may have fewer.
    drop_last
        Leave those out.

    Returns
    -------
    numpy.ndarray
        Batches are numbered in the order in which their last sample is visited, those that are not
        full behind all others.
    """
    key = np.full(kind.size, -1, np.int64)
    ends: list[tuple[bool, int, int]] = []  # not full, last visit, key
    for value in np.unique(kind):
        visits = np.flatnonzero(kind == value)
        for start in range(0, visits.size, batch_size):
            members = visits[start : start + batch_size]
            if members.size < batch_size and drop_last:
                continue
            key[members] = len(ends)
            ends.append((members.size < batch_size, int(members[-1]), len(ends)))
    number = np.full(len(ends) + 1, -1, np.int64)
    for i, (*_, which) in enumerate(sorted(ends)):
        number[which] = i
    return number[key]


def count_batches(kind: Ints, batch_size: int, *, drop_last: bool) -> int:
    """Return how many batches `assign_batches` makes of samples of these kinds."""
    _, counts = np.unique(kind, return_counts=True)
    return int((counts // batch_size if drop_last else -(-counts // batch_size)).sum())
