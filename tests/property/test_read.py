"""Reading against h5py: whatever it reads, indexed by NumPy, is what we must give."""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hyperslab as hs
from hyperslab.engine.limits import limits
from hyperslab.errors import PerformanceWarning
from tests.compare import assert_same, h5py_read
from tests.libhdf5 import chunk_index
from tests.property.recipes import Recipe, recipes, write
from tests.property.strategies import budget, indices, shapes

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def new_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Names of files that do not exist yet; each example takes one of its own."""
    folder = tmp_path_factory.mktemp("read")
    numbers = itertools.count()
    return lambda: folder / f"{next(numbers)}.h5"


@contextlib.contextmanager
def written(recipe: Recipe, path: Path) -> Iterator[tuple[hs.Array, Array]]:
    """The dataset of `recipe` in a file of its own, and what h5py reads of it."""
    write(recipe, path)
    try:
        want = h5py_read(path, "x")
        with warnings.catch_warnings():
            if not recipe.is_native:
                warnings.simplefilter("ignore", PerformanceWarning)
            yield hs.open(path)["x"], want
    finally:
        for used in path.parent.glob(f"{path.name}*"):
            used.unlink()


def n_chunks_touched(recipe: Recipe, shape: tuple[int, ...], index: Any) -> int:
    """How many chunks hold the elements that `index` names."""
    number = np.zeros((), np.int64)
    for extent, chunk in zip(shape, recipe.chunks, strict=True):
        grid = -(-extent // chunk)
        number = np.add.outer(number * grid, np.arange(extent) // chunk)
    return np.unique(number[index]).size


@st.composite
def recipe_and_indices(draw: st.DrawFn) -> tuple[Recipe, list[Any]]:
    shape = draw(shapes(max_side=6))
    recipe = draw(recipes(shape))
    shape = recipe.resize or shape
    return recipe, [draw(indices(shape)) for _ in range(draw(st.integers(1, 3)))]


@settings(max_examples=budget(6))
@given(case=recipe_and_indices())
def test_indexing(case: tuple[Recipe, list[Any]], new_path: Callable[[], Path]) -> None:
    """As NumPy would, and without decoding a chunk twice."""
    recipe, wanted = case
    with written(recipe, new_path()) as (array, want):
        assert array.shape == want.shape
        assert array.dtype == want.dtype
        assert_same(array[...], want[...])
        for index in wanted:
            assert_same(array[index], want[index])
            stats = hs.last_stats()
            assert stats.bytes_returned == want[index].nbytes
            if recipe.layout == "chunked":
                done = stats.chunks_decoded + stats.chunks_cached + stats.chunks_filled
                assert done == n_chunks_touched(recipe, want.shape, index)


@st.composite
def memory(draw: st.DrawFn, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Array, Array]:
    """A destination of any strides, and the larger array that it is part of."""
    steps = [draw(st.sampled_from([1, 1, 2, 3])) for _ in shape]
    pads = [draw(st.integers(0, 2)) for _ in shape]
    order = draw(st.permutations(range(len(shape))))
    sides = [pad + n * step + 1 for n, step, pad in zip(shape, steps, pads, strict=True)]
    whole = np.zeros([sides[axis] for axis in order], dtype)
    part = whole.transpose(np.argsort(order).tolist()) if shape else whole
    for axis, (n, step, pad) in enumerate(zip(shape, steps, pads, strict=True)):
        piece = slice(pad, pad + n * step, step)
        part = part[(slice(None),) * axis + (piece,)]
        if draw(st.booleans()):
            part = np.flip(part, axis)
    return part, whole


@settings(max_examples=budget(2))
@given(case=recipe_and_indices(), data=st.data())
def test_read_into_memory_of_any_strides(
    case: tuple[Recipe, list[Any]], data: st.DataObject, new_path: Callable[[], Path]
) -> None:
    recipe, wanted = case
    with written(recipe, new_path()) as (array, want):
        for index in wanted:
            part = np.asarray(want[index])
            out, whole = data.draw(memory(part.shape, part.dtype))
            around = np.ones(whole.shape, np.bool_)
            _same_part(around, whole, out)[...] = False
            assert array.read(index, out=out) is out
            assert_same(out[...], part)
            # What lies between and around the elements of `out` is nobody's to touch.
            assert not whole[around].any()


def _same_part(other: Array, whole: Array, part: Array) -> Array:
    """The part of `other` that lies as `part` lies in `whole`, an array of the same shape."""
    step = whole.itemsize
    first = part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    flat = other.reshape(-1)[first // step :]
    return np.lib.stride_tricks.as_strided(
        flat, part.shape, [stride // step * other.itemsize for stride in part.strides]
    )


@st.composite
def recipe_and_chain(draw: st.DrawFn) -> tuple[Recipe, list[Any]]:
    """A recipe, an index, one of its result, and so on."""
    shape = draw(shapes(max_side=6))
    recipe = draw(recipes(shape))
    part = np.empty(recipe.resize or shape, np.bool_)
    chain: list[Any] = []
    for _ in range(draw(st.integers(1, 3))):
        index = draw(indices(part.shape))
        try:
            result = np.asarray(part[index])
        except IndexError:
            continue
        if result.ndim < 7:
            part = result
            chain.append(index)
    return recipe, chain


@settings(max_examples=budget(2))
@given(case=recipe_and_chain())
def test_lazy_views(case: tuple[Recipe, list[Any]], new_path: Callable[[], Path]) -> None:
    recipe, chain = case
    with written(recipe, new_path()) as (array, want):
        view: Any = array.lazy[...]
        part: Any = want
        for index in chain:
            view = view[index]
            part = np.asarray(part[index])
            assert (view.shape, view.ndim, view.size) == (part.shape, part.ndim, part.size)
            assert (view.dtype, view.nbytes) == (part.dtype, part.nbytes)
        assert_same(np.asarray(view), part)
        assert_same(view.read(), part)


@pytest.mark.parametrize("how", [{}, {"chunks": (3, 4)}, {"chunks": (3, 4), "compression": "gzip"}])
def test_views_that_repeat_a_new_axis(how: dict[str, Any], new_path: Callable[[], Path]) -> None:
    path = new_path()
    with h5py.File(path, "w") as h5:
        h5.create_dataset("x", data=np.arange(35).reshape(5, 7), **how)
        h5["number"] = 8
    file = hs.open(path)
    want = h5py_read(path, "x")
    array = file["x"]
    assert_same(np.asarray(array.lazy[None][[0, 0, -1]]), want[None][[0, 0, -1]])
    assert_same(np.asarray(array.lazy[:, None, 2:][:, [0, 0]]), want[:, None, 2:][:, [0, 0]])
    assert_same(np.asarray(array.lazy[[[2, 1]]][[0, 0, 0]]), want[[[2, 1]]][[0, 0, 0]])
    assert_same(np.asarray(file["number"].lazy[None][[0, 0, 0]]), np.full(3, 8))


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Recipe], list[tuple[int, Any]]]:
    """Some datasets, and requests for parts of them: dataset and index."""
    several = [draw(recipes(draw(shapes(max_side=5)))) for _ in range(draw(st.integers(1, 3)))]
    requests = []
    for _ in range(draw(st.integers(0, 5))):
        number = draw(st.integers(0, len(several) - 1))
        shape = several[number].resize or several[number].shape
        requests.append((number, draw(indices(shape))))
    return several, requests


@settings(max_examples=budget(1))
@given(case=batches())
def test_read_many(
    case: tuple[list[Recipe], list[tuple[int, Any]]], new_path: Callable[[], Path]
) -> None:
    several, requests = case
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(written(recipe, new_path())) for recipe in several]
        wanted = [np.asarray(opened[number][1][index]) for number, index in requests]
        asked = [(opened[number][0], index) for number, index in requests]
        found = hs.read_many(asked)
        if len({(part.shape, part.dtype) for part in wanted}) == 1:
            assert isinstance(found, np.ndarray)
            assert found.shape == (len(wanted), *wanted[0].shape)
        assert len(found) == len(wanted)
        for i, part in enumerate(wanted):
            assert_same(found[i, ...] if isinstance(found, np.ndarray) else found[i], part)
        places = [np.empty(part.shape, part.dtype) for part in wanted]
        hs.read_many([(array.lazy[...], index) for array, index in asked], out=places)
        for place, part in zip(places, wanted, strict=True):
            assert_same(place, part)


@pytest.fixture(scope="module")
def eager() -> Iterator[Callable[[int], None]]:
    """Make every read worth several threads; gives a function that sets the cache's budget."""
    before = limits.cache_nbytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hyperslab.engine.read._WORTH_A_THREAD_S", 1e-12)
        yield lambda nbytes: hs.configure(cache_nbytes=nbytes)
    hs.configure(cache_nbytes=before)


