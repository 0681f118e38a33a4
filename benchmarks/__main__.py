"""Measure what hyperslab promises, and print it beside h5py and hidefix.

    python -m benchmarks [--out FOLDER] [--pairs N] [--only WORDS]

Every figure is a ratio from one run in which both sides work in turn on the same file, in a process
of its own, with the page cache warm. What the cache of decoded chunks holds is forgotten before
every call. Results are compared.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import h5py
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import hyperslab as hs
from benchmarks.data import make_cohort_file, make_grid_file, make_volume_file
from benchmarks.picture import draw
from benchmarks.report import write_report
from benchmarks.row import Row
from benchmarks.works import WORKS, measure
from hyperslab.cli.timing import machine_facts, machine_line


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


def _measure_apart(folder: Path, n: int, only: str) -> Iterator[Row]:
    """Measure each work in a process of its own: what one leaves behind must not touch the next."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as processes:
        for name, work in WORKS.items():
            if only in work:
                row = processes.submit(measure, name, folder, n).result()
                if row is None:
                    print(f"{name}: the peer is not installed", file=sys.stderr)
                else:
                    yield row


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
    machine = machine_facts(h5py.version.hdf5_version)
    console.print(f"{machine_line(machine)}, page cache warm")
    with console.status("writing the files (once) ..."):
        make_volume_file(options.out)
        make_cohort_file(options.out)
        grid = make_grid_file(options.out)
    rows = []
    table = Table("work", "peer", "theirs", "ours", "times", "promised", "aim")
    for row in _measure_apart(options.out, options.pairs, options.only):
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
    write_report(
        options.out / "bench.json",
        console,
        machine,
        rows=[asdict(row) for row in rows],
        chunk_table_s=index_s,
    )
    if options.plot is not None:
        draw(rows, options.plot)
        console.print(f"drawn to {options.plot}")
    broken = [row.work for row in rows if row.result.ratio < row.floor] + (
        ["chunk table"] if index_s >= 0.5 else []
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
