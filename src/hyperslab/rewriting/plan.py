"""What a repack does, before it does it: chunk shapes, codecs, regions that fit into memory."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hyperslab.access import chunk_shape_for, parse_access
from hyperslab.codecs.encode import Codec
from hyperslab.errors import SelectionError
from hyperslab.filters import BLOSC, GZIP, LZF, ZSTD, Filter
from hyperslab.index.tree import DatasetFacts, Entry
from hyperslab.rewriting.regions import decodings, region_shape, regions_of

__all__ = [
    "DatasetPlan",
    "LevelOf",
    "Narrowing",
    "RepackPlan",
    "Wish",
    "is_wanted",
    "own_datasets",
    "plan_dataset",
    "plan_repack",
]

_LEAST_NBYTES = 64 << 10  # smaller datasets are copied as they are
# Of the ceiling, what a region may take: the rest is for chunks that are being encoded, and for
# what Python and the libraries hold.
_REGION_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was asked of a repack; see `hyperslab.rewriting.rewrite.repack`.

    Attributes
    ----------
    access, chunks, for_
        One of the three: a pattern, a chunk shape, or "viewing".
    layout, axes
        How images are found, for "viewing".
    codec
        A name, or "auto".
    memory
        The ceiling, bytes.
    datasets
        Glob of paths, or None.
    slice_first
        Whether axes are to be moved.
    narrow
        "" for not; "same": to smaller elements of the same kind; "integers": floats to integers
        too.
    """

    access: str | None = None
    chunks: tuple[int, ...] | None = None
    for_: str | None = None
    layout: str = "auto"
    axes: str | None = None
    codec: str = "auto"
    memory: int = 1 << 30
    datasets: str | None = None
    slice_first: bool = False
    narrow: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelOf:
    """What a coarser level is made of.

    Attributes
    ----------
    kind
        Whose convention it follows: "imaris", "bdv", "luxendo" or "beside".
    number
        Of the level in its image; 0 is the finest.
    origin
        Path in the source of the dataset of the coarsest level that the file has.
    finer
        Path in the result of the level that it is made of; None: `origin` itself.
    shape
        Of that level, without padding, in the datasets' order of axes.
    halved
        Which axes are halved, in the order in which the image has them: that of additions.
    nearest
        Whether every second element is taken, and no mean.
    meant
        NumPy name of the type that the stored elements stand for: means are those of its values.
    """

    kind: str
    number: int
    origin: str
    finer: str | None
    shape: tuple[int, ...]
    halved: tuple[int, ...]
    nearest: bool
    meant: str

    @property
    def steps(self) -> tuple[int, ...]:
        """2 for an axis that is halved, 1 for one that is not."""
        return tuple(2 if axis in self.halved else 1 for axis in range(len(self.shape)))


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
        Bytes of an element of the result.
    codec
        How chunks are stored.
    region
        Shape of what is read at once.
    decodings
        How often a chunk of the source is decoded, on average.
    sparse
        Whether chunks of the source were never written.
    dtype
        NumPy's name of the result's type in the file, where it is narrower; "": the source's.
    read_itemsize
        Bytes of an element of the source.
    level
        For a coarser level, which the source does not have: what it is made of.
    extent
        Shape of the dataset, where that is padded beyond `shape`; () where it is not.
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
    dtype: str = ""
    read_itemsize: int = 0
    level: LevelOf | None = None
    extent: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Decoded bytes of the result."""
        return math.prod(self.shape) * self.itemsize

    @property
    def region_nbytes(self) -> int:
        """Bytes of a region, as it is read."""
        return math.prod(self.region) * max(self.itemsize, self.read_itemsize)

    @property
    def n_chunks(self) -> int:
        """Chunks of the result."""
        return math.prod(-(-n // c) for n, c in zip(self.shape, self.chunks, strict=True))

    def regions(self) -> Iterator[tuple[slice, ...]]:
        """Yield the regions, in row-major order, cut at the end of the dataset."""
        return regions_of(self.shape, self.region)


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """Whether a dataset gets a smaller type.

    Attributes
    ----------
    path
        Of the dataset.
    old, new
        NumPy's name of its type, and of the one that it gets: "" if it keeps its own.
    why
        Why it keeps it, in words; "" if it does not.
    """

    path: str
    old: str
    new: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackPlan:
    """What a repack does.

    Attributes
    ----------
    rewritten
        Datasets that are written anew, and coarser levels that are added: each after what it is
        made of.
    copied
        Paths of the datasets that are copied as they are.
    memory_nbytes
        The ceiling that regions were chosen for.
    elsewhere
        Paths of links to other files, and of virtual and external datasets that stay as they are.
    why
        Why that codec, where it was not named.
    opened_as
        Layout and axes to be noted in the file, where `open_image` needs them; "auto" if it does
        not.
    narrowed
        Where smaller types were asked for: each dataset that there are smaller types of.
    notes
        What else is to be said, in sentences: images that get no coarser levels.
    """

    rewritten: tuple[DatasetPlan, ...]
    copied: tuple[str, ...]
    memory_nbytes: int
    elsewhere: tuple[str, ...] = ()
    why: str = ""
    opened_as: tuple[str, str | None] = ("auto", None)
    narrowed: tuple[Narrowing, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def in_place(self) -> bool:
        """Whether chunks go right to their places in the file.

        That takes chunks whose sizes are known beforehand: none compressed, and none left out.
        """
        return not any(plan.codec.code or plan.sparse for plan in self.rewritten)

    @property
    def levels(self) -> tuple[DatasetPlan, ...]:
        """Those of `rewritten` that are coarser levels, which the source does not have."""
        return tuple(plan for plan in self.rewritten if plan.level is not None)

    @property
    def nbytes(self) -> int:
        """Decoded bytes of all that is written anew."""
        return sum(plan.nbytes for plan in self.rewritten)


def plan_repack(
    entries: Sequence[Entry],
    wish: Wish,
    *,
    codec: Codec,
    chosen: Mapping[str, tuple[int, ...]] | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> RepackPlan:
    """Plan a repack of a file; coarser levels are not part of this.

    Parameters
    ----------
    entries
        Every object of the file.
    wish
        What was asked. Of `datasets`, virtual and external ones that match get elements of their
        own. By default all of numbers with two axes or more (or as many as `chunks` has, or the
        pattern asks for) and 64 KiB or more, but virtual and external ones.
    codec
        How chunks are stored.
    chosen
        Chunk shapes by path; others are copied. None: as `wish` has them.
    dtypes
        Narrower types by path.

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
    datasets, elsewhere = own_datasets(entries)
    for entry, facts in datasets:
        if not is_wanted(entry.path, facts, wish.datasets) or (
            chosen is not None and entry.path not in chosen
        ):
            copied.append(entry.path)
            if facts.storage in ("virtual", "external"):
                elsewhere.append(entry.path)
            continue
        try:
            plan = plan_dataset(
                entry.path,
                facts,
                wish,
                codec=codec,
                chunks=wish.chunks if chosen is None else chosen[entry.path],
                dtype=(dtypes or {}).get(entry.path, ""),
            )
            if _is_as_planned(facts, plan):
                copied.append(entry.path)
            else:
                rewritten.append(plan)
        except SelectionError as error:
            if wish.datasets is not None:
                raise
            problem = problem or error
            copied.append(entry.path)
    if not rewritten and problem is not None:
        raise problem
    return RepackPlan(
        rewritten=tuple(rewritten),
        copied=tuple(copied),
        memory_nbytes=wish.memory,
        elsewhere=tuple(elsewhere),
    )