@settings(max_examples=budget(1))
@given(case=recipe_and_indices())
def test_cached_uncached_one_thread_and_four_agree(
    case: tuple[Recipe, list[Any]],
    new_path: Callable[[], Path],
    eager: Callable[[int], None],
) -> None:
    recipe, wanted = case
    with written(recipe, new_path()) as (array, want):
        for nbytes, threads in itertools.product([0, 100, 64 << 20], [1, 4]):
            eager(nbytes)
            for index in wanted * 2:
                found = array.read(index, threads=threads)
                assert_same(found, np.asarray(want[index]))


# Large enough that several threads take part, which the small ones above never are.
_LARGE = [
    {"dtype": "u2", "filters": ((1, (1,)),)},
    {"dtype": ">i2", "filters": ((2, ()), (1, (1,)))},
    {"dtype": "f4", "filters": ((2, ()), (32000, ()), (3, ()))},
    {"dtype": ">f8", "filters": ((3, ()), (1, (1,)))},
    {"dtype": "i4", "filters": ((6, (2, 0)), (1, (1,)))},
    {"dtype": "c8", "filters": ((1, (1,)),)},
    {"dtype": "?", "filters": ((1, (1,)),)},
    {"dtype": "f4", "filters": ()},
    {"dtype": ">u2", "filters": ()},
    {"dtype": "f2", "layout": "contiguous"},
    {"dtype": ">i4", "layout": "contiguous"},
    {"dtype": "u1", "layout": "external"},
]
_LARGE_SHAPE = (61, 70, 130)
_LARGE_INDICES = [
    np.s_[...],
    np.s_[::-1, 3:60, ::2],
    np.s_[..., 57],
    np.s_[5],
    np.s_[:, 9],
    np.s_[[40, 3, 3, -1], :, ::-3],
    np.s_[np.arange(120) % 61, np.arange(120) % 70],
]


