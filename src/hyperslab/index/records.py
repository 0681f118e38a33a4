"""Facts about one dataset, and where its bytes lie: columns, never an object per chunk."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyperslab.errors import MissingFileError
from hyperslab.filters import Filter

__all__ = [
    "ChunkTable",
    "Chunked",
    "Compact",
    "Contiguous",
    "DatasetIndex",
    "Fingerprint",
    "Mapping",
    "Null",
    "Segment",
    "Storage",
    "Virtual",
    "fingerprint",
]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What tells a file from its changed self: identity, size and time of the last write.

    Attributes
    ----------
    device, inode
        Identity of the file on this machine.
    nbytes
        Size.
    mtime_ns
        Time of the last write, nanoseconds.
    """

    device: int
    inode: int
    nbytes: int
    mtime_ns: int


def fingerprint(path: str) -> Fingerprint:
    """Return the fingerprint of the file at `path`: one `stat`, about a microsecond."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise MissingFileError(
            f"{path}: no such file (any more). Check the path, or open the file anew.", file=path
        ) from None
    return Fingerprint(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of raw bytes: `nbytes` from `byte_offset` of `file`."""

    file: str
    byte_offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Chunked:
    """Chunks of shape `chunks`; their table is loaded when the first one is read."""

    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Contiguous:
    """Raw elements in row-major order, through one or more segments; none: never written."""

    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Compact:
    """The elements themselves, which HDF5 keeps in the object header (at most 64 KiB)."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Null:
    """A dataset without a dataspace extent: it holds no element at all."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mapping:
    """One piece of a virtual dataset, as a product of per-axis index tables.

    Attributes
    ----------
    file
        Absolute path of the source file.
    dataset
        Path of the source dataset.
    virtual
        int64, increasing, one table per axis of the virtual dataset.
    source
        The same for the source dataset; None where all of it is meant, whatever its shape.
    follows
        Per axis of the source: the axis of the virtual dataset that it follows, position by
        position of their tables; None for an axis of one index, which stays. Empty where `source`
        is None.
    grows
        True for an unlimited mapping: what its source does not have yet is fill.
    """

    file: str
    dataset: str
    virtual: tuple[NDArray[np.int64], ...]
    source: tuple[NDArray[np.int64], ...] | None
    follows: tuple[int | None, ...]
    grows: bool


@dataclass(frozen=True, slots=True, eq=False)
class Virtual:
    """A virtual dataset: a mosaic of pieces of other datasets."""

    mappings: tuple[Mapping, ...]


Storage = Chunked | Contiguous | Compact | Null | Virtual


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DatasetIndex:
    """One dataset, as it was when it was indexed.

    Attributes
    ----------
    file
        Absolute path of the file that holds it (behind external links, not always the one opened).
    name
        Absolute HDF5 path in that file.
    shape
        Extent along each axis.
    dtype
        Element type in native byte order: what a read returns.
    file_dtype
        Element type as it lies in the file; for booleans, the one-byte integer.
    fill
        The value of elements that were never written, 0-d, of `dtype`.
    filters
        In the order in which they were applied on writing.
    storage
        Where the elements are.
    direct
        True if `file_dtype` describes the bytes exactly; False where only HDF5's own conversion
        gives the values (odd precisions, offsets or float formats).
    stored_nbytes
        Bytes that the dataset takes in the file.
    fingerprint
        Of `file`.
    """

    file: str
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    file_dtype: np.dtype
    fill: NDArray[np.generic]
    filters: tuple[Filter, ...]
    storage: Storage
    direct: bool
    stored_nbytes: int
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkTable:
    """The allocated chunks of a dataset, in columns, ordered by linear chunk number.

    Attributes
    ----------
    number
        int64: row-major position in the chunk grid. None when every chunk is allocated, since then
        row i is chunk i.
    byte_offset
        int64: from the start of the file, a user block included.
    nbytes
        int64: stored size.
    filter_mask
        uint32: bit i set means that filter i was skipped for this chunk.
    unfiltered_edges
        True if chunks that reach past the end of the dataset are stored without any filter, though
        their mask does not say so.
    sound
        False if any entry makes no sense (outside the file, or an unfiltered chunk of the wrong
        size): then every read checks the entries it uses.
    """

    number: NDArray[np.int64] | None
    byte_offset: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    filter_mask: NDArray[np.uint32]
    unfiltered_edges: bool = False
    sound: bool = True

    def rows(self, number: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of each linear chunk number, int64, -1 where it is not allocated."""
        if self.number is None:
            return number
        if self.number.size == 0:
            return np.full(number.shape, -1, np.int64)
        row = np.searchsorted(self.number, number)
        row[row == self.number.size] = 0
        return np.where(self.number[row] == number, row, -1)
