"""Imaris 5.5: what DataSetInfo says about an image, and what is used where it says nonsense.

Every item is optional. An item that is absent is replaced in silence where nothing depends on it
(names, colours, contrast), with a MetadataWarning where measurements do (voxel size).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperslab.layouts.items import moment, number, numbers, read_text, warn, whole
from hyperslab.layouts.links import child, numbered
from hyperslab.layouts.spec import ChannelSpec

if TYPE_CHECKING:
    import h5py

__all__ = [
    "read_channels", "read_extents", "read_name", "read_timestamps", "read_unit",
    "stated_channels", "stated_time_points",
]  # fmt: skip

Triple = tuple[float, float, float]

_NO_NAME = "(name not specified)"  # what the vendor's writer puts where there is none
_UNITS = {
    "m": "m", "meter": "m", "metre": "m", "mm": "mm", "millimeter": "mm", "millimetre": "mm",
    "um": "um", "\u00b5m": "um", "\u03bcm": "um", "micron": "um", "micrometer": "um",
    "micrometre": "um", "nm": "nm", "nanometer": "nm", "nanometre": "nm", "cm": "cm",
    "centimeter": "cm", "centimetre": "cm", "pixel": "pixel", "px": "pixel", "voxel": "pixel",
}  # fmt: skip
_LARGEST_FLOAT = 1e37  # beyond this, limits are the start values of a search that never ran


def stated_time_points(info: Any) -> int | None:
    """Number of time points that TimeInfo gives for this file."""
    times = child(info, "TimeInfo")
    for name in ("FileTimePoints", "DatasetTimePoints", "DataSetTimePoints"):
        value = whole(read_text(times, name))
        if value is not None and value > 0:
            return value
    return None


def stated_channels(info: Any) -> int | None:
    """Number of channels that Image gives."""
    value = whole(read_text(child(info, "Image"), "Noc"))
    return value if value is not None and value > 0 else None


def read_name(image: h5py.Group | None) -> str:
    """Name of the image, "" if it has none."""
    name = read_text(image, "Name")
    return "" if name is None or name == _NO_NAME else name


def read_unit(image: h5py.Group | None, *, file: str) -> str:
    """Unit of length, spelled "um", "nm" and so on; "um" where there is none, as in Imaris."""
    said = read_text(image, "Unit")
    if said is None:
        return "um"
    key = said.strip("[]() ").lower()
    unit = _UNITS.get(key) or _UNITS.get(key.removesuffix("s"))
    if unit is None:
        warn(file, f"DataSetInfo/Image says Unit = {said!r}, which is none: using 'um'.")
        return "um"
    return unit


def read_extents(
    image: h5py.Group | None, size: Sequence[int], *, file: str
) -> tuple[Triple, Triple, Triple]:
    """Voxel size and position from ExtMin0..2 and ExtMax0..2.

    The extents are in the order x, y, z and lie at the outer borders of the first and the last
    voxel: a file whose first voxel is centred on 0 has ExtMin = -voxel / 2.

    Parameters
    ----------
    size
        True (Z, Y, X) of level 0.

    Returns
    -------
    scale
        (z, y, x): (ExtMax - ExtMin) / size, rounded once, to float64. 1 where the extents are
        missing, not numbers, or equal (for equal ones the vendor's writer does the same).
    origin
        (z, y, x) of the outer corner of the first voxel: ExtMin, or 0.
    translation
        (z, y, x) of the centre of the first voxel: origin + scale / 2.
    """
    lows: list[Decimal] = []
    steps: list[Decimal] = []
    problems = []
    for axis, n in enumerate(reversed(size)):
        low, high = (number(read_text(image, f"Ext{end}{axis}")) for end in ("Min", "Max"))
        step = 0.0 if low is None or high is None else abs(float((high - low) / n))
        if low is None or high is None or not 0 < step < math.inf:
            problems.append(f"{'xyz'[axis]} ({low} to {high})")
            lows.append(low or Decimal(0))
            steps.append(Decimal(1))
            continue
        if high < low:  # as the vendor's writer takes them
            low, high = high, low
        lows.append(low)
        steps.append((high - low) / n)
    if problems:
        warn(
            file,
            f"DataSetInfo/Image has no usable extent along {', '.join(problems)}: using voxel "
            "size 1 there.",
        )

    def as_zyx(values: Sequence[Decimal]) -> Triple:
        x, y, z = map(float, values)
        return z, y, x

    centres = [low + step / 2 for low, step in zip(lows, steps, strict=True)]
    return as_zyx(steps), as_zyx(lows), as_zyx(centres)


def read_timestamps(info: Any, n_times: int, *, file: str) -> tuple[datetime, ...] | None:
    """TimePoint1 to TimePointN of TimeInfo; None unless there is one for every time point."""
    section = child(info, "TimeInfo")
    texts = [read_text(section, f"TimePoint{t + 1}") for t in range(n_times)]
    if not any(texts):
        return None
    moments = [moment(text) for text in texts]
    bad = [t for t, value in enumerate(moments) if value is None]
    if bad:
        warn(
            file,
            f"DataSetInfo/TimeInfo has {texts[bad[0]]!r} as TimePoint{bad[0] + 1}, and {len(bad)} "
            f"of {n_times} such: no timestamps are given.",
        )
        return None
    return tuple(value for value in moments if value is not None)


def read_channels(
    info: Any,
    groups: Sequence[h5py.Group | None],
    *,
    dtype: np.dtype[Any],
    file: str,
) -> tuple[ChannelSpec, ...]:
    """Names, colours and contrast of the channels.

    Parameters
    ----------
    groups
        For every channel a group with Data, whose HistogramMin and HistogramMax stand in for
        display limits; None where there is none.
    """
    sections = numbered(info, "Channel")
    # Some writers count from 1: "Channel 1" to "Channel N" for N channels, and no "Channel 0".
    base = 1 if 0 not in sections and len(groups) in sections else 0
    specs = []
    for c, group in enumerate(groups):
        name = sections.get(c + base)
        section = None if name is None else child(info, name)
        specs.append(_channel(section, group, c, dtype, file))
    return tuple(specs)


def _channel(
    section: h5py.Group | None,
    group: h5py.Group | None,
    index: int,
    dtype: np.dtype[Any],
    file: str,
) -> ChannelSpec:
    name = read_text(section, "Name")
    table = None
    if (read_text(section, "ColorMode") or "").lower() == "tablecolor":
        table = _color_table(section, index, file)
    return ChannelSpec(
        name=f"Channel {index}" if name is None or name == _NO_NAME else name,
        color=_color(section, index, file),
        color_table=table,
        contrast_limits=_limits(section, group, index, dtype, file),
        gamma=_fraction(section, "GammaCorrection", index, file, most=100.0, zero=False),
        opacity=_fraction(section, "ColorOpacity", index, file, most=1.0, zero=True),
    )


def _color(section: h5py.Group | None, index: int, file: str) -> Triple | None:
    said = read_text(section, "Color")
    if said is None:
        return None
    values = numbers(said)
    if values is None or len(values) != 3 or not all(0 <= value <= 1 for value in values):
        warn(file, f"channel {index} has Color = {said!r}, not 'r g b' from 0 to 1: using none.")
        return None
    return values[0], values[1], values[2]


def _color_table(section: h5py.Group | None, index: int, file: str) -> tuple[Triple, ...] | None:
    said = read_text(section, "ColorTable")
    values = numbers(said)
    if values is None or len(values) % 3 or not all(0 <= value <= 1 for value in values):
        warn(
            file,
            f"channel {index} has ColorMode TableColor, but its ColorTable is not triples from 0 "
            "to 1: using none.",
        )
        return None
    return tuple(zip(values[0::3], values[1::3], values[2::3], strict=True))


def _fraction(
    section: h5py.Group | None, name: str, index: int, file: str, *, most: float, zero: bool
) -> float | None:
    said = read_text(section, name)
    if said is None:
        return None
    value = number(said)
    if value is None or not 0 <= value <= Decimal(most) or (value == 0 and not zero):
        warn(file, f"channel {index} has {name} = {said!r}: using none.")
        return None
    return float(value)


def _limits(
    section: h5py.Group | None,
    group: h5py.Group | None,
    index: int,
    dtype: np.dtype[Any],
    file: str,
) -> tuple[float, float] | None:
    """ColorRange; else the histogram's ends; else None."""
    said = read_text(section, "ColorRange")
    if said is not None:
        values = numbers(said)
        limits = _sensible(values, dtype)
        if limits is not None:
            return limits
    histogram = None
    for suffix in ("", "1024"):
        ends = numbers(
            f"{read_text(group, 'HistogramMin' + suffix)} "
            f"{read_text(group, 'HistogramMax' + suffix)}"
        )
        histogram = histogram or _sensible(ends, dtype)
    if said is not None:
        instead = "none" if histogram is None else f"the histogram's {histogram}"
        warn(file, f"channel {index} has ColorRange = {said!r} for {dtype} data: using {instead}.")
    return histogram


def _sensible(values: tuple[float, ...] | None, dtype: np.dtype[Any]) -> tuple[float, float] | None:
    """Two rising limits that `dtype` can hold, or None.

    One unit beyond the range of an integer type is forgiven (writers give 256 for 8-bit data) and
    cut off.
    """
    if values is None or len(values) != 2:
        return None
    low, high = values
    if dtype.kind == "f":
        fits = max(abs(low), abs(high)) < _LARGEST_FLOAT
    else:
        kind = np.iinfo(dtype)
        fits = kind.min - 1 <= low and high <= kind.max + 1
        low, high = max(low, float(kind.min)), min(high, float(kind.max))
    return (low, high) if fits and low < high else None
