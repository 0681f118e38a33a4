"""What is packed and what was, as plain facts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["PackReport", "PackedCase", "PackedImage", "Progress", "RefusedCase"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a pack is.

    Attributes
    ----------
    stage
        "look", "pack", "write" or "verify".
    done, total
        Of the stage: cases for "look", stored bytes for "write", else decoded bytes.
    """

    stage: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedImage:
    """An image of a case.

    Attributes
    ----------
    image
        Its group: "MR", "CT" ...
    source
        Its file or folder, below the folder that is packed.
    format
        "NIfTI", "MetaImage", "NRRD" or "DICOM".
    shape
        (rows, columns, slices), as stored.
    spacing
        Along these, mm.
    source_dtype
        Element type of the source.
    mapping
        How its values are mapped, e.g. "window:-1024:3000".
    resampled
        Whether it is brought onto another grid.
    source_range, stored_range
        Least and greatest value before and after; None where only headers were read.
    window
        The source values that became -1 and 1; None for "none" and "mask", and where only headers
        were read.
    clipped
        The share of voxels that were outside of it.
    dtype, chunks, codec
        As stored; "" and () where only headers were read.
    nbytes, stored_nbytes
        Decoded, and in the file.
    note
        Something worth knowing, else "".
    """

    image: str
    source: str
    format: str
    shape: tuple[int, int, int]
    spacing: tuple[float, float, float]
    source_dtype: str
    mapping: str
    resampled: bool
    source_range: tuple[float, float] | None = None
    stored_range: tuple[float, float] | None = None
    window: tuple[float, float] | None = None
    clipped: float | None = None
    dtype: str = ""
    chunks: tuple[int, ...] = ()
    codec: str = ""
    nbytes: int = 0
    stored_nbytes: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCase:
    """A case.

    Attributes
    ----------
    case
        Its name in the new file.
    folder
        Where it comes from, below the folder that is packed.
    images
        By group.
    """

    case: str
    folder: str
    images: tuple[PackedImage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCase:
    """A case that was left out.

    Attributes
    ----------
    folder
        Where it is, below the folder that is packed.
    reason
        Why, in a sentence.
    """

    folder: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """What `pack` did, or would do.

    Attributes
    ----------
    folder
        That was packed.
    target
        The new file; "" where none was written: only planned, or no case could be packed.
    cases
        In the order of their names.
    refused
        Cases that were left out.
    ignored
        Images that no case claims, below the folder.
    codecs
        Group to codec, and why it was chosen.
    nbytes, target_nbytes
        Decoded bytes of all images; size of the file.
    seconds
        From beginning to end, of this run.
    verified
        Whether everything was read back and compared.
    resumed
        Images that an earlier run had done.
    """

    folder: str
    target: str
    cases: tuple[PackedCase, ...]
    refused: tuple[RefusedCase, ...]
    ignored: tuple[str, ...]
    codecs: dict[str, tuple[str, str]]
    nbytes: int
    target_nbytes: int
    seconds: float
    verified: bool
    resumed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON can hold it."""
        return asdict(self)
