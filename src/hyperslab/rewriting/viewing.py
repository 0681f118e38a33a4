"""Files for viewing: which datasets are images, chunks for their planes, and coarser levels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hyperslab.array import Array
from hyperslab.codecs.encode import Codec
from hyperslab.errors import HyperslabError, LayoutError
from hyperslab.file import File
from hyperslab.index.tree import Entry
from hyperslab.layouts import describe, image_names
from hyperslab.layouts.spec import BESIDE, ImageSpec
from hyperslab.pyramid.steps import halved, steps
from hyperslab.rewriting.attributes import Key, key_of
from hyperslab.rewriting.placing import is_padded, kind_of, places_of
from hyperslab.rewriting.plan import DatasetPlan, LevelOf, Wish, is_wanted
from hyperslab.rewriting.regions import region_shape

if TYPE_CHECKING:
    import h5py

__all__ = ["Viewed", "find_images", "plan_levels", "viewing_chunks"]

_TILE = 512  # pixels each way in the plane
_CHUNK_NBYTES = 1 << 20
_MOST_PLANES = 16
_REGION_SHARE = 0.25  # of the ceiling: the finer level is in memory too


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewed:
    """An image of the source.

    Attributes
    ----------
    spec
        What the layout says of it.
    paths
        Of its datasets, all levels: as `spec` has it, and as a walk through the file does.
    """

    spec: ImageSpec
    paths: Mapping[str, str]

    @property
    def letters(self) -> str:
        """Letter of each axis of the datasets themselves, in their own order."""
        inner = self.spec.axes[self.spec.n_outer :]
        order = self.spec.order or range(len(inner))
        found = dict(zip(order, inner, strict=True))
        return "".join(found[axis] for axis in range(len(inner)))


def viewing_chunks(letters: str, shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the chunk shape for looking at planes: a tile of Y and X, and some planes of Z.

    Parameters
    ----------
    letters
        One per axis.
    shape, itemsize
        Of the dataset.

    Returns
    -------
    tuple of int
        Along Y and X about 512, so that the tiles are about equal; along Z as many as make a MiB,
        16 at most; 1 along others. At most a MiB: of large elements, the tile is smaller.

    Examples
    --------
    >>> viewing_chunks("ZYX", (48, 2048, 5888), 2)
    (2, 512, 491)
    >>> viewing_chunks("CYX", (3, 300, 300), 1)
    (1, 300, 300)
    """
    chunk = [1] * len(shape)
    plane = [axis for axis, letter in enumerate(letters) if letter in "YX"]
    for axis in plane:
        chunk[axis] = max(1, -(-shape[axis] // max(1, round(shape[axis] / _TILE))))
    while math.prod(chunk) * itemsize > _CHUNK_NBYTES:
        axis = max(plane, key=chunk.__getitem__)
        chunk[axis] = -(-chunk[axis] // 2)
    if "Z" in letters:
        axis = letters.index("Z")
        planes = _CHUNK_NBYTES // (math.prod(chunk) * itemsize)
        chunk[axis] = max(1, min(planes, _MOST_PLANES, shape[axis]))
    return tuple(chunk)


def find_images(h5: h5py.File, path: str, entries: Sequence[Entry], wish: Wish) -> list[Viewed]:
    """Return the images of an open file.

    Raises
    ------
    LayoutError
        No layout fits, or several do; or no image can be described.
    """
    walked: dict[Key, str] = {}
    for entry in entries:
        if entry.facts is not None and not entry.repeats:
            walked[key_of(h5[entry.path].id)] = entry.path
    names: Sequence[str | None] = (
        (None,) if wish.axes is not None else image_names(h5, path, wish.layout)
    )
    if len(names) == 1:
        names = (None,)
    found: list[Viewed] = []
    for name in names:
        spec = describe(h5, path, wish.layout, axes=wish.axes, image=name)
        own = {d for level in spec.levels for d in level.datasets if d is not None}
        paths = {d: walked.get(key_of(h5[d].id), "") for d in own if BESIDE not in d}
        found.append(Viewed(spec=spec, paths={d: p for d, p in paths.items() if p}))
    if not found:
        raise LayoutError(f"{path}: the file has no image.", file=path)
    return found


def chunks_by_path(
    images: Sequence[Viewed], entries: Sequence[Entry], itemsizes: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Return the chunk shape of every dataset of the images, by its path in a walk."""
    facts = {entry.path: entry.facts for entry in entries if not entry.repeats}
    found: dict[str, tuple[int, ...]] = {}
    for image in images:
        for path in image.paths.values():
            known = facts[path]
            if known is None or not known.shape or len(known.shape) != len(image.letters):
                continue
            itemsize = itemsizes.get(path) or np.dtype(image.spec.dtype).itemsize
            found.setdefault(path, viewing_chunks(image.letters, known.shape, itemsize))
    return found


def plan_levels(
    image: Viewed,
    h5: h5py.File,
    file: File,
    entries: Sequence[Entry],
    wish: Wish,
    *,
    codec: Codec,
    dtypes: Mapping[str, str],
) -> tuple[list[DatasetPlan], str]:
    """Plan the coarser levels of an image, those that it lacks.

    Parameters
    ----------
    image
        The image.
    h5, file
        The source, opened by h5py and by us.
    entries, wish
        All objects of the source, and what was asked.
    codec
        How chunks are stored.
    dtypes
        Narrower types by path.

    Returns
    -------
    plans
        Of each dataset the levels, finest first.
    note
        Why there are none, where that needs to be said.

    Notes
    -----
    Levels are those that `hyperslab.image.Image` computes for the file as it is, but that only axes
    of the datasets themselves are halved.
    """
    spec = image.spec
    n, coarsest = spec.n_outer, spec.levels[-1]
    order = spec.order or tuple(range(len(spec.axes) - n))
    scale = [
        s * a / b for s, a, b in zip(spec.scale, spec.levels[0].shape, coarsest.shape, strict=True)
    ]
    wanted = steps(spec.axes[n:], coarsest.shape[n:], tuple(scale[n:]))
    # From the image's axes to those of the datasets.
    each = [tuple(order[a] for a in axes) for axes in wanted]
    names = [name for name in coarsest.datasets if name is not None]
    what = f"The image {spec.name!r}" if spec.name else "The image"
    if not wanted or not names or np.dtype(spec.dtype).kind not in "biufc":
        return [], ""
    if any(BESIDE in name for name in names):
        return [], f"{what} gets no coarser levels: some of its datasets are in other files."
    if spec.intensity is not None:
        return [], (
            f"{what} gets no coarser levels: slices have scales of their own, so that means of the "
            "stored numbers mean nothing."
        )
    facts = {entry.path: entry.facts for entry in entries if not entry.repeats}
    known = [facts.get(image.paths.get(name, "")) for name in names]
    if wish.datasets is not None and not all(
        fact is not None and is_wanted(image.paths[name], fact, wish.datasets)
        for name, fact in zip(names, known, strict=True)
    ):
        return [], ""  # not one of those that were named
    try:
        arrays = {name: _array(file, name) for name in names}
    except HyperslabError as error:
        return [], f"{what} gets no coarser levels: {error.message}"
    if any(not _stands_for(array.dtype, np.dtype(spec.dtype)) for array in arrays.values()):
        return [], f"{what} gets no coarser levels: its datasets differ in type."
    here = all(array.index.file == file.path for array in arrays.values())
    kind = kind_of(spec, here=here)
    factors = np.cumprod([[1 + (a in axes) for a in range(len(order))] for axes in each], axis=0)
    places = places_of(kind, h5, spec, factors.tolist())
    plans: list[DatasetPlan] = []
    finest = tuple(coarsest.shape[n:][order.index(a)] for a in range(len(order)))
    for position, origin in enumerate(coarsest.datasets):
        if origin is None:
            continue
        dtype = dtypes.get(image.paths.get(origin, ""), "")
        shape, cell, before = finest, arrays[origin].chunks, None
        for i, axes in enumerate(each):
            place = places[i][position]
            if place is None:
                continue
            level = LevelOf(
                kind=kind,
                number=len(spec.levels) + i,
                origin=origin,
                finer=before,
                shape=shape,
                halved=axes,
                nearest=spec.labels or np.dtype(spec.dtype).kind == "b",
                meant=np.dtype(dtype).newbyteorder("=").name if dtype else spec.dtype,
            )
            plan = _plan_level(place, level, image, cell, arrays[origin], codec, dtype, wish)
            plans.append(plan)
            shape, cell, before = plan.shape, plan.chunks, place
    return plans, ""


def _plan_level(
    place: str,
    level: LevelOf,
    image: Viewed,
    finer_chunks: tuple[int, ...] | None,
    origin: Array,
    codec: Codec,
    dtype: str,
    wish: Wish,
) -> DatasetPlan:
    shape = halved(level.shape, level.halved)
    itemsize = np.dtype(dtype).itemsize if dtype else origin.index.file_dtype.itemsize
    chunks = viewing_chunks(image.letters, shape, itemsize)
    old = None
    if finer_chunks is not None:
        old = tuple(-(-c // step) for c, step in zip(finer_chunks, level.steps, strict=True))
    most = int(wish.memory * _REGION_SHARE)
    return DatasetPlan(
        path=place,
        order=tuple(range(len(shape))),
        shape=shape,
        chunks=chunks,
        source_chunks=None,
        itemsize=itemsize,
        codec=codec,
        region=region_shape(shape, chunks, old, itemsize, most, place),
        decodings=1.0,
        dtype=dtype,
        read_itemsize=itemsize,
        level=level,
        extent=tuple(-(-n // c) * c for n, c in zip(shape, chunks, strict=True))
        if is_padded(level.kind)
        else (),
    )


def _array(file: File, name: str) -> Array:
    found = file[name]
    if not isinstance(found, Array):
        raise LayoutError(f"{file.path}: {name} is no dataset.", file=file.path, dataset=name)
    return found


def _stands_for(stored: np.dtype, meant: np.dtype) -> bool:
    """Tell whether elements are of the image's type, but for the sign of whole numbers."""
    if stored == meant:
        return True
    return {stored.kind, meant.kind} == {"i", "u"} and stored.itemsize == meant.itemsize
