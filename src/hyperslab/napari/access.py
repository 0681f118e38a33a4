"""What it costs to show a plane, in numbers; and how the pixels are stored."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hyperslab.array import Array
from hyperslab.exports.planes import plane_axes
from hyperslab.exports.text import human_nbytes
from hyperslab.image import Image
from hyperslab.layouts.spec import BESIDE
from hyperslab.level import Level

__all__ = ["PlaneCost", "plane_cost", "plane_words", "storage_words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneCost:
    """The work of one plane of a level.

    Attributes
    ----------
    n_chunks
        That the plane meets.
    decoded_nbytes
        Of these chunks, padding at the border not counted.
    used_nbytes
        Of the plane.
    planes_together
        How many planes one decoding serves.
    """

    n_chunks: int
    decoded_nbytes: int
    used_nbytes: int
    planes_together: int


def plane_cost(level: Level) -> PlaneCost:
    """Return what one plane of `level` costs, along its last two axes in space.

    Indexes the image's first dataset; reads nothing else.
    """
    plane = plane_axes(level.axes)
    chunks, shape = level.chunks, level.shape
    n_chunks = math.prod(-(-shape[axis] // max(1, chunks[axis])) for axis in plane)
    used = math.prod(shape[axis] for axis in plane) * level.dtype.itemsize
    depth = math.prod(
        min(chunk, n)
        for axis, (chunk, n) in enumerate(zip(chunks, shape, strict=True))
        if axis not in plane
    )
    return PlaneCost(
        n_chunks=n_chunks,
        decoded_nbytes=used * depth,
        used_nbytes=used,
        planes_together=depth,
    )


def plane_words(level: Level) -> str:
    """Return the cost of a plane as one or two sentences."""
    cost = plane_cost(level)
    chunks = "1 chunk" if cost.n_chunks == 1 else f"{cost.n_chunks:,} chunks"
    decoded, used = human_nbytes(cost.decoded_nbytes), human_nbytes(cost.used_nbytes)
    if cost.planes_together <= 1:
        return f"A plane ({used}) is {chunks}, and nothing else is decoded for it."
    return (
        f"A plane ({used}) takes {chunks}, {decoded} decoded. They serve {cost.planes_together} "
        "planes: the next ones come from the cache."
    )


def storage_words(image: Image) -> str:
    """Return filters and compression ratio of the first dataset, e.g. "gzip, 3.1 times smaller".

    Indexes that dataset, where it has not been read from. "" where the file holds none, or where
    the dataset is in another file.
    """
    names = (name for name in image.spec.levels[0].datasets if name is not None)
    name = next(names, None)
    if name is None or BESIDE in name:
        return ""
    array = Array(image.container, name)
    filters = ", ".join(entry.name for entry in array.filters) or "not compressed"
    written, all_chunks = array.n_chunks
    if not array.filters or not array.stored_nbytes:
        return filters
    if written < all_chunks:
        return f"{filters}; {written:,} of {all_chunks:,} chunks of a dataset are written"
    return f"{filters}, {array.nbytes / array.stored_nbytes:.3g} times smaller"
