"""What a repack does, before it does it: chunk shapes, codecs, and which regions fit into memory.

A dataset is read a region at a time. A region is a box of whole chunks of both the old and the new
grid, where memory allows: then every old chunk is decoded once. Where it does not, regions follow
the new grid only, and old chunks are decoded once for each region that they reach into.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hyperslab.access import chunk_shape_for, parse_access
from hyperslab.codecs.encode import Codec
from hyperslab.errors import CapacityError, SelectionError
from hyperslab.index.tree import DatasetFacts, Entry

__all__ = ["DatasetPlan", "RepackPlan", "plan_dataset", "plan_repack"]

_LEAST_NBYTES = 64 << 10  # smaller datasets are copied as they are
# Of the ceiling, what a region may take: the rest is for chunks that are being encoded, and for
# what Python and the libraries hold.
_REGION_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetPlan:
    """How one dataset is written anew.

    Attributes
    ----------
    path
        Of the dataset.
    order
        Which axis of the source each axis of the result is.
    shape, chunks
        Of the result, in its order of axes.
    source_chunks
        Chunk shape of the source in that order; None if it has none.
    itemsize
        Bytes of an element.
    codec
        How chunks are stored.
    region
        Shape of what is read at once.
    decodings
        How often a chunk of the source is decoded, on average.
    sparse
        Whether chunks of the source were never written.
    """

    path: str
    order: tuple[int, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    source_chunks: tuple[int, ...] | None
    itemsize: int
    codec: Codec
    region: tuple[int, ...]
    decodings: float
    sparse: bool = False

    @property
    def nbytes(self) -> int:
        """Decoded bytes."""
        return math.prod(self.shape) * self.itemsize

    @property
    def region_nbytes(self) -> int:
        """Bytes of a region."""
        return math.prod(self.region) * self.itemsize

    @property
    def n_chunks(self) -> int:
        """Chunks of the result."""
        return math.prod(-(-n // c) for n, c in zip(self.shape, self.chunks, strict=True))

    def regions(self) -> Iterator[tuple[slice, ...]]:
        """Yield the regions, in row-major order, cut at the end of the dataset."""
        ranges = [range(0, n, r) for n, r in zip(self.shape, self.region, strict=True)]
        for starts in itertools.product(*ranges):
            yield tuple(
                slice(start, min(start + r, n))
                for start, r, n in zip(starts, self.region, self.shape, strict=True)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackPlan:
    """What a repack does.

    Attributes
    ----------
    rewritten
        Datasets that are written anew.
    copied
        Paths of the datasets that are copied as they are.
    memory_nbytes
        The ceiling that regions were chosen for.
    elsewhere
        Paths of links to other files, and of virtual and external datasets that stay as they are.
    why
        Why that codec, where it was not named.
    """

    rewritten: tuple[DatasetPlan, ...]
    copied: tuple[str, ...]
    memory_nbytes: int
    elsewhere: tuple[str, ...] = ()
    why: str = ""

    @property
    def in_place(self) -> bool:
        """Whether chunks go right to their places in the file.

        That takes chunks whose sizes are known beforehand: none compressed, and none left out.
        """
        return not any(plan.codec.code or plan.sparse for plan in self.rewritten)

    @property
    def nbytes(self) -> int:
        """Decoded bytes of all that is written anew."""
        return sum(plan.nbytes for plan in self.rewritten)


def plan_repack(
    entries: Sequence[Entry],
    *,
    access: str | None,
    chunks: tuple[int, ...] | None,
    codec: Codec,
    memory_nbytes: int,
    datasets: str | None,
    slice_first: bool,
) -> RepackPlan:
    """Plan a repack of a file.

    Parameters
    ----------
    entries
        Every object of the file.
    access, chunks
        How datasets will be read, see `hyperslab.access.parse_access`; or their chunk shape. One of
        the two.
    codec
        How chunks are stored.
    memory_nbytes
        The ceiling.
    datasets
        Glob of the paths to be written anew; virtual and external datasets that match get elements
        of their own. Default: all of numbers with two axes or more (or as many as `chunks` has, or
        the pattern asks for) and 64 KiB or more, but virtual and external ones.
    slice_first
        Move the axis of which a request takes one index to the front.

    Raises
    ------
    SelectionError
        The pattern or the chunk shape does not fit any of the datasets, or one that was named.
    CapacityError
        A single new chunk does not fit under the ceiling.
    """
    rewritten: list[DatasetPlan] = []
    copied: list[str] = []
    problem: SelectionError | None = None
    elsewhere: list[str] = []
    inside: str | None = None
    for entry in entries:
        facts = entry.facts
        # What a link to another file leads to stays there, and the link is copied.
        if inside is not None and entry.path.startswith(inside):
            continue
        if entry.target and (not entry.repeats or not entry.target.startswith("/")):
            elsewhere.append(entry.path)
            inside = f"{entry.path}/"
            continue
        if facts is None or entry.repeats:
            continue
        if not _is_wanted(entry.path, facts, datasets):
            copied.append(entry.path)
            if facts.storage in ("virtual", "external"):
                elsewhere.append(entry.path)
            continue
        try:
            plan = plan_dataset(
                entry.path,
                facts,
                access=access,
                chunks=chunks,
                codec=codec,
                memory_nbytes=memory_nbytes,
                slice_first=slice_first,
            )
            if is_as_planned(facts, plan):
                copied.append(entry.path)
            else:
                rewritten.append(plan)
        except SelectionError as error:
            if datasets is not None:
                raise
            problem = problem or error
            copied.append(entry.path)
    if not rewritten and problem is not None:
        raise problem
    return RepackPlan(
        rewritten=tuple(rewritten),
        copied=tuple(copied),
        memory_nbytes=memory_nbytes,
        elsewhere=tuple(elsewhere),
    )


def is_as_planned(facts: DatasetFacts, plan: DatasetPlan) -> bool:
    """Tell whether a dataset has the planned chunks and filters: then its chunks are copied."""
    pipeline = plan.codec.pipeline(plan.itemsize)
    return (
        facts.chunks == plan.chunks
        and plan.order == tuple(range(len(plan.order)))
        and [(f.code, f.values) for f in facts.filters] == [(f.code, f.values) for f in pipeline]
    )


def _is_wanted(path: str, facts: DatasetFacts, datasets: str | None) -> bool:
    if not facts.numeric or not facts.shape or 0 in facts.shape:
        return False
    if facts.storage == "null" or not facts.native:
        return False
    if datasets is not None:
        return fnmatch.fnmatch(path, datasets)
    # These are views of other files: only who names them wants their elements.
    if facts.storage in ("virtual", "external"):
        return False
    return len(facts.shape) >= 2 and (facts.decoded_nbytes or 0) >= _LEAST_NBYTES


def plan_dataset(
    path: str,
    facts: DatasetFacts,
    *,
    access: str | None,
    chunks: tuple[int, ...] | None,
    codec: Codec,
    memory_nbytes: int,
    slice_first: bool = False,
) -> DatasetPlan:
    """Plan one dataset; see `plan_repack`."""
    shape = facts.shape or ()
    itemsize = (facts.decoded_nbytes or 0) // max(1, math.prod(shape)) or 1
    order = tuple(range(len(shape)))
    if chunks is not None:
        if len(chunks) != len(shape):
            raise SelectionError(
                f"{path} has {len(shape)} axes, and the chunk shape {chunks} has {len(chunks)}. "
                "Give one number for each axis, or name other datasets.",
                dataset=path,
            )
        new = tuple(min(c, n) for c, n in zip(chunks, shape, strict=True))
    else:
        pattern = parse_access(access or "whole", len(shape))
        new = chunk_shape_for(pattern, shape, itemsize)
        if slice_first:
            singles = [axis for axis, window in enumerate(pattern.window) if window == 1]
            order = (*singles, *(axis for axis in order if axis not in singles))
    old = facts.chunks
    shape, new = _ordered(shape, order), _ordered(new, order)
    old = None if old is None else _ordered(old, order)
    region = _region(shape, new, old, itemsize, int(memory_nbytes * _REGION_SHARE), path)
    return DatasetPlan(
        path=path,
        order=order,
        shape=shape,
        chunks=new,
        source_chunks=old,
        itemsize=itemsize,
        codec=codec,
        region=region,
        decodings=_decodings(shape, region, old),
        sparse=facts.chunks_allocated < facts.chunks_total,
    )


def _ordered(values: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(values[axis] for axis in order)


def _region(
    shape: tuple[int, ...],
    new: tuple[int, ...],
    old: tuple[int, ...] | None,
    itemsize: int,
    most_nbytes: int,
    path: str,
) -> tuple[int, ...]:
    """Return the largest region that fits, of whole chunks of both grids if there is one."""

    def nbytes(region: Sequence[int]) -> int:
        return math.prod(region) * itemsize

    if nbytes(new) > most_nbytes:
        raise CapacityError(
            f"{path}: one chunk of shape {new} takes {nbytes(new)} bytes, and {most_nbytes} are "
            "there for it. Raise the memory ceiling, or choose smaller chunks.",
            dataset=path,
            wanted_nbytes=nbytes(new),
            at_hand_nbytes=most_nbytes,
        )
    cell = old or new
    both = [min(n, math.lcm(a, b)) for n, a, b in zip(shape, new, cell, strict=True)]
    region = both if nbytes(both) <= most_nbytes else list(new)
    steps = both if region is both else list(new)
    # Grow along the last axes first: what lies together is then read together. Where not even one
    # box of both grids fits, first along the axes on which old chunks are longest.
    axes = list(range(len(shape) - 1, -1, -1))
    if region is not both:
        axes.sort(key=lambda axis: -(cell[axis] / new[axis]))
    for axis in axes:
        room = most_nbytes // max(1, nbytes(region) // region[axis])
        grown = min(shape[axis], max(region[axis], room // steps[axis] * steps[axis]))
        region[axis] = grown
    return tuple(region)


def _decodings(
    shape: tuple[int, ...], region: tuple[int, ...], old: tuple[int, ...] | None
) -> float:
    """Return how many regions an old chunk reaches into, on average."""
    if old is None:
        return 1.0
    found = 1.0
    for n, r, c in zip(shape, region, old, strict=True):
        chunks = -(-n // c)
        met = sum(-(-min(start + r, n) // c) - start // c for start in range(0, n, r))
        found *= met / chunks
    return found
