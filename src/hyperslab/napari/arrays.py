"""Channels as napari wants them: indexing names a part, `numpy.asarray` reads it.

napari indexes a level twice, first to the window in sight and then to the plane, and only then
takes the values. What would read at the first index would read all planes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.array import View
from hyperslab.viewing import ChannelView

__all__ = ["Shown", "shown"]

Convert = Callable[[NDArray[Any]], NDArray[Any]]


class Shown:
    """A channel of a level, or a part of one, that is read when its values are asked for.

    Parameters
    ----------
    channel
        What it is, or is a part of; its requests are what read-ahead goes by.
    part
        The part; None for all of it.
    dtype
        Element type of the values; default: the channel's.
    convert
        Makes the values of what was read, before they are cast to `dtype`.
    """

    def __init__(
        self,
        channel: ChannelView,
        part: View | None = None,
        *,
        dtype: np.dtype | None = None,
        convert: Convert | None = None,
    ) -> None:
        self._channel = channel
        self._part = part
        self._convert = convert
        self.dtype = channel.dtype if dtype is None else dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent along each axis."""
        return self._channel.shape if self._part is None else self._part.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._channel.size if self._part is None else self._part.size

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """What is fetched together; None for a part."""
        return self._channel.chunks if self._part is None else None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Shown:
        part = self._channel.lazy[index] if self._part is None else self._part[index]
        return Shown(self._channel, part, dtype=self.dtype, convert=self._convert)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self._channel.read() if self._part is None else self._part.read()
        if self._convert is not None:
            values = self._convert(values)
        return values.astype(self.dtype if dtype is None else dtype, copy=False)

    def __repr__(self) -> str:
        return f"<{self._channel!r} as napari reads it, shape {self.shape}, {self.dtype}>"


def shown(channel: ChannelView, *, labels: bool) -> Shown | None:
    """Return what napari can show of a channel.

    Returns
    -------
    Shown
        Integers and floats as they are; complex numbers by their magnitude, booleans as 0 and 1,
        half and long double floats as float32 and float64, labels that are floats as integers.
    None
        For anything else.
    """
    dtype = channel.dtype
    if dtype.kind == "b":
        return Shown(channel, dtype=np.dtype(np.uint8))
    if dtype.kind == "c":
        magnitude = np.dtype(np.float32 if dtype.itemsize <= 8 else np.float64)
        return Shown(channel, dtype=magnitude, convert=np.abs)
    if dtype.kind == "f" and labels:
        return Shown(channel, dtype=np.dtype(np.int32))
    if dtype.kind == "f" and dtype.itemsize not in (4, 8):
        return Shown(channel, dtype=np.dtype(np.float32 if dtype.itemsize < 4 else np.float64))
    return Shown(channel) if dtype.kind in "iuf" else None
