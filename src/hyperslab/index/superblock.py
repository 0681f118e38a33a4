"""A file as the HDF5 library would have it, where it refuses to open the file as it is.

A writer that uses the newer file format marks the superblock, and the HDF5 library then refuses to
open the file, whatever the locks: also for ever after a writer that died. Reading does no harm to
either, so the mark is taken off the bytes that the library is shown. It refuses a file as well that
is shorter than its superblock says; such a one is shown with zeros in place of what is missing, of
which no element is ever taken. The file is not touched.

HDF5 file format specification 3.0, section II.A. Superblock version 3: byte 11 holds the file
consistency flags, and the checksum of what comes before it ends the superblock. The end-of-file
address is the third of the addresses in every version, and counts from the start of the file.
"""

from __future__ import annotations

import io
import os
from typing import Any

from hyperslab.codecs.lookup3 import metadata_checksum

__all__ = ["ShownFile", "is_marked", "stated_nbytes"]

_VERSION_AT = 8
_FLAGS_AT = 11
_OFFSET_SIZE_AT = 9
_N_ADDRESSES = 4  # base, extension, end of file, root group
# Where the addresses begin, by version; before version 2 the size of an address is at byte 13.
_ADDRESSES_AT = {0: 24, 1: 28, 2: 12, 3: 12}


def is_marked(path: str, base: int) -> bool:
    """Tell whether the superblock at byte `base` says that a writer has the file open."""
    with open(path, "rb", buffering=0) as stream:
        stream.seek(base)
        head = stream.read(_FLAGS_AT + 1)
    return len(head) > _FLAGS_AT and head[_VERSION_AT] >= 3 and head[_FLAGS_AT] != 0


def stated_nbytes(path: str, base: int) -> int:
    """Return how long the file is by what its superblock at byte `base` says; 0 if unknown."""
    with open(path, "rb", buffering=0) as stream:
        stream.seek(base)
        head = stream.read(128)
    version = head[_VERSION_AT] if len(head) > _VERSION_AT else -1
    if version not in _ADDRESSES_AT or len(head) < 16:
        return 0
    size = head[_OFFSET_SIZE_AT] if version >= 2 else head[13]
    at = _ADDRESSES_AT[version] + 2 * size
    return int.from_bytes(head[at : at + size], "little") if len(head) >= at + size else 0


class ShownFile(io.RawIOBase):
    """The file at `path`, read-only, as the HDF5 library is shown it.

    Parameters
    ----------
    path
        Of the file.
    base
        Where the superblock begins: the size of the user block, bytes.
    unmark
        Show the superblock without consistency flags.
    nbytes
        Show zeros from the end of the file up to this size.

    Notes
    -----
    Seeks and reads as a binary file does; `repr` is the path, which h5py takes for the name.
    """

    def __init__(self, path: str, base: int, *, unmark: bool = False, nbytes: int = 0) -> None:
        self._path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by `close`
        self._base = base
        self._block = self._unmarked() if unmark else b""
        self._nbytes = max(nbytes, os.fstat(self._file.fileno()).st_size)

    def _unmarked(self) -> bytes:
        self._file.seek(self._base)
        head = self._file.read(_FLAGS_AT + 1)
        nbytes = _FLAGS_AT + 1 + _N_ADDRESSES * head[_OFFSET_SIZE_AT]
        self._file.seek(self._base)
        block = bytearray(self._file.read(nbytes))
        block[_FLAGS_AT] = 0
        return bytes(block) + metadata_checksum(bytes(block)).to_bytes(4, "little")

    def __repr__(self) -> str:
        return self._path

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            offset, whence = self._nbytes + offset, os.SEEK_SET
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        begin = self._file.tell()
        view = memoryview(buffer).cast("B")
        n = self._file.readinto(view) or 0
        missing = min(view.nbytes, self._nbytes - begin) - n
        if missing > 0:
            view[n : n + missing] = bytes(missing)
            n += missing
            self._file.seek(begin + n)
        low = max(begin, self._base)
        high = min(begin + n, self._base + len(self._block))
        if low < high:
            view[low - begin : high - begin] = self._block[low - self._base : high - self._base]
        return n

    def close(self) -> None:
        self._file.close()
        super().close()
