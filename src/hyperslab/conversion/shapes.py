"""Shapes for what is written: chunks to look at, shards of them, and the regions read at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

__all__ = ["decodings", "region_shape", "regions", "shard_shape", "view_chunks"]

Shape = tuple[int, ...]

_PLANE = 256  # pixels each way in a chunk: a window of 1024 shows 16 of them
_CHUNK_NBYTES = 1 << 20
_SHARD_NBYTES = 64 << 20


def view_chunks(axes: str, shape: Shape, itemsize: int) -> Shape:
    """Return chunks that suit somebody who looks at planes.

    Parameters
    ----------
    axes
        One letter per axis.
    shape
        Of the finest level.
    itemsize
        Bytes of an element.

    Returns
    -------
    tuple of int
        256 pixels along Y and X; along Z a power of two, as many as stay within 1 MiB; 1 along
        all other axes.

    Examples
    --------
    >>> view_chunks("TCZYX", (60, 3, 48, 2048, 5888), 2)
    (1, 1, 8, 256, 256)
    >>> view_chunks("ZYX", (20, 70, 90), 1)
    (20, 70, 90)
    """
    chunk = [1] * len(shape)
    for axis, (letter, n) in enumerate(zip(axes, shape, strict=True)):
        if letter in "YX":
            chunk[axis] = max(1, min(n, _PLANE))
    if "Z" in axes:
        z = axes.index("Z")
        planes = max(1, _CHUNK_NBYTES // (math.prod(chunk) * itemsize))
        chunk[z] = max(1, min(shape[z], 1 << (planes.bit_length() - 1)))
    return tuple(chunk)


def shard_shape(
    axes: str, shape: Shape, chunks: Shape, itemsize: int, most_nbytes: int = _SHARD_NBYTES
) -> Shape:
    """Return how many elements go into one file: whole chunks, of one volume.

    Parameters
    ----------
    axes, shape, itemsize
        As for `view_chunks`; of this level.
    chunks
        What a shard is made of.
    most_nbytes
        Of a shard, decoded; 64 MiB at most. A single chunk may be larger.

    Returns
    -------
    tuple of int
        Chunks are added along Z until they reach through the volume, then along Y and X, towards a
        square.

    Examples
    --------
    >>> shard_shape("TCZYX", (60, 3, 48, 2048, 5888), (1, 1, 8, 256, 256), 2)
    (1, 1, 48, 512, 1024)
    """
    most = min(most_nbytes, _SHARD_NBYTES)
    counts = [1] * len(shape)
    needed = [max(1, -(-n // c)) for n, c in zip(shape, chunks, strict=True)]

    def nbytes() -> int:
        return math.prod(k * c for k, c in zip(counts, chunks, strict=True)) * itemsize

    growing = [axis for axis, letter in enumerate(axes) if letter in "ZYX"]
    while growing:
        extents = {axis: counts[axis] * chunks[axis] for axis in growing}
        z = [axis for axis in growing if axes[axis] == "Z"]
        axis = z[0] if z else min(reversed(growing), key=extents.__getitem__)
        before = counts[axis]
        counts[axis] = min(2 * before, needed[axis])
        if counts[axis] == before or nbytes() > most:
            counts[axis] = before
            growing.remove(axis)
    return tuple(k * c for k, c in zip(counts, chunks, strict=True))


def region_shape(
    shape: Shape, unit: Shape, source: Shape, itemsize: int, most_nbytes: int
) -> Shape:
    """Return what is read at once: whole units, which end where chunks of the source end.

    Parameters
    ----------
    shape
        Of the level.
    unit
        What is written as a whole: a shard.
    source
        Chunks of the source.
    itemsize
        Bytes of an element.
    most_nbytes
        Of a region. A single unit may be larger.

    Returns
    -------
    tuple of int
        Multiples of `unit`. Along an axis where chunks would straddle regions it is made larger, as
        far as memory goes; `decodings` says what that leaves.

    Examples
    --------
    >>> region_shape((1, 48, 1024), (1, 48, 256), (1, 16, 384), 2, 1 << 20)
    (1, 48, 768)
    >>> region_shape((1, 48, 1024), (1, 48, 256), (1, 16, 384), 2, 30_000)
    (1, 48, 256)
    """
    region = list(unit)

    def nbytes(box: Sequence[int]) -> int:
        return math.prod(min(b, n) for b, n in zip(box, shape, strict=True)) * itemsize

    # What straddles most is mended first.
    worst = sorted(
        range(len(shape)), key=lambda a: -decodings(shape[a : a + 1], unit[a : a + 1], (source[a],))
    )
    for axis in worst:
        if decodings((shape[axis],), (unit[axis],), (source[axis],)) == 1:
            continue
        whole = -(-shape[axis] // unit[axis]) * unit[axis]
        common = math.lcm(unit[axis], source[axis])
        for wanted in (common, *range(whole, unit[axis], -unit[axis])):
            larger = [*region[:axis], min(wanted, whole), *region[axis + 1 :]]
            if nbytes(larger) <= most_nbytes:
                region = larger
                break
    return tuple(region)


def decodings(shape: Shape, region: Shape, source: Shape) -> float:
    """Return how often a chunk of the source is decoded on average, if regions are read in turn.

    Examples
    --------
    >>> decodings((100,), (50,), (25,)), decodings((100,), (10,), (25,))
    (1.0, 3.0)
    """
    found = 1.0
    for n, step, chunk in zip(shape, region, source, strict=True):
        touched = sum(-(-min(a + step, n) // chunk) - a // chunk for a in range(0, n, step))
        found *= touched / max(1, -(-n // chunk))
    return found


def regions(shape: Shape, region: Shape) -> Iterator[tuple[slice, ...]]:
    """Yield the regions of a level, in row-major order; those at the end are cut to its shape."""
    starts = [range(0, n, step) for n, step in zip(shape, region, strict=True)]
    for place in itertools.product(*starts):
        yield tuple(
            slice(a, min(a + step, n)) for a, step, n in zip(place, region, shape, strict=True)
        )
