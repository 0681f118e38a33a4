"""What a repack would bring: some of the data written as it would be, and read.

h5py is imported here because it is what is measured.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab import filters
from hyperslab.access import Access, chunks_touched
from hyperslab.advice.probe import CodecTrial, measure_line, time_h5py, time_hyperslab, try_codecs
from hyperslab.array import Array
from hyperslab.codecs.encode import CODECS, Codec, encode
from hyperslab.engine.source import close_idle
from hyperslab.errors import MissingCodecError
from hyperslab.file import open_file
from hyperslab.index.library import require_filters
from hyperslab.index.session import library_lock

__all__ = ["Trial", "try_repacks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a codec makes of the data.

    Attributes
    ----------
    codec
        Size and speed on the sample.
    write_bytes_per_s
        Of stored bytes, into a file that the system keeps in memory at first.
    h5py_s, hyperslab_s
        Seconds for one request at a random place. None where h5py lacks the plugin.
    """

    codec: CodecTrial
    write_bytes_per_s: float
    h5py_s: float | None
    hyperslab_s: float


def try_repacks(
    sample: NDArray[Any],
    access: Access,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    *,
    dice: random.Random,
) -> list[Trial]:
    """Store a sample with every codec that a repack can write, and time requests to it.

    Parameters
    ----------
    sample
        Some of the data, of at least one chunk along each axis, or all there is along it.
    access, shape, chunks
        The pattern; the whole dataset's shape and its chunks after the repack.

    Returns
    -------
    list of Trial
        One for each codec, in their order.

    Notes
    -----
    Writes files of the sample's size to the system's folder for temporary files, one at a time,
    and removes them. They are read from memory: the time of a disk comes on top.
    """
    cell = tuple(min(n, c) for n, c in zip(sample.shape, chunks, strict=True))
    pieces = _cut(sample, cell)
    codecs = {trial.codec: trial for trial in try_codecs(pieces[:16])}
    size = chunks_touched(access, shape, chunks)
    region = tuple(min(n, r) for n, r in zip(sample.shape, access.region(shape), strict=True))
    found = []
    for name, how in CODECS.items():
        with tempfile.TemporaryDirectory(prefix="hyperslab-doctor-") as folder:
            path = os.path.join(folder, "trial.h5")
            stored = [encode(piece, how) for piece in pieces]
            start = time.perf_counter()
            _write(path, sample, cell, stored, how)
            write_s = time.perf_counter() - start
            array = open_file(path)["x"]
            if not isinstance(array, Array):
                raise TypeError(f"{path}: x is no dataset")
            try:
                require_filters(array.index)
                timers = [time_hyperslab(array), time_h5py(path, "x")]
            except MissingCodecError:
                timers = [time_hyperslab(array)]
            seconds = [
                measure_line(
                    timer, region, sample.shape, cell, itemsize=sample.itemsize, dice=dice
                ).at(size)
                for timer in timers
            ]
            close_idle()  # some systems remove no file that is open
        found.append(
            Trial(
                codec=codecs[name],
                write_bytes_per_s=sum(map(len, stored)) / max(write_s, 1e-9),
                hyperslab_s=seconds[0],
                h5py_s=seconds[1] if len(seconds) > 1 else None,
            )
        )
    return found


def _cut(sample: NDArray[Any], cell: tuple[int, ...]) -> list[NDArray[Any]]:
    """Cut a sample into chunks; what would be at an edge and cut off is filled up."""
    grid = tuple(-(-n // c) for n, c in zip(sample.shape, cell, strict=True))
    pieces: list[NDArray[Any]] = []
    for place in np.ndindex(*grid):
        part = sample[tuple(slice(i * c, (i + 1) * c) for i, c in zip(place, cell, strict=True))]
        piece = np.zeros(cell, sample.dtype)
        piece[tuple(slice(0, n) for n in part.shape)] = part
        pieces.append(piece)
    return pieces


def _write(
    path: str, sample: NDArray[Any], cell: tuple[int, ...], stored: Sequence[bytes], how: Codec
) -> None:
    """Write a dataset x like a sample, of chunks that are encoded already."""
    import h5py

    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    created.set_chunk(cell)
    for entry in how.pipeline(sample.itemsize):
        if entry.code == filters.SHUFFLE:
            created.set_shuffle()
        elif entry.code == filters.GZIP:
            created.set_deflate(entry.values[0])
        else:
            # Optional: so it can be named where its plugin is not installed.
            created.set_filter(entry.code, h5py.h5z.FLAG_OPTIONAL, entry.values)
    with library_lock, h5py.File(path, "w", libver="latest") as h5:
        space = h5py.h5s.create_simple(sample.shape)
        kind = h5py.h5t.py_create(sample.dtype, logical=True)
        dataset = h5py.h5d.create(h5.id, b"x", kind, space, created)
        grid = tuple(-(-n // c) for n, c in zip(sample.shape, cell, strict=True))
        for place, data in zip(np.ndindex(*grid), stored, strict=True):
            offset = tuple(i * c for i, c in zip(place, cell, strict=True))
            dataset.write_direct_chunk(offset, data)
