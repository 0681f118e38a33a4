"""Where elements are read from: a dataset, or the finer level that a coarser one is made of."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyperslab.array import Array
from hyperslab.engine.node import Cells, Flat, Node, chunk_node
from hyperslab.engine.pool import run_together
from hyperslab.engine.read import read
from hyperslab.engine.source import drop_pages
from hyperslab.index.records import Chunked, ChunkTable, DatasetIndex, fingerprint
from hyperslab.pyramid.mean import every_second, halve
from hyperslab.rewriting.plan import DatasetPlan, LevelOf
from hyperslab.rewriting.regions import regions_of
from hyperslab.selection import select

__all__ = ["DatasetSource", "LevelSource", "Source", "stored_node"]

Region = tuple[slice, ...]

_CELL_NBYTES = 2 << 20  # of the finer level, read and halved at a time: this fits a core's cache
# What a cell takes while it is halved, in its own bytes: wider numbers, and sums of these.
_CELL_COPIES = 6
_MAPPED_NBYTES = 16 << 20  # of a file, that are mapped into memory before they are let go
_CELLS_SHARE = 0.25  # of the memory ceiling, for the cells of all threads


class Source(Protocol):
    """What a `Cutter` reads from.

    Attributes
    ----------
    dtype
        What `read` fills, in native byte order.
    file_dtype
        The elements as a file like the source has them.
    fill
        Value of elements that were never written, 0-d.
    """

    @property
    def dtype(self) -> np.dtype: ...

    @property
    def file_dtype(self) -> np.dtype: ...

    @property
    def fill(self) -> NDArray[Any]: ...

    def read(self, region: Region, out: NDArray[Any], *, threads: int) -> None:
        """Fill `out` with a region, given along the source's own axes."""


