"""Axes of a dataset: a letter for each, from whatever a file calls them, and where pixels lie.

Files name axes freely ("R_x", "sample_y", "rotation_angle") and give positions as vectors of
coordinates. Here the name becomes one letter, and the vector a position and a step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.layouts.items import warn

if TYPE_CHECKING:
    import h5py

__all__ = [
    "Axis", "axis_letters", "axis_of", "labels_of", "meant_by", "read_vector", "scale_of",
    "tidy_unit",
]  # fmt: skip

_MOST = 1 << 20  # coordinates along one axis; more of them are something else
_UNEVEN = 0.01  # how far, in steps, a coordinate may lie from the straight line

_MEANINGS = {
    "X": "x xaxis xspace xdim width column columns col cols",
    "Y": "y yaxis yspace ydim height row rows",
    "Z": "z zaxis zspace zdim depth slice slices",
    "C": "c channel channels",
    "T": "t time times timepoint timepoints",
    "A": "angle angles theta phi omega chi kappa eta rotation tilt azimuth",
    "E": "e energy energies",
    "L": "wavelength wavelengths lambda",
    "F": "frame frames image images",
}
_LETTER_OF = {word: letter for letter, words in _MEANINGS.items() for word in words.split()}
_SPACE = "ZYX"
_OTHERS = "SNPQUVWRDGHIJKMOBAEFL"  # those that mean something come last
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_MEANINGLESS = re.compile(r"\.|(dim|axis|phony_dim)?[ _-]?[0-9]*|<undefined>|none", re.IGNORECASE)

_UNITS = {
    "micron": "um", "microns": "um", "micrometer": "um", "micrometers": "um", "micrometre": "um",
    "micrometres": "um", "nanometer": "nm", "nanometers": "nm", "nanometre": "nm",
    "nanometres": "nm", "millimeter": "mm", "millimeters": "mm", "millimetre": "mm",
    "millimetres": "mm", "meter": "m", "meters": "m", "metre": "m", "metres": "m",
    "pixels": "pixel", "px": "pixel", "degree": "deg", "degrees": "deg", "second": "s",
    "seconds": "s", "sec": "s", "<undefined>": "", "undefined": "", "none": "", "arb": "",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a dataset.

    Attributes
    ----------
    letter
        One capital letter.
    scale
        Step from one pixel to the next, in `unit`; negative where coordinates fall.
    translation
        Position of the centre of the first pixel, in `unit`.
    origin
        Position of the outer border of the first pixel; None: half a step before `translation`.
    unit
        "um", "deg" ...; "" where the file gives none.
    """

    letter: str
    scale: float = 1.0
    translation: float = 0.0
    origin: float | None = None
    unit: str = ""


def axis_letters(names: Sequence[str], *, unnamed: str = "XYZTC") -> str:
    """Give every axis of a dataset a letter of its own.

    Parameters
    ----------
    names
        What the file calls the axes, slowest first, 20 at most; "" where it says nothing.
    unnamed
        Letters for axes without a name, the last axis first; those that are taken are passed over.

    Returns
    -------
    str
        X, Y, Z, C and T for axes whose name says so, A for angles, E for energies, L for
        wavelengths, F for frames; else the first letter of the name, or any other. If several axes
        claim a letter, the last of them gets it.
    """
    found: dict[int, str] = {}
    named = {i: name for i, name in enumerate(names) if not _MEANINGLESS.fullmatch(name.strip())}
    for i in reversed(named):
        letter = meant_by(named[i])
        if letter is not None and letter not in found.values():
            found[i] = letter
    for i in range(len(names) - 1, -1, -1):
        if i not in named:
            free = [letter for letter in unnamed if letter not in found.values()]
            if free:
                found[i] = free[0]
    for i in range(len(names)):
        if i not in found:  # "R_x" is R, and "R_y" after it S
            letters = (named.get(i, "").strip()[:1].upper(), *_OTHERS)
            found[i] = next(
                letter
                for letter in letters
                if letter and letter in _OTHERS and letter not in found.values()
            )
    return "".join(found[i] for i in range(len(names)))


