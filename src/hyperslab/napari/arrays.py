"""Channels as napari wants them: indexing names a part, `numpy.asarray` reads it.

napari indexes a level twice, first to the window in sight and then to the plane, and only then
takes the values. What would read at the first index would read all planes.

It shows the last two axes. Where Y and X are others, what it is given has them last.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.array import View
from hyperslab.exports.planes import plane_axes
from hyperslab.level import Level
from hyperslab.viewing import ChannelView

__all__ = ["Shown", "plane_last", "shown"]

Convert = Callable[[NDArray[Any]], NDArray[Any]]
Source = ChannelView | Level


class Shown:
    """A channel of a level, or a part of one, that is read when its values are asked for.

    Parameters
    ----------
    source
        What it is, or is a part of. The requests to a `ChannelView` are what read-ahead goes by.
    part
        The part; None for all of it.
    order
        For each axis, which axis of `part` it is; () for the same order.
    dtype
        Element type of the values; default: the source's.
    convert
        Makes the values of what was read, before they are cast to `dtype`.
    """

    def __init__(
        self,
        source: Source,
        part: View | None = None,
        *,
        order: tuple[int, ...] = (),
        dtype: np.dtype | None = None,
        convert: Convert | None = None,
    ) -> None:
        self._source = source
        self._part = part
        self._order = () if order == tuple(range(len(order))) else order
        self._convert = convert
        self.dtype = source.dtype if dtype is None else dtype

    def _ordered(self, per_axis: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(per_axis[axis] for axis in self._order) if self._order else per_axis

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent along each axis."""
        return self._ordered(self._source.shape if self._part is None else self._part.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._source.size if self._part is None else self._part.size

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """What is fetched together; None for a part."""
        return self._ordered(self._source.chunks) if self._part is None else None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Shown | NDArray[Any]:
        """Name a part; nothing is read.

        Where axes are in another order than the source's, only integers and slices name a part;
        anything else reads all of this, and indexes that.
        """
        order: tuple[int, ...] = ()
        if self._order:
            items = _per_axis(index, self.ndim)
            if items is None:
                values: NDArray[Any] = np.asarray(self)[index]
                return values
            index = tuple(items[self._order.index(axis)] for axis in range(self.ndim))
            kept = [
                axis
                for axis, item in zip(self._order, items, strict=True)
                if isinstance(item, slice)
            ]
            order = tuple(sorted(kept).index(axis) for axis in kept)
        part = self._source.lazy[index] if self._part is None else self._part[index]
        return Shown(self._source, part, order=order, dtype=self.dtype, convert=self._convert)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self._source.read() if self._part is None else self._part.read()
        if self._convert is not None:
            values = self._convert(values)
        if self._order:
            values = values.transpose(self._order)
        return values.astype(self.dtype if dtype is None else dtype, copy=False)

    def __repr__(self) -> str:
        return f"<{self._source!r} as napari reads it, shape {self.shape}, {self.dtype}>"


def _per_axis(index: Any, ndim: int) -> tuple[int | slice, ...] | None:
    """Return what an index says of every axis; None if it is more than integers and slices."""
    items = list(index) if isinstance(index, tuple) else [index]
    if any(item is Ellipsis for item in items):
        place = next(i for i, item in enumerate(items) if item is Ellipsis)
        items[place : place + 1] = [slice(None)] * (ndim - len(items) + 1)
    items += [slice(None)] * (ndim - len(items))
    found: list[int | slice] = []
    for item in items:
        if isinstance(item, slice):
            found.append(item)
        elif isinstance(item, (int, np.integer)) and not isinstance(item, bool):
            found.append(operator.index(item))
        else:
            return None
    return tuple(found) if len(found) == ndim else None


def plane_last(axes: str) -> tuple[int, ...]:
    """Return the order of axes that has those of a plane last: Y and X, where there are both.

    Examples
    --------
    >>> plane_last("YXZ"), plane_last("TZYX"), plane_last("XY")
    ((2, 0, 1), (0, 1, 2, 3), (1, 0))
    """
    plane = plane_axes(axes)
    return (*(axis for axis in range(len(axes)) if axis not in plane), *dict.fromkeys(plane))


def shown(source: Source, *, labels: bool) -> Shown | None:
    """Return what napari can show of a channel, or of a level with all of its channels.

    Returns
    -------
    Shown
        Integers and floats as they are; complex numbers by their magnitude, booleans as 0 and 1,
        half and long double floats as float32 and float64, labels that are floats as integers.
    None
        For anything else.
    """
    dtype = source.dtype
    order = plane_last(source.axes)
    if dtype.kind == "b":
        return Shown(source, order=order, dtype=np.dtype(np.uint8))
    if dtype.kind == "c":
        magnitude = np.dtype(np.float32 if dtype.itemsize <= 8 else np.float64)
        return Shown(source, order=order, dtype=magnitude, convert=np.abs)
    if dtype.kind == "f" and labels:
        return Shown(source, order=order, dtype=np.dtype(np.int32))
    if dtype.kind == "f" and dtype.itemsize not in (4, 8):
        wide = np.dtype(np.float32 if dtype.itemsize < 4 else np.float64)
        return Shown(source, order=order, dtype=wide)
    return Shown(source, order=order) if dtype.kind in "iuf" else None
