"""What can go wrong, as one tree.

Every class inherits :class:`HyperslabError` and the builtin that a caller would catch anyway::

    HyperslabError
    ├── MissingFileError        FileNotFoundError   the path does not exist
    │   └── MissingSourceError                      a file that this one refers to is gone
    ├── NotHDF5Error            OSError             no HDF5 signature, or the library cannot open it
    ├── StaleIndexError         OSError             the file changed after it was indexed
    ├── DamagedFileError        OSError             bytes that should be there are not
    │   └── ChunkDecodeError                        a chunk's bytes do not decode
    │       └── ChecksumError                       ... because its stored checksum differs
    ├── MissingObjectError      KeyError            no such group or dataset in the file
    ├── UnsupportedDtypeError   TypeError           compound, string, reference ... elements
    ├── SelectionError          IndexError          an index that does not fit the shape
    ├── OutputError             ValueError          `out` of the wrong shape, dtype or kind
    ├── LayoutError             ValueError          no image layout fits, or more than one does
    ├── SampleError             ValueError          inputs of a cohort that do not pair up
    ├── CapacityError           OSError             no room in memory, or on the disk
    ├── MissingCodecError       ImportError         a filter that nothing installed here decodes
    └── MissingExtraError       ImportError         an optional part of hyperslab is not installed

A message says what was asked, what was found and what to do next. The same facts are attributes
(`file`, `dataset`, `chunk`, `byte_offset`, ... whichever apply; absent ones are None). Every error
pickles, so a DataLoader worker's error reaches the parent whole.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CapacityError",
    "ChecksumError",
    "ChunkDecodeError",
    "DamagedCaseWarning",
    "DamagedFileError",
    "FileInUseWarning",
    "HyperslabError",
    "LayoutError",
    "MetadataWarning",
    "MissingCodecError",
    "MissingExtraError",
    "MissingFileError",
    "MissingObjectError",
    "MissingSourceError",
    "NotHDF5Error",
    "OutputError",
    "PerformanceWarning",
    "SampleError",
    "SelectionError",
    "StaleIndexError",
    "UnsupportedDtypeError",
]


def _rebuild(cls: type[HyperslabError], message: str, facts: dict[str, Any]) -> HyperslabError:
    return cls(message, **facts)


class HyperslabError(Exception):
    """Root of everything that hyperslab raises on purpose.

    Parameters
    ----------
    message
        One or more sentences for a person.
    **facts
        What the message talks about, kept as attributes: `file`, `dataset` (str), `chunk` (chunk
        coordinate, tuple of int), `byte_offset` (int, from the start of the file), `samples` and
        whatever else applies.
    """

    file: str | None = None
    dataset: str | None = None
    chunk: tuple[int, ...] | None = None
    byte_offset: int | None = None

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts
        for key, value in facts.items():
            setattr(self, key, value)

    def __str__(self) -> str:  # KeyError would print the repr
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.facts)


class MissingFileError(HyperslabError, FileNotFoundError):
    """The path does not exist, or is a folder."""


class MissingSourceError(MissingFileError):
    """A file that this one refers to (virtual source, external link or storage) is not there."""


class NotHDF5Error(HyperslabError, OSError):
    """The file has no HDF5 signature, or the HDF5 library refuses to open it."""


class StaleIndexError(HyperslabError, OSError):
    """The file changed after it was indexed; `refresh()` reads it anew."""


class DamagedFileError(HyperslabError, OSError):
    """Bytes that the file's own index promises are not there, or make no sense."""


class ChunkDecodeError(DamagedFileError):
    """A chunk's stored bytes do not decode to the chunk's size."""


class ChecksumError(ChunkDecodeError):
    """A chunk's stored Fletcher-32 checksum differs from that of its bytes."""


class MissingObjectError(HyperslabError, KeyError):
    """The file has no group or dataset of that name."""


class UnsupportedDtypeError(HyperslabError, TypeError):
    """The dataset's elements are no numbers (compound, string, reference, ...)."""


class SelectionError(HyperslabError, IndexError):
    """An index that NumPy would refuse for this shape."""


class OutputError(HyperslabError, ValueError):
    """`out` has the wrong shape or dtype, or cannot be written."""


class LayoutError(HyperslabError, ValueError):
    """No known image layout fits the file, or several do."""


class SampleError(HyperslabError, ValueError):
    """The inputs of a training set do not pair up."""


class CapacityError(HyperslabError, OSError):
    """What was asked for does not fit into memory or onto the disk, or cannot be written there."""


class MissingCodecError(HyperslabError, ImportError):
    """A filter of the dataset's pipeline that nothing installed here can decode."""


class MissingExtraError(HyperslabError, ImportError):
    """An optional part of hyperslab needs a package that is not installed."""


class PerformanceWarning(UserWarning):
    """The result is right, but something makes it slower than it need be."""


class MetadataWarning(UserWarning):
    """Metadata are missing or make no sense; a stated default is used."""


class FileInUseWarning(UserWarning):
    """Another process holds a write lock on the file; it may change while it is read."""


class DamagedCaseWarning(UserWarning):
    """Cases of a training set cannot be used, and were left out as was asked for."""
