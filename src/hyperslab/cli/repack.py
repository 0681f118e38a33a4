"""``hyperslab repack SOURCE TARGET``: a file written anew for the way in which it is read."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

import hyperslab
from hyperslab.advice.words import duration
from hyperslab.cli.options import parse_codec, parse_shape
from hyperslab.cli.terminal import bytes_progress, console, examples, size
from hyperslab.rewriting import Progress, RepackPlan, RepackReport, repack
from hyperslab.rewriting.rewrite import plan_file

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    ("hyperslab repack cohort.h5 fast.h5 --access '[:, :, k]'", "for training on slices"),
    ("hyperslab repack cohort.h5 fast.h5 --access '[:, :, k]' --codec zstd", "and not larger"),
    ("hyperslab repack cells.ims view.ims --for viewing", "chunks for planes, coarser levels"),
    ("hyperslab repack scan.h5 view.h5 --for viewing --layout scan --axes TZYX", "no known layout"),
    ("hyperslab repack cells.h5 fast.h5 --chunks 16,256,256 --dry-run", "what it would do"),
    ("hyperslab repack cohort.h5 fast.h5 --access '[:, :, k]' --narrow", "float64 as float32"),
    ("hyperslab repack cohort.h5 fast.h5 --access '[:, :, k]' --resume", "after an interruption"),
)

_STAGES = {
    "look": "looking at values",
    "encode": "decoding and encoding",
    "write": "writing",
    "verify": "reading back",
}
_MOST_ROWS = 12


def command(
    source: Annotated[Path, typer.Argument(help="An HDF5 file.", metavar="SOURCE")],
    target: Annotated[Path, typer.Argument(help="The new file.", metavar="TARGET")],
    access: Annotated[
        str | None,
        typer.Option(help="How it will be read, e.g. '[:, :, k]'.", metavar="PATTERN"),
    ] = None,
    chunks: Annotated[
        str | None, typer.Option(help="Or the chunk shape, e.g. 16,256,256.", metavar="N,N,...")
    ] = None,
    for_: Annotated[
        str | None,
        typer.Option(
            "--for", help="Or 'viewing': chunks for planes, and coarser levels.", metavar="WHAT"
        ),
    ] = None,
    layout: Annotated[
        str,
        typer.Option(help="For viewing: the image's layout, template or dataset.", metavar="NAME"),
    ] = "auto",
    axes: Annotated[
        str | None, typer.Option(help="For viewing: letters of its axes, e.g. ZYX.")
    ] = None,
    codec: Annotated[
        str,
        typer.Option(
            help="none, lzf, lz4, zstd, gzip or blosc; auto: none or gzip, by what a sample shows.",
            metavar="NAME",
        ),
    ] = "auto",
    memory: Annotated[
        str, typer.Option(help="Most memory for the data in work, e.g. 2GB.", metavar="SIZE")
    ] = "1GiB",
    dataset: Annotated[
        str | None, typer.Option(help="Rewrite only what matches, e.g. '/MR/*'.", metavar="GLOB")
    ] = None,
    slice_first: Annotated[
        bool, typer.Option("--slice-first", help="Move the axis of the slices to the front.")
    ] = False,
    narrow: Annotated[
        bool,
        typer.Option("--narrow", help="Smaller elements, where all values fit exactly."),
    ] = False,
    integers: Annotated[
        bool,
        typer.Option("--narrow-integers", help="And floats that are whole numbers as such."),
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="To decode and encode with.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a repack that was interrupted.")
    ] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not read the result back.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan, write nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a file anew, in chunks that suit how it is read. `hyperslab doctor` says which.

    Groups, links, attributes and whatever is not rewritten come along. The new file appears under
    its name when it is complete and has been read back; the source is only read.
    """
    how: dict[str, Any] = {
        "access": access,
        "chunks": None if chunks is None else parse_shape(chunks),
        "for_": for_,
        "layout": layout,
        "axes": axes,
        "codec": parse_codec(codec),
        "memory": memory,
        "datasets": dataset,
        "slice_first": slice_first,
        "narrow": "integers" if integers else "same" if narrow else "",
    }
    if sum(each is not None for each in (access, chunks, for_)) != 1:
        raise typer.BadParameter("give one of --access, --chunks and --for viewing")
    if for_ not in (None, "viewing"):
        raise typer.BadParameter(f"--for {for_} is not known; there is viewing")
    if for_ is None and (layout != "auto" or axes is not None):
        raise typer.BadParameter("--layout and --axes go with --for viewing")
    if slice_first and access is None:
        raise typer.BadParameter("--slice-first goes with --access")
    if dry_run:
        plan = plan_file(source, **how)
        if as_json:
            typer.echo(json.dumps(_plan_dict(plan), indent=2))
        else:
            _print_plan(console(), plan)
        return
    with bytes_progress() as bars:
        report = repack(
            source,
            target,
            **how,
            threads=threads,
            resume=resume,
            verify=not no_verify,
            progress=_Bar(bars),
        )
    if report is None:
        raise typer.Exit(1)
    if as_json:
        typer.echo(json.dumps(_report_dict(report), indent=2))
    else:
        _print_report(console(), report)


