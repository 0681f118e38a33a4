"""An image as a notebook shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from hyperslab.exports.text import (
    human_nbytes,
    image_title,
    pixel_text,
    sizes_text,
)
from hyperslab.exports.thumbnail import channel_color
from hyperslab.layouts.spec import ChannelSpec, ImageSpec

if TYPE_CHECKING:
    from hyperslab.level import Level

__all__ = ["image_html"]

_SWATCH = (
    "display:inline-block;width:0.9em;height:0.9em;margin-right:0.4em;vertical-align:-0.1em;"
    "border:1px solid #888;background:{}"
)
_LEFT = "text-align:left;vertical-align:top"


def image_html(spec: ImageSpec, levels: Sequence[Level]) -> str:
    """Return a table of what a person wants to know of an image; every text of the file escaped.

    Reads nothing. Sets no colours but the channels' own, so it suits light and dark notebooks.
    """
    rows = "".join(
        f'<tr><th style="{_LEFT}">{escape(head)}</th><td style="{_LEFT}">{cell}</td></tr>'
        for head, cell in _rows(spec, levels)
        if cell
    )
    title = escape(image_title(spec))
    caption = f'<caption style="{_LEFT};caption-side:top"><b>{title}</b></caption>'
    return f'<table class="hyperslab-image">{caption}<tbody>{rows}</tbody></table>'


def _rows(spec: ImageSpec, levels: Sequence[Level]) -> Iterator[tuple[str, str]]:
    finest = levels[0]
    yield "Axes", escape(sizes_text(spec.axes, finest.shape))
    yield "Size", escape(f"{human_nbytes(finest.nbytes)}, {finest.dtype}")
    yield "Pixel", escape(pixel_text(spec))
    if "C" in spec.axes:
        yield (
            "Channels",
            "<br>".join(_channel(spec, i, item) for i, item in enumerate(spec.channels)),
        )
    if spec.timestamps:
        first, last = (
            str(t.replace(microsecond=0)) for t in (spec.timestamps[0], spec.timestamps[-1])
        )
        yield "Time", escape(first if first == last else f"{first} to {last}")
    sizes = "<br>".join(
        escape(
            f"{level.number}: {' × '.join(map(str, level.shape))}, {human_nbytes(level.nbytes)}"
            + (", computed" if level.computed else "")
        )
        for level in levels
    )
    yield "Levels" if len(levels) > 1 else "Level", sizes
    yield "Layout", escape(spec.layout)
    yield "File", escape(spec.file)


def _channel(spec: ImageSpec, number: int, item: ChannelSpec) -> str:
    red, green, blue = (round(255 * min(1.0, max(0.0, v))) for v in channel_color(spec, number))
    style = _SWATCH.format(f"rgb({red},{green},{blue})")
    limits = item.contrast_limits
    contrast = f", {limits[0]:g} to {limits[1]:g}" if limits else ""
    return f'<span style="{style}"></span>{escape(item.name)}{escape(contrast)}'
