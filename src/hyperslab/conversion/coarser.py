"""A level at half the resolution, made of the shards of the finer one that has been written."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.conversion.plan import LevelPlan
from hyperslab.conversion.shapes import regions
from hyperslab.conversion.shard import read_index
from hyperslab.pyramid.mean import every_second, halve

__all__ = ["fill_coarser", "halved_axes"]

Shape = tuple[int, ...]
Region = tuple[slice, ...]


def halved_axes(finer: LevelPlan, level: LevelPlan) -> Shape:
    """Return the axes along which `level` has half the extent of `finer`."""
    shapes = zip(finer.shape, level.shape, strict=True)
    return tuple(axis for axis, (a, b) in enumerate(shapes) if a != b)


def fill_coarser(
    out: NDArray[Any],
    region: Region,
    folder: Path,
    finer: LevelPlan,
    halved: Shape,
    *,
    nearest: bool,
    decode: Callable[[Any], Any],
    pool: Executor,
) -> None:
    """Fill `out` with a region of a level.

    Parameters
    ----------
    out
        Of the region's shape.
    region
        Of the coarser level.
    folder, finer
        The finer level: the zarr array, and its plan.
    halved
        Axes that are halved.
    nearest
        Take every second element, for labels; otherwise means of pairs.
    decode
        Gives a chunk's bytes back.
    pool
        To work in.

    Notes
    -----
    In memory at once are a chunk a thread, or two along an axis of which it has an odd number, and
    some times that for the sums.
    """
    steps = tuple(2 if axis in halved else 1 for axis in range(out.ndim))
    piece = tuple(
        c // step if c % step == 0 else c for c, step in zip(finer.chunks, steps, strict=True)
    )
    indices: dict[Shape, NDArray[np.uint64] | None] = {}

    def one(part: Region) -> None:
        there = tuple(
            slice((r.start + p.start) * step, min((r.start + p.stop) * step, n))
            for r, p, step, n in zip(region, part, steps, finer.shape, strict=True)
        )
        values = _read(there, folder, finer, out.dtype, decode, indices)
        out[part] = every_second(values, halved) if nearest else halve(values, halved)

    for done in pool.map(one, regions(out.shape, piece)):
        del done  # an error is raised here


def _read(
    box: Region,
    folder: Path,
    level: LevelPlan,
    dtype: np.dtype,
    decode: Callable[[Any], Any],
    indices: dict[Shape, NDArray[np.uint64] | None],
) -> NDArray[Any]:
    """Read a box of a level out of its shards."""
    out = np.zeros([part.stop - part.start for part in box], dtype)
    counts = tuple(s // c for s, c in zip(level.shards, level.chunks, strict=True))
    touched = [
        range(part.start // c, -(-part.stop // c))
        for part, c in zip(box, level.chunks, strict=True)
    ]
    for chunk in itertools.product(*touched):
        shard = tuple(i // k for i, k in zip(chunk, counts, strict=True))
        path = folder.joinpath("c", *map(str, shard))
        if shard not in indices:
            indices[shard] = read_index(path, counts)
        index = indices[shard]
        if index is None:
            continue
        byte_offset, nbytes = map(
            int, index[tuple(i % k for i, k in zip(chunk, counts, strict=True))]
        )
        if nbytes == 2**64 - 1:
            continue
        with open(path, "rb") as stream:
            stream.seek(byte_offset)
            data = stream.read(nbytes)
        values = np.frombuffer(decode(data), dtype).reshape(level.chunks)
        origin = [i * c for i, c in zip(chunk, level.chunks, strict=True)]
        ends = [
            (max(part.start, o), min(part.stop, o + c))
            for part, o, c in zip(box, origin, level.chunks, strict=True)
        ]
        to = tuple(
            slice(a - part.start, b - part.start) for (a, b), part in zip(ends, box, strict=True)
        )
        source = tuple(slice(a - o, b - o) for (a, b), o in zip(ends, origin, strict=True))
        out[to] = values[source]
    return out
