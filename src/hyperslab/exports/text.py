"""An image in words."""

from __future__ import annotations

import math
import os

import numpy as np

from hyperslab.layouts.spec import ImageSpec

__all__ = [
    "human_nbytes",
    "image_text",
    "image_title",
    "level_nbytes",
    "n_levels_text",
    "pixel_text",
    "sizes_text",
]


def human_nbytes(nbytes: int) -> str:
    """Return a size for people, in three digits.

    Examples
    --------
    >>> human_nbytes(640), human_nbytes(999_700), human_nbytes(208_000_000_000)
    ('640 B', '1 MB', '208 GB')
    """
    exponent = next((i for i in range(4) if nbytes < 999.5 * 1000**i), 4)
    return f"{nbytes / 1000**exponent:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[exponent]}"


def image_title(spec: ImageSpec) -> str:
    """Return the image's name, or its file's where it has none."""
    return spec.name or os.path.basename(spec.file)


def sizes_text(axes: str, shape: tuple[int, ...]) -> str:
    """Return the extent along each axis, e.g. "Z=5, Y=70, X=90"."""
    return ", ".join(f"{letter}={n}" for letter, n in zip(axes, shape, strict=True))


def pixel_text(spec: ImageSpec) -> str:
    """Return the size of a pixel of the finest level, "" for an image that lies in no space."""
    return " x ".join(
        f"{size:g} {unit}".strip()
        for letter, size, unit in zip(spec.axes, spec.scale, spec.units, strict=True)
        if letter in "ZYX"
    )


def n_levels_text(spec: ImageSpec) -> str:
    """Return how many levels there are, e.g. "1 level"."""
    return f"{len(spec.levels)} level" + ("s" if len(spec.levels) != 1 else "")


def level_nbytes(spec: ImageSpec, level: int) -> int:
    """Return how many bytes a level takes in memory."""
    return math.prod(spec.levels[level].shape) * np.dtype(spec.dtype).itemsize


def image_text(spec: ImageSpec) -> str:
    """Return what `repr` says of an image: a few lines."""
    lines = [f"<hyperslab.Image {image_title(spec)!r} ({spec.layout})"]
    sizes = sizes_text(spec.axes, spec.levels[0].shape)
    size = human_nbytes(level_nbytes(spec, 0))
    lines.append(f"  {sizes}, {np.dtype(spec.dtype)}, {size}, {n_levels_text(spec)}")
    if pixel := pixel_text(spec):
        lines.append(f"  pixel {pixel}")
    if "C" in spec.axes:
        lines.append("  channels " + ", ".join(channel.name for channel in spec.channels))
    return "\n".join(lines) + ">"
