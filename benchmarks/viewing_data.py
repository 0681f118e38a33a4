"""The files that viewing is measured on: Imaris files, written once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hyperslab.testing import draw_cells, make_imaris

__all__ = ["CHUNKS", "DATA", "LARGE_SHAPE", "SHAPE", "make_large_file", "make_scroll_file"]

SHAPE = (2, 2, 48, 1024, 1024)
CHUNKS = (16, 256, 256)
LARGE_SHAPE = (60, 3, 48, 2048, 5888)
_LARGE_LEVELS = 5

#: Name of the dataset of a time point and a channel.
DATA = "DataSet/ResolutionLevel 0/TimePoint {t}/Channel {c}/Data"


def _counts(t: int, c: int) -> NDArray[np.uint16]:
    """Photon counts: cells over a background, with shot noise, as a camera gives them."""
    rng = np.random.default_rng(10 * t + c)
    n = 8  # planes drawn; the rest repeat them with fresh noise, which is what decoding costs
    drawn = np.asarray(draw_cells((n, *SHAPE[3:]), seed=2 * t + c), np.float32)
    return np.stack(
        [rng.poisson(drawn[z % n] * 0.1 + 100).astype(np.uint16) for z in range(SHAPE[2])]
    )


def make_scroll_file(folder: Path) -> Path:
    """Write (2, 2, 48, 1024, 1024) uint16, chunks (16, 256, 256), gzip-2; unless it is there."""
    path = folder / "scroll.ims"
    if not path.exists():
        part = path.with_suffix(".part")
        make_imaris(part, shape=SHAPE, chunks=CHUNKS, data=_counts, levels=1)
        part.rename(path)
    return path


def make_large_file(folder: Path) -> Path:
    """Write what a 208 GB file has but its pixels: 900 datasets of which few chunks are there."""
    path = folder / "large.ims"
    if not path.exists():
        part = path.with_suffix(".part")
        sizes = [(48, 2048 >> level, 5888 >> level) for level in range(_LARGE_LEVELS)]
        make_imaris(part, shape=LARGE_SHAPE, chunks=CHUNKS, levels=sizes, sparse=True, n_written=4)
        part.rename(path)
    return path
