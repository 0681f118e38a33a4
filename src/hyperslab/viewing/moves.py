"""What a viewer is doing, told from two requests; and what it will need next. Arithmetic only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from hyperslab.selection import Axis, Points, Range, Selection

__all__ = ["Move", "move_between", "slab_nbytes", "slab_pieces"]

# Small enough that a read which needs something else is not kept waiting: a few milliseconds.
_PIECE_NBYTES = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One index that changed, the rest of the request being the same.

    Attributes
    ----------
    axis
        Whose index.
    before, after
        The indices.
    """

    axis: int
    before: int
    after: int


def move_between(before: tuple[Axis, ...], after: tuple[Axis, ...]) -> Move | None:
    """Return the one index by which two requests differ; None if they differ in anything else.

    Examples
    --------
    >>> move_between((3, Range(0, 1, 9, 0)), (4, Range(0, 1, 9, 0)))
    Move(axis=0, before=3, after=4)
    >>> move_between((3, 4), (4, 5)), move_between((3,), (3,)), move_between((), (3,))
    (None, None, None)
    """
    if len(before) != len(after):
        return None
    found = None
    for axis, (a, b) in enumerate(zip(before, after, strict=True)):
        if isinstance(a, int) and isinstance(b, int):
            if a != b:
                if found is not None:
                    return None
                found = Move(axis=axis, before=a, after=b)
        elif isinstance(a, Points) or isinstance(b, Points) or a != b:
            return None
    return found


def slab_nbytes(axes: tuple[Axis, ...], chunks: tuple[int, ...], itemsize: int) -> int:
    """Return how many bytes the chunks take, decoded, that a request of one plane touches."""
    n = itemsize
    for axis, length in zip(axes, chunks, strict=True):
        n *= length * sum(1 for _ in _by_chunks(axis, length, 1))
    return n


def slab_pieces(
    axes: tuple[Axis, ...], chunks: tuple[int, ...], itemsize: int
) -> Iterator[Selection]:
    """Yield parts of a request that together touch the same chunks, each of them once.

    Parameters
    ----------
    axes
        Of the request: integers and ranges.
    chunks
        Extent of a chunk along each axis.
    itemsize
        Bytes of an element.

    Yields
    ------
    Selection
        Takes from so many chunks as decode to 2 MiB, or from one.
    """
    together = [1] * len(axes)
    chunk_nbytes = math.prod(chunks) * itemsize
    for i in range(len(axes) - 1, -1, -1):
        n_chunks = sum(1 for _ in _by_chunks(axes[i], chunks[i], 1))
        room = max(1, _PIECE_NBYTES // (chunk_nbytes * math.prod(together)))
        together[i] = min(n_chunks, room)
    parts = (
        _by_chunks(axis, length, n) for axis, length, n in zip(axes, chunks, together, strict=True)
    )
    for piece in itertools.product(*parts):
        kept = [axis for axis in piece if isinstance(axis, Range)]
        for out, axis in enumerate(kept):
            axis.out = out
        yield Selection(tuple(axis.size for axis in kept), piece, plain=True)


def _by_chunks(axis: Axis, length: int, together: int) -> Iterator[int | Range]:
    """Cut a range where every `together`-th chunk that it meets begins."""
    if not isinstance(axis, Range):
        yield axis if isinstance(axis, int) else 0
        return
    step = abs(axis.step)
    start = axis.start if axis.step > 0 else axis.start + (axis.size - 1) * axis.step
    end = start + axis.size * step
    while start < end:
        border = (start // (length * together) + 1) * length * together
        size = min(-(-(border - start) // step), (end - start) // step)
        yield Range(start, step, size, 0)
        start += size * step
