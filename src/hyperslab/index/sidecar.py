"""The index sidecar: what was learnt of many files, kept in one file that is mapped and not read.

In the byte order of the machine that wrote it (to others it looks like another version):

    prefix    magic, version, CRC-32 of prefix and header, where the header begins
    parts     rows, heap and columns of `packed`, and the caller's arrays; each begins at a multiple
              of 64 bytes
    header    JSON, to the end: the files and what they looked like, the caller's facts, where the
              parts begin

Nothing in it is executed. Header and arrays are checked when it is loaded, a dataset and its chunk
table when they are asked for; what fails is as good as not there, and is looked up in the HDF5
file. So a damaged sidecar costs time and gives no wrong values.
"""

from __future__ import annotations

import ast
import contextlib
import json
import mmap
import os
import secrets
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO
from zlib import crc32

import numpy as np
from numpy.lib.format import descr_to_dtype, dtype_to_descr
from numpy.typing import NDArray

from hyperslab.index.packed import COLUMNS, ROW_NBYTES, Packer, Packing
from hyperslab.index.records import ChunkTable, DatasetIndex, Fingerprint, fingerprint

if TYPE_CHECKING:
    from hyperslab.index.container import FileIndex

__all__ = ["SavedFile", "SavedIndex", "load_index", "save_index"]

_MAGIC = b"\x89HSINDEX"
# To be raised whenever the layout changes, or what an index says of the same file.
_VERSION = 1
_PREFIX = struct.Struct("=8sIIQ")
_ALIGNMENT = 64
# What reading a header raises that is whole, but was written by something else.
_NOT_OURS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavedFile:
    """What a sidecar holds of one file. Thread-safe.

    Attributes
    ----------
    path
        Absolute.
    nbytes, mtime_ns
        Size and time of the last write when it was indexed.
    user_block_nbytes
        What stands before the HDF5 part of the file.
    """

    path: str
    nbytes: int
    mtime_ns: int
    user_block_nbytes: int
    _packing: Packing
    _first: int
    _stop: int

    def describes(self, now: Fingerprint) -> bool:
        """Tell whether a file that is `now` is still the one that was indexed.

        Size and time of the last write decide. Device and inode are other ones on another machine,
        or after a remount, so they do not count.
        """
        return (now.nbytes, now.mtime_ns) == (self.nbytes, self.mtime_ns)

    def is_fresh(self) -> bool:
        """Tell whether the file is there and unchanged. One `stat`."""
        return self._look() is not None

    def names(self) -> list[str]:
        """Return the names of the datasets that are held, sorted by their UTF-8 bytes."""
        return self._packing.names(self._first, self._stop)

    def dataset(self, name: str, *, now: Fingerprint | None = None) -> DatasetIndex | None:
        """Return the facts of dataset `name`, as of the file that is there now.

        Parameters
        ----------
        name
            In any spelling that HDF5 takes for the same.
        now
            The file's fingerprint, from a caller that has just looked. Otherwise one `stat`.

        Returns
        -------
        DatasetIndex or None
            None where it is not held, is damaged, or the file has changed.

        Notes
        -----
        Tens of microseconds; takes nothing from the HDF5 file.
        """
        now = self._look() if now is None else now
        if now is None or not self.describes(now):
            return None
        return self._packing.dataset(
            name, first=self._first, stop=self._stop, path=self.path, now=now
        )

    def table(self, name: str, *, now: Fingerprint | None = None) -> ChunkTable | None:
        """Return the chunk table of dataset `name`; as `dataset`.

        Its columns are read-only views of the sidecar's map, which lives as long as they do.
        """
        now = self._look() if now is None else now
        if now is None or not self.describes(now):
            return None
        return self._packing.table(name, first=self._first, stop=self._stop)

    def _look(self) -> Fingerprint | None:
        try:
            now = fingerprint(self.path)
        except OSError:  # gone, or out of reach: then there is nothing that it could be fresh for
            return None
        return now if self.describes(now) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavedIndex:
    """A loaded sidecar. Thread-safe.

    Holds a map of the sidecar, and one descriptor with it, as long as it, one of its files or one
    of its arrays is in use. It does not pickle: another process loads it again, which costs little.

    Attributes
    ----------
    path
        Absolute path of the sidecar.
    files
        Absolute paths of the files that it is about.
    fingerprints
        (size in bytes, time of the last write in ns) of each when it was indexed.
    facts
        The caller's.
    arrays
        The caller's, read-only views of the map.
    """

    path: str
    files: tuple[str, ...]
    fingerprints: tuple[tuple[int, int], ...]
    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    _saved: dict[str, SavedFile] = field(repr=False)

    def is_fresh(self) -> bool:
        """Tell whether all files are there and unchanged. One `stat` a file.

        Size and time of the last write decide. A file of the same size that was given its old time
        back, or was rewritten within one tick of the file system's clock, goes unnoticed.
        """
        return all(saved.is_fresh() for saved in self._saved.values())

    def of_file(self, path: str | os.PathLike[str]) -> SavedFile | None:
        """Return what is held of the file at `path`; None if it is none of `files`."""
        return self._saved.get(os.path.abspath(os.fspath(path)))