def own_datasets(
    entries: Sequence[Entry],
) -> tuple[list[tuple[Entry, DatasetFacts]], list[str]]:
    """Return the datasets of the file itself, each once, and the paths of links to other files.

    What such a link leads to stays there, and the link is copied.
    """
    found: list[tuple[Entry, DatasetFacts]] = []
    links: list[str] = []
    for entry in entries:
        if links and entry.path.startswith(f"{links[-1]}/"):
            continue
        if entry.target and (not entry.repeats or not entry.target.startswith("/")):
            links.append(entry.path)
        elif entry.facts is not None and not entry.repeats:
            found.append((entry, entry.facts))
    return found, links


def _is_as_planned(facts: DatasetFacts, plan: DatasetPlan) -> bool:
    """Tell whether a dataset has the planned chunks and filters: then its chunks are copied."""
    pipeline = plan.codec.pipeline(plan.itemsize)
    return (
        not plan.dtype
        and facts.chunks == plan.chunks
        and plan.order == tuple(range(len(plan.order)))
        and [_essence(f) for f in facts.filters] == [_essence(f) for f in pipeline]
    )


def _essence(entry: Filter) -> tuple[int, tuple[int, ...]]:
    """Return a filter without what reading does not depend on: levels, sizes, LZF's version."""
    values = entry.values
    if entry.code in (GZIP, LZF, ZSTD):
        values = ()
    elif entry.code == BLOSC:
        values = (*values[:3], *values[5:])
    return entry.code, values


def is_wanted(path: str, facts: DatasetFacts, datasets: str | None) -> bool:
    """Tell whether a dataset may be rewritten; `datasets` is a glob of paths, or None."""
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
    wish: Wish,
    *,
    codec: Codec,
    chunks: tuple[int, ...] | None,
    dtype: str = "",
) -> DatasetPlan:
    """Plan how one dataset is rewritten.

    Parameters
    ----------
    path, facts
        Its name, and what it is now.
    wish
        For the access pattern, the order of axes and the memory ceiling.
    codec, chunks, dtype
        Of the result; chunks by the access pattern if None, the type that it has if "".

    Raises
    ------
    SelectionError
        Chunks or pattern do not fit the dataset's axes.
    CapacityError
        One chunk does not fit under the ceiling.
    """
    shape = facts.shape or ()
    read_itemsize = (facts.decoded_nbytes or 0) // max(1, math.prod(shape)) or 1
    itemsize = np.dtype(dtype).itemsize if dtype else read_itemsize
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
        pattern = parse_access(wish.access or "whole", len(shape))
        new = chunk_shape_for(pattern, shape, itemsize)
        if wish.slice_first:
            singles = [axis for axis, window in enumerate(pattern.window) if window == 1]
            order = (*singles, *(axis for axis in order if axis not in singles))
    old = facts.chunks
    shape, new = _ordered(shape, order), _ordered(new, order)
    old = None if old is None else _ordered(old, order)
    most = int(wish.memory * _REGION_SHARE)
    region = region_shape(shape, new, old, max(itemsize, read_itemsize), most, path)
    return DatasetPlan(
        path=path,
        order=order,
        shape=shape,
        chunks=new,
        source_chunks=old,
        itemsize=itemsize,
        codec=codec,
        region=region,
        decodings=decodings(shape, region, old),
        sparse=facts.chunks_allocated < facts.chunks_total,
        dtype=dtype,
        read_itemsize=read_itemsize,
    )


def _ordered(values: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(values[axis] for axis in order)
