"""What it costs to show a plane, in numbers; computed from the chunk shape alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hyperslab.exports.planes import plane_axes
from hyperslab.exports.text import human_nbytes
from hyperslab.level import Level

__all__ = ["PlaneCost", "plane_cost", "plane_words"]


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
