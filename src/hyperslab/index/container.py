"""The index of one file: filled as datasets are touched, kept without any open handle."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hyperslab.errors import (
    DamagedFileError,
    HyperslabError,
    MissingFileError,
    MissingObjectError,
    MissingSourceError,
    StaleIndexError,
)
from hyperslab.index.attributes import load_attributes
from hyperslab.index.build import describe_dataset, load_chunk_table
from hyperslab.index.records import Chunked, ChunkTable, DatasetIndex, Fingerprint, fingerprint
from hyperslab.index.resolve import get_object
from hyperslab.index.session import check_signature, library_lock, session

if TYPE_CHECKING:
    import h5py

    from hyperslab.index.sidecar import SavedFile

__all__ = ["FileIndex", "stale"]


class FileIndex:
    """What is known of one HDF5 file, and how to learn more.

    Thread-safe. Pickles as its path: the copy learns the file anew, in the process it lands in.

    Parameters
    ----------
    path
        Of the file. Checked for an HDF5 signature, otherwise not read.
    saved
        What a sidecar holds of this file. While the file is the one that was indexed then, datasets
        and chunk tables are taken from there first, and its signature is not looked at. Otherwise,
        and after `refresh`, it is not used.
    incomplete
        Take a file whose end is missing too: what lies there is damage, and all else can be read.

    Attributes
    ----------
    path
        Absolute.
    fingerprint
        The file's when this index began.
    user_block_nbytes
        What stands before the HDF5 part of the file.
    generation
        How often it was refreshed: what was learnt before is out of date.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        saved: SavedFile | None = None,
        incomplete: bool = False,
    ) -> None:
        self._incomplete = incomplete
        self._handle: h5py.File | None = None
        self.path = os.path.abspath(os.fspath(path))
        if saved is not None and saved.path != self.path:
            raise ValueError(f"{self.path}: what was saved is of another file, {saved.path}")
        self._begin(saved)
        self.generation = 0

    def _begin(self, saved: SavedFile | None = None) -> None:
        self._saved: SavedFile | None = None
        if saved is not None and saved.describes(now := fingerprint(self.path)):
            self._saved = saved
            self.user_block_nbytes = saved.user_block_nbytes
        else:
            self.user_block_nbytes = check_signature(self.path)
            now = fingerprint(self.path)
        self.fingerprint: Fingerprint = now
        self._datasets: dict[str, DatasetIndex] = {}
        self._tables: dict[str, ChunkTable] = {}
        self._attributes: dict[str, dict[str, Any]] = {}
        self._members: dict[str, dict[str, str]] = {}
        self._sources: dict[str, FileIndex] = {}
        self._raw_files: dict[str, Fingerprint] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _file_index, (self.path, self._incomplete)

    def refresh(self) -> None:
        """Forget everything learnt, so that it is read again from the file as it is now."""
        with library_lock:
            self._begin()
            self.generation += 1

    @contextmanager
    def visit(self) -> Iterator[h5py.File]:
        """Open the file for the length of a `with` block; visits inside use the same handle.

        See `hyperslab.index.session.session`.
        """
        with library_lock:  # so that whoever finds the handle is inside the block
            if self._handle is not None:
                yield self._handle
                return
            with session(self.path, incomplete=self._incomplete) as h5:
                self._handle = h5
                try:
                    yield h5
                finally:
                    self._handle = None

    def check_fresh(self) -> None:
        """Raise `StaleIndexError` if the file has changed since it was indexed. One `stat`."""
        if fingerprint(self.path) != self.fingerprint:
            raise stale(self.path)

    def dataset(self, name: str) -> DatasetIndex:
        """Return the facts of dataset `name`, indexing it if this is the first time.

        Raises
        ------
        MissingObjectError, MissingSourceError, UnsupportedDtypeError, StaleIndexError
        TypeError
            `name` is a group.
        """
        found = self._datasets.get(name)
        if found is None:
            self.load([name])
            found = self._datasets[name]
        return found

    def load(self, names: list[str], *, tables: bool = False) -> None:
        """Index many datasets in one visit to the library; `tables` with their chunk tables."""
        with library_lock:
            todo = [n for n in names if not self._has(n, tables=tables)]
            if not todo:
                return
            self.check_fresh()
            todo = [n for n in todo if not self._recall(n, tables=tables)]
            if not todo:
                return
            import h5py

            with self.visit() as h5:
                for name in todo:
                    item = get_object(h5, name)
                    if not isinstance(item, h5py.Dataset):
                        raise MissingObjectError(
                            f"{self.path}: {name!r} is a {type(item).__name__.lower()}, not a "
                            "dataset.",
                            file=self.path,
                            dataset=name,
                        )
                    # Behind an external link, another file.
                    inside = item.file.filename == h5.filename
                    path = self.path if inside else os.path.abspath(item.file.filename)
                    with _damage(path, name):
                        index = self._datasets.get(name) or describe_dataset(item, path, name=name)
                        if tables and isinstance(index.storage, Chunked):
                            self._tables[name] = load_chunk_table(item, index)
                    self._datasets[name] = index

    def _has(self, name: str, *, tables: bool) -> bool:
        index = self._datasets.get(name)
        if index is None or not tables or not isinstance(index.storage, Chunked):
            return index is not None
        return name in self._tables

    def _recall(self, name: str, *, tables: bool) -> bool:
        """Take a dataset from what was saved, if it is there; tell whether nothing is missing.

        The file is known to be as it was when this index began.
        """
        if self._saved is None:
            return False
        if name not in self._datasets:
            index = self._saved.dataset(name, now=self.fingerprint)
            if index is None:
                return False
            self._datasets[name] = index
        if tables and isinstance(self._datasets[name].storage, Chunked):
            table = self._saved.table(name, now=self.fingerprint)
            if table is not None:
                self._tables.setdefault(name, table)
        return self._has(name, tables=tables)

    def chunk_table(self, name: str) -> ChunkTable:
        """Return the chunk table of chunked dataset `name`, reading it if need be."""
        found = self._tables.get(name)
        if found is None:
            with library_lock:
                if name not in self._tables:
                    self.check_fresh()
                    index = self.dataset(name)
                    self._recall(name, tables=True)
                if name not in self._tables:
                    with (
                        self.visit() as h5,
                        _damage(self.path, name),
                    ):
                        self._tables[name] = load_chunk_table(get_object(h5, name), index)
                found = self._tables[name]
        return found

    def learnt(self) -> tuple[dict[str, DatasetIndex], dict[str, ChunkTable]]:
        """Return all facts of datasets and all chunk tables that are known, by name; copies.

        What was saved and is still good counts, touched or not.
        """
        with library_lock:
            if self._saved is not None:
                for name in self._saved.names():
                    self._recall(name, tables=True)
            return dict(self._datasets), dict(self._tables)

    def kind(self, name: str) -> str:
        """Return "dataset", "group" or "datatype": what `name` is, links followed."""
        import h5py

        if name in self._datasets:
            return "dataset"
        if name in self._members:
            return "group"
        with library_lock:
            self.check_fresh()
            if self._recall(name, tables=False):
                return "dataset"
            with self.visit() as h5:
                item = get_object(h5, name)
                if isinstance(item, h5py.Dataset):
                    return "dataset"
                if isinstance(item, h5py.Group):
                    return "group"
                return "datatype"

    def members(self, name: str) -> dict[str, str]:
        """Return the members of group `name`: each name with its kind.

        Kinds are "dataset", "group", "datatype", and "broken" for a link that leads nowhere. In the
        file's own order (by name, or by creation where the file tracks it).
        """
        import h5py

        found = self._members.get(name)
        if found is None:
            with library_lock:
                self.check_fresh()
                with self.visit() as h5:
                    group = get_object(h5, name)
                    if not isinstance(group, h5py.Group):
                        raise MissingObjectError(
                            f"{self.path}: {name!r} is a dataset, it has no members.",
                            file=self.path,
                            dataset=name,
                        )
                    with _damage(self.path, name):
                        found = {member: _kind(group, member) for member in group}
                self._members[name] = found
        return found

    def attributes(self, name: str) -> dict[str, Any]:
        """Return the decoded attributes of object `name`; see `load_attributes`."""
        found = self._attributes.get(name)
        if found is None:
            with library_lock:
                self.check_fresh()
                with (
                    self.visit() as h5,
                    _damage(self.path, name),
                ):
                    found = load_attributes(get_object(h5, name))
                self._attributes[name] = found
        return found

    def source(self, path: str, user: DatasetIndex) -> FileIndex:
        """Return the index of the file `path`, which virtual dataset `user` names; kept.

        Raises
        ------
        MissingSourceError
            It is not there.
        """
        if path == self.path:
            return self
        with library_lock:
            if path not in self._sources:
                try:
                    self._sources[path] = FileIndex(path)
                except MissingFileError:
                    raise MissingSourceError(
                        f"{self.path}: virtual dataset {user.name} needs {path}, which is not "
                        "there. Put the file back, or set HDF5_VDS_PREFIX to its folder.",
                        file=path,
                        dataset=user.name,
                    ) from None
            return self._sources[path]

    def fingerprint_of(self, path: str, user: DatasetIndex) -> Fingerprint:
        """Return what `path`, which holds the raw bytes of `user`, looked like when first asked."""
        if path == user.file:
            return user.fingerprint
        with library_lock:
            if path not in self._raw_files:
                self._raw_files[path] = fingerprint(path)
            return self._raw_files[path]


def _file_index(path: str, incomplete: bool) -> FileIndex:
    return FileIndex(path, incomplete=incomplete)


@contextmanager
def _damage(path: str, name: str) -> Iterator[None]:
    """Name the file and the object where the HDF5 library fails to look at it."""
    try:
        yield
    except HyperslabError:
        raise
    except (KeyError, OSError, RuntimeError, ValueError) as error:
        raise DamagedFileError(
            f"{path}: the HDF5 library cannot make sense of {name}: {error}. The file is damaged "
            "or truncated.",
            file=path,
            dataset=name,
        ) from error


def _kind(group: Any, member: str) -> str:
    import h5py

    try:
        kind = group.get(member, getclass=True)
    except (KeyError, OSError, ValueError, RuntimeError):
        return "broken"
    if kind is h5py.Dataset:
        return "dataset"
    if kind is h5py.Group:
        return "group"
    return "datatype" if kind is h5py.Datatype else "broken"


def stale(path: str) -> StaleIndexError:
    """Return the error for a file that is no longer what was indexed."""
    return StaleIndexError(
        f"{path}: the file has changed since it was indexed, so the chunk offsets may be wrong. "
        "Call refresh() on the File (or Image), or open it again.",
        file=path,
    )
