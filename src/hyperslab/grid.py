"""How a selection falls into the cells of a chunk grid.

A selection is a product of *axis groups*: source axes that are chosen independently of the others.
A group is one axis taken by an integer or a slice, or all the axes that one set of index tables
ties together. Each group is cut into pieces, one per chunk (coordinate) that it meets; the pieces
of the whole selection are the product of the groups' pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from hyperslab.selection import Points, Range, Selection

__all__ = ["Pieces", "cut", "grid_shape", "grid_strides", "spans_rows"]


def grid_shape(shape: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many chunks of shape `chunks` cover an array of `shape`, along each axis."""
    return tuple(-(-n // c) for n, c in zip(shape, chunks, strict=True))


def grid_strides(grid: tuple[int, ...]) -> tuple[int, ...]:
    """Return the row-major strides of the linear chunk number, in chunks."""
    strides = [1] * len(grid)
    for axis in range(len(grid) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * grid[axis + 1]
    return tuple(strides)


def spans_rows(cell: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Tell whether a cell is one run of an array of `shape`: cut along one axis, whole after it."""
    axis = 0
    while axis < len(cell) and cell[axis] == 1:
        axis += 1
    return cell[axis + 1 :] == shape[axis + 1 :]


@dataclass(slots=True, eq=False)  # not frozen: that would double the cost of making one
class Pieces:
    """One axis group, cut along the chunk grid. Never changed once made: ranges share theirs.

    Attributes
    ----------
    axes
        Source axes of the group.
    out
        Result axes that the group fills; empty for an axis taken by an integer.
    tables
        True if the indices are integer tables, which all have the same length within a piece.
    number
        Per piece: its share of the linear chunk number (coordinate times grid stride).
    src
        Per piece: one index (int, slice or table) per entry of `axes`, relative to the chunk.
    dst
        Per piece: one index per entry of `out`, into the result.
    whole
        Per piece: True if it takes every element of the chunk along these axes, in order.
    """

    axes: tuple[int, ...]
    out: tuple[int, ...]
    tables: bool
    number: list[int]
    src: list[tuple[Any, ...]]
    dst: list[tuple[Any, ...]]
    whole: list[bool]


def cut(
    selection: Selection, shape: tuple[int, ...], chunks: tuple[int, ...], strides: tuple[int, ...]
) -> list[Pieces]:
    """Cut `selection`, of an array of `shape`, along the grid of `chunks`.

    Parameters
    ----------
    selection
        Every `Range` in it has a positive step (the caller flips the result instead).
    shape, chunks, strides
        The array, its chunk shape, and the strides of its linear chunk number.

    Returns
    -------
    list of Pieces
        One per axis group. The number of pieces of the selection is the product of their lengths.
        Empty results give groups without pieces.

    Notes
    -----
    Cost: one Python step per chunk coordinate and axis; tables are sorted once.
    """
    groups: list[Pieces] = []
    tied: list[tuple[int, Points]] = []
    for axis, entry in enumerate(selection.axes):
        chunk, stride = chunks[axis], strides[axis]
        if isinstance(entry, int):
            coordinate, inside = divmod(entry, chunk)
            groups.append(
                Pieces(
                    (axis,), (), False, [coordinate * stride],
                    [(inside,)], _NOWHERE, [shape[axis] == 1],
                )
            )  # fmt: skip
        elif isinstance(entry, Range):
            groups.append(
                _cut_range(
                    axis, entry.start, entry.step, entry.size, entry.out, shape[axis], chunk, stride
                )
            )
        else:
            tied.append((axis, entry))
    while tied:
        # Index tables over a common result axis belong together, and so on transitively.
        group = [tied.pop(0)]
        out = set(group[0][1].out)
        grown = True
        while grown:
            grown = False
            for member in tied:
                if out.intersection(member[1].out):
                    group.append(member)
                    out.update(member[1].out)
                    tied.remove(member)
                    grown = True
                    break
        groups.append(_cut_tables(group, tuple(sorted(out)), selection.shape, chunks, strides))
    return groups


_NOWHERE: list[tuple[Any, ...]] = [()]


# Most reads take most axes whole, again and again.
@lru_cache(maxsize=512)
def _cut_range(
    axis: int, start: int, step: int, size: int, out: int, extent: int, chunk: int, stride: int
) -> Pieces:
    numbers: list[int] = []
    src: list[tuple[Any, ...]] = []
    dst: list[tuple[Any, ...]] = []
    whole: list[bool] = []
    done = 0
    while done < size:
        first = start + done * step
        coordinate, inside = divmod(first, chunk)
        end = min((coordinate + 1) * chunk, extent)
        n = min(-(-(end - first) // step), size - done)
        numbers.append(coordinate * stride)
        src.append((slice(inside, inside + (n - 1) * step + 1, step),))
        dst.append((slice(done, done + n),))
        whole.append(n == end - coordinate * chunk)
        done += n
    return Pieces((axis,), (out,), False, numbers, src, dst, whole)


def _cut_tables(
    group: list[tuple[int, Points]],
    out: tuple[int, ...],
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    strides: tuple[int, ...],
) -> Pieces:
    axes = tuple(axis for axis, _ in group)
    extents = tuple(shape[axis] for axis in out)
    columns = []
    for _, points in group:
        lengths = iter(points.index.shape)
        table = points.index.reshape([next(lengths) if axis in points.out else 1 for axis in out])
        columns.append(np.broadcast_to(table, extents).reshape(-1))
    number = np.zeros(columns[0].size, np.int64)
    for axis, column in zip(axes, columns, strict=True):
        number += column // chunks[axis] * strides[axis]
    order = np.argsort(number, kind="stable")
    number = number[order]
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    stops = np.append(starts[1:], number.size)
    inside = [c[order] % chunks[axis] for axis, c in zip(axes, columns, strict=True)]
    places = np.unravel_index(order, extents)
    src = [tuple(column[a:b] for column in inside) for a, b in zip(starts, stops, strict=True)]
    dst = [tuple(place[a:b] for place in places) for a, b in zip(starts, stops, strict=True)]
    return Pieces(axes, out, True, number[starts].tolist(), src, dst, [False] * len(src))
