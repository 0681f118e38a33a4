"""The table as a picture."""

from __future__ import annotations

from pathlib import Path

from benchmarks.row import Row

__all__ = ["draw"]


def draw(rows: list[Row], path: Path) -> None:
    """Draw how many times faster than h5py each work is, as horizontal bars, into `path`."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shown = [row for row in rows if row.peer == "h5py"]
    figure, axes = plt.subplots(figsize=(9, 0.55 * len(shown) + 1.1), layout="constrained")
    positions = range(len(shown))
    ratios = [row.result.ratio for row in shown]
    axes.barh(positions, ratios, height=0.62, color="#3949ab")
    for position, row in enumerate(shown):
        axes.text(
            row.result.ratio,
            position,
            f"  {row.result.ratio:.1f} times   "
            f"({row.result.theirs_s * 1e3:.3g} → {row.result.ours_s * 1e3:.3g} ms)",
            va="center",
            color="#222222",
        )
    axes.axvline(1, color="#999999", linewidth=1)
    axes.set_yticks(positions, [row.work for row in shown])
    axes.invert_yaxis()
    axes.set_xlim(0, max(ratios) * 1.75)
    axes.set_xlabel("times faster than h5py, same file, same run")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.savefig(path, dpi=110)
    plt.close(figure)
