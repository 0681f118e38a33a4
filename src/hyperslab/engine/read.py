"""Carry out a `ReadPlan`: fetch, decode and place, with all the threads it is worth."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.codecs.base import ChecksumMismatch, CodecError
from hyperslab.engine import cache
from hyperslab.engine.limits import limits
from hyperslab.engine.node import Cells, Node
from hyperslab.engine.place import pick, place, place_planes
from hyperslab.engine.plan import Mapped, ReadPlan, Run, Target, plan_read
from hyperslab.engine.pool import run_together
from hyperslab.engine.source import OpenFile, acquire, release
from hyperslab.engine.stats import ReadStats, remember
from hyperslab.errors import ChecksumError, ChunkDecodeError
from hyperslab.index.container import stale
from hyperslab.index.library import read_cell
from hyperslab.index.records import fingerprint
from hyperslab.index.session import session
from hyperslab.selection import Selection

__all__ = ["execute", "read"]

Array = NDArray[Any]

# What decides how many threads a read is worth: about how long its work takes one of them.
_DECODED_PER_S = 500e6
_COPIED_PER_S = 5e9
_WORTH_A_THREAD_S = 200e-6
_MOST_SCRATCH_NBYTES = 64 << 20


def read(requests: list[tuple[Node, Selection, Array]], *, threads: int | None = None) -> ReadStats:
    """Plan and carry out `requests`; see `plan_read` and `execute`."""
    start = time.perf_counter()
    stats = execute(plan_read(requests), threads=threads)
    stats.bytes_returned = sum(dest.nbytes for _, _, dest in requests)
    stats.seconds = time.perf_counter() - start
    remember(stats)
    return stats


def execute(plan: ReadPlan, *, threads: int | None = None) -> ReadStats:
    """Carry out `plan`: fill every destination.

    Parameters
    ----------
    plan
        Whose destinations nobody else touches meanwhile.
    threads
        Most threads to use, the caller's included; by default the configured number. A small plan
        is carried out by the caller's thread alone.

    Returns
    -------
    ReadStats

    Raises
    ------
    StaleIndexError
        A file changed since it was indexed, or while it was read.
    ChunkDecodeError, ChecksumError, DamagedFileError
        With file, dataset, chunk and byte offset. Destinations are then partly filled.

    Notes
    -----
    Peak memory: per thread, the stored bytes of one batch (at most 1 MiB, or one chunk) and one
    decoded chunk, besides what the cache keeps.
    """
    _check_files(plan)
    for dest, fill in plan.fills:
        dest[...] = fill
    job = _Job(plan)
    n_threads = _worth(plan, job.n_tasks, threads or limits.threads)
    run_together(job.work, n_threads, job.stop)
    for scatter in plan.scatters:
        scatter.dest[scatter.index] = scatter.source
    _check_files(plan)
    stats = job.stats
    stats.threads = n_threads
    stats.chunks_filled = plan.n_filled
    return stats


def _check_files(plan: ReadPlan) -> None:
    for path, expected in plan.files:
        if fingerprint(path) != expected:
            raise stale(path)


def _worth(plan: ReadPlan, n_tasks: int, most: int) -> int:
    if most == 1 or n_tasks < 2:
        return 1
    copied = sum(run.dest.nbytes for run in plan.runs)
    copied += sum(8 * mapped.dest.nbytes for mapped in plan.mapped)  # strided: cache misses
    copied += int(plan.nbytes.sum())
    seconds = plan.decoded_nbytes / _DECODED_PER_S + copied / _COPIED_PER_S
    return max(1, min(most, n_tasks, int(seconds / _WORTH_A_THREAD_S)))


class _Scratch(threading.local):
    """A thread's own buffers, kept from read to read: fresh memory costs page faults."""

    def __init__(self) -> None:
        self._stored = np.empty(0, np.uint8)
        self._cell = np.empty(0, np.uint8)

    def stored(self, nbytes: int) -> NDArray[np.uint8]:
        if self._stored.nbytes < nbytes:
            self._stored = np.empty(nbytes, np.uint8)
        return self._stored[:nbytes]

    def cell(self, nbytes: int) -> NDArray[np.uint8]:
        if self._cell.nbytes < nbytes:
            self._cell = np.empty(nbytes, np.uint8)
        return self._cell[:nbytes]

    def trim(self) -> None:
        if self._stored.nbytes > _MOST_SCRATCH_NBYTES:
            self._stored = np.empty(0, np.uint8)
        if self._cell.nbytes > _MOST_SCRATCH_NBYTES:
            self._cell = np.empty(0, np.uint8)


