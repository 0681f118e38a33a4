"""A file that says it is open for writing, seen as if it did not.

A writer that uses the newer file format marks the superblock, and the HDF5 library then refuses to
open the file, whatever the locks: also for ever after a writer that died. Reading does no harm to
either, so the mark is taken off the bytes that the library is shown. The file is not touched.

HDF5 file format specification 3.0, section II.A, superblock version 3: byte 11 holds the file
consistency flags, and the checksum of what comes before it ends the superblock.
"""

from __future__ import annotations

import io
import os
from typing import Any

from hyperslab.codecs.lookup3 import metadata_checksum

__all__ = ["UnmarkedFile", "is_marked"]

_VERSION_AT = 8
_FLAGS_AT = 11
_OFFSET_SIZE_AT = 9
_N_ADDRESSES = 4  # base, extension, end of file, root group


def is_marked(path: str, base: int) -> bool:
    """Tell whether the superblock at byte `base` says that a writer has the file open."""
    with open(path, "rb", buffering=0) as stream:
        stream.seek(base)
        head = stream.read(_FLAGS_AT + 1)
    return len(head) > _FLAGS_AT and head[_VERSION_AT] >= 3 and head[_FLAGS_AT] != 0


class UnmarkedFile(io.RawIOBase):
    """The file at `path`, read-only, with the consistency flags of its superblock cleared.

    Parameters
    ----------
    path
        Of the file.
    base
        Where the superblock begins: the size of the user block, bytes.

    Notes
    -----
    Seeks and reads as a binary file does; `repr` is the path, which h5py takes for the name.
    """

    def __init__(self, path: str, base: int) -> None:
        self._path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by `close`
        self._base = base
        self._block = self._unmarked()

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
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        begin = self._file.tell()
        n = self._file.readinto(buffer) or 0
        view = memoryview(buffer).cast("B")
        low = max(begin, self._base)
        high = min(begin + n, self._base + len(self._block))
        if low < high:
            view[low - begin : high - begin] = self._block[low - self._base : high - self._base]
        return n

    def close(self) -> None:
        self._file.close()
        super().close()
