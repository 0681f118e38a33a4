"""`SliceLoader` and `BlockShuffle`: every sample once, each chunk decoded once, resumable."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import hyperslab as hs
import hyperslab.engine.read as engine_read
from hyperslab.engine import cache
from hyperslab.engine.stats import ReadStats
from hyperslab.errors import ChunkDecodeError, SampleError
from hyperslab.testing import make_cohort
from hyperslab.torch import BlockShuffle, SliceDataset, SliceLoader
from hyperslab.torch import transforms as T
from hyperslab.torch.samples.planes import slice_requests

SHUFFLES = ["block", "full", False]


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cohort") / "cohort.h5"
    make_cohort(path, n_cases=4, shape=(48, 48, 23), chunks=(16, 16, 5))
    return path


@pytest.fixture
def dataset(cohort: Path) -> SliceDataset:
    cache.clear()
    return SliceDataset(cohort)


@pytest.fixture
def total(monkeypatch: pytest.MonkeyPatch) -> ReadStats:
    """What all reads of all threads did."""
    found = ReadStats()
    lock = threading.Lock()

    def note(stats: ReadStats) -> None:
        with lock:
            found.add(stats)

    monkeypatch.setattr(engine_read, "remember", note)
    return found


def samples_of(loader: SliceLoader) -> list[int]:
    return [int(i) for batch in loader for i in batch["sample"]]


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("axis", [-1, 0])
def test_batches_hold_what_h5py_reads(shuffle: Any, axis: int, tmp_path: Path) -> None:
    path = tmp_path / "c.h5"
    make_cohort(path, n_cases=3, shape=(20, 24, 11), slice_first=axis == 0)
    loader = SliceLoader(
        SliceDataset(path, axis=axis), batch_size=4, shuffle=shuffle, memory_nbytes=50_000
    )
    seen = []
    with h5py.File(path) as h5:
        for batch in loader:
            for i, case in enumerate(batch["case"]):
                k = int(batch["slice"][i])
                for name, group in (("A", "MR"), ("B", "CT"), ("M", "MASK")):
                    want = np.take(h5[group][case][...], k, axis=axis).astype(np.float32)
                    assert np.array_equal(batch[name][i, 0].numpy(), want)
            seen += batch["sample"].tolist()
    assert sorted(seen) == list(range(33))
    assert len(loader) == 9


@pytest.mark.parametrize("memory", [1, 100_000, 1 << 30])
def test_block_shuffle_decodes_each_chunk_once_an_epoch(
    dataset: SliceDataset, total: ReadStats, memory: int
) -> None:
    n_chunks = sum(
        dataset.array(name, case).n_chunks[1]
        for name in dataset.inputs
        for case in range(len(dataset.cases))
    )
    loader = SliceLoader(dataset, batch_size=8, memory_nbytes=memory)
    assert sorted(samples_of(loader)) == list(range(len(dataset)))
    assert total.chunks_decoded == n_chunks
    assert total.chunks_cached == 0


def test_epochs_differ_and_repeat(dataset: SliceDataset) -> None:
    loader = SliceLoader(dataset, batch_size=8, seed=3)
    first, again = samples_of(loader), samples_of(loader)
    loader.set_epoch(1)
    second = samples_of(loader)
    assert first == again != second
    assert sorted(first) == sorted(second)


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("stop_after", [0, 1, 5])
def test_resumes_exactly(dataset: SliceDataset, shuffle: Any, stop_after: int) -> None:
    transforms = T.Compose([T.RandomFlip(), T.RandomCrop(32)], seed=5)

    def loader() -> SliceLoader:
        return SliceLoader(dataset, batch_size=7, shuffle=shuffle, transforms=transforms)

    whole = loader()
    whole.set_epoch(2)
    want = list(whole)
    broken = loader()
    broken.set_epoch(2)
    batches = iter(broken)
    for _ in range(stop_after):
        next(batches)
    state = broken.state_dict()
    batches.close()
    resumed = loader()
    resumed.load_state_dict(state)
    got = list(resumed)
    assert len(got) == len(want) - stop_after
    for a, b in zip(got, want[stop_after:], strict=True):
        assert a["case"] == b["case"]
        assert all(torch.equal(a[k], b[k]) for k in ("A", "B", "M", "slice", "sample"))


def test_augmentation_is_the_sample_s_own(dataset: SliceDataset) -> None:
    """Whatever the order and the batches, and in a DataLoader as well."""
    found: list[dict[int, Any]] = []
    for shuffle, batch_size in (("block", 5), ("full", 8), (False, 3)):
        transforms = T.Compose([T.RandomFlip(), T.RandomRotate90(), T.RandomCrop(32)], seed=1)
        loader = SliceLoader(dataset, batch_size=batch_size, shuffle=shuffle, transforms=transforms)
        found.append(
            {int(s): b["A"][i] for b in loader for i, s in enumerate(b["sample"].tolist())}
        )
    transforms = T.Compose([T.RandomFlip(), T.RandomRotate90(), T.RandomCrop(32)], seed=1)
    plain = torch.utils.data.DataLoader(dataset, batch_size=6, sampler=BlockShuffle(dataset))
    found.append(
        {
            int(s): out["A"][i]
            for batch in plain
            for out in [transforms(batch)]
            for i, s in enumerate(batch["sample"].tolist())
        }
    )
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        assert all(torch.equal(other[s], found[0][s]) for s in other)


def test_ranks_share_an_epoch(dataset: SliceDataset) -> None:
    n = len(dataset)  # 92
    for uneven, world_size in (("pad", 3), ("drop", 3)):
        loaders = [
            SliceLoader(dataset, batch_size=10, rank=r, world_size=world_size, uneven=uneven)
            for r in range(world_size)
        ]
        shares = [samples_of(loader) for loader in loaders]
        assert {len(share) for share in shares} == {31 if uneven == "pad" else 30}
        assert {len(loader) for loader in loaders} == {4 if uneven == "pad" else 3}
        union = set().union(*shares)
        assert len(union) == (n if uneven == "pad" else 90)


def test_drop_last(dataset: SliceDataset) -> None:
    loader = SliceLoader(dataset, batch_size=10, drop_last=True)
    sizes = [len(batch["case"]) for batch in loader]
    assert sizes == [10] * 9
    assert len(loader) == 9


def test_leaving_early_stops_the_threads(dataset: SliceDataset) -> None:
    loader = SliceLoader(dataset, batch_size=2, memory_nbytes=1)
    for _ in loader:
        break
    names = [t.name for t in threading.enumerate()]
    assert not any(name in ("hyperslab-loader", "hyperslab-window") for name in names)


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_damage_reaches_the_caller(shuffle: Any, tmp_path: Path) -> None:
    path = tmp_path / "c.h5"
    make_cohort(path, n_cases=2, shape=(32, 32, 8), chunks=(16, 16, 4))
    with h5py.File(path) as h5:
        info = h5["MR"]["1PB002"].id.get_chunk_info(3)
    with path.open("r+b") as stream:
        stream.seek(info.byte_offset + 5)
        stream.write(b"\xff" * 20)
    loader = SliceLoader(SliceDataset(path), batch_size=4, shuffle=shuffle)
    with pytest.raises(ChunkDecodeError, match="1PB002"):
        list(loader)


def test_a_failing_transform_reaches_the_caller(dataset: SliceDataset) -> None:
    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        list(SliceLoader(dataset, transforms=fail))


def test_ragged_planes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.h5"
    make_cohort(path, n_cases=3, shape=(40, 48, 6), ragged=True)
    with pytest.raises(SampleError, match="different shapes"):
        SliceLoader(SliceDataset(path))


@pytest.mark.parametrize(
    "wrong",
    [{"batch_size": 0}, {"shuffle": "yes"}, {"rank": 1}, {"rank": 2, "world_size": 2}],
    ids=str,
)
def test_wrong_use(dataset: SliceDataset, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"batch_size|shuffle|rank"):
        SliceLoader(dataset, **wrong)


def test_report_and_mixing(dataset: SliceDataset) -> None:
    loader = SliceLoader(dataset, batch_size=8)
    assert loader.mixing().cases_per_batch > 1.5
    list(loader)
    report = loader.report
    assert (report.samples, report.batches) == (len(dataset), len(loader))
    assert 0 <= report.waiting_s <= report.seconds
    assert "bottleneck" in str(report)
    sampler = BlockShuffle(dataset)
    assert sorted(sampler) == list(range(len(sampler)))
    assert sampler.mixing(8).distance > 0.5


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_neighbouring_slices_are_one_request(dataset: SliceDataset, axis: int) -> None:
    a, b = dataset.array("A", 0), dataset.array("A", 1)
    arrays, slices = [a, a, a, a, b, b, a], [3, 4, 5, 9, 10, 11, 12]
    shape = a.shape[:axis] + a.shape[axis + 1 :]
    out = np.zeros((7, *shape), a.dtype)
    requests, places = slice_requests([(array, axis) for array in arrays], slices, out)
    assert len(requests) == len(places) == 4
    hs.read_many(requests, out=places)
    for i, (array, k) in enumerate(zip(arrays, slices, strict=True)):
        assert np.array_equal(out[i], np.take(array[...], k, axis=axis))
