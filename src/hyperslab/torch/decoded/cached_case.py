"""`CachedCase`: a whole dataset, decoded, in a file of its own with the slices first."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.array import Array, Readable
from hyperslab.engine.node import Cells, Flat, Mosaic, Node
from hyperslab.errors import HyperslabError, MissingFileError
from hyperslab.index.records import (
    Contiguous,
    DatasetIndex,
    Fingerprint,
    Segment,
    Virtual,
    fingerprint,
)

__all__ = ["CachedCase", "CaseKey", "case_key", "open_case", "unchanged", "write_case"]

_FORMAT = 1  # part of every name: entries of another format are never met
_SLAB_NBYTES = 32 << 20  # decoded and written at a time


class CachedCase(Readable):
    """A decoded dataset: shape (slices, ...), C order, in the stored dtype and native byte order.

    Made by `CaseCache`. Reads through the pooled descriptors of `read_many` and holds none itself;
    thread-safe; pickles as what it knows of its file, about a kilobyte. ``numpy.load(case.file,
    mmap_mode="r")`` maps it.

    Parameters
    ----------
    index
        Of the .npy file: one segment.
    """

    chunks = None

    def __init__(self, index: DatasetIndex) -> None:
        self._index = index
        (segment,) = index.storage.segments  # type: ignore[union-attr] # always Contiguous
        self._node = Flat(index=index, segment=segment, fingerprint=index.fingerprint)

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedCase, (self._index,)

    def _facts(self) -> dict[str, Any]:
        return {"file": self.file, "dataset": self.name}

    @property
    def index(self) -> DatasetIndex:
        """Where its elements lie."""
        return self._index

    @property
    def node(self) -> Node:
        """The compiled dataset that reads are planned from."""
        return self._node

    @property
    def file(self) -> str:
        """Absolute path of the .npy file."""
        return self._index.file

    @property
    def name(self) -> str:
        """Path of the dataset in the file that it was decoded from."""
        return self._index.name

    @property
    def shape(self) -> tuple[int, ...]:
        """(slices, ...): the source's shape, the slice axis moved to the front."""
        return self._index.shape

    @property
    def dtype(self) -> np.dtype:
        """Element type, the source's, in native byte order."""
        return self._index.dtype

    def __repr__(self) -> str:
        return f"<hyperslab.CachedCase {self.name!r} {self.shape} {self.dtype} in {self.file!r}>"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CaseKey:
    """What an entry of the cache is to hold, and what it is called.

    Attributes
    ----------
    digest
        32 hexadecimal digits, the stem of the file's name. It depends on real path, size and time
        of the last write of every file that the values come from, on dataset and slice axis: a
        source that has changed is another entry.
    name
        Absolute HDF5 path of the dataset.
    shape, dtype
        (slices, ...) and native dtype.
    sources
        The files that the values come from, as they were when they were indexed.
    header
        What the .npy file begins with.
    """

    digest: str
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    sources: tuple[tuple[str, Fingerprint], ...]
    header: bytes

    @property
    def nbytes(self) -> int:
        """Size of the file, header included."""
        return len(self.header) + math.prod(self.shape) * self.dtype.itemsize


