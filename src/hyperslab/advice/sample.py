"""Some of the data: what codecs are tried on, and how fast it is decoded."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.access import Access
from hyperslab.advice import probe
from hyperslab.advice.kinds import Kind
from hyperslab.array import Array
from hyperslab.errors import DamagedFileError

__all__ = ["decode_rates", "take_sample"]

_SAMPLE_NBYTES = 8 << 20
_DECODED_NBYTES = 256 << 20  # for a sample, at most


def take_sample(array: Array, pattern: Access) -> NDArray[Any] | None:
    """Return some elements: requests of a pattern, some 8 MiB of them.

    Requests for one index along an axis are spread over it, for the middle of a volume is seldom
    like its edges; of windows, what lies in the middle. None if the data are damaged there.
    """
    shape, itemsize = array.shape, array.dtype.itemsize
    region = [max(1, n) for n in pattern.region(shape)]
    while math.prod(region) * itemsize > _SAMPLE_NBYTES and max(region) > 1:
        axis = max(range(len(region)), key=region.__getitem__)
        region[axis] = -(-region[axis] // 2)
    steps = [1] * len(region)
    spread = list(region)
    for axis, n in enumerate(shape):
        room = _SAMPLE_NBYTES // max(1, math.prod(region) * itemsize)
        if region[axis] > 1 or room < 2:
            continue
        region[axis] = min(n, room)
        if pattern.window[axis] == 1:
            steps[axis] = max(1, n // region[axis])
        spread[axis] = min(n, steps[axis] * region[axis])
    if math.prod(spread) * itemsize > _DECODED_NBYTES:
        steps = [1] * len(region)
    index = []
    for n, r, step in zip(shape, region, steps, strict=True):
        taken = (r - 1) * step + 1
        start = (n - taken) // 2
        index.append(slice(start, start + taken, step))
    try:
        return np.ascontiguousarray(array.read(tuple(index)))
    except DamagedFileError:
        return None  # the codecs are not tried


def decode_rates(array: Array, kind: Kind, dice: random.Random) -> dict[str, float]:
    """Measure how many decoded bytes a second come out of the example's chunks.

    Reads some 16 MiB of chunks side by side, by one thread and by all; from memory. Where that is
    damaged, single chunks.

    Raises
    ------
    DamagedFileError
        None of the chunks that were looked at can be read.
    """
    try:
        return _decode_rates(array, kind, dice, 16 << 20, 3)
    except DamagedFileError:
        return _decode_rates(array, kind, dice, 1, 24)


def _decode_rates(
    array: Array, kind: Kind, dice: random.Random, least_nbytes: int, n: int
) -> dict[str, float]:
    shape, itemsize = array.shape, array.dtype.itemsize
    cell = kind.facts.chunks or (1,) * len(shape)
    counts = [1] * len(cell)
    while math.prod(counts) * math.prod(cell) * itemsize < least_nbytes:
        growing = [a for a in range(len(cell)) if counts[a] * cell[a] < shape[a]]
        if not growing:
            break
        counts[min(growing, key=counts.__getitem__)] *= 2
    region = tuple(min(n, k * c) for n, k, c in zip(shape, counts, cell, strict=True))
    nbytes = math.prod(region) * itemsize
    where = probe.places(region, shape, kind.facts.chunks, n=n, dice=dice)
    found = {}
    for name, threads in (("one_thread", 1), ("all_threads", None)):
        seconds = probe.time_hyperslab(array, threads=threads)(where)
        found[name] = nbytes / max(min(seconds), 1e-9)
    return found