class _Bar:
    """Shows each stage as a bar."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}

    def __call__(self, now: Progress) -> None:
        if now.stage not in self._tasks:
            words = _STAGES.get(now.stage, now.stage)
            self._tasks[now.stage] = self._bars.add_task(words, total=now.total_nbytes)
        self._bars.update(self._tasks[now.stage], completed=now.done_nbytes)


def _print_plan(out: Console, plan: RepackPlan) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("dataset", "shape", "chunks now", "chunks then"):
        table.add_column(head)
    for head in ("size", "in memory", "decoded"):
        table.add_column(head, justify="right", no_wrap=True)
    for item in plan.rewritten[:_MOST_ROWS]:
        now = "none" if item.level is None else f"added: level {item.level.number}"
        table.add_row(
            Text(item.path),
            str(item.shape),
            str(item.source_chunks or now),
            str(item.chunks),
            size(item.nbytes),
            size(item.region_nbytes),
            "once" if item.decodings < 1.005 else f"{item.decodings:.1f} times",
        )
    out.print(table)
    if len(plan.rewritten) > _MOST_ROWS:
        out.print(f"and {len(plan.rewritten) - _MOST_ROWS} more")
    codec = plan.rewritten[0].codec.name if plan.rewritten else "none"
    n_added = len(plan.levels)
    out.print(
        f"{len(plan.rewritten) - n_added} datasets{_added(n_added)}, {size(plan.nbytes)} decoded, "
        f"to be stored with codec {codec}; {len(plan.copied)} copied as they are."
    )
    _print_why(out, plan)


def _print_report(out: Console, report: RepackReport) -> None:
    rate = report.plan.nbytes / max(report.seconds, 1e-9)
    n_added = len(report.plan.levels)
    read_back = ", read back and compared" if report.verified else ""
    out.print(
        Text.assemble(
            (report.target, "bold"),
            f": {size(report.target_nbytes)}, from {size(report.source_nbytes)}; "
            f"{len(report.plan.rewritten) - n_added} datasets rewritten{_added(n_added)}, "
            f"{len(report.plan.copied)} copied, in {duration(report.seconds)} "
            f"({size(rate)}/s decoded){read_back}.",
        ),
        soft_wrap=True,
    )
    _print_why(out, report.plan)
    if report.resumed_nbytes:
        out.print(f"{size(report.resumed_nbytes)} had been done before.")


def _added(n: int) -> str:
    return f", {n} added for coarser levels" if n else ""


def _narrowed(plan: RepackPlan) -> list[str]:
    """Say what was narrowed, alike datasets together."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for each in plan.narrowed:
        alike.setdefault((each.old, each.new, each.why), []).append(each.path)
    texts = []
    for (old, new, why), paths in alike.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        texts.append(
            f"{paths[0]}{more}: {old} becomes {new}, every value exactly."
            if new
            else f"{paths[0]}{more}: stay {old}. {why[:1].upper()}{why[1:]}."
            if more
            else f"{paths[0]}: stays {old}. {why[:1].upper()}{why[1:]}."
        )
    return texts


def _print_why(out: Console, plan: RepackPlan) -> None:
    if plan.why and plan.rewritten:
        out.print(f"Codec {plan.rewritten[0].codec.name}: {plan.why}.", soft_wrap=True)
    for text in _narrowed(plan):
        out.print(Text(text), soft_wrap=True)
    for note in plan.notes:
        out.print(Text(note), soft_wrap=True)


def _plan_dict(plan: RepackPlan) -> dict[str, Any]:
    return {
        "nbytes": plan.nbytes,
        "memory_nbytes": plan.memory_nbytes,
        "rewritten": [
            {
                "path": item.path,
                "shape": item.shape,
                "order": item.order,
                "source_chunks": item.source_chunks,
                "chunks": item.chunks,
                "codec": item.codec.name,
                "nbytes": item.nbytes,
                "region": item.region,
                "region_nbytes": item.region_nbytes,
                "decodings": item.decodings,
                "level": None if item.level is None else item.level.number,
            }
            for item in plan.rewritten
        ],
        "copied": plan.copied,
        "elsewhere": plan.elsewhere,
        "why": plan.why,
        "narrowed": [asdict(each) for each in plan.narrowed],
        "notes": plan.notes,
    }


def _report_dict(report: RepackReport) -> dict[str, Any]:
    return {
        "hyperslab": hyperslab.__version__,
        "source": report.source,
        "target": report.target,
        "source_nbytes": report.source_nbytes,
        "target_nbytes": report.target_nbytes,
        "seconds": report.seconds,
        "verified": report.verified,
        "resumed_nbytes": report.resumed_nbytes,
        "left_out": report.left_out,
        "plan": _plan_dict(report.plan),
    }