class DatasetSource:
    """A dataset of a file."""

    def __init__(self, array: Array) -> None:
        self._array = array

    @property
    def dtype(self) -> np.dtype:
        """As `Source`."""
        return self._array.dtype

    @property
    def file_dtype(self) -> np.dtype:
        """As `Source`."""
        return self._array.index.file_dtype

    @property
    def fill(self) -> NDArray[Any]:
        """As `Source`."""
        return self._array.index.fill

    def read(self, region: Region, out: NDArray[Any], *, threads: int) -> None:
        """As `Source`. Nothing is kept decoded: no chunk is needed twice."""
        node = self._array.node
        if isinstance(node, Cells) and not _lies_together(node.cell, out):
            node = replace(node, raw=False)
        for part in regions_of(out.shape, self._part(out.shape)):
            there = tuple(
                slice(r.start + p.start, r.start + p.stop)
                for r, p in zip(region, part, strict=True)
            )
            selection = select(there, self._array.shape)
            read([(node, selection, out[part])], threads=threads, keep=False)
            drop_pages()

    def _part(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return how much of a region is read at a time: the whole, but of a dataset in one piece.

        That is read through a map, whose pages count, those in between of other elements too.
        """
        node = self._array.node
        if not isinstance(node, Flat):
            return shape
        part = list(shape)
        for axis in range(len(shape)):
            span = math.prod(node.shape[axis + 1 :]) * node.dtype.itemsize
            part[axis] = min(shape[axis], max(1, _MAPPED_NBYTES // max(1, span)))
            if span <= _MAPPED_NBYTES:
                break
        return tuple(part)


def _lies_together(cell: tuple[int, ...], out: NDArray[Any]) -> bool:
    """Tell whether whole cells are contiguous in `out`: then stored bytes go right into place."""
    nbytes = out.itemsize
    for n, stride in zip(reversed(cell), reversed(out.strides), strict=True):
        if n > 1 and stride != nbytes:
            return False
        nbytes *= n
    return True


class LevelSource:
    """A coarser level, computed of a finer one.

    Parameters
    ----------
    level
        What it is made of, and how.
    origin
        The dataset of the source that it goes back to.
    dtype
        Type in which the result is stored, where that is not the origin's.
    finer
        Gives the node of the finer level, as its file is at the moment.
    cell
        Shape of the finer level's chunks, or None if it has none.
    memory_nbytes
        The ceiling.
    """

    def __init__(
        self,
        level: LevelOf,
        origin: DatasetIndex,
        dtype: str,
        finer: Callable[[], Node],
        cell: tuple[int, ...] | None,
        memory_nbytes: int,
    ) -> None:
        self._level = level
        self._finer = finer
        self._cell = cell
        self._memory_nbytes = memory_nbytes
        self.file_dtype = np.dtype(dtype) if dtype else origin.file_dtype
        self.dtype = np.dtype(dtype).newbyteorder("=") if dtype else origin.dtype
        self.fill = origin.fill.astype(self.dtype)

    def read(self, region: Region, out: NDArray[Any], *, threads: int) -> None:
        """As `Source`. Each thread reads and halves a cell at a time."""
        level = self._level
        node = self._finer()
        meant = np.dtype(level.meant)
        target = out.view(meant)  # a copy would not do
        cells = regions_of(out.shape, self._cell_shape(node.dtype.itemsize, threads))
        nbytes = 0
        drawing = threading.Lock()
        stop = threading.Event()

        def work() -> None:
            nonlocal nbytes
            while not stop.is_set():
                with drawing:
                    cell = next(cells, None)
                if cell is None:
                    return
                there = tuple(
                    slice((r.start + c.start) * step, min((r.start + c.stop) * step, n))
                    for r, c, step, n in zip(region, cell, level.steps, level.shape, strict=True)
                )
                selection = select(there, node.shape)
                values = np.empty(selection.shape, node.dtype)
                read([(node, selection, values)], threads=1, keep=False)
                smaller = every_second if level.nearest else halve
                target[cell] = smaller(_seen_as(values, meant), level.halved)
                with drawing:
                    nbytes += values.nbytes
                    full = nbytes > _MAPPED_NBYTES
                    nbytes = 0 if full else nbytes
                if full:
                    drop_pages()

        run_together(work, threads, stop)
        drop_pages()

    def _cell_shape(self, itemsize: int, threads: int) -> tuple[int, ...]:
        """Return what of the coarser level is computed at a time: of whole finer chunks, at best.

        Where one chunk is more than its share of the memory, it is decoded for each part of it.
        """
        level = self._level
        share = int(self._memory_nbytes * _CELLS_SHARE) // (threads * _CELL_COPIES)
        finer = [
            min(c * (1 + (step == 2 and c % 2)), n + n % step)
            for c, n, step in zip(self._cell or level.shape, level.shape, level.steps, strict=True)
        ]
        while math.prod(finer) * itemsize > max(share, 1) and max(finer) > 2:
            axis = finer.index(max(finer))
            finer[axis] = 2 * -(-finer[axis] // 4)
        for axis in range(len(finer) - 1, -1, -1):
            while (
                2 * math.prod(finer) * itemsize <= min(_CELL_NBYTES, share)
                and finer[axis] < level.shape[axis]
            ):
                finer[axis] *= 2
        return tuple(max(1, n // step) for n, step in zip(finer, level.steps, strict=True))


def stored_node(
    path: str,
    plan: DatasetPlan,
    like: Source,
    number: NDArray[np.int64],
    byte_offset: NDArray[np.int64],
    nbytes: NDArray[np.int64],
) -> Node:
    """Return a node for chunks that were encoded and lie somewhere in a file.

    Parameters
    ----------
    path
        Of the file, as it is now.
    plan
        What was planned of the dataset; all of its chunks that are there have been written.
    like
        What the chunks were made of.
    number, byte_offset, nbytes
        Of each chunk, by rising number; those that are not there hold the fill value.
    """
    now = fingerprint(path)
    index = DatasetIndex(
        file=path,
        name=plan.path,
        shape=plan.shape,
        dtype=like.file_dtype.newbyteorder("=") if like.dtype.kind != "b" else like.dtype,
        file_dtype=like.file_dtype,
        fill=like.fill,
        filters=plan.codec.pipeline(plan.itemsize),
        storage=Chunked(plan.chunks),
        direct=True,
        stored_nbytes=int(nbytes.sum()),
        fingerprint=now,
    )
    table = ChunkTable(
        number=None if number.size == plan.n_chunks else number,
        byte_offset=byte_offset,
        nbytes=nbytes,
        filter_mask=np.zeros(number.size, np.uint32),
    )
    return chunk_node(index, table)


def _seen_as(values: NDArray[Any], dtype: np.dtype) -> NDArray[Any]:
    """Return values as what they mean: integers of the other sign are the same bytes."""
    if {values.dtype.kind, dtype.kind} == {"i", "u"} and values.itemsize == dtype.itemsize:
        return values.view(dtype)
    return values.astype(dtype, copy=False)
