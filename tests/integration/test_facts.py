"""Facts about datasets: equal to NumPy's, found by one look, kept for as long as they hold."""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hyperslab as hs
from hyperslab.array import Array
from hyperslab.engine import read as engine_read
from hyperslab.engine import source
from hyperslab.engine.stats import ReadStats
from hyperslab.errors import PerformanceWarning, SampleError, StaleIndexError
from hyperslab.torch.values import fact_store, facts, tally
from hyperslab.torch.values.fact_store import FactStore
from hyperslab.torch.values.facts import DatasetFacts, survey, survey_dataset

CAN_FORK = "fork" in multiprocessing.get_all_start_methods()


def write(path: Path, datasets: dict[str, np.ndarray], **options: Any) -> Path:
    with h5py.File(path, "w") as h5:
        for name, data in datasets.items():
            h5.create_dataset(name, data=data, **options)
    return path


def arrays(path: Path) -> list[Array]:
    """All datasets at the root of a file, indexed anew."""
    return list(hs.open(path).arrays().values())


def noise(*shape: int, dtype: str = "f4", seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(5, 20, shape)).astype(dtype)


def of_axis(datasets: list[Array], axis: int = -1) -> list[tuple[Array, int]]:
    return [(array, axis) for array in datasets]


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def assert_same_facts(found: DatasetFacts, want: DatasetFacts) -> None:
    """The same to the last bit."""
    assert found.damage is want.damage is None
    for a, b in ((found.low, want.low), (found.high, want.high)):
        assert a is not None
        assert b is not None
        assert (a.dtype, a.tobytes()) == (np.dtype("f8"), b.tobytes())
    for x, y in ((found.mean, want.mean), (found.std, want.std)):
        assert x is not None
        assert y is not None
        assert bits(x) == bits(y)
    assert {q: bits(v) for q, v in found.quantiles.items()} == {
        q: bits(v) for q, v in want.quantiles.items()
    }


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[ReadStats]:
    """What every read of this process does, from now on."""
    found: list[ReadStats] = []
    monkeypatch.setattr(engine_read, "remember", found.append)
    return found


# --- equal to NumPy


def reference(data: np.ndarray, axis: int, quantiles: list[float]) -> dict[str, Any]:
    wide = data.astype("f8")
    finite = np.isfinite(wide)
    others = tuple(k for k in range(wide.ndim) if k != axis)
    some = finite.any(axis=others)
    low = np.where(finite, wide, np.inf).min(axis=others)
    high = np.where(finite, wide, -np.inf).max(axis=others)
    values = wide[finite]
    return {
        "low": np.where(some, low, np.nan),
        "high": np.where(some, high, np.nan),
        "mean": values.mean() if values.size else math.nan,
        "std": values.std() if values.size else math.nan,
        "quantiles": {q: np.percentile(values, q) if values.size else math.nan for q in quantiles},
        "scale": np.abs(values).max() if values.size else 1.0,
    }


