"""Measurements on the file's own chunks, short ones: what predictions are made from.

h5py is imported here because it is what is measured.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.array import Array
from hyperslab.codecs.encode import CODECS, encode
from hyperslab.codecs.pipeline import Pipeline
from hyperslab.engine import cache
from hyperslab.index.session import session

__all__ = [
    "CodecTrial",
    "Line",
    "disk_rate",
    "hdf5_version",
    "measure_line",
    "places",
    "time_h5py",
    "time_hyperslab",
    "try_codecs",
]

Region = tuple[slice, ...]
Timer = Callable[[Sequence[Region]], list[float]]

_MOST_NBYTES = 64 << 20  # decoded by one trial request


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds by the size of a request, a straight line through two measurements.

    Attributes
    ----------
    size, seconds
        Of the smaller one; sizes are chunks, or elements where there are no chunks.
    per_unit
        Seconds for each one more.
    """

    size: float
    seconds: float
    per_unit: float

    def at(self, size: float) -> float:
        """Return the seconds of a request of that size."""
        return max(self.seconds * min(1.0, size / self.size), 0.0) + self.per_unit * max(
            0.0, size - self.size
        )


def hdf5_version() -> tuple[int, ...]:
    """Return the version of the HDF5 library that h5py uses."""
    import h5py

    return tuple(int(n) for n in h5py.version.hdf5_version_tuple)


