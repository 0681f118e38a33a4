"""What can be planned: a dataset, compiled once into the form that reading needs.

==========  =========================================================================
`Cells`     elements come in cells: real chunks, or rows of a dataset that is spread
            over several raw files, or whatever only the HDF5 library can decode; or
            cells that are computed from other nodes
`Flat`      elements lie in row-major order in one place, or were never written
`Mosaic`    a virtual dataset: pieces of other nodes
`Grid`      datasets of one shape, laid out along leading axes (an image's levels)
==========  =========================================================================
"""

from __future__ import annotations

import itertools
import os
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.codecs.base import CodecError
from hyperslab.codecs.pipeline import Pipeline, is_native
from hyperslab.engine.stats import ReadStats
from hyperslab.errors import DamagedFileError, PerformanceWarning
from hyperslab.grid import grid_shape, grid_strides
from hyperslab.index.build import decoded_chunk_nbytes
from hyperslab.index.container import FileIndex
from hyperslab.index.library import require_filters
from hyperslab.index.records import (
    Chunked,
    ChunkTable,
    Compact,
    Contiguous,
    DatasetIndex,
    Fingerprint,
    Null,
    Segment,
    Virtual,
)
from hyperslab.index.session import library_lock

__all__ = [
    "Cells",
    "Compute",
    "Flat",
    "Grid",
    "Mosaic",
    "Node",
    "array_node",
    "chunk_node",
    "computed_node",
    "library_node",
    "node_of",
]

# Fills a cell, which begins at an element, and says what that took.
Compute = Callable[[tuple[int, ...], NDArray[Any]], ReadStats]

_ROWS_NBYTES = 1 << 20


class _OfDataset:
    """What the nodes of one dataset share."""

    __slots__ = ()

    index: DatasetIndex

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent along each axis."""
        return self.index.shape

    @property
    def dtype(self) -> np.dtype:
        """Element type, in native byte order."""
        return self.index.dtype


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cells(_OfDataset):
    """A dataset whose elements are fetched a cell at a time.

    Attributes
    ----------
    index
        The dataset's facts.
    cell
        Shape of a cell.
    grid, strides
        Number of cells along each axis; strides of the linear cell number.
    decoded_nbytes
        Of a whole cell.
    uid
        The dataset's number in this process, for cache keys.
    table
        Chunk table for cells that are chunks; None for others.
    pipeline
        Decoders; None where the cell is not a chunk that we decode.
    segments
        For cells that are rows of a dataset spread over raw files.
    through_library
        True if cells come from the HDF5 library.
    compute
        For cells that are made of other nodes' elements: fills an array of the cell's shape, cut
        at the end of the dataset. It may read, but only nodes that do not in turn need this one.
    sources
        The other files whose elements computed cells are made of; grows as they are.
    plane_order
        Order in which the byte planes of a shuffled cell make up a native element.
    raw
        True if the stored bytes are the elements themselves, in native byte order.
    by_rows
        True if a cell is one index of the first axis, whole.
    one_byte
        True if elements are booleans, which the cells hold as bytes.
    """

    index: DatasetIndex
    cell: tuple[int, ...]
    grid: tuple[int, ...]
    strides: tuple[int, ...]
    decoded_nbytes: int
    uid: int
    table: ChunkTable | None = None
    pipeline: Pipeline | None = None
    segments: tuple[tuple[Segment, Fingerprint], ...] = ()
    through_library: bool = False
    compute: Compute | None = None
    sources: dict[str, Fingerprint] = field(default_factory=dict)
    plane_order: tuple[int, ...] | None = None
    raw: bool = False
    by_rows: bool = False
    one_byte: bool = False

    @property
    def cell_dtype(self) -> np.dtype:
        """Element type of a fetched cell: the HDF5 library has converted already."""
        return self.index.dtype if self.through_library else self.index.file_dtype


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flat(_OfDataset):
    """A dataset in one piece.

    Attributes
    ----------
    index
        The dataset's facts.
    segment, fingerprint
        Where the elements lie, and what that file looked like; None: never written, all fill.
    data
        The elements themselves, for a compact dataset.
    """

    index: DatasetIndex
    segment: Segment | None = None
    fingerprint: Fingerprint | None = None
    data: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mosaic(_OfDataset):
    """A virtual dataset.

    Attributes
    ----------
    index
        The dataset's facts.
    storage
        Its mappings.
    low, high
        int64, (mappings, axes): lowest and highest index that each mapping covers.
    open_source
        Gives the node of a source, from its file and dataset.
    """

    index: DatasetIndex
    storage: Virtual
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    open_source: Callable[[str, str], Node]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """Datasets of one shape side by side along leading axes.

    Attributes
    ----------
    shape
        Of the whole; the last axes are the datasets' own, cut to their true size where a dataset
        is padded.
    dtype
        Of every dataset.
    n_outer
        How many leading axes run over datasets.
    child
        Gives the node at a row-major position of the outer axes; None reads as zeros.
    order
        Per axis that the datasets themselves have: which of their axes it is.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    n_outer: int
    child: Callable[[int], Node | None]
    order: tuple[int, ...]


