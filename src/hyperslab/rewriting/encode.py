"""Regions of a source, as encoded chunks of the result: decoded and encoded by all cores."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hyperslab.codecs.encode import crc32, encode
from hyperslab.rewriting.memory import Memory
from hyperslab.rewriting.plan import DatasetPlan
from hyperslab.rewriting.sources import Source

__all__ = ["Cancelled", "Chunk", "Cutter"]

T = TypeVar("T")
Region = tuple[slice, ...]
Write = Callable[[int, memoryview], object]
Place = tuple[int, ...]


class Cancelled(Exception):
    """Somebody wants the work to stop."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of the result: its linear number, its decoded bytes' CRC-32, and what is stored.

    `data` is empty where all elements are the fill value: then nothing is stored.
    """

    number: int
    crc: int
    data: bytes


class Cutter:
    """Reads regions of a dataset and cuts them into chunks; a context, since it holds threads.

    Parameters
    ----------
    source
        Where elements are read from: the source, or the result.
    plan
        What is made of the source.
    order
        Which axis of `source` each axis of the result is.
    threads
        To decode and encode with.
    cancelled
        Set by whoever wants it to stop.
    memory
        Used for what is read; whoever is next may be given it.
    """

    def __init__(
        self,
        source: Source,
        plan: DatasetPlan,
        *,
        order: tuple[int, ...],
        threads: int,
        cancelled: threading.Event,
        memory: Memory,
    ) -> None:
        self._source = source
        self._plan = plan
        self._order = order
        self._threads = threads
        self._cancelled = cancelled
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="hyperslab-encode")
        self._memory = memory
        self._file_dtype = np.dtype(plan.dtype) if plan.dtype else source.file_dtype
        self._fill = source.fill[()]
        self._fill_bits = _bits(np.asarray(self._fill, self._file_dtype))
        self._grid = [-(-n // c) for n, c in zip(plan.shape, plan.chunks, strict=True)]
        # In memory, axes along which a chunk has one index come first: a chunk then lies together.
        axes = range(len(plan.chunks))
        self._layout = sorted(axes, key=lambda axis: plan.chunks[axis] > 1)

    def __enter__(self) -> Cutter:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def encoded(self, region: Region) -> Iterator[Chunk]:
        """Yield the chunks of a region, as they are to be stored.

        Raises
        ------
        Cancelled
            Somebody wants it to stop.
        StaleIndexError, DamagedFileError, ChunkDecodeError
            As reading does.
        """
        values = self._read(region)
        return self._each(region, lambda place: self._encode(values, region, place))

    def written(self, region: Region, write: Write) -> Iterator[Chunk]:
        """Yield the chunks of a region, once `write` has put their elements where they belong.

        `write` is given a chunk's number and its bytes, by any thread; `Chunk.data` is empty.
        """
        values = self._read(region)

        def one(place: Place) -> Chunk:
            piece = self._piece(values, region, place)
            number = self._number(place)
            write(number, piece.data)
            return Chunk(number, crc32(piece.data), b"")

        return self._each(region, one)

    def sums(self, region: Region) -> Iterator[tuple[int, int]]:
        """Yield number and CRC-32 of the decoded chunks of a region; errors as `encoded`."""
        values = self._read(region)

        def one(place: Place) -> tuple[int, int]:
            return self._number(place), crc32(self._piece(values, region, place).data)

        return self._each(region, one)

    def _each(self, region: Region, one: Callable[[Place], T]) -> Iterator[T]:
        chunks = self._plan.chunks
        ranges = [range(s.start // c, -(-s.stop // c)) for s, c in zip(region, chunks, strict=True)]
        waiting: deque[Future[T]] = deque()
        for place in itertools.product(*ranges):
            if self._cancelled.is_set():
                raise Cancelled
            waiting.append(self._pool.submit(one, place))
            if len(waiting) > 2 * self._threads:  # what is done and not yet taken is bounded
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _read(self, region: Region) -> NDArray[np.generic]:
        """Read a region of the result, into memory that the next call uses again."""
        shape = [s.stop - s.start for s in region]
        laid_out = self._memory.array([shape[a] for a in self._layout], self._source.dtype)
        values = laid_out.transpose(np.argsort(self._layout))
        source: list[slice] = [slice(None)] * len(shape)
        for axis, part in zip(self._order, region, strict=True):
            source[axis] = part
        out = values.transpose(np.argsort(self._order))
        self._source.read(tuple(source), out, threads=self._threads)
        return values

    def _number(self, place: Place) -> int:
        return int(np.ravel_multi_index(place, self._grid))

    def _piece(
        self, values: NDArray[np.generic], region: Region, place: Place
    ) -> NDArray[np.generic]:
        """Return one whole chunk, C-contiguous, in the file's byte order."""
        plan = self._plan
        part = tuple(
            slice(i * c - s.start, min((i + 1) * c, n) - s.start)
            for i, c, s, n in zip(place, plan.chunks, region, plan.shape, strict=True)
        )
        piece = values[part]
        if piece.shape != plan.chunks:  # at the end of the dataset: the rest is fill
            whole = np.full(plan.chunks, self._fill, piece.dtype)
            whole[tuple(slice(n) for n in piece.shape)] = piece
            piece = whole
        return np.ascontiguousarray(piece, self._file_dtype)

    def _encode(self, values: NDArray[np.generic], region: Region, place: Place) -> Chunk:
        piece = self._piece(values, region, place)
        crc = crc32(piece.data)
        bits = _bits(piece)
        # Most chunks have another value at one end.
        if not (bits[[0, -1]] != self._fill_bits).any() and (bits == self._fill_bits).all():
            return Chunk(self._number(place), crc, b"")
        return Chunk(self._number(place), crc, encode(piece, self._plan.codec))


def _bits(values: NDArray[np.generic]) -> NDArray[np.unsignedinteger[Any]]:
    """Return the bits of contiguous elements as integers: -0.0 is not 0.0, and nan is nan."""
    width = values.dtype.itemsize
    unit = next(n for n in (8, 4, 2, 1) if width % n == 0)
    bits: NDArray[np.unsignedinteger[Any]] = values.reshape(-1).view(f"u{unit}")
    return bits.reshape(-1, width // unit)
