"""What is measured of viewing, each by a function that does it both ways in turn."""

from __future__ import annotations

import io
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

import hyperslab as hs
from benchmarks.paired import time_in_turn
from benchmarks.row import Row
from benchmarks.viewing_data import DATA, SHAPE, make_large_file, make_scroll_file
from hyperslab.engine import cache
from hyperslab.viewing import ChannelView, read_ahead_stats, stop_read_ahead

__all__ = [
    "RATIOS",
    "Opened",
    "Paced",
    "measure_opening",
    "measure_paced",
    "measure_ratio",
]

Plane = Callable[[int], NDArray[Any]]
Reader = Callable[[Path], Any]

_N_PLANES = SHAPE[2]
_CACHED = "h5py, 256 MB chunk cache"
_SCROLL = f"scroll {_N_PLANES} planes of 1024 x 1024"
_MATERIALISE = f"materialise {SHAPE}"

#: Every comparison in times faster: its work and its peer.
RATIOS: tuple[tuple[str, str], ...] = (
    (_SCROLL, _CACHED),
    (_SCROLL, "h5py as it comes"),
    (_SCROLL, "dask over h5py"),
    (_SCROLL, "imaris-ims-file-reader"),
    (_MATERIALISE, "h5py, into preallocated memory"),
    (_MATERIALISE, "one process per time point"),
)


def measure_ratio(work: str, peer: str, folder: Path, n: int) -> Row | None:
    """Measure one of `RATIOS` with `n` pairs (3 where a turn takes seconds).

    Returns
    -------
    Row or None
        None where the peer is not installed. A floor of 0: the figure is for information.
    """
    path = make_scroll_file(folder)
    if work == _MATERIALISE:
        return _by_processes(path, n) if "process" in peer else _by_one_loop(path, n)
    if peer == _CACHED:
        return _scrolled(path, peer, _h5py_cached, n, floor=2.5, aim=3.5)
    readers = {
        "h5py as it comes": _h5py_as_it_comes,
        "dask over h5py": _dask,
        "imaris-ims-file-reader": _incumbent,
    }
    try:
        # The incumbent says what it opens and closes, and what it thinks of the file.
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _scrolled(path, peer, readers[peer], 3)
    except ModuleNotFoundError:
        return None


# --- scrolling: each reader yields a function from a plane's number to the plane


@contextmanager
def _h5py_cached(path: Path) -> Iterator[Plane]:
    with h5py.File(path, rdcc_nbytes=256 << 20) as h5:
        yield h5[DATA.format(t=0, c=0)].__getitem__


@contextmanager
def _h5py_as_it_comes(path: Path) -> Iterator[Plane]:
    with h5py.File(path) as h5:
        yield h5[DATA.format(t=0, c=0)].__getitem__


@contextmanager
def _dask(path: Path) -> Iterator[Plane]:
    import dask.array as da

    with h5py.File(path) as h5:
        dataset = h5[DATA.format(t=0, c=0)]
        array = da.from_array(dataset, chunks=dataset.chunks)
        yield lambda z: array[z].compute()


@contextmanager
def _incumbent(path: Path) -> Iterator[Plane]:
    from imaris_ims_file_reader.ims import ims

    opened = ims(str(path))
    try:
        yield lambda z: opened[0, 0, z]
    finally:
        opened.close()


def _view(path: Path) -> ChannelView:
    view = ChannelView(hs.open_image(path).levels[0])
    view[0, 0]  # indexed, codecs imported
    return view


def _forget() -> None:
    stop_read_ahead()
    cache.forget()


def _scrolled(
    path: Path, peer: str, reader: Reader, n: int, *, floor: float = 0, aim: float = 0
) -> Row:
    view = _view(path)
    with reader(path) as plane:
        for z in (0, 17, 47):
            _demand_equal(plane(z), view[0, z], peer)

    def theirs(i: int) -> None:
        with reader(path) as plane:  # opened anew, since nothing else empties its cache
            for z in range(_N_PLANES):
                plane(z)

    def ours(i: int) -> None:
        for z in range(_N_PLANES):
            view[0, z]

    paired = time_in_turn(theirs, ours, before=_forget, n=n)
    return Row(work=_SCROLL, peer=peer, floor=floor, aim=aim, result=paired)


# --- materialising


def _datasets(h5: h5py.File) -> Iterator[tuple[int, int, h5py.Dataset]]:
    for t in range(SHAPE[0]):
        for c in range(SHAPE[1]):
            yield t, c, h5[DATA.format(t=t, c=c)]


def _by_one_loop(path: Path, n: int) -> Row:
    image = hs.open_image(path)
    mine, yours = np.zeros(SHAPE, np.uint16), np.zeros(SHAPE, np.uint16)
    with h5py.File(path) as h5:

        def theirs(i: int) -> None:
            for t, c, dataset in _datasets(h5):
                dataset.read_direct(yours[t, c])

        paired = time_in_turn(theirs, lambda i: image.read(out=mine), before=cache.forget, n=n)
    _demand_equal(yours, mine, _MATERIALISE)
    peer = "h5py, into preallocated memory"
    return Row(work=_MATERIALISE, peer=peer, floor=2.5, aim=3.5, result=paired)


