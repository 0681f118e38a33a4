"""Measure what hyperslab promises of converting, against dask over h5py into zarr.

    python -m benchmarks.converting [--out FOLDER] [--pairs N]

An Imaris file of (2, 2, 48, 1024, 1024) uint16, gzip, is written as zarr: by dask, whose arrays
read the file through h5py and whose blocks are whole shards, and by `hyperslab.convert`; in turn,
in one process, with the page cache warm. Chunks, shards, codec and its level are the same; the
results are compared once for each codec.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from rich.console import Console
from rich.table import Table

import hyperslab as hs
from benchmarks.paired import time_in_turn
from benchmarks.report import write_report
from benchmarks.row import Row
from benchmarks.viewing_data import DATA, SHAPE, make_scroll_file
from hyperslab.cli.timing import machine_facts, machine_line
from hyperslab.conversion import ZarrPlan, plan_conversion
from hyperslab.conversion.codecs import compressor

_FLOOR, _AIM = 2.0, 3.0
_DEFAULT = "blosc"  # what is promised is promised of it; zstd alone takes most of the time there
_CODECS = (_DEFAULT, "zstd", "none")


def by_dask(source: Path, target: Path, plan: ZarrPlan) -> None:
    """What is advised: lazy arrays over h5py's datasets, stored block by block."""
    import dask.array as da
    import zarr

    level = plan.levels[0]
    group: Any = zarr.create_group(os.fspath(target), zarr_format=3)
    array = group.create_array(
        "0",
        shape=level.shape,
        chunks=level.chunks,
        shards=level.shards,
        dtype=plan.dtype,
        compressors=compressor(plan.codec),
        fill_value=0,
    )
    n_t, n_c = SHAPE[:2]
    with h5py.File(source) as h5:
        volumes = [
            [da.from_array(h5[DATA.format(t=t, c=c)], chunks=level.shards[2:]) for c in range(n_c)]
            for t in range(n_t)
        ]
        stacked = da.stack([da.stack(row) for row in volumes])
        da.store(stacked, array, lock=False, scheduler="threads")


def main() -> int:
    """Measure and print; exit status 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.converting", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("bench-output"))
    parser.add_argument("--pairs", type=int, default=5, help="timed pairs per codec (default 5)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    source = make_scroll_file(options.out)
    console = Console()
    machine = machine_facts(h5py.version.hdf5_version)
    console.print(f"{machine_line(machine)}, page cache warm")
    targets = [options.out / "theirs.zarr", options.out / "ours.ome.zarr"]

    def clear() -> None:
        for target in targets:
            shutil.rmtree(target, ignore_errors=True)

    table = Table("codec", "dask over h5py", "hyperslab", "times", "promised", "aim")
    broken: list[str] = []
    rows: list[Row] = []
    for codec in _CODECS:
        _, plan = plan_conversion(source, targets[1], codec=codec)
        assert isinstance(plan, ZarrPlan)
        clear()
        by_dask(source, targets[0], plan)
        hs.convert(source, targets[1], codec=codec)
        _compare(*targets)
        result = time_in_turn(
            lambda _, plan=plan: by_dask(source, targets[0], plan),
            lambda _, codec=codec: hs.convert(source, targets[1], codec=codec),
            before=clear,
            n=options.pairs,
        )
        promised = codec == _DEFAULT
        kept = result.ratio >= _FLOOR
        if promised and not kept:
            broken.append(codec)
        rows.append(
            Row(
                work=f"convert, {codec}",
                peer="dask over h5py",
                floor=_FLOOR if promised else 0.0,
                aim=_AIM if promised else 0.0,
                result=result,
            )
        )
        style = "green" if result.ratio >= _AIM else "yellow" if kept else "bold red"
        table.add_row(
            codec,
            f"{result.theirs_s * 1e3:.0f} ms",
            f"{result.ours_s * 1e3:.0f} ms",
            f"[{style}]{result.ratio:.2f}[/] ({result.low:.2f} to {result.high:.2f})",
            f"{_FLOOR:g}" if promised else "",
            f"{_AIM:g}" if promised else "",
        )
    clear()
    console.print(table)
    write_report(
        options.out / "converting.json",
        console,
        machine,
        rows=[asdict(row) for row in rows],
        broken=broken,
    )
    return 1 if broken else 0


def _compare(theirs: Path, ours: Path) -> None:
    import zarr

    a: Any = zarr.open_array(os.fspath(theirs / "0"), mode="r")
    b: Any = zarr.open_array(os.fspath(ours / "0"), mode="r")
    assert (a.shape, a.chunks, a.shards, a.compressors) == (
        b.shape,
        b.chunks,
        b.shards,
        b.compressors,
    )
    for place in np.ndindex(*a.shape[:2]):
        assert np.array_equal(a[place], b[place])


if __name__ == "__main__":
    sys.exit(main())
