"""Dataset facts and chunk tables, packed into bytes that can be mapped and looked up by name.

Nothing in them is executed. Every dataset has a checksum of its facts and one of its chunk table,
looked at when it is asked for: what fails is as good as not there.
"""

from __future__ import annotations

import json
import mmap
import struct
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from hyperslab.filters import Filter
from hyperslab.index.records import (
    Chunked,
    ChunkTable,
    Compact,
    Contiguous,
    DatasetIndex,
    Fingerprint,
    Null,
    Segment,
    Storage,
    Virtual,
)

__all__ = ["COLUMNS", "ROW_NBYTES", "Packer", "Packing", "canonical"]

# The columns of all chunk tables, one table after the other.
COLUMNS: dict[str, np.dtype] = {
    "number": np.dtype(np.int64),
    "byte_offset": np.dtype(np.int64),
    "nbytes": np.dtype(np.int64),
    "filter_mask": np.dtype(np.uint32),
}

_ROW = struct.Struct("=qI8q3I3B")
_ROW_KEY = struct.Struct("=qI")  # how a row begins: all that a search by name needs
_CRC = struct.Struct("=I")
ROW_NBYTES = _ROW.size + _CRC.size

_CHUNKED, _CONTIGUOUS, _COMPACT, _NULL = range(4)
_UNFILTERED_EDGES, _SOUND = 1, 2
_ABSENT = -1
_ZERO = bytes(4)


class _Row(NamedTuple):
    """One dataset: where its parts begin, `_ABSENT` for what it does not have."""

    heap: int  # name, shape and compact data, one after the other
    name_nbytes: int
    kind: int  # in the heap
    stored_nbytes: int
    segment: int  # in the HDF5 file
    segment_nbytes: int
    chunk: int  # in the columns
    n_chunks: int
    number: int
    filter_mask: int
    kind_nbytes: int
    data_nbytes: int
    table_crc: int
    n_axes: int
    storage: int
    flags: int


class _Kind(NamedTuple):
    """What many datasets have in common."""

    dtype: np.dtype
    file_dtype: np.dtype
    fill: NDArray[Any]
    filters: tuple[Filter, ...]
    chunks: tuple[int, ...]
    direct: bool


def canonical(name: str) -> str:
    """Return `name` as HDF5 calls the object: absolute, without empty parts and dots."""
    return "/" + "/".join(part for part in name.split("/") if part not in ("", "."))


@dataclass(slots=True, eq=False)
class Packer:
    """What packs; files are added one by one.

    Attributes
    ----------
    rows, heap
        Bytes: a row per dataset, and what varies in length.
    columns
        For each of `COLUMNS`, its pieces in order.
    n_rows
        So far.
    """

    rows: bytearray = field(default_factory=bytearray)
    heap: bytearray = field(default_factory=bytearray)
    columns: dict[str, list[NDArray[Any]]] = field(
        default_factory=lambda: {name: [] for name in COLUMNS}
    )
    n_rows: int = 0
    _lengths: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COLUMNS, 0))
    _kinds: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add_file(
        self,
        path: str,
        now: Fingerprint,
        datasets: Mapping[str, DatasetIndex],
        tables: Mapping[str, ChunkTable],
    ) -> None:
        """Add what is known of the file at `path`, which looked like `now` when that was learnt.

        Left out is what would not come back exactly, or would depend on more than this file.
        """
        found: dict[bytes, tuple[DatasetIndex, ChunkTable | None]] = {}
        for name, index in datasets.items():
            if not _can_pack(index, canonical(name), path, now):
                continue
            key, table = canonical(name).encode(), tables.get(name)
            if table is not None or key not in found:
                found[key] = index, table
        for key in sorted(found):
            self._add(key, *found[key])

    def _add(self, name: bytes, index: DatasetIndex, table: ChunkTable | None) -> None:
        storage = index.storage
        segments = storage.segments if isinstance(storage, Contiguous) else ()
        data = storage.data if isinstance(storage, Compact) else b""
        kind, kind_nbytes = self._kind(index)
        heap = len(self.heap)
        self.heap += name
        self.heap += struct.pack(f"={len(index.shape)}q", *index.shape)
        self.heap += data
        chunk = number = mask = _ABSENT
        n_chunks = table_crc = flags = 0
        if table is not None:
            n_chunks = table.byte_offset.size
            flags = _UNFILTERED_EDGES * table.unfiltered_edges | _SOUND * table.sound
            chunk = self._column("byte_offset", table.byte_offset)
            self._column("nbytes", table.nbytes)
            pieces: list[NDArray[Any]] = [table.byte_offset, table.nbytes]
            if table.number is not None:
                number = self._column("number", table.number)
                pieces.append(table.number)
            if table.filter_mask.any():
                mask = self._column("filter_mask", table.filter_mask)
                pieces.append(table.filter_mask)
            table_crc = _checksum(pieces)
        row = _ROW.pack(
            *_Row(
                heap=heap,
                name_nbytes=len(name),
                kind=kind,
                stored_nbytes=index.stored_nbytes,
                segment=segments[0].byte_offset if segments else _ABSENT,
                segment_nbytes=segments[0].nbytes if segments else 0,
                chunk=chunk,
                n_chunks=n_chunks,
                number=number,
                filter_mask=mask,
                kind_nbytes=kind_nbytes,
                data_nbytes=len(data),
                table_crc=table_crc,
                n_axes=len(index.shape),
                storage=_STORAGE_CODES[type(storage)],
                flags=flags,
            )
        )
        crc = crc32(self.heap[kind : kind + kind_nbytes], crc32(self.heap[heap:], crc32(row)))
        self.rows += row + _CRC.pack(crc)
        self.n_rows += 1

    def _kind(self, index: DatasetIndex) -> tuple[int, int]:
        """Return where in the heap the kind of `index` is, and its size; each is there once."""
        chunks = index.storage.chunks if isinstance(index.storage, Chunked) else ()
        filters = [[f.code, f.values, f.name, f.optional] for f in index.filters]
        text = json.dumps(
            [
                index.dtype.str,
                index.file_dtype.str,
                index.fill.tobytes().hex(),
                filters,
                chunks,
                index.direct,
            ]
        )
        if text not in self._kinds:
            self._kinds[text] = len(self.heap), len(text)
            self.heap += text.encode("ascii")
        return self._kinds[text]

    def _column(self, name: str, piece: NDArray[Any]) -> int:
        """Append to a column; return where the piece begins."""
        begin = self._lengths[name]
        self.columns[name].append(piece)
        self._lengths[name] += piece.size
        return begin


