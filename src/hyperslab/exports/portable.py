"""A level that travels between processes: small, opened once a process, the same file or none."""

from __future__ import annotations

import os
import pickle
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.errors import StaleIndexError
from hyperslab.index.records import fingerprint

if TYPE_CHECKING:
    from hyperslab.level import Level

__all__ = ["Portable"]

_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that held it did not come along


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Portable:
    """A level, for libraries that hand it to threads, processes or other machines.

    A pickled level describes its file anew wherever it lands: that costs milliseconds, each time.
    This one is opened once a process, however many copies arrive; and since the results of all
    copies are put together, it refuses to read a file that was written to since the first was made.

    Attributes
    ----------
    shape, dtype, ndim
        Of the level.
    key
        What tells it from other levels and other states of the file: bytes, and the file's size
        and time of the last write. A file's number on its device is not part of it, since that
        is different on other machines.
    """

    __slots__ = ("_level", "dtype", "key", "ndim", "shape")

    def __init__(self, level: Level) -> None:
        seen = level.image.container.fingerprint
        self.key = (pickle.dumps(level, protocol=4), seen.nbytes, seen.mtime_ns)
        self.shape = level.shape
        self.ndim = level.ndim
        self.dtype = level.dtype
        self._level: Level | None = level

    def __getstate__(self) -> tuple[Any, ...]:
        return self.key, self.shape, self.ndim, self.dtype

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.key, self.shape, self.ndim, self.dtype = state
        self._level = None

    @property
    def level(self) -> Level:
        """The level in this process.

        Raises
        ------
        MissingFileError
            This process does not see the file under its path.
        StaleIndexError
            The file changed since this object was made.
        """
        if self._level is None:
            with _lock:  # all threads of a process ask for it at once
                self._level = _open(*self.key)
        return self._level

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """Read a part, as the level does."""
        return np.asarray(self.level[index])


@lru_cache(maxsize=64)
def _open(pickled: bytes, nbytes: int, mtime_ns: int) -> Level:
    level: Level = pickle.loads(pickled)
    path = level.image.file
    now = fingerprint(path)
    if (now.nbytes, now.mtime_ns) != (nbytes, mtime_ns):
        raise StaleIndexError(
            f"{path}: the file is not what it was when the array that is being computed was made "
            f"of it ({now.nbytes} bytes now, {nbytes} bytes then). Open the image again, and make "
            "the array anew.",
            file=path,
        )
    return level
