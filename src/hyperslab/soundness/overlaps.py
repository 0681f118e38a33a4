"""Stored bytes that are claimed twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hyperslab.soundness.examine import Examined

__all__ = ["find_overlaps"]


def find_overlaps(some: Sequence[Examined]) -> None:
    """Note chunks and contiguous datasets of one file that claim the same bytes."""
    by_file: dict[str, list[Examined]] = {}
    for mine in some:
        by_file.setdefault(mine.file, []).append(mine)
    for members in by_file.values():
        owner, rows, low, high = [], [], [], []
        for i, mine in enumerate(members):
            if mine.table is not None:
                sound = np.flatnonzero(~mine.table.bad)
                begin = mine.table.byte_offset[sound]
                end = begin + mine.table.nbytes[sound]
            elif mine.storage == "contiguous" and not mine.damage:
                sound = np.full(len(mine.segments), -1)
                begin = np.array([offset for _, offset, _ in mine.segments], np.int64)
                end = begin + np.array([n for *_, n in mine.segments], np.int64)
            else:
                continue
            owner.append(np.full(sound.size, i))
            rows.append(sound)
            low.append(begin)
            high.append(end)
        if owner:
            _note_overlaps(members, *map(np.concatenate, (owner, rows, low, high)))


def _note_overlaps(
    members: Sequence[Examined],
    owner: NDArray[np.int64],
    rows: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
) -> None:
    order = np.argsort(low, kind="stable")
    high = high[order]
    reach = np.maximum.accumulate(high)
    for i in (np.flatnonzero(low[order][1:] < reach[:-1]) + 1).tolist():
        # Whatever reaches furthest of all before it overlaps it.
        for one, other in ((i, int(np.argmax(high[:i]))), (int(np.argmax(high[:i])), i)):
            mine, theirs = members[int(owner[order[one]])], members[int(owner[order[other]])]
            row = int(rows[order[other]])
            chunk = "" if theirs.table is None else f", chunk {theirs.table.coordinate(row)},"
            reason = f"{theirs.name}{chunk} claims some of the same bytes"
            if mine.table is not None:
                mine.table.fail(int(rows[order[one]]), reason)
            else:
                mine.fail(reason)
