"""`advise`: look at a file, measure a little, predict, and say what to do."""

from __future__ import annotations

import math
import os
import random
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.access import Access, chunk_shape_for, parse_access
from hyperslab.advice import probe
from hyperslab.advice.cost import Cost, h5py_cache_nbytes, request_cost
from hyperslab.advice.findings import file_system, find
from hyperslab.advice.kinds import Kind, default_patterns, find_kinds
from hyperslab.advice.records import Advice, KindAdvice, PatternAdvice, RepackOption
from hyperslab.advice.words import verdict
from hyperslab.array import Array
from hyperslab.codecs.encode import CODECS
from hyperslab.engine.limits import limits
from hyperslab.errors import HyperslabError, MissingObjectError
from hyperslab.file import open_file
from hyperslab.index.session import session
from hyperslab.index.tree import walk_file

__all__ = ["advise"]

_MOST_KINDS = 8  # that are measured
_MEASURED_NBYTES = 128 << 20  # decoded by a request that is measured, at most
_SAMPLE_NBYTES = 4 << 20
# What a library call costs h5py besides decoding, and zlib's speed beside libdeflate's
# (measured; docs/explanation/cost.md).
_H5PY_CALL_S, _H5PY_CHUNK_S, _ZLIB = 100e-6, 10e-6, 0.55


def advise(
    path: str | os.PathLike[str],
    *,
    access: str | Sequence[str] | None = None,
    datasets: str | None = None,
    measure: bool = True,
    seed: int = 0,
) -> Advice:
    """Say in numbers how fast a file can be read, and what would make it faster.

    Parameters
    ----------
    path
        Of the HDF5 file.
    access
        How it is going to be read, see `hyperslab.access.parse_access`; the first pattern decides
        the verdict. Default: by the slice, by the patch, and whole, as suits the shapes.
    datasets
        Glob of the paths to look at, such as "/MR/*". Default: all that hold numbers along two
        axes or more.
    measure
        Time requests as well as predicting them. What predictions are made from is measured in
        any case.
    seed
        Chooses the places that are looked at.

    Returns
    -------
    Advice

    Raises
    ------
    MissingFileError, NotHDF5Error
        As `hyperslab.open`.
    MissingObjectError
        No dataset matches.
    SelectionError
        A pattern makes no sense.

    Notes
    -----
    Takes a second or two for each kind of datasets, whatever the size of the file; reads some
    hundreds of MiB at most. Times are of this machine, as busy as it is, with what was read in the
    page cache. How predictions are made: docs/explanation/cost.md.
    """
    file = open_file(path)
    with session(file.path) as h5:
        entries = list(walk_file(h5))
    kinds = find_kinds(entries, only=datasets)
    if not kinds:
        raise MissingObjectError(
            f"{file.path}: no dataset of numbers "
            + (f"matches {datasets!r}." if datasets else "with two axes or more and 64 KiB.")
            + " `hyperslab info` lists what there is.",
            file=file.path,
        )
    texts = [access] if isinstance(access, str) else list(access or [])
    dice = random.Random(seed)
    found = [
        _advise_kind(file.path, kind, texts, dice=dice, measure=measure)
        for kind in kinds[:_MOST_KINDS]
    ]
    words, command, slow = verdict(file.path, found[0])
    return Advice(
        file=file.path,
        nbytes=os.path.getsize(file.path),
        kinds=tuple(found),
        verdict=words,
        command=command,
        slow=slow,
    )


