"""Pictures: what every command that draws has in common, and the chart of a comparison."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hyperslab.cli.terminal import times
from hyperslab.cli.timing import Comparison
from hyperslab.errors import MissingExtraError, OutputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_picture", "check_target", "new_figure", "plot_ratios", "save"]


def check_target(path: Path) -> None:
    """Raise `OutputError` unless a file can be made at `path`: before the work, not after it."""
    folder = path.parent
    if not folder.is_dir():
        raise OutputError(f"{path}: there is no folder {folder}. Make it, or name another file.")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise OutputError(f"{path}: cannot be written. Name another file.")


def check_picture(path: Path) -> None:
    """Raise `OutputError` or `MissingExtraError` unless a picture can be made at `path`."""
    check_target(path)
    known = new_figure(1, 1).canvas.get_supported_filetypes()
    if path.suffix.lower().lstrip(".") not in known:
        raise OutputError(
            f"{path}: no kind of picture has the ending {path.suffix!r}. Use .png, .svg or .pdf."
        )


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, inches.

    Raises
    ------
    MissingExtraError
        matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "Pictures need matplotlib, which is not installed here. Install it with: "
            "pip install 'hyperslab[plot]'",
            package="matplotlib",
            extra="plot",
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure; the name's ending says how."""
    figure.savefig(path, dpi=150)


def plot_ratios(comparisons: Sequence[Comparison], path: Path, *, title: str, below: str) -> None:
    """Draw how many times faster hyperslab was, a bar a work."""
    figure = new_figure(8, 1.5 + 0.42 * len(comparisons))
    axes = figure.add_subplot()
    titles = [comparison.work.title for comparison in comparisons]
    ratios = [comparison.times_faster for comparison in comparisons]
    colors = ["#3465a4" if ratio >= 1 else "#c4a000" for ratio in ratios]
    bars = axes.barh(range(len(titles)), ratios, color=colors, height=0.66)
    axes.bar_label(bars, [times(ratio) for ratio in ratios], padding=4, fontweight="bold")
    axes.set_yticks(range(len(titles)), titles)
    axes.invert_yaxis()
    axes.axvline(1, color="#888888", linewidth=1)
    axes.set_xlim(0, 1.12 * max(*ratios, 1))
    axes.set_xlabel("times faster than h5py (the line is h5py)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.suptitle(title, x=0.01, ha="left", fontsize="medium", fontweight="bold")
    figure.supxlabel(below, fontsize="x-small", color="#666666")
    save(figure, path)