_scratch = _Scratch()


class _Job:
    """One plan being carried out: what its threads share."""

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan
        self.stats = ReadStats()
        self.stop = threading.Event()
        self._lock = threading.Lock()
        # Python numbers: indexing an array costs more than the rest of the loop.
        self._first = plan.first.tolist()
        self._target = plan.target.tolist()
        self._piece = plan.piece.tolist()
        self._number = plan.number.tolist()
        self._offset = plan.byte_offset.tolist()
        self._nbytes = plan.nbytes.tolist()
        self._mask = plan.filter_mask.tolist()
        self._whole = (~plan.keep).tolist()
        self._keep = plan.keep.tolist() if limits.cache_nbytes else [False] * plan.n_cells
        self._batch = plan.batch.tolist()
        self._tasks: list[Callable[[ReadStats], None]] = []
        for mapped in plan.mapped:
            for number in range(mapped.n_pieces):
                self._tasks.append(_MappedTask(self, mapped, number))
        for run in plan.runs:
            self._tasks.append(_RunTask(self, run))
        self.n_batches = len(self._batch) - 1
        self.n_tasks = self.n_batches + len(self._tasks)
        self._next = itertools.count()

    # -- shared by threads

    def work(self) -> None:
        """Draw tasks until none is left; the body of every thread."""
        mine = ReadStats()
        waiting: list[tuple[int, cache.Pending]] = []
        n_batches, n_tasks = self.n_batches, self.n_tasks
        stop = self.stop
        try:
            while not stop.is_set():
                i = next(self._next)
                if i < n_batches:
                    self._do_batch(self._batch[i], self._batch[i + 1], mine, waiting)
                elif i < n_tasks:
                    self._tasks[i - n_batches](mine)
                else:
                    break
            # Only now, with nothing of our own unfinished, wait for other reads.
            for cell, pending in waiting:
                if stop.is_set():
                    break
                self._take_over(cell, pending, mine)
        finally:
            _scratch.trim()
            with self._lock:
                self.stats.add(mine)

    def open(self, number: int) -> OpenFile:
        path, expected = self.plan.files[number]
        return acquire(path, expected)

    # -- cells

    def _do_batch(
        self, a: int, b: int, mine: ReadStats, waiting: list[tuple[int, cache.Pending]]
    ) -> None:
        """Fetch, decode and place cells `a` to `b`, which lie close together in one file."""
        targets, target, first = self.plan.targets, self._target, self._first
        todo: list[int] = []
        claimed: set[int] = set()
        try:
            for cell in range(a, b):
                node = targets[target[first[cell]]].node
                if not limits.cache_nbytes or node.raw:
                    todo.append(cell)
                    continue
                found = cache.claim((node.uid, self._number[cell]), decode=self._keep[cell])
                if found is None:
                    if self._keep[cell]:
                        claimed.add(cell)
                    todo.append(cell)
                elif isinstance(found, cache.Cached):
                    self._take(cell, found, mine)
                else:
                    waiting.append((cell, found))
            if todo:
                self._fetch(todo, claimed, mine)
        finally:
            # Empty unless something failed half way.
            for cell in claimed:
                node = targets[target[first[cell]]].node
                cache.abandon((node.uid, self._number[cell]))

    def _take_over(self, cell: int, pending: cache.Pending, mine: ReadStats) -> None:
        """Wait for a cell that another thread has claimed; decode it here if that failed."""
        pending.done.wait()
        if pending.result is not None:
            self._take(cell, pending.result, mine)
        else:
            self._fetch([cell], set(), mine)

    def _take(self, cell: int, chunk: cache.Cached, mine: ReadStats) -> None:
        mine.chunks_cached += 1
        try:
            self._place(cell, chunk.buffer, chunk.planes)
        finally:
            cache.done_with(chunk)

    def _hand_over(
        self,
        cell: int,
        node: Cells,
        out: NDArray[np.uint8],
        planes: bool,
        claimed: set[int],
    ) -> None:
        """Place a cell that was decoded here; let others have it, if it was claimed for that."""
        if cell not in claimed:
            self._place(cell, out, planes)
            return
        chunk = cache.Cached(out, planes)
        chunk.users = 1
        cache.publish((node.uid, self._number[cell]), chunk)
        claimed.discard(cell)
        try:
            self._place(cell, out, planes)
        finally:
            cache.done_with(chunk)

    def _fetch(self, cells: list[int], claimed: set[int], mine: ReadStats) -> None:
        """Fetch `cells` of one batch with as few calls as possible, then decode and place each."""
        target = self.plan.targets[self._target[self._first[cells[0]]]]
        node = target.node
        if node.through_library:
            for cell in cells:
                self._from_library(cell, node, claimed, mine)
            return
        if node.segments:
            for cell in cells:
                self._from_segments(cell, node, claimed, mine)
            return
        file = self.open(target.file)
        try:
            if node.raw:
                self._fetch_raw(cells, file, mine)
                return
            start = 0
            while start < len(cells):
                # Cells that follow each other in the batch are fetched together.
                stop = start + 1
                while stop < len(cells) and cells[stop] == cells[stop - 1] + 1:
                    stop += 1
                run = cells[start:stop]
                begin = self._offset[run[0]]
                end = max(self._offset[cell] + self._nbytes[cell] for cell in run)
                stored = _scratch.stored(end - begin)
                mine.preads += file.read_into((stored,), begin, end - begin)
                mine.bytes_read += end - begin
                for cell in run:
                    at = self._offset[cell] - begin
                    self._decode(cell, stored[at : at + self._nbytes[cell]], claimed, mine)
                start = stop
        finally:
            release(file)

    def _decode(
        self, cell: int, stored: NDArray[np.uint8], claimed: set[int], mine: ReadStats
    ) -> None:
        placement = self._first[cell]
        target = self.plan.targets[self._target[placement]]
        node = target.node
        pipeline = node.pipeline
        if pipeline is None:
            raise TypeError(f"{node.index.name}: cells without a pipeline cannot be decoded")
        mask = self._mask[cell]
        keep = cell in claimed
        direct = None
        if keep:
            out = cache.room(node.decoded_nbytes)
        else:
            if self._whole[cell]:
                direct = self._direct(cell, placement, target, pipeline.recipe(mask).planes)
            out = _scratch.cell(node.decoded_nbytes) if direct is None else direct
        try:
            buffer, planes = pipeline.decode(stored, mask, out)
        except CodecError as error:
            raise self._undecodable(cell, node, error) from error
        mine.chunks_decoded += 1
        mine.bytes_decoded += node.decoded_nbytes
        if buffer is not out:
            given = np.frombuffer(buffer, np.uint8)
            if keep or direct is not None:
                out[...] = given  # `buffer` may lie in this thread's scratch memory
            else:
                out = given
        if direct is None:
            self._hand_over(cell, node, out, planes, claimed)

    def _direct(
        self, cell: int, placement: int, target: Target, planes: bool
    ) -> NDArray[np.uint8] | None:
        """Return the cell's own place in the result, if it can be decoded right into it."""
        node = target.node
        if (
            planes
            or target.gather
            or self._first[cell + 1] != placement + 1
            or not node.index.file_dtype.isnative
        ):
            return None
        position = pick(target.groups, self._piece[placement])
        dst = tuple(
            index for g, i in zip(target.groups, position, strict=True) for index in g.dst[i]
        )
        part = target.dest[(*dst, ...)]
        if part.nbytes != node.decoded_nbytes or not part.flags.c_contiguous:
            return None
        return part.reshape(-1).view(np.uint8)

    def _place(self, cell: int, buffer: NDArray[np.uint8], planes: bool) -> None:
        """Copy a decoded cell to everywhere it is wanted."""
        for placement in range(self._first[cell], self._first[cell + 1]):
            target = self.plan.targets[self._target[placement]]
            node = target.node
            position = pick(target.groups, self._piece[placement])
            if not planes:
                elements: Array = np.ndarray(node.cell, node.cell_dtype, buffer)
                place(elements, target.groups, position, target.dest, gather=target.gather)
                continue
            shaped = buffer.reshape(node.index.file_dtype.itemsize, *node.cell)
            if node.plane_order is not None:
                shaped = shaped[list(node.plane_order)]
            place_planes(shaped, target.groups, position, target.dest, gather=target.gather)

    def _fetch_raw(self, cells: list[int], file: OpenFile, mine: ReadStats) -> None:
        """Copy cells that are stored as they are: straight into place where that is contiguous."""
        pending: list[Array] = []
        begin = end = 0
        for cell in cells:
            mine.chunks_decoded += 1
            offset = self._offset[cell]
            for placement in range(self._first[cell], self._first[cell + 1]):
                target = self.plan.targets[self._target[placement]]
                node = target.node
                position = pick(target.groups, self._piece[placement])
                skip, part = _contiguous(target, position)
                if part is None:
                    view = file.view()[offset : offset + node.decoded_nbytes]
                    elements: Array = np.ndarray(node.cell, node.cell_dtype, view.data)
                    place(elements, target.groups, position, target.dest, gather=target.gather)
                    mine.bytes_read += node.decoded_nbytes
                    continue
                at = offset + skip
                if pending and (at != end or len(pending) >= 512):
                    mine.preads += file.read_into(pending, begin, end - begin)
                    mine.bytes_read += end - begin
                    pending = []
                if not pending:
                    begin = end = at
                pending.append(part)
                end += part.nbytes
        if pending:
            mine.preads += file.read_into(pending, begin, end - begin)
            mine.bytes_read += end - begin

    def _from_segments(self, cell: int, node: Cells, claimed: set[int], mine: ReadStats) -> None:
        """Put a run of rows together from the raw files that hold its bytes."""
        begin = self._number[cell] * node.decoded_nbytes
        total = sum(segment.nbytes for segment, _ in node.segments)
        end = min(begin + node.decoded_nbytes, total)
        out = np.zeros(node.decoded_nbytes, np.uint8)
        at = 0
        for segment, expected in node.segments:
            low, high = max(begin, at), min(end, at + segment.nbytes)
            if low < high:
                file = acquire(segment.file, expected)
                try:
                    part = out[low - begin : high - begin]
                    offset = segment.byte_offset + low - at
                    mine.preads += file.read_into((part,), offset, high - low)
                    mine.bytes_read += high - low
                finally:
                    release(file)
            at += segment.nbytes
        mine.chunks_decoded += 1
        mine.bytes_decoded += out.nbytes
        self._hand_over(cell, node, out, False, claimed)

    def _from_library(self, cell: int, node: Cells, claimed: set[int], mine: ReadStats) -> None:
        """Let the HDF5 library read the cell; it serves one thread at a time anyway."""
        origin = tuple(
            int(i) * n
            for i, n in zip(np.unravel_index(self._number[cell], node.grid), node.cell, strict=True)
        )
        with session(node.index.file) as h5:
            elements = read_cell(h5[node.index.name], node.index, origin, node.cell)
        mine.chunks_library += 1
        mine.chunks_decoded += 1
        mine.bytes_decoded += elements.nbytes
        self._hand_over(cell, node, elements.reshape(-1).view(np.uint8), False, claimed)

    def _undecodable(self, cell: int, node: Cells, error: CodecError) -> ChunkDecodeError:
        path, expected = node.index.file, node.index.fingerprint
        if fingerprint(path) != expected:
            raise stale(path)
        chunk = tuple(int(i) for i in np.unravel_index(self._number[cell], node.grid))
        kind = ChecksumError if isinstance(error, ChecksumMismatch) else ChunkDecodeError
        return kind(
            f"{path}: {node.index.name}, chunk {chunk} at byte offset {self._offset[cell]} "
            f"({self._nbytes[cell]} bytes): {error}. The chunk is damaged; read around it, or "
            "restore the file from a copy.",
            file=path,
            dataset=node.index.name,
            chunk=chunk,
            byte_offset=self._offset[cell],
        )