_STORAGE_CODES: dict[type, int] = {
    Chunked: _CHUNKED,
    Contiguous: _CONTIGUOUS,
    Compact: _COMPACT,
    Null: _NULL,
}


def _can_pack(index: DatasetIndex, name: str, path: str, now: Fingerprint) -> bool:
    storage = index.storage
    # A link that leads to another file, and be it back again, makes the name another one.
    if index.file != path or index.name != name or index.fingerprint != now:
        return False
    if isinstance(storage, Virtual) or not _is_plain(index.dtype, index.file_dtype):
        return False
    if isinstance(storage, Contiguous):
        segments = storage.segments
        if len(segments) > 1 or any(
            s.file != path or max(s.byte_offset, s.nbytes) >= 1 << 63 for s in segments
        ):
            return False
    return _is_text(name) and index.stored_nbytes < 1 << 63


def _is_plain(*dtypes: np.dtype) -> bool:
    """Tell whether the elements are the same on every machine of this byte order."""
    sizes = {"f": 8, "c": 16}  # what is longer has another format on other processors
    return all(
        d.kind in "biufc" and d.itemsize <= sizes.get(d.kind, 8) and not d.metadata for d in dtypes
    )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # bytes of another encoding, which Python hides in surrogates
        return False
    return True


def _checksum(pieces: list[NDArray[Any]]) -> int:
    crc = 0
    for piece in pieces:
        crc = crc32(np.ascontiguousarray(piece).data, crc)
    return crc


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packing:
    """What a `Packer` packed, in a map.

    Thread-safe. The rows that are meant are a file's: `first` to `stop`, sorted by name.

    Attributes
    ----------
    mapped
        The file that it lies in.
    rows, heap
        Where in `mapped` they begin. The rows of every file lie within it.
    columns
        For each of `COLUMNS`, an array in `mapped`.
    """

    mapped: mmap.mmap
    rows: int
    heap: int
    columns: dict[str, NDArray[Any]]
    _kinds: dict[tuple[int, int], _Kind] = field(default_factory=dict)

    def names(self, first: int, stop: int) -> list[str]:
        """Return the names of the datasets whose facts are whole."""
        rows = range(first, stop)
        return [self._name(i).decode() for i in rows if self._row(i) is not None]

    def dataset(
        self, name: str, *, first: int, stop: int, path: str, now: Fingerprint
    ) -> DatasetIndex | None:
        """Return the facts of a dataset of the file at `path`, which is `now`; None: not there."""
        row = self._find(name, first, stop)
        if row is None:
            return None
        at = self.heap + row.heap + row.name_nbytes
        kind = self._kind(row)
        return DatasetIndex(
            file=path,
            name=canonical(name),
            shape=struct.unpack_from(f"={row.n_axes}q", self.mapped, at),
            dtype=kind.dtype,
            file_dtype=kind.file_dtype,
            fill=kind.fill,
            filters=kind.filters,
            storage=self._storage(row, kind, path),
            direct=kind.direct,
            stored_nbytes=row.stored_nbytes,
            fingerprint=now,
        )

    def table(self, name: str, *, first: int, stop: int) -> ChunkTable | None:
        """Return the chunk table of a dataset, as read-only views of the map; None: not there."""
        row = self._find(name, first, stop)
        if row is None or row.chunk == _ABSENT:
            return None
        byte_offset = self._column("byte_offset", row.chunk, row.n_chunks)
        nbytes = self._column("nbytes", row.chunk, row.n_chunks)
        pieces = [byte_offset, nbytes]
        number = None
        if row.number != _ABSENT:
            number = self._column("number", row.number, row.n_chunks)
            pieces.append(number)
        if row.filter_mask != _ABSENT:
            filter_mask = self._column("filter_mask", row.filter_mask, row.n_chunks)
            pieces.append(filter_mask)
        else:
            filter_mask = np.ndarray(row.n_chunks, np.uint32, _ZERO, strides=(0,))
        if _checksum(pieces) != row.table_crc:
            return None
        return ChunkTable(
            number=number,
            byte_offset=byte_offset,
            nbytes=nbytes,
            filter_mask=filter_mask,
            unfiltered_edges=bool(row.flags & _UNFILTERED_EDGES),
            sound=bool(row.flags & _SOUND),
        )

    def _name(self, i: int) -> bytes:
        begin, nbytes = _ROW_KEY.unpack_from(self.mapped, self.rows + i * ROW_NBYTES)
        return self.mapped[self.heap + begin : self.heap + begin + nbytes]

    def _find(self, name: str, first: int, stop: int) -> _Row | None:
        wanted = canonical(name).encode(errors="surrogatepass")
        i = bisect_left(range(stop), wanted, first, key=self._name)
        return self._row(i) if i < stop and self._name(i) == wanted else None

    def _row(self, i: int) -> _Row | None:
        """Return a row, if it and what it says of the heap are as they were written."""
        at = self.rows + i * ROW_NBYTES
        raw = self.mapped[at : at + _ROW.size]
        row = _Row(*_ROW.unpack(raw))
        begin, kind = self.heap + row.heap, self.heap + row.kind
        text = self.mapped[begin : begin + row.name_nbytes + 8 * row.n_axes + row.data_nbytes]
        crc = crc32(self.mapped[kind : kind + row.kind_nbytes], crc32(text, crc32(raw)))
        return row if _CRC.unpack_from(self.mapped, at + _ROW.size) == (crc,) else None

    def _kind(self, row: _Row) -> _Kind:
        """Return what the dataset has in common with others, as one and the same object."""
        found = self._kinds.get((row.kind, row.kind_nbytes))
        if found is None:
            at = self.heap + row.kind
            text = self.mapped[at : at + row.kind_nbytes]
            dtype, file_dtype, fill, filters, chunks, direct = json.loads(text)
            native = np.dtype(dtype)
            found = _Kind(
                dtype=native,
                file_dtype=np.dtype(file_dtype),
                fill=np.frombuffer(bytes.fromhex(fill), native).reshape(()),
                filters=tuple(
                    Filter(code=code, values=tuple(values), name=name, optional=optional)
                    for code, values, name, optional in filters
                ),
                chunks=tuple(chunks),
                direct=direct,
            )
            found = self._kinds.setdefault((row.kind, row.kind_nbytes), found)
        return found

    def _storage(self, row: _Row, kind: _Kind, path: str) -> Storage:
        if row.storage == _CHUNKED:
            return Chunked(kind.chunks)
        if row.storage == _NULL:
            return Null()
        if row.storage == _COMPACT:
            at = self.heap + row.heap + row.name_nbytes + 8 * row.n_axes
            return Compact(self.mapped[at : at + row.data_nbytes])
        if row.segment == _ABSENT:
            return Contiguous(())
        return Contiguous((Segment(path, row.segment, row.segment_nbytes),))

    def _column(self, name: str, begin: int, size: int) -> NDArray[Any]:
        return self.columns[name][begin : begin + size]
