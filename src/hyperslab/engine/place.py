"""From a decoded cell to where its elements go."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.codecs.shuffle import unshuffle_into
from hyperslab.engine.plan import Target
from hyperslab.grid import Pieces

__all__ = ["contiguous_part", "pick", "place", "place_planes"]

Array = NDArray[Any]


def pick(groups: list[Pieces], number: int) -> list[int]:
    """Return which piece of every group makes up piece `number` of their row-major product."""
    position = [0] * len(groups)
    for i in range(len(groups) - 1, -1, -1):
        n = len(groups[i].src)
        if n > 1:
            number, position[i] = divmod(number, n)
    return position


def _slices(groups: list[Pieces], position: list[int]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    src: tuple[Any, ...] = ()
    dst: tuple[Any, ...] = ()
    for group, i in zip(groups, position, strict=True):
        src += group.src[i]
        dst += group.dst[i]
    return src, (*dst, ...)


def place(
    cell: Array, groups: list[Pieces], position: list[int], dest: Array, *, gather: bool
) -> None:
    """Copy one piece of a selection from `cell` to `dest`, converting byte order if they differ.

    Parameters
    ----------
    cell
        The elements of a cell, in its shape.
    groups, position
        The selection's axis groups, and which piece of each.
    dest
        Destination of the whole selection.
    gather
        True if any group has index tables.
    """
    if gather:
        _gather(cell, groups, position, dest)
    else:
        src, dst = _slices(groups, position)
        dest[dst] = cell[src]


def place_planes(
    planes: Array, groups: list[Pieces], position: list[int], dest: Array, *, gather: bool
) -> None:
    """As `place`, from the byte planes of a shuffled cell: uint8, (itemsize, *cell shape).

    Only the elements that are wanted are put together.
    """
    if gather:
        whole = np.empty(planes.shape[1:], dest.dtype)
        unshuffle_into(planes, whole)
        _gather(whole, groups, position, dest)
    else:
        src, dst = _slices(groups, position)
        unshuffle_into(planes[(slice(None), *src)], dest[dst])


def _gather(cell: Array, groups: list[Pieces], position: list[int], dest: Array) -> None:
    """Place elements by index tables.

    Tied axes go first on both sides, so that NumPy puts the tables' axes first on both: the tables
    of a group share one axis, and those of different groups form a product.
    """
    basic: list[Any] = [slice(None)] * cell.ndim
    dest_basic: list[Any] = [slice(None)] * dest.ndim
    tied = [(g, i) for g, i in zip(groups, position, strict=True) if g.tables]
    constants: list[int] = []
    for group, i in zip(groups, position, strict=True):
        if group.tables:
            continue
        basic[group.axes[0]] = group.src[i][0]
        if group.out:
            dest_basic[group.out[0]] = group.dst[i][0]
        else:
            constants.append(group.axes[0])
    kept = [axis for axis in range(cell.ndim) if axis not in constants]
    tied_axes = [axis for g, _ in tied for axis in g.axes]
    order = [kept.index(axis) for axis in tied_axes]
    order += [i for i, axis in enumerate(kept) if axis not in tied_axes]
    tied_out = [axis for g, _ in tied for axis in g.out]
    dest_order = tied_out + [axis for axis in range(dest.ndim) if axis not in tied_out]
    src: list[Any] = []
    dst: list[Any] = []
    for n, (group, i) in enumerate(tied):
        lead = [1] * len(tied)
        lead[n] = -1
        src += [table.reshape(lead) for table in group.src[i]]
        dst += [table.reshape(lead) for table in group.dst[i]]
    source = cell[tuple(basic)].transpose(order)
    dest[tuple(dest_basic)].transpose(dest_order)[tuple(dst)] = source[tuple(src)]


def contiguous_part(target: Target, position: list[int]) -> tuple[int, Array | None]:
    """Return where in its cell a piece begins, bytes, and its memory, if both are contiguous.

    The memory is None if they are not.
    """
    if target.gather:
        return 0, None
    node = target.node
    skip = 0
    stride = target.dest.dtype.itemsize
    partial = False  # an axis taken in part: every axis before it must have one index
    dst: list[Any] = []
    for axis in range(len(node.cell) - 1, -1, -1):
        group, i = target.groups[axis], position[axis]
        index = group.src[i][0]
        if isinstance(index, slice):
            start, n = index.start, len(range(index.start, index.stop, index.step))
            if n > 1 and (partial or index.step != 1):
                return 0, None
            dst.append(group.dst[i][0])
        else:
            start, n = index, 1
        skip += start * stride
        stride *= node.cell[axis]
        partial = partial or n != node.cell[axis]
    part = target.dest[(*reversed(dst), ...)]
    return skip, part if part.flags.c_contiguous else None
