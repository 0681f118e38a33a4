"""One image: read, mapped, cut into chunks, encoded. What the workers do."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.codecs.encode import Codec, crc32, encode
from hyperslab.packing import itk
from hyperslab.packing.intensity import Fitted, fit
from hyperslab.packing.plan import ImagePlan
from hyperslab.packing.refusal import Refused, as_refusal
from hyperslab.packing.sources import fingerprint, read
from hyperslab.packing.volume import Volume
from hyperslab.rewriting.encode import Cancelled, Chunk

__all__ = ["PackedChunks", "cut", "fit_image", "pack_image", "sample_image"]

_N_SAMPLED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedChunks:
    """An image, ready to be written.

    Attributes
    ----------
    chunks
        As they are to be stored.
    facts
        As JSON holds them: "dtype", "chunks", "slope", "intercept", "window" (low and high),
        "source_range", "stored_range", "clipped".
    """

    chunks: tuple[Chunk, ...]
    facts: dict[str, Any]


def fit_image(plan: ImagePlan) -> tuple[Volume, Fitted]:
    """Read an image, bring it onto its grid, and find its window.

    Raises
    ------
    Refused
        It cannot be read or mapped, or has changed since it was planned.
    """
    with as_refusal(plan.source.path):
        volume = read(plan.source, plan.header)
        if fingerprint(plan.header.files) != plan.fingerprint or volume.grid != plan.header.grid:
            raise Refused("it changed while it was read")
        try:
            if plan.target is not None:
                fill = _fill(plan, volume)
                nearest = plan.rule.kind == "mask"
                volume = itk.resample(volume, plan.target, nearest=nearest, fill=fill)
            return volume, fit(plan.rule, volume)
        except Refused as error:
            raise Refused(f"{plan.source.path}: {error}") from error


def _fill(plan: ImagePlan, volume: Volume) -> float:
    """Return what is outside of an image: air for CT, 0 for a mask, else the image's least."""
    if plan.rule.kind == "mask":
        return 0.0
    if plan.rule.kind == "window":
        return plan.rule.numbers[0]
    planes = range(volume.values.shape[2])
    ends = [e for k in planes for e in (volume.values[:, :, k].min(), volume.values[:, :, k].max())]
    return min(float(end) * volume.slope + volume.intercept for end in ends)


def pack_image(
    plan: ImagePlan,
    codec: Codec,
    chunks: tuple[int, int, int] | None,
    cancelled: threading.Event,
) -> PackedChunks:
    """Pack one image; errors as `fit_image`.

    Raises
    ------
    Cancelled
        Somebody wants it to stop.

    Notes
    -----
    Memory: `ImagePlan.read_nbytes`, and what is returned.
    """
    if cancelled.is_set():
        raise Cancelled
    volume, fitted = fit_image(plan)
    shape = plan.chunks(chunks, fitted.dtype.itemsize)
    made = []
    ends: list[float] = []
    outside = 0
    with as_refusal(plan.source.path):
        for number, region in cut(plan.grid.shape, shape):
            if cancelled.is_set():
                raise Cancelled
            piece, n = fitted.apply(volume.real(region))
            outside += n
            ends += [float(piece.min()), float(piece.max())]
            made.append(_encoded(number, piece, shape, codec))
    return PackedChunks(
        chunks=tuple(made),
        facts={
            "dtype": fitted.dtype.name,
            "chunks": list(shape),
            "codec": codec.name,
            "slope": fitted.slope,
            "intercept": fitted.intercept,
            "window": None if fitted.is_plain else [fitted.low, fitted.high],
            "source_range": list(fitted.source_range),
            "stored_range": [min(ends), max(ends)],
            "clipped": outside / volume.values.size,
        },
    )


def cut(shape: tuple[int, ...], chunks: tuple[int, ...]) -> Iterator[tuple[int, tuple[slice, ...]]]:
    """Yield the linear number and the region of each chunk, cut at the ends.

    Examples
    --------
    >>> [region for _, region in cut((5,), (2,))]
    [(slice(0, 2, None),), (slice(2, 4, None),), (slice(4, 5, None),)]
    """
    starts = [range(0, n, c) for n, c in zip(shape, chunks, strict=True)]
    for number, place in enumerate(itertools.product(*starts)):
        yield (
            number,
            tuple(slice(s, min(s + c, n)) for s, c, n in zip(place, chunks, shape, strict=True)),
        )


def _encoded(number: int, piece: NDArray[Any], shape: tuple[int, ...], codec: Codec) -> Chunk:
    """Encode a chunk; one that is zero throughout, the fill value, is not stored."""
    if piece.shape != shape:
        whole = np.zeros(shape, piece.dtype)
        whole[tuple(slice(n) for n in piece.shape)] = piece
        piece = whole
    piece = np.ascontiguousarray(piece)
    crc = crc32(piece.data)
    if not piece.view(np.uint8).any():
        return Chunk(number, crc, b"")
    return Chunk(number, crc, encode(piece, codec))


def sample_image(plan: ImagePlan, chunks: tuple[int, int, int] | None) -> list[NDArray[Any]]:
    """Return some chunks of an image, mapped, spread over it; errors as `fit_image`."""
    volume, fitted = fit_image(plan)
    shape = plan.chunks(chunks, fitted.dtype.itemsize)
    regions = [
        region
        for _, region in cut(plan.grid.shape, shape)
        if all(part.stop - part.start == c for part, c in zip(region, shape, strict=True))
    ]
    places = np.linspace(0, len(regions) - 1, _N_SAMPLED + 2).astype(int)[1:-1]
    return [
        np.ascontiguousarray(fitted.apply(volume.real(regions[at]))[0])
        for at in sorted(set(places.tolist()))
    ]
