"""Which cases a folder holds, and which images each has: by names alone, nothing is opened.

Without patterns, a case is a folder with files called ``mr``, ``ct``, ``cbct`` or ``mask`` (in any
case, with the suffix of an image), at whatever depth: so are the trees of SynthRAD 2023
(``Task1/brain/1BA001/{mr,ct,mask}.nii.gz``) and 2025 (``Task1/AB/1ABA001/{mr,ct,mask}.mha``, and
``cbct`` in Task2). And a folder of DICOM files is one image of the case that the folder around it
is; the folder's name says which image, or else its modality does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from hyperslab.errors import LayoutError, MissingFileError
from hyperslab.index.tree import natural_key
from hyperslab.packing.dicom import is_dicom
from hyperslab.packing.patterns import Pattern, image_name
from hyperslab.packing.sources import Source, stem

__all__ = ["Found", "FoundCase", "find_cases"]

KNOWN = ("MR", "CT", "CBCT", "MASK")
_DICOM_SUFFIXES = (".dcm", ".ima")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCase:
    """A case, by the names of its files.

    Attributes
    ----------
    name
        Its name in the new file.
    folder
        Below the folder that is packed, for messages.
    images
        (name, source) of each; the name is "" where only the modality tells.
    """

    name: str
    folder: str
    images: tuple[tuple[str, Source], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a folder holds.

    Attributes
    ----------
    cases
        In natural order.
    ignored
        Images that belong to no case, below the folder.
    """

    cases: tuple[FoundCase, ...]
    ignored: tuple[str, ...]


@dataclass(slots=True)
class _Gathered:
    """Cases while they are found, by (name, folder)."""

    cases: dict[tuple[str, str], list[tuple[str, Source]]] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def add(self, name: str, folder: str, image: str, source: Source) -> None:
        self.cases.setdefault((name, folder), []).append((image, source))


def find_cases(folder: str, patterns: Sequence[Pattern] = ()) -> Found:
    """Look for cases.

    Parameters
    ----------
    folder
        Absolute path.
    patterns
        Where to look instead of by the rules above; of a path that several match, the first counts.

    Raises
    ------
    MissingFileError
        There is no such folder.
    LayoutError
        It holds no case.

    Notes
    -----
    Symbolic links are followed; names that begin with a dot are not looked at. Reads 132 bytes of
    each file without a suffix.
    """
    if not os.path.isdir(folder):
        raise MissingFileError(f"{folder}: there is no such folder.", file=folder)
    gathered = _Gathered()
    for path, files, series in _walk(folder):
        below = os.path.relpath(path, folder).replace(os.sep, "/")
        below = "" if below == "." else below
        if patterns:
            _by_pattern(gathered, path, below, files, series, patterns)
        else:
            _by_name(gathered, folder, path, below, files, series)
    if not gathered.cases:
        raise LayoutError(_nothing(folder, gathered.ignored, bool(patterns)), file=folder)
    return Found(cases=_named(gathered.cases), ignored=tuple(sorted(gathered.ignored)))


def _walk(folder: str) -> Iterator[tuple[str, list[str], tuple[str, ...]]]:
    """Yield each folder, its files that look like images, and its DICOM files."""
    seen = set()
    for path, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if real in seen:  # a link that leads back
            folders[:] = []
            continue
        seen.add(real)
        names = sorted(name for name in files if not name.startswith("."))
        series = tuple(
            os.path.join(path, name)
            for name in names
            if name.lower().endswith(_DICOM_SUFFIXES)
            or ("." not in name and name != "DICOMDIR" and is_dicom(os.path.join(path, name)))
        )
        yield path, [name for name in names if stem(name) is not None], series


def _by_name(
    gathered: _Gathered,
    root: str,
    path: str,
    below: str,
    files: list[str],
    series: tuple[str, ...],
) -> None:
    for name in files:
        image = image_name(stem(name) or "")
        if image in KNOWN:
            case = PurePath(below).name or os.path.basename(root)
            gathered.add(case, below, image, Source(path=os.path.join(path, name)))
        else:
            gathered.ignored.append(f"{below}/{name}".lstrip("/"))
    if series:
        around = "" if below in ("", ".") else os.path.dirname(below)
        case = PurePath(around).name or os.path.basename(root)
        image = image_name(PurePath(below).name or os.path.basename(root))
        known = image if image in KNOWN else ""
        if below and not around and not known:
            # A folder of folders of slices, with nothing that says which image: a case each.
            case, around = below, below
        gathered.add(case, around, known, Source(path=path, files=series))


def _by_pattern(
    gathered: _Gathered,
    path: str,
    below: str,
    files: list[str],
    series: tuple[str, ...],
    patterns: Sequence[Pattern],
) -> None:
    def matched(name: str, source: Source) -> bool:
        found = next((match for p in patterns if (match := p.match(name))), None)
        if found is not None:
            gathered.add(found[0], "", found[1], source)
        return found is not None

    for name in files:
        where = f"{below}/{name}".lstrip("/")
        if not matched(where, Source(path=os.path.join(path, name))):
            gathered.ignored.append(where)
    for single in series:
        matched(f"{below}/{os.path.basename(single)}".lstrip("/"), Source(path=single))
    if series:
        matched(below, Source(path=path, files=series))


def _named(
    cases: dict[tuple[str, str], list[tuple[str, Source]]],
) -> tuple[FoundCase, ...]:
    """Name the cases; those of one name by their folders, with "_" between the parts."""
    names = [name for name, _ in cases]
    found = [
        FoundCase(
            name=name if names.count(name) == 1 else folder.replace("/", "_"),
            folder=folder or name,
            images=tuple(images),
        )
        for (name, folder), images in cases.items()
    ]
    return tuple(sorted(found, key=lambda case: natural_key(case.name)))


def _nothing(folder: str, ignored: list[str], patterns: bool) -> str:
    there = f" Images that are there: {', '.join(sorted(ignored)[:5])}." if ignored else ""
    if patterns:
        return f"{folder}: no path matches the patterns.{there} Paths count from that folder."
    return (
        f"{folder}: no case was found. A case is a folder with files called mr, ct, cbct or mask "
        "(.nii, .nii.gz, .mha, .mhd, .nrrd), or with a folder of DICOM files for each image."
        f"{there} Say where they are with --pattern (patterns=), such as '{{case}}/{{image}}.mha'."
    )
