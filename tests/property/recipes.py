"""Datasets to be drawn: a `Recipe` says all there is to say, and `write` makes the file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
from hypothesis import strategies as st

from hyperslab import filters as known

__all__ = ["NATIVE", "Recipe", "pipelines", "recipes", "write"]

Array = np.ndarray[Any, Any]
Region = tuple[slice, ...]
Pipeline = tuple[tuple[int, tuple[int, ...]], ...]

INTEGERS = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"]
SWAPPED = [">u2", ">i2", ">u4", ">i4", ">u8", ">i8", ">f2", ">f4", ">f8", ">c8", ">c16"]
DTYPES = [*INTEGERS, "f2", "f4", "f8", "g", "?", "c8", "c16", *SWAPPED]

# What hyperslab decodes by itself.
NATIVE = frozenset(
    {
        known.GZIP, known.SHUFFLE, known.FLETCHER32, known.LZF, known.SZIP, known.SCALEOFFSET,
        known.LZ4, known.BITSHUFFLE, known.BLOSC, known.ZSTD, known.BZIP2,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One dataset.

    Attributes
    ----------
    shape, dtype
        As created.
    maxshape
        Upper bounds; None means unlimited.
    layout
        "chunked", "contiguous", "compact" or "external".
    chunks
        Chunk shape, for "chunked".
    filters
        Code and client values of each, in order.
    fill
        Seed of the fill value; None leaves it at HDF5's default.
    fill_time, alloc_time
        HDF5's settings; None leaves them at their defaults.
    libver, userblock
        Of the file.
    values
        How the values are drawn, and the seed.
    writes
        Regions that are written, in turn.
    masks
        Chunks that are written directly: their position among all chunks, and their filter mask.
    resize
        Shape that the dataset is given after writing.
    segments
        Number of raw files, for "external".
    """

    shape: tuple[int, ...]
    dtype: str
    maxshape: tuple[int | None, ...]
    layout: str
    chunks: tuple[int, ...] = ()
    filters: Pipeline = ()
    fill: int | None = None
    fill_time: int | None = None
    alloc_time: int | None = None
    libver: str = "earliest"
    userblock: int = 0
    values: tuple[str, int] = ("random", 0)
    writes: tuple[Region, ...] = ()
    masks: tuple[tuple[int, int], ...] = ()
    resize: tuple[int, ...] | None = None
    segments: int = 1

    @property
    def is_native(self) -> bool:
        """True if no filter needs the HDF5 library."""
        return all(code in NATIVE for code, _ in self.filters)


# --- filters -------------------------------------------------------------------------------------


def _plugin(entry: Any) -> tuple[int, tuple[int, ...]]:
    return entry.filter_id, tuple(entry.filter_options)


_SHUFFLE = (known.SHUFFLE, ())
_FLETCHER32 = (known.FLETCHER32, ())
# These take any bytes, from whatever filter came before.
_GENERAL = [
    (known.GZIP, (4,)),
    (known.GZIP, (1,)),
    (known.GZIP, (0,)),
    (known.LZF, ()),
    _plugin(hdf5plugin.Zstd()),
    _plugin(hdf5plugin.BZip2()),
]
# These plugins fail, or kill the process, behind some other compressors.
_PARTICULAR = [
    _plugin(hdf5plugin.LZ4()),
    _plugin(hdf5plugin.LZ4(nbytes=16)),
    _plugin(hdf5plugin.Bitshuffle(cname="none")),
    _plugin(hdf5plugin.Bitshuffle(cname="lz4")),
    _plugin(hdf5plugin.Bitshuffle(nelems=8, cname="zstd")),
    _plugin(hdf5plugin.Blosc(cname="blosclz", clevel=5, shuffle=1)),
    _plugin(hdf5plugin.Blosc(cname="lz4", clevel=9, shuffle=2)),
    _plugin(hdf5plugin.Blosc(cname="lz4hc", clevel=1, shuffle=0)),
    _plugin(hdf5plugin.Blosc(cname="zlib", clevel=5, shuffle=1)),
    _plugin(hdf5plugin.Blosc(cname="zstd", clevel=5, shuffle=2)),
]