def meant_by(name: str) -> str | None:
    """Return the letter that a name stands for: "sample_y" is Y, "kx" X, "energy" E; or None."""
    words = [word.lower() for word in _WORD.findall(name)]
    letters: list[str] = [_LETTER_OF[word] for word in words if word in _LETTER_OF]
    if not letters and len(words) == 1 and len(words[0]) == 2 and words[0][1] in "xyz":
        return str(words[0][1]).upper()  # "kx", "Qy"
    space = [letter for letter in letters if letter in _SPACE]
    meant = space or letters
    return meant[-1] if meant else None


def tidy_unit(said: str | None) -> str:
    """Bring a unit to its usual form: "[n_m]", "nanometers" and "nm" are "nm"; None is ""."""
    if said is None:
        return ""
    text = said.strip("[]() ").replace("_", "").replace("\u00b5", "u").replace("\u03bc", "u")
    return _UNITS.get(text.lower(), text)


def labels_of(dataset: h5py.Dataset) -> list[str]:
    """Label of every dimension, "" where there is none."""
    labels = []
    for i in range(dataset.ndim):
        try:
            labels.append(dataset.dims[i].label)
        except (OSError, RuntimeError, TypeError, ValueError, KeyError, AttributeError):
            labels.append("")  # what is there of it is damaged, and was optional
    return labels


def scale_of(dataset: h5py.Dataset, axis: int) -> Any:
    """Return the first scale of a dimension, a dataset; None where there is none."""
    try:
        scales = dataset.dims[axis]
        return scales[0] if len(scales) else None
    except (OSError, RuntimeError, TypeError, ValueError, KeyError, AttributeError):
        return None


def read_vector(item: h5py.Dataset | Any) -> NDArray[np.float64] | None:
    """Read coordinates along an axis; None if `item` is no vector of finite numbers."""
    import h5py

    try:
        if not isinstance(item, h5py.Dataset) or item.shape is None or item.dtype.kind not in "iuf":
            return None
        if item.ndim > 1 or not 0 < item.size <= _MOST:
            return None
        values = np.atleast_1d(np.asarray(item[()], np.float64))
    except (OSError, RuntimeError, TypeError, ValueError, KeyError):
        return None  # damaged, or packed by a filter that is not installed
    return values if np.all(np.isfinite(values)) else None


def axis_of(
    letter: str,
    size: int,
    values: NDArray[np.float64] | None,
    *,
    unit: str,
    file: str,
    subject: str,
    first_two: bool = False,
) -> Axis:
    """Turn coordinates into a position and a step.

    Parameters
    ----------
    letter
        Of the axis.
    size
        Number of pixels along it.
    values
        Centres of its pixels; or their borders, one more; None if the file has none.
    unit
        Of the values.
    file, subject
        What the warning is about.
    first_two
        Whether two values may stand for an axis of any size, as in EMD.

    Returns
    -------
    Axis
        With size 1 at 0 and no unit, where the values cannot be used.

    Warns
    -----
    MetadataWarning
        If there are values and they do not fit the size, or are not evenly spaced.
    """
    if values is None:
        return Axis(letter=letter)
    n = len(values)
    if n == 1 and size == 1:
        return Axis(letter=letter, translation=float(values[0]), unit=unit)
    if n not in (size, size + 1) and not (first_two and n == 2):
        problem = f"has {n} values for {size} pixels"
    else:
        first, step = float(values[0]), float(values[-1] - values[0]) / (n - 1)
        line = first + step * np.arange(n)
        if step != 0 and np.all(np.abs(values - line) <= _UNEVEN * abs(step)):
            if n == size + 1 and not (first_two and n == 2):
                return Axis(
                    letter=letter, scale=step, translation=first + step / 2, origin=first, unit=unit
                )
            return Axis(letter=letter, scale=step, translation=first, unit=unit)
        problem = f"is not evenly spaced ({values[0]:g}, {values[1]:g} ... {values[-1]:g})"
    warn(file, f"{subject} {problem}: using steps of 1 from 0, without a unit.")
    return Axis(letter=letter)