@pytest.mark.parametrize("kind", _LARGE, ids=lambda kind: "-".join(map(str, kind.values())))
def test_large_reads_by_many_threads_agree(
    kind: dict[str, Any], new_path: Callable[[], Path], eager: Callable[[int], None]
) -> None:
    facts: dict[str, Any] = {"layout": "chunked", "chunks": (16, 33, 50), **kind}
    if facts["layout"] != "chunked":
        facts["chunks"] = ()
    recipe = Recipe(
        shape=_LARGE_SHAPE,
        maxshape=_LARGE_SHAPE,
        values=("few" if facts.get("filters") else "random", 1),
        writes=((slice(0, 50), slice(0, 70), slice(0, 130)),),
        fill=None if facts["layout"] == "external" else 3,
        segments=3,
        **facts,
    )
    n_threads = 1
    path = new_path()
    with written(recipe, path) as (array, want):
        assert math.prod(want.shape) > 500_000
        for nbytes, threads in itertools.product([0, 64 << 20], [1, 4]):
            eager(nbytes)
            for index in _LARGE_INDICES:
                found = array.read(index, threads=threads)
                if threads == 1:
                    assert hs.last_stats().threads == 1
                n_threads = max(n_threads, hs.last_stats().threads)
                assert_same(found, np.asarray(want[index]))
    if recipe.filters:
        assert n_threads > 1


# Name; then how HDF5 is made to choose it: format, largest shape, chunks, early allocation.
_INDEXES = [
    ("v1 B-tree", "earliest", (None, 11), (2, 3), False),
    ("single chunk", "latest", (9, 11), (9, 11), False),
    ("implicit", "latest", (9, 11), (2, 3), True),
    ("fixed array", "latest", (9, 11), (2, 3), False),
    ("fixed array", "latest", (14, 15), (2, 3), False),
    ("extensible array", "latest", (None, 11), (2, 3), False),
    ("extensible array", "latest", (9, None), (2, 3), False),
    ("extensible array", "latest", (15, None), (2, 3), False),
    ("v2 B-tree", "latest", (None, None), (2, 3), False),
]


@pytest.mark.parametrize("filters", [(), ((1, (4,)),), ((2, ()), (1, (4,)), (3, ()))], ids=len)
@pytest.mark.parametrize("userblock", [0, 512])
@pytest.mark.parametrize("case", _INDEXES, ids=lambda case: f"{case[0]}-{case[2]}")
def test_every_chunk_index(
    case: tuple[str, str, tuple[int | None, ...], tuple[int, ...], bool],
    userblock: int,
    filters: Any,
    new_path: Callable[[], Path],
) -> None:
    name, libver, maxshape, chunks, early = case
    if filters and name == "implicit":
        name = "fixed array"  # implicit goes for unfiltered chunks only
    recipe = Recipe(
        shape=(9, 11),
        dtype="i2",
        maxshape=maxshape,
        layout="chunked",
        chunks=chunks,
        filters=filters,
        fill=1,
        libver=libver,
        userblock=userblock,
        alloc_time=h5py.h5d.ALLOC_TIME_EARLY if early else None,
        # In pieces, out of order, and with holes: an index in the order of writing would show.
        writes=(np.s_[5:9, 0:4], np.s_[0:3, 5:11], np.s_[3:6, 4:9]),
    )
    path = new_path()
    with written(recipe, path) as (array, want):
        with h5py.File(path) as h5:
            assert chunk_index(h5["x"]) == name
        assert_same(array[...], want[...])
        assert_same(array[::-2, 3:10:2], want[::-2, 3:10:2])
        assert_same(array[[8, 0, 4], [10, 5, 5]], want[[8, 0, 4], [10, 5, 5]])


def test_a_chunk_index_of_more_than_one_page(new_path: Callable[[], Path]) -> None:
    """Large enough that the index has pages and super blocks, with axes in every order."""
    shape, chunks = (3, 40, 50), (1, 1, 2)
    values = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    for endless in range(3):
        path = new_path()
        maxshape = tuple(None if i == endless else n + 7 for i, n in enumerate(shape))
        with h5py.File(path, "w", libver="latest") as h5:
            dataset = h5.create_dataset("x", shape, "i4", chunks=chunks, maxshape=maxshape)
            dataset[:, ::2] = values[:, ::2]
            assert chunk_index(dataset) == "extensible array"
        array = hs.open(path)["x"]
        want = h5py_read(path, "x")
        assert (want[:, ::2] == values[:, ::2]).all()
        assert_same(array[...], want)
        assert_same(array[1:, 4:37:2, 7], want[1:, 4:37:2, 7])
