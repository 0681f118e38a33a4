"""The new file: made from the spool in one go, and read back."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hyperslab
from hyperslab.array import Array
from hyperslab.codecs.encode import codec
from hyperslab.errors import DamagedFileError
from hyperslab.file import open_file
from hyperslab.index.session import library_lock, session
from hyperslab.index.tree import walk_file
from hyperslab.packing.plan import ImagePlan
from hyperslab.packing.records import Progress
from hyperslab.rewriting.copy import set_filters
from hyperslab.rewriting.encode import Cancelled, Cutter
from hyperslab.rewriting.memory import Memory
from hyperslab.rewriting.plan import Wish, plan_dataset
from hyperslab.rewriting.sources import DatasetSource
from hyperslab.rewriting.spool import Spool

__all__ = ["Entry", "verify_file", "write_file"]

Tell = Callable[[Progress], None]

_AXES = ("y", "x", "z")  # what HDF5's dimension labels call rows, columns and slices
_HOUNSFIELD = ("CT", "CBCT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A dataset of the new file.

    Attributes
    ----------
    case
        The case's name in the file.
    plan, facts
        Of the image; see `hyperslab.packing.work.PackedChunks`.
    number
        Of its chunks in the spool.
    folder
        The case's folder, "" to leave it out.
    """

    case: str
    plan: ImagePlan
    facts: dict[str, Any]
    number: int
    folder: str

    @property
    def path(self) -> str:
        """Of the dataset."""
        return f"/{self.plan.image}/{self.case}"


def write_file(
    path: Path, entries: Sequence[Entry], spool: Spool, tell: Tell, stop: threading.Event
) -> None:
    """Make the file.

    Raises
    ------
    Cancelled
        Somebody wants it to stop.
    OSError, RuntimeError
        Of HDF5, where the disk is full.
    """
    import h5py

    path.unlink(missing_ok=True)
    done = 0
    total = sum(s.nbytes for entry in entries for s in spool.of_dataset(entry.number))
    with library_lock, h5py.File(path, "w") as file:
        file.attrs["writer"] = f"hyperslab pack {hyperslab.__version__}"
        file.attrs["axes"] = "rows, columns, slices"
        file.attrs["frame"] = "LPS"
        for entry in entries:
            dataset = _create(file, entry)
            _describe(dataset, entry)
            chunks = tuple(entry.facts["chunks"])
            grid = [-(-n // c) for n, c in zip(dataset.shape, chunks, strict=True)]
            for number, data in spool.read(spool.of_dataset(entry.number)):
                if stop.is_set():
                    raise Cancelled
                place = np.unravel_index(number, grid)
                offset = tuple(int(i) * c for i, c in zip(place, chunks, strict=True))
                dataset.id.write_direct_chunk(offset, data)
                done += len(data)
            tell(Progress(stage="write", done=done, total=total))


def _create(file: Any, entry: Entry) -> Any:
    import h5py

    dtype = np.dtype(entry.facts["dtype"])
    how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    how.set_chunk(tuple(entry.facts["chunks"]))
    how.set_obj_track_times(False)
    set_filters(how, codec(entry.facts["codec"]), dtype.itemsize)
    space = h5py.h5s.create_simple(entry.plan.grid.shape)
    group = file.require_group(entry.plan.image)
    made = h5py.h5d.create(
        group.id, entry.case.encode(), h5py.h5t.py_create(dtype, logical=True), space, how
    )
    return h5py.Dataset(made)


def _describe(dataset: Any, entry: Entry) -> None:
    """Write the attributes: geometry, and what the values mean. None says whose image it is."""
    grid, facts, attributes = entry.plan.grid, entry.facts, dataset.attrs
    attributes["spacing"] = grid.spacing
    attributes["origin"] = grid.origin
    attributes["direction"] = np.array(grid.direction)
    attributes["units"] = "mm"
    attributes["frame"] = "LPS"
    # z, y, x, for `open_image` and programs that know this attribute.
    attributes["element_size_um"] = [1000 * grid.spacing[axis] for axis in (2, 0, 1)]
    for axis, label in enumerate(_AXES):
        dataset.dims[axis].label = label
    if entry.folder:
        attributes["case_folder"] = entry.folder
    attributes["mapping"] = str(entry.plan.rule)
    attributes["slope"] = facts["slope"]
    attributes["intercept"] = facts["intercept"]
    if facts["window"]:
        attributes["window"] = facts["window"]
        attributes["clipped_fraction"] = facts["clipped"]
    attributes["source_range"] = facts["source_range"]
    attributes["source_dtype"] = entry.plan.header.dtype.name
    attributes["source_format"] = entry.plan.header.kind
    if entry.plan.image in _HOUNSFIELD:
        attributes["source_units"] = "HU"
    attributes["resampled"] = entry.plan.target is not None


def verify_file(
    path: Path,
    entries: Sequence[Entry],
    spool: Spool,
    *,
    threads: int,
    memory_nbytes: int,
    tell: Tell,
    stop: threading.Event,
) -> None:
    """Read every chunk of the file, and compare its elements with those it was made from.

    Raises
    ------
    DamagedFileError
        Some differ: the disk fails, or memory.
    """
    file = open_file(path)
    with session(str(path)) as h5:
        facts = {entry.path: entry.facts for entry in walk_file(h5)}
    done = 0
    total = sum(entry.plan.nbytes for entry in entries)
    memory = Memory()
    for entry in entries:
        array, found = file[entry.path], facts.get(entry.path)
        if not isinstance(array, Array) or found is None:
            raise _damaged(path, entry, "is missing")
        plan = plan_dataset(
            entry.path,
            found,
            Wish(memory=memory_nbytes),
            chunks=tuple(entry.facts["chunks"]),
            codec=codec(entry.facts["codec"]),
        )
        expected = {stored.number: stored.crc for stored in spool.of_dataset(entry.number)}
        order = tuple(range(len(plan.shape)))
        source = DatasetSource(array)
        with Cutter(
            source, plan, order=order, threads=threads, cancelled=stop, memory=memory
        ) as cutter:
            for region in plan.regions():
                for number, crc in cutter.sums(region):
                    if expected.pop(number, None) != crc:
                        raise _damaged(path, entry, f"has another chunk {number} than was written")
                done += math.prod(p.stop - p.start for p in region) * array.dtype.itemsize
                tell(Progress(stage="verify", done=min(done, total), total=total))
        if expected:
            raise _damaged(path, entry, f"lacks {len(expected)} chunks")


def _damaged(path: Path, entry: Entry, what: str) -> DamagedFileError:
    return DamagedFileError(
        f"{path}: {entry.path} {what}. The disk may be failing; there is no file under the final "
        "name.",
        file=str(path),
        dataset=entry.path,
    )
