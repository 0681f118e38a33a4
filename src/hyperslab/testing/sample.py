"""An Imaris file that is worth looking at."""

from __future__ import annotations

import os

from hyperslab.testing.cells import draw_cells
from hyperslab.testing.imaris import ImarisFacts, make_imaris

__all__ = ["make_cells"]


def make_cells(
    path: str | os.PathLike[str],
    *,
    shape: tuple[int, int, int, int, int] = (3, 3, 24, 500, 500),
    chunks: tuple[int, int, int] = (8, 256, 256),
) -> ImarisFacts:
    """Write an Imaris file of `draw_cells`: nuclei, membranes and spots, three levels.

    Parameters
    ----------
    path
        File to write; one that exists is replaced.
    shape
        (T, C, Z, Y, X).
    chunks
        (Z, Y, X) of a chunk.

    Returns
    -------
    ImarisFacts

    Notes
    -----
    As it is by default: 83 MB, a few seconds.
    """
    size = shape[2:]
    n_cells = size[1] * size[2] // 900
    return make_imaris(
        path,
        shape=shape,
        chunks=chunks,
        levels=3,
        voxel=(0.9, 0.25, 0.25),
        ranges=[(200, 3200), (200, 3800), (200, 2600), *[(200, 3800)] * shape[1]][: shape[1]],
        data=lambda t, c: draw_cells(size, t=t, c=c, n_cells=n_cells),
    )
