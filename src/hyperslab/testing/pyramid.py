"""Resolution levels of a synthetic image: their sizes, stored and true, and their pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Size", "clip_chunks", "halve", "level_sizes", "stored_size"]

Size = tuple[int, int, int]  # (Z, Y, X)


def level_sizes(size: Size, levels: int | Sequence[Size] | None, chunks: Size) -> list[Size]:
    """True sizes, finest first: Y and X are halved, and Z once it exceeds half of either.

    `levels` is how many, or the sizes themselves; None goes on until a plane fits into one chunk.
    """
    if levels is not None and not isinstance(levels, int):
        return list(levels)
    sizes = [size]
    while len(sizes) < levels if levels is not None else _exceeds(sizes[-1], chunks):
        z, y, x = sizes[-1]
        half_z = z // 2 if 2 * z > min(y, x) else z
        sizes.append((max(1, half_z), max(1, y // 2), max(1, x // 2)))
    return sizes


def _exceeds(size: Size, chunks: Size) -> bool:
    return size[1] > chunks[1] or size[2] > chunks[2]


def stored_size(size: Size, chunks: Size, padded: bool) -> Size:
    """Size of the dataset: rounded up to whole chunks if `padded`."""
    if not padded:
        return size
    z, y, x = (-(-n // chunk) * chunk for n, chunk in zip(size, chunks, strict=True))
    return z, y, x


def clip_chunks(chunks: Size, stored: Size) -> Size:
    """Chunk shape that fits into a dataset of the size `stored`."""
    z, y, x = (min(pair) for pair in zip(chunks, stored, strict=True))
    return z, y, x


def halve(volume: npt.NDArray[Any], size: Size) -> npt.NDArray[Any]:
    """Bring a volume to the next level's size: means of two neighbours where it halves.

    An odd last plane is dropped. An axis that goes to another size than half keeps every n-th.
    """
    mean = volume.astype(np.float64)
    for axis, target in enumerate(size):
        if target == mean.shape[axis]:
            continue
        if target != max(1, mean.shape[axis] // 2) or mean.shape[axis] < 2:
            mean = np.take(mean, np.arange(target) * mean.shape[axis] // target, axis)
            continue
        even, odd = (np.take(mean, np.arange(target) * 2 + i, axis) for i in (0, 1))
        mean = (even + odd) / 2
    halved: npt.NDArray[Any] = mean.astype(volume.dtype)
    return halved
