"""``hyperslab convert FILE TARGET``: an image in a format that other programs read."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import hyperslab
from hyperslab.advice.words import duration
from hyperslab.cli.options import parse_shape
from hyperslab.cli.terminal import bytes_progress, console, examples, size
from hyperslab.conversion import ConversionReport, ZarrPlan, convert, plan_conversion
from hyperslab.image import list_images

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    ("hyperslab convert cells.ims cells.ome.zarr", "all levels, for viewers and the web"),
    ("hyperslab convert cells.ims cells.ome.zarr --resume", "after an interruption"),
    ("hyperslab convert cells.ims coarse.tif --level 2", "one level, for Fiji"),
    ("hyperslab convert cells.ims part.npy --select '0, :, 10:20'", "a part, for NumPy"),
)


def command(
    file: Annotated[
        Path, typer.Argument(help="An HDF5 file, or an xml of BigDataViewer.", metavar="FILE")
    ],
    target: Annotated[
        Path, typer.Argument(help="OUT.ome.zarr, OUT.npy or OUT.tif.", metavar="TARGET")
    ],
    layout: Annotated[
        str, typer.Option(help="Layout, template or dataset to see as an image.", metavar="NAME")
    ] = "auto",
    axes: Annotated[
        str | None, typer.Option(help="Axes of that dataset, e.g. ZYX.", metavar="LETTERS")
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(help="Which of several images, by name or number.", metavar="NAME"),
    ] = None,
    level: Annotated[
        int, typer.Option(min=0, help="The finest level to convert; 0 is the finest there is.")
    ] = 0,
    select: Annotated[
        str | None,
        typer.Option(help="A part, for .npy and .tif, e.g. '0, :, 10:20'.", metavar="INDEX"),
    ] = None,
    chunks: Annotated[
        str | None, typer.Option(help="Chunk shape of .ome.zarr.", metavar="N,N,...")
    ] = None,
    shards: Annotated[
        str | None, typer.Option(help="Shard shape of .ome.zarr.", metavar="N,N,...")
    ] = None,
    codec: Annotated[
        str | None,
        typer.Option(help="Of .ome.zarr: blosc (default), zstd, gzip or none.", metavar="NAME"),
    ] = None,
    memory: Annotated[
        str, typer.Option(help="Most memory for the data in work, e.g. 2GB.", metavar="SIZE")
    ] = "1GiB",
    threads: Annotated[int | None, typer.Option(min=1, help="To decode and encode with.")] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(help="Have a dask.distributed cluster do it.", metavar="ADDRESS"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a conversion that was interrupted.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan, write nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Convert an image to OME-Zarr 0.5, to one array for NumPy, or to an OME-TIFF.

    The target appears under its name when it is complete; the source is only read.
    """
    if axes is not None and layout == "auto":
        raise typer.BadParameter("--axes needs --layout, the dataset that has them")
    how: dict[str, Any] = {
        "layout": layout,
        "axes": axes,
        "image": None if image is None else _name_or_number(image, file, layout, axes),
        "level": level,
        "selection": Ellipsis if select is None else _selection(select),
        "chunks": None if chunks is None else parse_shape(chunks),
        "shards": None if shards is None else parse_shape(shards),
        "codec": codec,
        "memory": memory,
        "threads": threads,
    }
    if dry_run:
        _, plan = plan_conversion(file, target, **how)
        if as_json:
            typer.echo(json.dumps(asdict(plan), indent=2, default=repr))
        else:
            _print_plan(console(), plan)
        return
    with bytes_progress() as bars:
        task = bars.add_task("converting", total=None)
        report = convert(
            file,
            target,
            **how,
            scheduler=scheduler,
            resume=resume,
            progress=lambda done, total: bars.update(task, completed=done, total=total),
        )
    if report is None:
        raise typer.Exit(1)
    if as_json:
        found = {"hyperslab": hyperslab.__version__, **asdict(report)}
        typer.echo(json.dumps(found, indent=2, default=repr))
    else:
        _print_report(console(), report)


def _name_or_number(text: str, file: Path, layout: str, axes: str | None) -> str | int:
    names = list_images(file, layout) if axes is None else ()
    return int(text) if text.isdecimal() and text not in names else text


def _selection(text: str) -> tuple[Any, ...]:
    """Read an index such as "0, :, 10:20"."""
    found: list[Any] = []
    for part in text.strip("[]() ").split(","):
        entry = part.strip()
        if entry == "...":
            found.append(Ellipsis)
        elif re.fullmatch(r"-?\d+", entry):
            found.append(int(entry))
        elif match := re.fullmatch(r"(-?\d+)?\s*:\s*(-?\d+)?", entry):
            found.append(slice(*(None if n is None else int(n) for n in match.groups())))
        else:
            raise typer.BadParameter(f"{entry!r} is no index; write it like '0, :, 10:20'")
    return tuple(found)


def _print_plan(out: Console, plan: Any) -> None:
    if not isinstance(plan, ZarrPlan):
        n_regions = sum(1 for _ in plan.regions())
        out.print(
            f"{plan.axes} {plan.shape} {plan.dtype}, {size(plan.nbytes)}, in {n_regions} parts."
        )
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("level", f"shape ({plan.axes})", "chunks", "shards"):
        table.add_column(head)
    for head in ("size", "in memory", "decoded"):
        table.add_column(head, justify="right", no_wrap=True)
    for item in plan.levels:
        decoded = "once" if item.decodings < 1.005 else f"{item.decodings:.1f} times"
        table.add_row(
            str(item.number),
            str(item.shape),
            str(item.chunks),
            str(item.shards),
            size(item.nbytes),
            size(item.region_nbytes),
            "made" if item.made else decoded,
        )
    out.print(table)
    out.print(f"{size(plan.nbytes)} decoded, to be stored as {plan.dtype} with codec {plan.codec}.")


def _print_report(out: Console, report: ConversionReport) -> None:
    rate = report.nbytes / max(report.seconds, 1e-9)
    out.print(
        Text.assemble(
            (report.target, "bold"),
            f": {size(report.target_nbytes)}, of {size(report.nbytes)} decoded, in "
            f"{duration(report.seconds)} ({size(rate)}/s).",
        ),
        soft_wrap=True,
    )
    if report.resumed_nbytes:
        out.print(f"{size(report.resumed_nbytes)} had been done before.")
