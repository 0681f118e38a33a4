"""`CaseFolder`: the files of a decoded cache: what they take, who writes which, which may go."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import FileIO

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from hyperslab.errors import CapacityError, HyperslabError

__all__ = ["CaseFolder", "InUseError", "Survey", "human"]

_NAME = re.compile(r"([0-9a-f]{32})\.(npy|part)")
_IDLE_S = 120.0  # an entry whose use nobody has noted for so long is in use by nobody
_PATIENCE_S = 60.0


class InUseError(Exception):
    """Somebody else is filling the entry just now, or one that shares its lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What is in the folder.

    Attributes
    ----------
    used_nbytes
        Sizes of all files together. A file that is being filled has its full size from the start.
    room_nbytes
        What new entries could take, everything spare deleted.
    names
        Digests of the entries that are there or being filled.
    spare
        What may be deleted: path and size, first what is least missed.
    """

    used_nbytes: int
    room_nbytes: int
    names: frozenset[str]
    spare: tuple[tuple[str, int], ...]


class CaseFolder:
    """A folder of entries under a budget.

    Parameters
    ----------
    path
        Made when it is first written to, readable by its owner only.
    nbytes
        What all files in it may take together.

    Notes
    -----
    An entry is ``DIGEST.npy``; while it is filled, ``DIGEST.part``. Files of other names count, and
    are never deleted. Locks die with their process. The 256 lock files serve all entries and stay:
    deleting one that somebody is about to lock would let two in.

    Pickles as its path, its budget and the time when it was made.
    """

    def __init__(self, path: str | os.PathLike[str], *, nbytes: int) -> None:
        if nbytes < 0:
            raise ValueError(f"nbytes must be at least 0, not {nbytes}")
        self.path = os.path.abspath(os.fspath(path))
        self.nbytes = nbytes
        self._made_ns = time.time_ns()

    def entry(self, digest: str) -> str:
        """Return the path of an entry, whether it is there or not."""
        return os.path.join(self.path, f"{digest}.npy")

    def holds(self, file: str) -> bool:
        """Return whether `file` is the path of an entry, there or not."""
        folder, name = os.path.split(file)
        return folder == self.path and name.endswith(".npy") and _NAME.fullmatch(name) is not None

    def note_use(self, entry: str, mtime_ns: int) -> None:
        """Note that `entry` is in use now: its time of access. That of its last write stays."""
        with suppress(OSError):  # gone, or not ours: whoever reads it will see
            os.utime(entry, ns=(time.time_ns(), mtime_ns))

    def free_nbytes(self) -> int:
        """Return what can still be written here, whatever the budget."""
        folder = self.path
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        return shutil.disk_usage(folder).free

    def told_free(self) -> str:
        """Say what `free_nbytes` returns."""
        return f"{human(self.free_nbytes())} is free on the disk"

    def survey(self, *, mine: str = "") -> Survey:
        """Look at every file.

        Parameters
        ----------
        mine
            Digest of the entry that the caller is filling.

        Notes
        -----
        A few microseconds a file. Consistent only while the caller is `exclusive`.
        """
        # What a run that goes on uses is not spare, nor is what this one has used.
        unused_since_ns = min(self._made_ns, time.time_ns() - int(_IDLE_S * 1e9))
        used = pending = 0
        names: set[str] = set()
        spare: list[tuple[int, str, int]] = []
        for path, status in self._files():
            used += status.st_size
            match = _NAME.fullmatch(os.path.basename(path))
            if match is None:
                continue
            digest, kind = match.groups()
            if kind == "npy":
                names.add(digest)
                if status.st_atime_ns < unused_since_ns:
                    spare.append((status.st_atime_ns, path, status.st_size))
                continue
            # What the file system has yet to give.
            pending += max(0, status.st_size - 512 * getattr(status, "st_blocks", 0))
            if self._abandoned(digest, mine):
                spare.append((0, path, status.st_size))
            else:
                names.add(digest)
        spare.sort()
        room = min(self.nbytes - used, self.free_nbytes() - pending)
        return Survey(
            used_nbytes=used,
            room_nbytes=max(0, room + sum(nbytes for _, _, nbytes in spare)),
            names=frozenset(names),
            spare=tuple((path, nbytes) for _, path, nbytes in spare),
        )

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep every other process from reserving room and finishing entries; for short.

        Raises
        ------
        CapacityError
            Somebody has kept it for a minute, or there can be no lock file.
        """
        lock = FileLock(os.path.join(self.path, ".lock"))
        with self._writing():
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            lock.acquire(timeout=_PATIENCE_S, poll_interval=0.002)
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def filling(self, digest: str) -> Iterator[None]:
        """Be the only one, in any thread of any process, that fills an entry.

        Raises
        ------
        InUseError
            Somebody else is.
        CapacityError
            There can be no lock file.
        """
        lock = FileLock(os.path.join(self.path, f"{digest[:2]}.lock"))
        with self._writing():
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                raise InUseError(digest) from None
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def new_entry(self, digest: str, nbytes: int) -> Iterator[Callable[[NDArray[np.uint8]], None]]:
        """Give a function that writes the next bytes of a new entry; it is there at the end.

        Parameters
        ----------
        digest
            Of an entry that the caller is `filling`.
        nbytes
            How many bytes will be written.

        Raises
        ------
        CapacityError
            There is no room, or it cannot be written; then the cause is an OSError. Nothing stays.
        """
        entry = self.entry(digest)
        part = os.path.join(self.path, f"{digest}.part")

        def write(data: NDArray[np.uint8]) -> None:
            rest = data.data
            with self._writing():
                while rest.nbytes:
                    rest = rest[stream.write(rest) :]

        try:
            with self._reserve(part, digest, nbytes) as stream:
                with self._writing():
                    self._allocate(stream.fileno(), nbytes)
                yield write
                with self._writing():
                    self._sync(stream.fileno())
            # Exclusively, so that no survey meets it under both names, or under none.
            with self.exclusive(), self._writing():
                os.replace(part, entry)
        except BaseException:
            with suppress(OSError):  # then it is left to whoever needs the room
                os.unlink(part)
            raise

    def _reserve(self, part: str, digest: str, nbytes: int) -> FileIO:
        """Open a new file of full size, without content, once there is room for it."""
        with self.exclusive(), self._writing():
            with suppress(FileNotFoundError):
                os.unlink(part)  # of a process that was killed: its lock is ours now
            found = self.survey(mine=digest)
            if nbytes > found.room_nbytes:
                raise CapacityError(
                    f"{self.path}: no room for {human(nbytes)}: {human(found.used_nbytes)} of a "
                    f"budget of {human(self.nbytes)} are in use, and {self.told_free()}. Give a "
                    "larger budget, or go on without the cache.",
                    file=self.path,
                )
            lacking = nbytes - found.room_nbytes + sum(size for _, size in found.spare)
            for path, size in found.spare:
                if lacking <= 0:
                    break
                with suppress(FileNotFoundError):
                    os.unlink(path)
                lacking -= size
            with ExitStack() as stack:
                stream = stack.enter_context(FileIO(part, "wb"))
                stream.truncate(nbytes)
                stack.pop_all()  # the caller closes it
                return stream

    def _allocate(self, descriptor: int, nbytes: int) -> None:
        """Ask for the space now, so that a full disk shows before anything is decoded."""
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(descriptor, 0, nbytes)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise  # those say that the file system cannot, and writing will do

    def _sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return
        for name in names:
            path = os.path.join(self.path, name)
            try:
                status = os.stat(path, follow_symlinks=False)
            except FileNotFoundError:
                continue  # it went while we looked
            if stat.S_ISREG(status.st_mode):
                yield path, status

    def _abandoned(self, digest: str, mine: str) -> bool:
        """Return whether nobody is filling a half-written entry any more."""
        if digest[:2] == mine[:2]:
            return digest != mine  # the caller has the lock that its writer would need
        try:
            with self.filling(digest):
                return True
        except InUseError:
            return False

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Let what the operating system says of the folder be a `CapacityError`."""
        try:
            yield
        except HyperslabError:
            raise
        except OSError as error:
            raise CapacityError(
                f"{self.path}: the cache cannot be written to: {error}. Free some space there, or "
                "choose another folder.",
                file=self.path,
            ) from error


def human(nbytes: int) -> str:
    """Return a size for people, in three digits."""
    exponent = next((i for i in range(4) if nbytes < 999.5 * 1000**i), 4)
    return f"{nbytes / 1000**exponent:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[exponent]}"
