"""Measure what hyperslab promises of viewing, against what viewers use today.

    python -m benchmarks.viewing [--out FOLDER] [--pairs N] [--only WORDS]

Scrolling and materialising are ratios from one run in which both sides work in turn on the same
file, each comparison in a process of its own, with the page cache warm. What the cache of decoded
chunks holds is forgotten before every call. Results are compared. dask and imaris-ims-file-reader
are left out where they are not installed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.report import write_report
from benchmarks.row import Row
from benchmarks.viewing_data import LARGE_SHAPE, make_large_file, make_scroll_file
from benchmarks.viewing_works import (
    RATIOS,
    Opened,
    Paced,
    measure_opening,
    measure_paced,
    measure_ratio,
)
from hyperslab.cli.timing import machine_facts, machine_line

_PLANES_PER_S = 30.0
_MOST_P95_S = 0.005
_MOST_OPENING_S = 1.0


def _apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """Measure in a process of its own: what one work leaves behind must not touch the next."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as processes:
        return processes.submit(work, *arguments).result()


def _add_ratio(table: Table, row: Row) -> None:
    result = row.result
    style = ""
    if row.floor:
        kept = result.ratio >= row.floor
        style = "green" if result.ratio >= row.aim else "yellow" if kept else "bold red"
    ratio = f"{result.ratio:.2f}"
    table.add_row(
        escape(row.work),
        row.peer,
        f"{result.theirs_s * 1e3:.0f} ms",
        f"{result.ours_s * 1e3:.0f} ms",
        f"{f'[{style}]{ratio}[/]' if style else ratio} ({result.low:.2f} to {result.high:.2f})",
        f"{row.floor:g}" if row.floor else "",
        f"{row.aim:g}" if row.floor else "",
    )


def _paced_table(paced: list[Paced]) -> Table:
    table = Table(f"48 planes, {_PLANES_PER_S:g} a second", "p50", "p95", "longest", "promised p95")
    for found in paced:
        ours = found is paced[0]
        style = "green" if found.p95_s <= _MOST_P95_S else "bold red"
        p95 = f"{found.p95_s * 1e3:.1f} ms"
        table.add_row(
            found.reader,
            f"{found.p50_s * 1e3:.1f} ms",
            f"[{style}]{p95}[/]" if ours else p95,
            f"{found.max_s * 1e3:.0f} ms",
            f"{_MOST_P95_S * 1e3:g} ms" if ours else "",
        )
    return table


def main() -> int:
    """Run everything; exit status 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.viewing", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("bench-output"))
    parser.add_argument("--pairs", type=int, default=9, help="timed pairs per row (default 9)")
    parser.add_argument(
        "--only", default="", help="only what holds this text, e.g. scroll, pace, materialise, open"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console()
    machine = machine_facts(h5py.version.hdf5_version)
    console.print(f"{machine_line(machine)}, page cache warm")
    with console.status("writing the files (once) ..."):
        make_scroll_file(options.out)
        make_large_file(options.out)
    broken: list[str] = []
    rows: list[Row] = []
    left_out: list[str] = []
    table = Table("work", "peer", "theirs", "ours", "times", "promised", "aim")
    for work, peer in RATIOS:
        if options.only not in work:
            continue
        with console.status(f"{work}: {peer}"):
            row: Row | None = _apart(measure_ratio, work, peer, options.out, options.pairs)
        if row is None:
            left_out.append(peer)
            continue
        rows.append(row)
        _add_ratio(table, row)
        if row.result.ratio < row.floor:
            broken.append(f"{work}: {peer}")
    if rows:
        console.print(table)
    for peer in left_out:
        console.print(f"{peer} is not installed: left out")
    paced: list[Paced] = []
    if options.only in "scroll at a pace":
        with console.status("scrolling at a pace ..."):
            paced = _apart(measure_paced, options.out, _PLANES_PER_S, 5)
        console.print(_paced_table(paced))
        if paced[0].p95_s > _MOST_P95_S:
            broken.append("p95 of a plane")
    opened: Opened | None = None
    if options.only in "open":
        with console.status("opening the large file ..."):
            opened = measure_opening(options.out, LARGE_SHAPE, options.pairs)
        first_s = opened.open_s + opened.tile_s
        console.print(
            f"open {LARGE_SHAPE} (208 GB, 5 levels) and read one tile, in a fresh process: "
            f"{first_s * 1e3:.0f} ms, {opened.open_s * 1e3:.0f} of them to import hyperslab and to "
            "describe the image (promised: below 1 s)"
        )
        if first_s >= _MOST_OPENING_S:
            broken.append("opening")
    write_report(
        options.out / "viewing.json",
        console,
        machine,
        rows=[asdict(row) for row in rows],
        left_out=left_out,
        paced=[asdict(found) for found in paced],
        opened=asdict(opened) if opened else None,
        broken=broken,
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
