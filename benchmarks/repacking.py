"""Measure what hyperslab promises of repacking, against h5repack.

    python -m benchmarks.repacking [--out FOLDER] [--cases N] [--rounds N]

A cohort of (256, 256, 180) float32 cases, as h5py writes them with gzip, is brought into chunks of
one slice: by h5repack (of Debian's hdf5-tools, say; left out where it is not installed) and by
`hyperslab repack`, each in a process of its own, in turn, with the page cache warm. Rates are of
decoded bytes over wall time, the start of the process included (half a second: the file is a large
one so that it does not decide). Memory is the peak of what the process holds. Then 32 random slices
are read from before and after.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from rich.console import Console
from rich.table import Table

import hyperslab as hs
from hyperslab.cli.timing import machine_facts, machine_line
from hyperslab.engine import cache
from hyperslab.testing import draw_phantom

_SHAPE = (256, 256, 180)
_N_SLICES, _ROUNDS = 32, 5
_LEAST_RATIO, _AIM_RATIO = 3.0, 5.0
_LEAST_H5PY, _LEAST_OURS = 5.0, 10.0
_OVER_MEMORY_NBYTES = 150_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One process: what it took.

    Attributes
    ----------
    seconds
        Wall time, start and end of the process included.
    cpu_s
        Time of all threads.
    peak_nbytes
        Most resident memory.
    """

    seconds: float
    cpu_s: float
    peak_nbytes: int


def make_file(folder: Path, n_cases: int) -> Path:
    """Write the cohort, chunks and gzip as h5py chooses them.

    In a process of its own: Linux counts the memory of the parent into the peak of a child.
    """
    path = folder / f"cohort-{n_cases}.h5"
    if not path.exists():
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as processes:
            processes.submit(_write_file, path, n_cases).result()
    return path


def _write_file(path: Path, n_cases: int) -> None:
    part = path.with_suffix(".part")
    base = draw_phantom(_SHAPE, seed=1)[0].astype(np.float32)
    with h5py.File(part, "w") as h5:
        for i in range(n_cases):
            case = np.roll(base, (3 * i, 5 * i), axis=(0, 1))
            h5.create_dataset(f"MR/p{i:02d}", data=case, compression="gzip")
    part.rename(path)


