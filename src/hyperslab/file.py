"""`File` and `Group`: a read-only mapping of an HDF5 file's objects."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from hyperslab.array import Array
from hyperslab.errors import FileInUseWarning, MissingObjectError
from hyperslab.index.container import FileIndex
from hyperslab.index.superblock import is_marked

__all__ = ["File", "Group", "open_file"]


class Group(Mapping[str, "Array | Group"]):
    """A group: a read-only mapping from names (or paths) to arrays and groups.

    Thread-safe; pickles as the file's path and its own name.
    """

    def __init__(self, container: FileIndex, name: str) -> None:
        self._container = container
        self._name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._container, self._name)

    @property
    def name(self) -> str:
        """Path in the file."""
        return "/" + self._name.strip("/")

    @property
    def file(self) -> str:
        """Absolute path of the file."""
        return self._container.path

    @property
    def attrs(self) -> dict[str, Any]:
        """Attributes, as plain Python and NumPy values; a copy."""
        return dict(self._container.attributes(self.name))

    def __getitem__(self, key: str) -> Array | Group:
        """Return the array or group at `key`, a path relative to this group or absolute.

        Raises
        ------
        MissingObjectError
            There is nothing of that name; it is a KeyError.
        MissingSourceError
            A link leads to a file that is not there.
        UnsupportedDtypeError
            The dataset's elements are not numbers; it is a TypeError.
        """
        if not isinstance(key, str):
            raise TypeError(f"objects are named by str, not {type(key).__name__}")
        path = key if key.startswith("/") else f"{self.name.rstrip('/')}/{key}"
        kind = self._container.kind(path)
        if kind == "dataset":
            return Array(self._container, path)
        if kind == "group":
            return Group(self._container, path)
        raise MissingObjectError(
            f"{self.file}: {path} is a {kind}, neither a dataset nor a group.",
            file=self.file,
            dataset=path,
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._container.members(self.name))

    def __len__(self) -> int:
        return len(self._container.members(self.name))

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        try:
            self[key]
        except MissingObjectError:
            return False
        except TypeError:
            return True  # it is there, though its elements are not numbers
        return True

    def kinds(self) -> dict[str, str]:
        """Return each member's name with its kind: "dataset", "group", "datatype" or "broken".

        Costs one visit to the file; nothing is indexed.
        """
        return dict(self._container.members(self.name))

    def arrays(self) -> dict[str, Array]:
        """Return the members that are datasets, indexed in one visit to the file.

        Raises
        ------
        UnsupportedDtypeError
            One of them does not hold numbers.
        """
        names = [n for n, kind in self.kinds().items() if kind == "dataset"]
        paths = {name: f"{self.name.rstrip('/')}/{name}" for name in names}
        self._container.load(list(paths.values()))
        return {name: Array(self._container, path) for name, path in paths.items()}

    def __repr__(self) -> str:
        return f"<hyperslab.Group {self.name!r}, {len(self)} members, of {self.file!r}>"


class File(Group):
    """An HDF5 file, opened for reading in place.

    Holds no HDF5 handle between calls and never locks the file. Datasets are indexed when they are
    first touched. Thread-safe, fork-safe; pickles as its path. It can be used in a `with` block,
    but nothing depends on that.

    Attributes
    ----------
    path
        Absolute path.
    """

    def __init__(self, container: FileIndex, name: str = "/") -> None:
        super().__init__(container, name)

    @property
    def path(self) -> str:
        """Absolute path."""
        return self._container.path

    def refresh(self) -> None:
        """Forget what was indexed, and take the file as it is now.

        Arrays that were got from this file are good again, with their new shape.
        """
        self._container.refresh()

    def close(self) -> None:
        """Close pooled descriptors that no read is using; the file can still be read."""
        from hyperslab.engine.source import close_idle

        close_idle()

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<hyperslab.File {self.path!r}>"


def open_file(path: str | os.PathLike[str]) -> File:
    """Open the HDF5 file at `path` for reading.

    Parameters
    ----------
    path
        Of the file.

    Returns
    -------
    File
        A read-only mapping of groups and arrays.

    Raises
    ------
    MissingFileError
        No such file, or a folder.
    NotHDF5Error
        The file has no HDF5 signature.

    Warns
    -----
    FileInUseWarning
        Another process holds a write lock on it (seen on Linux), or a writer has marked it as open.

    Notes
    -----
    Reads a few bytes: the signature. Takes well under a millisecond, whatever the file's size.
    """
    container = FileIndex(path)
    if _is_write_locked(container):
        writer = "it is open for writing, in another process or this one"
    elif is_marked(container.path, container.user_block_nbytes):
        writer = "it is marked as open for writing, by a writer that has it open or died meanwhile"
    else:
        return File(container)
    warnings.warn(
        f"{container.path}: {writer}. It is read as it is on disk now; if it changes, reads raise "
        "StaleIndexError until refresh() is called.",
        FileInUseWarning,
        stacklevel=2,
    )
    return File(container)


def _is_write_locked(container: FileIndex) -> bool:
    """Look in the kernel's list of locks, without taking one (which could stop a writer)."""
    if not sys.platform.startswith("linux"):
        return False
    found = container.fingerprint
    wanted = f"{os.major(found.device):02x}:{os.minor(found.device):02x}:{found.inode}"
    try:
        with open("/proc/locks", encoding="ascii") as stream:
            for line in stream:
                fields = line.split()
                if "WRITE" in fields and wanted in fields:
                    return True
    except OSError:
        pass  # no such list here: then there is no warning either
    return False
