"""The demo's pictures: slices of a cohort, and planes of an image in the channels' colours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.batch import read_many
from hyperslab.cli.figures import new_figure, save
from hyperslab.file import open_file
from hyperslab.image import Image, open_image
from hyperslab.layouts import ChannelSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_cells_picture", "draw_cohort_picture"]

_MOST_PATIENTS = 6
_GROUPS = ("MR", "CT", "MASK")
_SCALE_BARS_UM = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def draw_cohort_picture(path: Path, target: Path) -> None:
    """Draw a slice of some patients: a row for each of MR, CT and MASK.

    All slices are read by one `read_many` for each row.
    """
    opened = open_file(path)
    cases = sorted(opened[_GROUPS[0]])[:_MOST_PATIENTS]
    height, width, depth = opened[f"{_GROUPS[0]}/{cases[0]}"].shape  # type: ignore[union-attr]
    at = [depth * (i + 1) // (len(cases) + 1) for i in range(len(cases))]
    figure = new_figure(1.9 * len(cases) + 0.5, 1.95 * len(_GROUPS) * height / width + 0.7)
    axes = figure.subplots(len(_GROUPS), len(cases), squeeze=False)
    for row, group in zip(axes, _GROUPS, strict=True):
        arrays = [opened[f"{group}/{case}"] for case in cases]
        wanted = [(a, np.s_[:, :, k]) for a, k in zip(arrays, at, strict=True)]
        low = 0 if group == "MASK" else -1
        for ax, plane in zip(row, read_many(wanted), strict=True):  # type: ignore[arg-type]
            ax.imshow(plane, cmap="gray", vmin=low, vmax=1, interpolation="nearest")
            _bare(ax)
        row[0].set_ylabel(group, fontsize="large", fontweight="bold")
    for ax, case, k in zip(axes[0], cases, at, strict=True):
        ax.set_title(f"{case}, slice {k}", fontsize="small")
    figure.suptitle(f"{path.name}: {', '.join(_GROUPS)} of the same slices", x=0.01, ha="left")
    save(figure, target)


def draw_cells_picture(path: Path, target: Path) -> None:
    """Draw an image.

    Above, the middle plane of time point 0: each channel in its colour and between its limits, then
    all of them.
    Below, a part of it at three levels; and the last time point, with a section along X and Z.
    """
    image = open_image(path)
    z = image.shape[2] // 2
    planes = image[0, :, z]
    n_columns = len(image.channels) + 1
    figure = new_figure(3.3 * n_columns, 7)
    grid = figure.add_gridspec(2, n_columns)
    for i, channel in enumerate(image.channels):
        ax = figure.add_subplot(grid[0, i])
        low, high = _limits(channel, planes[i])
        _show(ax, image, 0, planes[i : i + 1], [channel])
        ax.set_title(f"{channel.name}, {low:g} to {high:g}", fontsize="medium")
    ax = figure.add_subplot(grid[0, -1])
    _show(ax, image, 0, planes, image.channels)
    ax.set_title("all channels", fontsize="medium")

    numbers = dict.fromkeys((0, len(image.levels) // 2, len(image.levels) - 1))
    for i, number in zip(range(n_columns - 1), numbers, strict=False):
        level = image.levels[number]
        ax = figure.add_subplot(grid[1, i])
        _show(ax, image, number, level[0, :, z * level.shape[2] // image.shape[2]], image.channels)
        ax.set_title(f"level {number}, {level.shape[3]} × {level.shape[4]}", fontsize="medium")
        _magnify(ax, 3)

    left, right, bottom, top = _extent(image, 0)
    deep = image.shape[2] * image.scale[2]
    last = image.shape[0] - 1
    cell = grid[1, -1].subgridspec(2, 1, height_ratios=(bottom - top, deep))
    later, side = (figure.add_subplot(cell[i]) for i in range(2))
    _show(later, image, 0, image[last, :, z], image.channels)
    later.set_title(f"time point {last}", fontsize="medium")
    section = _colored(image[last, :, :, image.shape[3] // 2], image.channels)
    side.imshow(section, extent=(left, right, deep, 0), interpolation="nearest")
    _bare(side)
    side.set_xlabel("its middle row, all planes", fontsize="medium")
    sizes = " ".join(f"{axis}={n}" for axis, n in zip(image.axes, image.shape, strict=True))
    figure.suptitle(f"{path.name}: {sizes}; time point 0, plane {z}", x=0.01, ha="left")
    save(figure, target)


def _show(
    ax: Axes, image: Image, number: int, planes: NDArray[Any], channels: Sequence[ChannelSpec]
) -> None:
    """Show (C, Y, X) of a level where it lies in space, with a scale bar."""
    ax.imshow(_colored(planes, channels), extent=_extent(image, number), interpolation="nearest")
    _bare(ax)
    _scale_bar(ax)


def _magnify(ax: Axes, times: float) -> None:
    """Look at the middle only, with a scale bar that fits."""
    for artist in [*ax.lines, *ax.texts]:
        artist.remove()
    for get, put in ((ax.get_xlim, ax.set_xlim), (ax.get_ylim, ax.set_ylim)):
        start, end = get()
        middle, reach = (start + end) / 2, (end - start) / 2 / times
        put(middle - reach, middle + reach)
    _scale_bar(ax)


def _bare(ax: Axes) -> None:
    ax.set_xticks([])
    ax.set_yticks([])


def _limits(channel: ChannelSpec, values: NDArray[Any]) -> tuple[float, float]:
    return channel.contrast_limits or (float(values.min()), float(values.max()))


def _colored(planes: NDArray[Any], channels: Sequence[ChannelSpec]) -> NDArray[np.float64]:
    """Return (C, Y, X) as (Y, X, 3): each channel between its limits, in its colour, added up."""
    picture = np.zeros((*planes.shape[1:], 3))
    for plane, channel in zip(planes, channels, strict=True):
        low, high = _limits(channel, plane)
        shade = np.clip((plane - low) / max(high - low, 1e-9), 0, 1)
        picture += shade[..., None] * (channel.color or (1.0, 1.0, 1.0))
    return np.clip(picture, 0, 1)


def _extent(image: Image, number: int) -> tuple[float, float, float, float]:
    """Return left, right, bottom and top border of a level, in units."""
    level = image.levels[number]
    top, left = (level.translation[i] - level.scale[i] / 2 for i in (3, 4))
    height, width = (level.shape[i] * level.scale[i] for i in (3, 4))
    return left, left + width, top + height, top


def _scale_bar(ax: Axes) -> None:
    """Draw a bar of a round length, about a quarter of what is seen, into the corner."""
    left, right = ax.get_xlim()
    bottom, top = ax.get_ylim()
    width, height = right - left, bottom - top
    length = max((um for um in _SCALE_BARS_UM if um <= width / 4), default=width / 4)
    end, y = right - 0.05 * width, bottom - 0.06 * height
    ax.plot([end - length, end], [y, y], color="white", linewidth=3, solid_capstyle="butt")
    ax.text(
        end - length / 2, y - 0.02 * height, f"{length:g} µm",
        color="white", ha="center", va="bottom", fontsize="small",
    )  # fmt: skip
