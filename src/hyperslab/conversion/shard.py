"""Shards: chunks of a zarr array, encoded by all cores and put into one file.

The format is zarr's codec ``sharding_indexed``, version 1.0: the encoded chunks one after the
other; at the end the index, for each chunk of the shard in row-major order the offset and the
number of its bytes as two little-endian uint64, all ones for a chunk that is not stored; then the
CRC-32C of the index. zarr's own writer gives the same; it encodes a shard in memory, by an event
loop. This one has a few chunks in memory, whatever the size of the shard.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.errors import DamagedFileError
from hyperslab.rewriting.encode import Cancelled

__all__ = ["read_index", "write_shards"]

_ABSENT = np.iinfo(np.uint64).max
_AHEAD = 4  # chunks that may wait to be written


def write_shards(
    folder: Path,
    values: NDArray[Any],
    start: tuple[int, ...],
    *,
    chunks: tuple[int, ...],
    shards: tuple[int, ...],
    encode: Callable[[Any], Any],
    pool: Executor,
    cancelled: threading.Event,
) -> list[Path]:
    """Write the shards of a region.

    Parameters
    ----------
    folder
        Of the zarr array.
    values
        The region, of any strides.
    start
        Its first element in the array: a multiple of `shards`.
    chunks, shards
        Their shapes.
    encode
        A C-contiguous chunk, as bytes.
    pool
        To encode in.
    cancelled
        Set by whoever wants it to stop.

    Returns
    -------
    list of pathlib.Path
        The files. Of a shard that is zeros throughout there is none.

    Raises
    ------
    Cancelled
        Somebody wants it to stop.
    """
    written: list[Path] = []
    starts = [range(0, n, step) for n, step in zip(values.shape, shards, strict=True)]
    for place in itertools.product(*starts):
        part = values[tuple(slice(a, a + n) for a, n in zip(place, shards, strict=True))]
        numbers = [(s + a) // n for s, a, n in zip(start, place, shards, strict=True)]
        path = folder.joinpath("c", *map(str, numbers))
        if _write_shard(path, part, chunks, shards, encode, pool, cancelled):
            written.append(path)
    return written


def _write_shard(
    path: Path,
    values: NDArray[Any],
    chunks: tuple[int, ...],
    shards: tuple[int, ...],
    encode: Callable[[Any], Any],
    pool: Executor,
    cancelled: threading.Event,
) -> bool:
    """Write one shard; return False if it is zeros throughout, and so is not stored."""
    counts = tuple(n // c for n, c in zip(shards, chunks, strict=True))
    index = np.full((*counts, 2), _ABSENT, "<u8")
    waiting: deque[tuple[tuple[int, ...], Future[Any]]] = deque()
    end = 0
    path.parent.mkdir(parents=True, exist_ok=True)

    with open(path, "wb") as stream:

        def put() -> None:
            nonlocal end
            number, future = waiting.popleft()
            data = future.result()
            if data is None:
                return
            nbytes = stream.write(data)
            index[number] = end, nbytes
            end += nbytes

        there = [range(-(-n // c)) for n, c in zip(values.shape, chunks, strict=True)]
        try:
            for number in itertools.product(*there):
                if cancelled.is_set():
                    raise Cancelled
                waiting.append((number, pool.submit(_encoded, values, number, chunks, encode)))
                if len(waiting) > _AHEAD:
                    put()
            while waiting:
                put()
        except BaseException:
            for _, future in waiting:
                future.cancel()
            raise
        if end:
            data = index.tobytes()
            stream.write(data)
            stream.write(_crc32c(data).to_bytes(4, "little"))
    if not end:
        path.unlink()
    return bool(end)


def _encoded(
    values: NDArray[Any],
    number: tuple[int, ...],
    chunks: tuple[int, ...],
    encode: Callable[[Any], Any],
) -> Any:
    """Return one chunk, encoded; None if all of its bytes are zero."""
    piece = values[tuple(slice(i * c, (i + 1) * c) for i, c in zip(number, chunks, strict=True))]
    if piece.shape != chunks:  # at the end of the array
        whole = np.zeros(chunks, piece.dtype)
        whole[tuple(map(slice, piece.shape))] = piece
        piece = whole
    piece = np.ascontiguousarray(piece)
    # Bytes and not numbers: a negative zero is not what an absent chunk reads as.
    if not _bits(piece).any():
        return None
    return encode(piece)


def read_index(path: Path, counts: tuple[int, ...]) -> NDArray[np.uint64] | None:
    """Return where a shard's chunks are, an offset and a size for each; None without a file.

    Raises
    ------
    DamagedFileError
        The index is not what was written.
    """
    nbytes = 16 * math.prod(counts) + 4
    try:
        with open(path, "rb") as stream:
            stream.seek(-nbytes, os.SEEK_END)
            data = stream.read()
    except FileNotFoundError:
        return None
    if _crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise DamagedFileError(
            f"{path}: the shard was written to by somebody else.", file=str(path)
        )
    return np.frombuffer(data[:-4], "<u8").reshape(*counts, 2)


def _bits(piece: NDArray[Any]) -> NDArray[Any]:
    flat = piece.reshape(-1)
    return (
        flat.view(f"u{min(flat.itemsize, 8)}")
        if flat.itemsize in (2, 4, 8, 16)
        else flat.view("u1")
    )


def _crc32c(data: bytes) -> int:
    import google_crc32c

    return int(google_crc32c.value(data))