def places(
    region: tuple[int, ...],
    shape: tuple[int, ...],
    chunks: tuple[int, ...] | None,
    *,
    n: int,
    dice: random.Random,
) -> list[Region]:
    """Draw `n` regions of that shape, at random places; whole chunks begin at chunks' borders."""
    found: list[Region] = []
    for _ in range(n):
        index = []
        for axis, (size, extent) in enumerate(zip(region, shape, strict=True)):
            step = 1 if chunks is None or size < chunks[axis] else chunks[axis]
            start = dice.randrange(max(1, (extent - size) // step + 1)) * step
            index.append(slice(start, start + size))
        found.append(tuple(index))
    return found


def time_h5py(path: str, name: str) -> Timer:
    """Return what times h5py at reading regions, each with an empty chunk cache."""

    def measure(regions: Sequence[Region]) -> list[float]:
        found = []
        with session(path) as h5:
            for region in regions:
                dataset = h5[name]  # a new handle has a new cache
                dataset.shape  # noqa: B018 - opened for good
                start = time.perf_counter()
                dataset[region]
                found.append(time.perf_counter() - start)
                del dataset
        return found

    return measure


def time_hyperslab(array: Array) -> Timer:
    """Return what times us at reading regions, each with an empty cache of decoded chunks."""

    def measure(regions: Sequence[Region]) -> list[float]:
        found = []
        for region in regions:
            cache.forget()
            start = time.perf_counter()
            array.read(region)
            found.append(time.perf_counter() - start)
        return found

    return measure


def measure_line(
    timer: Timer,
    region: tuple[int, ...],
    shape: tuple[int, ...],
    chunks: tuple[int, ...] | None,
    *,
    itemsize: int,
    least: int,
    most: int,
    dice: random.Random,
    repeat: int = 5,
) -> Line:
    """Measure requests like `region` but smaller, and draw a line through them.

    Parameters
    ----------
    timer
        Of h5py, or of us.
    region, shape, chunks, itemsize
        Of the request and the dataset.
    least, most
        Sizes of the two trial requests, in chunks. Of a dataset without chunks, a quarter of the
        elements and all of them, or less of a request above 16 MiB.
    dice
        Chooses places.
    repeat
        Trials of each.
    """
    cell = (1,) * len(region) if chunks is None else chunks
    if chunks is None:
        # How long a strided element takes depends on how many of them there are, for they come
        # through the processor's caches: what is tried must not be much smaller.
        whole = math.prod(region)
        shares = (4, 1) if whole * itemsize <= _MOST_NBYTES // 4 else (16, 4)
        least, most = (max(1, whole // share) for share in shares)
    sizes: list[float] = []
    seconds: list[float] = []
    timer(places(_shrunk(region, cell, least, itemsize), shape, chunks, n=1, dice=dice))  # warm up
    for wanted in (least, most):
        trial = _shrunk(region, cell, wanted, itemsize)
        regions = places(trial, shape, chunks, n=repeat, dice=dice)
        sizes.append(math.prod(-(-n // c) for n, c in zip(trial, cell, strict=True)))
        seconds.append(statistics.median(timer(regions)))
    if sizes[1] <= sizes[0]:
        return Line(sizes[0], seconds[0], seconds[0] / sizes[0])
    slope = (seconds[1] - seconds[0]) / (sizes[1] - sizes[0])
    if slope <= 0:  # noise
        slope = seconds[1] / sizes[1]
    return Line(sizes[0], min(seconds), slope)


def _shrunk(
    region: tuple[int, ...], cell: tuple[int, ...], most: int, itemsize: int
) -> tuple[int, ...]:
    """Return a part of a region that meets at most so many cells, cut at their borders."""
    counts = [-(-n // c) for n, c in zip(region, cell, strict=True)]
    nbytes = math.prod(cell) * itemsize
    most = max(1, min(most, _MOST_NBYTES // max(1, nbytes)))
    while math.prod(counts) > most:
        axis = max(range(len(counts)), key=counts.__getitem__)
        counts[axis] = -(-counts[axis] // 2)
    return tuple(min(n, k * c) for n, k, c in zip(region, counts, cell, strict=True))


def disk_rate(path: str, offset: int, nbytes: int) -> tuple[float, bool]:
    """Read a stretch of the file; return bytes a second, and whether its pages were dropped first.

    Where a system lets a process drop the pages of a file, it is asked to. It may keep some: on
    Linux those that a process has mapped.
    """
    nbytes = min(nbytes, 32 << 20)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        cold = hasattr(os, "posix_fadvise")
        if cold:
            os.fsync(descriptor)  # what is not on the disk yet cannot be dropped
            os.posix_fadvise(descriptor, offset, nbytes, os.POSIX_FADV_DONTNEED)
        buffer = bytearray(min(nbytes, 1 << 20) or 1)
        start, done = time.perf_counter(), 0
        while done < nbytes:
            got = os.preadv(descriptor, [buffer], offset + done)
            if not got:
                break
            done += got
        seconds = time.perf_counter() - start
    finally:
        os.close(descriptor)
    return (done / seconds if seconds else 0.0), cold


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecTrial:
    """What a codec makes of a sample.

    Attributes
    ----------
    codec
        Its name.
    ratio
        Decoded by stored bytes.
    encode_bytes_per_s, decode_bytes_per_s
        Of decoded bytes, one thread.
    """

    codec: str
    ratio: float
    encode_bytes_per_s: float
    decode_bytes_per_s: float


def try_codecs(sample: Sequence[NDArray[Any]]) -> list[CodecTrial]:
    """Encode and decode chunks by every codec that a repack can write.

    Parameters
    ----------
    sample
        Chunks, C-contiguous; a few MiB of them are enough.
    """
    decoded = sum(chunk.nbytes for chunk in sample)
    found = []
    for name, how in CODECS.items():
        start = time.perf_counter()
        stored = [encode(chunk, how) for chunk in sample]
        encode_s = time.perf_counter() - start
        out = np.empty(sample[0].nbytes, np.uint8)
        pipeline = Pipeline(
            how.pipeline(sample[0].itemsize),
            itemsize=sample[0].itemsize,
            decoded_nbytes=sample[0].nbytes,
        )
        pipeline.decode(stored[0], 0, out)
        start = time.perf_counter()
        for chunk in stored:
            buffer, planes = pipeline.decode(chunk, 0, out)
            if buffer is not out:
                out[...] = np.frombuffer(buffer, np.uint8)
            if planes:
                np.ascontiguousarray(out.reshape(sample[0].itemsize, -1).T)
        decode_s = time.perf_counter() - start
        found.append(
            CodecTrial(
                codec=name,
                ratio=decoded / max(1, sum(map(len, stored))),
                encode_bytes_per_s=decoded / max(encode_s, 1e-9),
                decode_bytes_per_s=decoded / max(decode_s, 1e-9),
            )
        )
    return found
