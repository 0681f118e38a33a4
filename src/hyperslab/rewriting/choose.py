"""The codec that nobody named: chosen by what it makes of some of the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.advice.probe import CodecTrial, try_codecs
from hyperslab.array import Array
from hyperslab.engine.read import read
from hyperslab.errors import HyperslabError
from hyperslab.file import File
from hyperslab.rewriting.plan import DatasetPlan, RepackPlan
from hyperslab.selection import select

__all__ = ["choose_codec", "codec_for"]

_N_PIECES, _PIECE_NBYTES = 8, 1 << 20
_WORTH = 1.5  # times smaller: below, decoding is not paid for by what need not be read


def choose_codec(plan: RepackPlan, file: File) -> tuple[str, str]:
    """Return the name of the codec to store with, and why.

    gzip with byte shuffle where the file becomes at least 1.5 times smaller by it, otherwise none:
    both are read by every HDF5 library without a plugin.

    Parameters
    ----------
    plan
        Made for any codec.
    file
        The source.

    Notes
    -----
    Decides by the sizes of a sample, which come out the same each time: a repack that is resumed
    goes on with the same codec. The sample is up to eight chunks of the result, or a MiB of each,
    spread over the largest dataset.
    """
    if not plan.rewritten:
        return "none", ""
    largest = max(plan.rewritten, key=lambda item: item.nbytes)
    array = file[largest.path if largest.level is None else largest.level.origin]
    if not isinstance(array, Array):
        return "none", ""
    if largest.level is not None:  # all others are copied: its elements are like its origin's
        cell = tuple(min(c, n) for c, n in zip(largest.chunks, array.shape, strict=True))
        largest = replace(largest, shape=array.shape, chunks=cell)
    try:
        sample = _sample(largest, array)
    except HyperslabError:
        return "none", "the sample cannot be read"
    return codec_for(sample)


def codec_for(sample: Sequence[NDArray[Any]]) -> tuple[str, str]:
    """Return the name of the codec for data of which `sample` holds some chunks, and why."""
    (gzip,) = try_codecs(sample, ["gzip"])
    better = gzip.ratio >= _WORTH
    what = f"with gzip, a sample is {gzip.ratio:.1f} times smaller, and decodes at {_rate(gzip)}"
    return ("gzip" if better else "none"), what


def _rate(trial: CodecTrial) -> str:
    return f"{trial.decode_bytes_per_s / 1e6:.0f} MB/s a core"


def _sample(plan: DatasetPlan, array: Array) -> list[NDArray[Any]]:
    grid = [-(-n // c) for n, c in zip(plan.shape, plan.chunks, strict=True)]
    cell = list(plan.chunks)
    while math.prod(cell) * plan.itemsize > _PIECE_NBYTES and max(cell) > 1:
        axis = cell.index(max(cell))
        cell[axis] = -(-cell[axis] // 2)
    pieces = []
    count = min(_N_PIECES, plan.n_chunks)
    for number in np.linspace(0, plan.n_chunks - 1, count + 2).astype(int)[1:-1]:
        region: list[slice] = [slice(None)] * len(plan.shape)
        place = np.unravel_index(number, grid)
        for axis, i, c, size, n in zip(
            plan.order, place, plan.chunks, cell, plan.shape, strict=True
        ):
            start = min(int(i) * c, n - size)  # a whole one, where the dataset ends too
            region[axis] = slice(start, start + size)
        selection = select(tuple(region), array.shape)
        piece = np.empty(selection.shape, array.dtype)
        read([(array.node, selection, piece)], keep=False)
        dtype = np.dtype(plan.dtype) if plan.dtype else piece.dtype
        pieces.append(np.ascontiguousarray(piece.transpose(plan.order), dtype))
    return pieces