@st.composite
def volumes(draw: st.DrawFn) -> np.ndarray:
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=3, max_size=3)))
    dtype = np.dtype(draw(st.sampled_from(["u1", ">i2", "i8", "f2", "f4", ">f4", "f8", "?"])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    center = draw(st.sampled_from([0, 0, 100]))
    drawn = rng.normal(center, draw(st.sampled_from([0, 1, 40])), shape)
    if dtype.kind == "b":
        return drawn > center
    if dtype.kind == "u":
        drawn = np.abs(drawn)
    if dtype.kind == "f":
        share = draw(st.sampled_from([0, 0, 0.1, 0.9, 1]))
        special = draw(st.sampled_from([[np.nan], [np.inf], [-np.inf], [np.nan, np.inf, -np.inf]]))
        drawn = np.where(rng.random(shape) < share, rng.choice(special, shape), drawn)
    return drawn.astype(dtype)


PERCENTS = st.one_of(st.sampled_from([0.0, 1.0, 50.0, 99.0, 99.5, 100.0]), st.floats(0, 100))


@settings(max_examples=150)
@given(data=st.data())
def test_facts_equal_numpys(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    volume = data.draw(volumes())
    axis = data.draw(st.sampled_from([0, 1, 2, -1, -2, -3]))
    quantiles = data.draw(st.lists(PERCENTS, max_size=3))
    options = {}
    if data.draw(st.booleans()):
        chunks = tuple(data.draw(st.integers(1, n)) for n in volume.shape)
        options = {"chunks": chunks, "compression": data.draw(st.sampled_from([None, "gzip"]))}
    path = write(tmp_path_factory.mktemp("f") / "v.h5", {"v": volume}, **options)
    # As small as this, a volume takes many parts of many blocks, as large ones do.
    few = data.draw(st.sampled_from([1, 5, 30, 1 << 20]))
    with (
        mock.patch.object(facts, "_PART_NBYTES", data.draw(st.sampled_from([1, 40, 1 << 20]))),
        mock.patch.object(tally, "_BLOCK", few),
    ):
        found = survey_dataset(arrays(path)[0], axis, quantiles=quantiles)
    want = reference(volume, axis % 3, quantiles)
    assert found.damage is None
    assert found.low is not None
    assert found.high is not None
    np.testing.assert_array_equal(found.low, want["low"])
    np.testing.assert_array_equal(found.high, want["high"])
    tolerance = 1e-12 * want["scale"]
    np.testing.assert_allclose(found.mean, want["mean"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(found.std, want["std"], rtol=0, atol=tolerance)
    assert list(found.quantiles) == list(dict.fromkeys(quantiles))
    for q, value in found.quantiles.items():
        np.testing.assert_array_equal(value, want["quantiles"][q])


def test_a_far_mean_costs_no_digits(tmp_path: Path) -> None:
    volume = 1e9 + np.random.default_rng(0).normal(0, 1e-3, (40, 30, 20))
    found = survey_dataset(arrays(write(tmp_path / "v.h5", {"v": volume}))[0], 0)
    assert found.std == pytest.approx((volume - 1e9).std(), rel=1e-6)
    naive = (volume**2).mean() - volume.mean() ** 2
    assert naive != pytest.approx(1e-6, rel=0.1)  # what the textbook's formula makes of it


def test_a_volume_of_one_value_has_exactly_no_spread(tmp_path: Path) -> None:
    volume = np.full((50, 40, 30), 0.1)
    volume[3, 4, 5] = np.nan
    with mock.patch.object(tally, "_BLOCK", 777):
        found = survey_dataset(arrays(write(tmp_path / "v.h5", {"v": volume}))[0], 0)
    assert (found.mean, found.std) == (0.1, 0.0)


def test_sums_beyond_float64_are_no_error(tmp_path: Path) -> None:
    found = survey_dataset(
        arrays(write(tmp_path / "v.h5", {"v": np.full((2, 2, 2), [1e308, 1.7e308])}))[0], 2
    )
    assert found.low is not None
    assert found.low.tolist() == [1e308, 1.7e308]
    assert found.mean is not None
    assert not math.isfinite(found.mean)


def test_an_empty_dataset_has_no_values(tmp_path: Path) -> None:
    found = survey_dataset(
        arrays(write(tmp_path / "v.h5", {"v": np.empty((0, 4, 3), "f4")}))[0], 2, quantiles=(50.0,)
    )
    assert found.low is not None
    assert np.isnan(found.low).tolist() == [True] * 3
    assert found.mean is not None
    assert math.isnan(found.mean)
    assert math.isnan(found.quantiles[50.0])


def test_what_has_no_facts_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "v.h5", {"c": noise(2, 2, 2, dtype="c8"), "r": noise(2, 2, 2)})
    complex_, real = arrays(path)
    with pytest.raises(SampleError, match=r"v\.h5: /c holds complex64.* no order"):
        survey_dataset(complex_, 0)
    for axis in (3, -4):
        with pytest.raises(ValueError, match=f"axis is {axis}, but /r has 3 axes"):
            survey_dataset(real, axis)
    folder = tmp_path / "facts"
    survey([(real, 2)], store=FactStore(folder))
    with pytest.raises(ValueError, match="axis is 5, but /r has 3 axes"):
        survey([(real, 5)], store=FactStore(folder))  # though 5 - 3 is known
    for q in (-0.1, 100.5, math.nan):
        with pytest.raises(ValueError, match="0 to 100"):
            survey_dataset(real, 0, quantiles=(1, q))


# --- one look, in bounded memory


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("quantiles", [(), (1.0, 99.0)])
def test_each_chunk_is_decoded_once(
    tmp_path: Path, axis: int, quantiles: tuple[float, ...], reads: list[ReadStats]
) -> None:
    hs.configure(cache_nbytes=0)
    volume = noise(20, 30, 25)
    path = write(tmp_path / "v.h5", {"v": volume}, chunks=(6, 7, 8), compression="gzip")
    [array] = arrays(path)
    budget = 20 * 6 * 7 * 8 * 4  # twenty chunks
    with mock.patch.object(facts, "_PART_NBYTES", budget):
        found = survey_dataset(array, axis, quantiles=quantiles)
    assert sum(stats.chunks_decoded for stats in reads) == array.n_chunks[0] == 4 * 5 * 4
    assert sum(stats.bytes_returned for stats in reads) == volume.nbytes
    if quantiles:
        assert len(reads) == 1
    else:
        assert len(reads) > 3
        assert max(stats.bytes_returned for stats in reads) <= budget
    assert found.mean == pytest.approx(volume.mean(dtype="f8"), rel=1e-12)


def test_a_contiguous_dataset_is_read_front_to_back(tmp_path: Path, reads: list[ReadStats]) -> None:
    volume = noise(40, 30, 25)
    [array] = arrays(write(tmp_path / "v.h5", {"v": volume}))
    with mock.patch.object(facts, "_PART_NBYTES", 10 * 30 * 25 * 4):
        survey_dataset(array, 2)
    assert [stats.bytes_read for stats in reads] == [10 * 30 * 25 * 4] * 4
    assert [stats.preads for stats in reads] == [1] * 4


def test_peak_memory_is_as_stated(tmp_path: Path) -> None:
    volume = noise(64, 128, 256)  # 8 MiB
    volume[::7, 3] = np.nan
    volume[::5, 4] = -np.inf
    [array] = arrays(write(tmp_path / "v.h5", {"v": volume}))
    room = 4 << 20  # 2 MiB to compute in, and the machinery of a read
    peaks = []
    for quantiles in ((), (5.0, 50.0)):
        with mock.patch.object(facts, "_PART_NBYTES", 1 << 20):
            tracemalloc.start()
            try:
                survey_dataset(array, 2, quantiles=quantiles)
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
    assert peaks[0] < (1 << 20) + room
    assert volume.nbytes < peaks[1] < volume.nbytes + room


def test_a_larger_volume_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    volumes = {"a": np.zeros((6, 1024, 256), "f4"), "b": np.zeros((8, 1024, 256), "f4")}
    wanted = of_axis(arrays(write(tmp_path / "v.h5", volumes)))
    tracemalloc.start()
    try:
        survey(wanted, quantiles=(50.0,))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert volumes["b"].nbytes < peak < volumes["b"].nbytes + (4 << 20)  # "a" has 6 MiB


# --- kept


def test_the_second_survey_reads_nothing(
    tmp_path: Path, reads: list[ReadStats], capsys: pytest.CaptureFixture[str]
) -> None:
    volumes = {"a": noise(8, 9, 7), "b": noise(6, 9, 4, dtype="i2"), "m": noise(8, 9, 7) > 5}
    paths = [
        write(tmp_path / f"{name}.h5", {"a": data, "b": data}, compression="gzip")
        for name, data in volumes.items()
    ]
    folder = tmp_path / "facts"
    first = survey(
        of_axis([array for path in paths for array in arrays(path)]),
        quantiles=(1.0, 99.0),
        store=FactStore(folder),
        progress=True,
    )
    assert len(reads) == 6
    assert len(list(folder.glob("*.json"))) == 3
    assert not list(folder.glob("*.part"))
    reads.clear()
    source.close_idle()
    wanted = of_axis([array for path in paths for array in arrays(path)])
    again = survey(wanted, quantiles=(1.0, 99.0), store=FactStore(folder), progress=True)
    assert reads == []
    assert source.n_open() == 0
    assert [array._node for array, _ in wanted] == [None] * 6  # not even where the chunks lie
    for found, want in zip(again, first, strict=True):
        assert_same_facts(found, want)
    for found, data in zip(again[::2], volumes.values(), strict=True):
        assert found.quantiles[99.0] == np.percentile(data.astype("f8"), 99)
    assert capsys.readouterr().out == ""


def test_only_what_is_lacking_is_looked_for(tmp_path: Path, reads: list[ReadStats]) -> None:
    path = write(tmp_path / "v.h5", {"a": noise(7, 9, 7), "b": noise(7, 9, 7)})
    folder = tmp_path / "facts"
    survey(of_axis(arrays(path)), store=FactStore(folder))
    survey(of_axis(arrays(path)[:1]), quantiles=(1.0,), store=FactStore(folder))
    assert len(reads) == 3
    [a, b] = survey(of_axis(arrays(path)), quantiles=(50.0,), store=FactStore(folder))
    assert len(reads) == 5
    assert (list(a.quantiles), list(b.quantiles)) == ([1.0, 50.0], [50.0])
    [a, b] = survey(of_axis(arrays(path)), quantiles=(50.0,), store=FactStore(folder))
    [a] = survey(of_axis(arrays(path)[:1]), quantiles=(50.0, 1.0), store=FactStore(folder))
    assert len(reads) == 5
    # The other slice axis is another entry; -1 and 2 are the same.
    survey(of_axis(arrays(path), 2), store=FactStore(folder))
    assert len(reads) == 5
    survey(of_axis(arrays(path), 0), store=FactStore(folder))
    assert len(reads) == 7
    # Facts that are given count too; that it could not be read is looked at again.
    found = survey_dataset(arrays(path)[0], 2, quantiles=(50.0,), known=a)
    assert found is a
    assert len(reads) == 7
    found = survey_dataset(arrays(path)[0], 2, known=DatasetFacts(damage="it was"))
    assert found.damage is None
    assert len(reads) == 8


def test_a_changed_file_is_looked_at_anew(tmp_path: Path, reads: list[ReadStats]) -> None:
    path = write(tmp_path / "v.h5", {"v": np.zeros((4, 4, 4), "f4")})
    stored = FactStore(tmp_path / "facts")
    survey(of_axis(arrays(path)), store=stored)
    later = path.stat().st_mtime_ns + 1_000_000
    write(path, {"v": np.ones((4, 4, 4), "f4")})
    os.utime(path, ns=(later, later))
    for store in (stored, FactStore(tmp_path / "facts")):  # the first has read the file's entries
        [found] = survey(of_axis(arrays(path)), store=store)
        assert found.mean == 1.0
    assert len(reads) == 2
    assert len(list((tmp_path / "facts").glob("*.json"))) == 1


def test_a_link_to_a_file_is_that_file(tmp_path: Path, reads: list[ReadStats]) -> None:
    path = write(tmp_path / "v.h5", {"v": noise(4, 4, 4)})
    link = tmp_path / "other.h5"
    link.symlink_to(path)
    for there in (path, link):
        survey(of_axis(arrays(there)), store=FactStore(tmp_path / "facts"))
    assert len(reads) == 1


def _mosaic(tmp_path: Path) -> tuple[Path, Path]:
    part = write(tmp_path / "part.h5", {"v": noise(4, 4, 3)})
    layout = h5py.VirtualLayout((4, 4, 3), "f4")
    layout[...] = h5py.VirtualSource(part, "v", (4, 4, 3))
    whole = tmp_path / "whole.h5"
    with h5py.File(whole, "w") as h5:
        h5.create_virtual_dataset("v", layout)
    return whole, part


def _external(tmp_path: Path) -> tuple[Path, Path]:
    raw = tmp_path / "v.raw"
    noise(4, 4, 3).tofile(raw)
    whole = tmp_path / "whole.h5"
    with h5py.File(whole, "w") as h5:
        h5.create_dataset("v", (4, 4, 3), "f4", external=[(raw, 0, h5py.h5f.UNLIMITED)])
    return whole, raw


@pytest.mark.parametrize("make", [_mosaic, _external])
def test_a_change_of_another_file_counts(tmp_path: Path, make: Any) -> None:
    whole, other = make(tmp_path)
    folder = tmp_path / "facts"
    [before] = survey(of_axis(arrays(whole)), store=FactStore(folder))
    [kept] = survey(of_axis(arrays(whole)), store=FactStore(folder))
    assert_same_facts(kept, before)
    data = other.read_bytes()
    last = noise(4, 4, 3).tobytes()[-4:]
    at = data.rindex(last)
    other.write_bytes(data[:at] + np.float32(1e6).tobytes() + data[at + 4 :])
    later = other.stat().st_mtime_ns + 1_000_000
    os.utime(other, ns=(later, later))
    [after] = survey(of_axis(arrays(whole)), store=FactStore(folder))
    assert after.high is not None
    assert after.high.max() == 1e6


SPECIAL = [0.0, -0.0, 5e-324, 1e308, 0.1, -1 / 3, math.inf, -math.inf, math.nan, float(2**53 + 2)]
FLOATS = st.one_of(st.sampled_from(SPECIAL), st.floats(), st.floats(width=32))
COLUMNS = st.one_of(st.lists(FLOATS, min_size=3, max_size=3), st.lists(st.floats(width=32),
                    min_size=3, max_size=3))  # fmt: skip


@given(
    low=COLUMNS,
    high=COLUMNS,
    mean=FLOATS,
    std=FLOATS,
    quantiles=st.dictionaries(st.floats(0, 100), FLOATS, max_size=3),
)
@settings(max_examples=60)
def test_what_is_kept_comes_back_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory,
    low: list[float],
    high: list[float],
    mean: float,
    std: float,
    quantiles: dict[float, float],
) -> None:
    folder = tmp_path_factory.mktemp("f")
    [array] = arrays(write(folder / "v.h5", {"v": noise(2, 2, 3)}))
    put = DatasetFacts(
        low=np.array(low),
        high=np.array(high),
        mean=mean,
        std=std,
        quantiles=quantiles,
    )
    store = FactStore(folder)
    store.put(array, -1, put)
    store.flush()
    for reader in (store, FactStore(folder)):
        got = reader.get(array, 2)
        assert got is not None
        assert got.low is not None
        assert got.high is not None
        assert put.low is not None
        assert put.high is not None
        for a, b in ((got.low, put.low), (got.high, put.high)):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0]))
        for x, y in ((got.mean, mean), (got.std, std), *zip(got.quantiles.values(),
                     quantiles.values(), strict=True)):  # fmt: skip
            assert x is not None
            assert bits(x) == bits(y) or math.isnan(x) == math.isnan(y) is True
        assert list(got.quantiles) == list(quantiles)


