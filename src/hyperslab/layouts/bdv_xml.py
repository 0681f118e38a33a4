"""BigDataViewer: what the xml beside an HDF5 file says about it.

`SpimData` lists the view setups (voxel size, unit, attributes such as channel and angle), the time
points, the views that are missing, and a chain of affine transforms for every view. Every item is
optional. Colours and contrast are in a second file, `NAME.settings.xml`.

Source of the format facts: the SpimData classes of BigDataViewer, and files of three writers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from hyperslab.layouts.axes import tidy_unit
from hyperslab.layouts.items import number, numbers, whole
from hyperslab.layouts.volumes import Triple

__all__ = ["BdvXml", "Display", "Setup", "file_of_xml", "find_xml", "read_display", "read_xml"]

_MOST_NBYTES = 256 << 20
_MOST_FILES = 100  # xml files in a folder that are looked into
_MOST_TIMES = 10_000_000


class Setup(NamedTuple):
    """A view setup: its name, its voxel size (z, y, x) in `unit`, and what was set for it."""

    name: str = ""
    size: tuple[int, ...] | None = None  # (z, y, x)
    voxel: Triple | None = None
    unit: str = ""
    attributes: tuple[tuple[str, int], ...] = ()  # ("channel", 0), ("angle", 1) ...


class Display(NamedTuple):
    """How a setup is shown."""

    color: tuple[float, float, float] | None
    limits: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BdvXml:
    """What was understood of an xml file.

    Attributes
    ----------
    name
        Of the file, for messages.
    setups
        By number.
    names
        Of the values of an attribute: by attribute, then by value.
    times
        Numbers of the time points, or None.
    missing
        (time point, setup) that were not recorded.
    transforms
        (3, 4) for (time point, setup): takes the index (x, y, z) of a voxel to its position.
    """

    name: str
    setups: dict[int, Setup] = field(default_factory=dict)
    names: dict[str, dict[int, str]] = field(default_factory=dict)
    times: tuple[int, ...] | None = None
    missing: frozenset[tuple[int, int]] = frozenset()
    transforms: dict[tuple[int, int], NDArray[np.float64]] = field(default_factory=dict)


def find_xml(path: str) -> str | None:
    """Return the xml file that belongs to the HDF5 file at `path`, or None.

    The one with the same name; else the first in the folder that names this file.
    """
    same = os.path.splitext(path)[0] + ".xml"
    if _root(same) is not None:
        return same
    folder, name = os.path.split(path)
    try:
        others = sorted(entry for entry in os.listdir(folder or ".") if entry.endswith(".xml"))
    except OSError:
        return None
    for entry in others[:_MOST_FILES]:
        candidate = os.path.join(folder, entry)
        root = _root(candidate)
        if root is not None and any(PurePath(p).name == name for p in _hdf5_paths(root)):
            return candidate
    return None


def file_of_xml(path: str) -> str | None:
    """Return the HDF5 file that the xml file at `path` describes, or None if it names none."""
    root = _root(path)
    if root is None:
        return None
    base = (root.findtext("BasePath") or ".").strip()
    for said in _hdf5_paths(root):
        return os.path.normpath(os.path.join(os.path.dirname(path), base, said))
    return None


def _root(path: str) -> ElementTree.Element | None:
    """Root of an xml file of BigDataViewer; None where there is no such file."""
    try:
        if os.path.getsize(path) > _MOST_NBYTES:
            return None
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError, ValueError, LookupError):
        return None
    return root if root.tag == "SpimData" else None


def _hdf5_paths(root: ElementTree.Element) -> list[str]:
    return [text.strip() for item in root.iter("hdf5") if (text := item.text) and text.strip()]


def read_xml(path: str) -> BdvXml:
    """Read the xml file at `path`; items that make no sense are left out."""
    root = _root(path)
    if root is None:
        return BdvXml(name=os.path.basename(path))
    return BdvXml(
        name=os.path.basename(path),
        setups=dict(_setups(root)),
        names={
            group.get("name", ""): {
                n: name
                for item in group
                if (n := whole(item.findtext("id"))) is not None
                and (name := (item.findtext("name") or "").strip())
            }
            for group in root.iter("Attributes")
        },
        times=_times(root),
        missing=frozenset(_views(root, "MissingView")),
        transforms=_transforms(root),
    )


def _setups(root: ElementTree.Element) -> Iterable[tuple[int, Setup]]:
    for item in root.iter("ViewSetup"):
        n = whole(item.findtext("id"))
        if n is None:
            continue
        size = numbers(item.findtext("size"))
        voxel = numbers(item.findtext("voxelSize/size"))
        attributes = [
            (entry.tag, value)
            for entry in item.findall("attributes/*")
            if (value := whole(entry.text)) is not None
        ]
        yield (
            n,
            Setup(
                name=(item.findtext("name") or "").strip(),
                size=tuple(int(v) for v in reversed(size)) if size else None,
                voxel=(voxel[2], voxel[1], voxel[0])
                if voxel and len(voxel) == 3 and min(voxel) > 0
                else None,
                unit=tidy_unit(item.findtext("voxelSize/unit")),
                attributes=tuple(sorted(attributes)),
            ),
        )


def _times(root: ElementTree.Element) -> tuple[int, ...] | None:
    item = root.find("SequenceDescription/Timepoints")
    if item is None:
        return None
    first, last = whole(item.findtext("first")), whole(item.findtext("last"))
    if first is not None and last is not None:
        ranges = [(first, last, 1)]
    elif (pattern := item.findtext("integerpattern")) is not None:
        # "0-10:2, 12": ranges with a step, and single numbers.
        parts = [
            re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", p.strip()) for p in pattern.split(",")
        ]
        ranges = [
            (int(m[1]), int(m[2] or m[1]), max(1, int(m[3] or 1))) for m in parts if m is not None
        ]
    else:
        entries = [whole(entry.text) for entry in item.iter("id")]
        ranges = [(n, n, 1) for n in entries if n is not None]
    if not ranges or sum(max(0, (b - a) // step) for a, b, step in ranges) > _MOST_TIMES:
        return None
    return tuple(sorted({n for a, b, step in ranges for n in range(a, b + 1, step)}))


def _views(root: ElementTree.Element, tag: str) -> Iterable[tuple[int, int]]:
    for item in root.iter(tag):
        t, s = whole(item.get("timepoint")), whole(item.get("setup"))
        if t is not None and s is not None:
            yield t, s


def _transforms(root: ElementTree.Element) -> dict[tuple[int, int], NDArray[np.float64]]:
    """Chains of transforms put together: the last one in the file is applied first."""
    found = {}
    for view in root.iter("ViewRegistration"):
        t, s = whole(view.get("timepoint")), whole(view.get("setup"))
        if t is None or s is None:
            continue
        chain = np.eye(4)
        for item in view.findall("ViewTransform/affine"):
            values = numbers(item.text)
            if values is None or len(values) != 12:
                break
            chain = chain @ np.vstack([np.reshape(values, (3, 4)), [0, 0, 0, 1]])
        else:
            found[t, s] = chain[:3]
    return found


def read_display(path: str) -> dict[int, Display]:
    """Colour and contrast by setup, from the settings beside the HDF5 file at `path`."""
    settings = os.path.splitext(path)[0] + ".settings.xml"
    try:
        if os.path.getsize(settings) > _MOST_NBYTES:
            return {}
        root = ElementTree.parse(settings).getroot()
    except (OSError, ElementTree.ParseError, ValueError, LookupError):
        return {}
    found = {}
    for item in root.iter("ConverterSetup"):
        n = whole(item.findtext("id"))
        low, high = number(item.findtext("min")), number(item.findtext("max"))
        packed = whole(item.findtext("color"))  # signed 32 bits: alpha, red, green, blue
        if n is None:
            continue
        color = None
        if packed is not None:
            color = ((packed >> 16 & 255) / 255, (packed >> 8 & 255) / 255, (packed & 255) / 255)
        limits = None
        if low is not None and high is not None and low < high:
            limits = (float(low), float(high))
        found[n] = Display(color, limits)
    return found
