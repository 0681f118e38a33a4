"""Draw docs/images/block-shuffle.png: what block shuffle does to the order of an epoch.

    python docs/scripts/block_shuffle.py [FILE.png]

Both halves show orders that `hyperslab.torch.order.order` made; nothing is drawn by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hyperslab.torch.order.order import Slabs, block_order, cut_slabs, full_order

PICTURE = Path(__file__).resolve().parents[1] / "images" / "block-shuffle.png"
BATCH = 32
MEBI = 1 << 20

# The cohort of docs/explanation/block-shuffle.md: per case its slices, and per slice its bytes.
N_CASES, DEPTH, SLAB_DEPTH, SLICE_NBYTES = 40, 128, 32, 256 * 256 * (4 + 4 + 1)

Ints = NDArray[np.int64]


def cohort(n_cases: int, depth: int, slab_depth: int, slice_nbytes: int) -> Slabs:
    """Return the slabs of cases that are all alike."""
    return cut_slabs(
        np.repeat(np.arange(n_cases), depth),
        np.tile(np.arange(depth), n_cases),
        np.full(n_cases, slab_depth),
        np.full(n_cases, slice_nbytes),
    )


def draw_steps(axes: Axes, slabs: Slabs, window: int, batch: int) -> None:
    """Draw a small epoch three times: as stored, its slabs shuffled, and as it is visited.

    Parameters
    ----------
    axes
        To draw on.
    slabs
        Of the epoch, a byte a slice.
    window
        Slices that it holds.
    batch
        Samples in a batch.
    """
    order = block_order(slabs, seed=0, epoch=0, window_nbytes=window)
    n, slab_of = slabs.n_samples, slabs.of_sample()
    entering = np.concatenate([np.flatnonzero(slab_of == slab) for slab in order.slab])
    rows = [
        ("stored: the slices of a slab share their chunks", np.arange(n), slab_of),
        ("slabs in the order in which they are decoded", entering, slab_of[entering]),
        ("samples drawn from the window, in batches", order.samples, np.arange(n) // batch),
    ]
    case_of = slabs.case[slab_of]
    colours = ListedColormap(_colours(int(slabs.case.max()) + 1))
    for y, (title, samples, group) in zip((0.0, -1.9, -4.2), rows, strict=True):
        axes.imshow(
            case_of[samples][None],
            cmap=colours,
            vmin=0,
            vmax=colours.N - 1,
            extent=(0, n, y, y + 1),
            aspect="auto",
            interpolation="nearest",
        )
        for x in range(n):
            axes.plot([x, x], [y, y + 1], color="white", linewidth=0.4)
        for x in np.flatnonzero(np.diff(group, prepend=-1, append=-1)).tolist():
            axes.plot([x, x], [y - 0.1, y + 1.1], color="black", linewidth=1.6)
        axes.text(0, y + 1.2, title, va="bottom")
    # Which slabs the window holds when the first batch has been drawn.
    first = order.entered[order.entered <= batch].size * int(np.diff(slabs.first)[0])
    axes.plot([0, first], [-2.3, -2.3], color="black", linewidth=3)
    axes.text(first + 0.5, -2.3, "in the window during the first batch", va="center")
    axes.set(xlim=(-0.3, n + 0.3), ylim=(-4.3, 1.8))
    axes.axis("off")


def draw_order(axes: Axes, samples: Ints, title: str) -> None:
    """Draw which patients the batches of an epoch take samples from."""
    batch = np.arange(samples.size) // BATCH
    patient = samples / DEPTH
    colours = ListedColormap(_colours(N_CASES))
    axes.scatter(batch, patient, c=samples // DEPTH, cmap=colours, s=2.2, linewidths=0)
    axes.set(xlim=(0, batch[-1] + 1), ylim=(N_CASES, 0), title=title, xlabel="batch")


def _colours(n: int) -> list[Any]:
    """Return `n` colours that follow each other like those of a rainbow."""
    return [colormaps["turbo"](0.05 + 0.9 * i / max(1, n - 1)) for i in range(n)]


def main(path: Path = PICTURE) -> None:
    """Write the picture."""
    slabs = cohort(N_CASES, DEPTH, SLAB_DEPTH, SLICE_NBYTES)
    whole: dict[str, Any] = {"seed": 0, "epoch": 0, "rank": 0, "world_size": 1, "drop": False}
    orders = [("in order", full_order(slabs.n_samples, shuffle=False, **whole))]
    for nbytes in (64 * MEBI, 512 * MEBI):
        order = block_order(slabs, window_nbytes=nbytes, **whole)
        orders.append((f"window of {nbytes // MEBI} MiB", order.samples))
    orders.append(("fully random", full_order(slabs.n_samples, shuffle=True, **whole)))

    figure = Figure(figsize=(11, 6.6), dpi=100, layout="constrained")
    titles = [title for title, _ in orders]
    mosaic: list[Any] = [["steps"] * len(orders), titles]
    axes = figure.subplot_mosaic(mosaic, height_ratios=[1, 1.2])
    draw_steps(axes["steps"], cohort(4, 20, 5, 1), window=30, batch=8)
    for title, samples in orders:
        draw_order(axes[title], samples, title)
        axes[title].tick_params(labelleft=title == titles[0])
    axes[titles[0]].set_ylabel("patient")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
