"""What a layout says about a file: plain facts, no pixels."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

__all__ = ["BESIDE", "ChannelSpec", "ImageSpec", "IntensitySpec", "LevelSpec"]

BESIDE = "::/"  # between a file and the path of a dataset in it


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSpec:
    """One channel, for a person who looks at it.

    Attributes
    ----------
    name
        As written by the microscope, or "Channel 0" ... where the file says nothing.
    color
        Red, green, blue, each 0 to 1; None where the file says nothing.
    color_table
        A lookup table of such triples, lowest value first, where the file has one.
    contrast_limits
        Lowest and highest displayed value, in data units; None where the file has none that make
        sense.
    gamma, opacity
        Display gamma (1 = linear) and opacity (0 to 1); None where not given.
    """

    name: str
    color: tuple[float, float, float] | None = None
    color_table: tuple[tuple[float, float, float], ...] | None = None
    contrast_limits: tuple[float, float] | None = None
    gamma: float | None = None
    opacity: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSpec:
    """One resolution level: a grid of datasets that share a shape.

    Attributes
    ----------
    shape
        True size along every axis of the image, padding left out.
    datasets
        Paths in the file, row-major over the outer axes (those that the datasets themselves do
        not have); None where one is missing, which reads as zeros. A dataset may be larger than
        the inner part of `shape`: what exceeds it at the end of an axis is padding. One in another
        file is that file's path, relative to the folder of `ImageSpec.file`, then `BESIDE`, then
        the path in it; it has no padding.
    """

    shape: tuple[int, ...]
    datasets: tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntensitySpec:
    """How stored values become physical ones: ``slope * stored + offset``.

    Attributes
    ----------
    n_axes
        How many of the image's first axes the constants run over, 0 for one pair altogether.
    slope, offset
        One for each row-major index over those axes.
    """

    n_axes: int
    slope: tuple[float, ...]
    offset: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """Everything that is known of an image before a pixel is read.

    Attributes
    ----------
    layout
        Name of the convention, e.g. "imaris".
    file
        Path of the file that was opened.
    name
        Name of the image, "" if it has none.
    axes
        One letter per axis, e.g. "TCZYX".
    n_outer
        How many leading axes are spread over datasets; the rest are the datasets' own.
    dtype
        NumPy name of the element type in native byte order, e.g. "uint16".
    levels
        Finest first.
    scale
        Size of a pixel of level 0 along each axis, in `units`; negative where positions fall.
    translation
        Position of the centre of the first pixel along each axis, in `units`. This is what napari
        calls `translate` and OME-NGFF `translation`.
    origin
        Position of the outer border of the first pixel along each spatial axis, in `units`, to the
        last digit that the file gives: `translation` is half a pixel further. 0 along T and C.
    units
        One per axis, e.g. "um"; "" where none applies.
    channels
        One per index of axis C; one altogether where there is no C.
    timestamps
        One per index of axis T, or None where the file says nothing.
    order
        Per axis of the image that the datasets themselves have: which axis of a dataset it is; ()
        where they are in the datasets' own order.
    intensity
        How stored values become physical ones, where the file says so.
    labels
        Whether values are labels of objects and not intensities.
    """

    layout: str
    file: str
    name: str
    axes: str
    n_outer: int
    dtype: str
    levels: tuple[LevelSpec, ...]
    scale: tuple[float, ...]
    translation: tuple[float, ...]
    origin: tuple[float, ...]
    units: tuple[str, ...]
    channels: tuple[ChannelSpec, ...]
    timestamps: tuple[datetime, ...] | None = None
    order: tuple[int, ...] = ()
    intensity: IntensitySpec | None = None
    labels: bool = False