def test_columns_of_float32_are_kept_as_such(tmp_path: Path) -> None:
    volume = noise(3, 4, 5)
    volume[1] = np.nan
    path = write(tmp_path / "v.h5", {"v": volume, "w": noise(3, 4, 5, dtype="f8")})
    survey(of_axis(arrays(path), 0), store=FactStore(tmp_path / "facts"))
    [kept] = (tmp_path / "facts").glob("*.json")
    entries = json.loads(kept.read_text())["datasets"]
    assert {name: entry["high"][:4] for name, entry in entries.items()} == {
        "0:/v": "<f4:",
        "0:/w": "<f8:",
    }


# --- damage


def flip_in_chunk(path: Path, name: str, number: int) -> tuple[int, ...]:
    """Spoil a byte in the middle of a chunk, the file's size and times staying; return where."""
    with h5py.File(path) as h5:
        info = h5[name].id.get_chunk_info(number)
    before = path.stat()
    with open(path, "r+b") as stream:
        stream.seek(info.byte_offset + info.size // 2)
        [byte] = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 0xFF]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return tuple(int(o) // c for o, c in zip(info.chunk_offset, (4, 4, 4), strict=True))


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"fletcher32": True}])
@pytest.mark.parametrize("quantiles", [(), (50.0,)])
def test_damage_is_a_fact(
    tmp_path: Path, options: dict[str, Any], quantiles: tuple[float, ...]
) -> None:
    volumes = {name: noise(8, 8, 8, seed=i) for i, name in enumerate("abc")}
    path = write(tmp_path / "v.h5", volumes, chunks=(4, 4, 4), **options)
    sound = path.read_bytes()
    times = path.stat().st_mtime_ns
    chunk = flip_in_chunk(path, "b", 5)
    folder = tmp_path / "facts"
    a, b, c = survey(of_axis(arrays(path)), quantiles=quantiles, store=FactStore(folder))
    assert b.damage is not None
    for told in (str(path), "/b", f"chunk {chunk}"):
        assert told in b.damage
    assert (b.low, b.high, b.mean, b.std, b.quantiles) == (None, None, None, None, {})
    for found, name in ((a, "a"), (c, "c")):
        assert found.mean == pytest.approx(volumes[name].mean(dtype="f8"))
    # It is not kept: restored from a copy, with its old size and time, the file is sound again.
    path.write_bytes(sound)
    os.utime(path, ns=(times, times))
    _, b, _ = survey(of_axis(arrays(path)), quantiles=quantiles, store=FactStore(folder))
    assert b.mean == pytest.approx(volumes["b"].mean(dtype="f8"))


