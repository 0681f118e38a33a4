"""A walk through a whole file: every object, in one visit, without reading an element."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperslab.codecs.pipeline import is_native
from hyperslab.errors import HyperslabError, UnsupportedDtypeError
from hyperslab.filters import Filter, filter_package
from hyperslab.index.build import _filters, describe_dataset
from hyperslab.index.records import Chunked, Compact, Contiguous, DatasetIndex, Null, Virtual
from hyperslab.index.virtual import source_files

if TYPE_CHECKING:
    import h5py

__all__ = ["DatasetFacts", "Entry", "load_tree", "natural_key"]

_DEEPEST = 64  # groups in groups


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """A dataset as a person wants to see it listed; also one whose elements are not numbers.

    Attributes
    ----------
    shape
        Extent along each axis; None for a null dataset.
    dtype
        In words: a NumPy name, "int16 big-endian", "string", "compound (x, y)" ...
    numeric
        True if hyperslab reads elements of that type.
    storage
        "chunked", "contiguous", "external", "compact", "virtual" or "null".
    chunks
        Chunk shape, None where there are no chunks.
    filters
        In the order in which they were applied on writing.
    native
        True if hyperslab decodes the filters itself.
    stored_nbytes, decoded_nbytes
        Size in the file, and in memory once read; None where elements have no fixed size.
    chunks_allocated, chunks_total
        Chunks that the file holds, and that the grid has; (0, 0) if not chunked.
    """

    shape: tuple[int, ...] | None
    dtype: str
    numeric: bool
    storage: str
    chunks: tuple[int, ...] | None
    filters: tuple[Filter, ...]
    native: bool
    stored_nbytes: int
    decoded_nbytes: int | None
    chunks_allocated: int
    chunks_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One link of the file and what is behind it.

    Attributes
    ----------
    path
        Absolute HDF5 path. The parent of an entry comes before it.
    kind
        "group", "dataset", "datatype"; "again" for a group that is listed elsewhere, under the
        path `target`; "broken" for a link that leads nowhere or to something damaged.
    target
        Where a soft or external link leads, "" for an ordinary one.
    n_attributes
        Of the object.
    facts
        For a dataset that can be described.
    problem
        Why its data cannot be had, "" if they can (or if their type is the only obstacle).
    """

    path: str
    kind: str
    target: str = ""
    n_attributes: int = 0
    facts: DatasetFacts | None = None
    problem: str = ""


def natural_key(name: str) -> tuple[list[str | int], str]:
    """Return a key that sorts names as people do: runs of digits count as numbers.

    Examples
    --------
    >>> sorted(["p10", "p2", "P1"], key=natural_key)
    ['P1', 'p2', 'p10']
    """
    parts: list[str | int] = list(re.split("([0-9]+)", name))
    parts[1::2] = map(int, parts[1::2])
    return parts, name


def load_tree(h5: h5py.File, *, on_entry: Callable[[], object] | None = None) -> list[Entry]:
    """List every object of an open file, depth first, names in natural order.

    Parameters
    ----------
    h5
        The open file; not kept.
    on_entry
        Called after each one, for a progress display.

    Returns
    -------
    list of Entry
        The root group first. A group that several links lead to is listed at the first of them that
        is not a soft link, and as "again" at the others; external links are followed.

    Notes
    -----
    Nothing raises over a single object: what is wrong with it is its `problem`. Some 100
    microseconds a dataset; chunks are counted, and their table is not read.
    """
    found: list[Entry] = []
    walk = _Walk(h5)
    for entry in walk.entries():
        found.append(entry)
        if on_entry is not None:
            on_entry()
    # Soft links were passed by: those whose group is listed nowhere are groups of their own.
    return [_settle(entry, walk) if entry.kind == "again" else entry for entry in found]


def _settle(entry: Entry, walk: _Walk) -> Entry:
    return replace(entry, target=entry.target or walk.first.get(entry.path, ""))


class _Walk:
    def __init__(self, h5: h5py.File) -> None:
        self.h5 = h5
        self.first: dict[str, str] = {}
        self._seen: dict[tuple[str, int], str] = {}
