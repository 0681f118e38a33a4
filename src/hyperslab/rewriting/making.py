"""The new file, being made: from regions of the source to chunks on disk, and read back."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from hyperslab.array import Array
from hyperslab.engine.node import Node
from hyperslab.errors import DamagedFileError
from hyperslab.file import File, open_file
from hyperslab.index.container import FileIndex
from hyperslab.index.session import library_lock, session
from hyperslab.rewriting.copy import copy_objects
from hyperslab.rewriting.encode import Cancelled, Cutter
from hyperslab.rewriting.memory import Memory
from hyperslab.rewriting.naming import sync
from hyperslab.rewriting.plan import DatasetPlan, RepackPlan
from hyperslab.rewriting.sources import DatasetSource, LevelSource, Source, stored_node
from hyperslab.rewriting.spool import Columns, Spool

__all__ = ["Making", "Progress", "array_of", "encode_all", "verify", "write_in_place"]

T = TypeVar("T")
Region = tuple[slice, ...]
Told = Callable[[Iterator[T]], Iterator[T]]

_TELL_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a repack is.

    Attributes
    ----------
    stage
        "look", "encode", "write" or "verify".
    done_nbytes, total_nbytes
        Of the stage; decoded bytes, but stored ones for "write".
    """

    stage: str
    done_nbytes: int
    total_nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """What the steps of a repack share.

    Attributes
    ----------
    file
        The source.
    plan
        What is to be done.
    spool
        What has been done.
    threads
        To decode and encode with.
    tell
        Is told how far it is.
    stop
        Set by whoever wants it to stop.
    memory
        For the region at hand.
    """

    file: File
    plan: RepackPlan
    spool: Spool
    threads: int
    tell: Callable[[Progress], None]
    stop: threading.Event
    memory: Memory = field(default_factory=Memory)

    def report(self, stage: str, done: int) -> None:
        """Tell how far a stage is, whose whole is all that is rewritten."""
        self.tell(Progress(stage=stage, done_nbytes=done, total_nbytes=self.plan.nbytes))

    def told(
        self, chunks: Iterator[T], *, stage: str, done: int, each: int, most: int
    ) -> Iterator[T]:
        """Yield chunks of `each` bytes, and tell now and then how far it is, up to `most`."""
        last = time.monotonic()
        for chunk in chunks:
            yield chunk
            done += each
            if time.monotonic() - last > _TELL_S:
                last = time.monotonic()
                self.report(stage, min(done, most))

    def cutter(self, item: DatasetPlan, source: Source, order: tuple[int, ...]) -> Cutter:
        """Return what cuts a dataset into chunks."""
        return Cutter(
            source,
            item,
            order=order,
            threads=self.threads,
            cancelled=self.stop,
            memory=self.memory,
        )


class _Store(Protocol):
    """Where chunks go: `put` has those of a region there, `columns` says where those are."""

    path: Path

    def put(
        self, number: int, region_number: int, region: Region, cutter: Cutter, told: Told[Any]
    ) -> None: ...

    def columns(self, number: int) -> Columns: ...


class _InSpool:
    """Encoded chunks, one after the other."""

    def __init__(self, spool: Spool) -> None:
        self.path = spool.chunks
        self._spool = spool
        self.columns = spool.columns

    def put(
        self, number: int, region_number: int, region: Region, cutter: Cutter, told: Told[Any]
    ) -> None:
        self._spool.add(number, region_number, told(cutter.encoded(region)))


class _InPlace:
    """Chunks as they are, in the file that is being made."""

    def __init__(self, spool: Spool, plan: RepackPlan) -> None:
        self.path = spool.file
        self._spool = spool
        self._sizes = [math.prod(item.chunks) * item.itemsize for item in plan.rewritten]
        result = FileIndex(str(spool.file))
        self._tables = [result.chunk_table(item.path).byte_offset for item in plan.rewritten]
        self._descriptor = os.open(spool.file, os.O_RDWR)

    def put(
        self, number: int, region_number: int, region: Region, cutter: Cutter, told: Told[Any]
    ) -> None:
        offsets = self._tables[number]

        def write(chunk: int, data: memoryview) -> None:
            _write_all(self._descriptor, data.cast("B"), int(offsets[chunk]))

        self._spool.add(
            number, region_number, told(cutter.written(region, write)), before=self._sync
        )

    def columns(self, number: int) -> Columns:
        offsets = self._tables[number]
        return np.arange(offsets.size), offsets, np.full(offsets.size, self._sizes[number])

    def _sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _sources(making: Making, store: _Store) -> list[Source]:
    """Return what each dataset of the plan is made of; a finer level has to be done by then."""
    found: list[Source] = []
    columns: dict[int, Columns] = {}
    numbers = {item.path: number for number, item in enumerate(making.plan.rewritten)}
    for item in making.plan.rewritten:
        level = item.level
        if level is None:
            found.append(DatasetSource(array_of(making.file, item.path)))
            continue
        origin = array_of(making.file, level.origin)
        chunks = origin.chunks
        node: Callable[[], Node] = partial(getattr, origin, "node")
        if level.finer is not None:
            number = numbers[level.finer]
            finer = making.plan.rewritten[number]
            chunks = finer.chunks
            node = partial(_done, store, number, finer, found[number], columns)
        memory = making.plan.memory_nbytes
        found.append(LevelSource(level, origin.index, item.dtype, node, chunks, memory))
    return found


