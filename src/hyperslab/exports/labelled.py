"""Axes by their letters: positions, selections by name, and levels as xarray's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.array import View
from hyperslab.errors import MissingExtraError, SelectionError
from hyperslab.layouts.spec import ImageSpec

if TYPE_CHECKING:
    import xarray as xr

    from hyperslab.level import Level

__all__ = [
    "attributes",
    "axis_number",
    "channel_number",
    "coordinates",
    "isel",
    "labels",
    "to_xarray",
]

_NANOSECOND_YEARS = range(1700, 2200)  # what 64 bits of nanoseconds hold, and some less


def axis_number(spec: ImageSpec, letter: str) -> int:
    """Return which axis `letter` is, whatever its case.

    Raises
    ------
    SelectionError
        The image has no such axis.
    """
    found = spec.axes.upper().find(letter.upper()) if len(letter) == 1 else -1
    if found < 0:
        raise SelectionError(
            f"{spec.file}: the image has no axis {letter!r}; its axes are {', '.join(spec.axes)}.",
            file=spec.file,
        )
    return found


def channel_number(spec: ImageSpec, channel: int | str) -> int:
    """Return the number of a channel that is given by number (from the end if negative) or name.

    Raises
    ------
    SelectionError
        There is no such channel, or several have that name; it says which there are.
    """
    names = [found.name for found in spec.channels]
    told = ", ".join(f"{i} {name!r}" for i, name in enumerate(names))
    if not isinstance(channel, str):
        if -len(names) <= channel < len(names):
            return channel % len(names)
        raise SelectionError(
            f"{spec.file}: there is no channel {channel}. There are: {told}.", file=spec.file
        )
    if names.count(channel) == 1:
        return names.index(channel)
    problem = "several channels are" if channel in names else "no channel is"
    raise SelectionError(
        f"{spec.file}: {problem} called {channel!r}. There are: {told}. Give its number.",
        file=spec.file,
    )


def coordinates(level: Level, axis: str) -> NDArray[np.float64]:
    """Return the position of each pixel's centre along an axis, in the image's units."""
    number = axis_number(level.image.spec, axis)
    steps = np.arange(level.shape[number], dtype=np.float64)
    return level.translation[number] + level.scale[number] * steps


def isel(level: Level, indexers: Mapping[str, Any]) -> View:
    """Select along axes by their letters; see `Image.isel`."""
    spec = level.image.spec
    chosen: dict[int, Any] = {}
    for letter, index in indexers.items():
        axis = axis_number(spec, letter)
        if axis in chosen:
            raise SelectionError(
                f"{spec.file}: axis {spec.axes[axis]} was given twice, as upper and lower case.",
                file=spec.file,
            )
        if index is None or index is Ellipsis:
            raise SelectionError(
                f"{spec.file}: {letter}={index!r} selects nothing along an axis. Give a number, a "
                "slice or a list of numbers, or leave it out.",
                file=spec.file,
            )
        chosen[axis] = _by_number(spec, index) if spec.axes[axis] == "C" else index
    view = level.lazy[...]
    # The last axis first, so that axes which go away do not renumber those still to come. One at a
    # time: lists along several axes then select their product, as they do in xarray.
    for axis in sorted(chosen, reverse=True):
        try:
            view = view[(slice(None),) * axis + (chosen[axis],)]
        except SelectionError as error:
            raise SelectionError(
                f"{spec.file}: {spec.axes[axis]}={chosen[axis]!r}: {error.message}", file=spec.file
            ) from None
    return view


def _by_number(spec: ImageSpec, index: Any) -> Any:
    """Replace names of channels by their numbers."""
    if isinstance(index, str):
        return channel_number(spec, index)
    if isinstance(index, (list, tuple)):
        return [channel_number(spec, i) if isinstance(i, str) else i for i in index]
    return index


def labels(level: Level) -> dict[str, tuple[str, NDArray[Any], dict[str, str]]]:
    """Return what the places along each axis are called: dimension, values, attributes, by axis.

    Names along C; times along T, where the file has them; positions along Z, Y and X, and along
    any other axis that has a unit. Of an axis of which nothing is known, nothing.
    """
    spec = level.image.spec
    found: dict[str, tuple[str, NDArray[Any], dict[str, str]]] = {}
    for axis, (letter, unit) in enumerate(zip(spec.axes, spec.units, strict=True)):
        if letter == "C":
            names = [channel.name for channel in spec.channels]
            if len(names) == level.shape[axis]:
                found[letter] = (letter, np.array(names, dtype=np.str_), {})
        elif letter == "T" and spec.timestamps is not None:
            found[letter] = (letter, _times(spec.timestamps), {})
        elif letter in "ZYX" or unit:
            found[letter] = (letter, coordinates(level, letter), {"units": unit} if unit else {})
    return found


def _times(timestamps: tuple[datetime, ...]) -> NDArray[np.datetime64]:
    """Return times as NumPy has them, which knows no zones: those with a zone as UTC."""
    plain = [t.astimezone(UTC).replace(tzinfo=None) if t.tzinfo else t for t in timestamps]
    unit = "ns" if all(t.year in _NANOSECOND_YEARS for t in plain) else "us"
    return np.array(plain, dtype=f"datetime64[{unit}]")


def attributes(level: Level) -> dict[str, str | int]:
    """Return what is known of the whole: the image's name, its layout and file, the level."""
    spec = level.image.spec
    return {
        "name": spec.name,
        "layout": spec.layout,
        "file": spec.file,
        "level": level.number,
    }


def to_xarray(level: Level) -> xr.DataArray:
    """Return a level as an xarray DataArray over its dask array; see `Image.to_xarray`."""
    try:
        import xarray as xr
    except ModuleNotFoundError as error:
        if error.name != "xarray":
            raise  # xarray is there, and something that it needs is not
        raise MissingExtraError(
            "to_xarray needs xarray, which is not installed here. Install it with: "
            "pip install 'hyperslab[dask]' (in a clone of it: pip install '.[dask]')",
            package="xarray",
            extra="dask",
        ) from error
    return xr.DataArray(
        level.to_dask(),
        dims=tuple(level.axes),
        coords=labels(level),
        name="image",
        attrs=attributes(level),
    )
