"""The files that are measured: written once, through h5py, as people's files are written."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from hyperslab.testing import draw_cells, draw_phantom

__all__ = ["N_CASES", "make_cohort_file", "make_grid_file", "make_volume_file"]

N_CASES = 16


def _counts(shape: tuple[int, int, int]) -> NDArray[np.uint16]:
    """Photon counts: cells over a background, with shot noise, as a camera gives them."""
    rng = np.random.default_rng(0)
    n = 8  # planes drawn; the rest repeat them with fresh noise, which is what decoding costs
    drawn = np.asarray(draw_cells((n, *shape[1:]), seed=0), np.float32)
    planes = [rng.poisson(drawn[i % n] * 0.1 + 100).astype(np.uint16) for i in range(shape[0])]
    return np.stack(planes)


def make_volume_file(folder: Path) -> Path:
    """Write one uint16 and one float32 volume, in the layouts that people have."""
    path = folder / "volumes.h5"
    if path.exists():
        return path
    part = path.with_suffix(".part")
    volume = _counts((48, 1024, 1024))
    case = draw_phantom((256, 256, 180), seed=0)[0].astype(np.float32)
    with h5py.File(part, "w") as h5:
        gzip2 = {"compression": "gzip", "compression_opts": 2}
        h5.create_dataset("gzip_2MB", data=volume, chunks=(16, 256, 256), **gzip2)
        h5.create_dataset(
            "shuffle_gzip_256KB", data=volume, chunks=(8, 128, 128), shuffle=True, **gzip2
        )
        h5.create_dataset("default_gzip", data=case, compression="gzip")
    part.rename(path)
    return path


def make_cohort_file(folder: Path) -> Path:
    """Write 16 cases of (256, 256, 180) float32 in three layouts."""
    path = folder / "cohort.h5"
    if path.exists():
        return path
    part = path.with_suffix(".part")
    base = draw_phantom((256, 256, 180), seed=1)[0].astype(np.float32)
    with h5py.File(part, "w") as h5:
        for i in range(N_CASES):
            case = np.roll(base, (3 * i, 5 * i), axis=(0, 1))
            h5.create_dataset(f"gzip/p{i:02d}", data=case, compression="gzip")
            h5.create_dataset(f"contiguous/p{i:02d}", data=case)
            first = np.ascontiguousarray(case.transpose(2, 0, 1))
            h5.create_dataset(f"slice_first/p{i:02d}", data=first, chunks=(1, 256, 256))
    part.rename(path)
    return path


def make_grid_file(folder: Path) -> Path:
    """Write a dataset of 32,768 chunks."""
    path = folder / "grid.h5"
    if path.exists():
        return path
    part = path.with_suffix(".part")
    with h5py.File(part, "w") as h5:
        data = np.arange(32 * 32 * 32 * 64, dtype=np.uint16).reshape(128, 128, 128)
        h5.create_dataset("chunks", data=data, chunks=(4, 4, 4), compression="gzip")
    part.rename(path)
    return path
