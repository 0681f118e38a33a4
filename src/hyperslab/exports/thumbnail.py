"""A small picture of an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.errors import LayoutError
from hyperslab.exports.planes import plane_axes, read_plane
from hyperslab.layouts.spec import ChannelSpec, ImageSpec

if TYPE_CHECKING:
    from hyperslab.level import Level

__all__ = ["blend", "channel_color", "draw_thumbnail", "resample", "thumbnail_level"]

_RED, _GREEN, _BLUE = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
_CYAN, _MAGENTA, _YELLOW = (0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 0.0)
# For channels without a colour. Three are taken as red, green and blue; two can be told apart by
# everyone.
_COLORS = {1: [(1.0, 1.0, 1.0)], 2: [_GREEN, _MAGENTA]}
_MANY = [_RED, _GREEN, _BLUE, _CYAN, _MAGENTA, _YELLOW]


def channel_color(spec: ImageSpec, channel: int) -> tuple[float, float, float]:
    """Return a channel's colour, or one that suits its number where the file gives none."""
    given = spec.channels[channel].color
    colors = _COLORS.get(len(spec.channels), _MANY)
    return given if given is not None else colors[channel % len(colors)]


def thumbnail_level(levels: Sequence[Level], size: int) -> Level:
    """Return the coarsest level whose plane is `size` pixels or more along its longer side."""
    down, right = plane_axes(levels[0].axes)
    large = [lv for lv in levels if max(lv.shape[down], lv.shape[right]) >= size]
    return large[-1] if large else levels[0]


def resample(plane: NDArray[Any], shape: tuple[int, int]) -> NDArray[np.float64]:
    """Bring a plane to `shape`: means of pixels where it shrinks, repeated ones where it grows."""
    out = plane.astype(np.float64)
    for axis, n in enumerate(shape):
        extent = out.shape[axis]
        starts = np.arange(n) * extent // n
        if n < extent:
            counts = np.diff(np.append(starts, extent))
            sums = np.add.reduceat(out, starts, axis)
            out = sums / (counts[:, None] if axis == 0 else counts)
        else:
            out = np.take(out, starts, axis)
    return out


def blend(
    spec: ChannelSpec,
    color: tuple[float, float, float],
    plane: NDArray[np.float64],
    limits: tuple[float, float],
) -> NDArray[np.float64]:
    """Return a channel in colour, (Y, X, 3) from 0 to 1: contrast, gamma, then colour or table."""
    low, high = limits
    shade = np.nan_to_num(np.clip((plane - low) / (high - low), 0, 1))
    if spec.gamma is not None and spec.gamma > 0:
        shade **= spec.gamma
    if spec.color_table:
        table = np.array(spec.color_table)
        return np.asarray(table[np.rint(shade * (len(table) - 1)).astype(np.intp)])
    return np.asarray(shade[..., None] * np.array(color))


def draw_thumbnail(
    spec: ImageSpec,
    levels: Sequence[Level],
    limits: Sequence[tuple[float, float]],
    *,
    size: int,
) -> NDArray[np.uint8]:
    """Return a picture of the image, (height, width, 3); see `Image.save_thumbnail`.

    Parameters
    ----------
    spec, levels
        The image's.
    limits
        Contrast limits of each channel.
    size
        Pixels along the longer side, at most.

    Raises
    ------
    LayoutError
        The image has no pixels.
    """
    level = thumbnail_level(levels, size)
    if not level.size:
        raise LayoutError(f"{spec.file}: the image has no pixels to show.", file=spec.file)
    axes = plane_axes(level.axes)
    pixels = [level.shape[axis] for axis in axes]
    sides = [n * level.scale[axis] for n, axis in zip(pixels, axes, strict=True)]
    if not all(math.isfinite(side) and side > 0 for side in sides):
        sides = [float(n) for n in pixels]
    longest = min(size, max(pixels))
    shape = tuple(max(1, round(longest * side / max(sides))) for side in sides)
    picture = np.zeros((*shape, 3))
    for channel, item in enumerate(spec.channels):
        plane = resample(read_plane(level, channel, project=True), (shape[0], shape[1]))
        picture += blend(item, channel_color(spec, channel), plane, limits[channel])
    return np.rint(255 * np.clip(picture, 0, 1)).astype(np.uint8)
