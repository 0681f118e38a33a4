"""``hyperslab pack FOLDER TARGET``: folders of medical images, as a file that trains."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
from hyperslab.cli.terminal import console, examples, progress, size
from hyperslab.packing import PackedCase, PackReport, Progress, pack
from hyperslab.packing.intensity import parse_map
from hyperslab.packing.patterns import image_name, parse_pattern

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    ("hyperslab pack synthRAD2025/Task1 cohort.h5", "trees of SynthRAD, or of DICOM series"),
    ("hyperslab pack Task1 cohort.h5 --dry-run", "what is there, by the headers"),
    ("hyperslab pack Task1 cohort.h5 --map CT=window:-1000:2000 --map MR=zscore:3", ""),
    ("hyperslab pack data cohort.h5 --pattern 'MR={case}/t1.nii.gz' --pattern 'CT={case}/ct.nii'",
     "any other tree"),
    ("hyperslab pack data cohort.h5 --resample CT --rename", "one grid a case, and no names"),
    ("hyperslab pack Task1 cohort.h5 --resume", "after an interruption"),
)  # fmt: skip

_STAGES = {
    "look": "reading headers",
    "pack": "reading and encoding",
    "write": "writing",
    "verify": "reading back",
}
_MOST_CASES = 12


def command(
    folder: Annotated[
        Path, typer.Argument(help="Where the cases are, at any depth.", metavar="FOLDER")
    ],
    target: Annotated[Path, typer.Argument(help="The new HDF5 file.", metavar="TARGET")],
    pattern: Annotated[
        list[str] | None,
        typer.Option(
            help="Which paths are images: {case}, {image}, *, **/, NAME= in front. Repeatable.",
            metavar="PATTERN",
        ),
    ] = None,
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            help="What becomes of a group's values: GROUP=window:LOW:HIGH, percentiles:LOW:HIGH, "
            "zscore:N, none or mask. Repeatable.",
            metavar="GROUP=MAP",
        ),
    ] = None,
    resample: Annotated[
        str,
        typer.Option(
            help="Bring a case's images onto the grid of this one, e.g. CT.", metavar="GROUP"
        ),
    ] = "",
    require: Annotated[
        str, typer.Option(help="Refuse cases without all of these.", metavar="GROUP,GROUP,...")
    ] = "",
    rename: Annotated[
        bool, typer.Option("--rename", help="Number the cases, write no folder's name.")
    ] = False,
    codec: Annotated[
        str,
        typer.Option(
            help="none, lz4, zstd, gzip or blosc; auto: none or gzip, by what a sample shows.",
            metavar="NAME",
        ),
    ] = "auto",
    chunks: Annotated[
        str | None, typer.Option(help="Chunk shape; by default one slice.", metavar="N,N,N")
    ] = None,
    memory: Annotated[
        str, typer.Option(help="Most memory for the data in work, e.g. 4GB.", metavar="SIZE")
    ] = "2GiB",
    threads: Annotated[int | None, typer.Option(min=1, help="Cases in work at a time.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a pack that was interrupted.")
    ] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not read the result back.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read headers only, write nothing.")
    ] = False,
    show_all: Annotated[bool, typer.Option("--all", help="List every case.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Pack folders of medical images (NIfTI, MetaImage, NRRD, DICOM) into one file for training.

    A group for each kind of image, a dataset for each case, one slice a chunk. Intensities are
    mapped to [-1, 1], and attributes say how to undo that. The exit status is 1 if a case was
    refused: its images lie on different grids, slices are missing, values make no sense. Names of
    folders come along, unless --rename; nothing else that says whose images they are does.
    """
    shape = None if chunks is None else parse_shape(chunks)
    if shape is not None and len(shape) != 3:
        raise typer.BadParameter(f"{chunks!r}: a chunk shape is rows, columns, slices")
    with progress() as bars:
        report = pack(
            folder,
            target,
            patterns=_checked(pattern or []),
            maps=_maps(map_ or []),
            resample=image_name(resample),
            require=[image_name(part.strip()) for part in require.split(",") if part.strip()],
            rename=rename,
            codec=parse_codec(codec),
            chunks=None if shape is None else (shape[0], shape[1], shape[2]),
            memory=memory,
            threads=threads,
            resume=resume,
            verify=not no_verify,
            dry_run=dry_run,
            progress=_Bar(bars),
        )
    if report is None:
        raise typer.Exit(1)
    if as_json:
        typer.echo(json.dumps({"hyperslab": hyperslab.__version__, **report.as_dict()}, indent=2))
    else:
        _print_report(console(), report, dry_run=dry_run, show_all=show_all)
    if report.refused:
        raise typer.Exit(1)