def _time_point(path: Path, t: int) -> NDArray[Any]:
    """Read a time point; what each process does."""
    found = np.empty(SHAPE[1:], np.uint16)
    with h5py.File(path) as h5:
        for c in range(SHAPE[1]):
            h5[DATA.format(t=t, c=c)].read_direct(found[c])
    return found


def _by_processes(path: Path, n: int) -> Row:
    image = hs.open_image(path)
    mine, yours = np.zeros(SHAPE, np.uint16), np.zeros(SHAPE, np.uint16)
    with ProcessPoolExecutor(SHAPE[0]) as processes:  # started once: that is not counted

        def theirs(i: int) -> None:
            found = processes.map(_time_point, [path] * SHAPE[0], range(SHAPE[0]))
            for t, values in enumerate(found):
                yours[t] = values

        paired = time_in_turn(theirs, lambda i: image.read(out=mine), before=cache.forget, n=n)
    _demand_equal(yours, mine, _MATERIALISE)
    peer = "one process per time point"
    return Row(work=_MATERIALISE, peer=peer, floor=1.0, aim=2.5, result=paired)


def _demand_equal(theirs: Any, ours: Any, work: str) -> None:
    if not np.array_equal(theirs, ours):
        raise SystemExit(f"{work}: the results differ; nothing was measured")


# --- at a pace


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced:
    """How long the planes of a scroll took that somebody watches.

    Attributes
    ----------
    reader
        Who read them.
    planes_per_s
        The pace.
    p50_s, p95_s, max_s
        Of a plane; the first of each scroll, which nobody can foresee, included.
    n
        Planes.
    n_ahead
        Chunks that were decoded ahead; 0 for others than hyperslab.
    """

    reader: str
    planes_per_s: float
    p50_s: float
    p95_s: float
    max_s: float
    n: int
    n_ahead: int


def measure_paced(folder: Path, planes_per_s: float, n_scrolls: int) -> list[Paced]:
    """Scroll at a pace, hyperslab and h5py with a 256 MB chunk cache in turn."""
    path = make_scroll_file(folder)
    view = _view(path)
    ours: list[float] = []
    theirs: list[float] = []
    start = read_ahead_stats().chunks_decoded
    for _ in range(n_scrolls):
        _forget()
        ours += _to_the_beat(lambda z: view[0, z], planes_per_s)
        stop_read_ahead()
        with _h5py_cached(path) as plane:
            theirs += _to_the_beat(plane, planes_per_s)
    n_ahead = read_ahead_stats().chunks_decoded - start
    return [
        _paced("hyperslab", ours, planes_per_s, n_ahead),
        _paced(_CACHED, theirs, planes_per_s, 0),
    ]


def _to_the_beat(plane: Plane, planes_per_s: float) -> list[float]:
    times = []
    beat = time.perf_counter()
    for z in range(_N_PLANES):
        start = time.perf_counter()
        plane(z)
        times.append(time.perf_counter() - start)
        beat += 1 / planes_per_s
        time.sleep(max(0.0, beat - time.perf_counter()))
    return times


def _paced(reader: str, times: list[float], planes_per_s: float, n_ahead: int) -> Paced:
    p50, p95 = np.percentile(times, [50, 95]).tolist()
    return Paced(
        reader=reader,
        planes_per_s=planes_per_s,
        p50_s=p50,
        p95_s=p95,
        max_s=max(times),
        n=len(times),
        n_ahead=n_ahead,
    )


# --- opening


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """How long a fresh process takes to the first tile of a large file, median.

    Attributes
    ----------
    open_s
        To import hyperslab, and to describe the image.
    tile_s
        Then, to read a tile of 512 x 512 of the finest level; indexes its dataset.
    n
        Processes.
    """

    open_s: float
    tile_s: float
    n: int


_FIRST_TILE = """
import json, sys, time
times = [time.perf_counter()]
import hyperslab as hs
image = hs.open_image(sys.argv[1])
times.append(time.perf_counter())
tile = image[0, 1, 5, :512, :512]
times.append(time.perf_counter())
print(json.dumps([image.shape, len(image.levels), int(tile.max()), times]))
"""


def measure_opening(folder: Path, shape: tuple[int, ...], n: int) -> Opened:
    """Open the large file in `n` processes, one after the other, none with anything kept."""
    path = make_large_file(folder)
    steps = []
    for _ in range(n):
        with tempfile.TemporaryDirectory() as kept:
            done = subprocess.run(
                [sys.executable, "-c", _FIRST_TILE, str(path.resolve())],
                env={**os.environ, "HYPERSLAB_CACHE_DIR": kept},
                capture_output=True,
                text=True,
                check=True,
            )
        found, n_levels, brightest, times = json.loads(done.stdout)
        if tuple(found) != shape or n_levels < 5 or not brightest:
            raise SystemExit(f"{path}: found {found}, {n_levels} levels, brightest {brightest}")
        steps.append([b - a for a, b in itertools.pairwise(times)])
    open_s, tile_s = (statistics.median(step) for step in zip(*steps, strict=True))
    return Opened(open_s=open_s, tile_s=tile_s, n=n)