Node = Cells | Flat | Mosaic | Grid

_uids: dict[tuple[str, str, Fingerprint], int] = {}
_next_uid = itertools.count()
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that held it did not come along


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _uid(index: DatasetIndex) -> int:
    """Return the same number for the same dataset of the same, unchanged file."""
    with _lock:
        key = (index.file, index.name, index.fingerprint)
        if key not in _uids:
            _uids[key] = next(_next_uid)
        return _uids[key]


def node_of(container: FileIndex, name: str) -> Node:
    """Compile dataset `name` of `container` for reading.

    Raises
    ------
    MissingObjectError, MissingSourceError, UnsupportedDtypeError, MissingCodecError
    StaleIndexError

    Warns
    -----
    PerformanceWarning
        Once a dataset, where only the HDF5 library can read it.

    Notes
    -----
    Loads the chunk table of a chunked dataset if it was not loaded before.
    """
    index = container.dataset(name)
    storage = index.storage
    if not index.direct:
        return library_node(index)
    match storage:
        case Chunked():
            if not is_native(index.filters):
                names = ", ".join(entry.name for entry in index.filters)
                require_filters(index)
                return _library_cells(index, f"hyperslab has no decoder for its filters ({names})")
            return _chunk_cells(index, storage, container.chunk_table(name))
        case Contiguous(segments=()) | Null():
            return Flat(index=index)
        case Contiguous(segments=(segment,)):
            return Flat(
                index=index,
                segment=segment,
                fingerprint=container.fingerprint_of(segment.file, index),
            )
        case Contiguous(segments=segments):
            prints = [(s, container.fingerprint_of(s.file, index)) for s in segments]
            return _row_cells(index, segments=tuple(prints))
        case Compact(data=data):
            return Flat(index=index, data=data)
        case Virtual():
            shape = (len(storage.mappings), len(index.shape))
            ends = [[(t[0], t[-1]) for t in m.virtual] for m in storage.mappings]
            bounds = np.array(ends, np.int64).reshape(*shape, 2)
            return Mosaic(
                index=index,
                storage=storage,
                low=bounds[..., 0],
                high=bounds[..., 1],
                open_source=lambda file, dataset: node_of(container.source(file, index), dataset),
            )


def library_node(index: DatasetIndex) -> Node:
    """Compile a dataset for reading through the HDF5 library, with a `PerformanceWarning`."""
    return _library_cells(index, "its elements or its mapping need the HDF5 library")


_warned: set[int] = set()


def _library_cells(index: DatasetIndex, reason: str) -> Cells:
    if (uid := _uid(index)) not in _warned:
        _warned.add(uid)
        warnings.warn(
            f"{index.file}: {index.name} is read through the HDF5 library, one chunk at a time: "
            f"{reason}.",
            PerformanceWarning,
            stacklevel=2,
        )
    if isinstance(index.storage, Chunked):
        return _cells(index, index.storage.chunks, through_library=True)
    return _row_cells(index, through_library=True)


def _chunk_cells(index: DatasetIndex, storage: Chunked, table: ChunkTable) -> Cells:
    try:
        # Imports decoders. A thread that holds the library's lock (in an h5py callback, say) may be
        # importing as well, so that lock is always taken before Python's own for imports.
        with library_lock:
            pipeline = Pipeline(
                index.filters,
                itemsize=index.file_dtype.itemsize,
                decoded_nbytes=decoded_chunk_nbytes(index),
            )
    except CodecError as error:
        raise DamagedFileError(
            f"{index.file}: the filters of {index.name} make no sense: {error}. The file is "
            "damaged, or written by something that hyperslab does not know.",
            file=index.file,
            dataset=index.name,
        ) from error
    return _cells(
        index,
        storage.chunks,
        table=table,
        pipeline=pipeline,
        plane_order=_plane_order(index.file_dtype),
    )