def save_index(
    path: str | os.PathLike[str],
    containers: Sequence[FileIndex],
    *,
    facts: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
) -> None:
    """Write all that `containers` have learnt of datasets into one sidecar.

    Parameters
    ----------
    path
        Of the sidecar. One that is there is replaced in one step: whoever has it loaded keeps the
        old one, and others find the old or the new one, never a part. Several processes may do it
        at the same time.
    containers
        One a file.
    facts
        Anything that JSON can hold, by str.
    arrays
        Of any dtype without objects.

    Raises
    ------
    OSError
        The folder cannot be written to, or the disk is full. Nothing is left behind.
    TypeError, ValueError
        A file is given twice, `facts` are not for JSON, or `arrays` hold objects. As above.

    Notes
    -----
    Left out are datasets that depend on other files (virtual ones, external links and storage), and
    long double floats: they will be looked up anew. Cost: some 20 microseconds a dataset, and 16 to
    28 bytes a chunk.
    """
    target = os.path.abspath(os.fspath(path))
    # Short, and beside the target: only within a file system can it be replaced in one step.
    temporary = os.path.join(
        os.path.dirname(target), f".hyperslab-{os.getpid()}-{secrets.token_hex(6)}.tmp"
    )
    try:
        with open(temporary, "xb") as stream:
            _write(stream, containers, facts, arrays)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _write(
    stream: BinaryIO,
    containers: Sequence[FileIndex],
    facts: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
) -> None:
    files: list[Any] = []
    packer = Packer()
    for container in containers:
        packer.add_file(container.path, container.fingerprint, *container.learnt())
        now = container.fingerprint
        files.append(
            [container.path, now.nbytes, now.mtime_ns, container.user_block_nbytes, packer.n_rows]
        )
    if len({entry[0] for entry in files}) < len(files):
        raise ValueError("a file is given twice: there can be only one index of each")
    stream.write(bytes(_PREFIX.size))
    header = {
        "files": files,
        "facts": dict(facts),
        "rows": _append(stream, [packer.rows])[0],
        "heap": _append(stream, [packer.heap])[0],
        "columns": {
            name: [
                [sum(piece.size for piece in pieces)],
                _append(stream, (piece.tobytes() for piece in pieces))[0],
            ]
            for name, pieces in packer.columns.items()
        },
        "arrays": {name: _append_array(stream, name, array) for name, array in arrays.items()},
    }
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    begin = stream.tell()
    stream.write(text)
    stream.seek(0)
    stream.write(_PREFIX.pack(_MAGIC, _VERSION, _header_crc(begin, text), begin))


