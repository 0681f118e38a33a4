"""``hyperslab info FILE``: what is in a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

import hyperslab
from hyperslab.cli.layout import describe_layout, layout_lines
from hyperslab.cli.listing import (
    Fold,
    Node,
    Row,
    build_nodes,
    datasets,
    filter_words,
    list_rows,
    shape_words,
)
from hyperslab.cli.terminal import console, examples, progress, size, times
from hyperslab.file import open_file
from hyperslab.index.session import session
from hyperslab.index.tree import DatasetFacts, Entry, walk_file

__all__ = ["EXAMPLES", "command"]

_MOST_PROBLEMS = 12

EXAMPLES = examples(
    ("hyperslab info cohort.h5", "groups, datasets, sizes and layout; what is alike is folded"),
    ("hyperslab info cells.ims --all", "every object of the file"),
    ("hyperslab info plain.h5 --layout data --axes TZYX", "a dataset seen as an image"),
    ("hyperslab info cohort.h5 --json | jq '.objects[].path'", "the same for programs"),
)


def command(
    file: Annotated[Path, typer.Argument(help="An HDF5 file.", metavar="FILE")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, unfolded.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Fold nothing.")] = False,
    layout: Annotated[
        str, typer.Option(help="Layout, template or dataset to see as an image.", metavar="NAME")
    ] = "auto",
    axes: Annotated[
        str | None, typer.Option(help="Axes of that dataset, e.g. ZYX.", metavar="LETTERS")
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="Only this one of several images.", metavar="NAME")
    ] = None,
) -> None:
    """Show what is in a file: shapes, chunks, filters, sizes, and its images if it has any.

    Reads metadata only. The exit status is 1 if something in the file cannot be read, a link that
    leads nowhere for instance.
    """
    if axes is not None and layout == "auto":
        raise typer.BadParameter("--axes needs --layout, the dataset that has them")
    path = open_file(file).path
    entries = _load(path)
    root = build_nodes(entries)
    found = describe_layout(path, root, layout=layout, axes=axes, image=image)
    problems = [(e.path, e.problem) for e in entries if e.problem]
    if found.problem:
        problems.append((found.name, found.problem))
    if as_json:
        report = {
            "hyperslab": hyperslab.__version__,
            "file": path,
            "nbytes": os.path.getsize(path),
            "n_groups": sum(e.kind == "group" and not e.repeats for e in entries),
            "n_datasets": root.n_datasets,
            "stored_nbytes": root.stored_nbytes,
            "decoded_nbytes": root.decoded_nbytes,
            "layout": found.facts or None,
            "objects": [_as_dict(entry) for entry in entries],
            "problems": [{"where": where, "problem": text} for where, text in problems],
        }
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        out = console()
        out.print(_header(path, entries, root, layout_lines(found)))
        rows = list_rows(root, everything=everything, plain=out.options.ascii_only)
        if rows:
            out.print()
            out.print(_listing(out, rows))
        if any(isinstance(row.item, Fold) for row in rows):
            out.print("\n[dim]--all shows every object.[/]")
        _print_problems(out, problems if everything else problems[:_MOST_PROBLEMS])
        if len(problems) > _MOST_PROBLEMS and not everything:
            out.print(f"[red]... and {len(problems) - _MOST_PROBLEMS} more problems[/]")
    if problems:
        raise typer.Exit(1)


def _load(path: str) -> list[Entry]:
    entries = []
    with progress() as bars, session(path) as h5:
        task = bars.add_task("listing objects", total=None)
        for entry in walk_file(h5):
            entries.append(entry)
            bars.update(task, description=f"listing objects: {len(entries)}")
    return entries


def _print_problems(out: Console, problems: list[tuple[str, str]]) -> None:
    for i, (where, text) in enumerate(problems):
        told = text if where in text else f"{where}: {text}"
        line = Text.assemble(("Problem: ", "bold red"), (told, "red"))
        out.print("" if i else "\n", line, sep="", soft_wrap=True)


def _ratio(stored: int, decoded: int | None) -> float | None:
    return decoded / stored if stored and decoded else None


def _header(path: str, entries: list[Entry], root: Node, layout: list[tuple[str, Text]]) -> Table:
    n_groups = sum(e.kind == "group" and not e.repeats for e in entries) - 1
    parts = [size(os.path.getsize(path)), _counted(root.n_datasets, "dataset")]
    if n_groups:
        parts[-1] += f" in {_counted(n_groups, 'group')}"
    if root.entry.n_attributes:
        parts.append(_counted(root.entry.n_attributes, "attribute"))
    facts = ", ".join(parts)
    if root.decoded_nbytes:
        facts += f"; data take {size(root.stored_nbytes)}, decoded {size(root.decoded_nbytes)}"
        ratio = _ratio(root.stored_nbytes, root.decoded_nbytes)
        if root.n_chunks_unwritten:
            facts += f" ({root.n_chunks_unwritten:,} chunks never written)"
        elif ratio is not None:
            facts += f" ({times(ratio)})"
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("file", Text(os.path.basename(path), "bold"))
    grid.add_row("", facts)
    for label, line in layout:
        grid.add_row(label, line)
    return grid


def _counted(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n:,} {word}s"


_COLUMNS = {
    "shape": {"style": "cyan"},
    "type": {"style": "green"},
    "chunks": {},
    "filters": {"style": "magenta"},
    "stored": {"justify": "right"},
    "decoded": {"justify": "right"},
    "ratio": {"justify": "right", "style": "bold"},
    "attrs": {"justify": "right", "style": "dim"},
    "": {"style": "yellow"},
}


def _listing(out: Console, rows: list[Row]) -> Table | Group:
    """Return a table where the console is wide enough for it, else two lines a dataset."""
    cells = [_cells(row.item) for row in rows]
    used = [name for name in _COLUMNS if any(cell.get(name) for cell in cells)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("object", no_wrap=True)
    for name in used:
        style: dict[str, Any] = _COLUMNS[name]
        table.add_column(name, no_wrap=True, **style)
    for row, cell in zip(rows, cells, strict=True):
        quiet = "" if _is_dataset(row.item) else "dim"
        name_cell = Text.assemble((row.guide, "dim"), _name(row.item))
        table.add_row(name_cell, *(cell.get(name, "") for name in used), style=quiet)
    if Measurement.get(out, out.options.update(max_width=1000), table).maximum <= out.width:
        return table
    return Group(*(_lines(row, cell) for row, cell in zip(rows, cells, strict=True)))


def _lines(row: Row, cell: dict[str, str]) -> Text:
    """Return a row as one line, and a second one for what there is to say of its storage."""
    text = Text.assemble((row.guide, "dim"), _name(row.item))
    for name in ("shape", "type", ""):
        if cell.get(name):
            text.append(f"  {cell[name]}", str(_COLUMNS[name]["style"]))
    details = [cell.get("filters", ""), cell.get("stored", "")]
    if chunks := cell.get("chunks"):
        details.insert(0, f"chunks {chunks}" if chunks.startswith("(") else chunks)
    if cell.get("decoded") not in (None, cell.get("stored")):
        details[-1] += f" of {cell['decoded']}"
    if cell.get("ratio"):
        details[-1] += f" ({cell['ratio']})"
    line = ", ".join(filter(None, details))
    if line and not _is_group(row.item):
        text.append(f"\n{row.below}   {line}", "dim")
    elif line:
        text.append(f"  {line}", "dim")
    return text


def _is_dataset(item: Node | Fold) -> bool:
    return isinstance(item, Node) and item.entry.kind != "group"


def _is_group(item: Node | Fold) -> bool:
    node = item if isinstance(item, Node) else item.nodes[0]
    return node.entry.kind == "group"


def _name(item: Node | Fold) -> Text:
    if isinstance(item, Node):
        styles = {"group": "bold blue not dim", "broken": "red", "datatype": "dim"}
        return Text(item.name, styles.get(item.entry.kind, "default"))
    what = f"… {_counted(len(item.nodes), 'other')}"
    if item.like is not None:
        like = item.like.name if item.like.members else "these"
        what = f"… {len(item.nodes):,} more like {like}"
    return Text(what, "italic")


def _cells(item: Node | Fold) -> dict[str, str]:
    """Return what to say of a row, by column."""
    nodes = (item,) if isinstance(item, Node) else item.nodes
    stored = sum(node.stored_nbytes for node in nodes)
    decoded = sum(node.decoded_nbytes for node in nodes)
    unwritten = any(node.n_chunks_unwritten for node in nodes)
    cell: dict[str, str] = {}
    if isinstance(item, Node):
        cell = _of_entry(item.entry)
        if item.entry.facts is not None:
            stored = item.entry.facts.stored_nbytes
            decoded = item.entry.facts.decoded_nbytes or 0
        elif item.members:
            cell["type"] = _counted(len(item.members), "member")
    else:
        every = [entry.facts for node in nodes for entry in datasets(node)]
        known = [facts for facts in every if facts is not None]
        if item.like is not None and not item.like.members:
            cell["shape"] = shape_words(f.shape for f in known if f.shape is not None)
            cell["type"] = known[0].dtype if known else ""
            cell["filters"] = filter_words(known[0].filters) if known else ""
            cell["chunks"] = shape_words(f.chunks for f in known if f.chunks is not None)
        cell[""] = _partly(
            sum(f.chunks_allocated for f in known), sum(f.chunks_total for f in known)
        )
    if stored or decoded:
        cell["stored"] = size(stored)
        cell["decoded"] = size(decoded) if decoded else "?"
        ratio = _ratio(stored, decoded)
        # Where little was written the ratio says nothing; nor does it where nothing is compressed.
        if ratio is not None and not unwritten and f"{ratio:.2f}" != "1.00":
            cell["ratio"] = times(ratio)
    return cell


def _partly(allocated: int, total: int) -> str:
    return f"{allocated:,} of {total:,} chunks written" if allocated < total else ""


def _of_entry(entry: Entry) -> dict[str, str]:
    notes = [f"→ {entry.target or entry.repeats}"] if entry.target or entry.repeats else []
    if entry.kind == "broken":
        notes.append("cannot be opened")
    elif entry.kind == "datatype":
        notes.append("a named type")
    cell: dict[str, str] = {}
    facts = entry.facts
    if facts is not None:
        cell["shape"] = "null" if facts.shape is None else shape_words([facts.shape]) or "()"
        cell["type"] = facts.dtype
        cell["chunks"] = shape_words([facts.chunks]) if facts.chunks else facts.storage
        cell["filters"] = filter_words(facts.filters)
        notes += _notes(facts, entry.problem)
    if entry.n_attributes:
        cell["attrs"] = str(entry.n_attributes)
    cell[""] = ", ".join(notes)
    return cell


def _notes(facts: DatasetFacts, problem: str) -> list[str]:
    notes = []
    if problem:
        notes.append("cannot be read")
    elif not facts.numeric:
        notes.append("not numbers")
    elif not facts.native:
        notes.append("read through HDF5")
    if partly := _partly(facts.chunks_allocated, facts.chunks_total):
        notes.append(partly)
    elif facts.storage == "contiguous" and not facts.stored_nbytes and facts.decoded_nbytes:
        notes.append("never written")
    return notes


def _as_dict(entry: Entry) -> dict[str, Any]:
    found: dict[str, Any] = {
        "path": entry.path,
        "kind": entry.kind,
        "target": entry.target or None,
        "repeats": entry.repeats or None,
        "n_attributes": entry.n_attributes,
    }
    facts = entry.facts
    if facts is not None:
        found |= {
            "shape": facts.shape,
            "dtype": facts.dtype,
            "numeric": facts.numeric,
            "storage": facts.storage,
            "chunks": facts.chunks,
            "filters": [{"id": f.code, "name": f.name, "values": f.values} for f in facts.filters],
            "native": facts.native,
            "stored_nbytes": facts.stored_nbytes,
            "decoded_nbytes": facts.decoded_nbytes,
            "ratio": _ratio(facts.stored_nbytes, facts.decoded_nbytes),
            "chunks_allocated": facts.chunks_allocated,
            "chunks_total": facts.chunks_total,
        }
    found["problem"] = entry.problem or None
    return found
