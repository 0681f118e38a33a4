"""`CaseCache`: whole decoded datasets in a folder, shared by all processes of a node."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable
from typing import Any

from hyperslab.array import Array
from hyperslab.errors import CapacityError, PerformanceWarning
from hyperslab.index.records import DatasetIndex
from hyperslab.torch.decoded.cached_case import (
    CachedCase,
    CaseKey,
    case_key,
    open_case,
    unchanged,
    write_case,
)
from hyperslab.torch.decoded.case_folder import CaseFolder, InUseError, human

__all__ = ["CaseCache"]

_NOTE_S = 60.0  # between two notes that an entry is in use
_RETRY_S = 10.0  # before room that was not there is asked for again


class _Known:
    """What one object knows of one dataset."""

    __slots__ = ("case", "key", "note_at_s")

    def __init__(self, key: CaseKey | None) -> None:
        self.key = key
        self.case: CachedCase | None = None
        self.note_at_s = 0.0


class CaseCache:
    """Decoded datasets as raw files in a folder, slices first: filled once, read by everybody.

    Parameters
    ----------
    folder
        On a local disk. Made when it is first written to, readable by its owner only, since it will
        hold plain copies of the data. It should hold nothing else.
    nbytes
        What all files in the folder may take together, whichever process wrote them.

    Notes
    -----
    *Entries* are .npy files, named by a hash of the source's real path, size and time of the last
    write, of dataset and axis. A source that has changed is another entry, and its old one is never
    met again.

    *Sharing.* Any number of threads and processes may fill and read at the same time; an entry is
    decoded by one of them. A process that is killed leaves a half-written file that nobody reads,
    and that goes when room is short. Pickles small; works after fork.

    *Room.* First come, first kept: what the current run has used is never deleted for other data of
    the same run, since epochs that come round again and again would then find nothing. Entries go
    when room is short, the longest unused first, if they were last used before this object was made
    (a copy, by pickle or fork, counts as made then) and not within the last two minutes. On Linux a
    file that a process still has open takes its space until it is closed.

    Examples
    --------
    >>> import hyperslab as hs
    >>> from hyperslab.testing import make_cohort
    >>> _ = make_cohort("cohort.h5", n_cases=1, shape=(32, 32, 5))
    >>> array = hs.open("cohort.h5")["MR/1PA001"]
    >>> cache = CaseCache("decoded", nbytes=1_000_000)
    >>> case = cache.get(array, axis=2) or cache.fill(array, axis=2)
    >>> case.shape, bool((case[3] == array[:, :, 3]).all())
    ((5, 32, 32), True)
    """

    def __init__(self, folder: str | os.PathLike[str], *, nbytes: int) -> None:
        self._begin(CaseFolder(folder, nbytes=nbytes))

    @classmethod
    def over(cls, folder: CaseFolder) -> CaseCache:
        """Return a cache of the entries in `folder`."""
        made = cls.__new__(cls)
        made._begin(folder)
        return made

    def _begin(self, folder: CaseFolder) -> None:
        self._folder = folder
        self._known: dict[tuple[DatasetIndex, int], _Known] = {}
        self._refused = (0, 0.0)  # what there was no room for, and until when not to ask again
        self._warned = False

    def __reduce__(self) -> tuple[Any, ...]:
        return CaseCache.over, (self._folder,)

    def __repr__(self) -> str:
        return f"<hyperslab.CaseCache {self.folder!r}, at most {human(self.nbytes)}>"

    @property
    def folder(self) -> str:
        """Absolute path."""
        return self._folder.path

    @property
    def nbytes(self) -> int:
        """What all files in the folder may take together."""
        return self._folder.nbytes

    def get(self, array: Array, axis: int) -> CachedCase | None:
        """Return the entry of `array` decoded with slices along `axis`, if it is there.

        Parameters
        ----------
        array
            A whole dataset.
        axis
            Slice axis; negative ones count from the end.

        Returns
        -------
        CachedCase or None
            None also where the source is no longer what was indexed: reading it says so.

        Raises
        ------
        ValueError
            No such axis.

        Notes
        -----
        A few microseconds: a `stat` of the source, and one of the entry while it is not there. An
        entry that was met once is remembered, so it may have been deleted meanwhile: reading it
        then raises `MissingFileError` or `StaleIndexError` of its `file`, to be given to `forget`.
        """
        known = self._of(array, axis)
        if known.key is None or not unchanged(known.key):
            return None
        found = known.case
        if found is None:
            path = self._folder.entry(known.key.digest)
            if not os.path.exists(path) or (found := open_case(path, known.key)) is None:
                return None
            known.case, known.note_at_s = found, 0.0
        now = time.monotonic()
        if now >= known.note_at_s:
            known.note_at_s = now + _NOTE_S
            self._folder.note_use(found.file, found.index.fingerprint.mtime_ns)
        return found

    def fill(self, array: Array, axis: int, *, threads: int | None = None) -> CachedCase | None:
        """Decode the whole of `array` into the cache, and return the entry.

        Parameters
        ----------
        array, axis
            As `get`.
        threads
            Most threads to use; default: the configured number.

        Returns
        -------
        CachedCase or None
            None where there is no room, where somebody else is filling this entry just now, or
            where it cannot be written: read the source then.

        Raises
        ------
        StaleIndexError, DamagedFileError, ChunkDecodeError, ChecksumError
            As reading the source. Nothing is kept then.

        Warns
        -----
        PerformanceWarning
            Once, when the folder cannot be written to or the disk is full.

        Notes
        -----
        Each chunk is fetched and decoded once. Peak memory is 32 MiB, or the slices of one layer of
        chunks. On a disk, the file is synced before it gets its name, so that a loss of power does
        not leave an entry of zeros: about 20 ms for 50 MB on a solid-state disk, where decoding
        that much gzip takes 120 ms. After a refusal, no room is asked for again for ten seconds.
        """
        known = self._of(array, axis)
        refused, until_s = self._refused
        if known.key is None or (known.key.nbytes >= refused and time.monotonic() < until_s):
            return None
        try:
            return self.fill_now(array, axis, threads=threads)
        except InUseError:
            return None
        except CapacityError as error:
            unwritable = error.__cause__ is not None
            self._refused = (0 if unwritable else known.key.nbytes, time.monotonic() + _RETRY_S)
            if unwritable and not self._warned:
                self._warned = True
                warnings.warn(
                    f"{error.message} Data that are not in it yet are read from their files.",
                    PerformanceWarning,
                    stacklevel=2,
                )
            return None

    def fill_now(self, array: Array, axis: int, *, threads: int | None = None) -> CachedCase | None:
        """Do as `fill`, and raise where it cannot be done now.

        Returns
        -------
        CachedCase or None
            None where `array` cannot be cached at all: it is not known which files it comes from.

        Raises
        ------
        InUseError
            Somebody else is filling this entry.
        CapacityError
            There is no room, or the folder cannot be written to; then the cause is an OSError.
        """
        key = self._of(array, axis).key
        if key is None:
            return None
        with self._folder.filling(key.digest):
            found = self.get(array, axis)  # it may have come while we did not look
            if found is None:
                with self._folder.new_entry(key.digest, key.nbytes) as write:
                    write_case(array, axis % array.ndim, key, write, threads=threads)
                found = self.get(array, axis)
            return found

    def forget(self, file: str | None) -> bool:
        """Forget an entry whose file has vanished or changed, so that `get` looks again.

        Parameters
        ----------
        file
            The `file` of the error that reading it raised.

        Returns
        -------
        bool
            Whether it is an entry of this cache, so that trying again may help.
        """
        for known in list(self._known.values()):
            if known.case is not None and known.case.file == file:
                known.case = None
        return file is not None and self._folder.holds(file)

    def used_nbytes(self) -> int:
        """Return what the folder's files take, with what is reserved for those being filled."""
        return self._folder.survey().used_nbytes

    def room(self) -> int:
        """Return how many bytes new entries could take now, old entries deleted if need be."""
        return self._folder.survey().room_nbytes

    def needs(self, arrays: Iterable[tuple[Array, int]]) -> int:
        """Return how many bytes the entries of `arrays` (with their slice axes) have yet to take.

        What is being filled just now has its room already.
        """
        there = self._folder.survey().names
        return sum(key.nbytes for key in self._keys(arrays) if key.digest not in there)

    def check_room(self, arrays: Iterable[tuple[Array, int]]) -> int:
        """Return what `needs` does, if there is room for it.

        Raises
        ------
        CapacityError
            With the numbers, in the message and as attributes `needed_nbytes`, `n_missing`,
            `room_nbytes`, `budget_nbytes`, `used_nbytes` and `free_nbytes`.
        """
        wanted = list(arrays)
        for array, axis in wanted:
            self.get(array, axis)  # which notes the use: none of them is deleted for the others
        keys = self._keys(wanted)
        with self._folder.exclusive():
            found = self._folder.survey()
        missing = [key for key in keys if key.digest not in found.names]
        needed = sum(key.nbytes for key in missing)
        if needed <= found.room_nbytes:
            return needed
        raise CapacityError(
            f"{self.folder}: {len(missing)} of {len(keys)} datasets are not decoded yet and need "
            f"{human(needed)}, but there is room for {human(found.room_nbytes)}: the budget is "
            f"{human(self.nbytes)}, {human(found.used_nbytes)} are in use, and "
            f"{self._folder.told_free()}. Give a larger budget or a folder on a larger disk, take "
            "fewer cases, or do not preload: what fits is then kept as it is read.",
            file=self.folder,
            needed_nbytes=needed,
            n_missing=len(missing),
            room_nbytes=found.room_nbytes,
            budget_nbytes=self.nbytes,
            used_nbytes=found.used_nbytes,
            free_nbytes=self._folder.free_nbytes(),
        )

    def _of(self, array: Array, axis: int) -> _Known:
        name = (array.index, axis)
        found = self._known.get(name)
        if found is None:
            found = self._known.setdefault(name, _Known(case_key(array, axis)))
        return found

    def _keys(self, arrays: Iterable[tuple[Array, int]]) -> list[CaseKey]:
        """Return the keys of all that can be cached, each once."""
        keys = [self._of(array, axis).key for array, axis in arrays]
        return list({key.digest: key for key in keys if key is not None}.values())