def _contiguous(target: Target, position: list[int]) -> tuple[int, Array | None]:
    """Return where in its cell a piece begins, bytes, and its memory, if both are contiguous."""
    if target.gather:
        return 0, None
    node = target.node
    skip = 0
    stride = target.dest.dtype.itemsize
    partial = False  # an axis taken in part: every axis before it must have one index
    dst: list[Any] = []
    for axis in range(len(node.cell) - 1, -1, -1):
        group, i = target.groups[axis], position[axis]
        index = group.src[i][0]
        if isinstance(index, slice):
            start, n = index.start, len(range(index.start, index.stop, index.step))
            if n > 1 and (partial or index.step != 1):
                return 0, None
            dst.append(group.dst[i][0])
        else:
            start, n = index, 1
        skip += start * stride
        stride *= node.cell[axis]
        partial = partial or n != node.cell[axis]
    part = target.dest[(*reversed(dst), ...)]
    return skip, part if part.flags.c_contiguous else None


class _MappedTask:
    """One piece of a `Mapped`: a strided copy out of a memory map."""

    __slots__ = ("job", "mapped", "number")

    def __init__(self, job: _Job, mapped: Mapped, number: int) -> None:
        self.job, self.mapped, self.number = job, mapped, number

    def __call__(self, mine: ReadStats) -> None:
        mapped = self.mapped
        if mapped.file < 0:
            self._copy(np.frombuffer(mapped.node.data or b"", np.uint8), mine)
            return
        file = self.job.open(mapped.file)
        try:
            self._copy(file.view(), mine)
        finally:
            release(file)

    def _copy(self, raw: NDArray[np.uint8], mine: ReadStats) -> None:
        mapped = self.mapped
        index = mapped.node.index
        elements: Array = np.ndarray(
            mapped.node.shape, index.file_dtype, raw.data, mapped.byte_offset
        )
        position = pick(mapped.groups, self.number)
        at = sum(g.number[i] for g, i in zip(mapped.groups, position, strict=True))
        if elements.ndim:
            rows = slice(at * mapped.rows, (at + 1) * mapped.rows)
            elements = elements[(slice(None),) * mapped.axis + (rows,)]
        place(elements, mapped.groups, position, mapped.dest, gather=mapped.gather)
        if mapped.file >= 0:
            mine.bytes_read += mapped.dest.nbytes // max(1, mapped.n_pieces)


class _RunTask:
    """One `Run`: bytes from the file straight into the result."""

    __slots__ = ("job", "run")

    def __init__(self, job: _Job, run: Run) -> None:
        self.job, self.run = job, run

    def __call__(self, mine: ReadStats) -> None:
        run = self.run
        file = self.job.open(run.file)
        try:
            mine.preads += file.read_into((run.dest,), run.byte_offset, run.dest.nbytes)
        finally:
            release(file)
        mine.bytes_read += run.dest.nbytes
