"""From requests to a `ReadPlan`: which bytes to fetch, and where their elements go."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.builder import Builder
from hyperslab.engine.node import Cells, Flat, Grid, Mosaic, Node
from hyperslab.engine.plan import ReadPlan, Scatter
from hyperslab.engine.plan_cells import add_cells, finish_cells
from hyperslab.engine.plan_flat import add_flat
from hyperslab.engine.plan_parts import add_grid, add_mosaic
from hyperslab.selection import Axis, Points, Range, Selection

__all__ = ["plan_read"]

Array = NDArray[Any]


def plan_read(
    requests: list[tuple[Node, Selection, Array]], *, keep: bool | None = None
) -> ReadPlan:
    """Plan the reading of many selections at once.

    Parameters
    ----------
    requests
        Node, selection and destination: an array of the selection's shape and the node's dtype,
        of any strides.
    keep
        Keep every chunk decoded, for reads to come; or none, where no read needs one twice. By
        default those that are used in part.

    Returns
    -------
    ReadPlan

    Raises
    ------
    DamagedFileError
        A chunk's entry in the file's index points outside the file.
    MissingSourceError and others
        That opening a virtual dataset's sources raises.

    Notes
    -----
    Cost: about 20 microseconds a request, 0.1 microsecond a chunk. No I/O but the indexing of
    sources that are met for the first time.
    """
    builder = Builder(_add, keep=keep)
    for node, selection, dest in requests:
        builder.add(node, selection, dest)
    finish_cells(builder)
    return builder.plan


def _add(builder: Builder, node: Node, selection: Selection, dest: Array) -> None:
    if 0 in dest.shape:
        return
    if selection.plain:
        _dispatch(builder, node, selection, dest)
        return
    whole, selection_axes = dest, selection.axes
    selection, dest = _canonical(selection, dest)
    _dispatch(builder, node, selection, dest)
    if dest.size < whole.size:
        # New axes that are longer than 1 (a view's new axis, indexed by a list): filled once, then
        # repeated.
        used = _used(selection_axes)
        once = tuple(slice(None) if i in used else slice(0, 1) for i in range(whole.ndim))
        builder.plan.scatters.append(Scatter(whole, (...,), whole[once]))


def _dispatch(builder: Builder, node: Node, selection: Selection, dest: Array) -> None:
    match node:
        case Cells():
            add_cells(builder, node, selection, dest)
        case Flat():
            add_flat(builder, node, selection, dest)
        case Grid():
            add_grid(builder, node, selection, dest)
        case Mosaic():
            add_mosaic(builder, node, selection, dest)


def _canonical(selection: Selection, dest: Array) -> tuple[Selection, Array]:
    """Drop new axes from the destination, and turn it around where a range runs backwards.

    After that, every axis of the destination is filled by exactly one axis group, ranges keep the
    order of their axes, and every step is positive.
    """
    used = _used(selection.axes)
    backward = [e.out for e in selection.axes if isinstance(e, Range) and e.step < 0]
    if len(used) == dest.ndim and not backward:
        return selection, dest
    if backward:
        dest = np.flip(dest, tuple(backward))
    kept = sorted(used)
    dest = dest[(*(slice(None) if axis in used else 0 for axis in range(dest.ndim)), ...)]
    at = {axis: i for i, axis in enumerate(kept)}
    axes: list[Axis] = []
    for e in selection.axes:
        if isinstance(e, int):
            axes.append(e)
        elif isinstance(e, Points):
            axes.append(Points(e.index, tuple(at[axis] for axis in e.out)))
        elif e.step < 0:
            axes.append(Range(e.start + (e.size - 1) * e.step, -e.step, e.size, at[e.out]))
        else:
            axes.append(Range(e.start, e.step, e.size, at[e.out]))
    return Selection(dest.shape, tuple(axes)), dest


def _used(axes: tuple[Axis, ...]) -> set[int]:
    """Return the result axes that some source axis runs along."""
    used = {e.out for e in axes if isinstance(e, Range)}
    used.update(axis for e in axes if isinstance(e, Points) for axis in e.out)
    return used
