"""What an OME-Zarr is going to be: its levels, their chunks and shards, and the order of work."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hyperslab.conversion.axes import canonical_order
from hyperslab.conversion.codecs import check
from hyperslab.conversion.shapes import decodings, region_shape, regions, shard_shape, view_chunks
from hyperslab.errors import CapacityError, OutputError, SelectionError
from hyperslab.exports.text import human_nbytes
from hyperslab.image import Image, Level

__all__ = ["LevelPlan", "ZarrPlan", "fitting_threads", "level_of", "plan_zarr", "reading_nbytes"]

Shape = tuple[int, ...]

_MOST_REGION_NBYTES = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelPlan:
    """One level of the result. Shapes are in the order of the result's axes.

    Attributes
    ----------
    number
        Of the image's level.
    made
        Whether it is made of the result's next finer level, which the file does not hold at half
        the resolution; otherwise it is read from the file.
    shape, chunks, shards
        Of the array.
    source_chunks
        Chunks of the file's datasets.
    region
        What is read at once.
    itemsize
        Bytes of an element.
    scale, translation
        As `Level.scale` and `Level.translation`.
    threads
        To decode and encode with: as many as memory allows.
    """

    number: int
    made: bool
    shape: Shape
    chunks: Shape
    shards: Shape
    source_chunks: Shape
    region: Shape
    itemsize: int
    scale: tuple[float, ...]
    translation: tuple[float, ...]
    threads: int

    @property
    def nbytes(self) -> int:
        """Decoded bytes of the level."""
        return math.prod(self.shape) * self.itemsize

    @property
    def region_nbytes(self) -> int:
        """Most decoded bytes of a region."""
        pairs = zip(self.region, self.shape, strict=True)
        return math.prod(min(a, b) for a, b in pairs) * self.itemsize

    @property
    def decodings(self) -> float:
        """How often a chunk of the file is decoded, on average."""
        return 0.0 if self.made else decodings(self.shape, self.region, self.source_chunks)

    def regions(self) -> Iterator[tuple[slice, ...]]:
        """Yield what is read at once, in turn."""
        return regions(self.shape, self.region)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZarrPlan:
    """An image as OME-Zarr.

    Attributes
    ----------
    axes
        Letters of the result's axes.
    order
        Which axis of the image each of them is.
    dtype
        NumPy name of the element type.
    codec
        "zstd", "blosc", "gzip" or "none".
    levels
        Finest first.
    """

    axes: str
    order: tuple[int, ...]
    dtype: str
    codec: str
    levels: tuple[LevelPlan, ...]

    @property
    def nbytes(self) -> int:
        """Decoded bytes of all levels."""
        return sum(level.nbytes for level in self.levels)


def level_of(image: Image, level: int) -> int:
    """Return `level` if the image has it.

    Raises
    ------
    SelectionError
        It has not.
    """
    if not 0 <= level < len(image.levels):
        raise SelectionError(
            f"{image.file}: there is no level {level}; levels: 0 to {len(image.levels) - 1}.",
            file=image.file,
        )
    return level


def plan_zarr(
    image: Image,
    *,
    level: int,
    chunks: Shape | None,
    shards: Shape | None,
    codec: str,
    memory_nbytes: int,
    threads: int,
) -> ZarrPlan:
    """Plan an OME-Zarr; nothing is read but metadata. Parameters and errors as `convert`.

    `chunks` and `shards` are in the order of the result's axes.
    """
    check(codec)
    first = level_of(image, level)
    _check_axes(image)
    order = canonical_order(image.axes)
    axes = "".join(image.axes[axis] for axis in order)

    def turned(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(values[axis] for axis in order)

    found: list[LevelPlan] = []
    own: Shape = ()
    whole: Shape | None = None
    for source in image.levels[first:]:
        shape: Shape = tuple(source.shape[axis] for axis in order)
        itemsize = source.dtype.itemsize
        if not found:
            own = _own(image, "chunk", chunks, shape) or view_chunks(axes, shape, itemsize)
            whole = _own(image, "shard", shards, shape)
            if whole and any(s % c for s, c in zip(whole, own, strict=True)):
                raise OutputError(
                    f"shards {whole} are no multiples of chunks {own}, as they must be."
                )
        # The same at all levels, so that two chunks of one make a chunk of the next; but no larger
        # than the level.
        own_chunks = tuple(min(c, max(1, n)) for c, n in zip(own, shape, strict=True))
        source_chunks: Shape = tuple(source.chunks[axis] for axis in order)
        made = source.computed and bool(found)
        chunk_nbytes = math.prod(own_chunks) * itemsize
        if made:  # chunks of the finer level are decoded, and added up as wider numbers
            per_thread = 8 * math.prod(own) * itemsize
        else:
            per_thread = reading_nbytes(source) + 2 * chunk_nbytes
        n_threads = fitting_threads(threads, memory_nbytes, per_thread)
        # Beside the region: what threads work on, and chunks that wait to be written.
        budget = max(1, memory_nbytes - n_threads * per_thread - 6 * chunk_nbytes)
        if whole:
            own_shards = tuple(
                min(-(-s // c), max(1, -(-n // c))) * c
                for s, c, n in zip(whole, own_chunks, shape, strict=True)
            )
        else:
            own_shards = shard_shape(axes, shape, own_chunks, itemsize, budget)
        region = own_shards
        if not made:
            most = min(budget, _MOST_REGION_NBYTES)
            region = region_shape(shape, own_shards, source_chunks, itemsize, most)
        entry = LevelPlan(
            number=source.number,
            made=made,
            shape=shape,
            chunks=own_chunks,
            shards=own_shards,
            source_chunks=source_chunks,
            region=region,
            itemsize=itemsize,
            scale=turned(source.scale),
            translation=turned(source.translation),
            threads=n_threads,
        )
        if entry.region_nbytes > budget:
            wanted = memory_nbytes - budget + entry.region_nbytes
            raise CapacityError(
                f"{image.file}: shards of {own_shards} take {human_nbytes(wanted)} of memory with "
                f"what is decoded and encoded beside them, and {human_nbytes(memory_nbytes)} are "
                "allowed. Allow more (--memory), use fewer threads, or make shards smaller.",
                file=image.file,
                wanted_nbytes=wanted,
                at_hand_nbytes=memory_nbytes,
            )
        found.append(entry)
    return ZarrPlan(
        axes=axes, order=order, dtype=image.levels[first].dtype.name, codec=codec,
        levels=tuple(found),
    )  # fmt: skip


def reading_nbytes(level: Level) -> int:
    """Return what a thread takes that reads a level: a chunk, stored and decoded.

    Of a computed level much more: the finer level's elements, and their sums as wider numbers.
    """
    chunk_nbytes = math.prod(level.chunks) * level.dtype.itemsize
    return chunk_nbytes * (16 if level.computed else 2)


def fitting_threads(threads: int, memory_nbytes: int, per_thread_nbytes: int) -> int:
    """Return how many threads take half of the memory at most; at least one.

    Examples
    --------
    >>> fitting_threads(16, 1 << 30, 64 << 20), fitting_threads(2, 1000, 1000)
    (8, 1)
    """
    return max(1, min(threads, memory_nbytes // 2 // max(1, per_thread_nbytes)))


def _own(image: Image, what: str, given: Shape | None, shape: Shape) -> Shape | None:
    if given is None:
        return None
    if len(given) != len(shape) or min(given, default=1) < 1:
        order = canonical_order(image.axes)
        axes = "".join(image.axes[axis] for axis in order)
        raise OutputError(
            f"{what} shape {given} does not fit: the result has axes {axes}, extents {shape}."
        )
    return given


def _check_axes(image: Image) -> None:
    """Raise unless OME-Zarr has a place for the image's axes."""
    space = [letter for letter in image.axes if letter in "ZYX"]
    others = [letter for letter in image.axes if letter not in "TZYX"]
    if len(space) < 2 or len(others) > 1:
        raise OutputError(
            f"{image.file}: OME-Zarr has two or three axes of Z, Y and X, and besides T one axis "
            f"more at most; this image has {image.axes}. Say what its axes are (--layout DATASET "
            "--axes LETTERS), or convert it to .npy.",
            file=image.file,
        )
    if image.dtype.kind not in "biufc":
        raise OutputError(f"{image.file}: {image.dtype} is nothing that zarr stores.")
