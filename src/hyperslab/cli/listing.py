"""A file's objects as the rows of a listing, with what is alike folded into one row."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from hyperslab.filters import GZIP, ZSTD, Filter
from hyperslab.index.tree import Entry

__all__ = [
    "Fold",
    "Node",
    "Row",
    "build_nodes",
    "datasets",
    "filter_words",
    "list_rows",
    "shape_words",
]

_SHOWN_DATASETS = 3  # of those that are alike; groups that are alike show their first one only
_MOST_MEMBERS = 40  # of one group, if nothing in it is alike


@dataclass(slots=True, eq=False)
class Node:
    """An entry with its members.

    Attributes
    ----------
    entry
        What the file says.
    members
        In natural order.
    n_datasets, stored_nbytes, decoded_nbytes, n_chunks_unwritten
        Of this entry and everything below, each dataset counted once.
    kind
        Equal for entries that look the same but for their names, numbers and shapes.
    """

    entry: Entry
    members: list[Node] = field(default_factory=list)
    n_datasets: int = 0
    stored_nbytes: int = 0
    decoded_nbytes: int = 0
    n_chunks_unwritten: int = 0
    kind: Hashable = None

    @property
    def name(self) -> str:
        """Last part of the path; "/" for the root."""
        return posixpath.basename(self.entry.path) or "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Entries that are counted and not shown.

    Attributes
    ----------
    nodes
        Those entries.
    like
        One that is shown and that they are like; None if they have nothing in common.
    """

    nodes: tuple[Node, ...]
    like: Node | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: a node or a fold, behind guides that show where it hangs.

    Attributes
    ----------
    guide
        In front of the row's first line.
    below
        In front of further lines of the row.
    item
        What is shown.
    """

    guide: str
    below: str
    item: Node | Fold


def build_nodes(entries: Iterable[Entry]) -> Node:
    """Hang entries, parents first, into their groups; return the root."""
    nodes: dict[str, Node] = {}
    for entry in entries:
        node = Node(entry)
        if nodes:
            nodes[posixpath.dirname(entry.path)].members.append(node)
        nodes[entry.path] = node
    for node in reversed(nodes.values()):  # members before their group
        _sum_up(node)
    return next(iter(nodes.values()))


def _sum_up(node: Node) -> None:
    entry, facts = node.entry, node.entry.facts
    if facts is not None and not entry.repeats:
        node.n_datasets = 1
        node.stored_nbytes = facts.stored_nbytes
        node.decoded_nbytes = facts.decoded_nbytes or 0
        node.n_chunks_unwritten = facts.chunks_total - facts.chunks_allocated
    for member in node.members:
        node.n_datasets += member.n_datasets
        node.stored_nbytes += member.stored_nbytes
        node.decoded_nbytes += member.decoded_nbytes
        node.n_chunks_unwritten += member.n_chunks_unwritten
    common = (entry.kind, bool(entry.target), bool(entry.repeats), bool(entry.problem))
    if facts is None:
        inside = frozenset((_pattern(member.name), member.kind) for member in node.members)
        node.kind = (*common, inside)
    else:
        n_axes = None if facts.shape is None else len(facts.shape)
        codes = tuple(f.code for f in facts.filters)
        node.kind = (*common, facts.dtype, n_axes, facts.storage, codes)


def _pattern(name: str) -> str:
    return re.sub("[0-9]+", "#", name)


def datasets(node: Node) -> Iterator[Entry]:
    """Yield the datasets of a node and everything below, each once."""
    if node.entry.facts is not None and not node.entry.repeats:
        yield node.entry
    for member in node.members:
        yield from datasets(member)


def list_rows(root: Node, *, everything: bool = False, plain: bool = False) -> list[Row]:
    """Lay out a tree.

    Parameters
    ----------
    root
        Not shown itself; its members are.
    everything
        Fold nothing.
    plain
        Draw the guides with ASCII characters.
    """
    pass_by, last, bar = ("|- ", "`- ", "|  ") if plain else ("├─ ", "└─ ", "│  ")
    rows: list[Row] = []

    def add(node: Node, indent: str) -> None:
        items = list(node.members) if everything else _fold(node.members)
        for i, item in enumerate(items):
            is_last = i == len(items) - 1
            below = indent + ("   " if is_last else bar)
            rows.append(Row(guide=indent + (last if is_last else pass_by), below=below, item=item))
            if isinstance(item, Node):
                add(item, below)

    add(root, "")
    return rows


def _fold(members: list[Node]) -> list[Node | Fold]:
    # Groups are alike if their names are, too: MR and CT are not one group that is there twice.
    # Where there are many of one kind, names say nothing.
    count = Counter(member.kind for member in members)
    classes: dict[Hashable, list[Node]] = {}
    for member in members:
        named = member.entry.facts is None and count[member.kind] <= 2 * _SHOWN_DATASETS
        key = (member.kind, _pattern(member.name) if named else "")
        classes.setdefault(key, []).append(member)
    items: list[Node | Fold] = []
    after: dict[int, Fold] = {}  # id of the member that a fold follows
    hidden: set[int] = set()
    for alike in classes.values():
        shown = 1 if alike[0].members else _SHOWN_DATASETS
        if len(alike) > shown + 1:
            after[id(alike[shown - 1])] = Fold(nodes=tuple(alike[shown:]), like=alike[shown - 1])
            hidden.update(map(id, alike[shown:]))
    for member in members:
        if id(member) not in hidden:
            items.append(member)
        if id(member) in after:
            items.append(after[id(member)])
    if len(items) <= _MOST_MEMBERS + 1:
        return items
    rest: list[Node] = []
    for item in items[_MOST_MEMBERS:]:
        rest += [item] if isinstance(item, Node) else item.nodes
    return [*items[:_MOST_MEMBERS], Fold(nodes=tuple(rest), like=None)]


def shape_words(shapes: Iterable[tuple[int, ...]]) -> str:
    """Write one shape, or the range that several of them span; "" if they differ in axes.

    Examples
    --------
    >>> shape_words([(256, 256, 58)]), shape_words([(256, 256, 58), (256, 256, 64)])
    ('(256, 256, 58)', '(256, 256, 58-64)')
    """
    every = set(shapes)
    if len({len(shape) for shape in every}) != 1:
        return ""
    axes = [sorted(set(axis)) for axis in zip(*every, strict=True)]
    words = [f"{a[0]}" if len(a) == 1 else f"{a[0]}-{a[-1]}" for a in axes]
    return "(" + ", ".join(words) + (",)" if len(words) == 1 else ")")


def filter_words(filters: Iterable[Filter]) -> str:
    """Write a filter pipeline, with the level of gzip and zstd: "shuffle, gzip-4"."""
    words = []
    for entry in filters:
        level = entry.code in (GZIP, ZSTD) and entry.values
        words.append(f"{entry.name}-{entry.values[0]}" if level else entry.name)
    return ", ".join(words)
