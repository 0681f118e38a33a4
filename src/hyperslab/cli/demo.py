"""``hyperslab demo``: small files, both jobs on them, a table and pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from hyperslab.cli.jobs import training_works, viewing_works
from hyperslab.cli.pictures import draw_cells_picture, draw_cohort_picture
from hyperslab.cli.terminal import console, examples, program, progress, size
from hyperslab.cli.timing import Comparison, Work, compare, machine_facts, machine_line, table
from hyperslab.errors import MissingExtraError, OutputError
from hyperslab.testing import make_cells, make_cohort

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    ("hyperslab demo", "half a minute; writes 140 MB into hyperslab-demo/"),
    ("hyperslab demo --size small --out tryout", "a few seconds, elsewhere"),
)


class _Size(StrEnum):
    SMALL = "small"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Sizes of the files, and how long to measure: most pairs of reads, and seconds a work."""

    n_cases: int
    case: tuple[int, int, int]
    image: tuple[int, int, int, int, int]
    chunks: tuple[int, int, int]
    repeat: int
    seconds: float


_PLANS = {
    _Size.SMALL: _Plan(
        n_cases=4,
        case=(96, 96, 24),
        image=(2, 3, 8, 180, 200),
        chunks=(8, 64, 64),
        repeat=3,
        seconds=0.5,
    ),
    _Size.FULL: _Plan(
        n_cases=6,
        case=(256, 256, 60),
        image=(3, 3, 24, 500, 500),
        chunks=(8, 256, 256),
        repeat=15,
        seconds=1.5,
    ),
}


def command(
    out: Annotated[
        Path, typer.Option(help="Folder for files and pictures; made if need be.", metavar="DIR")
    ] = Path("hyperslab-demo"),
    how_large: Annotated[_Size, typer.Option("--size", help="Size of the files.")] = _Size.FULL,
) -> None:
    """Write two small files, do both jobs on them, and show the result.

    A cohort of MR, CT and MASK volumes is read as a training loop reads it, and a 5-D Imaris image
    as a viewer does: by h5py and by hyperslab in turn, with results that are compared bit for bit
    first. Pictures of both go into the folder (with matplotlib: the extra plot).
    """
    import h5py

    plan = _PLANS[how_large]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{out}: cannot be made: {error.strerror}. Name another one.") from error
    cohort, cells = out / "cohort.h5", out / "cells.ims"

    def open_h5(path: Path) -> h5py.File:
        return h5py.File(path, "r", locking=False)

    with progress() as bars:
        task = bars.add_task("", total=10)

        def step(what: str) -> None:
            bars.update(task, description=what, advance=1)

        step("writing cohort.h5")
        make_cohort(cohort, n_cases=plan.n_cases, shape=plan.case)
        step("writing cells.ims")
        make_cells(cells, shape=plan.image, chunks=plan.chunks)
        with open_h5(cohort) as h5:
            works, how = training_works(str(cohort), h5)
            training = _measure(works, plan, step)
        with open_h5(cells) as h5:
            works = viewing_works(str(cells), lambda: open_h5(cells), h5)
            viewing = _measure(works, plan, step)
        step("drawing pictures")
        pictures, missing = _draw(cohort, cells)

    report = console()
    sections = {f"Training: {_told(cohort)}": training, f"Viewing: {_told(cells)}": viewing}
    report.print(table(sections))
    notes = [
        "Medians of reads in turn; page cache warm, chunk caches empty; MB/s of the result.",
        how,
        f"{machine_line(machine_facts(h5py.version.hdf5_version))}.",
    ]
    if how_large is _Size.SMALL:
        notes.append("Files as small as these show little: --size full takes half a minute.")
    report.print("\n" + " ".join(notes), style="dim")
    _say_where(report, [cohort, cells, *pictures], missing)
    _say_what_next(report, cohort, cells)


def _measure(works: Sequence[Work], plan: _Plan, step: Callable[[str], None]) -> list[Comparison]:
    found = []
    for work in works:
        step(work.title)
        found.append(compare(work, repeat=plan.repeat, seconds=plan.seconds))
    return found


def _draw(cohort: Path, cells: Path) -> tuple[list[Path], str]:
    """Draw the pictures; return where they are, or why there are none."""
    pictures = [cohort.with_suffix(".png"), cells.with_suffix(".png")]
    try:
        draw_cohort_picture(cohort, pictures[0])
        draw_cells_picture(cells, pictures[1])
    except MissingExtraError as error:
        return [], error.message
    return pictures, ""


def _told(path: Path) -> str:
    return f"{path.name} ({size(path.stat().st_size)})"


def _say_where(report: Console, paths: Sequence[Path], missing: str) -> None:
    report.print("\n[bold]Written[/]")
    for path in paths:
        report.print(f"  {path}", soft_wrap=True, markup=False)
    if missing:
        report.print(Text(f"  No pictures: {missing}", "yellow"), soft_wrap=True)


def _say_what_next(report: Console, cohort: Path, cells: Path) -> None:
    report.print("\n[bold]To try next[/]")
    me = program()
    for line in (f"{me} info {cohort}", f"{me} info {cells}", f"{me} bench {cells}"):
        report.print(Text(f"  {line}", "cyan"), soft_wrap=True)
    report.print("\n[bold]In Python[/]")
    for line in (
        "import hyperslab as hs",
        f"image = hs.open_image({str(cells)!r})",
        "plane = image[0, 1, 4]                 # time point 0, channel 1, plane 4",
        f"cohort = hs.open({str(cohort)!r})",
        "slice_ = cohort['MR/1PA001'][..., 12]  # a numpy.ndarray",
    ):
        report.print(Text(f"  {line}", "cyan"), soft_wrap=True)
