"""Pictures as SVG, by hand: a volume with the chunks that a request touches, and a dot chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from hyperslab.advice.words import duration

__all__ = ["Dots", "draw_dots", "draw_volume"]

_WIDTH, _MARGIN = 250.0, 46.0  # of the volume's longest side on paper, and around it
_DEPTH_X, _DEPTH_Y = 0.50, 0.34  # of a unit of depth, to the right and up
_LEAST_GAP = 4.0  # between grid lines

Point = tuple[float, float]
Range = tuple[float, float]


def draw_volume(
    shape: tuple[int, ...],
    chunks: tuple[int, ...] | None,
    region: tuple[int, ...],
    slab: tuple[int, ...],
) -> str:
    """Return a picture of a dataset, the chunks that one request touches, and what it uses.

    Parameters
    ----------
    shape, chunks
        Of the dataset.
    region, slab
        Shapes of one request and of all elements in its chunks.

    Returns
    -------
    str
        An `svg` element. Of more than three axes it shows the last three. The axis along which the
        request takes least goes to the back. Classes: `volume`, `grid`, `slab`, `used`.
    """
    last = min(3, len(shape))
    cell = chunks or (1,) * len(shape)
    sizes, cells, wanted, met = (values[-last:] for values in (shape, cell, region, slab))
    if last < 3:  # flat, or a line
        extra = (1,) * (3 - last)
        sizes, cells, wanted, met = (extra + values for values in (sizes, cells, wanted, met))
    back = min(range(3), key=lambda axis: (wanted[axis] / sizes[axis], sizes[axis] == 1, axis))
    if last < 3:
        back = 0
    axes = (back, *(axis for axis in range(3) if axis != back))
    extents = [sizes[axis] for axis in axes]
    # Long and thin volumes stay recognisable, and small enough.
    longest = max(extents)
    depth, height, width = (max(0.16, (n / longest) ** 0.7) * _WIDTH for n in extents)
    if last < 3:
        depth = 0.0
    page = _Page(depth, height, width)
    # In the middle, at a chunk's border.
    starts = [
        (size - part) // 2 // step * step
        for size, step, part in zip(sizes, cells, met, strict=True)
    ]
    starts = [min(s, size - part) for s, size, part in zip(starts, sizes, met, strict=True)]
    slab_at = [
        (starts[axis] / sizes[axis], (starts[axis] + met[axis]) / sizes[axis]) for axis in axes
    ]
    used_at = []
    for axis in axes:
        inside = (met[axis] - wanted[axis]) // 2
        first = starts[axis] + inside
        used_at.append((first / sizes[axis], (first + wanted[axis]) / sizes[axis]))
    words = (
        f"{' × '.join(map(str, shape))} in chunks of {' × '.join(map(str, chunks))}"
        if chunks
        else f"{' × '.join(map(str, shape))}, not in chunks"
    )
    body = [page.box([(0, 1)] * 3, "volume")]
    if chunks is not None:
        body.append(page.box(slab_at, "slab"))
    body.append(page.box(used_at, "used"))
    if chunks is not None:
        body.append(page.grid([cells[axis] / sizes[axis] for axis in axes]))
    first_axis = len(shape) - last
    names = [f"axis {axis - (3 - last) + first_axis}: {sizes[axis]:,}" for axis in axes]
    body.append(page.labels(names, deep=last == 3))
    return _svg(page.width, page.height, f"One request in {words}", "".join(body))


class _Page:
    """An oblique view: depth goes to the right and up."""

    def __init__(self, depth: float, height: float, width: float) -> None:
        self._sizes = depth, height, width
        self._top = _MARGIN / 2 + depth * _DEPTH_Y
        self.width = _MARGIN * 2 + width + depth * _DEPTH_X + 40
        self.height = self._top + height + _MARGIN

    def at(self, back: float, down: float, right: float) -> Point:
        depth, height, width = self._sizes
        x = _MARGIN + right * width + back * depth * _DEPTH_X
        return x, self._top + down * height - back * depth * _DEPTH_Y

    def box(self, ranges: Sequence[Range], name: str) -> str:
        """Draw the three faces of a box that can be seen."""
        (b0, b1), (d0, d1), (r0, r1) = ranges
        faces = (
            [(b0, d0, r0), (b0, d0, r1), (b0, d1, r1), (b0, d1, r0)],  # front
            [(b0, d0, r0), (b1, d0, r0), (b1, d0, r1), (b0, d0, r1)],  # top
            [(b0, d0, r1), (b1, d0, r1), (b1, d1, r1), (b0, d1, r1)],  # right
        )
        shown = "".join(
            f'<polygon points="{_points([self.at(*corner) for corner in face])}"/>'
            for face in faces
        )
        return f'<g class="{name}">{shown}</g>'

    def grid(self, steps: Sequence[float]) -> str:
        """Draw the borders of chunks on the three faces; some of them where they are many."""
        lines: list[str] = []
        for axis in range(3):
            n = math.ceil(1 / steps[axis])
            length = self._sizes[axis] * (0.6 if axis == 0 else 1.0)
            every = max(1, math.ceil(n * _LEAST_GAP / max(length, 1.0)))
            for i in range(every, n, every):
                at = min(1.0, i * steps[axis])
                others = {0: ((1, 0), (2, 1)), 1: ((0, 0), (2, 1)), 2: ((0, 0), (1, 0))}[axis]
                for fixed, value in others:
                    ends: list[Point] = []
                    for end in (0.0, 1.0):
                        place = [end] * 3
                        place[axis], place[fixed] = at, float(value)
                        ends.append(self.at(*place))
                    (x1, y1), (x2, y2) = ends
                    lines.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')
        return f'<g class="grid">{"".join(lines)}</g>'

    def labels(self, names: Sequence[str], *, deep: bool) -> str:
        """Write the name and extent of each axis beside it."""
        x, y = self.at(0, 1, 0.5)
        found = [f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{names[2]}</text>']
        x, y = self.at(0, 0.5, 0)
        found.append(
            f'<text transform="translate({x - 10:.1f} {y:.1f}) rotate(-90)" '
            f'text-anchor="middle">{names[1]}</text>'
        )
        if deep:
            x, y = self.at(0.5, 1, 1)
            found.append(f'<text x="{x + 8:.1f}" y="{y + 14:.1f}">{names[0]}</text>')
        return "".join(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """One row of a dot chart.

    Attributes
    ----------
    label
        Of the row; "" puts its dots into the row above.
    group
        Heading above it, if it is not that of the row before.
    who
        Class of its dots: "h5py" or "ours".
    predicted_s, measured_s
        Seconds; None where there is no dot.
    """

    label: str
    group: str
    who: str
    predicted_s: float | None
    measured_s: float | None


_ROW, _HEAD, _LEFT, _RIGHT, _CHART = 20, 30, 210, 150, 420


def draw_dots(rows: Sequence[Dots]) -> str:
    """Return a chart of seconds on a logarithmic axis: rings predicted, discs measured."""
    values = [v for row in rows for v in (row.predicted_s, row.measured_s) if v]
    if not values:
        return ""
    low = math.floor(math.log10(min(values)))
    high = max(low + 1, math.ceil(math.log10(max(values))))

    def x(seconds: float) -> float:
        return _LEFT + _CHART * (math.log10(seconds) - low) / (high - low)

    body: list[str] = []
    y, group = 8.0, ""
    for row in rows:
        if row.group != group:
            group = row.group
            body.append(f'<text class="head" x="0" y="{y + 20:.0f}">{escape(group)}</text>')
            y += _HEAD
        middle = y + _ROW / 2
        body.append(
            f'<text x="{_LEFT - 14}" y="{middle + 4:.0f}" text-anchor="end">{escape(row.label)}'
            f'</text><line class="rule" x1="{_LEFT}" y1="{middle}" x2="{_LEFT + _CHART}" '
            f'y2="{middle}"/>'
        )
        dots = []
        if row.predicted_s and row.measured_s:
            dots.append(
                f'<line class="between" x1="{x(row.predicted_s):.1f}" y1="{middle}" '
                f'x2="{x(row.measured_s):.1f}" y2="{middle}"/>'
            )
        if row.measured_s:
            dots.append(f'<circle class="disc" cx="{x(row.measured_s):.1f}" cy="{middle}" r="4"/>')
        if row.predicted_s:
            dots.append(f'<circle class="ring" cx="{x(row.predicted_s):.1f}" cy="{middle}" r="6"/>')
        body.append(f'<g class="{row.who}">{"".join(dots)}</g>')
        words = duration(row.measured_s or row.predicted_s or 0.0)
        if row.measured_s or row.predicted_s:
            shown = words if row.measured_s else f"({words})"
            body.append(
                f'<text class="value" x="{_LEFT + _CHART + 14}" y="{middle + 4:.0f}">{shown}</text>'
            )
        y += _ROW
    ticks = []
    for exponent in range(low, high + 1):
        at = x(10.0**exponent)
        ticks.append(
            f'<line class="tick" x1="{at:.1f}" y1="8" x2="{at:.1f}" y2="{y + 4:.0f}"/>'
            f'<text x="{at:.1f}" y="{y + 20:.0f}" text-anchor="middle">{duration(10.0**exponent)}'
            "</text>"
        )
    width, height = _LEFT + _CHART + _RIGHT, y + 28
    return _svg(width, height, "Seconds a request", "".join([*ticks, *body]))


def _points(corners: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)


def _svg(width: float, height: float, title: str, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        f'role="img"><title>{escape(title)}</title>{body}</svg>'
    )
