"""``hyperslab demo``: small files, both jobs on them, a table and pictures."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from hyperslab.array import Array, read_many
from hyperslab.cli.pictures import draw_cells_picture, draw_cohort_picture
from hyperslab.cli.terminal import console, examples, notices, progress, size
from hyperslab.cli.timing import Comparison, Work, compare, machine_facts, machine_line, table
from hyperslab.errors import MissingExtraError, OutputError
from hyperslab.file import open_file
from hyperslab.image import Image, open_image
from hyperslab.testing import make_cohort, make_imaris

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    ("hyperslab demo", "half a minute; writes into hyperslab-demo/"),
    ("hyperslab demo --size small --out /tmp/demo", "a few seconds, elsewhere"),
)

_BATCH = 32
_INPUTS = {"A": "MR", "B": "CT", "M": "MASK"}


class Size(StrEnum):
    """How large the files are."""

    small = "small"
    full = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Sizes of the files, and how long to measure: most pairs, seconds a work."""

    n_cases: int
    case: tuple[int, int, int]
    image: tuple[int, int, int, int, int]
    chunks: tuple[int, int, int]
    repeat: int
    seconds: float


_PLANS = {
    Size.small: _Plan(
        n_cases=4,
        case=(96, 96, 24),
        image=(2, 3, 8, 180, 200),
        chunks=(8, 64, 64),
        repeat=3,
        seconds=0.5,
    ),
    Size.full: _Plan(
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
    size: Annotated[Size, typer.Option(help="Size of the files.")] = Size.full,
) -> None:
    """Write two small files, do both jobs on them, and show the result.

    A cohort of MR, CT and MASK volumes is read as a training loop reads it, and a 5-D Imaris image
    as a viewer does: by h5py and by hyperslab in turn, with results that are compared bit for bit
    first. Pictures of both go into the folder (with matplotlib: the extra plot).
    """
    import h5py

    plan = _PLANS[size]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{out}: cannot be made: {error.strerror}. Name another folder.") from error
    cohort, cells = out / "cohort.h5", out / "cells.ims"
    with progress() as bars:
        task = bars.add_task("", total=5)

        def step(what: str) -> None:
            bars.update(task, description=what, advance=1)

        step("writing cohort.h5")
        make_cohort(cohort, n_cases=plan.n_cases, shape=plan.case)
        step("writing cells.ims")
        make_imaris(cells, shape=plan.image, chunks=plan.chunks, voxel=(0.9, 0.25, 0.25))
        step("training: reading batches")
        training, how = _train(cohort, plan)
        step("viewing: reading planes")
        viewing = _view(cells, plan)
        step("drawing pictures")
        pictures = _draw(cohort, cells, out)

    report = console()
    report.print(
        table(
            {
                f"Training, {_told(cohort)}": training,
                f"Viewing, {_told(cells)}": viewing,
            }
        )
    )
    line = machine_line(machine_facts(h5py.version.hdf5_version))
    report.print(
        f"\nMedians of reads in turn, equal bit for bit; page cache warm. {how} {line}.", style="dim"
    )
    _say_what_next(report, cohort, cells, pictures)


def _told(path: Path) -> str:
    return f"{path.name} ({size(path.stat().st_size)})"


def _train(path: Path, plan: _Plan) -> tuple[list[Comparison], str]:
    """Read batches of paired slices; also return how hyperslab did it."""
    import h5py

    dice = random.Random(0)
    opened = open_file(path)
    cases = list(opened["MR"])  # type: ignore[arg-type]
    arrays = {(name, case): opened[f"{group}/{case}"] for name, group in _INPUTS.items() for case in cases}
    n_slices = plan.case[2]
    
    raise SystemExit
