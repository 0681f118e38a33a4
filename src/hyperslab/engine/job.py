"""One plan being carried out: what its threads share, and what each does with a cell."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.codecs.base import ChecksumMismatch, CodecError
from hyperslab.engine import cache
from hyperslab.engine.flat import do_mapped, do_runs
from hyperslab.engine.limits import limits
from hyperslab.engine.node import Cells, Compute
from hyperslab.engine.place import contiguous_part, pick, place, place_planes
from hyperslab.engine.plan import ReadPlan, Run, Target
from hyperslab.engine.scratch import scratch
from hyperslab.engine.source import OpenFile, acquire, release
from hyperslab.engine.stats import ReadStats
from hyperslab.errors import ChecksumError, ChunkDecodeError
from hyperslab.grid import spans_rows
from hyperslab.index.container import stale
from hyperslab.index.library import read_cell
from hyperslab.index.records import fingerprint
from hyperslab.index.resolve import get_object
from hyperslab.index.session import session

__all__ = ["Job"]

Array = NDArray[Any]

_BLOCK_NBYTES = 4 << 20  # of runs that one thread takes at a time
_MOST_BUFFERS = 512  # that one call may fill; the system's limit is 1024


def _blocks(runs: list[Run]) -> list[list[Run]]:
    """Order runs by where they lie, and cut them into tasks: of one file, and not too large."""
    if not runs:
        return []
    ordered = sorted(runs, key=lambda run: (run.file, run.byte_offset))
    most = min(_BLOCK_NBYTES, sum(run.dest.nbytes for run in runs) // 32)
    blocks: list[list[Run]] = []
    nbytes = most + 1
    for run in ordered:
        if nbytes >= most or run.file != blocks[-1][0].file:
            blocks.append([])
            nbytes = 0
        blocks[-1].append(run)
        nbytes += run.dest.nbytes
    return blocks


class Job:
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
        self._mapped = [
            (mapped, number) for mapped in plan.mapped for number in range(mapped.n_pieces)
        ]
        self._n_batches = len(self._batch) - 1
        self._runs = _blocks(plan.runs)
        self._n_runs = len(self._runs)
        self.n_tasks = self._n_batches + self._n_runs + len(self._mapped)
        self._next = itertools.count()
        self._direct_targets: dict[int, bool] = {}

    def work(self) -> None:
        """Draw tasks until none is left; the body of every thread."""
        mine = ReadStats()
        waiting: list[tuple[int, cache.Pending]] = []
        plan, stop = self.plan, self.stop
        try:
            while not stop.is_set():
                i = next(self._next)
                if i < self._n_batches:
                    self._do_batch(self._batch[i], self._batch[i + 1], mine, waiting)
                elif (i := i - self._n_batches) < self._n_runs:
                    do_runs(plan, self._runs[i], mine)
                elif (i := i - self._n_runs) < len(self._mapped):
                    do_mapped(plan, *self._mapped[i], mine)
                else:
                    break
            # Only now, with nothing of our own unfinished, wait for other reads.
            for cell, pending in waiting:
                if stop.is_set():
                    break
                self._take_over(cell, pending, mine)
        finally:
            scratch.trim()
            with self._lock:
                self.stats.add(mine)

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
            self._from_library(cells, node, claimed, mine)
            return
        if node.segments or node.compute is not None:
            for cell in cells:
                if self.stop.is_set():
                    return
                if node.compute is None:
                    self._from_segments(cell, node, claimed, mine)
                else:
                    self._compute(cell, node, node.compute, claimed, mine)
            return
        file = acquire(*self.plan.files[target.file])
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
                stored = scratch.stored(end - begin)
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
            out = scratch.cell(node.decoded_nbytes) if direct is None else direct
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
        if planes or self._first[cell + 1] != placement + 1 or not self._takes_direct(placement):
            return None
        position = pick(target.groups, self._piece[placement])
        dst = tuple(
            index for g, i in zip(target.groups, position, strict=True) for index in g.dst[i]
        )
        part = target.dest[(*dst, ...)]
        if part.nbytes != node.decoded_nbytes or not part.flags.c_contiguous:
            return None
        return part.reshape(-1).view(np.uint8)

    def _takes_direct(self, placement: int) -> bool:
        """Tell whether any cell of a target can be decoded right into the result; asked once."""
        t = self._target[placement]
        found = self._direct_targets.get(t)
        if found is None:
            target = self.plan.targets[t]
            node = target.node
            found = (
                not target.gather
                and node.index.file_dtype.isnative
                and target.dest.flags.c_contiguous
                and spans_rows(node.cell, node.shape)
            )
            self._direct_targets[t] = found
        return found

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
                skip, part = contiguous_part(target, position)
                if part is None:
                    view = file.view()[offset : offset + node.decoded_nbytes]
                    elements: Array = np.ndarray(node.cell, node.cell_dtype, view.data)
                    place(elements, target.groups, position, target.dest, gather=target.gather)
                    mine.bytes_read += node.decoded_nbytes
                    continue
                at = offset + skip
                if pending and (at != end or len(pending) >= _MOST_BUFFERS):
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

    def _compute(
        self, cell: int, node: Cells, compute: Compute, claimed: set[int], mine: ReadStats
    ) -> None:
        """Have a cell computed. What is read for it may wait for other threads.

        That holds up nobody for ever: whoever decodes a chunk of a file waits for nothing, and of
        computed cells each waits only for those that it is made of.
        """
        place_in_grid = np.unravel_index(self._number[cell], node.grid)
        origin = tuple(int(i) * n for i, n in zip(place_in_grid, node.cell, strict=True))
        # Of its own, since what is read meanwhile uses this thread's scratch memory.
        out = cache.room(node.decoded_nbytes)
        elements: Array = np.ndarray(node.cell, node.index.dtype, out)
        there = tuple(
            slice(min(n, whole - start))
            for n, whole, start in zip(node.cell, node.shape, origin, strict=True)
        )
        mine.add(compute(origin, elements[there]))
        self._hand_over(cell, node, out, False, claimed)

    def _from_library(
        self, cells: list[int], node: Cells, claimed: set[int], mine: ReadStats
    ) -> None:
        """Let the HDF5 library read cells, in one visit; it serves one thread at a time anyway."""
        with session(node.index.file) as h5:
            dataset = get_object(h5, node.index.name)
            for cell in cells:
                if self.stop.is_set():
                    return
                place_in_grid = np.unravel_index(self._number[cell], node.grid)
                origin = tuple(int(i) * n for i, n in zip(place_in_grid, node.cell, strict=True))
                elements = read_cell(dataset, node.index, origin, node.cell)
                mine.chunks_library += 1
                mine.chunks_decoded += 1
                mine.bytes_decoded += elements.nbytes
                out = elements.reshape(-1).view(np.uint8)
                self._hand_over(cell, node, out, False, claimed)

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
