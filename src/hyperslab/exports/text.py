"""An image in words."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hyperslab.errors import OutputError
from hyperslab.layouts.spec import ImageSpec

if TYPE_CHECKING:
    from hyperslab.level import Level

__all__ = [
    "human_nbytes",
    "image_text",
    "image_title",
    "n_levels_text",
    "parse_nbytes",
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


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}


def parse_nbytes(size: int | str) -> int:
    """Return a size in bytes that a person may have written.

    Raises
    ------
    OutputError
        It is none, or nothing.

    Examples
    --------
    >>> parse_nbytes("500MB"), parse_nbytes("1GiB"), parse_nbytes("1.5k"), parse_nbytes(7)
    (500000000, 1073741824, 1500, 7)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?)B?", str(size).strip().upper())
    if not found or found[2] not in _UNITS or not float(found[1]):
        raise OutputError(f"{size!r} is no size in bytes; write it like 500MB, 2GB or 1GiB.")
    return int(float(found[1]) * _UNITS[found[2]])


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


def n_levels_text(levels: Sequence[Level]) -> str:
    """Return how many levels there are, e.g. "1 level", "5 levels (4 of them computed)"."""
    n_computed = sum(level.computed for level in levels)
    computed = f" ({n_computed} of them computed)" if n_computed else ""
    return f"{len(levels)} level{'s' if len(levels) != 1 else ''}{computed}"


def image_text(spec: ImageSpec, levels: Sequence[Level]) -> str:
    """Return what `repr` says of an image: a few lines."""
    lines = [f"<hyperslab.Image {image_title(spec)!r} ({spec.layout})"]
    finest = levels[0]
    sizes, size = sizes_text(spec.axes, finest.shape), human_nbytes(finest.nbytes)
    lines.append(f"  {sizes}, {finest.dtype}, {size}, {n_levels_text(levels)}")
    if pixel := pixel_text(spec):
        lines.append(f"  pixel {pixel}")
    if "C" in spec.axes:
        lines.append("  channels " + ", ".join(channel.name for channel in spec.channels))
    return "\n".join(lines) + ">"
