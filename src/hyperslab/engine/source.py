"""Bytes from files: a few pooled descriptors, positioned reads, and maps.

Descriptors are shared by all threads, since `pread` has no file position; a child of a fork starts
with none. A descriptor is handed out only for a file that still is what was indexed.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.limits import limits
from hyperslab.errors import DamagedFileError, MissingFileError
from hyperslab.index.container import stale
from hyperslab.index.records import Fingerprint

__all__ = ["OpenFile", "acquire", "close_idle", "drop_pages", "n_open", "release"]

_HAS_PREADV = hasattr(os, "preadv")
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class OpenFile:
    """One open file; got by `acquire`, given back by `release`."""

    __slots__ = ("_map", "_map_lock", "_view", "fd", "fingerprint", "path", "users")

    def __init__(self, path: str, expected: Fingerprint) -> None:
        try:
            fd = os.open(path, _FLAGS)
        except FileNotFoundError:
            raise MissingFileError(f"{path}: no such file (any more).", file=path) from None
        status = os.fstat(fd)
        found = Fingerprint(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if found != expected:
            os.close(fd)
            raise stale(path)
        self.path = path
        self.fd = fd
        self.fingerprint = expected
        self.users = 0
        self._map: mmap.mmap | None = None
        self._view: NDArray[np.uint8] | None = None
        self._map_lock = threading.Lock()

    def read_into(self, buffers: Sequence[Any], byte_offset: int, nbytes: int) -> int:
        """Fill `buffers` in turn with the `nbytes` that start at `byte_offset`.

        Parameters
        ----------
        buffers
            Writable contiguous buffers, `nbytes` long together, at most 1024.

        Returns
        -------
        int
            How many calls to the operating system it took.

        Raises
        ------
        DamagedFileError
            The file ends before.
        """
        if _HAS_PREADV and os.preadv(self.fd, buffers, byte_offset) == nbytes:
            return 1
        return self._read_slowly(buffers, byte_offset)

    def _read_slowly(self, buffers: Sequence[Any], byte_offset: int) -> int:
        """Go on after a short read, or without `preadv`."""
        n_calls = 1
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            while view.nbytes:
                if _HAS_PREADV:
                    n = os.preadv(self.fd, [view], byte_offset)
                else:
                    part = self.view()[byte_offset : byte_offset + view.nbytes]
                    n = part.nbytes
                    view[:n] = part.data
                n_calls += 1
                if n == 0:
                    raise DamagedFileError(
                        f"{self.path}: {view.nbytes} bytes are missing at byte offset "
                        f"{byte_offset}, where the file ends. It is truncated.",
                        file=self.path,
                        byte_offset=byte_offset,
                    )
                view = view[n:]
                byte_offset += n
        return n_calls

    def view(self) -> NDArray[np.uint8]:
        """Return the whole file as a read-only map, uint8; valid until `release`."""
        found = self._view
        if found is None:
            with self._map_lock:
                if self._view is None:
                    self._map = mmap.mmap(self.fd, 0, access=mmap.ACCESS_READ)
                    self._view = np.frombuffer(self._map, np.uint8)
                found = self._view
        return found

    def drop_pages(self) -> None:
        """Have the pages of the map no longer counted as this process's; they are read anew."""
        with self._map_lock:
            if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
                self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        self._view = None
        if self._map is not None:
            self._map.close()
            self._map = None
        os.close(self.fd)


_lock = threading.Lock()
_files: OrderedDict[str, OpenFile] = OrderedDict()
_replaced: list[OpenFile] = []  # still in use, though their path now leads to another file


def acquire(path: str, expected: Fingerprint) -> OpenFile:
    """Return an open file for `path`, from the pool if it is there.

    Raises
    ------
    StaleIndexError
        The file is not the one that `expected` describes.
    """
    with _lock:
        found = _files.get(path)
        if found is None or (found.fingerprint is not expected and found.fingerprint != expected):
            fresh = OpenFile(path, expected)
            if found is not None:
                if found.users:
                    _replaced.append(found)
                else:
                    found.close()
            found = _files[path] = fresh
        _files.move_to_end(path)
        found.users += 1
        _shrink(limits.open_files)
        return found


def release(file: OpenFile) -> None:
    """Give `file` back; it stays open for the next one, while there is room."""
    with _lock:
        file.users -= 1
        if _replaced and file in _replaced and not file.users:
            _replaced.remove(file)
            file.close()
        elif len(_files) > limits.open_files:
            _shrink(limits.open_files)


def _shrink(most: int) -> None:
    """Close the longest unused files until `most` are left; those in use stay."""
    for path in list(_files):
        if len(_files) <= most:
            return
        if _files[path].users == 0:
            _files.pop(path).close()


def close_idle() -> None:
    """Close every pooled descriptor and map that no read is using."""
    with _lock:
        _shrink(0)


def drop_pages() -> None:
    """Have no page of the pooled maps counted as this process's memory.

    The system could take them at any time, but counts them until it does. A read that is at one of
    them gets it again, from the page cache.
    """
    with _lock:
        for file in [*_files.values(), *_replaced]:
            file.drop_pages()


def n_open() -> int:
    """Return how many files the pool holds open."""
    return len(_files)


def _after_fork() -> None:
    """Start afresh in a child: no thread of the parent's lives on to give a file back."""
    global _lock
    _lock = threading.Lock()
    for file in [*_files.values(), *_replaced]:
        # A map stays, if a thread of the parent's was reading from it; it takes no descriptor's
        # place in the pool, and nothing here leads to it any more.
        os.close(file.fd)
    _files.clear()
    _replaced.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
