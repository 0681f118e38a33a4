"""Images as napari's layers: plain data, made without napari."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from hyperslab.errors import LayoutError
from hyperslab.exports.thumbnail import channel_color
from hyperslab.image import Image
from hyperslab.napari.arrays import Shown, plane_last, shown
from hyperslab.napari.units import handy_units
from hyperslab.viewing import channel_views

__all__ = ["METADATA", "MOST_CHANNELS", "LayerData", "image_layers"]

LayerData = tuple[Any, dict[str, Any], str]

METADATA = "hyperslab"  # the key under which a layer's metadata has its image
MOST_CHANNELS = 32  # that are layers of their own: each costs napari a fifth of a second

_NAMED = {
    (1.0, 1.0, 1.0): "gray",
    (1.0, 0.0, 0.0): "red",
    (0.0, 1.0, 0.0): "green",
    (0.0, 0.0, 1.0): "blue",
    (0.0, 1.0, 1.0): "cyan",
    (1.0, 0.0, 1.0): "magenta",
    (1.0, 1.0, 0.0): "yellow",
}
_RED_GREEN_BLUE = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


def image_layers(image: Image, *, title: str | None = None) -> list[LayerData]:
    """Return a layer for each channel of an image; or one for all, with a slider, if over 32.

    Parameters
    ----------
    image
        With two axes or more besides C, of numbers or booleans.
    title
        Put before the channels' names, to tell images of one file apart. A layer without a
        channel's name has the title alone, or the image's name, or the file's.

    Returns
    -------
    list of (data, keywords, kind)
        As napari's readers return them. `data` is lazy: an array-like along all axes but C, those
        of the plane last, or a list of them, finest first, where there are several levels. `kind`
        is "image", or "labels" where the layout says that values are labels.

    Raises
    ------
    LayoutError
        The image has one axis only, no element, or elements that are no numbers.

    Notes
    -----
    Reads at most one plane of the file's coarsest level for each channel: where the file gives no
    contrast limits.
    """
    if len(image.channels) > MOST_CHANNELS:
        return [_layer(image, None, title)]
    return [_layer(image, number, title) for number in range(len(image.channels))]


def _layer(image: Image, number: int | None, title: str | None) -> LayerData:
    """Return the layer of a channel; None: of all of them, along an axis."""
    labels = image.spec.labels
    sources = image.levels if number is None else channel_views(image, number)
    levels = _levels(image, [shown(source, labels=labels) for source in sources])
    kept = [axis for axis, letter in enumerate(image.axes) if number is None or letter != "C"]
    order = [kept[axis] for axis in plane_last("".join(image.axes[axis] for axis in kept))]
    steps = [_step(image.scale[axis]) for axis in order]
    units = handy_units([image.units[axis] for axis in order], steps)
    several = len(levels) > 1
    keywords: dict[str, Any] = {
        "name": _name(image, number, title),
        "scale": [step * factor for step, (_, factor) in zip(steps, units, strict=True)],
        "translate": [
            image.translation[axis] * factor for axis, (_, factor) in zip(order, units, strict=True)
        ],
        "units": [unit for unit, _ in units],
        "axis_labels": [image.axes[axis].lower() for axis in order],
        "metadata": {METADATA: image, "channel": number},
        "multiscale": several,
    }
    data: Any = levels if several else levels[0]
    if labels:
        return data, keywords, "labels"
    return data, keywords | _look(image, number), "image"


def _levels(image: Image, found: list[Shown | None]) -> list[Shown]:
    """Return `found`, or raise if it is nothing that can be shown."""
    levels = [level for level in found if level is not None]
    if len(levels) < len(found) or levels[0].ndim < 2 or not levels[0].size:
        raise LayoutError(
            f"{image.file}: the image {image.name!r} has axes {image.axes}, shape {image.shape} "
            f"and type {image.dtype}. What can be shown has two axes or more besides C, at least "
            "one element, and numbers. Read it with hyperslab.open_image.",
            file=image.file,
        )
    return levels


def _look(image: Image, number: int | None) -> dict[str, Any]:
    """Return how a channel is shown; None: all of them, one at a time."""
    if number is None:
        last = len(image.channels) - 1
        limits = [image.contrast_limits(channel) for channel in (0, last // 2, last)]
        return {
            "contrast_limits": (min(low for low, _ in limits), max(high for _, high in limits)),
            "colormap": "gray",
            "blending": "translucent_no_depth",
        }
    look: dict[str, Any] = {
        "contrast_limits": _limits(image, number),
        "colormap": _colormap(image, number),
        "blending": "additive" if len(image.channels) > 1 else "translucent_no_depth",
    }
    channel = image.channels[number]
    if channel.gamma is not None and 0.2 <= channel.gamma <= 2:  # what napari's slider has
        look["gamma"] = channel.gamma
    if channel.opacity is not None and 0 <= channel.opacity <= 1:
        look["opacity"] = channel.opacity
    return look


def _name(image: Image, number: int | None, title: str | None) -> str:
    whole = title or image.name or os.path.basename(image.file)
    if number is None or "C" not in image.axes:
        return whole
    name = image.channels[number].name
    return f"{title}: {name}" if title else name


def _step(scale: float) -> float:
    """Return what napari can scale by: it takes negative numbers, but nothing without an extent."""
    return scale if np.isfinite(scale) and scale else 1.0


def _is_rgb(image: Image) -> bool:
    colors = tuple(channel.color for channel in image.channels)
    return colors == _RED_GREEN_BLUE and image.dtype == np.uint8


def _limits(image: Image, number: int) -> tuple[float, float]:
    if image.channels[number].contrast_limits is None and _is_rgb(image):
        return 0.0, 255.0  # a picture in true colours
    return image.contrast_limits(number)


def _colormap(image: Image, number: int) -> Any:
    """Return a name that napari knows; or colours, lowest value first, with a name of their own."""
    channel = image.channels[number]
    if channel.color_table is not None and len(channel.color_table) > 1:
        colors = [tuple(color) for color in channel.color_table]
        return {"colors": colors, "name": f"{channel.name} table", "interpolation": "linear"}
    color = tuple(float(np.clip(part, 0, 1)) for part in channel_color(image.spec, number))
    if color in _NAMED:
        return _NAMED[color]
    if not any(color):
        return "gray"  # black on black shows nothing
    name = "#" + "".join(f"{round(255 * part):02x}" for part in color)
    return {"colors": [(0.0, 0.0, 0.0), color], "name": name, "interpolation": "linear"}
