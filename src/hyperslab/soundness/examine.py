"""One dataset, held against the file that it is in: what is wrong with it, and where."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.errors import MissingFileError
from hyperslab.filters import Filter
from hyperslab.grid import grid_shape, grid_strides
from hyperslab.index.records import Fingerprint, fingerprint
from hyperslab.soundness.decode import Work
from hyperslab.soundness.process import Found
from hyperslab.soundness.report import Damage, DatasetReport, Slices
from hyperslab.soundness.slices import of_chunks, of_elements, rest

__all__ = [
    "ALL_SKIPPED",
    "Chunks",
    "Examined",
    "conclude",
    "examine",
    "look_at",
    "past_the_end",
    "slices_of_bytes",
]

_MOST_DAMAGE = 1000  # that are told, of one dataset
ALL_SKIPPED = 0xFFFFFFFF  # a filter mask


@dataclass(slots=True, kw_only=True, eq=False)
class Chunks:
    """The chunk table of a dataset, and what is known of its rows.

    Attributes
    ----------
    chunks, grid, strides
        Chunk shape; number of chunks along each axis; strides of the linear number.
    number, byte_offset, nbytes, filter_mask
        Columns of the table.
    decoded_nbytes
        Of a chunk.
    bad
        bool: rows that are damaged.
    reasons
        Why, by row; rows that are bad without a reason lie outside the file.
    """

    chunks: tuple[int, ...]
    grid: tuple[int, ...]
    strides: tuple[int, ...]
    number: NDArray[np.int64]
    byte_offset: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    filter_mask: NDArray[np.uint32]
    decoded_nbytes: int
    bad: NDArray[np.bool_]
    reasons: dict[int, str] = field(default_factory=dict)

    def fail(self, row: int, reason: str) -> None:
        """Note damage of a row; what was noted first stays."""
        if not self.bad[row]:
            self.bad[row] = True
            self.reasons[row] = reason

    def coordinate(self, row: int) -> tuple[int, ...]:
        """Return the chunk coordinate of a row."""
        return tuple(int(i) for i in np.unravel_index(int(self.number[row]), self.grid))


@dataclass(slots=True, kw_only=True, eq=False)
class Examined:
    """A dataset while it is being looked at.

    Attributes
    ----------
    name, file, shape, dtype, storage
        As in `DatasetReport`.
    itemsize
        Bytes of an element; 0 where that is not known, of elements in a heap for instance.
    filters
        In the order in which they were applied on writing.
    fingerprint
        Of `file`; None where it is not there.
    axis
        The slice axis, not negative; None if the dataset has no such axis.
    table
        Of its chunks.
    segments
        Runs of stored bytes of a dataset without chunks: file, offset, size.
    sources
        Pieces of a virtual dataset: file, dataset, range of slices.
    damage
        What is wrong apart from the chunks, each with the slices concerned; None for all.
    unchecked
        Why its elements cannot be checked.
    works
        What is to be fetched and decoded.
    """

    name: str
    file: str
    shape: tuple[int, ...] | None
    dtype: str
    itemsize: int
    storage: str
    filters: tuple[Filter, ...]
    fingerprint: Fingerprint | None
    axis: int | None
    table: Chunks | None = None
    segments: list[tuple[str, int, int]] = field(default_factory=list)
    sources: list[tuple[str, str | None, tuple[int, int] | None]] = field(default_factory=list)
    damage: list[tuple[Damage, Slices | None]] = field(default_factory=list)
    unchecked: str = ""
    works: list[Work] = field(default_factory=list)

    def fail(self, reason: str, slices: Slices | None = None, **where: Any) -> None:
        """Note damage apart from the chunks; without slices, of all."""
        self.damage.append((Damage(reason=reason, **where), slices))

    @property
    def is_bad(self) -> bool:
        """True if any damage is known."""
        return bool(self.damage) or (self.table is not None and bool(self.table.bad.any()))


def examine(found: Found, *, axis: int) -> Examined:
    """Check what the HDF5 library says of a dataset against the files that it lies in.

    Raises
    ------
    LookupError, TypeError, ValueError, ArithmeticError
        What it says makes no sense.
    """
    facts = found.facts
    shape = None if facts["shape"] is None else tuple(int(n) for n in facts["shape"])
    ndim = len(shape or ())
    mine = Examined(
        name=str(facts["name"]),
        file=str(facts["file"]),
        shape=shape,
        dtype=str(facts["dtype"]),
        itemsize=int(facts["itemsize"]),
        storage=str(facts["storage"]),
        filters=tuple(
            Filter(
                code=int(code),
                values=tuple(int(v) for v in values),
                name=str(name),
                optional=bool(optional),
            )
            for code, values, name, optional in facts["filters"]
        ),
        fingerprint=look_at(str(facts["file"])),
        axis=axis % ndim if -ndim <= axis < ndim else None,
        segments=[(str(file), int(offset), int(n)) for file, offset, n in facts["segments"]],
        sources=[
            (str(file), None if name is None else str(name), None if s is None else (s[0], s[1]))
            for file, name, s in facts["pieces"]
        ],
        unchecked=found.unchecked,
    )
    if mine.fingerprint is None:
        mine.fail(f"its file, {mine.file}, is not there any more")
        return mine
    if facts["table"]:
        mine.fail(str(facts["table"]))
    elif mine.storage == "chunked" and shape is not None:
        mine.table = _table(found, mine.fingerprint, shape)
        _check_table(mine, mine.table, int(facts["n_entries"]))
    elif mine.segments:
        _check_segments(mine)
    for chunk, slices, reason in found.bad:
        if mine.table is None or chunk is None:
            mine.fail(reason, None if slices is None else (slices,), chunk=chunk)
        else:
            number = sum(i * s for i, s in zip(chunk, mine.table.strides, strict=True))
            row = int(np.searchsorted(mine.table.number, number))
            mine.table.fail(row, reason)
    return mine


def look_at(file: str) -> Fingerprint | None:
    """Return what a file looks like; None if it is not there."""
    try:
        return fingerprint(file)
    except MissingFileError:
        return None


def _table(found: Found, print_: Fingerprint, shape: tuple[int, ...]) -> Chunks:
    chunks = tuple(int(n) for n in found.facts["chunks"])
    if len(chunks) != len(shape) or min(chunks, default=0) < 1:
        raise ValueError(f"chunks {chunks} of a dataset of shape {shape}")
    grid = grid_shape(shape, chunks)
    total = math.prod(grid)
    byte_offset, nbytes, filter_mask = found.columns[:3]
    if found.facts["numbered"]:
        number = found.columns[3]
        if number.size and not 0 <= number[0] <= number[-1] < total:
            raise ValueError("chunks outside of the dataset")
        if (np.diff(number) < 0).any():
            raise ValueError("chunks out of order")
    else:
        if nbytes.size != total:
            raise ValueError(f"{nbytes.size} chunks, where {total} should be")
        number = np.arange(total, dtype=np.int64)
    size = print_.nbytes
    # Written so that it cannot overflow.
    bad = (byte_offset < 0) | (nbytes <= 0) | (nbytes > size) | (byte_offset > size - nbytes)
    table = Chunks(
        chunks=chunks,
        grid=grid,
        strides=grid_strides(grid),
        number=number,
        byte_offset=byte_offset,
        nbytes=nbytes,
        filter_mask=filter_mask,
        decoded_nbytes=math.prod(chunks) * int(found.facts["itemsize"]),
        bad=bad,
    )
    if found.facts["unfiltered_edges"]:
        table.filter_mask[past_the_end(number, shape, chunks)] = ALL_SKIPPED
    return table


def past_the_end(
    number: NDArray[np.int64], shape: tuple[int, ...], chunks: tuple[int, ...]
) -> NDArray[np.bool_]:
    """Tell which chunks, by linear number, reach past the end of a dataset of `shape`."""
    found = np.zeros(number.size, np.bool_)
    grid = grid_shape(shape, chunks)
    for n, chunk, extent, stride in zip(shape, chunks, grid, grid_strides(grid), strict=True):
        if n % chunk:
            found |= number // stride % extent == extent - 1
    return found


def _check_table(mine: Examined, table: Chunks, n_entries: int) -> None:
    if mine.itemsize and not mine.filters:
        for row in np.flatnonzero(~table.bad & (table.nbytes != table.decoded_nbytes)).tolist():
            table.fail(row, f"it takes {table.nbytes[row]} bytes, not {table.decoded_nbytes}")
    twice = np.flatnonzero(np.diff(table.number) == 0)
    for row in sorted({*twice.tolist(), *(twice + 1).tolist()}):
        table.fail(row, "it is in the chunk index twice")
    if (n := n_entries - table.number.size) > 0:
        mine.fail(f"{n} entries of its chunk index are of chunks outside of the dataset")


def _check_segments(mine: Examined) -> None:
    """Find stored elements that lie outside of their files."""
    begin = 0
    for file, offset, nbytes in mine.segments:
        print_ = mine.fingerprint if file == mine.file else look_at(file)
        if print_ is None:
            mine.fail(
                f"its data are in {file}, which is not there", slices_of_bytes(mine, begin, nbytes)
            )
        else:
            there = min(nbytes, max(0, print_.nbytes - offset)) if offset >= 0 else 0
            if there < nbytes:
                mine.fail(
                    f"its bytes {offset} to {offset + nbytes} would lie outside "
                    f"{'the file' if file == mine.file else file}, which has {print_.nbytes}",
                    slices_of_bytes(mine, begin + there, nbytes - there),
                    byte_offset=offset + there,
                    nbytes=nbytes - there,
                )
        begin += nbytes
    whole = math.prod(mine.shape or ()) * mine.itemsize
    if begin < whole:
        mine.fail(
            f"its raw files hold {begin} of {whole} bytes",
            slices_of_bytes(mine, begin, whole - begin),
        )


def slices_of_bytes(mine: Examined, begin: int, nbytes: int) -> Slices | None:
    """Return the slices that a run of the bytes of a dataset without chunks lies in."""
    if mine.axis is None or mine.shape is None or not mine.itemsize:
        return None
    stop = -(-(begin + nbytes) // mine.itemsize)
    return of_elements(begin // mine.itemsize, stop, mine.shape, mine.axis)


def conclude(mine: Examined) -> DatasetReport:
    """Return what is to be told of a dataset."""
    told = [damage for damage, _ in mine.damage]
    bad: list[tuple[int, int]] = []
    n = 0 if mine.axis is None or mine.shape is None else mine.shape[mine.axis]
    for _, slices in mine.damage:
        bad += ((0, n),) if slices is None else slices
    n_bad = len(told)
    report = DatasetReport(
        name=mine.name,
        file=mine.file,
        shape=mine.shape,
        dtype=mine.dtype,
        storage=mine.storage,
        unchecked=mine.unchecked,
    )
    if (table := mine.table) is not None and mine.shape is not None:
        rows = np.flatnonzero(table.bad)
        n_bad += rows.size
        some = rows[: max(0, _MOST_DAMAGE - len(told))].tolist()
        told += [_chunk_damage(mine, table, row) for row in some]
        if mine.axis is not None and rows.size:
            bad += of_chunks(table.number[rows], mine.shape, table.chunks, mine.axis)
        report = replace(report, chunks=table.chunks, n_chunks=int(table.number.size))
    return replace(
        report,
        n_bad=n_bad,
        damage=tuple(told[:_MOST_DAMAGE]),
        intact_slices=None if mine.axis is None else rest(bad, n),
    )


def _chunk_damage(mine: Examined, table: Chunks, row: int) -> Damage:
    offset, nbytes = int(table.byte_offset[row]), int(table.nbytes[row])
    reason = table.reasons.get(row)
    if reason is None:
        size = -1 if mine.fingerprint is None else mine.fingerprint.nbytes
        reason = f"its {nbytes} bytes would lie outside the file, which has {size}"
    return Damage(reason=reason, chunk=table.coordinate(row), byte_offset=offset, nbytes=nbytes)
