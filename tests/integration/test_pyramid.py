"""Levels that the file does not hold."""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import hyperslab as hs
from hyperslab.engine import cache
from hyperslab.errors import CapacityError, SelectionError, StaleIndexError
from hyperslab.pyramid import saved, steps
from hyperslab.pyramid.mean import every_second, halve

SHAPE = (2, 6, 150, 131)  # T, Z, Y, X
CHUNKS = (1, 3, 32, 40)


def plainly_halved(values: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    """Means of pairs, an element at a time, of exact numbers."""
    shape = tuple(-(-n // 2) if a in axes else n for a, n in enumerate(values.shape))
    out = np.empty(shape, values.dtype)
    for position in np.ndindex(*shape):
        window = values[
            tuple(
                slice(2 * i, 2 * i + 2) if a in axes else slice(i, i + 1)
                for a, i in enumerate(position)
            )
        ]
        if values.dtype.kind in "iu":
            total, n = sum(int(v) for v in window.ravel()), window.size
            out[position] = (2 * total + n) // (2 * n)
        else:
            out[position] = window.astype(np.float64).mean()
    return out


@given(
    values=hnp.arrays(
        dtype=st.sampled_from(["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"]),
        shape=hnp.array_shapes(min_dims=1, max_dims=3, max_side=5),
    ),
    data=st.data(),
)
@settings(max_examples=200)
def test_means_of_integers_are_exact(values: NDArray[Any], data: st.DataObject) -> None:
    axes = tuple(data.draw(st.sets(st.integers(0, values.ndim - 1))))
    found = halve(values, axes)
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, plainly_halved(values, axes))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_means_of_floats(dtype: str) -> None:
    values = np.random.default_rng(1).normal(size=(5, 4, 7)).astype(dtype)
    values[0, 0, 0] = np.nan
    found = halve(values, (1, 2))
    assert found.dtype == values.dtype
    np.testing.assert_allclose(
        found,
        plainly_halved(values, (1, 2)),
        rtol=4 * np.finfo(dtype).eps,
        atol=4 * np.finfo(dtype).eps,
    )
    assert np.isnan(found[0, 0, 0])
    assert np.isnan(found).sum() == 1
    great = np.full((2, 2), np.finfo(dtype).max, dtype)
    np.testing.assert_array_equal(halve(great, (0, 1)), great[:1, :1])


def test_means_of_complex_numbers() -> None:
    np.testing.assert_array_equal(halve(np.array([1 + 2j, 3 + 6j, 5]), (0,)), [2 + 4j, 5])


@given(
    shape=st.tuples(st.integers(0, 3), *[st.integers(0, 5000)] * 3),
    scale=st.tuples(st.just(1.0), *[st.sampled_from([-3.0, 0.0, 0.2, 1.0, np.nan])] * 3),
)
def test_levels_shrink_until_they_are_small(
    shape: tuple[int, ...], scale: tuple[float, ...]
) -> None:
    for axes in steps.steps("TZYX", shape, scale):
        assert max(shape[2:]) > 1024 or np.prod(shape[1:]) > 1 << 26
        assert set(axes) <= {1, 2, 3}
        smaller = steps.halved(shape, axes)
        assert smaller != shape
        assert all(a == b or 0 < a < b for a, b in zip(smaller, shape, strict=True))
        shape = smaller
    assert 0 in shape or (max(shape[2:]) <= 1024 and np.prod(shape[1:]) <= 1 << 26)


@pytest.fixture
def small_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have images of more than 40 pixels each way get coarser levels."""
    monkeypatch.setattr(steps, "_PLANE", 40)
    monkeypatch.setattr("hyperslab.pyramid.level._LEAST_CELL", 16)


@pytest.fixture
def write(tmp_path: Path, small_planes: None) -> Callable[..., Path]:
    def make(
        values: NDArray[Any] | None = None,
        *,
        chunks: Any = CHUNKS,
        **how: Any,
    ) -> Path:
        path = tmp_path / "plain.h5"
        if values is None:
            values = np.random.default_rng(0).integers(0, 60000, SHAPE).astype("u2")
        with h5py.File(path, "w") as h5:
            h5.create_dataset("x", data=values, chunks=chunks, **how)
        return path

    return make


def open_plain(path: Path, axes: str = "TZYX") -> hs.Image:
    return hs.open_image(path, "x", axes=axes)


def pyramid(path: Path, img: hs.Image) -> list[NDArray[Any]]:
    """All levels as h5py and the plain mean have them."""
    with h5py.File(path) as h5:
        levels = [h5["x"][...]]
    for level in img.levels[1:]:
        axes = tuple(
            a for a, (n, m) in enumerate(zip(levels[-1].shape, level.shape, strict=True)) if n != m
        )
        levels.append(plainly_halved(levels[-1], axes))
    return levels


def test_an_image_of_one_level_gets_coarser_ones(write: Callable[..., Path]) -> None:
    path = write(compression="gzip")
    img = open_plain(path)
    assert [level.shape for level in img.levels] == [
        (2, 6, 150, 131),
        (2, 3, 75, 66),
        (2, 2, 38, 33),
    ]
    assert [level.computed for level in img.levels] == [False, True, True]
    assert len(img.spec.levels) == 1
    for level, want in zip(img.levels, pyramid(path, img), strict=True):
        assert level.dtype == want.dtype
        np.testing.assert_array_equal(np.asarray(level), want)
        np.testing.assert_array_equal(level[1, ::-1, 3:30:2, [5, 1]], want[1, ::-1, 3:30:2, [5, 1]])
        np.testing.assert_array_equal(level[1, -1, :, 7], want[1, -1, :, 7])
    # Borders are shared, so that the first pixel's centre moves in.
    assert img.levels[2].scale == (1, 4, 4, 4)
    assert img.levels[2].translation == (0, 1.5, 1.5, 1.5)


@pytest.mark.parametrize("coarse", [1, 2])
@pytest.mark.parametrize("dtype", ["f4", "i8", "?", ">u2", "c8"])
def test_dtypes_and_storage(write: Callable[..., Path], dtype: str, coarse: int) -> None:
    values = np.random.default_rng(2).integers(0, 2, (3, 90, 101)).astype(dtype)
    for how in ({"compression": "gzip", "shuffle": True}, {"chunks": None}):
        path = write(values, **{"chunks": (2, 30, 40), **how})
        img = open_plain(path, "ZYX")
        want = values.astype(values.dtype.newbyteorder("="))
        for _ in range(coarse):
            want = every_second(want, (1, 2)) if dtype == "?" else halve(want, (1, 2))
            # 3 planes are halved as well: the scale says that voxels are cubes.
            want = every_second(want, (0,)) if dtype == "?" else want
        level = img.levels[coarse]
        if dtype == "?":
            np.testing.assert_array_equal(np.asarray(level), want)
        else:
            finer = values.astype(want.dtype)
            for _ in range(coarse):
                finer = halve(finer, (0, 1, 2))
            np.testing.assert_array_equal(np.asarray(level), finer)
        assert level.dtype.isnative


def test_only_what_is_shown_is_decoded(write: Callable[..., Path]) -> None:
    img = open_plain(write(compression="gzip"))
    _ = img.levels[2][1, 0, :8, :8]
    stats = hs.last_stats()
    # A cell is as wide as a chunk; one of 32 x 33 pixels here is 128 x 131 pixels of the finest. It
    # is one plane deep, which is 4 planes of the finest.
    n_finest = 2 * 4 * 4
    assert stats.bytes_decoded == n_finest * 3 * 32 * 40 * 2
    assert stats.chunks_decoded == n_finest
    _ = img.levels[2][1, 0, 8:16, 20:]
    assert hs.last_stats().chunks_decoded == 0
    assert hs.last_stats().chunks_cached == 1
    _ = img.levels[1][1, 0, :60, :66]  # what lies between was kept
    assert hs.last_stats().chunks_decoded == 0
    _ = img.levels[1][1, 0]
    assert hs.last_stats().chunks_decoded == 2 * 4  # the last row of chunks


def test_without_a_cache(write: Callable[..., Path]) -> None:
    path = write(compression="gzip")
    img = open_plain(path)
    before = hs.engine.limits.limits.cache_nbytes
    hs.configure(cache_nbytes=0)
    try:
        np.testing.assert_array_equal(np.asarray(img.levels[2]), pyramid(path, img)[2])
    finally:
        hs.configure(cache_nbytes=before)


def test_many_threads(write: Callable[..., Path]) -> None:
    path = write(compression="gzip")
    img = open_plain(path)
    want = pyramid(path, img)
    found: dict[int, NDArray[Any]] = {}

    def look(i: int) -> None:
        found[i] = np.asarray(img.levels[1 + i % 2])

    threads = [threading.Thread(target=look, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(8):
        np.testing.assert_array_equal(found[i], want[1 + i % 2])


def test_pickled_and_as_dask(write: Callable[..., Path]) -> None:
    path = write(compression="gzip")
    img = open_plain(path)
    want = pyramid(path, img)[1]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(img.levels[1]))[...], want)
    pytest.importorskip("dask.array", reason="dask is not installed")
    np.testing.assert_array_equal(img.levels[1].to_dask().compute(scheduler="sync"), want)


def test_labels_are_not_averaged(write: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "labels.h5"
    values = np.arange(90 * 90).reshape(90, 90) % 7
    with h5py.File(path, "w") as h5:
        h5["raw"] = np.zeros((90, 90), "u1")
        h5["label"] = values
    image = next(name for name in hs.list_images(path) if "label" in name)
    img = hs.open_image(path, image=image)
    assert img.spec.labels
    np.testing.assert_array_equal(np.asarray(img.levels[1]), values[::2, ::2])


def test_a_file_that_changed(write: Callable[..., Path]) -> None:
    path = write(compression="gzip")
    img = open_plain(path)
    before = np.asarray(img.levels[2])
    write(np.zeros(SHAPE, "u2"), compression="gzip")
    os.utime(path, ns=(1, 1))
    with pytest.raises(StaleIndexError):
        _ = img.levels[2][0]
    img.refresh()
    assert before.any()
    assert not np.asarray(img.levels[2]).any()


def test_a_linked_file_that_changed(write: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "links.h5"
    inner = write(compression="gzip")
    with h5py.File(path, "w") as h5:
        h5["x"] = h5py.ExternalLink(inner.name, "x")
    img = open_plain(path)
    assert np.asarray(img.levels[2]).any()
    write(np.zeros(SHAPE, "u2"), compression="gzip")
    os.utime(inner, ns=(1, 1))
    with pytest.raises(StaleIndexError, match=r"plain\.h5"):
        _ = img.levels[2][0]  # though it is in the cache


def test_a_damaged_chunk_is_named(write: Callable[..., Path]) -> None:
    path = write(compression="gzip")
    with h5py.File(path) as h5:
        info = h5["x"].id.get_chunk_info_by_coord((1, 0, 0, 0))
    content = bytearray(path.read_bytes())
    content[info.byte_offset : info.byte_offset + 40] = b"\xff" * 40
    path.write_bytes(content)
    img = open_plain(path)
    with pytest.raises(hs.errors.ChunkDecodeError, match=r"/x, chunk \(1, 0, 0, 0\)"):
        _ = img.levels[2][1]
    np.testing.assert_array_equal(img.levels[2][0].shape, (2, 38, 33))


def test_saved_levels(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(compression="gzip")
    img = open_plain(path)
    want = pyramid(path, img)
    folder = img.save_levels()
    assert folder is not None
    assert sorted(os.listdir(folder)) == ["level-1.npy", "level-2.npy", "levels.json"]
    np.testing.assert_array_equal(np.load(folder / "level-2.npy"), want[2])

    cache.clear()
    again = open_plain(path)
    np.testing.assert_array_equal(np.asarray(again.levels[2]), want[2])
    assert hs.last_stats().bytes_decoded == 0  # not a chunk of the file
    np.testing.assert_array_equal(again.levels[1][1, 2], want[1][1, 2])
    assert hs.last_stats().bytes_decoded == 0

    again.delete_levels()
    assert not folder.exists()
    cache.clear()
    np.testing.assert_array_equal(np.asarray(again.levels[2]), want[2])
    assert hs.last_stats().bytes_decoded > 0


def test_saved_levels_of_a_file_that_changed(write: Callable[..., Path]) -> None:
    path = write(compression="gzip")
    folder = open_plain(path).save_levels([2])
    assert folder is not None
    write(np.zeros(SHAPE, "u2"), compression="gzip")
    os.utime(path, ns=(1, 1))
    img = open_plain(path)
    assert not np.asarray(img.levels[2]).any()
    assert img.save_levels([1]) == folder
    # What was made of the old file is gone.
    assert sorted(os.listdir(folder)) == ["level-1.npy", "levels.json"]


@pytest.mark.parametrize("harm", ["cut", "other", "facts", "gone", "shape"])
def test_damaged_saved_levels_are_computed_again(write: Callable[..., Path], harm: str) -> None:
    path = write(compression="gzip")
    img = open_plain(path)
    want = pyramid(path, img)[2]
    folder = img.save_levels([2])
    assert folder is not None
    file = folder / "level-2.npy"
    if harm == "cut":
        file.write_bytes(file.read_bytes()[:-7])
    elif harm == "other":
        file.write_bytes(b"no array")
    elif harm == "facts":
        (folder / "levels.json").write_text(json.dumps({"files": [3], "levels": {"2": 5}}))
    elif harm == "gone":
        file.unlink()
    else:
        np.save(file, want[:1])
    cache.clear()
    np.testing.assert_array_equal(np.asarray(open_plain(path).levels[2]), want)


def test_a_saved_level_does_not_hide_a_change(write: Callable[..., Path]) -> None:
    path = write(compression="gzip")
    open_plain(path).save_levels()
    img = open_plain(path)
    _ = img.levels[2][0]
    os.utime(path, ns=(1, 1))
    with pytest.raises(StaleIndexError):
        _ = img.levels[2][0]


def test_levels_that_cannot_be_saved(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    img = open_plain(write(compression="gzip"))
    with pytest.raises(SelectionError, match=r"level 0 is not computed\. Computed levels: 1, 2"):
        img.save_levels([0])

    class Usage:
        free = 10

    monkeypatch.setattr(saved.shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(CapacityError, match="10 B free"):
        img.save_levels()


def test_a_small_image_needs_none(write: Callable[..., Path]) -> None:
    img = open_plain(write(np.zeros((2, 30, 30), "u1"), chunks=(1, 30, 30)), "ZYX")
    assert len(img.levels) == 1
    assert img.save_levels() is None


def test_words(write: Callable[..., Path]) -> None:
    img = open_plain(write())
    assert "3 levels (2 of them computed)" in repr(img)
    assert img.series == ("x",)
    assert "2: 2 × 2 × 38 × 33, 10 kB, computed" in img._repr_html_()
    assert repr(img.levels[1]).endswith("uint16, computed>")