def _advise_kind(
    path: str, kind: Kind, texts: Sequence[str], *, dice: random.Random, measure: bool
) -> KindAdvice:
    array = open_file(path)[kind.example]
    if not isinstance(array, Array):
        raise TypeError(f"{kind.example} is no dataset")
    shape, itemsize = array.shape, array.dtype.itemsize
    patterns = [parse_access(text, len(shape)) for text in (texts or default_patterns(shape))]
    ratio = kind.decoded_nbytes / kind.stored_nbytes if kind.stored_nbytes else 1.0
    first = patterns[0]
    rates = _rates(array, kind, dice)
    advice = []
    for pattern in patterns:
        cost = request_cost(pattern, shape, kind.facts.chunks, itemsize=itemsize, ratio=ratio)
        advice.append(_pattern(path, array, kind, pattern, cost, dice=dice, measure=measure))
    sample = _sample(array, first)
    return KindAdvice(
        datasets=kind.paths,
        example=kind.example,
        shape=shape,
        dtype=kind.facts.dtype,
        storage=kind.facts.storage,
        chunks=kind.facts.chunks,
        filters=tuple(entry.name for entry in kind.facts.filters),
        stored_nbytes=kind.stored_nbytes,
        decoded_nbytes=kind.decoded_nbytes,
        patterns=tuple(advice),
        options=tuple(_options(kind, first, sample, rates, itemsize)),
        findings=tuple(find(kind, sample, system=file_system(path))),
        rates=rates,
    )


def _pattern(
    path: str,
    array: Array,
    kind: Kind,
    pattern: Access,
    cost: Cost,
    *,
    dice: random.Random,
    measure: bool,
) -> PatternAdvice:
    shape, chunks, itemsize = array.shape, kind.facts.chunks, array.dtype.itemsize
    timers = {
        "h5py": (probe.time_h5py(path, kind.example), 2, 8),
        "hyperslab": (probe.time_hyperslab(array), 4 * limits.threads, 24 * limits.threads),
    }
    size = cost.chunks_touched if chunks is not None else float(math.prod(cost.region))
    predicted: dict[str, float] = {}
    for name, (timer, least, most) in timers.items():
        line = probe.measure_line(
            timer, cost.region, shape, chunks, itemsize=itemsize, least=least, most=most, dice=dice
        )
        predicted[name] = line.at(size)
    predicted["hyperslab_in_order"] = predicted["hyperslab"] / cost.requests_per_slab
    measured = None
    if measure and cost.decoded_nbytes <= _MEASURED_NBYTES:
        regions = probe.places(cost.region, shape, None, n=5, dice=dice)
        measured = {name: statistics.median(timer(regions)) for name, (timer, *_) in timers.items()}
    return PatternAdvice(
        access=pattern.text,
        region=cost.region,
        chunks_touched=cost.chunks_touched,
        read_nbytes=cost.read_nbytes,
        decoded_nbytes=cost.decoded_nbytes,
        used_nbytes=cost.used_nbytes,
        amplification=cost.decoded_nbytes / max(1, cost.used_nbytes),
        slab_nbytes=cost.slab_nbytes,
        requests_per_slab=cost.requests_per_slab,
        fits_h5py_cache=cost.slab_nbytes <= h5py_cache_nbytes(probe.hdf5_version()),
        fits_our_cache=cost.slab_nbytes <= limits.cache_nbytes,
        predicted_s=predicted,
        measured_s=measured,
    )


