"""Elements that only the HDF5 library can check: in heaps, or behind filters of its own.

In the process that asks the library: see `hyperslab.soundness.objects`.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import numpy as np

from hyperslab.errors import HyperslabError
from hyperslab.filters import Filter, filter_package
from hyperslab.grid import grid_shape
from hyperslab.index.library import require_filters
from hyperslab.index.records import Chunked, ChunkTable, DatasetIndex
from hyperslab.soundness.describe import TROUBLE

__all__ = ["check_elements"]

_MOST_ELEMENTS = 1 << 16  # that are read at once where there are no chunks


def check_elements(
    dataset: h5py.Dataset,
    index: DatasetIndex,
    table: ChunkTable | None,
    *,
    read: bool,
    axis: int,
    alive: Callable[[], None],
) -> dict[str, Any]:
    """Read all elements of an open dataset, part by part.

    Parameters
    ----------
    dataset
        Open; not kept.
    index, table
        Its facts, and its chunk table.
    read
        False to see only whether its filters can be undone.
    axis
        The slice axis.
    alive
        Called before every part.

    Returns
    -------
    dict
        "bad": a list of [chunk coordinate or None, range of slices or None, reason], and where not
        all could be checked, "unchecked": the reason.
    """
    bad: list[list[Any]] = []
    told: dict[str, Any] = {"bad": bad}
    try:
        require_filters(index)
    except HyperslabError as error:
        told["unchecked"] = _lacking(index.filters) or error.message
        return told
    for coordinate, part in _parts(dataset.shape, index, table) if read else ():
        alive()
        try:
            dataset[part]
        except TypeError as error:
            told["unchecked"] = f"h5py cannot read its elements: {error}"
            break
        except TROUBLE as error:
            slices = _along(part, axis)
            bad.append([coordinate, slices, f"the HDF5 library cannot read it: {error}"])
    return told


def _parts(
    shape: tuple[int, ...], index: DatasetIndex, table: ChunkTable | None
) -> Iterator[tuple[tuple[int, ...] | None, tuple[slice, ...]]]:
    """Yield the parts that are read at once, with their chunk coordinate where they are chunks.

    No part whose bytes are missing is read: the library would take them for zeros.
    """
    if isinstance(index.storage, Chunked):
        if table is None:
            return
        chunks = index.storage.chunks
        grid = grid_shape(shape, chunks)
        size = index.fingerprint.nbytes
        inside = (table.nbytes <= size) & (table.byte_offset <= size - table.nbytes)
        sound = np.flatnonzero(inside & (table.byte_offset >= 0))
        numbers = sound if table.number is None else table.number[sound]
        for n in numbers.tolist():
            at = tuple(int(i) for i in np.unravel_index(n, grid))
            yield at, _part(at, chunks, shape)
        return
    cell = list(shape)
    for axis in range(len(cell)):
        if math.prod(cell) <= _MOST_ELEMENTS:
            break
        cell[axis] = max(1, _MOST_ELEMENTS // math.prod(cell[axis + 1 :]))
    if 0 not in cell:
        for at in itertools.product(*map(range, grid_shape(shape, tuple(cell)))):
            yield None, _part(at, tuple(cell), shape)


def _part(at: tuple[int, ...], cell: tuple[int, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(i * c, min((i + 1) * c, n)) for i, c, n in zip(at, cell, shape, strict=True))


def _along(part: tuple[slice, ...], axis: int) -> list[int] | None:
    if not -len(part) <= axis < len(part):
        return None
    return [part[axis].start, part[axis].stop]


def _lacking(filters: tuple[Filter, ...]) -> str:
    """Say which filter nothing here decodes; "" if the HDF5 library has all of them."""
    for entry in filters:
        if h5py.h5z.filter_avail(entry.code):
            continue
        package = filter_package(entry.code)
        have = package and importlib.util.find_spec(package) is not None
        advice = "" if have or not package else f"; pip install {package} brings it"
        return f"nothing installed here decodes {entry.name} (filter {entry.code}){advice}"
    return ""