def _append(stream: BinaryIO, pieces: Iterable[bytes | bytearray]) -> tuple[int, int]:
    """Write one part; return where it begins and its CRC-32."""
    stream.write(bytes(-stream.tell() % _ALIGNMENT))
    begin, crc = stream.tell(), 0
    for piece in pieces:
        stream.write(piece)
        crc = crc32(piece, crc)
    return begin, crc


def _append_array(stream: BinaryIO, name: str, array: NDArray[Any]) -> list[Any]:
    array = np.asarray(array)
    if array.dtype.hasobject:
        raise TypeError(f"array {name!r} holds Python objects ({array.dtype})")
    return [repr(dtype_to_descr(array.dtype)), array.shape, *_append(stream, [array.tobytes()])]


def _header_crc(begin: int, text: bytes) -> int:
    return crc32(text, crc32(_PREFIX.pack(_MAGIC, _VERSION, 0, begin)))


def load_index(path: str | os.PathLike[str]) -> SavedIndex | None:
    """Map the sidecar at `path`.

    Returns
    -------
    SavedIndex or None
        None where there is no such file or it cannot be read, or where it is of another version,
        cut short or damaged.

    Notes
    -----
    Reads the header and the caller's arrays, no facts of a dataset and no chunk table; and does
    not look at the HDF5 files: see `SavedIndex.is_fresh`. On a network file system, a sidecar that
    another machine deletes while this one uses it may end the process (SIGBUS).
    """
    path = os.path.abspath(os.fspath(path))
    try:
        with open(path, "rb") as stream:
            prefix = stream.read(_PREFIX.size)
            if len(prefix) < _PREFIX.size:
                return None
            magic, version, crc, begin = _PREFIX.unpack(prefix)
            if (magic, version) != (_MAGIC, _VERSION):
                return None
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError:  # it is only a copy of what the files say: without it, these are asked
        return None
    text = mapped[begin:]
    if _header_crc(begin, text) != crc:
        return None
    try:
        return _parse(path, mapped, json.loads(text))
    except _NOT_OURS:
        return None


def _parse(path: str, mapped: mmap.mmap, header: dict[str, Any]) -> SavedIndex:
    files = header["files"]
    n_rows = [entry[4] for entry in files]
    if header["rows"] < 0 or header["rows"] + max(n_rows, default=0) * ROW_NBYTES > len(mapped):
        raise ValueError("rows outside the file")
    packing = Packing(
        mapped=mapped,
        rows=header["rows"],
        heap=header["heap"],
        columns={
            name: _view(mapped, dtype, *header["columns"][name]) for name, dtype in COLUMNS.items()
        },
    )
    saved = {
        name: SavedFile(
            path=name,
            nbytes=nbytes,
            mtime_ns=mtime_ns,
            user_block_nbytes=user_block_nbytes,
            _packing=packing,
            _first=first,
            _stop=stop,
        )
        for first, (name, nbytes, mtime_ns, user_block_nbytes, stop) in zip(
            [0, *n_rows], files, strict=False
        )
    }
    return SavedIndex(
        path=path,
        files=tuple(saved),
        fingerprints=tuple((entry.nbytes, entry.mtime_ns) for entry in saved.values()),
        facts=header["facts"],
        arrays={name: _array(mapped, *where) for name, where in header["arrays"].items()},
        _saved=saved,
    )


def _view(mapped: mmap.mmap, dtype: np.dtype, shape: list[int], begin: int) -> NDArray[Any]:
    if dtype.hasobject:
        raise TypeError("objects cannot be mapped")
    return np.ndarray(shape, dtype, buffer=mapped, offset=begin)


def _array(mapped: mmap.mmap, descr: str, shape: list[int], begin: int, crc: int) -> NDArray[Any]:
    array = _view(mapped, descr_to_dtype(ast.literal_eval(descr)), shape, begin)
    if crc32(memoryview(mapped)[begin : begin + array.nbytes]) != crc:
        raise ValueError("the array is damaged")
    return array