class _Bar:
    """Shows each stage as a bar."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}

    def __call__(self, now: Progress) -> None:
        if now.stage not in self._tasks:
            self._tasks[now.stage] = self._bars.add_task(_STAGES[now.stage], total=now.total)
        self._bars.update(self._tasks[now.stage], completed=now.done)


def _checked(patterns: list[str]) -> list[str]:
    for text in patterns:
        try:
            parse_pattern(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return patterns


def _maps(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        group, separator, rule = text.partition("=")
        try:
            if not (group and separator):
                raise ValueError(f"{text!r}: write it like CT=window:-1000:2000.")
            parse_map(rule)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        found[image_name(group)] = rule
    return found


def _print_report(out: Console, report: PackReport, *, dry_run: bool, show_all: bool) -> None:
    if report.cases:
        shown = report.cases if show_all else report.cases[:_MOST_CASES]
        out.print(_case_table(shown))
        if len(report.cases) > len(shown):
            out.print(f"and {len(report.cases) - len(shown)} more (--all shows them)")
    for case in report.cases:
        for image in case.images:
            if image.note:
                out.print(Text(f"{case.case} {image.image}: {image.note}."), soft_wrap=True)
    for refusal in report.refused:
        out.print(Text.assemble(("Refused ", "bold red"), f"{refusal.folder}: {refusal.reason}."),
                  soft_wrap=True)  # fmt: skip
    if report.ignored:
        out.print(Text(f"No case claims {_listed(report.ignored)}."), soft_wrap=True)
    n = len(report.cases)
    cases = f"{n} case{'' if n == 1 else 's'}"
    refused = f", {len(report.refused)} refused" if report.refused else ""
    if dry_run:
        out.print(f"{cases} to pack{refused}; {size(report.nbytes)} decoded.")
        return
    for group, (codec, why) in report.codecs.items():
        out.print(f"{group}: codec {codec}{'; ' + why if why else ''}.", soft_wrap=True)
    if not report.target:
        out.print("No case could be packed, so there is no file.")
        return
    read_back = ", read back and compared" if report.verified else ""
    resumed = f" {report.resumed} images had been done before." if report.resumed else ""
    out.print(
        Text.assemble(
            (report.target, "bold"),
            f": {size(report.target_nbytes)}, {cases}{refused}, {size(report.nbytes)} decoded, "
            f"in {duration(report.seconds)}{read_back}.{resumed}",
        ),
        soft_wrap=True,
    )


def _case_table(cases: Sequence[PackedCase]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("case", "image", "shape", "spacing, mm", "source"):
        table.add_column(head, no_wrap=head in ("shape", "spacing, mm"))
    done = any(image.stored_range for case in cases for image in case.images)
    table.add_column("map")
    if done:
        table.add_column("stored")
        table.add_column("clipped", justify="right")
    for case in cases:
        for i, image in enumerate(case.images):
            cells = [
                "×".join(map(str, image.shape)),
                "×".join(f"{value:.3g}" for value in image.spacing),
                f"{image.source_dtype} {_ends(image.source_range)}".strip(),
                image.mapping + (", resampled" if image.resampled else ""),
            ]
            if done:
                clipped = None if image.window is None else image.clipped
                cells.append(_ends(image.stored_range))
                cells.append("" if clipped is None else f"{clipped:.1%}")
            table.add_row(Text(case.case if i == 0 else ""), Text(image.image), *cells)
    return table


def _ends(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"{ends[0]:.4g} … {ends[1]:.4g}"


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
