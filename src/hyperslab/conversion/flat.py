"""Formats in which elements lie one after the other: ``.npy`` and OME-TIFF."""

from __future__ import annotations

import bisect
import itertools
import math
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.conversion.axes import canonical_order
from hyperslab.conversion.plan import fitting_threads, level_of, reading_nbytes
from hyperslab.conversion.reading import read_once
from hyperslab.conversion.region import Written
from hyperslab.errors import CapacityError, OutputError, SelectionError
from hyperslab.exports.text import human_nbytes
from hyperslab.image import Image
from hyperslab.rewriting.encode import Cancelled
from hyperslab.rewriting.memory import Memory

__all__ = ["FlatPlan", "copy_regions", "plan_flat"]

_MOST_REGION_NBYTES = 256 << 20

Region = tuple[slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatPlan:
    """A level, or a part of it, as one array in a file.

    Attributes
    ----------
    axes
        Letters of the result's axes.
    order
        Which axis of the selection each of them is.
    kept
        Which axis of the image each axis of the selection is.
    level
        Of the image.
    selection
        One index or slice per axis of the image.
    dtype
        NumPy name of the element type.
    shape
        Of the result.
    borders
        Along each axis of the result, where regions begin; and its extent.
    threads
        To decode with: as many as memory allows.
    """

    axes: str
    order: tuple[int, ...]
    kept: tuple[int, ...]
    level: int
    selection: tuple[int | slice, ...]
    dtype: str
    shape: tuple[int, ...]
    borders: tuple[tuple[int, ...], ...]
    threads: int

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def regions(self) -> Iterator[Region]:
        """Yield what is read at once, in the order in which it lies in the file."""
        parts = [[slice(a, b) for a, b in itertools.pairwise(edges)] for edges in self.borders]
        yield from itertools.product(*parts)


def plan_flat(
    image: Image,
    *,
    level: int,
    selection: Any,
    canonical: bool,
    memory_nbytes: int,
    threads: int,
) -> FlatPlan:
    """Plan an array in a file; nothing is read but metadata.

    Parameters
    ----------
    image, level
        Of which.
    selection
        Numbers and slices of step 1, as an index has them.
    canonical
        Put the axes into the order T, C, Z, Y, X; otherwise they stay as the image has them.
    memory_nbytes, threads
        As in `convert`.

    Raises
    ------
    SelectionError
        No such level, or the selection does not fit.
    CapacityError
        Reading takes more memory than that.
    """
    found = image.levels[level_of(image, level)]
    chosen = _plain(image, selection, found.shape)
    kept = [axis for axis, index in enumerate(chosen) if isinstance(index, slice)]
    letters = "".join(image.axes[axis] for axis in kept)
    order = canonical_order(letters) if canonical else tuple(range(len(letters)))
    starts = []
    shape = []
    chunks = []
    for axis in (kept[i] for i in order):
        index = chosen[axis]
        if isinstance(index, slice):
            starts.append(index.start)
            shape.append(index.stop - index.start)
            chunks.append(max(1, found.chunks[axis]))
    per_thread = reading_nbytes(found)
    n_threads = fitting_threads(threads, memory_nbytes, per_thread)
    most = memory_nbytes - n_threads * per_thread
    if most < found.dtype.itemsize:
        raise CapacityError(
            f"{image.file}: reading level {level} takes {human_nbytes(per_thread)} beside the "
            f"result, and {human_nbytes(memory_nbytes)} are allowed. Allow more (--memory).",
            file=image.file,
            wanted_nbytes=per_thread,
            at_hand_nbytes=memory_nbytes,
        )
    most = min(most, _MOST_REGION_NBYTES) // found.dtype.itemsize
    return FlatPlan(
        axes="".join(letters[i] for i in order),
        order=order,
        kept=tuple(kept),
        level=level,
        selection=chosen,
        dtype=found.dtype.name,
        shape=tuple(shape),
        borders=_borders(starts, shape, chunks, most),
        threads=n_threads,
    )


def _plain(image: Image, selection: Any, shape: tuple[int, ...]) -> tuple[int | slice, ...]:
    """Return one number or slice of step 1 per axis."""
    given = selection if isinstance(selection, tuple) else (selection,)
    n = len(shape)
    if sum(item is Ellipsis for item in given) > 1 or len(given) - (Ellipsis in given) > n:
        raise SelectionError(f"{image.file}: {selection} has more entries than axes {image.axes}.")
    if Ellipsis in given:
        at = given.index(Ellipsis)
        missing = n - len(given) + 1
        given = (*given[:at], *[slice(None)] * missing, *given[at + 1 :])
    given = (*given, *[slice(None)] * (n - len(given)))
    chosen: list[int | slice] = []
    for item, letter, extent in zip(given, image.axes, shape, strict=True):
        if isinstance(item, slice) and item.step in (None, 1):
            start, stop, _ = item.indices(extent)
            chosen.append(slice(start, max(start, stop)))
        elif isinstance(item, (int, np.integer)) and -extent <= item < extent:
            chosen.append(int(item) % extent)
        else:
            raise SelectionError(
                f"{image.file}: {item!r} along {letter}, which has {extent}, cannot be converted. "
                "Give numbers within it, or slices of step 1."
            )
    return tuple(chosen)


def _borders(
    starts: list[int], shape: list[int], chunks: list[int], most: int
) -> tuple[tuple[int, ...], ...]:
    """Return where regions begin along each axis: at borders of chunks, if one fits into memory.

    `starts` are where the selection begins in the level, and `most` the elements of a region.
    Regions grow along the last axes first, which lie together in the file.
    """
    steps = [min(c, n) if n else 1 for c, n in zip(chunks, shape, strict=True)]
    for axis in range(len(steps)):  # a chunk that is too large is cut, and decoded more than once
        while steps[axis] > 1 and math.prod(steps) > most:
            steps[axis] = -(-steps[axis] // 2)
    if math.prod(steps) == math.prod(min(c, n or 1) for c, n in zip(chunks, shape, strict=True)):
        steps = list(chunks)
        for axis in reversed(range(len(steps))):
            while steps[axis] < starts[axis] % chunks[axis] + shape[axis]:
                larger = [*steps[:axis], 2 * steps[axis], *steps[axis + 1 :]]
                within = [min(s, n) for s, n in zip(larger, shape, strict=True)]
                if math.prod(within) > most:
                    break
                steps = larger
    found = []
    for start, n, chunk, step in zip(starts, shape, chunks, steps, strict=True):
        edges = range(start // chunk * chunk, start + n, step)
        found.append((0, *(e - start for e in edges[bisect.bisect_right(edges, start) :]), n))
    return tuple(edges if n else () for edges, n in zip(found, shape, strict=True))


def copy_regions(
    path: Path,
    byte_offset: int,
    image: Image,
    plan: FlatPlan,
    regions: Iterator[Region],
    *,
    cancelled: threading.Event,
) -> Iterator[Written]:
    """Read regions, and put them where they belong in the file.

    Parameters
    ----------
    path, byte_offset
        The file, as large as it will be, and where its elements begin.
    image, plan
        Of what.
    regions
        Those that are still to be done.
    cancelled
        Set by whoever wants it to stop.

    Yields
    ------
    Written
        One a region.
    """
    level = image.levels[plan.level]
    back = np.argsort(plan.order)
    memory = Memory()
    with open(path, "r+b", buffering=0) as stream:
        for region in regions:
            if cancelled.is_set():
                raise Cancelled
            values = memory.array([part.stop - part.start for part in region], plan.dtype)
            where = _absolute(plan, tuple(region[axis] for axis in back))
            stats = read_once(level, where, values.transpose(back), threads=plan.threads)
            for place, part in _runs(plan.shape, region, values):
                stream.seek(byte_offset + place * values.itemsize)
                left = part.view(np.uint8).data
                while left:
                    left = left[stream.write(left) or 0 :]
            yield Written(
                start=tuple(part.start for part in region),
                nbytes=values.nbytes,
                files=[path],
                chunks_decoded=stats.chunks_decoded,
            )


def _absolute(plan: FlatPlan, part: Region) -> tuple[int | slice, ...]:
    """Return a part of the selection, a slice for each of its axes, as a selection of the level."""
    found = list(plan.selection)
    for axis, inner in zip(plan.kept, part, strict=True):
        outer = found[axis]
        first = outer.start if isinstance(outer, slice) else outer
        found[axis] = slice(first + inner.start, first + inner.stop)
    return tuple(found)


def _runs(
    shape: tuple[int, ...], region: Region, values: NDArray[Any]
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield what lies together in the file: number of its first element, and the elements."""
    depth = len(shape)
    while depth and values.shape[depth - 1] == shape[depth - 1]:
        depth -= 1
    outer = max(0, depth - 1)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    first = sum(part.start * stride for part, stride in zip(region, strides, strict=True))
    for place in np.ndindex(*values.shape[:outer]):
        where = first + sum(i * s for i, s in zip(place, strides, strict=False))
        yield where, values[place].reshape(-1)


def create_npy(path: Path, plan: FlatPlan) -> int:
    """Make the file, as large as it will be; return where its elements begin."""
    made = np.lib.format.open_memmap(path, mode="w+", dtype=plan.dtype, shape=plan.shape)
    return int(made.offset)


def check_size(path: Path, nbytes: int) -> None:
    """Raise `OutputError` if a file is smaller than what it holds: not the one that was made."""
    if os.path.getsize(path) < nbytes:
        raise OutputError(f"{path}: is not what was begun. Delete its folder to begin anew.")
