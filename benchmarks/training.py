"""Measure what hyperslab promises of training, against loading as the web advises.

    python -m benchmarks.training [--out FOLDER] [--rounds N] [--seconds S] [--only WORDS]

It is `hyperslab bench --training` on three files that hold the same patients: as people have them,
contiguous, and in the advice's own layout. Needs the extra bench.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import h5py
from rich.console import Console
from rich.table import Table

from benchmarks.report import write_report
from hyperslab.cli.timing import machine_facts, machine_line
from hyperslab.cli.training import (
    Contest,
    hold_contest,
    make_task,
    training_facts,
    warm_page_cache,
)
from hyperslab.testing import make_cohort

N_CASES = 8
_SHAPE = (256, 256, 180)
_INPUTS = {"A": "MR", "B": "CT"}
_WRITTEN: dict[str, dict[str, object]] = {
    "training_gzip.h5": {},
    "training_contiguous.h5": {"compression": None},
    "training_slice_first.h5": {
        "compression": None,
        "slice_first": True,
        "chunks": (1, *_SHAPE[:2]),
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One comparison.

    Attributes
    ----------
    work
        What is loaded, and what is done to it.
    file
        Name of the file.
    axis
        Its slice axis.
    artefacts
        Whether the source is misaligned and moved.
    track_meta
        Whether MONAI carries metadata along, which is its default.
    floor, aim
        Times faster than the best of the advice: what is promised, and what is hoped for. None: the
        figure is for information.
    """

    work: str
    file: str
    axis: int = -1
    artefacts: bool = False
    track_meta: bool = True
    floor: float | None
    aim: float | None = None


PROMISES = (
    Promise(work="gzip (H, W, D), h5py's chunks", file="training_gzip.h5", floor=20, aim=30),
    Promise(work="contiguous (H, W, D)", file="training_contiguous.h5", floor=10, aim=25),
    Promise(
        work="slice-first (1, H, W), unfiltered",
        file="training_slice_first.h5",
        axis=0,
        floor=5,
        aim=8,
    ),
    Promise(
        work="slice-first, MONAI without metadata",
        file="training_slice_first.h5",
        axis=0,
        track_meta=False,
        floor=None,
    ),
    Promise(work="gzip, with artefacts", file="training_gzip.h5", artefacts=True, floor=5),
)


def make_file(folder: Path, name: str) -> Path:
    """Write 8 patients, MR and CT of (256, 256, 180) float32, unless the file is there already."""
    path = folder / name
    if not path.exists():
        part = path.with_suffix(".part")
        make_cohort(
            part,
            n_cases=N_CASES,
            shape=_SHAPE,
            inputs=tuple(_INPUTS.values()),
            **_WRITTEN[name],  # type: ignore[arg-type]
        )
        part.rename(path)
    return path


def _measure(
    folder: Path, rounds: int, seconds: float, only: str, console: Console
) -> Iterator[tuple[Promise, Contest]]:
    for promise in PROMISES:
        if only not in promise.work:
            continue
        with console.status(f"writing {promise.file} (once) ..."):
            path = make_file(folder, promise.file)
        warm_page_cache(str(path))
        task = make_task(
            str(path.resolve()),
            inputs=_INPUTS,
            axis=promise.axis,
            artefacts=promise.artefacts,
            track_meta=promise.track_meta,
        )
        with console.status(promise.work) as status:
            yield (
                promise,
                hold_contest(
                    task,
                    rounds=rounds,
                    seconds=seconds,
                    tell=lambda what, promise=promise: status.update(f"{promise.work}: {what}"),
                ),
            )


def _add_rows(table: Table, promise: Promise, contest: Contest) -> None:
    for contender in contest.contenders:
        ours = contender is contest.ours
        ratio = contest.times_best(contender)
        cpu_s, rss_nbytes = contender.cpu_s_per_1000_pairs, contender.peak_rss_nbytes
        style = ""
        if ours and promise.floor is not None:
            kept = ratio >= promise.floor
            style = "green" if ratio >= (promise.aim or promise.floor) else "yellow"
            style = style if kept else "bold red"
        table.add_row(
            promise.work if ours else "",
            contender.title,
            f"{contender.pairs_per_s:,.0f}",
            "?" if cpu_s is None else f"{cpu_s:.2f}",
            "?" if rss_nbytes is None else f"{rss_nbytes / 1e6:,.0f}",
            f"[{style}]{ratio:.2f}[/]" if style else f"{ratio:.2f}",
            f"{promise.floor:g}" if ours and promise.floor else "",
            f"{promise.aim:g}" if ours and promise.aim else "",
            end_section=contender is contest.contenders[-1],
        )


def main() -> int:
    """Run everything; exit status 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("bench-output"))
    parser.add_argument("--rounds", type=int, default=3, help="turns of each loader (default 3)")
    parser.add_argument("--seconds", type=float, default=5, help="length of a turn (default 5)")
    parser.add_argument("--only", default="", help="only rows whose work holds this text")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console()
    machine = machine_facts(h5py.version.hdf5_version)
    console.print(f"{machine_line(machine)}, page cache warm")
    table = Table("file", "loader")
    for name in ("pairs/s", "CPU s/1000", "RSS MB", "times", "promised", "aim"):
        table.add_column(name, justify="right")
    rows, broken = [], []
    for promise, contest in _measure(
        options.out, options.rounds, options.seconds, options.only, console
    ):
        _add_rows(table, promise, contest)
        rows.append({**asdict(promise), **contest.as_dict()})
        if promise.floor is not None and contest.times_faster < promise.floor:
            broken.append(promise.work)
    console.print(table)
    write_report(
        options.out / "training.json",
        console,
        machine | training_facts(artefacts=True),
        rounds=options.rounds,
        seconds=options.seconds,
        rows=rows,
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
