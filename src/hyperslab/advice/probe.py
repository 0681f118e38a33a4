"""Measurements on the file's own chunks, short ones: what predictions are made from.

h5py is imported here because it is what is measured.
"""

from __future__ import annotations

import contextlib
import itertools
import math
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
from hyperslab.errors import StaleIndexError
from hyperslab.index.session import session

__all__ = [
    "CodecTrial",
    "Line",
    "hdf5_version",
    "measure_line",
    "places",
    "time_h5py",
    "time_h5py_in_order",
    "time_hyperslab",
    "try_codecs",
]

Region = tuple[slice, ...]
Timer = Callable[[Sequence[Region]], list[float]]

_TRIAL_NBYTES = 64 << 20  # decoded by one trial request
# Trials of one size: no new one begins after that time, if there are so many.
_PATIENCE_S, _LEAST_TRIALS = 0.25, 3


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


def time_h5py(path: str, name: str, *, again: bool = False) -> Timer:
    """Return what times h5py at reading regions, each with an empty chunk cache.

    With `again`, what is timed is reading a region the second time: the chunks that h5py's cache
    has room for come from there.
    """

    def measure(regions: Sequence[Region]) -> list[float]:
        with session(path) as h5:

            def read(region: Region) -> float:
                dataset = h5[name]  # a new handle has a new cache
                dataset.shape  # noqa: B018 - opened for good
                if again:
                    dataset[region]
                start = time.perf_counter()
                dataset[region]
                return time.perf_counter() - start

            return _collect(read, regions)

    return measure


def time_h5py_in_order(path: str, name: str, slab: Region, region: tuple[int, ...]) -> float | None:
    """Return h5py's seconds a request, for all the requests of one slab, one after the other.

    None where not even some of them are read in the time there is.
    """
    steps = [
        range(part.start, part.stop - size + 1, size)
        for part, size in zip(slab, region, strict=True)
    ]
    n_requests = math.prod(map(len, steps))
    seconds: list[float] = []
    with session(path) as h5:
        dataset = h5[name]
        dataset.shape  # noqa: B018 - opened for good
        for starts in itertools.product(*steps):
            index = tuple(slice(i, i + size) for i, size in zip(starts, region, strict=True))
            start = time.perf_counter()
            try:
                dataset[index]
            except OSError:
                return None  # damaged there
            seconds.append(time.perf_counter() - start)
            if sum(seconds) > 3 * _PATIENCE_S:
                break
    if len(seconds) < min(3, n_requests):
        return None
    # The first one fills the cache; the others are alike.
    rest = statistics.fmean(seconds[1:]) if len(seconds) > 1 else 0.0
    return (seconds[0] + rest * (n_requests - 1)) / n_requests


def time_hyperslab(array: Array, *, threads: int | None = None) -> Timer:
    """Return what times us at reading regions, each with an empty cache of decoded chunks."""

    def read(region: Region) -> float:
        cache.forget()
        start = time.perf_counter()
        array.read(region, threads=threads)
        return time.perf_counter() - start

    return lambda regions: _collect(read, regions)


def _collect(read: Callable[[Region], float], regions: Sequence[Region]) -> list[float]:
    """Read regions until the time is over; those that are damaged are left out.

    Raises
    ------
    OSError
        Of the last one, if all are damaged.
    """
    found: list[float] = []
    trouble: OSError | None = None
    start = time.perf_counter()
    for region in regions:
        try:
            found.append(read(region))
        except StaleIndexError:
            raise
        except OSError as error:
            trouble = error
        if time.perf_counter() - start > _PATIENCE_S and len(found) >= _LEAST_TRIALS:
            break
    if not found and trouble is not None:
        raise trouble
    return found


def measure_line(
    timer: Timer,
    region: tuple[int, ...],
    shape: tuple[int, ...],
    chunks: tuple[int, ...] | None,
    *,
    itemsize: int,
    dice: random.Random,
    most_nbytes: int = _TRIAL_NBYTES,
    repeat: int = 5,
) -> Line:
    """Measure requests like `region` but smaller, and draw a line through them.

    Parameters
    ----------
    timer
        Of h5py, or of us.
    region, shape, chunks, itemsize
        Of the request and the dataset.
    dice
        Chooses places.
    most_nbytes
        Decoded by one trial, at most.
    repeat
        Trials of each, fewer if they take long.

    Notes
    -----
    The trials decode a quarter of the request's chunks and a quarter of that, but 8 and 2 at the
    least. A request without chunks is tried at its size and at a quarter: how long a strided
    element takes depends on how many of them there are, for they come through the processor's
    caches. A result too large for memory that was used before costs page faults, for every byte
    of it; such a request is taken to be a multiple of one trial, which is as large as allowed.
    """
    cell = (1,) * len(region) if chunks is None else chunks
    size = math.prod(-(-n // c) for n, c in zip(region, cell, strict=True))
    limit = max(1, most_nbytes // max(1, math.prod(cell) * itemsize))
    if chunks is None:
        wanted = [max(1, size // 4), size]
    else:
        wanted = [max(2, size // 16), max(8, size // 4)]
    if math.prod(region) * itemsize > most_nbytes:
        wanted = [limit]
    elif chunks is None and size > limit:
        wanted = [limit // 4, limit]
    with contextlib.suppress(OSError):  # damaged just there; the trials say whether all is
        timer(places(_shrunk(region, cell, 1), shape, chunks, n=1, dice=dice))  # warm up
    sizes: list[float] = []
    seconds: list[float] = []
    for most in wanted:
        trial = _shrunk(region, cell, max(1, min(most, limit)))
        sizes.append(math.prod(-(-n // c) for n, c in zip(trial, cell, strict=True)))
        regions = places(trial, shape, chunks, n=repeat, dice=dice)
        seconds.append(statistics.median(timer(regions)))
    if sizes[-1] <= sizes[0]:
        return Line(sizes[0], statistics.fmean(seconds), seconds[0] / sizes[0])
    slope = (seconds[1] - seconds[0]) / (sizes[1] - sizes[0])
    if slope <= 0:  # noise
        slope = seconds[1] / sizes[1]
    return Line(sizes[0], min(seconds), slope)


def _shrunk(region: tuple[int, ...], cell: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Return a part of a region that meets at most so many cells, cut at their borders."""
    counts = [-(-n // c) for n, c in zip(region, cell, strict=True)]
    while math.prod(counts) > most:
        axis = max(range(len(counts)), key=counts.__getitem__)
        counts[axis] = -(-counts[axis] // 2)
    return tuple(min(n, k * c) for n, k, c in zip(region, counts, cell, strict=True))


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


def try_codecs(
    sample: Sequence[NDArray[Any]], names: Sequence[str] = tuple(CODECS)
) -> list[CodecTrial]:
    """Encode and decode chunks by codecs that a repack can write.

    Parameters
    ----------
    sample
        Chunks, C-contiguous; a few MiB of them are enough.
    names
        Of the codecs; default: all.
    """
    decoded = sum(chunk.nbytes for chunk in sample)
    found = []
    for name in names:
        how = CODECS[name]
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
