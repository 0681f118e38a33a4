"""The works that are measured, each by a function that does it both ways in turn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import hyperslab as hs
from benchmarks.data import N_CASES, make_cohort_file, make_volume_file
from benchmarks.paired import time_in_turn
from benchmarks.row import Row
from hyperslab.engine import cache

__all__ = ["WORKS", "measure"]

# Dataset: work, promised and hoped-for ratio to h5py.
_VOLUMES = {
    "gzip_2MB": ("whole uint16 volume, 2 MB gzip chunks", 3.0, 3.6),
    "shuffle_gzip_256KB": ("whole uint16 volume, 256 KB shuffle+gzip chunks", 2.8, 3.4),
    "default_gzip": ("whole float32 volume, h5py's default gzip chunks", 2.4, 3.2),
}
_BATCHES = {
    "gzip": ("32 random slices [..., k] of 16 datasets, default gzip", 3.0, 4.5),
    "contiguous": ("32 random slices [..., k] of 16 datasets, contiguous", 8.0, 15.0),
    "slice_first": ("32 random slices [k] of 16 datasets, chunks (1, H, W)", 5.0, 8.0),
}

#: Name of every comparison, with what it does.
WORKS: dict[str, str] = {
    **{f"volume/{name}": work for name, (work, _, _) in _VOLUMES.items()},
    **{f"hidefix/{name}": work for name, (work, _, _) in _VOLUMES.items()},
    **{f"batch/{name}": work for name, (work, _, _) in _BATCHES.items()},
}


def measure(name: str, folder: Path, n: int) -> Row | None:
    """Measure one of `WORKS` with `n` pairs, on the files in `folder`.

    Returns
    -------
    Row or None
        None where the peer is not installed.
    """
    kind, dataset = name.split("/")
    if kind == "volume":
        return _volume(make_volume_file(folder), dataset, n)
    if kind == "hidefix":
        return _volume_by_hidefix(make_volume_file(folder), dataset, n)
    return _batch(make_cohort_file(folder), dataset, n)


def _volume(path: Path, name: str, n: int) -> Row:
    work, floor, aim = _VOLUMES[name]
    array = hs.open(path)[name]
    with h5py.File(path, "r") as h5:
        dataset = h5[name]
        theirs, ours = np.zeros_like(dataset), np.zeros_like(dataset)
        paired = time_in_turn(
            lambda i: dataset.read_direct(theirs),
            lambda i: array.read(out=ours),
            before=cache.forget,
            n=n,
        )
    _demand_equal(theirs, ours, work)
    return Row(work=work, peer="h5py", floor=floor, aim=aim, result=paired)


def _volume_by_hidefix(path: Path, name: str, n: int) -> Row | None:
    try:
        import hidefix
    except ImportError:
        return None
    work = _VOLUMES[name][0]
    peer, array = hidefix.Index(str(path)).dataset(name), hs.open(path)[name]
    everything = (slice(None), slice(None), slice(None))  # it knows no ellipsis
    _demand_equal(peer[everything], array[...], work)
    # hidefix returns new memory, so that we do, too.
    paired = time_in_turn(
        lambda i: peer[everything], lambda i: array[...], before=cache.forget, n=n
    )
    return Row(work=work, peer="hidefix", floor=0.95, aim=1.3, result=paired)


def _batch(path: Path, name: str, n: int) -> Row:
    work, floor, aim = _BATCHES[name]
    draws = np.random.default_rng(2).integers((N_CASES, 180), size=(n + 1, 32, 2))
    at: Callable[[int], Any] = (
        (lambda k: np.s_[k]) if name == "slice_first" else (lambda k: np.s_[..., k])
    )
    ours = np.zeros((32, 256, 256), np.float32)
    theirs = np.zeros_like(ours)
    opened = hs.open(path)
    arrays = [opened[f"{name}/p{i:02d}"] for i in range(N_CASES)]
    hs.read_many([(array, np.s_[0, 0, 0]) for array in arrays])  # index before timing
    with h5py.File(path, "r") as h5:
        datasets = [h5[f"{name}/p{i:02d}"] for i in range(N_CASES)]

        def by_h5py(i: int) -> None:
            for j, (case, k) in enumerate(draws[i].tolist()):
                theirs[j] = datasets[case][at(k)]

        def by_hyperslab(i: int) -> None:
            hs.read_many([(arrays[case], at(k)) for case, k in draws[i].tolist()], out=ours)

        paired = time_in_turn(by_h5py, by_hyperslab, before=cache.forget, n=n)
    _demand_equal(theirs, ours, work)
    return Row(work=work, peer="h5py", floor=floor, aim=aim, result=paired)


def _demand_equal(theirs: Any, ours: Any, work: str) -> None:
    if not np.array_equal(theirs, ours):
        raise SystemExit(f"{work}: the results differ; nothing was measured")