def run(command: list[str]) -> Run:
    """Run a process to its end and measure it."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    return Run(
        seconds=time.perf_counter() - start,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_nbytes=usage.ru_maxrss * 1024,
    )


def ours(source: Path, target: Path, codec: str, memory: str, *, verify: bool = False) -> Run:
    """Repack by hyperslab."""
    target.unlink(missing_ok=True)
    command = [sys.executable, "-m", "hyperslab", "repack", str(source), str(target)]
    command += ["--access", "[:, :, k]", "--codec", codec, "--memory", memory]
    return run(command + ([] if verify else ["--no-verify"]))


def theirs(source: Path, target: Path, codec: str) -> Run:
    """Repack by h5repack."""
    target.unlink(missing_ok=True)
    filters = {"none": ["-f", "NONE"], "gzip": ["-f", "SHUF", "-f", "GZIP=4"]}[codec]
    chunk = f"CHUNK={_SHAPE[0]}x{_SHAPE[1]}x1"
    return run(["h5repack", *filters, "-l", chunk, str(source), str(target)])


def compare(source: Path, folder: Path, table: Table, rounds: int) -> None:
    """Time both in turn, by codec."""
    nbytes = _decoded(source)
    target = folder / "target.h5"
    for codec in ("none", "gzip"):
        a, b = [], []
        for _ in range(rounds if codec == "none" else 1):  # compressing takes a minute
            if shutil.which("h5repack"):
                a.append(theirs(source, target, codec))
            b.append(ours(source, target, codec, "1GB"))
        checked = ours(source, target, codec, "1GB", verify=True)
        if a:
            seconds = statistics.median(each.seconds for each in a)
            peak = max(each.peak_nbytes for each in a)
            cpu = statistics.median(each.cpu_s for each in a)
            table.add_row(
                f"{codec}: h5repack", _rate(nbytes / seconds), f"{cpu:.1f} s", _mega(peak), ""
            )
            ratio = statistics.median(x.seconds / y.seconds for x, y in zip(a, b, strict=True))
            style = "green" if ratio >= _AIM_RATIO else "yellow" if ratio >= _LEAST_RATIO else "red"
            words = f"[{style}]{ratio:.1f} times[/]"
        else:
            words = "no h5repack here"
        seconds = statistics.median(each.seconds for each in b)
        peak = max(each.peak_nbytes for each in b)
        cpu = statistics.median(each.cpu_s for each in b)
        table.add_row(
            f"{codec}: hyperslab", _rate(nbytes / seconds), f"{cpu:.1f} s", _mega(peak), words
        )
        table.add_row(
            f"{codec}: and read back",
            _rate(nbytes / checked.seconds),
            f"{checked.cpu_s:.1f} s",
            _mega(checked.peak_nbytes),
            "",
        )


def ceilings(source: Path, folder: Path, table: Table) -> None:
    """Measure the peak under three ceilings, with reading back."""
    nbytes = _decoded(source)
    for words, ceiling in (("64MB", 64e6), ("256MB", 256e6), ("1GB", 1e9)):
        for codec in ("none", "gzip"):
            done = ours(source, folder / "target.h5", codec, words, verify=True)
            over = done.peak_nbytes - ceiling
            style = "green" if over < _OVER_MEMORY_NBYTES else "red"
            table.add_row(
                f"{codec}, --memory {words}",
                _rate(nbytes / done.seconds),
                _mega(done.peak_nbytes),
                f"[{style}]{over / 1e6:+.0f} MB[/]",
            )


def reading(source: Path, folder: Path, table: Table) -> None:
    """Read random slices before and after."""
    target = folder / "target.h5"
    for codec in ("none", "gzip"):
        ours(source, target, codec, "1GB")
        for name, read, least in (
            ("h5py", _by_h5py, _LEAST_H5PY),
            ("hyperslab", _by_hyperslab, _LEAST_OURS),
        ):
            dice = random.Random(0)
            with h5py.File(source) as h5:
                names = sorted(h5["MR"])
            drawn = [(dice.choice(names), dice.randrange(_SHAPE[2])) for _ in range(_N_SLICES)]
            before, after = (read(path, drawn) for path in (source, target))
            ratio = before / after
            style = "green" if ratio >= least else "red"
            table.add_row(
                f"{codec}: {name}",
                f"{before:.2f} ms",
                f"{after:.2f} ms",
                f"[{style}]{ratio:.0f} times[/]",
            )


def _by_h5py(path: Path, drawn: list[tuple[str, int]]) -> float:
    """Return the median milliseconds of a slice; datasets are open, their caches empty."""
    seconds = []
    for _ in range(_ROUNDS):
        with h5py.File(path) as h5:
            datasets = [h5["MR"][name] for name, _ in drawn]
            start = time.perf_counter()
            for dataset, (_, k) in zip(datasets, drawn, strict=True):
                dataset[:, :, k]
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) / len(drawn) * 1e3


def _by_hyperslab(path: Path, drawn: list[tuple[str, int]]) -> float:
    """Return the median milliseconds of a slice; datasets are indexed, the cache empty."""
    file = hs.open(path)
    arrays: list[Any] = [file[f"MR/{name}"] for name, _ in drawn]
    for array in arrays:
        array[:, :, 0]
    seconds = []
    for _ in range(_ROUNDS):
        cache.forget()
        start = time.perf_counter()
        for array, (_, k) in zip(arrays, drawn, strict=True):
            array[:, :, k]
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) / len(drawn) * 1e3


def _decoded(path: Path) -> int:
    with h5py.File(path) as h5:
        return sum(int(dataset.nbytes) for dataset in h5["MR"].values())


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:.0f} MB/s"


def _mega(nbytes: float) -> str:
    return f"{nbytes / 1e6:.0f} MB"


def _table(title: str, *heads: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for head in heads:
        table.add_column(head, justify="right")
    return table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("bench-output"))
    parser.add_argument("--cases", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console()
    console.print(machine_line(machine_facts(h5py.version.hdf5_version)))
    source = make_file(options.out, options.cases)
    table = _table("To chunks of one slice", "decoded", "CPU", "peak memory", "than h5repack")
    compare(source, options.out, table, options.rounds)
    console.print(table)
    table = _table("Under a ceiling, read back", "decoded", "peak memory", "over the ceiling")
    ceilings(source, options.out, table)
    console.print(table)
    table = _table(f"A random slice of {_N_SLICES}", "before", "after", "faster")
    reading(source, options.out, table)
    console.print(table)
    (options.out / "target.h5").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
