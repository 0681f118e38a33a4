"""HDF5 images: datasets with the attribute CLASS = IMAGE, with palettes.

Colours lie last (INTERLACE_PIXEL), between rows and columns (INTERLACE_LINE) or first
(INTERLACE_PLANE). Labels and scales of dimensions, where attached, say what other axes are.
Acquisitions as SVI and Delmic lay them out, `NAME/ImageData/Image`, have the names of channels in
`NAME/PhysicalData/ChannelDescription`. Their positions (`XOffset` ...) are not used: writers differ
in what they mean by it.

Source of the format facts: the HDF Group's "HDF5 Image and Palette Specification", version 1.2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperslab.errors import LayoutError
from hyperslab.layouts.axes import (
    Axis,
    axis_letters,
    axis_of,
    labels_of,
    read_vector,
    scale_of,
    tidy_unit,
)
from hyperslab.layouts.items import as_text, numbers, read_text, warn
from hyperslab.layouts.links import child
from hyperslab.layouts.single import describe_single, is_image, objects_below
from hyperslab.layouts.spec import ChannelSpec, ImageSpec

if TYPE_CHECKING:
    import h5py

__all__ = ["describe", "images", "matches"]

Triple = tuple[float, float, float]

_DEPTH = 4
_NAMES = "PhysicalData/ChannelDescription"  # beside the group that holds the image
_INTERLACE = {"INTERLACE_PIXEL": -1, "INTERLACE_LINE": -2, "INTERLACE_PLANE": -3}
_RGB: tuple[tuple[str, Triple], ...] = (
    ("Red", (1.0, 0.0, 0.0)), ("Green", (0.0, 1.0, 0.0)), ("Blue", (0.0, 0.0, 1.0)),
)  # fmt: skip
_COMPONENTS = (1, 3, 4)  # numbers of them in a pixel
_LONGEST_PALETTE = 1 << 16


def matches(h5: h5py.File) -> bool:
    """Whether one of the first objects of the file says that it is an image.

    Looks at 300 links at most, level by level, for any HDF5 file may be asked.
    """
    return any(_is_marked(item) for _, item in objects_below(h5, depth=_DEPTH, most=300))


def images(h5: h5py.File) -> tuple[str, ...]:
    """Name the images: the paths of their datasets."""
    return tuple(path for path, item in objects_below(h5, depth=_DEPTH) if _is_marked(item))


def _is_marked(item: Any) -> bool:
    return is_image(item, kinds="biuf") and read_text(item, "CLASS") == "IMAGE"


def describe(h5: h5py.File, path: str, image: str) -> ImageSpec:
    """Describe a dataset that says that it is an image.

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
        Colours are channels; an indexed image has its palette as the channel's `color_table`.
        Where axis C has a scale, channels are named after it ("512.5 nm").

    Raises
    ------
    LayoutError
        There is no such image.

    Warns
    -----
    MetadataWarning
        Where colours or palette cannot be understood, or rows do not run down from the upper left.

    Notes
    -----
    Reads palettes and the scales of dimensions.
    """
    data = child(h5, image) if image in images(h5) else None
    if data is None:
        raise LayoutError(
            f"{path}: {image!r} is no dataset with CLASS = IMAGE; the file holds "
            f"{', '.join(map(repr, images(h5))) or 'none'}.",
            file=path,
        )
    scales = [scale_of(data, i) for i in range(data.ndim)]
    names = [
        label or read_text(scale, "NAME") or ""
        for label, scale in zip(labels_of(data), scales, strict=True)
    ]
    colour = _colour_axis(data, path)
    if colour is not None:
        names[colour] = "channel"
    letters = axis_letters(names)
    origin = read_text(data, "DISPLAY_ORIGIN")
    if origin not in (None, "UL"):
        warn(path, f"/{image} has DISPLAY_ORIGIN = {origin!r}: using the order of the file, 'UL'.")
    axes = [
        _axis(scale, letter, size, path, f"the scale of axis {letter} of /{image}")
        for scale, letter, size in zip(scales, letters, data.shape, strict=True)
    ]
    count = data.shape[letters.index("C")] if "C" in letters else 1
    channels = _channels(h5, data, count, path, in_colour=colour is not None)
    if colour is None:
        bands = scales[letters.index("C")] if "C" in letters else None
        channels = _named(channels, child(data.parent.parent, _NAMES), bands)
    return describe_single(
        data, axes, layout="hdf5_image", file=path, name=image, path=f"/{image}",
        channels=channels,
    )  # fmt: skip


def _named(channels: list[ChannelSpec], names: Any, bands: Any) -> list[ChannelSpec]:
    """Give channels the names of an acquisition, or their wavelengths, where there are some."""
    try:
        said = np.atleast_1d(names[()]).ravel() if names.size <= len(channels) else ()
    except (AttributeError, OSError, RuntimeError, TypeError, ValueError):
        said = ()  # not there, a group, damaged
    texts = [as_text(name) for name in said]
    if len(texts) < len(channels):
        texts = _wavelengths(bands, len(channels))
    return [
        replace(channel, name=text) if text else channel
        for channel, text in zip(channels, texts or [None] * len(channels), strict=True)
    ]


def _wavelengths(scale: Any, count: int) -> list[str | None]:
    """Texts such as "512.5 nm" for the steps of a scale; nothing if it does not fit."""
    values = read_vector(scale)
    if values is None or len(values) != count or scale.ndim == 0:
        return []
    unit = tidy_unit(read_text(scale, "UNIT") or read_text(scale, "units"))
    if unit == "m":
        values, unit = values * 1e9, "nm"
    return [f"{value:.6g} {unit}".rstrip() for value in values]


def _axis(scale: Any, letter: str, size: int, path: str, subject: str) -> Axis:
    values = read_vector(scale)
    if values is None or letter == "C":
        return Axis(letter=letter)
    unit = tidy_unit(read_text(scale, "UNIT") or read_text(scale, "units"))
    if scale.ndim == 0:  # the size of a pixel, as Delmic's files have it; 0 along an axis of one
        step = float(values[0])
        return Axis(letter=letter, scale=step, unit=unit) if step > 0 else Axis(letter=letter)
    return axis_of(letter, size, values, unit=unit, file=path, subject=subject)


def _colour_axis(data: h5py.Dataset, path: str) -> int | None:
    """Which axis of the dataset runs over components of a pixel; None if none does."""
    ndim: int = data.ndim
    if ndim < 3:
        return None
    said = read_text(data, "INTERLACE_MODE")
    subclass = read_text(data, "IMAGE_SUBCLASS")
    place = _INTERLACE.get(said or "")
    if place is not None and data.shape[place] in _COMPONENTS:
        return ndim + place
    if said is None and subclass != "IMAGE_TRUECOLOR":
        return None
    likely = [ndim + p for p in _INTERLACE.values() if data.shape[p] in _COMPONENTS[1:]]
    using = f"axis {likely[0]}" if likely else "no axis"
    warn(
        path,
        f"{data.name} has shape {data.shape}, IMAGE_SUBCLASS = {subclass!r} and "
        f"INTERLACE_MODE = {said!r}: using {using} as colours.",
    )
    return likely[0] if likely else None


def _channels(
    h5: h5py.File, data: h5py.Dataset, count: int, path: str, *, in_colour: bool
) -> list[ChannelSpec]:
    limits = _limits(data)
    model = read_text(data, "IMAGE_COLORMODEL") or "RGB"
    if in_colour and count > 1 and model == "RGB":
        found = [ChannelSpec(name=n, color=rgb, contrast_limits=limits) for n, rgb in _RGB]
        alpha = [ChannelSpec(name="Alpha", contrast_limits=limits)]
        return (found + alpha)[:count]
    table = _palette(h5, data, path) if count == 1 else None
    if table is not None:
        return [
            ChannelSpec(
                name="Channel 0", color_table=table, contrast_limits=(0.0, len(table) - 1.0)
            )
        ]
    if read_text(data, "IMAGE_WHITE_IS_ZERO") in ("1", "True"):
        table = ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0))
    named = list(model) if in_colour and len(model) == count else None
    return [
        ChannelSpec(
            name=named[i] if named else f"Channel {i}", color_table=table, contrast_limits=limits
        )
        for i in range(count)
    ]


def _limits(data: h5py.Dataset) -> tuple[float, float] | None:
    said = numbers(read_text(data, "IMAGE_MINMAXRANGE"))
    return (said[0], said[1]) if said and len(said) == 2 and said[0] < said[1] else None


def _palette(h5: h5py.File, data: h5py.Dataset, path: str) -> tuple[Triple, ...] | None:
    """Colours of the first palette that the image refers to."""
    import h5py

    try:
        if "PALETTE" not in data.attrs:
            return None
        reference = np.asarray(data.attrs["PALETTE"], dtype=object).ravel()[0]
        palette = h5[reference]
        model = read_text(palette, "PAL_COLORMODEL") or "RGB"
        fits = (
            isinstance(palette, h5py.Dataset)
            and palette.dtype.kind == "u"
            and model == "RGB"
            and palette.ndim == 2
            and palette.shape[1] == 3
            and 1 < palette.shape[0] <= _LONGEST_PALETTE
        )
        values = palette[()] / np.iinfo(palette.dtype).max if fits else None
    except (OSError, RuntimeError, TypeError, ValueError, KeyError, IndexError):
        values = None  # a reference that leads nowhere, or a damaged palette
    if values is None:
        warn(path, f"the palette of {data.name} is no table of RGB values: using grey.")
        return None
    return tuple((float(r), float(g), float(b)) for r, g, b in values)
