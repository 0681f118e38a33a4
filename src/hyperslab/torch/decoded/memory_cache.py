"""`memory_cache`: a decoded cache in shared memory, which goes when its last user goes."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from multiprocessing import util
from typing import Any

from hyperslab.engine.limits import available_nbytes, memory_at_hand, memory_limit
from hyperslab.errors import CapacityError
from hyperslab.torch.decoded.case_cache import CaseCache
from hyperslab.torch.decoded.case_folder import CaseFolder, human

try:
    import fcntl

    _HAS_LOCKS = True
except ImportError:  # Windows: nobody clears the folder but the user
    _HAS_LOCKS = False

__all__ = ["memory_cache"]

_USERS = ".users"
# After the worker processes that multiprocessing ends at priority 0: they may use the cache.
_EXIT_PRIORITY = -100


def memory_cache(nbytes: int) -> CaseCache:
    """Return a decoded cache in shared memory: one copy for all workers and ranks of this node.

    Parameters
    ----------
    nbytes
        What all entries may take together. They never take the last of the memory: a twentieth of
        what the process may use at all is left, by the machine's count and by its cgroups'.

    Returns
    -------
    CaseCache
        In a folder of this user's under ``/dev/shm``, or among the temporary files where there is
        none; all calls give the same one.

    Raises
    ------
    CapacityError
        The folder belongs to somebody else, or cannot be made.

    Notes
    -----
    The last process that has such a cache deletes the entries when it drops it or ends. When the
    last one is killed, the next call does: until then they take memory.
    """
    return CaseCache.over(_MemoryFolder(_folder(), nbytes=nbytes))


def _folder() -> str:
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    root = "/dev/shm"
    usable = os.path.isdir(root) and os.access(root, os.W_OK)
    return os.path.join(root if usable else tempfile.gettempdir(), f"hyperslab-{user}")


class _MemoryFolder(CaseFolder):
    """A folder in memory, with a shared lock on it for as long as this object is there."""

    def __init__(self, path: str, *, nbytes: int) -> None:
        super().__init__(path, nbytes=nbytes)
        self._enter()

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_lock",)
        return {key: value for key, value in self.__dict__.items() if key not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._enter()

    def free_nbytes(self) -> int:
        left = memory_at_hand() - available_nbytes() // 20
        return max(0, min(super().free_nbytes(), left))

    def told_free(self) -> str:
        limit = memory_limit()
        told = "no cgroup limit" if limit is None else f"the cgroup's limit is {human(limit)}"
        return f"{human(self.free_nbytes())} of memory can be taken ({told})"

    def _allocate(self, descriptor: int, nbytes: int) -> None:
        pass  # would clear every page, and a survey counts what is still to come

    def _sync(self, descriptor: int) -> None:
        pass

    def _enter(self) -> None:
        _make_private(self.path)
        if not _HAS_LOCKS:
            return
        # Closed by `_leave`. A fork's child holds the same lock through its copy of it.
        self._lock = os.open(os.path.join(self.path, _USERS), os.O_RDWR | os.O_CREAT, 0o600)
        if _try_alone(self._lock):
            _clear(self.path)  # what killed processes have left
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        self._leave_at_exit()
        util.register_after_fork(self, _MemoryFolder._leave_at_exit)

    def _leave_at_exit(self) -> None:
        """Leave when this object goes or the process ends; for the process that calls it only."""
        util.Finalize(self, _leave, (self.path, self._lock), exitpriority=_EXIT_PRIORITY)


def _make_private(path: str) -> None:
    """Make the folder; raise `CapacityError` where others could put files into it."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        raise CapacityError(
            f"{path}: cannot be made: {error}. Use a CaseCache in a folder of your own.", file=path
        ) from error
    mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    if not (mine and stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022):
        raise CapacityError(
            f"{path}: is no folder that only you can write to, so its contents cannot be trusted. "
            "Remove it, or use a CaseCache in a folder of your own.",
            file=path,
        )


def _try_alone(lock: int) -> bool:
    """Lock exclusively; False if anybody else has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _leave(path: str, lock: int) -> None:
    """Give the shared lock up; clear the folder if that was the last one."""
    os.close(lock)
    # Opened anew: what a fork's child does to the lock that it shares, it does to its parent's.
    with suppress(FileNotFoundError):
        lock = os.open(os.path.join(path, _USERS), os.O_RDWR)
        try:
            if _try_alone(lock):
                _clear(path)
        finally:
            os.close(lock)


def _clear(path: str) -> None:
    """Delete everything but the lock itself, which the next process may be waiting for."""
    for name in os.listdir(path):
        if name != _USERS:
            with suppress(OSError):  # a folder that somebody put there
                os.unlink(os.path.join(path, name))