def test_a_missing_source_is_damage_until_it_is_back(tmp_path: Path) -> None:
    whole, part = _mosaic(tmp_path)
    part.rename(tmp_path / "elsewhere.h5")
    folder = tmp_path / "facts"
    [found] = survey(of_axis(arrays(whole)), store=FactStore(folder))
    assert found.damage is not None
    for told in (str(whole), "/v", str(part)):
        assert told in found.damage
    (tmp_path / "elsewhere.h5").rename(part)
    [found] = survey(of_axis(arrays(whole)), store=FactStore(folder))
    assert found.damage is None


def test_a_failing_disk_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [array] = arrays(write(tmp_path / "v.h5", {"v": noise(4, 4, 4)}))

    def fail(*args: Any) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(source.OpenFile, "read_into", fail)
    found = survey_dataset(array, 0)
    assert found.damage is not None
    for told in (array.file, "/v", "Input/output error"):
        assert told in found.damage


def test_a_file_that_changes_meanwhile_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "v.h5", {"v": noise(4, 4, 4)})
    wanted = of_axis(arrays(path))
    write(path, {"v": noise(4, 4, 5)})
    with pytest.raises(StaleIndexError, match=r"v\.h5"):
        survey(wanted, store=FactStore(tmp_path / "facts"))


def test_an_interrupted_survey_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[ReadStats]
) -> None:
    path = write(tmp_path / "v.h5", {name: noise(4, 4, 4) for name in "abcde"})
    folder = tmp_path / "facts"
    whole, calls = Array.read, itertools.count()

    def read(*args: Any, **options: Any) -> Any:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return whole(*args, **options)

    monkeypatch.setattr(Array, "read", read)
    with pytest.raises(KeyboardInterrupt):
        survey(of_axis(arrays(path)), store=FactStore(folder))
    assert len(reads) == 3
    survey(of_axis(arrays(path)), store=FactStore(folder))
    assert len(reads) == 5