def _done(
    store: _Store, number: int, item: DatasetPlan, source: Source, known: dict[int, Columns]
) -> Node:
    """Return a finer level as it is in the store; from when it is first read on, it is complete."""
    if number not in known:
        known[number] = store.columns(number)
    return stored_node(str(store.path), item, source, *known[number])


def array_of(file: File, path: str) -> Array:
    """Return a dataset of a file that is known to be one."""
    found = file[path]
    if not isinstance(found, Array):
        raise TypeError(f"{path} is no dataset")
    return found


def encode_all(making: Making) -> int:
    """Have every region in the spool, and make the file of that.

    Returns how many decoded bytes had been done before.
    """
    resumed = _fill(making, _InSpool(making.spool))
    _write_file(making)
    return resumed


def write_in_place(making: Making) -> int:
    """Make the file with room for every chunk, close it, and put the chunks where they belong.

    From then on HDF5 has nothing to do with it, so whenever this ends, the file is whole; which
    chunks are there, the journal says. Returns how many decoded bytes had been done before.
    """
    spool = making.spool
    if not spool.made:
        spool.file.unlink(missing_ok=True)
        with library_lock, session(making.file.path) as source:
            out, _, left_out = copy_objects(source, spool.file, making.plan)
            out.close()
        sync(spool.file)
        spool.mark_made(left_out)
    store = _InPlace(spool, making.plan)
    try:
        return _fill(making, store)
    finally:
        store.close()


def _fill(making: Making, store: _Store) -> int:
    """Have the chunks of every region in a store; return the decoded bytes that were there."""
    done = resumed = 0
    sources = _sources(making, store)
    for number, item in enumerate(making.plan.rewritten):
        each = math.prod(item.chunks) * item.itemsize
        with making.cutter(item, sources[number], item.order) as cutter:
            for region_number, region in enumerate(item.regions()):
                nbytes = _nbytes(region, item)
                if (number, region_number) in making.spool.done:
                    resumed += nbytes
                else:
                    told = partial(
                        making.told, stage="encode", done=done, each=each, most=done + nbytes
                    )
                    store.put(number, region_number, region, cutter, told)
                done += nbytes
                making.report("encode", done)
    return resumed


def _write_file(making: Making) -> None:
    """Make the file: copies of all objects, and the chunks that the spool holds."""
    spool = making.spool
    spool.file.unlink(missing_ok=True)
    done = 0
    with library_lock, session(making.file.path) as source:
        out, made, spool.left_out = copy_objects(source, spool.file, making.plan)
    with out:
        for number, item in enumerate(making.plan.rewritten):
            dataset = made[item.path]
            grid = [-(-n // c) for n, c in zip(item.shape, item.chunks, strict=True)]
            for chunk, data in spool.read(spool.of_dataset(number)):
                if making.stop.is_set():
                    raise Cancelled
                place = np.unravel_index(chunk, grid)
                offset = tuple(int(i) * c for i, c in zip(place, item.chunks, strict=True))
                dataset.id.write_direct_chunk(offset, data)
                done += len(data)
            making.tell(Progress(stage="write", done_nbytes=done, total_nbytes=spool.nbytes))


def verify(making: Making) -> None:
    """Read every chunk of the result, and compare its bytes with those it was made from.

    Raises
    ------
    DamagedFileError
        One is not the same.
    """
    done = 0
    temporary = making.spool.file
    file = open_file(temporary)
    for number, item in enumerate(making.plan.rewritten):
        expected = {stored.number: stored.crc for stored in making.spool.of_dataset(number)}
        source = DatasetSource(array_of(file, item.path))
        each = math.prod(item.chunks) * item.itemsize
        with making.cutter(item, source, tuple(range(len(item.shape)))) as cutter:
            for region in item.regions():
                nbytes = _nbytes(region, item)
                sums = making.told(
                    cutter.sums(region), stage="verify", done=done, each=each, most=done + nbytes
                )
                for chunk, crc in sums:
                    if expected.pop(chunk, None) != crc:
                        raise DamagedFileError(
                            f"{temporary}: chunk {chunk} of {item.path} does not read back as it "
                            "was written. The disk may be failing; there is no file under the "
                            "final name.",
                            file=str(temporary),
                            dataset=item.path,
                        )
                done += nbytes
                making.report("verify", done)
        if expected:
            raise DamagedFileError(
                f"{temporary}: {len(expected)} chunks of {item.path} are missing.",
                file=str(temporary),
                dataset=item.path,
            )


def _nbytes(region: Region, item: DatasetPlan) -> int:
    return item.itemsize * math.prod(int(part.stop - part.start) for part in region)


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        written: int = os.pwrite(descriptor, data[done:], offset + done)
        done += written
