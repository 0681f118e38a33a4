"""What a read will do, as columns: the records that planning fills and that reading carries out.

Planning touches no data. Cells are columns of NumPy arrays, sorted by file and byte offset; a cell
that several requests of a batch need appears once, with several placements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.node import Cells, Flat
from hyperslab.grid import Pieces
from hyperslab.index.records import Fingerprint

__all__ = ["Mapped", "ReadPlan", "Run", "Scatter", "Target"]

Array = NDArray[Any]

_NONE = np.zeros(0, np.int64)
_ZERO = np.zeros(1, np.int64)
_NEVER = np.zeros(0, np.bool_)


@dataclass(slots=True, eq=False)
class Target:
    """One request for elements of a node that comes in cells.

    Attributes
    ----------
    node
        Where the elements come from.
    dest
        Where they go, in the node's native dtype (booleans as uint8).
    groups
        The axis groups of the selection, cut along the grid of cells.
    gather
        True if any group has index tables; else all are slices and integers, in axis order.
    file
        Number of the node's file among the plan's.
    together
        Cells of targets with the same number may be fetched by one call.
    """

    node: Cells
    dest: Array
    groups: list[Pieces]
    gather: bool
    file: int
    together: int


@dataclass(slots=True, eq=False)
class Run:
    """Contiguous bytes that go straight into contiguous memory.

    Attributes
    ----------
    file
        Number of the file among the plan's.
    byte_offset
        From the start of the file.
    dest
        As long as the run.
    n_cells
        How many unfiltered chunks it takes from: 1, or 0 for a dataset in one piece.
    """

    file: int
    byte_offset: int
    dest: Array
    n_cells: int


@dataclass(frozen=True, slots=True, eq=False)
class Mapped:
    """Elements picked out of a dataset that lies in one piece, through a memory map.

    Attributes
    ----------
    node
        Where the elements come from.
    file
        Number of the file among the plan's; -1 where the node holds its data itself.
    byte_offset
        Of the dataset's first element.
    dest, groups, gather
        As in `Target`; the cells are `rows` indices of `axis` high.
    axis, rows
        How the dataset is cut, so that threads can share the work.
    """

    node: Flat
    file: int
    byte_offset: int
    dest: Array
    groups: list[Pieces]
    gather: bool
    axis: int
    rows: int

    @property
    def n_pieces(self) -> int:
        """Number of pieces, each of which is one task."""
        return math.prod(len(group.src) for group in self.groups)


@dataclass(frozen=True, slots=True, eq=False)
class Scatter:
    """Elements that were read into memory of their own first: ``dest[index] = source``."""

    dest: Array
    index: tuple[Any, ...]
    source: Array


@dataclass(slots=True, eq=False)
class ReadPlan:
    """Everything that a read will do.

    Attributes
    ----------
    files
        Path and expected fingerprint of every file concerned.
    targets
        What `target` counts in.
    target, piece
        Per placement: the target, and the row-major number of the piece among the product of its
        groups' pieces. Placements are ordered by the cell they need.
    first
        Per cell, and one more: its first placement.
    number, byte_offset, nbytes, filter_mask
        Per cell: linear cell number, where its stored bytes lie, and which filters it skipped.
    keep
        Per cell: True if it is worth keeping decoded: it is only partly used, or computed, unless
        who made the plan knows better.
    batch
        Per batch of cells that one call fetches, and one more: its first cell.
    fills
        Memory to be set to a value first.
    runs, mapped
        What is not in cells.
    scatters
        What to do at the end, in this order.
    n_filled
        Cells that the file does not hold.
    """

    files: list[tuple[str, Fingerprint]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    target: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    piece: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    first: NDArray[np.int64] = field(default_factory=lambda: _ZERO)
    number: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    byte_offset: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    nbytes: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    filter_mask: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    keep: NDArray[np.bool_] = field(default_factory=lambda: _NEVER)
    batch: NDArray[np.int64] = field(default_factory=lambda: _ZERO)
    fills: list[tuple[Array, Array]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    mapped: list[Mapped] = field(default_factory=list)
    scatters: list[Scatter] = field(default_factory=list)
    n_filled: int = 0

    @property
    def n_cells(self) -> int:
        """Number of cells to fetch."""
        return self.number.size

    @property
    def decoded_nbytes(self) -> int:
        """Bytes that come out of decoders, were nothing in the cache."""
        return sum(
            self.targets[t].node.decoded_nbytes
            for t in self.target[self.first[:-1]].tolist()
            if not self.targets[t].node.raw
        )
