"""``hyperslab doctor FILE``: why a file is slow to read, and what to do about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import hyperslab
from hyperslab.advice import Advice, KindAdvice, Machine, advise
from hyperslab.advice.words import best_option, duration
from hyperslab.cli.doctor_report import report_html
from hyperslab.cli.doctor_words import (
    WAYS,
    machine_words,
    names,
    notes,
    of_now,
    rates_words,
    seconds,
    storage,
)
from hyperslab.cli.terminal import console, examples, exit_status, notices, progress, size, times
from hyperslab.errors import DamagedFileError, NotHDF5Error

__all__ = ["EXAMPLES", "command", "print_advice"]

_WIDE = 100  # columns, for all that there is to say

EXAMPLES = examples(
    ("hyperslab doctor cohort.h5", "by the slice, by the patch and as a whole"),
    ("hyperslab doctor cohort.h5 --access '[:, :, k]' --dataset '/MR/*'", "what you do with it"),
    ("hyperslab doctor cohort.h5 --html report.html", "with pictures"),
    ("hyperslab doctor cells.ims --json | jq '.kinds[0].patterns'", "the same for programs"),
)


def command(
    file: Annotated[Path, typer.Argument(help="An HDF5 file.", metavar="FILE")],
    access: Annotated[
        list[str] | None,
        typer.Option(
            help="How it is read, e.g. '[:, :, k]', 'patch 96x96x96'; may be repeated.",
            metavar="PATTERN",
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Only datasets that match, e.g. '/MR/*'.", metavar="GLOB")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a report with pictures there.", metavar="OUT.html"),
    ] = None,
) -> None:
    """Say in numbers why a file is slow to read, and what would make it faster.

    Measures for a few seconds on the file's own chunks. The exit status is 0 if storing the data
    otherwise gains nothing, 1 if it would make requests of the first pattern, at random places, at
    least twice as fast.
    """
    if html is not None and not html.absolute().parent.is_dir():  # before it has taken seconds
        raise typer.BadParameter(f"{html}: there is no such folder")
    with progress() as bars:
        bars.add_task("measuring", total=None)
        found = _advise(file, access, dataset)
    if html is not None:
        html.write_text(report_html(found), encoding="utf-8")
    if as_json:
        report = {"hyperslab": hyperslab.__version__, **found.as_dict()}
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print_advice(console(), found)
        if html is not None:
            notices().print(Text(f"written to {html}", "dim"), soft_wrap=True)
    if found.slow:
        raise typer.Exit(1)


def _advise(file: Path, access: list[str] | None, dataset: str | None) -> Advice:
    try:
        return advise(file, access=access, datasets=dataset)
    except (DamagedFileError, NotHDF5Error) as error:
        if exit_status(error) == 1:  # an HDF5 file, and not whole
            notices().print(f"`hyperslab verify {file}` says what of it is intact.", soft_wrap=True)
        raise


def print_advice(out: Console, found: Advice) -> None:
    """Print what there is to say."""
    out.print(Text(found.verdict, "bold yellow" if found.slow else "bold green"))
    if found.command:
        out.print()
        out.print(Text(f"  {found.command}", "cyan"), soft_wrap=True)
    for kind in found.kinds:
        out.print()
        _print_kind(out, kind, found.machine)
    out.print()
    for line in found.left_out:
        out.print(Text.assemble(("! ", "yellow"), line))
    out.print(Text(machine_words(found.machine), "dim"))


def _print_kind(out: Console, kind: KindAdvice, machine: Machine) -> None:
    out.print(Text.assemble((names(kind), "bold"), f": {storage(kind)}"))
    out.print(Text(rates_words(kind), "dim"))
    out.print(_pattern_table(kind, wide=out.width >= _WIDE))
    lines = Table.grid(padding=(0, 1))
    for line in notes(kind, machine):
        lines.add_row("", Text(line, "dim"))
    for finding in kind.findings:
        lines.add_row(Text("!" if finding.costs else "", "yellow"), Text(finding.text))
    out.print(lines)
    if kind.options:
        out.print()
        out.print(_option_table(kind, machine))


def _pattern_table(kind: KindAdvice, *, wide: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("a request", no_wrap=True)
    sizes = ("decoded", "used") if wide else ()
    for head in ("chunks", *sizes, "ratio", "h5py", "in order", "hyperslab", "in order"):
        table.add_column(head, justify="right", no_wrap=True)
    for pattern in kind.patterns:
        table.add_row(
            Text(pattern.access),  # brackets would be taken for markup
            f"{pattern.chunks_touched:,.0f}" if pattern.chunks_touched else "-",
            *((size(pattern.decoded_nbytes), size(pattern.used_nbytes)) if wide else ()),
            times(pattern.amplification),
            *(seconds(pattern, by) for by in WAYS),
        )
    return table


def _option_table(kind: KindAdvice, machine: Machine) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(f"after a repack, {kind.patterns[0].access}".replace("[", r"\["))
    for head in ("on disk", "of now", "repack takes", "h5py", "hyperslab"):
        table.add_column(head, justify="right", no_wrap=True)
    best = best_option(kind, machine)
    for option in kind.options:
        h5py = option.predicted_s["h5py"]
        table.add_row(
            f"{option.chunks}, {option.codec}",
            size(option.stored_nbytes),
            of_now(option, kind),
            duration(option.repack_s),
            "cannot" if h5py is None else duration(h5py) + ("*" if option.needs_plugin else ""),
            duration(option.ours_s),
            style="green" if option is best else "",
        )
    if any(option.needs_plugin for option in kind.options):
        table.caption = "* h5py needs hdf5plugin"
        table.caption_justify = "left"
    return table