def test_a_killed_survey_loses_only_the_last_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "v.h5", {name: noise(4, 4, 4) for name in "abcde"})
    waiting: list[int] = []

    def flush(store: FactStore) -> None:
        waiting.append(sum(len(document.fresh) for document in store._documents.values()))

    monkeypatch.setattr(facts, "_KEEP_EVERY_S", -1.0)
    monkeypatch.setattr(FactStore, "flush", flush)
    survey(of_axis(arrays(path)), store=FactStore(tmp_path / "facts"))
    assert waiting[:3] == [1, 2, 3]


# --- several processes, and a store in a bad state


def _put_all(path: Path, folder: Path, names: list[str], quantile: float, barrier: Any) -> None:
    store = FactStore(folder)
    opened = hs.open(path)
    barrier.wait()
    for name in names:
        array = opened[name]
        assert isinstance(array, Array)
        store.put(array, 0, survey_dataset(array, 0, quantiles=(quantile,)))
        store.flush()


@pytest.mark.skipif(not CAN_FORK, reason="this system does not fork")
def test_two_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    names = [f"v{i}" for i in range(12)]
    path = write(tmp_path / "v.h5", {name: noise(3, 3, 3, seed=i) for i, name in enumerate(names)})
    folder = tmp_path / "facts"
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    shares = [(names[:8], 10.0), (names[4:], 90.0)]  # four of them in both
    workers = [
        context.Process(target=_put_all, args=(path, folder, share, q, barrier))
        for share, q in shares
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    store = FactStore(folder)
    for name in names:
        array = hs.open(path)[name]
        assert isinstance(array, Array)
        found = store.get(array, 0)
        assert found is not None
        expected = {q for share, q in shares if name in share}
        assert set(found.quantiles) == expected


def _entries(text: str) -> Iterator[str]:
    """The store's file in many bad states."""
    yield ""
    yield text[: len(text) // 2]
    yield "\0" * len(text)
    yield "[]"
    yield "null"
    yield "{}"
    yield "[" * 100_000
    document = json.loads(text)
    for key, value in [("format", 99), ("guard", None), ("guard", [1, 2]), ("datasets", [])]:
        yield json.dumps(document | {key: value})
    [(name, entry)] = document["datasets"].items()
    for value in (None, 3, [], {}, "x"):
        yield json.dumps(document | {"datasets": {name: value}})
    for key, values in {
        "low": (None, 5, "", "<f8:AAAA", "<f8:!", "<i4:AAAAAAAAAAAAAAAA", "<f4:AAAAAA=="),
        "high": ("<f4:AAAAAA==", None),
        "mean": (None, "x", [], 10**400),
        "quantiles": (None, [], {"x": 1}, {"1.0": None}),
    }.items():
        for value in values:
            yield json.dumps(document | {"datasets": {name: entry | {key: value}}})
    yield json.dumps(document | {"file": "/another/file.h5"})


def test_a_damaged_store_knows_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "v.h5", {"v": noise(4, 4, 4)})
    folder = tmp_path / "facts"
    [want] = survey(of_axis(arrays(path)), quantiles=(1.0,), store=FactStore(folder))
    [kept] = folder.glob("*.json")
    text = kept.read_text()
    assert FactStore(folder).get(arrays(path)[0], -1) is not None
    n_states = 0
    for bad in _entries(text):
        kept.write_text(bad)
        assert FactStore(folder).get(arrays(path)[0], -1) is None, bad[:200]
        [found] = survey(of_axis(arrays(path)), quantiles=(1.0,), store=FactStore(folder))
        assert_same_facts(found, want)
        assert kept.read_text() == text  # whole again
        n_states += 1
    assert n_states > 25


def test_a_folder_that_cannot_be_written_is_said_once(
    tmp_path: Path, reads: list[ReadStats]
) -> None:
    paths = [write(tmp_path / f"{i}.h5", {"v": noise(4, 4, 4)}) for i in range(3)]
    (tmp_path / "taken").write_text("a file")
    store = FactStore(tmp_path / "taken")
    with pytest.warns(PerformanceWarning, match=r"cannot be kept in .*taken") as caught:
        found = [survey(of_axis(arrays(path)), store=store)[0].damage for path in paths]
    assert len(caught) == 1
    assert found == [None] * 3
    assert len(reads) == 3


def test_a_cache_folder_that_cannot_be_made_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "v.h5", {"v": noise(4, 4, 4)})
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setenv("HYPERSLAB_CACHE_DIR", str(tmp_path / "taken"))
    with pytest.warns(PerformanceWarning, match="HYPERSLAB_CACHE_DIR") as caught:
        [found] = survey(of_axis(arrays(path)), store=FactStore())
    assert len(caught) == 1
    assert found.damage is None


def test_a_lock_that_is_never_free_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "v.h5", {"v": noise(4, 4, 4)})
    monkeypatch.setattr(fact_store, "_LOCK_S", 0.05)
    folder = tmp_path / "facts"
    folder.mkdir()
    with (
        fact_store.FileLock(folder / "facts.lock"),
        pytest.warns(PerformanceWarning, match="cannot be kept") as caught,
    ):
        [found] = survey(of_axis(arrays(path)), store=FactStore(folder))
    assert len(caught) == 1
    assert found.damage is None
    assert not list(folder.glob("*.json"))


def test_the_users_cache_folder_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "v.h5", {"v": noise(4, 4, 4)})
    monkeypatch.setenv("HYPERSLAB_CACHE_DIR", str(tmp_path / "cache"))
    survey(of_axis(arrays(path)), store=FactStore())
    assert len(list((tmp_path / "cache" / "facts").glob("*.json"))) == 1
