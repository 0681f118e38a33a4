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
from hyperslab.advice import Advice, KindAdvice, advise
from hyperslab.advice.words import duration
from hyperslab.cli.terminal import console, examples, progress, size, times

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    ("hyperslab doctor cohort.h5", "by the slice, by the patch and as a whole"),
    ("hyperslab doctor cohort.h5 --access '[:, :, k]' --dataset '/MR/*'", "what you do with it"),
    ("hyperslab doctor cells.ims --json | jq '.kinds[0].patterns'", "the same for programs"),
)

_MOST_NAMES = 2


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
) -> None:
    """Say in numbers why a file is slow to read, and what would make it faster.

    Measures for a second or two on the file's own chunks. The exit status is 1 if storing the data
    otherwise would make requests of the first pattern at least twice as fast.
    """
    with progress() as bars:
        bars.add_task("measuring", total=None)
        found = advise(file, access=access, datasets=dataset)
    if as_json:
        report = {"hyperslab": hyperslab.__version__, **found.as_dict()}
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print(console(), found)
    if found.slow:
        raise typer.Exit(1)


def _print(out: Console, found: Advice) -> None:
    out.print(Text(found.verdict, "bold yellow" if found.slow else "bold green"))
    if found.command:
        out.print()
        out.print(Text(f"  {found.command}", "cyan"), soft_wrap=True)
    for kind in found.kinds:
        out.print()
        _print_kind(out, kind)


def _print_kind(out: Console, kind: KindAdvice) -> None:
    names = ", ".join(kind.datasets[:_MOST_NAMES])
    n_more = len(kind.datasets) - _MOST_NAMES
    more = f" and {n_more} more" if n_more > 0 else ""
    how = [str(kind.shape), kind.dtype]
    how.append(f"chunks {kind.chunks}" if kind.chunks else kind.storage)
    how += ["+".join(kind.filters)] if kind.filters else []
    out.print(Text.assemble((f"{names}{more}", "bold"), f": {', '.join(how)}"))
    rates = kind.rates
    cold = "cold, if the system let go of it" if rates["disk_cold"] else "perhaps from memory"
    out.print(
        Text(
            f"decoded at {size(float(rates['decode'] or 0))}/s by all threads; file read at "
            f"{size(float(rates['disk'] or 0))}/s, {cold}",
            "dim",
        )
    )
    out.print(_pattern_table(kind))
    for finding in kind.findings:
        out.print(Text.assemble(("! " if finding.costs else "  ", "yellow"), finding.text))


def _pattern_table(kind: KindAdvice) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("a request")
    for head in ("chunks", "decoded", "used", "decoded/used", "h5py", "hyperslab", "in order"):
        table.add_column(head, justify="right", no_wrap=True)
    for pattern in kind.patterns:
        table.add_row(
            Text(pattern.access),  # brackets would be taken for markup
            f"{pattern.chunks_touched:,.0f}" if pattern.chunks_touched else "-",
            size(pattern.decoded_nbytes),
            size(pattern.used_nbytes),
            times(pattern.amplification),
            *(
                _seconds(pattern.predicted_s, pattern.measured_s, by)
                for by in ("h5py", "hyperslab")
            ),
            duration(pattern.predicted_s["hyperslab_in_order"]),
        )
    for i, option in enumerate(kind.options):
        words = f"  stored as {option.chunks}, {option.codec}"
        table.add_row(
            Text(words, "dim" if i else "green"),
            "",
            "",
            "",
            f"{size(option.stored_nbytes)} on disk",
            duration(option.predicted_s["h5py"]) + ("*" if option.needs_plugin else ""),
            duration(option.predicted_s["hyperslab"]),
            "",
        )
    if any(option.needs_plugin for option in kind.options):
        table.caption = (
            "stored as: predicted for the first request, after a repack. * h5py needs hdf5plugin."
        )
        table.caption_justify = "left"
    return table


def _seconds(predicted: dict[str, float], measured: dict[str, float] | None, by: str) -> str:
    """Return what was measured, or, in brackets, what is predicted."""
    if measured is None:
        return f"({duration(predicted[by])})"
    return duration(measured[by])
