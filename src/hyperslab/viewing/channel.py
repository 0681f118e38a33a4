"""`ChannelView`: what a viewer holds for one channel of one level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.array import Readable, View
from hyperslab.exports.labelled import channel_number
from hyperslab.selection import Selection
from hyperslab.viewing.ahead import reading
from hyperslab.viewing.track import Track

if TYPE_CHECKING:
    from hyperslab.image import Image
    from hyperslab.level import Level

__all__ = ["ChannelView", "channel_views"]


class ChannelView(Readable):
    """One channel of a level: an array along the image's axes but C.

    Reads nothing until it is indexed, and then what was asked for. Thread-safe; pickles as its
    level and its channel.

    Parameters
    ----------
    level
        Of an image. Where the image has no axis C, the view is the level as it is.
    channel
        Number or name; 0 where the image has no axis C.

    Raises
    ------
    SelectionError
        No such channel.
    """

    def __init__(self, level: Level, channel: int | str = 0) -> None:
        self._level = level
        self._channel = channel_number(level.image.spec, channel)
        self._c_axis = level.axes.find("C")
        self._track = Track(level)

    def __reduce__(self) -> tuple[Any, ...]:
        return ChannelView, (self._level, self._channel)

    def _facts(self) -> dict[str, Any]:
        return self._level._facts()

    def _without_c(self, per_axis: Any) -> Any:
        c = self._c_axis
        return per_axis if c < 0 else per_axis[:c] + per_axis[c + 1 :]

    @property
    def level(self) -> Level:
        """The level that this is a channel of."""
        return self._level

    @property
    def channel(self) -> int:
        """The channel's number."""
        return self._channel

    @property
    def axes(self) -> str:
        """One letter per axis of the view."""
        return str(self._without_c(self._level.axes))

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent along each axis of the view."""
        return tuple(self._without_c(self._level.shape))

    @property
    def dtype(self) -> np.dtype:
        """Element type, in native byte order."""
        return self._level.dtype

    @property
    def chunks(self) -> tuple[int, ...]:
        """What is fetched together, see `Level.chunks`."""
        return tuple(self._without_c(self._level.chunks))

    def _read(
        self, selection: Selection, out: NDArray[Any] | None, threads: int | None
    ) -> NDArray[Any]:
        inner = self._of_level(selection)
        with reading(self._track, inner.axes) as copied:
            threads = 1 if copied and threads is None else threads
            return View(self._level, inner).read(out=out, threads=threads)

    def _of_level(self, selection: Selection) -> Selection:
        c = self._c_axis
        if c < 0:
            return selection
        axes = (*selection.axes[:c], self._channel, *selection.axes[c:])
        return Selection(selection.shape, axes, selection.plain)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{a}={n}" for a, n in zip(self.axes, self.shape, strict=True))
        return (
            f"<hyperslab.viewing.ChannelView level {self._level.number}, channel {self._channel}, "
            f"{sizes}, {self.dtype}>"
        )


def channel_views(image: Image, channel: int | str = 0) -> list[ChannelView]:
    """Return a channel's views, one per level of `image`, finest first; nothing is read.

    Raises
    ------
    SelectionError
        No such channel.
    """
    return [ChannelView(level, channel) for level in image.levels]
