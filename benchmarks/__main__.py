"""Measure what hyperslab promises, and print it beside h5py and hidefix.

    python -m benchmarks [--out FOLDER] [--pairs N] [--only WORDS]

Every figure is a ratio from one run in which both sides work in turn on the same file, with the
page cache warm. What the cache of decoded chunks holds is forgotten before every call. Results are
compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import hyperslab as hs
from benchmarks.data import N_CASES, make_cohort_file, make_grid_file, make_volume_file
from benchmarks.paired import time_in_turn
from benchmarks.picture import draw
from benchmarks.row import Row
from hyperslab.engine import cache
from hyperslab.engine.limits import available_cpus


def _volumes(path: Path, n: int) -> Iterator[Row]:
    promises = {
        "gzip_2MB": ("whole uint16 volume, 2 MB gzip chunks", 3.0, 3.6),
        "shuffle_gzip_256KB": ("whole uint16 volume, 256 KB shuffle+gzip chunks", 2.8, 3.4),
        "default_gzip": ("whole float32 volume, h5py's default gzip chunks", 2.4, 3.2),
    }
    ours = hs.open(path)
    with h5py.File(path, "r") as h5:
        for name, (work, floor, aim) in promises.items():
            dataset, array = h5[name], ours[name]
            theirs_out, ours_out = np.zeros_like(dataset), np.zeros_like(dataset)
            paired = time_in_turn(
                lambda i, d=dataset, o=theirs_out: d.read_direct(o),
                lambda i, a=array, o=ours_out: a.read(out=o),
                before=cache.forget,
                n=n,
            )
            _demand_equal(theirs_out, ours_out, work)
            yield Row(work=work, peer="h5py", floor=floor, aim=aim, result=paired)
    yield from _hidefix(path, promises, n)


def _hidefix(path: Path, promises: dict[str, tuple[str, float, float]], n: int) -> Iterator[Row]:
    try:
        import hidefix
    except ImportError:
        print("hidefix is not installed: not compared", file=sys.stderr)
        return
    index = hidefix.Index(str(path))
    ours = hs.open(path)
    everything = (slice(None), slice(None), slice(None))  # it knows no ellipsis
    for name, (work, _, _) in promises.items():
        peer, array = index.dataset(name), ours[name]
        _demand_equal(peer[everything], array[...], work)
        # hidefix returns new memory, so that we do, too.
        paired = time_in_turn(
            lambda i, p=peer: p[everything], lambda i, a=array: a[...], before=cache.forget, n=n
        )
        yield Row(work=work, peer="hidefix", floor=0.95, aim=1.3, result=paired)


def _batches(path: Path, n: int) -> Iterator[Row]:
    promises = {
        "gzip": ("32 random slices [..., k] of 16 datasets, default gzip", 3.0, 4.5),
        "contiguous": ("32 random slices [..., k] of 16 datasets, contiguous", 8.0, 15.0),
        "slice_first": ("32 random slices [k] of 16 datasets, chunks (1, H, W)", 5.0, 8.0),
    }
    ours = hs.open(path)
    rng = np.random.default_rng(2)
    draws = rng.integers((N_CASES, 180), size=(n + 1, 32, 2))
    with h5py.File(path, "r") as h5:
        for name, (work, floor, aim) in promises.items():
            datasets = [h5[f"{name}/p{i:02d}"] for i in range(N_CASES)]
            arrays = [ours[f"{name}/p{i:02d}"] for i in range(N_CASES)]
            hs.read_many([(a, np.s_[0, 0, 0]) for a in arrays])  # index before timing
            at: Callable[[int], Any] = (
                (lambda k: np.s_[k]) if name == "slice_first" else (lambda k: np.s_[..., k])
            )
            theirs_out = np.zeros((32, 256, 256), np.float32)
            ours_out = np.zeros_like(theirs_out)

            def theirs(i: int, d=datasets, o=theirs_out, at=at) -> None:
                for j, (case, k) in enumerate(draws[i].tolist()):
                    o[j] = d[case][at(k)]

            def mine(i: int, a=arrays, o=ours_out, at=at) -> None:
                hs.read_many([(a[case], at(k)) for case, k in draws[i].tolist()], out=o)

            paired = time_in_turn(theirs, mine, before=cache.forget, n=n)
            _demand_equal(theirs_out, ours_out, work)
            yield Row(work=work, peer="h5py", floor=floor, aim=aim, result=paired)


def _demand_equal(theirs: Any, ours: Any, work: str) -> None:
    if not np.array_equal(theirs, ours):
        raise SystemExit(f"{work}: the results differ; nothing was measured")


def _chunk_table(path: Path) -> float:
    """Return how long opening and indexing 32,768 chunks takes, seconds, the best of five."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        n_chunks, _ = hs.open(path)["chunks"].n_chunks
        times.append(time.perf_counter() - start)
        if n_chunks != 32_768:
            raise SystemExit(f"{path}: expected 32,768 chunks, found {n_chunks}")
    return min(times)


def main() -> int:
    """Run everything; exit status 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("bench-output"))
    parser.add_argument("--pairs", type=int, default=9, help="timed pairs per row (default 9)")
    parser.add_argument("--plot", type=Path, help="draw the ratios, e.g. bench.png")
    parser.add_argument("--only", default="", help="only rows whose work holds this text")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console()
    console.print(
        f"hyperslab {hs.__version__}, h5py {h5py.__version__} (HDF5 {h5py.version.hdf5_version}), "
        f"Python {platform.python_version()}, {available_cpus()} CPUs, page cache warm"
    )
    with console.status("writing the files (once) ..."):
        volumes = make_volume_file(options.out)
        cohort = make_cohort_file(options.out)
        grid = make_grid_file(options.out)
    rows = []
    table = Table("work", "peer", "theirs", "ours", "times", "promised", "aim")
    for row in (*_volumes(volumes, options.pairs), *_batches(cohort, options.pairs)):
        if options.only not in row.work:
            continue
        rows.append(row)
        result = row.result
        kept = result.ratio >= row.floor
        style = "green" if result.ratio >= row.aim else "yellow" if kept else "bold red"
        table.add_row(
            escape(row.work),
            row.peer,
            f"{result.theirs_s * 1e3:.1f} ms",
            f"{result.ours_s * 1e3:.1f} ms",
            f"[{style}]{result.ratio:.2f}[/] ({result.low:.2f} to {result.high:.2f})",
            f"{row.floor:g}",
            f"{row.aim:g}",
        )
    console.print(table)
    index_s = _chunk_table(grid)
    console.print(f"open and index 32,768 chunks: {index_s * 1e3:.0f} ms (promised: below 500 ms)")
    report = options.out / "bench.json"
    report.write_text(
        json.dumps(
            {
                "versions": {
                    "hyperslab": hs.__version__,
                    "h5py": h5py.__version__,
                    "hdf5": h5py.version.hdf5_version,
                    "python": platform.python_version(),
                },
                "cpus": available_cpus(),
                "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
                "rows": [asdict(row) for row in rows],
                "chunk_table_s": index_s,
            },
            indent=1,
        )
    )
    console.print(f"written to {report}")
    if options.plot is not None:
        draw(rows, options.plot)
        console.print(f"drawn to {options.plot}")
    broken = [row.work for row in rows if row.result.ratio < row.floor] + (
        ["chunk table"] if index_s >= 0.5 else []
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
