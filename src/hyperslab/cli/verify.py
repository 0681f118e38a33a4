"""``hyperslab verify FILE``: is a file whole, and if not, what of it is?"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import hyperslab
from hyperslab.cli.terminal import console, examples, size
from hyperslab.soundness import CaseReport, DatasetReport, Report, as_dict, verify
from hyperslab.soundness.slices import slice_words

__all__ = ["EXAMPLES", "command"]

_T = TypeVar("_T")

_MOST_ROWS = 12
_MOST_NAMES = 24

EXAMPLES = examples(
    ("hyperslab verify cohort.h5", "read and decode every chunk"),
    ("hyperslab verify cohort.h5 --quick", "only see that everything is where it should be"),
    ("hyperslab verify cohort.h5 --json | jq '.cases[] | select(.intact) | .name'", "whole cases"),
)


def command(
    file: Annotated[Path, typer.Argument(help="An HDF5 file.", metavar="FILE")],
    quick: Annotated[bool, typer.Option("--quick", help="Decode nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, unfolded.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Fold nothing.")] = False,
    axis: Annotated[
        int, typer.Option(help="The slice axis; 0 for (slices, H, W).", metavar="N")
    ] = -1,
    timeout: Annotated[
        float,
        typer.Option(help="Most seconds for one step of the HDF5 library.", metavar="S", min=0.1),
    ] = 60.0,
) -> None:
    """Check that a file is whole; of a damaged one, say which datasets, cases and slices are.

    Every chunk is decoded, and checksums are compared where there are any. A file that makes the
    HDF5 library crash or hang does no harm. The exit status is 1 if anything is wrong, or cannot be
    checked.
    """
    found = verify(file, quick=quick, axis=axis, timeout_s=timeout, progress=sys.stderr.isatty())
    if as_json:
        report = {"hyperslab": hyperslab.__version__, **as_dict(found)}
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print(console(), found, math.inf if everything else 1)
    if not found.sound:
        raise typer.Exit(1)


def _print(out: Console, found: Report, more: float) -> None:
    """Print the report; `more` times the usual number of rows of each kind."""
    out.print(_verdict(found), soft_wrap=True)
    bad = [dataset for dataset in found.datasets if dataset.state == "damaged"]
    unchecked = [dataset for dataset in found.datasets if dataset.state == "unchecked"]
    intact = [dataset.name for dataset in found.datasets if dataset.state == "intact"]
    n_rows, n_names = _MOST_ROWS * more, _MOST_NAMES * more
    folded = max(len(bad), len(unchecked), len(found.problems)) > n_rows
    if not found.sound and found.cases:
        folded |= _print_cases(out, found.cases, n_rows, n_names)
    if bad:
        out.print()
        out.print(_table(_first(bad, n_rows), found.axis))
        _print_rest(out, len(bad) - n_rows, "damaged datasets")
    if not found.sound and intact and not found.cases:
        out.print()
        out.print(Text.assemble(("intact    ", "green"), _names(intact, n_names)), soft_wrap=True)
        folded |= len(intact) > n_names
    for i, dataset in enumerate(_first(unchecked, n_rows)):
        line = Text.assemble(("Cannot be checked: ", "bold yellow"), dataset.name)
        out.print("" if i else "\n", line, f": {dataset.unchecked}", sep="", soft_wrap=True)
    _print_rest(out, len(unchecked) - n_rows, "datasets that cannot be checked")
    for i, problem in enumerate(_first(found.problems, n_rows)):
        where, reason = problem.where, problem.reason
        told = reason if not where or where in reason else f"{where}: {reason}"
        line = Text.assemble(("Problem: ", "bold red"), (told, "red"))
        out.print("" if i else "\n", line, sep="", soft_wrap=True)
    _print_rest(out, len(found.problems) - n_rows, "problems")
    if folded:
        out.print("\n[dim]--all shows everything.[/]")


def _print_rest(out: Console, n: float, what: str) -> None:
    if n > 0:
        out.print(Text(f"... and {n:,.0f} more {what}", "dim"))


def _first(some: Sequence[_T], most: float) -> Sequence[_T]:
    return some[: int(min(most, len(some)))]


def _verdict(found: Report) -> Text:
    n, n_chunks = len(found.datasets), sum(dataset.n_chunks for dataset in found.datasets)
    what = f"{n:,} dataset{'' if n == 1 else 's'}, {n_chunks:,} chunk{'' if n_chunks == 1 else 's'}"
    name = (found.file, "bold")
    if found.sound:
        how = "nothing wrong was found (and nothing decoded)" if found.quick else "sound"
        return Text.assemble(name, ": ", (how, "bold green"), f". {what}, {size(found.nbytes)}.")
    n_bad = sum(dataset.state == "damaged" for dataset in found.datasets)
    n_unchecked = sum(dataset.state == "unchecked" for dataset in found.datasets)
    parts = []
    if found.truncated and found.expected_nbytes and found.percent_present is not None:
        percent = min(found.percent_present, 99.9)  # never rounded up to all of it
        parts.append(
            f"{percent:.1f}% present ({size(found.nbytes)} of {size(found.expected_nbytes)})"
        )
    if n_bad:
        parts.append(f"{n_bad:,} of {n:,} datasets are damaged")
    if n_unchecked:
        parts.append(f"{n_unchecked:,} of {n:,} datasets cannot be checked")
    if found.problems:
        n_problems = len(found.problems)
        besides = " besides" if parts else ""
        parts.append(f"{n_problems:,} problem{'' if n_problems == 1 else 's'}{besides}")
    if found.truncated:
        word, style = "truncated", "bold red"
    elif found.state == "unchecked":
        word, style = "no damage was found, but not all could be checked", "bold yellow"
    else:
        word, style = "not whole", "bold red"
    return Text.assemble(name, ": ", (word, style), f". {'; '.join(parts)}.")


def _print_cases(out: Console, cases: Sequence[CaseReport], n_rows: float, n_names: float) -> bool:
    """Print which cases of a cohort are whole; tell whether any were folded."""
    intact = [case.name for case in cases if case.intact]
    bad = [case for case in cases if not case.intact]
    out.print()
    head = (f"{len(intact):,} of {len(cases):,} cases are whole", "green" if intact else "red")
    names = f": {_names(intact, n_names)}" if intact else ""
    out.print(Text.assemble(head, names), soft_wrap=True)
    for case in _first(bad, n_rows):
        slices = "not known" if case.intact_slices is None else slice_words(case.intact_slices)
        told = f": {', '.join(case.bad)} damaged; slices that are whole in all inputs: {slices}"
        out.print(Text.assemble((case.name, "red"), told), soft_wrap=True)
    _print_rest(out, len(bad) - n_rows, "damaged cases")
    return len(bad) > n_rows or len(intact) > n_names


def _names(names: Sequence[str], most: float) -> str:
    more = len(names) - most
    return ", ".join(_first(names, most)) + (f" and {more:,.0f} more" if more > 0 else "")


def _table(datasets: Sequence[DatasetReport], axis: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("damaged dataset", overflow="fold")
    table.add_column("shape", no_wrap=True)
    table.add_column("damaged", justify="right")
    table.add_column(f"whole slices, axis {axis}", overflow="fold")
    table.add_column("the first damage", overflow="fold")
    for dataset in datasets:
        shape = dataset.shape or ()
        n = shape[axis] if -len(shape) <= axis < len(shape) else None
        slices = dataset.intact_slices
        first = dataset.damage[0]
        where = "" if first.chunk is None else f"chunk {first.chunk}"
        if first.byte_offset is not None:
            where += f"{' ' if where else ''}at byte {first.byte_offset}"
        n_bad = f"{dataset.n_bad:,}"
        table.add_row(
            Text(dataset.name),
            str(dataset.shape),
            f"{n_bad} of {dataset.n_chunks:,} chunks" if dataset.n_chunks else n_bad,
            "-" if slices is None else slice_words(slices, n),
            Text(f"{where}: {first.reason}" if where else first.reason),
        )
    return table
