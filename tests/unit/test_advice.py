"""The adviser's arithmetic."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from h5py._hl.filters import guess_chunk
from hypothesis import given
from hypothesis import strategies as st

from hyperslab import filters
from hyperslab.access import parse_access
from hyperslab.advice.cost import h5py_cache_nbytes, is_automatic, request_cost
from hyperslab.advice.findings import file_system, find
from hyperslab.advice.kinds import Kind, default_patterns, find_kinds
from hyperslab.advice.probe import Line, places, try_codecs
from hyperslab.advice.words import duration
from hyperslab.codecs.encode import CODECS
from hyperslab.filters import Filter
from hyperslab.index.tree import DatasetFacts, Entry


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=4), st.sampled_from([1, 2, 4, 8]))
def test_automatic_chunks_are_recognised(shape: list[int], itemsize: int) -> None:
    guess = tuple(int(n) for n in guess_chunk(tuple(shape), None, itemsize))
    assert is_automatic(tuple(shape), guess, itemsize)
    other = (guess[0] + 1, *guess[1:])
    assert not is_automatic(tuple(shape), other, itemsize)


def test_the_cost_of_a_slice() -> None:
    access = parse_access("[:, :, k]", 3)
    cost = request_cost(access, (512, 512, 200), (32, 32, 25), itemsize=2, ratio=2.0)
    assert cost.chunks_touched == 256
    assert cost.decoded_nbytes == 256 * 32 * 32 * 25 * 2
    assert cost.read_nbytes == cost.decoded_nbytes / 2
    assert cost.used_nbytes == 512 * 512 * 2
    assert cost.slab_nbytes == 512 * 512 * 25 * 2
    assert cost.requests_per_slab == 25


def test_the_cost_without_chunks() -> None:
    cost = request_cost(parse_access("[k]", 3), (10, 20, 30), None, itemsize=4)
    assert (cost.chunks_touched, cost.decoded_nbytes) == (0, 20 * 30 * 4)


def test_the_library_s_cache() -> None:
    assert h5py_cache_nbytes((1, 14, 6)) == 1 << 20
    assert h5py_cache_nbytes((2, 0, 0)) == 8 << 20


@pytest.mark.parametrize(
    ("shape", "first"),
    [
        ((256, 256, 60), "[:, :, k]"),
        ((60, 256, 256), "[k, :, :]"),
        ((256, 60, 240), "[:, k, :]"),
        ((100, 100, 100), "[k, :, :]"),
        ((5, 3, 20, 100, 100), "[t, c, z, :, :]"),
        ((9, 20, 100, 100), "[t, z, :, :]"),
        ((900, 900), "tile 512x512"),
        ((9,), "whole"),
    ],
)
def test_likely_patterns(shape: tuple[int, ...], first: str) -> None:
    patterns = default_patterns(shape)
    assert patterns[0] == first
    for pattern in patterns:
        if not pattern.startswith("patch") or len(shape) >= 3:
            parse_access(pattern, len(shape))


def entry(path: str, shape: tuple[int, ...] = (64, 64, 32), **how: object) -> Entry:
    known: dict[str, object] = {
        "shape": shape,
        "dtype": "float32",
        "numeric": True,
        "storage": "chunked",
        "chunks": (16, 16, 8),
        "filters": (Filter(code=filters.GZIP, name="gzip"),),
        "native": True,
        "stored_nbytes": 100_000,
        "decoded_nbytes": math.prod(shape) * 4,
        "chunks_allocated": 64,
        "chunks_total": 64,
    }
    return Entry(path=path, kind="dataset", facts=DatasetFacts(**(known | how)))  # type: ignore[arg-type]


def test_kinds_are_cases_put_together() -> None:
    entries = [entry(f"/MR/p{i}") for i in range(5)] + [entry(f"/CT/p{i}") for i in range(4)]
    entries += [entry("/MR/big", shape=(128, 64, 32)), entry("/small", shape=(4, 4))]
    entries += [entry("/text", numeric=False)]
    kinds = find_kinds(entries)
    assert [(len(kind.paths), kind.example) for kind in kinds] == [(6, "/MR/big"), (4, "/CT/p0")]
    assert kinds[0].decoded_nbytes == (5 + 2) * 64 * 64 * 32 * 4
    assert kinds[0].itemsize == 4
    assert [kind.example for kind in find_kinds(entries, only="/sm*")] == ["/small"]


def kind(**how: object) -> Kind:
    (found,) = find_kinds([entry("/x", **how)])  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("key", "how"),
    [
        ("automatic-chunks", {"chunks": tuple(map(int, guess_chunk((64, 64, 32), None, 4)))}),
        ("small-chunks", {"shape": (256, 256, 32), "chunks": (4, 4, 4)}),
        ("large-chunks", {"shape": (512, 512, 100), "chunks": (512, 512, 100)}),
        ("no-shuffle", {}),
        ("sparse", {"chunks_allocated": 3}),
        ("big-endian", {"dtype": "float32 big-endian"}),
    ],
)
def test_findings(key: str, how: dict[str, object]) -> None:
    assert key in [finding.key for finding in find(kind(**how), None, system="ext4")]
    sound = {
        "chunks": (64, 64, 2),
        "filters": (
            Filter(code=filters.SHUFFLE, values=(4,), name="shuffle"),
            Filter(code=filters.GZIP, name="gzip"),
        ),
    }
    assert find(kind(**sound), np.zeros(3, "f4"), system="ext4") == []


def test_findings_about_values_and_disks() -> None:
    plain = {"storage": "contiguous", "chunks": None, "filters": ()}
    assert [f.key for f in find(kind(**plain), None, system="nfs4")] == ["network"]
    assert find(kind(**plain), None, system="ext4") == []
    wide = {**plain, "dtype": "float64", "decoded_nbytes": 64 * 64 * 32 * 8}
    for values, holds in (
        (np.array([1.0, -7.0, np.nan]), "integers"),
        (np.array([0.5, 0.25]), "float32"),
        (np.array([0.1, 1 / 3]), None),
        (np.array([np.nan]), None),
    ):
        found = find(kind(**wide), values, system="")
        assert [f.key for f in found] == (["wide-floats"] if holds else [])
        assert all(str(holds) in f.text for f in found)


def test_the_file_system_is_known(tmp_path: object) -> None:
    assert file_system("/proc/self") in ("proc", "")
    assert file_system(str(tmp_path))


def test_a_line_through_two_measurements() -> None:
    line = Line(4, 1.0, 0.1)
    assert line.at(4) == 1.0
    assert line.at(14) == pytest.approx(2.0)
    assert line.at(2) == 0.5


def test_places_are_inside_and_at_chunks() -> None:
    dice = random.Random(0)
    for index in places((8, 6), (64, 10), (4, 6), n=50, dice=dice):
        assert all(0 <= i.start < i.stop <= n for i, n in zip(index, (64, 10), strict=True))
        assert [i.stop - i.start for i in index] == [8, 6]
        assert index[0].start % 4 == 0
    starts = {index[0].start for index in places((1,), (64,), (4,), n=200, dice=dice)}
    assert any(start % 4 for start in starts)


def test_codecs_are_tried() -> None:
    zeros = np.zeros((32, 32), "f4")
    trials = {trial.codec: trial for trial in try_codecs([zeros, zeros])}
    assert set(trials) == set(CODECS)
    assert trials["none"].ratio == 1
    assert all(trials[name].ratio > 10 for name in ("lz4", "zstd", "gzip"))
    assert all(t.encode_bytes_per_s > 0 and t.decode_bytes_per_s > 0 for t in trials.values())


def test_durations() -> None:
    found = [duration(s) for s in (0.0000123, 0.0999, 1.5, 99.4, 600, 1e5)]
    assert found == ["0.012 ms", "100 ms", "1.5 s", "99 s", "10 min", "28 h"]