def _row_cells(
    index: DatasetIndex,
    *,
    segments: tuple[tuple[Segment, Fingerprint], ...] = (),
    through_library: bool = False,
) -> Cells:
    """Cut a dataset without chunks into contiguous runs of about a mebibyte."""
    cell = list(index.shape)
    nbytes = index.dtype.itemsize
    for axis in range(len(cell) - 1, -1, -1):
        if nbytes * cell[axis] > _ROWS_NBYTES:
            cell[axis] = max(1, _ROWS_NBYTES // nbytes)
            cell[:axis] = [1] * axis
            break
        nbytes *= cell[axis]
    return _cells(
        index,
        tuple(max(1, n) for n in cell),
        segments=segments,
        through_library=through_library,
    )


def _cells(
    index: DatasetIndex,
    cell: tuple[int, ...],
    *,
    table: ChunkTable | None = None,
    pipeline: Pipeline | None = None,
    segments: tuple[tuple[Segment, Fingerprint], ...] = (),
    through_library: bool = False,
    compute: Compute | None = None,
    sources: dict[str, Fingerprint] | None = None,
    plane_order: tuple[int, ...] | None = None,
) -> Cells:
    grid = grid_shape(index.shape, cell)
    return Cells(
        index=index,
        cell=cell,
        grid=grid,
        strides=grid_strides(grid),
        decoded_nbytes=int(np.prod(cell, dtype=np.int64)) * index.file_dtype.itemsize,
        uid=_uid(index),
        table=table,
        pipeline=pipeline,
        segments=segments,
        through_library=through_library,
        compute=compute,
        sources={} if sources is None else sources,
        plane_order=plane_order,
        raw=table is not None and not index.filters and index.file_dtype.isnative,
        by_rows=bool(cell) and cell[0] == 1 and cell[1:] == index.shape[1:],
        one_byte=index.dtype.kind == "b" and not through_library,
    )


def computed_node(
    compute: Compute,
    *,
    file: str,
    name: str,
    fingerprint: Fingerprint,
    sources: dict[str, Fingerprint],
    shape: tuple[int, ...],
    dtype: np.dtype,
    cell: tuple[int, ...],
) -> Cells:
    """Return a node whose elements are computed, a cell at a time, and kept like decoded chunks.

    Parameters
    ----------
    compute
        See `Cells.compute`.
    file, fingerprint
        What it is computed from.
    sources
        Other files that it is computed from; `compute` adds to them. They have to be unchanged for
        any later read.
    name
        Of the result: one name of one unchanged file is always the same result.
    shape, dtype
        Of the whole; the dtype in native byte order.
    cell
        Shape of what is computed at once.
    """
    index = _made_up(file, name, fingerprint, shape, dtype, Chunked(cell))
    return _cells(index, cell, compute=compute, sources=sources)


def array_node(
    segment: Segment,
    *,
    name: str,
    fingerprint: Fingerprint,
    shape: tuple[int, ...],
    dtype: np.dtype,
) -> Flat:
    """Return a node for native elements that lie in row-major order in some file, HDF5 or not."""
    index = _made_up(segment.file, name, fingerprint, shape, dtype, Contiguous((segment,)))
    return Flat(index=index, segment=segment, fingerprint=fingerprint)


def chunk_node(index: DatasetIndex, table: ChunkTable) -> Cells:
    """Return a node for chunks that lie in some file, HDF5 or not, where `table` says.

    Raises
    ------
    TypeError
        `index` is not of a chunked dataset.
    """
    if not isinstance(index.storage, Chunked):
        raise TypeError(f"{index.name} is not chunked")
    return _chunk_cells(index, index.storage, table)


def _made_up(
    file: str,
    name: str,
    fingerprint: Fingerprint,
    shape: tuple[int, ...],
    dtype: np.dtype,
    storage: Chunked | Contiguous,
) -> DatasetIndex:
    """Return the facts of what is read like a dataset, and is none of an HDF5 file."""
    return DatasetIndex(
        file=file,
        name=name,
        shape=shape,
        dtype=dtype,
        file_dtype=np.dtype(np.uint8) if dtype.kind == "b" else dtype,
        fill=np.zeros((), dtype),
        filters=(),
        storage=storage,
        direct=True,
        stored_nbytes=0,
        fingerprint=fingerprint,
    )


def _plane_order(file_dtype: np.dtype) -> tuple[int, ...] | None:
    """Return which byte plane is which byte of a native element; None if they are in order."""
    if file_dtype.isnative:
        return None
    # byteswap turns the two halves of a complex number around one by one, as it must.
    raw = np.arange(file_dtype.itemsize, dtype=np.uint8).view(file_dtype).byteswap()
    return tuple(int(i) for i in raw.view(np.uint8))
