"""One short visit to the HDF5 library: open without a lock, look, close.

Nothing else in hyperslab opens a file through h5py for reading, so that no HDF5 handle outlives a
call. `locking=False` keeps HDF5 from asking the file system for a lock: a file that a writer holds,
or that lies on a read-only or lock-less mount, opens all the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from hyperslab.errors import MissingFileError, NotHDF5Error
from hyperslab.index.superblock import ShownFile, stated_nbytes

if TYPE_CHECKING:
    import h5py

__all__ = ["check_signature", "library_lock", "session"]

_SIGNATURE = b"\x89HDF\r\n\x1a\n"


class _LibraryLock:
    """h5py's own lock: re-entrant, and held by h5py across every fork.

    A lock of ours beside it could be taken in the other order, by a thread that calls hyperslab
    out of an h5py callback. h5py is imported when the lock is first needed.
    """

    def __enter__(self) -> None:
        # The whole of h5py first: a thread that imports it for the first time asks for its lock on
        # the way, which whoever took the lock before importing would hold against it.
        import h5py

        h5py._objects.phil.acquire()

    def __exit__(self, *_: object) -> None:
        import h5py

        h5py._objects.phil.release()

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread holds it. Imports nothing; costs less than a microsecond."""
        objects = sys.modules.get("h5py._objects")
        lock = getattr(objects, "phil", None)  # not yet there while h5py is being imported
        return lock is not None and bool(lock._is_owned())


# Guards the HDF5 library, which serves one thread at a time anyway, and every index that is filled
# from it: no child of a fork is born with either half way through a call.
library_lock = _LibraryLock()


def check_signature(path: str) -> int:
    """Return the size of the user block, bytes; raise unless `path` is a file with a signature.

    The signature stands at byte 0, or at 512, 1024, 2048 ... after a user block (HDF5 file format
    specification, section II.A). Reads 8 bytes at each; never opens the file through HDF5.

    Raises
    ------
    MissingFileError, NotHDF5Error
    """
    if os.path.isdir(path):
        raise MissingFileError(
            f"{path}: is a folder, not an HDF5 file. Name a file inside it.", file=path
        )
    if os.path.exists(path) and not os.path.isfile(path):  # opening a pipe would wait for ever
        raise NotHDF5Error(f"{path}: is a device or a pipe, not an HDF5 file.", file=path)
    try:
        with open(path, "rb", buffering=0) as stream:
            size = os.fstat(stream.fileno()).st_size
            offset = 0
            while offset < size:
                stream.seek(offset)
                if stream.read(8) == _SIGNATURE:
                    return offset
                offset = offset * 2 or 512
    except FileNotFoundError:
        raise MissingFileError(
            f"{path}: no such file. Check the path (the current folder is {os.getcwd()}).",
            file=path,
        ) from None
    what = "is empty" if size == 0 else "has no HDF5 signature"
    raise NotHDF5Error(
        f"{path}: {what}, so it is not an HDF5 file (or its beginning is lost). Check that "
        "it is the file you mean.",
        file=path,
    )


@contextmanager
def session(path: str, *, incomplete: bool = False) -> Iterator[h5py.File]:
    """Open `path` through h5py for the length of a `with` block, read-only and without a lock.

    One thread of the process at a time is inside; a fork waits for it to come out. With
    `incomplete`, also a file whose end is missing: look at what is there, but read no element
    through the library, for it takes what is missing for zeros.

    Raises
    ------
    MissingFileError, NotHDF5Error
        With the HDF5 library's own reason in the message.
    """
    with library_lock, ExitStack() as stack:
        yield _open(path, stack, incomplete)


def _open(path: str, stack: ExitStack, incomplete: bool) -> h5py.File:
    """Open `path`, to be closed by `stack`."""
    import h5py

    # Where this process has the file open already, HDF5 insists on the same way of locking; then
    # the lock, if any, is held already, and opening the file again takes no new one.
    for locking in (False, "best-effort", True):
        try:
            return stack.enter_context(h5py.File(path, "r", locking=locking))
        except OSError as error:
            base = check_signature(path)  # where that is what is wrong, it says so more plainly
            if "consistency flags" in str(error):
                return _open_shown(path, base, stack, unmark=True)
            if "truncated file" in str(error) and incomplete:
                return _open_shown(path, base, stack, nbytes=stated_nbytes(path, base))
            if "flag values don't match" not in str(error):
                raise NotHDF5Error(
                    f"{path}: the HDF5 library cannot open it: {error}. The file may be damaged "
                    "or still being written.",
                    file=path,
                ) from error
            reason = error
    raise NotHDF5Error(f"{path}: the HDF5 library cannot open it: {reason}", file=path)


def _open_shown(
    path: str, base: int, stack: ExitStack, *, unmark: bool = False, nbytes: int = 0
) -> h5py.File:
    """Open a file that the HDF5 library refuses as it is; see `ShownFile`."""
    import h5py

    file = stack.enter_context(ShownFile(path, base, unmark=unmark, nbytes=nbytes))
    try:
        return stack.enter_context(h5py.File(file, "r"))
    except OSError as error:
        what = "marked as open for writing" if unmark else "shorter than it should be"
        raise NotHDF5Error(
            f"{path}: it is {what}, and the HDF5 library cannot make sense of it: {error}",
            file=path,
        ) from error