def _rates(array: Array, kind: Kind, dice: random.Random) -> dict[str, float | bool | None]:
    """Measure how fast the example's chunks are decoded, and the disk."""
    shape, itemsize = array.shape, array.dtype.itemsize
    cell = kind.facts.chunks or shape
    counts = [1] * len(cell)
    # As many chunks as make up some 16 MiB, side by side.
    while math.prod(counts) * math.prod(cell) * itemsize < 16 << 20:
        growing = [a for a in range(len(cell)) if counts[a] * cell[a] < shape[a]]
        if not growing:
            break
        axis = min(growing, key=counts.__getitem__)
        counts[axis] += 1
    region = tuple(min(n, k * c) for n, k, c in zip(shape, counts, cell, strict=True))
    nbytes = math.prod(region) * itemsize
    while nbytes > 256 << 20 and max(region) > 1:
        axis = max(range(len(region)), key=region.__getitem__)
        region = tuple(-(-n // 2) if a == axis else n for a, n in enumerate(region))
        nbytes = math.prod(region) * itemsize
    timer = probe.time_hyperslab(array)
    seconds = min(timer(probe.places(region, shape, kind.facts.chunks, n=3, dice=dice)))
    rate, cold = probe.disk_rate(array.file, 0, os.path.getsize(array.file))
    return {"decode": nbytes / seconds, "disk": rate, "disk_cold": cold}


def _sample(array: Array, pattern: Access) -> NDArray[Any] | None:
    """Return some elements: of a request's shape, cut to some 4 MiB, from the middle."""
    region = [max(1, n) for n in pattern.region(array.shape)]
    itemsize = array.dtype.itemsize
    while math.prod(region) * itemsize > _SAMPLE_NBYTES and max(region) > 1:
        axis = max(range(len(region)), key=region.__getitem__)
        region[axis] = -(-region[axis] // 2)
    # More of a small request, along the axes that it takes one index of.
    for axis, n in enumerate(array.shape):
        room = _SAMPLE_NBYTES // max(1, math.prod(region) * itemsize)
        if region[axis] == 1 and room > 1:
            region[axis] = min(n, room)
    index = tuple(
        slice((n - r) // 2, (n - r) // 2 + r) for n, r in zip(array.shape, region, strict=True)
    )
    try:
        return array.read(index)
    except HyperslabError:
        return None  # damaged there: the codecs are not tried


def _options(
    kind: Kind,
    pattern: Access,
    sample: NDArray[Any] | None,
    rates: dict[str, float | bool | None],
    itemsize: int,
) -> list[RepackOption]:
    """Predict what requests would cost after a repack by every codec, quickest for us first."""
    if sample is None or not sample.size or sample.dtype.kind not in "biuf":
        return []
    shape = kind.shape
    chunks = chunk_shape_for(pattern, shape, itemsize)
    pieces = _pieces(sample, chunks)
    if not pieces:
        return []
    cost = request_cost(pattern, shape, chunks, itemsize=itemsize)
    threads = max(1.0, min(limits.threads, cost.chunks_touched))
    decode = float(rates["decode"] or 1.0)
    found = []
    for trial in probe.try_codecs(pieces):
        ours = 60e-6 + cost.decoded_nbytes / trial.decode_bytes_per_s / threads
        slower = _ZLIB if trial.codec == "gzip" else 1.0
        theirs = (
            _H5PY_CALL_S
            + cost.chunks_touched * _H5PY_CHUNK_S
            + cost.decoded_nbytes / (trial.decode_bytes_per_s * slower)
        )
        repack_s = kind.decoded_nbytes * (
            1 / decode + 1 / (trial.encode_bytes_per_s * limits.threads)
        )
        found.append(
            RepackOption(
                codec=trial.codec,
                chunks=chunks,
                ratio=trial.ratio,
                stored_nbytes=int(kind.decoded_nbytes / trial.ratio),
                repack_s=repack_s,
                predicted_s={"h5py": theirs, "hyperslab": ours, "hyperslab_in_order": ours},
                needs_plugin=CODECS[trial.codec].needs_plugin,
            )
        )
    return sorted(found, key=lambda option: option.predicted_s["hyperslab"])


def _pieces(sample: NDArray[Any], chunks: tuple[int, ...]) -> list[NDArray[Any]]:
    """Cut whole chunks out of a sample; where it is smaller than one, it is the chunk."""
    cell = tuple(min(n, c) for n, c in zip(sample.shape, chunks, strict=True))
    counts = tuple(n // c for n, c in zip(sample.shape, cell, strict=True))
    pieces: list[NDArray[Any]] = []
    for position in np.ndindex(*counts):
        index = tuple(slice(i * c, (i + 1) * c) for i, c in zip(position, cell, strict=True))
        pieces.append(np.ascontiguousarray(sample[index]))
        if len(pieces) == 16:
            break
    return pieces
