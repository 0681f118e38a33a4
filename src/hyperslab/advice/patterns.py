"""What requests of one access pattern cost: counted, predicted, measured."""

from __future__ import annotations

import contextlib
import math
import random
import statistics
from dataclasses import dataclass

from hyperslab.access import Access
from hyperslab.advice import probe
from hyperslab.advice.cost import Cost, request_cost
from hyperslab.advice.kinds import Kind
from hyperslab.advice.records import Machine, PatternAdvice
from hyperslab.array import Array

__all__ = ["Requests", "advise_pattern"]

_MEASURED_NBYTES = 128 << 20  # decoded by a request that is measured, at most
_N_MEASURED, _N_VARIED = 5, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What requests are made to.

    Attributes
    ----------
    path
        Of the file.
    array, kind
        The example of a kind, and the kind.
    machine
        Whose caches count.
    by_h5py
        Whether h5py can read it.
    """

    path: str
    array: Array
    kind: Kind
    machine: Machine
    by_h5py: bool

    def line(
        self,
        timer: probe.Timer,
        region: tuple[int, ...],
        dice: random.Random,
        most_nbytes: int = 64 << 20,
    ) -> float:
        """Return the seconds of a request for a region, from smaller ones.

        The average over its places: of chunks that it need not use whole, or meets in part.
        """
        return self.at(timer, region, self.size(region), dice, most_nbytes)

    def at(
        self,
        timer: probe.Timer,
        region: tuple[int, ...],
        size: float,
        dice: random.Random,
        most_nbytes: int = 64 << 20,
    ) -> float:
        """Return the seconds of a request that meets `size` chunks, from smaller ones."""
        array = self.array
        return probe.measure_line(
            timer,
            region,
            array.shape,
            self.kind.facts.chunks,
            itemsize=array.dtype.itemsize,
            dice=dice,
            most_nbytes=most_nbytes,
        ).at(size)

    def size(self, region: tuple[int, ...]) -> float:
        """Return how many chunks a region meets at the best; elements where there are none."""
        cell = self.kind.facts.chunks or (1,) * len(region)
        return float(math.prod(-(-n // c) for n, c in zip(region, cell, strict=True)))


def advise_pattern(
    requests: Requests,
    pattern: Access,
    text: str,
    guessed: bool,
    *,
    dice: random.Random,
    measure: bool,
) -> PatternAdvice:
    """Count, predict and, with `measure`, measure the requests of a pattern.

    Parameters
    ----------
    requests
        What is read.
    pattern, text, guessed
        The pattern for the stored dataset; as it was given; and whether somebody gave it.
    """
    machine, kind = requests.machine, requests.kind
    cost = request_cost(
        pattern,
        requests.array.shape,
        kind.facts.chunks,
        itemsize=requests.array.dtype.itemsize,
        ratio=kind.ratio,
    )
    fits = cost.slab_nbytes <= machine.h5py_cache_nbytes
    cold = machine.disk_cold and machine.disk_bytes_per_s
    return PatternAdvice(
        access=text,
        as_stored=pattern.text,
        guessed=guessed,
        region=cost.region,
        chunks_touched=cost.chunks_touched,
        read_nbytes=cost.read_nbytes,
        decoded_nbytes=cost.decoded_nbytes,
        used_nbytes=cost.used_nbytes,
        amplification=cost.decoded_nbytes / max(1, cost.used_nbytes),
        read_amplification=cost.read_nbytes / max(1, cost.used_nbytes),
        slab_region=cost.slab_region,
        slab_nbytes=cost.slab_nbytes,
        requests_per_slab=cost.requests_per_slab,
        fits_h5py_cache=fits,
        fits_our_cache=cost.slab_nbytes <= machine.cache_nbytes,
        predicted_s=_predict(requests, cost, fits, dice),
        measured_s=_measure(requests, cost, dice) if measure else None,
        disk_s=cost.read_nbytes / machine.disk_bytes_per_s if cold else None,
    )


def _predict(
    requests: Requests, cost: Cost, fits: bool, dice: random.Random
) -> dict[str, float | None]:
    chunked = requests.kind.facts.chunks is not None
    size = cost.chunks_touched if chunked else requests.size(cost.region)
    several = cost.requests_per_slab > 1
    ours = probe.time_hyperslab(requests.array)
    found: dict[str, float | None] = {"h5py": None, "hyperslab": None, "h5py_in_order": None}
    found["hyperslab"] = requests.at(ours, cost.region, size, dice)
    found["hyperslab_in_order"] = (
        requests.line(ours, cost.slab_region, dice) / cost.requests_per_slab
        if several
        else found["hyperslab"]
    )
    if requests.by_h5py:
        with contextlib.suppress(OSError):  # not what it can read; its figures stay None
            found |= _predict_h5py(requests, cost, fits, size, dice)
    return found


def _predict_h5py(
    requests: Requests, cost: Cost, fits: bool, size: float, dice: random.Random
) -> dict[str, float | None]:
    name = requests.kind.example
    first = requests.at(probe.time_h5py(requests.path, name), cost.region, size, dice)
    in_order = first
    if cost.requests_per_slab > 1 and fits:
        # The first request of a slab decodes its chunks, the others find them in the cache.
        again = probe.time_h5py(requests.path, name, again=True)
        hit = requests.line(again, cost.region, dice, requests.machine.h5py_cache_nbytes // 2)
        in_order = (first + (cost.requests_per_slab - 1) * hit) / cost.requests_per_slab
    return {"h5py": first, "h5py_in_order": in_order}


def _measure(requests: Requests, cost: Cost, dice: random.Random) -> dict[str, float] | None:
    if cost.decoded_nbytes > _MEASURED_NBYTES:
        return None
    array, name = requests.array, requests.kind.example
    # Requests that meet more chunks at one place than at another: what is predicted is the mean.
    varied = cost.chunks_touched % 1 > 0
    middle = statistics.fmean if varied else statistics.median
    n = _N_VARIED if varied else _N_MEASURED
    regions = probe.places(cost.region, array.shape, None, n=n, dice=dice)
    ours = probe.time_hyperslab(array)
    found = {"hyperslab": middle(ours(regions))}
    by_h5py = requests.by_h5py
    if by_h5py:
        try:
            found["h5py"] = middle(probe.time_h5py(requests.path, name)(regions))
        except OSError:
            by_h5py = False
    if cost.requests_per_slab <= 1:
        found |= {f"{by}_in_order": seconds for by, seconds in found.items()}
    elif cost.slab_nbytes <= _MEASURED_NBYTES:
        slabs = probe.places(
            cost.slab_region, array.shape, requests.kind.facts.chunks, n=_N_MEASURED, dice=dice
        )
        found["hyperslab_in_order"] = statistics.median(ours(slabs)) / cost.requests_per_slab
        if by_h5py:
            seconds = probe.time_h5py_in_order(requests.path, name, slabs[0], cost.region)
            if seconds is not None:
                found["h5py_in_order"] = seconds
    return found
