"""Synthetic fluorescence: cells that drift with time and look different in every channel."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["draw_cells"]

_BACKGROUND, _PEAK = 0.02, 0.55  # of full scale; the noise stays far below full scale
_FULL_SCALE = {"uint8": 255.0, "int8": 127.0}  # wider integers: a 13-bit camera
_CAMERA = 8191.0


def draw_cells(
    shape: tuple[int, int, int],
    *,
    t: int = 0,
    c: int = 0,
    n_cells: int | None = None,
    dtype: npt.DTypeLike = "uint16",
    seed: int = 0,
) -> npt.NDArray[Any]:
    """Draw one (Z, Y, X) volume of blobs on a noisy background.

    Channels take turns: filled nuclei, the rims around them, and small spots inside. Positions
    depend on `seed` alone and drift with `t`, so that neighbouring time points belong together.

    Parameters
    ----------
    shape
        (Z, Y, X) in voxels.
    t, c
        Time point and channel, from 0.
    n_cells
        By default one per 24 x 24 pixels of a plane, at least 3 and at most 150.
    dtype
        Integers get values up to some 5000 (8-bit: some 150); floats lie within 0 to 1.
    seed
        The same seed gives the same cells and the same noise.

    Returns
    -------
    numpy.ndarray
        Owned by the caller, C-contiguous, of `shape` and `dtype` in native byte order.

    Notes
    -----
    Each cell is added in its own bounding box; the noise is the greater part of the cost, about
    10 ns a voxel. Peak memory is about 10 bytes a voxel and the result.
    """
    _, y_size, x_size = shape
    number = n_cells if n_cells is not None else int(np.clip(y_size * x_size / 576, 3, 150))
    size = np.array(shape, dtype=np.float64)
    cells = np.random.default_rng([seed, 1])
    start = cells.random((number, 3))
    drift = cells.normal(0, 0.008, (number, 3))
    radius_px = cells.uniform(0.5, 1.0, number) * max(3.0, min(12.0, min(y_size, x_size) / 6))
    brightness = cells.uniform(0.4, 1.0, number)
    kind = c % 3
    brightness *= np.random.default_rng([seed, 2, c]).uniform(0.5, 1.0, number)

    image = np.random.default_rng([seed, 3, t, c]).standard_normal(shape, dtype=np.float32)
    image *= 0.004
    image += _BACKGROUND
    # Cells that leave on one side come back on the other.
    for centre, radius, peak in zip(
        ((start + drift * t) % 1.0) * size, radius_px, brightness * _PEAK, strict=True
    ):
        # A slice is often several pixels apart: cells are flatter in z, measured in voxels.
        radii = np.array([max(1.0, radius / 3), radius, radius])
        low = np.maximum(np.floor(centre - 1.5 * radii), 0).astype(int)
        high = np.minimum(np.ceil(centre + 1.5 * radii) + 1, size).astype(int)
        box = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
        z, y, x = (
            ((np.arange(a, b) - m) / r).astype(np.float32) ** 2
            for a, b, m, r in zip(low, high, centre, radii, strict=True)
        )
        distance = np.sqrt(z[:, None, None] + y[None, :, None] + x[None, None, :])
        if kind == 0:
            profile = np.clip((1.0 - distance) * 4 + 0.5, 0, 1)
        elif kind == 1:
            profile = np.exp(-(((distance - 1.1) / 0.15) ** 2))
        else:
            profile = np.exp(-((distance / 0.35) ** 2))
        image[box] = np.maximum(image[box], np.float32(peak) * profile + np.float32(_BACKGROUND))
    np.clip(image, 0, 1, out=image)

    kind_of = np.dtype(dtype).newbyteorder("=")
    if kind_of.kind == "f":
        return image.astype(kind_of)
    image *= _FULL_SCALE.get(kind_of.name, _CAMERA)
    return image.astype(kind_of)