def _first_filters(dtype: np.dtype) -> list[tuple[int, tuple[int, ...]]]:
    """Filters that look at the elements, so that nothing may come before them."""
    found: list[tuple[int, tuple[int, ...]]] = []
    if dtype.kind in "iu":
        full = 8 * dtype.itemsize
        found += [(known.SCALEOFFSET, (2, bits)) for bits in (0, 0, 1, full // 2 + 1, full)]
        found.append((known.NBIT, ()))
    if dtype.kind == "f" and dtype.itemsize in (4, 8):
        found += [(known.SCALEOFFSET, (0, digits)) for digits in (0, 2, 5)]
        found.append((known.NBIT, ()))
        if dtype.isnative:
            found.append(_plugin(hdf5plugin.Zfp(reversible=True)))
    if dtype.kind in "iuf" and dtype.itemsize <= 8:
        found += [(known.SZIP, (mask, block)) for mask in (4, 32) for block in (2, 8)]
    if dtype.kind in "iuf" and dtype.isnative and dtype.itemsize <= 8:
        found.append(_plugin(hdf5plugin.Blosc2()))
    return found


@st.composite
def pipelines(draw: st.DrawFn, dtype: np.dtype, n_elements: int) -> Pipeline:
    """Filter pipelines that HDF5 accepts for chunks of `n_elements` of `dtype`."""
    kind = draw(st.sampled_from(["none", "one", "usual", "first", "general", "particular"]))
    compressor = st.sampled_from([*_GENERAL, *_PARTICULAR])
    if kind == "none":
        return ()
    if kind == "one":
        return (draw(st.sampled_from([_SHUFFLE, _FLETCHER32]) | compressor),)
    if kind == "usual":
        return (_SHUFFLE, draw(compressor))
    if kind == "particular":
        before = draw(st.sampled_from([[], [_SHUFFLE]]))
        after = draw(st.sampled_from([[], [_FLETCHER32], [_GENERAL[0]]]))
        return (*before, draw(st.sampled_from(_PARTICULAR)), *after)
    rest = draw(st.lists(st.sampled_from(_GENERAL), max_size=2, unique=True))
    rest += draw(st.sampled_from([[], [_SHUFFLE], [_FLETCHER32], [_SHUFFLE, _FLETCHER32]]))
    rest = draw(st.permutations(rest))
    first = _first_filters(dtype)
    if kind == "first" and first:
        chosen = draw(st.sampled_from(first))
        # HDF5 wants at least one block of pixels in a chunk.
        if chosen[0] != known.SZIP or n_elements >= chosen[1][1]:
            rest.insert(0, chosen)
    return tuple(rest)


# --- recipes -------------------------------------------------------------------------------------


def _regions(shape: tuple[int, ...]) -> st.SearchStrategy[Region]:
    def pair(extent: int) -> st.SearchStrategy[slice]:
        bounds = st.lists(st.integers(0, extent), min_size=2, max_size=2).map(sorted)
        return bounds.map(lambda ab: slice(*ab))

    return st.tuples(*(pair(extent) for extent in shape))


def _written(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[Region, ...]]:
    everything = (tuple(slice(0, n) for n in shape),)
    some = st.lists(_regions(shape), max_size=3).map(tuple)
    return st.sampled_from([everything, everything]) | some


@st.composite
def recipes(draw: st.DrawFn, shape: tuple[int, ...], *, native: bool = False) -> Recipe:
    """Recipes of datasets of (first) `shape`; with `native`, none that needs the HDF5 library."""
    layouts = ["contiguous", "compact", "external"]
    if shape:
        layouts += ["chunked"] * 9
    layout = draw(st.sampled_from(layouts))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    never = draw(st.sampled_from([None, None, h5py.h5d.FILL_TIME_NEVER]))
    facts: dict[str, Any] = {
        "shape": shape,
        "dtype": dtype.str if dtype.char != "g" else "g",
        "maxshape": shape,
        "layout": layout,
        "fill": draw(st.none() | st.integers(0, 3)),
        "fill_time": never,
        "libver": draw(st.sampled_from(["earliest", "v108", "latest", "latest"])),
        "userblock": draw(st.sampled_from([0, 0, 512, 2048])),
        "values": (
            draw(st.sampled_from(["random", "smooth", "same", "few"])),
            draw(st.integers(0, 9)),
        ),
        "writes": draw(_written(shape)),
        "alloc_time": draw(
            st.sampled_from(
                [None, None, h5py.h5d.ALLOC_TIME_EARLY]
                if layout in ("chunked", "contiguous")
                else [None]
            )
        ),
    }
    if layout == "external":
        facts["segments"] = draw(st.integers(1, 3))
        facts["fill"] = facts["fill_time"] = None
    if layout == "chunked":
        chunks, maxshape = [], []
        for extent in shape:
            chunk = draw(st.sampled_from([1, extent, extent + 2]) | st.integers(1, max(1, extent)))
            chunk = max(1, chunk)
            most = draw(st.sampled_from([extent, extent, None, extent + 5]))
            if most is not None and most < chunk:
                most = None
            chunks.append(chunk)
            maxshape.append(most)
        filters = draw(pipelines(dtype, math.prod(chunks)))
        if native:
            filters = tuple(entry for entry in filters if entry[0] in NATIVE)
        facts.update(chunks=tuple(chunks), maxshape=tuple(maxshape), filters=filters)
        n_chunks = math.prod(-(-n // c) for n, c in zip(shape, chunks, strict=True))
        if filters and n_chunks:
            chunk_and_mask = st.tuples(
                st.integers(0, n_chunks - 1), st.integers(0, 2 ** len(filters) - 1)
            )
            some = st.lists(chunk_and_mask, max_size=3, unique_by=lambda pair: pair[0])
            facts["masks"] = tuple(draw(some))
        if filters and (facts["fill_time"] or facts.get("masks") or len(filters) > 2):
            facts["alloc_time"] = None  # HDF5 may allocate chunks that hold no sound stream
        # HDF5 rewrites the edge chunks when a dataset shrinks, and may lose the filter mask.
        if not facts.get("masks") and draw(st.sampled_from([False, False, True])):
            facts["resize"] = tuple(
                draw(st.integers(0, extent + 4 if most is None else most))
                for extent, most in zip(shape, maxshape, strict=True)
            )
    return Recipe(**facts)


# --- files ---------------------------------------------------------------------------------------


def _values(recipe: Recipe, shape: tuple[int, ...]) -> Array:
    kind, seed = recipe.values
    rng = np.random.default_rng(seed)
    dtype = np.dtype(recipe.dtype)
    native = dtype.newbyteorder("=")
    lossy = any(code in (known.SCALEOFFSET, known.ZFP) for code, _ in recipe.filters)
    size = math.prod(shape)
    if native.kind == "b":
        found = rng.integers(0, 2, size).astype(native)
    elif kind == "same":
        found = np.full(size, 7, native)
    elif kind == "smooth" or native.char in "gG" or (lossy and native.kind == "f"):
        # Nothing that cannot be scaled: no infinity, no NaN.
        found = (np.linspace(0, 100, size) + rng.integers(0, 3, size)).astype(native)
    elif kind == "few":
        found = rng.choice(np.array([0, 1, 2, 100], native), size)
    else:
        bits = rng.integers(0, 256, size * native.itemsize, dtype=np.uint8)
        found = bits.view(native) if size else np.zeros(0, native)
    return found.reshape(shape).astype(dtype)


def _property_list(recipe: Recipe, path: Path, filters: Pipeline) -> h5py.h5p.PropDCID:
    dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    dtype = np.dtype(recipe.dtype)
    if recipe.layout == "chunked":
        dcpl.set_chunk(recipe.chunks)
    elif recipe.layout == "compact":
        dcpl.set_layout(h5py.h5d.COMPACT)
    elif recipe.layout == "external":
        left = math.prod(recipe.shape) * dtype.itemsize
        for i in range(recipe.segments):
            last = i == recipe.segments - 1
            nbytes = h5py.h5f.UNLIMITED if last else max(1, left // 2)
            left -= 0 if last else nbytes
            dcpl.set_external(f"{path}.raw{i}".encode(), 3 * i, nbytes)
    for code, values in filters:
        dcpl.set_filter(code, h5py.h5z.FLAG_OPTIONAL, values)
    if recipe.fill is not None:
        fill = np.random.default_rng(recipe.fill).integers(0, 100, 1).astype(dtype)
        dcpl.set_fill_value(fill)
    if recipe.fill_time is not None:
        dcpl.set_fill_time(recipe.fill_time)
    if recipe.alloc_time is not None:
        dcpl.set_alloc_time(recipe.alloc_time)
    return dcpl


def _create(
    recipe: Recipe,
    group: h5py.Group,
    path: Path,
    *,
    name: str = "x",
    shape: tuple[int, ...] | None = None,
    filters: Pipeline | None = None,
) -> h5py.Dataset:
    shape_, most = (recipe.shape, recipe.maxshape) if shape is None else (shape, shape)
    unlimited = tuple(h5py.h5s.UNLIMITED if n is None else n for n in most)
    space = (
        h5py.h5s.create_simple(shape_, unlimited) if shape_ else h5py.h5s.create(h5py.h5s.SCALAR)
    )
    kind = h5py.h5t.py_create(np.dtype(recipe.dtype), logical=True)
    dcpl = _property_list(recipe, path, recipe.filters if filters is None else filters)
    return h5py.Dataset(h5py.h5d.create(group.id, name.encode(), kind, space, dcpl))


def _write_directly(recipe: Recipe, dataset: h5py.Dataset, number: int, mask: int) -> None:
    """Write a chunk as if the filters in `mask` had been skipped.

    A twin of one chunk, with the other filters only, does the encoding.
    """
    grid = [-(-n // c) for n, c in zip(recipe.shape, recipe.chunks, strict=True)]
    coordinate = np.unravel_index(number, grid)
    kept = [i for i in range(len(recipe.filters)) if not mask >> i & 1]
    with h5py.File("twin", "w", driver="core", backing_store=False) as other:
        twin = _create(
            recipe,
            other,
            Path("unused"),
            shape=recipe.chunks,
            filters=tuple(recipe.filters[i] for i in kept),
        )
        twin[...] = _values(recipe, recipe.chunks)
        twin.flush()
        skipped, stored = twin.id.read_direct_chunk((0,) * len(recipe.chunks))
    for position, i in enumerate(kept):
        mask |= (skipped >> position & 1) << i
    origin = tuple(int(i) * c for i, c in zip(coordinate, recipe.chunks, strict=True))
    dataset.id.write_direct_chunk(origin, stored, mask)


def write(recipe: Recipe, path: Path) -> None:
    """Write `recipe` as dataset "x" of a new file at `path`."""
    with h5py.File(path, "w", libver=recipe.libver, userblock_size=recipe.userblock) as h5:
        dataset = _create(recipe, h5, path)
        values = _values(recipe, recipe.shape)
        for i in range(recipe.segments if recipe.layout == "external" else 0):
            Path(f"{path}.raw{i}").write_bytes(bytes(3 * i + values.nbytes))
        for region in recipe.writes:
            if values[region].size:
                dataset[region] = values[region]
        for number, mask in recipe.masks:
            _write_directly(recipe, dataset, number, mask)
    if recipe.resize is not None:
        # In another session: HDF5 mistakes chunks that were just written directly.
        with h5py.File(path, "r+", libver=recipe.libver) as h5:
            h5["x"].resize(recipe.resize)
