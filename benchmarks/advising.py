"""Hold what the doctor predicts against what is measured.

    python -m benchmarks.advising [--out FOLDER] [--rounds N]

Five layouts of one (256, 256, 180) float32 volume: h5py's gzip without a chunk shape, gzip in
chunks of a slice with the slice axis first, contiguous, planes that are not compressed, and chunks
as Imaris has them. Each round makes the doctor's trials anew, predicts, and then measures requests
at other places; what counts is the median ratio of predicted by measured seconds. Where a request
takes one chunk, a trial is as large as the request: then only the places differ. At last the volume
is repacked from the first layout by each codec, and requests to the result are measured against
what was predicted before the repack. The page cache is warm.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from rich.console import Console
from rich.table import Table

import hyperslab as hs
from benchmarks.report import write_report
from hyperslab.advice import PatternAdvice
from hyperslab.advice.words import duration
from hyperslab.cli.timing import machine_facts, machine_line
from hyperslab.testing import draw_phantom

SHAPE = (256, 256, 180)
FACTOR = 1.5
WAYS = {
    "h5py": "h5py",
    "h5py_in_order": "h5py, in order",
    "hyperslab": "hyperslab",
    "hyperslab_in_order": "hyperslab, in order",
}
PROMISED = ("h5py", "hyperslab")

Layout = tuple[str, dict[str, Any], tuple[int, ...]]
LAYOUTS: dict[str, Layout] = {
    "gzip, no chunk shape given": ("[:, :, k]", {"compression": "gzip"}, (0, 1, 2)),
    "gzip, slice first": (
        "[k]",
        {"compression": "gzip", "shuffle": True, "chunks": (1, 256, 256)},
        (2, 0, 1),
    ),
    "contiguous": ("[:, :, k]", {}, (0, 1, 2)),
    "planes, not compressed": ("[k]", {"chunks": (1, 256, 256)}, (2, 0, 1)),
    "as Imaris has it": (
        "[k]",
        {"compression": "gzip", "compression_opts": 2, "chunks": (16, 256, 256)},
        (2, 0, 1),
    ),
}


def make_files(folder: Path) -> dict[str, Path]:
    """Write the volume in each layout."""
    found = {}
    volume = draw_phantom(SHAPE, seed=1)[0].astype(np.float32)
    for i, (name, (_, how, order)) in enumerate(LAYOUTS.items()):
        found[name] = folder / f"advising-{i}.h5"
        if not found[name].exists():
            part = found[name].with_suffix(".part")
            with h5py.File(part, "w") as h5:
                h5.create_dataset("x", data=volume.transpose(order), **how)
            part.rename(found[name])
    return found


def _measured(path: Path, access: str, rounds: int) -> list[PatternAdvice]:
    return [hs.advise(path, access=access, seed=i).kinds[0].patterns[0] for i in range(rounds)]


def _row(
    table: Table,
    rows: list[dict[str, Any]],
    name: str,
    way: str,
    ratios: list[tuple[float, float]],
    limit: bool,
) -> bool:
    """Add a row; return whether the median ratio is as near as it has to be."""
    middle = statistics.median(predicted / measured for predicted, measured in ratios)
    near = 1 / FACTOR <= middle <= FACTOR
    rows.append(
        {"layout": name, "by": way, "predicted_by_measured": middle, "promised": limit, "s": ratios}
    )
    style = "green" if near else "red" if limit else "yellow"
    before = rows[-2]["layout"] if len(rows) > 1 else ""
    table.add_row(
        "" if name == before else name,
        way,
        duration(statistics.median(predicted for predicted, _ in ratios)),
        duration(statistics.median(measured for _, measured in ratios)),
        f"[{style}]{middle:.2f}[/]",
        f"{min(p / m for p, m in ratios):.2f} to {max(p / m for p, m in ratios):.2f}",
    )
    return near or not limit


def layouts(files: dict[str, Path], table: Table, rows: list[dict[str, Any]], rounds: int) -> bool:
    """Compare requests to the files as they are."""
    good = True
    for name, path in files.items():
        found = _measured(path, LAYOUTS[name][0], rounds)
        for by, way in WAYS.items():
            ratios = [
                (p.predicted_s[by], p.measured_s[by]) for p in found if by in (p.measured_s or {})
            ]
            if by.endswith("in_order") and found[0].requests_per_slab <= 1:
                continue
            good &= _row(table, rows, name, way, ratios, by in PROMISED)
    return good


def repacks(
    source: Path, folder: Path, table: Table, rows: list[dict[str, Any]], rounds: int
) -> None:
    """Compare requests to repacked files with what was predicted from the sample."""
    access = LAYOUTS["gzip, no chunk shape given"][0]
    before = [
        {
            option.codec: option.predicted_s
            for option in hs.advise(source, access=access, measure=False, seed=i).kinds[0].options
        }
        for i in range(rounds)
    ]
    target = folder / "advising-repacked.h5"
    for codec in before[0]:
        target.unlink(missing_ok=True)
        hs.repack(source, target, access=access, codec=codec)
        after = _measured(target, access, rounds)
        for by in PROMISED:
            ratios = [
                (predicted[codec][by], pattern.measured_s[by])
                for predicted, pattern in zip(before, after, strict=True)
                if predicted[codec][by] is not None and by in (pattern.measured_s or {})
            ]
            if ratios:
                _row(table, rows, f"repacked, {codec}", WAYS[by], ratios, False)
    target.unlink(missing_ok=True)


def main() -> int:
    """Measure and print; exit status 1 where a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("bench-output"))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console()
    machine = machine_facts(h5py.version.hdf5_version)
    console.print(machine_line(machine))
    files = make_files(options.out)
    table = Table(title="Seconds a request", title_justify="left")
    for head in ("layout", "by"):
        table.add_column(head)
    for head in ("predicted", "measured", "ratio", "rounds"):
        table.add_column(head, justify="right")
    rows: list[dict[str, Any]] = []
    good = layouts(files, table, rows, options.rounds)
    table.add_section()
    repacks(files["gzip, no chunk shape given"], options.out, table, rows, options.rounds)
    console.print(table)
    console.print(f"promised for h5py and hyperslab at random places: within {FACTOR} times")
    write_report(
        options.out / "advising.json", console, machine, rows=rows, factor=FACTOR, kept=good
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
