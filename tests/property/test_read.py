"""Reading against h5py: whatever it reads, indexed by NumPy, is what we must give."""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hyperslab as hs
from hyperslab.errors import PerformanceWarning
from tests.property.recipes import Recipe, oracle, recipes, write
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
        want = oracle(path)
        with warnings.catch_warnings():
            if not recipe.is_native:
                warnings.simplefilter("ignore", PerformanceWarning)
            yield hs.open(path)["x"], want
    finally:
        for used in path.parent.glob(f"{path.name}*"):
            used.unlink()


def assert_same(found: Any, want: Any) -> None:
    """Equal to the last bit, in shape, in dtype, and in being an array or a scalar."""
    assert isinstance(found, np.ndarray) == isinstance(want, np.ndarray)
    assert found.dtype == want.dtype
    assert found.dtype.isnative
    assert found.shape == want.shape
    if found.dtype.char in "gG":  # with bytes of padding
        np.testing.assert_array_equal(found, want)
    else:
        assert found.tobytes() == want.tobytes()


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


@settings(max_examples=budget(9))
@given(case=recipe_and_indices())
def test_indexing(case: tuple[Recipe, list[Any]], new_path: Callable[[], Path]) -> None:
    recipe, wanted = case
    with written(recipe, new_path()) as (array, want):
        assert array.shape == want.shape
        assert array.dtype == want.dtype
        assert_same(array[...], want[...])
        for index in wanted:
            assert_same(array[index], want[index])


@settings(max_examples=budget(2))
@given(case=recipe_and_indices())
def test_each_chunk_is_decoded_once(
    case: tuple[Recipe, list[Any]], new_path: Callable[[], Path]
) -> None:
    recipe, wanted = case
    with written(recipe, new_path()) as (array, want):
        if array.chunks is None:
            return
        array[wanted[0]]
        stats = hs.last_stats()
        done = stats.chunks_decoded + stats.chunks_cached + stats.chunks_filled
        assert done == n_chunks_touched(recipe, want.shape, wanted[0])
        assert stats.bytes_returned == want[wanted[0]].nbytes


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


@settings(max_examples=budget(3))
@given(case=recipe_and_indices(), data=st.data())
def test_read_into_memory_of_any_strides(
    case: tuple[Recipe, list[Any]], data: st.DataObject, new_path: Callable[[], Path]
) -> None:
    recipe, wanted = case
    with written(recipe, new_path()) as (array, want):
        for index in wanted:
            part = np.asarray(want[index])
            out, whole = data.draw(memory(part.shape, part.dtype))
            expected = whole.copy()
            around = np.ndarray(out.shape, np.bool_)
            around = np.ones(whole.shape, np.bool_)
            _same_part(around, whole, out)[...] = False
            assert array.read(index, out=out) is out
            assert_same(out[...], part)
            # What lies between and around the elements of `out` is nobody's to touch.
            if whole.dtype.char not in "gG":
                assert whole[around].tobytes() == expected[around].tobytes()


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


@settings(max_examples=budget(3))
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


@settings(max_examples=budget(2))
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


@settings(max_examples=budget(1))
@given(case=recipe_and_indices())
def test_cached_uncached_one_thread_and_four_agree(
    case: tuple[Recipe, list[Any]],
    new_path: Callable[[], Path],
    cache_budget: Callable[[int], None],
) -> None:
    recipe, wanted = case
    with written(recipe, new_path()) as (array, want):
        for nbytes, threads in itertools.product([0, 100, 64 << 20], [1, 4]):
            cache_budget(nbytes)
            for index in wanted * 2:
                found = array.read(index, threads=threads)
                assert_same(found, np.asarray(want[index]))


@pytest.fixture(scope="module")
def cache_budget() -> Iterator[Callable[[int], None]]:
    """A function that sets the cache's budget; put back at the end."""
    from hyperslab.engine.limits import limits

    before = limits.cache_nbytes
    yield lambda nbytes: hs.configure(cache_nbytes=nbytes)
    hs.configure(cache_nbytes=before)


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
    kind: dict[str, Any], new_path: Callable[[], Path], cache_budget: Callable[[int], None]
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
            cache_budget(nbytes)
            for index in _LARGE_INDICES:
                found = array.read(index, threads=threads)
                if threads == 1:
                    assert hs.last_stats().threads == 1
                n_threads = max(n_threads, hs.last_stats().threads)
                assert_same(found, np.asarray(want[index]))
    if recipe.filters:
        assert n_threads > 1
