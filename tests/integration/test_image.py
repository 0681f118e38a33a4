"""`open_image`: datasets of a file as one image, compared with what h5py reads of each."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import (
    LayoutError,
    MetadataWarning,
    MissingSourceError,
    NotHDF5Error,
    OutputError,
    SelectionError,
    StaleIndexError,
)
from hyperslab.testing import make_imaris, make_stack

SHAPE = (2, 2, 5, 70, 90)
INDICES: list[Any] = [
    np.s_[...],
    np.s_[0, 0, 0, :20, :20],
    np.s_[-1, 0],
    np.s_[..., ::-1],
    np.s_[1, ::-1, 2:4, ::3, 5],
    np.s_[[1, 0, 1]],
    np.s_[[1, 0], [0, 1], :, [3, 4]],
    np.s_[:, [1, 1], ..., [0, 89]],
    np.s_[[[0], [1]], [0, 1], 4],
    np.s_[1, 1, 4, 69, 89],
    np.s_[:, None, 0, 2:2],
]


def expected(path: Path, level: int, sizes: tuple[int, int, int]) -> np.ndarray:
    """The image as h5py has it, padding cut off."""
    z, y, x = sizes
    with h5py.File(path) as h5:
        root = h5[f"DataSet/ResolutionLevel {level}"]
        return np.stack(
            [
                np.stack([root[f"TimePoint {t}/Channel {c}/Data"][:z, :y, :x] for c in range(2)])
                for t in range(2)
            ]
        )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "cells.ims"
    make_imaris(found, shape=SHAPE, chunks=(8, 64, 64))
    return found


def test_padding_is_not_part_of_the_image(path: Path) -> None:
    with h5py.File(path) as h5:
        stored = h5["DataSet/ResolutionLevel 0/TimePoint 0/Channel 0/Data"]
        assert stored.shape == (8, 128, 128)
        assert stored[...].max() == 65535
    img = hs.open_image(path)
    assert (img.shape, img.axes, img.dtype) == (SHAPE, "TCZYX", np.uint16)
    assert [level.shape for level in img.levels] == [SHAPE, (2, 2, 5, 35, 45)]
    for level, array in enumerate(img.levels):
        want = expected(path, level, array.shape[2:])
        assert want.max() < 65535
        assert np.array_equal(array[...], want)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing_is_numpy_s(path: Path, index: Any) -> None:
    img = hs.open_image(path)
    want = expected(path, 0, SHAPE[2:])[index]
    got = img[index]
    assert np.shape(got) == want.shape
    assert np.array_equal(got, want)
    assert np.array_equal(np.asarray(img.lazy[index]), want)


def test_only_what_is_asked_for_is_decoded(path: Path) -> None:
    img = hs.open_image(path)
    _ = img[1, 0, 2, :64, :64]
    assert hs.last_stats().chunks_decoded == 1
    _ = img.lazy[0, 1]
    assert hs.last_stats().chunks_decoded == 1


def test_physical_facts(path: Path) -> None:
    img = hs.open_image(path)
    assert img.layout == "imaris"
    assert img.scale == (1, 1, 2.0, 0.12345, 0.12345)
    assert img.units[2:] == ("um", "um", "um")
    assert img.origin[-1] == 100.5
    assert img.translation[-1] == pytest.approx(100.5 + 0.12345 / 2)
    coarse = img.levels[1]
    assert coarse.scale[-1] == pytest.approx(0.2469)
    # Both levels begin at the same border.
    assert coarse.translation[-1] - coarse.scale[-1] / 2 == pytest.approx(100.5)
    assert [channel.name for channel in img.channels] == ["DAPI", "Membrane"]
    assert img.channels[0].color == (0.2, 0.4, 1.0)
    assert img.channels[0].contrast_limits == (0.0, 5000.0)
    assert img.timestamps is not None
    assert len(img.timestamps) == 2
    assert img.chunks == (1, 1, 5, 64, 64)
    assert "T=2, C=2, Z=5, Y=70, X=90" in repr(img)


@pytest.mark.parametrize("progress", [False, True])
def test_read_fills_what_it_is_given(path: Path, progress: bool) -> None:
    img = hs.open_image(path)
    out = np.zeros(img.levels[1].shape, np.uint16)
    assert img.read(level=1, out=out, progress=progress) is out
    assert np.array_equal(out, expected(path, 1, (5, 35, 45)))
    part = img.read(np.s_[1, :, 3], progress=progress)
    assert np.array_equal(part, expected(path, 0, SHAPE[2:])[1, :, 3])
    with pytest.raises(OutputError, match="shape"):
        img.read(out=out, progress=progress)
    with pytest.raises(SelectionError):
        img.read(np.s_[2], progress=progress)


def test_pickles_small_and_reads_the_same(path: Path) -> None:
    img = hs.open_image(path)
    want = img[1, 1, 3]
    for thing in (img, img.levels[1]):
        data = pickle.dumps(thing)
        assert len(data) < 1000
        assert pickle.loads(data).shape == thing.shape
    assert np.array_equal(pickle.loads(pickle.dumps(img))[1, 1, 3], want)


def test_multi_file_sets(tmp_path: Path) -> None:
    path = tmp_path / "set.ims"
    facts = make_imaris(path, shape=SHAPE, multi_file=True)
    img = hs.open_image(path)
    assert np.array_equal(img[...], expected(path, 0, SHAPE[2:]))
    Path(facts.linked_files[0]).unlink()
    with pytest.raises(MissingSourceError, match=Path(facts.linked_files[0]).name):
        hs.open_image(path)[...]


def test_a_missing_dataset_reads_as_zeros_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "gap.ims"
    make_imaris(path, shape=SHAPE, missing={(1, 0)})
    with pytest.warns(MetadataWarning, match="time point 1 channel 0"):
        img = hs.open_image(path)
    assert not img[1, 0].any()
    assert img[1, 1].any()
    assert np.array_equal(img[:, 0, 2][0], img[0, 0, 2])


@pytest.mark.parametrize("layout", ["t{t}/c{c}/data", "frames/{t:04d}/ch{c}"])
def test_templates(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "stack.h5"
    shape = (11, 2, 4, 20, 24)
    make_stack(path, template=layout, shape=shape)
    img = hs.open_image(path, layout)
    assert (img.axes, img.shape) == ("TCZYX", shape)
    with h5py.File(path) as h5:
        for t in (0, 2, 10):  # "10" sorts after "9", not after "1"
            for c in (0, 1):
                want = h5[layout.format(t=t, c=c)][...]
                assert np.array_equal(img[t, c], want)


def test_one_dataset_with_axes(tmp_path: Path) -> None:
    path = tmp_path / "plain.h5"
    values = np.random.default_rng(0).integers(0, 99, (3, 5, 7, 8)).astype(">i2")
    with h5py.File(path, "w") as h5:
        h5.create_dataset("exp/volume", data=values, chunks=(1, 2, 4, 4), compression="gzip")
    img = hs.open_image(path, "exp/volume", axes="CZYX")
    assert (img.axes, img.shape, img.dtype) == ("CZYX", values.shape, np.dtype("i2"))
    assert np.array_equal(img[1:, ::-1, 3], values[1:, ::-1, 3])


def test_no_layout_fits(tmp_path: Path) -> None:
    path = tmp_path / "plain.h5"
    with h5py.File(path, "w") as h5:
        h5["x"] = np.arange(4)
    with pytest.raises(LayoutError, match=r"plain\.h5.*imaris.*template|imaris"):
        hs.open_image(path)
    (tmp_path / "text.ims").write_text("not HDF5, though it is called .ims")
    with pytest.raises(NotHDF5Error, match=r"text\.ims"):
        hs.open_image(tmp_path / "text.ims")


def test_refresh_follows_a_new_file(path: Path, tmp_path: Path) -> None:
    img = hs.open_image(path)
    _ = img[0]
    make_imaris(tmp_path / "new.ims", shape=(3, 1, 4, 30, 32))
    (tmp_path / "new.ims").replace(path)
    with pytest.raises(StaleIndexError, match=r"cells\.ims"):
        img[0]
    img.refresh()
    assert img.shape == (3, 1, 4, 30, 32)
    assert img[2, 0].any()
