"""An image on disk: which reader reads it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hyperslab.packing import dicom, itk, nifti
from hyperslab.packing.refusal import Refused
from hyperslab.packing.volume import Header, Volume

__all__ = ["SUFFIXES", "Source", "fingerprint", "quiet_readers", "read", "read_header", "stem"]

_NIFTI = (".nii.gz", ".nii")
_ITK = (".mha", ".mhd", ".nrrd", ".nhdr")
_DICOM = (".dcm", ".ima")
SUFFIXES = (*_NIFTI, *_ITK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An image on disk.

    Attributes
    ----------
    path
        Of the file; of a DICOM series, its folder.
    files
        The files of a DICOM series; else empty.
    """

    path: str
    files: tuple[str, ...] = ()


def stem(name: str) -> str | None:
    """Return a file's name without the suffix of an image, None if it has none.

    Examples
    --------
    >>> stem("ct.nii.gz"), stem("MR.mha"), stem("overview.png")
    ('ct', 'MR', None)
    """
    suffix = next((s for s in SUFFIXES if name.lower().endswith(s)), None)
    return None if suffix is None else name[: -len(suffix)]


def read_header(source: Source) -> Header:
    """Read what an image's header says.

    Raises
    ------
    Refused
        It cannot be packed; the message says why.
    MissingExtraError
        The package that reads it is not installed.
    """
    if source.files:
        return dicom.read_header(source.files)
    name = source.path.lower()
    if name.endswith(_NIFTI):
        return nifti.read_header(source.path)
    if name.endswith(_ITK):
        return itk.read_header(source.path)
    if name.endswith(_DICOM) or dicom.is_dicom(source.path):
        return dicom.read_header([source.path])
    raise Refused(f"{source.path} is in no format that is read: {', '.join((*SUFFIXES, *_DICOM))}")


def read(source: Source, header: Header) -> Volume:
    """Read an image; errors as `read_header`."""
    if header.kind == "DICOM":
        return dicom.read(header)
    return nifti.read(source.path) if header.kind == "NIfTI" else itk.read(source.path)


def fingerprint(files: Sequence[str]) -> str:
    """Return a word for the names, sizes and times of files: another one, another state of them.

    Raises
    ------
    Refused
        One of them is not there.
    """
    found = hashlib.sha256()
    for path in sorted(files):
        try:
            info = os.stat(path)
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}") from error
        found.update(f"{path}\0{info.st_size}\0{info.st_mtime_ns}\0".encode(errors="replace"))
    return found.hexdigest()[:32]


@contextlib.contextmanager
def quiet_readers() -> Iterator[None]:
    """Keep what the readers say of files to themselves: what matters is in refusals and notes."""
    sitk = sys.modules.get("SimpleITK")
    loud = sitk.ProcessObject.GetGlobalWarningDisplay() if sitk else False
    with warnings.catch_warnings():
        for package in ("pydicom", "nibabel"):
            warnings.filterwarnings("ignore", module=rf"{package}(\.|$)")
        if sitk:
            sitk.ProcessObject.SetGlobalWarningDisplay(False)
        try:
            yield
        finally:
            if sitk:
                sitk.ProcessObject.SetGlobalWarningDisplay(loud)
