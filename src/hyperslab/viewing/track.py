"""`Track`: what one view was asked for lately, and which slabs it will be asked for next.

A slab is the planes that share chunks along the axis that is scrolled. Within a slab there is
nothing to do; the one that comes after it is decoded meanwhile, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hyperslab.selection import Axis, Selection
from hyperslab.viewing.budget import ensure_cache
from hyperslab.viewing.moves import move_between, slab_nbytes, slab_pieces
from hyperslab.viewing.stats import ReadAheadStats

if TYPE_CHECKING:
    from hyperslab.level import Level

__all__ = ["Track"]

# How many planes to be ahead by, at least, where a slab is a single plane, or few. A step of the
# viewer that is no longer than this, or than a slab, is scrolling; a longer one is a jump.
_PLANES_AHEAD = 4


class Track:
    """The requests to one view. Not thread-safe: whoever shares it holds a lock.

    Attributes
    ----------
    level
        What is read.
    slab_nbytes
        What the chunks of the slab take, decoded, that is looked at; 0 until it is scrolled.
    """

    __slots__ = (
        "__weakref__",
        "_axis",
        "_chunks",
        "_decoded",
        "_fits",
        "_kept",
        "_last",
        "_near",
        "_slab",
        "_todo",
        "_wanted",
        "level",
        "slab_nbytes",
    )

    def __init__(self, level: Level) -> None:
        self.level = level
        self.slab_nbytes = 0
        self._chunks: tuple[int, ...] = ()
        self._last: tuple[Axis, ...] = ()
        self._axis = -1
        self._slab = -1
        self._near: tuple[int, ...] = ()
        self._wanted: tuple[int, ...] = ()
        self._todo: dict[int, Iterator[Selection]] = {}
        self._decoded: dict[int, int] = {}
        self._fits = False
        self._kept = False

    @property
    def n_waiting(self) -> int:
        """Slabs that are not all decoded yet."""
        return len(self._todo)

    def holds(self, axes: tuple[Axis, ...]) -> bool:
        """Tell whether all chunks of a request should be in the cache, after those before it."""
        if not self._kept:
            return False
        move = move_between(self._last, axes)
        if move is None or move.axis != self._axis:
            return False
        return move.after // self._chunks[move.axis] == self._slab

    def lost(self) -> None:
        """Take note that the cache did not hold what it should; nothing is sure in this slab."""
        self._kept = False

    def follow(
        self,
        axes: tuple[Axis, ...],
        stats: ReadAheadStats,
        others_nbytes: Callable[[], int],
    ) -> bool:
        """Take note of a request.

        Parameters
        ----------
        axes
            What is going to be read, per axis of the level.
        stats
            What is to be counted is added to it.
        others_nbytes
            What the slabs of the other views take that are being scrolled.

        Returns
        -------
        bool
            True if there is something new to do ahead.

        Raises
        ------
        HyperslabError, OSError
            What the level's chunks are cannot be told.
        """
        if axes == self._last:
            return False
        move = move_between(self._last, axes)
        self._last = axes
        if move is None or (move.axis != self._axis and self._axis >= 0):
            self.forget(stats)
        if move is None:
            return False
        if not self._chunks:
            self._chunks = self.level.chunks
        depth = self._chunks[move.axis]
        step = move.after - move.before
        if abs(step) > max(depth, _PLANES_AHEAD):
            self.forget(stats)
            return False
        slab = move.after // depth
        anew, self._axis, self._slab = slab != self._slab, move.axis, slab
        stats.chunks_used += self._decoded.pop(self._slab, 0)
        way = 1 if step > 0 else -1
        n_slabs = -(-self.level.shape[move.axis] // depth)
        far = -(-_PLANES_AHEAD // depth)
        near = tuple(
            slab
            for slab in range(self._slab + way, self._slab + way * (far + 1), way)
            if 0 <= slab < n_slabs
        )
        found = False
        if near != self._near:
            self._near = near
            found = self._ask(axes, stats, others_nbytes())
        if anew:
            self._kept = self._fits
        return found

    def _ask(self, axes: tuple[Axis, ...], stats: ReadAheadStats, others_nbytes: int) -> bool:
        """Replace what is to be done by the slabs that are near now, as far as they fit."""
        itemsize = self.level.dtype.itemsize
        self.slab_nbytes = slab_nbytes(axes, self._chunks, itemsize)
        if not self.slab_nbytes:
            return False
        # Memory is asked for on account of one slab ahead; the others come if there is room.
        all_nbytes = self.slab_nbytes + others_nbytes
        n_fit = ensure_cache(2 * all_nbytes) // all_nbytes - 1
        self._fits = n_fit >= 0
        asked, self._wanted = self._wanted, self._near[: max(0, n_fit)]
        for slab in [slab for slab in self._todo if slab not in self._wanted]:
            del self._todo[slab]
            stats.slabs_dropped += 1
        new = [slab for slab in self._wanted if slab not in asked]
        for slab in new:
            there = list(axes)
            there[self._axis] = slab * self._chunks[self._axis]
            self._todo[slab] = slab_pieces(tuple(there), self._chunks, itemsize)
        return bool(new)

    def forget(self, stats: ReadAheadStats) -> None:
        """Give up what is not done yet."""
        stats.slabs_dropped += len(self._todo)
        self._todo.clear()
        self._decoded.clear()
        self._axis = self._slab = -1
        self._near = self._wanted = ()
        self._kept = False

    def next_piece(self) -> tuple[int, Selection] | None:
        """Return what to read next, with the slab that it is a part of; None if all is done."""
        while self._todo:
            slab, pieces = next(iter(self._todo.items()))
            piece = next(pieces, None)
            if piece is not None:
                return slab, piece
            del self._todo[slab]
        return None

    def done(self, slab: int, n_decoded: int, stats: ReadAheadStats) -> None:
        """Take note of how many chunks a piece of a slab had decoded."""
        stats.chunks_decoded += n_decoded
        if slab == self._slab:
            stats.chunks_used += n_decoded
        elif slab in self._wanted:
            self._decoded[slab] = self._decoded.get(slab, 0) + n_decoded
