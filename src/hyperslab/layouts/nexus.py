"""NeXus: the signals of NXdata groups.

An NXdata group names its signal (attribute `signal`) and its axes (`axes`, `NAME_indices`); before
2014 the signal had an attribute `signal` = 1, the axes an attribute `axis` with the number of their
dimension, from 1. The attribute `default` leads from the file to an entry and from there to the
group that should be shown first; a file with one entry needs none.

Source of the format facts: the NeXus manual, "NXdata" and "Associating plottable data".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperslab.errors import LayoutError
from hyperslab.layouts.axes import Axis, axis_letters, axis_of, read_vector, tidy_unit
from hyperslab.layouts.items import as_text, read_text, whole
from hyperslab.layouts.links import child, follow
from hyperslab.layouts.single import describe_single, is_image, names_in, objects_below
from hyperslab.layouts.spec import ImageSpec

if TYPE_CHECKING:
    import h5py

__all__ = ["default", "describe", "images", "matches"]

_DEPTH = 5
_SIGNAL_NAMES = re.compile(r"data(_[0-9]{6})?")  # of detectors that name no signal
_PART = re.compile(r"data_[0-9]{6}")  # of a series of frames that is spread over several files
# Groups of these kinds hold settings and raw parts of what an NXdata group shows.
_CLOSED = ("NXdata", "NXinstrument", "NXsample", "NXuser", "NXmonitor", "NXnote", "NXsource")


def matches(h5: h5py.File) -> bool:
    """Whether some NXdata group has a signal that can be an image."""
    return _is_nexus(h5) and bool(images(h5))


def _is_nexus(h5: h5py.File) -> bool:
    if read_text(h5, "NX_class") or read_text(h5, "NeXus_version"):
        return True
    return any(read_text(child(h5, name), "NX_class") for name in names_in(h5)[:100])


def images(h5: h5py.File) -> tuple[str, ...]:
    """Name the images, that of the attribute `default` first.

    An image has the path of its NXdata group as its name; where that has several signals, the path
    of the signal. A signal that lies in a file that is missing is listed only if there is no other,
    so that the message about it names that file.
    """
    present, missing = _find(h5)
    return tuple(present or missing)


def default(h5: h5py.File) -> str | None:
    """Name the image to show where none is asked for; None where the file does not say.

    That is the main signal of the group that `default` leads to, or of the only one that has an
    image. A part of a series of frames is never it: nobody should take it for the whole.
    """
    present, missing = _find(h5)
    found = present or missing  # as in `images`
    groups: dict[str, list[str]] = {}
    for name, where in found.items():
        groups.setdefault(where.rpartition("/")[0].strip("/"), []).append(name)
    chosen = _default_group(h5)
    if chosen not in groups:
        if len(groups) != 1:
            return None
        (chosen,) = groups
    signals = _signals(child(h5, chosen))
    main = next((n for n in groups[chosen] if found[n] == f"/{chosen}/{signals[0]}"), None)
    several = len(groups[chosen]) > 1
    return None if several and all(map(_PART.fullmatch, signals)) else main


def _find(h5: h5py.File) -> tuple[dict[str, str], dict[str, str]]:
    """Path of the signal's dataset by image name: of those that are there, and of the others."""
    present: dict[str, str] = {}
    missing: dict[str, str] = {}
    for path, group in _data_groups(h5):
        signals = _signals(group)
        for i, signal in enumerate(signals):
            name = path if i == 0 and len(signals) == 1 else f"{path}/{signal}"
            item = child(group, signal)
            if item is None:
                missing[name] = f"/{path}/{signal}"
            elif is_image(item):
                present[name] = f"/{path}/{signal}"
    return present, missing


def _data_groups(h5: h5py.File) -> list[tuple[str, Any]]:
    """Path and object of the NXdata groups, the default one first."""
    found = {
        path: item
        for path, item in objects_below(h5, depth=_DEPTH, closed=_is_closed)
        if read_text(item, "NX_class") == "NXdata"
    }
    chosen = _default_group(h5)
    if chosen in found:
        found = {chosen: found[chosen]} | found
    return list(found.items())


def _default_group(h5: h5py.File) -> str:
    """Path of what the attributes `default` lead to, from the file or from its only entry."""
    parts: list[str] = []
    at: Any = h5
    if read_text(h5, "default") is None:
        tops = {name: child(h5, name) for name in names_in(h5)[:100]}
        parts = [name for name, item in tops.items() if read_text(item, "NX_class") == "NXentry"]
        if len(parts) != 1:
            return ""
        at = tops[parts[0]]
    while len(parts) < _DEPTH and (step := read_text(at, "default")):
        parts.extend(part for part in step.split("/") if part)
        at = child(at, step)
    return "/".join(parts)