def case_key(array: Array, axis: int) -> CaseKey | None:
    """Return the key of `array` decoded with slices along `axis`.

    Parameters
    ----------
    array
        With one axis at least.
    axis
        Slice axis, negative ones from the end.

    Returns
    -------
    CaseKey or None
        None where it is not known which files the values come from: a virtual dataset that only the
        HDF5 library can read, or whose sources cannot be opened.

    Raises
    ------
    ValueError
        No such axis.
    """
    index = array.index
    n = len(index.shape)
    if not -n <= axis < n:
        raise ValueError(f"{index.file}: {index.name} has {n} axes; there is no axis {axis}")
    axis %= n
    sources = _sources(array)
    if sources is None:
        return None
    shape = (index.shape[axis], *index.shape[:axis], *index.shape[axis + 1 :])
    named = [
        [os.path.realpath(path), found.nbytes, found.mtime_ns] for path, found in sources.items()
    ]
    text = json.dumps([_FORMAT, index.name, axis, named[0], sorted(named[1:])])
    stream = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(index.dtype)
    np.lib.format.write_array_header_1_0(
        stream, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return CaseKey(
        digest=hashlib.blake2b(text.encode(), digest_size=16).hexdigest(),
        name=index.name,
        shape=shape,
        dtype=index.dtype,
        sources=tuple(sources.items()),
        header=stream.getvalue(),
    )


def _sources(array: Array) -> dict[str, Fingerprint] | None:
    """Return the files that the values of `array` come from, its own first."""
    index = array.index
    found = {index.file: index.fingerprint}
    storage = index.storage
    elsewhere = isinstance(storage, Contiguous) and any(
        segment.file != index.file for segment in storage.segments
    )
    if not elsewhere and not isinstance(storage, Virtual):
        return found  # without compiling it, which would load its chunk table
    try:
        return found if _collect(array.node, found) else None
    except HyperslabError:
        return None  # reading it says what is wrong


def _collect(node: Node, found: dict[str, Fingerprint]) -> bool:
    """Add the files of a compiled dataset to `found`; False if they are not all known."""
    match node:
        case Flat(index=index, segment=segment, fingerprint=expected):
            found[index.file] = index.fingerprint
            if segment is not None and expected is not None:
                found[segment.file] = expected
            return True
        case Cells(index=index, segments=segments):
            found[index.file] = index.fingerprint
            found.update((segment.file, expected) for segment, expected in segments)
            own = not isinstance(index.storage, Contiguous | Virtual)
            return own or not node.through_library
        case Mosaic(index=index, storage=storage):
            found[index.file] = index.fingerprint
            wanted = dict.fromkeys((m.file, m.dataset) for m in storage.mappings)
            return all(_collect(node.open_source(*source), found) for source in wanted)
    return False


def unchanged(key: CaseKey) -> bool:
    """Return whether the sources still are what they were: one `stat` each."""
    try:
        return all(fingerprint(path) == expected for path, expected in key.sources)
    except MissingFileError:
        return False


def write_case(
    array: Array,
    axis: int,
    key: CaseKey,
    write: Callable[[NDArray[np.uint8]], None],
    *,
    threads: int | None,
) -> None:
    """Decode `array`, and write what the file of its entry is to hold.

    Parameters
    ----------
    axis
        Slice axis, not negative.
    write
        Takes the next bytes of the file.
    threads
        Most threads to use.

    Notes
    -----
    In slabs of about 32 MiB that cut no chunk in two: so each chunk is decoded once. Writing takes
    a fourth of the time of decoding into a map of the file, which pays for every page; and a full
    disk is an error here, where a map would end the process.
    """
    write(np.frombuffer(key.header, np.uint8))
    n_slices, *plane = key.shape
    layer = array.chunks[axis] if array.chunks is not None else 1
    layer_nbytes = layer * math.prod(plane) * key.dtype.itemsize
    if not n_slices * layer_nbytes:
        return
    depth = min(n_slices, layer * max(1, _SLAB_NBYTES // layer_nbytes))
    slab = np.empty((depth, *plane), key.dtype)
    for start in range(0, n_slices, depth):
        part = slab[: n_slices - start]
        rows = (slice(None),) * axis + (slice(start, start + depth),)
        array.read(rows, out=np.moveaxis(part, 0, axis), threads=threads)
        write(part.reshape(-1).view(np.uint8))


def open_case(path: str, key: CaseKey) -> CachedCase | None:
    """Return the entry at `path`; None if there is no file, or one that is not what `key` says.

    Notes
    -----
    Reads the header, which costs about 20 microseconds.
    """
    try:
        with open(path, "rb", buffering=0) as stream:
            status = os.fstat(stream.fileno())
            begin = stream.read(4096)
    except FileNotFoundError:
        return None
    offset = _header_nbytes(begin, key)
    if offset is None or status.st_size != offset + key.nbytes - len(key.header):
        return None
    one_byte = key.dtype.kind == "b"
    index = DatasetIndex(
        file=path,
        name=key.name,
        shape=key.shape,
        dtype=key.dtype,
        file_dtype=np.dtype(np.uint8) if one_byte else key.dtype,
        fill=np.zeros((), key.dtype),
        filters=(),
        storage=Contiguous((Segment(path, offset, status.st_size - offset),)),
        direct=True,
        stored_nbytes=status.st_size - offset,
        fingerprint=Fingerprint(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns),
    )
    return CachedCase(index)


def _header_nbytes(begin: bytes, key: CaseKey) -> int | None:
    """Return how long the .npy header is, if it describes what `key` says."""
    stream = io.BytesIO(begin)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            return None
        found = np.lib.format.read_array_header_1_0(stream)
    except ValueError:
        return None
    return stream.tell() if found == (key.shape, False, key.dtype) else None