def _is_closed(group: h5py.Group) -> bool:
    return read_text(group, "NX_class") in _CLOSED


def _signals(group: Any) -> list[str]:
    """Names of the datasets that an NXdata group shows, the main one first."""
    links = names_in(group)
    main = read_text(group, "signal")
    if main in links:
        others = [name for name in _names(group, "auxiliary_signals") if name in links]
        if _PART.fullmatch(main):  # the main one of several parts is the first
            others += [name for name in links if _PART.fullmatch(name)]
        return list(dict.fromkeys([main, *others]))
    numbered = {}
    for name in links:
        number = whole(read_text(child(group, name), "signal"))
        if number is not None and number > 0:
            numbered[name] = number
    if numbered:
        return sorted(numbered, key=lambda name: numbered[name])
    return [name for name in links if _SIGNAL_NAMES.fullmatch(name)]


def describe(h5: h5py.File, path: str, image: str) -> ImageSpec:
    """Describe the signal of an NXdata group.

    Parameters
    ----------
    h5
        The open file. No reference to it is kept.
    path
        Its path, for messages and for the result.
    image
        One of `images`.

    Returns
    -------
    ImageSpec
        Axes by the names of their datasets: "sample_y" is Y, "rotation_angle" is A; those without
        a name are F (frame), Y, X. Step, position and unit of an axis come from its dataset.

    Raises
    ------
    LayoutError
        There is no such image.
    MissingSourceError
        The signal is a link to a file that is not there.

    Warns
    -----
    MetadataWarning
        Where an axis is not evenly spaced, or does not fit the signal.

    Notes
    -----
    Reads the datasets of the axes.
    """
    present, missing = _find(h5)
    where = present.get(image) or missing.get(image)
    signal: Any = where and follow(h5, where, file=path, subject=f"the image {image!r}")
    if where is None or not is_image(signal):
        raise LayoutError(
            f"{path}: there is no NeXus image {image!r}; the file holds "
            f"{', '.join(map(repr, present)) or 'none'}.",
            file=path,
        )
    group = child(h5, where.rsplit("/", 1)[0])
    names = _axis_names(group, signal)
    shown = list(names)
    interpretation = read_text(signal, "interpretation") or read_text(group, "interpretation")
    if interpretation == "image":
        shown[-2:] = [name or letter for name, letter in zip(shown[-2:], "yx", strict=True)]
    elif interpretation == "spectrum":
        shown[-1] = shown[-1] or "spectrum"
    axes = []
    for letter, name, size in zip(
        axis_letters(shown, unnamed="XYF"), names, signal.shape, strict=True
    ):
        values = _positions(group, name)
        unit = tidy_unit(read_text(values, "units"))
        subject = f"the axis {name!r} of {image!r}"
        axes.append(
            axis_of(letter, size, read_vector(values), unit=unit, file=path, subject=subject)
            if values is not None
            else Axis(letter=letter)
        )
    return describe_single(signal, axes, layout="nexus", file=path, name=image, path=where)


def _positions(group: Any, name: str) -> Any:
    """Dataset with the positions along an axis: those asked for, else those measured."""
    found = child(group, name) if name else None
    return child(group, name.removesuffix("_set")) if found is None and name else found


def _axis_names(group: Any, signal: h5py.Dataset) -> list[str]:
    """Name of the dataset of every axis of the signal, "" where there is none."""
    ndim = signal.ndim
    found = [""] * ndim
    said = _names(group, "axes") or _names(signal, "axes")
    for i, name in enumerate(said):
        at = whole(read_text(group, f"{name}_indices")) if len(said) != ndim else i
        at = i if at is None else at
        if 0 <= at < ndim and name != ".":
            found[at] = name
    if said:
        return found
    for name in names_in(group):
        item = child(group, name)
        number = whole(read_text(item, "axis"))
        if number is None or not 0 < number <= ndim:
            continue
        # Several datasets may give positions along an axis; `primary` = 1 marks the one to show.
        if not found[number - 1] or read_text(item, "primary") == "1":
            found[number - 1] = name
    return found


def _names(item: Any, attribute: str) -> list[str]:
    """Names in an attribute: an array of strings, or one with ":" or "," between them."""
    try:
        value = item.attrs.get(attribute)
    except (OSError, RuntimeError, TypeError, ValueError, KeyError):
        return []  # a type that h5py has no NumPy type for, or damaged
    if isinstance(value, np.ndarray) and value.dtype.kind in "SUO" and value.size != 1:
        return [as_text(name) or "." for name in value.ravel()]
    text = as_text(value)
    return [] if text is None else [part for part in re.split(r"[:,\s\[\]]+", text) if part]
