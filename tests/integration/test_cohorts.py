"""What `SliceDataset` makes of cohorts as people have them: many files, ragged, damaged."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

import hyperslab as hs
from hyperslab.errors import (
    CapacityError,
    DamagedCaseWarning,
    DamagedFileError,
    MissingFileError,
    NotHDF5Error,
    PerformanceWarning,
    SampleError,
    StaleIndexError,
)
from hyperslab.testing import make_cohort
from hyperslab.torch import SliceDataset, SliceLoader, k_folds, scaling, split_cases
from hyperslab.torch import transforms as T
from hyperslab.torch.cohorts.files import file_labels

SHUFFLES = ["block", "full", False]


def volume(*shape: int, seed: int = 0, dtype: str = "f4") -> NDArray[Any]:
    values = np.random.default_rng(seed).uniform(-900, 2000, shape)
    return values.astype(dtype)


def write(path: Path, data: dict[str, NDArray[Any]], **options: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as h5:
        for name, values in data.items():
            h5.create_dataset(name, data=values, **options)
    return str(path)


def read(path: str, name: str) -> NDArray[Any]:
    with h5py.File(path) as h5:
        return h5[name][()]  # type: ignore[no-any-return]


def patients(folder: Path, n: int = 5, **options: Any) -> dict[str, dict[str, NDArray[Any]]]:
    """Write one file a patient, with datasets MR and CT, of different depth; return them."""
    found = {}
    for i in range(n):
        data = {
            "MR": volume(12, 10, 4 + i, seed=i),
            "CT": volume(12, 10, 4 + i, seed=100 + i),
        }
        write(folder / f"p{i + 8}.h5", data, **options)
        found[f"p{i + 8}"] = data
    return found


AB = {"A": "MR", "B": "CT"}


# --- files


@pytest.mark.parametrize("how", ["pattern", "list", "paths"])
def test_one_file_a_patient(how: str, tmp_path: Path) -> None:
    data = patients(tmp_path)
    files = [tmp_path / f"{name}.h5" for name in reversed(data)]
    given: dict[str, Any] = {
        "pattern": str(tmp_path / "*.h5"),
        "list": [str(path) for path in files],
        "paths": (path for path in files),
    }
    ds = SliceDataset(given[how], inputs=AB)
    assert ds.cases == ("p8", "p9", "p10", "p11", "p12")
    assert len(ds) == sum(4 + i for i in range(5))
    samples = ds.__getitems__(range(len(ds)))
    for sample in samples:
        for name, group in AB.items():
            expected = data[sample["case"]][group][..., sample["slice"]]
            assert np.array_equal(sample[name][0].numpy(), expected)
    assert "5 files" in repr(ds)
    assert "5 cases" in repr(ds)


def test_many_cohort_files(tmp_path: Path) -> None:
    for site in ("site1", "site2"):
        make_cohort(tmp_path / f"{site}.h5", n_cases=2, shape=(16, 16, 4), seed=len(site))
    ds = SliceDataset(tmp_path / "site*.h5")
    assert ds.cases == ("site1/1PA001", "site1/1PB002", "site2/1PA001", "site2/1PB002")
    sample = ds[13]
    assert (sample["case"], sample["slice"]) == ("site2/1PB002", 1)
    path = str(tmp_path / "site2.h5")
    assert np.array_equal(sample["B"][0].numpy(), read(path, "CT/1PB002")[..., 1])
    one = SliceDataset(tmp_path / "site*.h5", cases="site2/*")
    assert one.cases == ("site2/1PA001", "site2/1PB002")


def test_labels_of_files() -> None:
    def labels(*paths: str) -> tuple[str, ...]:
        return file_labels([os.path.abspath(path) for path in paths])

    assert labels("a/p1.h5") == ("p1",)
    assert labels("a/p1.h5", "a/p2.h5") == ("p1", "p2")
    assert labels("a/p1.h5", "b/p1.h5") == ("a", "b")
    assert labels("a/p1.h5", "b/p2.h5") == ("a/p1", "b/p2")
    assert labels("x/p1/data.h5", "x/p2/data.h5") == ("p1", "p2")
    assert labels("a/p1.h5", "a/p1.hdf5") == ("p1.h5", "p1.hdf5")


def test_a_group_for_each_patient(tmp_path: Path) -> None:
    data = {
        f"{case}/{group}": volume(6, 7, 3, seed=len(case) + len(group))
        for case in ("p1", "p2", "p10")
        for group in ("MR", "T2")
    }
    path = write(tmp_path / "f.h5", data | {"scanner/serial": volume(2)})
    ds = SliceDataset(path, inputs={"A": "{case}/MR", "B": "/{case}/T2/"})
    assert ds.cases == ("p1", "p2", "p10")
    assert np.array_equal(ds[7]["B"][0].numpy(), data["p10/T2"][..., 1])
    path = write(tmp_path / "g.h5", {k: v for k, v in data.items() if k != "p2/T2"})
    with pytest.raises(SampleError, match="lacks p2"):
        SliceDataset(path, inputs={"A": "{case}/MR", "B": "{case}/T2"})
    with pytest.raises(ValueError, match="one whole name"):
        SliceDataset(path, inputs={"A": "p{case}/MR"})


def test_files_that_do_not_go_together(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", {"MR/p1": volume(4, 4, 2)})
    write(tmp_path / "b.h5", {"MR": volume(4, 4, 2)})
    with pytest.raises(SampleError, match="group of cases in one file is a dataset in another"):
        SliceDataset(tmp_path / "*.h5", inputs="MR")
    with pytest.raises(MissingFileError, match="no file fits"):
        SliceDataset(tmp_path / "*.hdf5")
    with pytest.raises(MissingFileError, match="no files"):
        SliceDataset([])
    (tmp_path / "c.h5").write_bytes(b"no HDF5 here")
    with pytest.raises(NotHDF5Error, match=r"c\.h5"):
        SliceDataset([tmp_path / "b.h5", tmp_path / "c.h5"], inputs="MR")


def test_a_file_whose_name_looks_like_a_pattern(tmp_path: Path) -> None:
    path = write(tmp_path / "scan[1].h5", {"MR": volume(4, 4, 2)})
    assert SliceDataset(path, inputs="MR").cases == ("scan[1]",)


def test_a_copy_reads_the_same_and_notices_a_changed_file(tmp_path: Path) -> None:
    patients(tmp_path, 3)
    ds = SliceDataset(tmp_path / "*.h5", inputs=AB)
    copied = pickle.loads(pickle.dumps(ds))
    assert all(torch.equal(copied[i]["A"], ds[i]["A"]) for i in range(len(ds)))
    fresh = pickle.loads(pickle.dumps(ds))
    write(tmp_path / "p9.h5", {"MR": volume(12, 10, 5, seed=7), "CT": volume(12, 10, 5)})
    assert fresh[0]["case"] == "p8"
    with pytest.raises(StaleIndexError, match=r"p9\.h5"):
        fresh[5]


# --- cases


def test_cases_by_pattern(tmp_path: Path) -> None:
    patients(tmp_path)
    everything = SliceDataset(tmp_path / "*.h5", inputs=AB)

    def chosen(cases: Any) -> tuple[str, ...]:
        found = SliceDataset(tmp_path / "*.h5", inputs=AB, cases=cases).cases
        assert everything.with_cases(cases).cases == found
        return found

    assert chosen("p1*") == ("p10", "p11", "p12")
    assert chosen(["p9", "p1[12]"]) == ("p9", "p11", "p12")
    assert chosen(re.compile("p[89]")) == ("p8", "p9")
    for absent in ("q*", re.compile("p")):
        with pytest.raises(SampleError, match="fits no case"):
            chosen(absent)


def test_part_of_a_dataset_reads_its_own_cases(tmp_path: Path) -> None:
    data = patients(tmp_path)
    ds = SliceDataset(tmp_path / "*.h5", inputs=AB)
    part = ds.with_cases(["p12", "p9"])
    assert part.cases == ("p9", "p12")
    assert len(part) == 5 + 8
    for i in (0, 4, 5, 12):
        sample = part[i]
        expected = data[sample["case"]]["MR"][..., sample["slice"]]
        assert np.array_equal(sample["A"][0].numpy(), expected)
    assert len(ds) == 30  # as before
    with pytest.raises(SampleError, match="`cases` is empty"):
        ds.with_cases([])


def test_splits_keep_patients_whole() -> None:
    cases = [f"p{i}_visit{j}" for i in range(20) for j in range(1 + i % 3)]
    parts = split_cases(cases, [0.7, 0.2, 0.1], seed=3, patient=r"(p\d+)_")
    assert sorted(case for part in parts for case in part) == sorted(cases)
    owners = [{case.split("_")[0] for case in part} for part in parts]
    assert [len(owner) for owner in owners] == [14, 4, 2]
    assert not owners[0] & owners[1]
    assert not owners[0] & owners[2]
    assert not owners[1] & owners[2]
    assert split_cases(cases[::-1], [0.7, 0.2, 0.1], seed=3, patient=r"(p\d+)_") == parts
    assert split_cases(cases, [0.7, 0.2, 0.1], seed=4, patient=r"(p\d+)_") != parts
    by_function = split_cases(cases, 0.5, seed=3, patient=lambda case: case.split("_")[0])
    assert {c.split("_")[0] for c in by_function[0]} | owners[0] == owners[0]  # the same order
    folds = k_folds(cases, 4, seed=1, patient=r"(p\d+)_")
    assert sorted(case for _, val in folds for case in val) == sorted(cases)
    for train, val in folds:
        assert sorted(train + val) == sorted(cases)
        assert not {c.split("_")[0] for c in train} & {c.split("_")[0] for c in val}
    with pytest.raises(ValueError, match="sum to 1"):
        split_cases(cases, [0.5, 0.6])
    with pytest.raises(ValueError, match="do not make"):
        split_cases(["a"], 0.5)
    with pytest.raises(SampleError, match="finds no patient"):
        split_cases(cases, 0.5, patient="(q)")


def test_every_part_of_a_small_split_has_a_patient() -> None:
    assert [len(part) for part in split_cases(list("abc"), [0.9, 0.05, 0.05])] == [1, 1, 1]


# --- which slices a sample takes


@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_context_is_the_neighbours_clamped_at_the_ends(
    shuffle: Any, axis: int, tmp_path: Path
) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=3, shape=(16, 16, 7), slice_first=axis == 0, chunks=None)
    ds = SliceDataset(path, axis=axis, context={"A": 2})
    stored = {case: np.moveaxis(read(path, f"MR/{case}"), axis, 0) for case in ds.cases}

    def check(case: str, k: int, planes: torch.Tensor) -> None:
        around = np.clip(np.arange(k - 2, k + 3), 0, 6)
        assert np.array_equal(planes.numpy(), stored[case][around])

    for sample in ds.__getitems__(range(len(ds))):
        assert sample["B"].shape == (1, 16, 16)
        check(sample["case"], sample["slice"], sample["A"])
    seen = 0
    for memory in (1, 1 << 30):
        for batch in SliceLoader(ds, batch_size=4, shuffle=shuffle, memory_nbytes=memory):
            assert batch["A"].shape[1:] == (5, 16, 16)
            for case, k, planes in zip(batch["case"], batch["slice"], batch["A"], strict=True):
                check(case, int(k), planes)
                seen += 1
    assert seen == 2 * len(ds)


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_neighbour_targets_never_leave_a_case(shuffle: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=4, shape=(8, 8, 5))
    ds = SliceDataset(path, neighbour=1.0)
    ct = {case: read(path, f"CT/{case}") for case in ds.cases}
    mr = {case: read(path, f"MR/{case}") for case in ds.cases}
    for batch in SliceLoader(ds, batch_size=3, shuffle=shuffle, memory_nbytes=1):
        for i, case in enumerate(batch["case"]):
            k = int(batch["slice"][i])
            assert np.array_equal(batch["A"][i, 0].numpy(), mr[case][..., k])
            assert np.array_equal(batch["B"][i, 0].numpy(), ct[case][..., min(k + 1, 4)])


def test_neighbour_draws_belong_to_seed_epoch_and_sample(tmp_path: Path) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=4, shape=(8, 8, 12))
    ds = SliceDataset(path, neighbour=0.5, seed=7)
    ct = {case: read(path, f"CT/{case}") for case in ds.cases}

    def taken(samples: Iterable[dict[str, Any]]) -> dict[int, int]:
        found = {}
        for sample in samples:
            planes = np.moveaxis(ct[sample["case"]], -1, 0)
            k = sample["slice"]
            fits = [np.array_equal(sample["B"][0].numpy(), planes[j]) for j in (k, min(k + 1, 11))]
            assert any(fits)
            found[sample["sample"]] = 0 if fits[0] else 1
        return found

    first = taken(ds.__getitems__(range(len(ds))))
    assert 10 < sum(first.values()) < 38
    assert taken(ds[i] for i in reversed(range(len(ds)))) == first
    ds.set_epoch(1)
    second = taken(ds.__getitems__(range(len(ds))))
    assert second != first
    other = SliceDataset(path, neighbour=0.5, seed=8)
    assert taken(other.__getitems__(range(len(ds)))) != first
    loader = SliceLoader(ds, batch_size=5, seed=3)
    loader.set_epoch(1)
    assert taken(rows(loader)) == second


def test_context_decodes_each_chunk_once_where_a_case_fits(tmp_path: Path) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=3, shape=(16, 16, 20), chunks=(8, 8, 5))
    ds = SliceDataset(path, context=1, neighbour=0.5)
    assert decoded_in_an_epoch(SliceLoader(ds, batch_size=4)) == 3 * 3 * 2 * 2 * 4


def decoded_in_an_epoch(loader: SliceLoader) -> int:
    """Count the chunks that an epoch decodes, whichever thread does so."""
    from hyperslab.engine import stats

    counted = []
    remember = stats.remember
    hs.configure(cache_nbytes=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hyperslab.engine.read.remember", lambda s: (counted.append(s), remember(s)))
        for _ in loader:
            pass
    return sum(s.chunks_decoded for s in counted)


def test_wrong_context_and_neighbour(tmp_path: Path) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=1, shape=(8, 8, 3))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"context": -1}, "0 or more"),
        ({"context": {"Q": 1}}, "names"),
        ({"neighbour": 1.5}, "probability"),
        ({"neighbour": {"Q": 0.5}}, "names"),
        ({"policy": "ignore"}, "policy"),
        ({"scaling": {"M": scaling.ZScore()}}, "a mask"),
        ({"scaling": {"A": scaling.ZScore()}, "dtype": {"A": "int16"}}, "int16"),
        ({"nonempty": "Q"}, "names"),
        ({"pad_value": {"Q": 1}}, "names"),
        ({"crop_or_pad": 0}, "pixels"),
    ]
    for options, told in wrong:
        with pytest.raises(ValueError, match=told):
            SliceDataset(path, **options)


# --- ragged


@pytest.fixture
def ragged(tmp_path: Path) -> str:
    shapes = {"p1": (19, 16, 4), "p2": (21, 18, 7), "p3": (25, 25, 2)}
    data = {}
    for i, (case, shape) in enumerate(shapes.items()):
        data[f"MR/{case}"] = volume(*shape, seed=i)
        data[f"CT/{case}"] = volume(*shape, seed=10 + i)
        data[f"MASK/{case}"] = (volume(*shape, seed=20 + i) > 0).astype("u1")
    return write(tmp_path / "ragged.h5", data)


def fitted(plane: NDArray[Any], size: tuple[int, int], value: float) -> NDArray[Any]:
    """Pad or crop by the stated rule, one axis after the other."""
    for axis, wanted in enumerate(size):
        n = plane.shape[axis]
        before = (abs(wanted - n) + 1) // 2
        if wanted >= n:
            pads = [(0, 0), (0, 0)]
            pads[axis] = (before, wanted - n - before)
            plane = np.pad(plane, pads, constant_values=value)
        else:
            plane = np.take(plane, range(before, before + wanted), axis)
    return plane


@pytest.mark.parametrize("size", [(22, 17), 32, 8])
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_crop_or_pad(size: Any, shuffle: Any, ragged: str) -> None:
    ds = SliceDataset(ragged, crop_or_pad=size, pad_value={"B": -1000})
    wanted = (size, size) if isinstance(size, int) else size
    pads = {"A": -1.0, "B": -1000.0, "M": 0.0}
    stored = {
        (name, case): read(ragged, f"{group}/{case}").astype("f4")
        for name, group in {"A": "MR", "B": "CT", "M": "MASK"}.items()
        for case in ds.cases
    }
    seen = 0
    for batches in (DataLoader(ds, batch_size=4), SliceLoader(ds, batch_size=4, shuffle=shuffle)):
        for batch in batches:
            for i, case in enumerate(batch["case"]):
                for name, value in pads.items():
                    plane = stored[name, case][..., int(batch["slice"][i])]
                    assert np.array_equal(batch[name][i, 0].numpy(), fitted(plane, wanted, value))
                seen += 1
    assert seen == 2 * len(ds)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_buckets_put_like_to_like(shuffle: Any, drop_last: bool, ragged: str) -> None:
    ds = SliceDataset(ragged)
    with pytest.raises(SampleError, match="buckets=True"):
        SliceLoader(ds)
    loader = SliceLoader(
        ds, batch_size=3, shuffle=shuffle, buckets=True, drop_last=drop_last, memory_nbytes=1
    )
    batches = list(loader)
    assert len(batches) == len(loader) == (3 if drop_last else 6)
    seen = []
    for batch in batches:
        assert len(set(batch["case"])) == 1  # the three patients differ
        for i, case in enumerate(batch["case"]):
            expected = read(ragged, f"MR/{case}")[..., int(batch["slice"][i])]
            assert np.array_equal(batch["A"][i, 0].numpy(), expected)
        seen += batch["sample"].tolist()
    assert len(set(seen)) == len(seen) == (9 if drop_last else len(ds))
    for stop in range(len(batches)):  # resumes exactly
        again = SliceLoader(
            ds, batch_size=3, shuffle=shuffle, buckets=True, drop_last=drop_last, memory_nbytes=1
        )
        again.load_state_dict({"seed": 0, "epoch": 0, "batches": stop})
        rest = list(again)
        assert [b["sample"].tolist() for b in rest] == [
            b["sample"].tolist() for b in batches[stop:]
        ]
        assert all(
            torch.equal(x[key], y[key])
            for x, y in zip(rest, batches[stop:], strict=True)
            for key in ("sample", "B")
        )


@pytest.mark.parametrize("uneven", ["pad", "drop"])
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_ranks_get_equally_many_buckets(shuffle: Any, uneven: Any, ragged: str) -> None:
    ds = SliceDataset(ragged)
    for epoch in range(4):
        counts, seen = [], []
        for rank in range(3):
            loader = SliceLoader(
                ds, batch_size=2, shuffle=shuffle, buckets=True, uneven=uneven, rank=rank,
                world_size=3,
            )  # fmt: skip
            loader.set_epoch(epoch)
            batches = list(loader)
            assert len(batches) == len(loader)
            counts.append(len(batches))
            seen += [s for b in batches for s in b["sample"].tolist()]
        assert len(set(counts)) == 1
        assert uneven == "drop" or set(seen) == set(range(len(ds)))
        assert uneven == "pad" or len(set(seen)) == len(seen)


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_rank_with_far_fewer_buckets_repeats_its_last_batch(shuffle: Any, tmp_path: Path) -> None:
    data = {"MR/a": volume(9, 9, 12)} | {f"MR/b{i}": volume(5, 5 + i, 2) for i in range(6)}
    ds = SliceDataset(write(tmp_path / "f.h5", data, chunks=(5, 5, 2)), inputs="MR")
    missing = []
    for epoch in range(6):
        counts, distinct = [], []
        for rank in range(2):
            loader = SliceLoader(
                ds, batch_size=8, shuffle=shuffle, buckets=True, rank=rank, world_size=2
            )
            loader.set_epoch(epoch)
            batches = [tuple(batch["sample"].tolist()) for batch in loader]
            assert len(batches) == len(loader)
            counts.append(len(batches))
            distinct.append(len(set(batches)))
            if distinct[-1] < counts[-1]:
                assert set(batches[distinct[-1] :]) == {batches[distinct[-1] - 1]}
        assert counts[0] == counts[1] == max(distinct)
        missing.append(max(distinct) - min(distinct))
    assert max(missing) > 1


# --- values


def test_empty_slices_are_left_out(tmp_path: Path) -> None:
    mask = np.zeros((6, 6, 9), "u1")
    mask[2, 3, [1, 2, 5]] = 1
    image = volume(6, 6, 9)
    image[..., 5] = -950
    data = {"MR/p1": image, "MR/p2": volume(6, 6, 3, seed=1), "MASK/p1": mask,
            "MASK/p2": np.ones((6, 6, 3), "u1")}  # fmt: skip
    path = write(tmp_path / "f.h5", data, chunks=(6, 6, 2))
    inputs = {"A": "MR", "M": "MASK"}
    ds = SliceDataset(path, inputs=inputs, nonempty="M")
    assert [ds.sample(i) for i in range(len(ds))] == [
        ("p1", 1), ("p1", 2), ("p1", 5), ("p2", 0), ("p2", 1), ("p2", 2),
    ]  # fmt: skip
    both = SliceDataset(path, inputs=inputs, nonempty={"M": 0, "A": -900})
    assert [both.sample(i) for i in range(2)] == [("p1", 1), ("p1", 2)]
    assert both.sample(2) == ("p2", 0)
    part = ds.with_cases(["p2"])
    assert [part.sample(i) for i in range(len(part))] == [("p2", 0), ("p2", 1), ("p2", 2)]
    for shuffle in SHUFFLES:
        loader = SliceLoader(ds, batch_size=2, shuffle=shuffle, memory_nbytes=1)
        seen = []
        for batch in loader:
            for i, case in enumerate(batch["case"]):
                k = int(batch["slice"][i])
                assert np.array_equal(batch["A"][i, 0].numpy(), data[f"MR/{case}"][..., k])
                seen.append((case, k))
        assert sorted(seen) == sorted(ds.sample(i) for i in range(len(ds)))
    with pytest.raises(SampleError, match="no slice is left"):
        SliceDataset(path, inputs=inputs, nonempty={"A": 1e9})


def test_scaling_is_by_case(tmp_path: Path) -> None:
    data = {
        "MR/p1": volume(9, 8, 5),
        "MR/p2": volume(9, 8, 4, seed=1) * 10,
        "CT/p1": volume(9, 8, 5, seed=2, dtype="i2"),
        "CT/p2": volume(9, 8, 4, seed=3, dtype="i2"),
        "PD/p1": volume(9, 8, 5, seed=4),
        "PD/p2": np.full((9, 8, 4), 7, "f4"),
    }
    path = write(tmp_path / "f.h5", data)
    ds = SliceDataset(
        path,
        inputs={"A": "MR", "B": "CT", "P": "PD"},
        scaling={
            "A": scaling.Percentiles(2, 98),
            "B": scaling.Window(-1000, 1500, out=(0, 1)),
            "P": scaling.ZScore(),
        },
    )
    for samples in (ds.__getitems__(range(len(ds))), rows(SliceLoader(ds, batch_size=4))):
        for sample in samples:
            case, k = sample["case"], sample["slice"]
            mr, ct, pd = (data[f"{g}/{case}"].astype("f8") for g in ("MR", "CT", "PD"))
            lo, hi = np.percentile(mr, [2, 98])
            expected = np.clip((mr[..., k] - lo) / (hi - lo) * 2 - 1, -1, 1)
            np.testing.assert_allclose(sample["A"][0].numpy(), expected, atol=1e-5)
            expected = np.clip((ct[..., k] + 1000) / 2500, 0, 1)
            np.testing.assert_allclose(sample["B"][0].numpy(), expected, atol=1e-6)
            spread = pd.std()
            expected = (pd[..., k] - pd.mean()) / spread if spread else 0 * pd[..., k]
            np.testing.assert_allclose(sample["P"][0].numpy(), expected, atol=1e-5)
    constants = ds.constants("A")["p2"]
    back = scaling.invert(ds[6]["A"], constants)
    inside = (ds[6]["A"] > -1) & (ds[6]["A"] < 1)
    original = torch.from_numpy(data["MR/p2"][..., 1])[None]
    assert torch.allclose(back[inside], original[inside], rtol=1e-4, atol=0.1)
    with pytest.raises(ValueError, match="not scaled"):
        SliceDataset(path, inputs={"A": "MR"}).constants("A")


def rows(loader: SliceLoader) -> list[dict[str, Any]]:
    found = []
    for batch in loader:
        for i in range(len(batch["case"])):
            row = {name: value[i] for name, value in batch.items()}
            found.append(row | {name: int(row[name]) for name in ("slice", "sample")})
    return found


def test_facts_are_found_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=2, shape=(16, 16, 6))
    options: dict[str, Any] = {
        "scaling": {"A": scaling.Percentiles()},
        "nonempty": "M",
        "facts": tmp_path / "facts",
    }
    first = SliceDataset(path, **options)

    def no_read(*args: object, **kwargs: object) -> None:
        raise AssertionError("what is known was read again")

    monkeypatch.setattr("hyperslab.array.read", no_read)
    second = SliceDataset(path, **options)
    assert second.constants("A") == first.constants("A")
    assert len(second) == len(first)


def test_spacing_where_it_is_known(tmp_path: Path) -> None:
    path = write(tmp_path / "f.h5", {"MR/p1": volume(3, 4, 5), "MR/p2": volume(3, 4, 6)})
    assert "spacing" not in SliceDataset(path, inputs="MR")[0]
    with h5py.File(path, "a") as h5:
        h5["MR/p1"].attrs["spacing"] = [1.0, 2.0, 3.0]
    assert "spacing" not in SliceDataset(path, inputs="MR")[0]  # not of every case
    with h5py.File(path, "a") as h5:
        h5["MR/p2"].attrs["element_size_um"] = np.array([4, 5, 6], "f4")
    ds = SliceDataset(path, inputs="MR", axis=0)
    assert ds[0]["spacing"].tolist() == [2, 3, 1]  # along H, W and the slice axis
    assert ds[3]["spacing"].tolist() == [5, 6, 4]
    batch = next(iter(SliceLoader(ds.with_cases("p2"), batch_size=2)))
    assert batch["spacing"].tolist() == [[5, 6, 4]] * 2


# --- damage


def test_a_truncated_file_loses_the_cases_that_are_gone(tmp_path: Path) -> None:
    path = str(tmp_path / "c.h5")
    made = make_cohort(path, n_cases=8, shape=(48, 48, 16))
    stored = {
        n: read(path, n) for g in ("MR", "CT", "MASK") for n in (f"{g}/{c}" for c in made["cases"])
    }
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(NotHDF5Error, match="truncated"):
        SliceDataset(path)
    with pytest.warns(DamagedCaseWarning, match="left out"):
        ds = SliceDataset(path, policy="skip")
    assert 0 < len(ds.cases) < 8
    assert len(ds.cases) + len(ds.skipped) == 8
    assert {s.case for s in ds.skipped} | set(ds.cases) == set(made["cases"])
    assert all(s.file == path and s.reason for s in ds.skipped)
    assert f"{len(ds.skipped)} left out" in repr(ds)
    copied = pickle.loads(pickle.dumps(ds))
    for sample in [*ds.__getitems__(range(len(ds))), copied[0], copied[len(ds) - 1]]:
        for name, group in {"A": "MR", "B": "CT", "M": "MASK"}.items():
            expected = stored[f"{group}/{sample['case']}"][..., sample["slice"]]
            assert np.array_equal(sample[name][0].numpy(), expected)


def test_truncated_files_of_patients(tmp_path: Path) -> None:
    patients(tmp_path, 4, compression="gzip")
    (tmp_path / "p8.h5").write_bytes(b"")
    os.truncate(tmp_path / "p10.h5", os.path.getsize(tmp_path / "p10.h5") - 300)
    with pytest.warns(DamagedCaseWarning, match="2 left out"):
        ds = SliceDataset(tmp_path / "*.h5", inputs=AB, policy="skip")
    assert ds.cases == ("p9", "p11")
    assert [s.case for s in ds.skipped] == ["p8", "p10"]


@pytest.mark.parametrize("n", [1, 2])
def test_a_chunk_that_does_not_decode(n: int, tmp_path: Path) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=n + 1, shape=(16, 16, 8))
    with h5py.File(path) as h5:
        at = h5["CT/1PB002"].id.get_chunk_info(0)
    with open(path, "r+b") as stream:
        stream.seek(at.byte_offset)
        stream.write(bytes(at.size))
    ds = SliceDataset(path)
    with pytest.raises(DamagedFileError, match=r"case '1PB002'.*policy='skip'"):
        ds.__getitems__(range(len(ds)))
    with pytest.raises(DamagedFileError, match="1PB002"):
        SliceDataset(path, scaling={"B": scaling.ZScore()})
    with pytest.warns(DamagedCaseWarning, match="1PB002"):
        left = SliceDataset(path, policy="skip")
    assert "1PB002" not in left.cases
    assert len(left.__getitems__(range(len(left)))) == 8 * n
    assert left.skipped[0].case == "1PB002"


def test_skipping_tells_what_does_not_pair_up(tmp_path: Path) -> None:
    data = {
        "MR/p1": volume(4, 4, 2),
        "CT/p1": volume(4, 4, 2),
        "MR/p2": volume(4, 4, 2),
        "MR/p3": volume(4, 4, 2),
        "CT/p3": volume(4, 5, 2),
    }
    path = write(tmp_path / "f.h5", data)
    with pytest.warns(DamagedCaseWarning):
        ds = SliceDataset(path, inputs=AB, policy="skip")
    assert ds.cases == ("p1",)
    reasons = {s.case: s.reason for s in ds.skipped}
    assert "not in input B" in reasons["p2"]
    assert "differ" in reasons["p3"]
    with pytest.raises(SampleError, match="there are no cases"):
        SliceDataset(path, inputs=AB, policy="skip", cases=["p2", "p3"])


def test_nothing_is_skipped_where_all_is_well(tmp_path: Path) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=2, shape=(8, 8, 3))
    assert SliceDataset(path, policy="skip").skipped == ()


# --- caches


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_cache_is_filled_while_training(shuffle: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=3, shape=(32, 32, 11), chunks=(16, 16, 4))
    plain = SliceDataset(path)
    ds = SliceDataset(path, cache=tmp_path / "decoded")
    loader = SliceLoader(ds, batch_size=4, shuffle=shuffle)
    n_chunks = 3 * 3 * 2 * 2 * 3
    assert decoded_in_an_epoch(loader) == n_chunks
    loader.set_epoch(1)
    assert decoded_in_an_epoch(loader) == 0
    for row in rows(loader):
        expected = plain[row["sample"]]
        assert all(torch.equal(row[name], expected[name]) for name in "ABM")
    other = SliceDataset(path, cache=tmp_path / "decoded")
    assert decoded_in_an_epoch(SliceLoader(other, batch_size=4, shuffle=shuffle)) == 0


def test_the_cache_does_not_change_the_order(tmp_path: Path) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=3, shape=(32, 32, 11), chunks=(16, 16, 4))
    cached = SliceDataset(path, cache=tmp_path / "decoded")
    cached.preload(progress=False)
    order = [b["sample"].tolist() for b in SliceLoader(SliceDataset(path), memory_nbytes=1)]
    assert [b["sample"].tolist() for b in SliceLoader(cached, memory_nbytes=1)] == order


def test_preload_says_what_does_not_fit(tmp_path: Path) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=3, shape=(32, 32, 11))
    with pytest.raises(ValueError, match="no cache"):
        SliceDataset(path).preload()
    ds = SliceDataset(path, cache=tmp_path / "decoded", cache_nbytes=100_000)
    with pytest.raises(CapacityError, match="budget"):
        ds.preload(progress=False)
    assert not list((tmp_path / "decoded").glob("*.npy"))
    assert len(rows(SliceLoader(ds, batch_size=4))) == len(ds)  # what fits is kept, and all is read
    kept = list((tmp_path / "decoded").glob("*.npy"))
    assert 0 < sum(f.stat().st_size for f in kept) <= 100_000


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_cached_copy_that_was_deleted_is_read_from_the_source(
    shuffle: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=2, shape=(16, 16, 6))
    ds = SliceDataset(path, cache=tmp_path / "decoded")
    loader = SliceLoader(ds, batch_size=4, shuffle=shuffle)
    first = {r["sample"]: r["A"].clone() for r in rows(loader)}
    for kept in (tmp_path / "decoded").glob("*.npy"):
        kept.unlink()
    again = {r["sample"]: r["A"].clone() for r in rows(loader)}
    assert first.keys() == again.keys()
    assert all(torch.equal(first[i], again[i]) for i in first)


# --- kept index


def visits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record every visit to the HDF5 library from now on."""
    from hyperslab.index import container, session

    seen: list[str] = []
    original: Callable[..., Any] = session.session

    def recorded(path: str, **options: Any) -> Any:
        seen.append(path)
        return original(path, **options)

    monkeypatch.setattr(container, "session", recorded)
    return seen


@pytest.mark.parametrize("keep", ["beside", "folder"])
@pytest.mark.parametrize("many", [False, True])
def test_a_kept_index_spares_the_library(
    keep: str, many: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if many:
        patients(tmp_path / "data", 4)
        path: Any = tmp_path / "data" / "*.h5"
        options: dict[str, Any] = {"inputs": AB}
    else:
        path, options = tmp_path / "c.h5", {}
        make_cohort(path, n_cases=3, shape=(16, 16, 6))
    options["keep_index"] = tmp_path / "kept" if keep == "folder" else "beside"
    first = SliceDataset(path, **options)
    expected = first.__getitems__(range(len(first)))
    seen = visits(monkeypatch)
    second = SliceDataset(path, **options)
    samples = second.__getitems__(range(len(second)))
    copied = pickle.loads(pickle.dumps(second))
    samples += [copied[0]]
    assert seen == []
    assert second.cases == first.cases
    for sample, wanted in zip(samples, [*expected, expected[0]], strict=True):
        assert sample.keys() == wanted.keys()
        assert all(torch.equal(sample[name], wanted[name]) for name in first.inputs)
    SliceDataset(path, **{**options, "cases": first.cases[:1]})
    assert seen != []  # another request


def test_a_changed_file_is_indexed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patients(tmp_path, 3)
    options: dict[str, Any] = {"inputs": AB, "keep_index": "beside"}
    SliceDataset(tmp_path / "*.h5", **options)
    changed = {"MR": volume(12, 10, 9, seed=50), "CT": volume(12, 10, 9, seed=51)}
    write(tmp_path / "p9.h5", changed)
    ds = SliceDataset(tmp_path / "*.h5", **options)
    assert len(ds) == 4 + 9 + 6
    assert np.array_equal(ds[12]["A"][0].numpy(), changed["MR"][..., 8])
    seen = visits(monkeypatch)
    assert len(SliceDataset(tmp_path / "*.h5", **options)) == len(ds)
    assert seen == []


def test_an_index_of_sound_and_damaged_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patients(tmp_path, 4)
    good = (tmp_path / "p10.h5").read_bytes()
    (tmp_path / "p10.h5").write_bytes(b"not any more")
    options: dict[str, Any] = {"inputs": AB, "keep_index": "beside", "policy": "skip"}
    with pytest.warns(DamagedCaseWarning, match="p10"):
        first = SliceDataset(tmp_path / "*.h5", **options)
    seen = visits(monkeypatch)
    with pytest.warns(DamagedCaseWarning, match="p10"):
        second = SliceDataset(tmp_path / "*.h5", **options)
    assert seen == []
    assert second.cases == first.cases == ("p8", "p9", "p11")
    assert second.skipped == first.skipped
    assert torch.equal(second[4]["B"], first[4]["B"])
    (tmp_path / "p10.h5").write_bytes(good)
    assert SliceDataset(tmp_path / "*.h5", **options).cases == ("p8", "p9", "p10", "p11")


def test_parts_have_epochs_of_their_own(tmp_path: Path) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=2, shape=(8, 8, 20))
    ds = SliceDataset(path, neighbour=0.5, transform=T.Compose([T.RandomFlip()]))
    train, val = ds.with_cases(ds.cases[0]), ds.with_cases(ds.cases[1])
    train.set_epoch(3)
    expected = [train[i]["B"] for i in range(20)]
    val.set_epoch(0)
    list(SliceLoader(val, batch_size=4))
    assert (train.epoch, val.epoch, ds.epoch) == (3, 0, 0)
    assert all(torch.equal(train[i]["B"], expected[i]) for i in range(20))


class Doubled(SliceDataset):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return double(super().__getitem__(index))


def test_the_loader_refuses_an_overridden_getitem(tmp_path: Path) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=1, shape=(8, 8, 3))
    with pytest.raises(ValueError, match="overrides __getitem__"):
        SliceLoader(Doubled(path))


def test_an_index_that_cannot_be_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=1, shape=(8, 8, 3))
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(PerformanceWarning, match="cannot be kept"):
        ds = SliceDataset(path, keep_index=tmp_path / "file")
    assert len(ds) == 3


# --- transforms of samples


def test_a_transform_of_ours_is_the_same_by_sample_and_by_batch(tmp_path: Path) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=2, shape=(24, 24, 7))
    augment = T.Compose([T.RandomFlip(), T.RandomRotate90(), T.RandomCrop(16)], seed=5)
    ds = SliceDataset(path, transform=augment)
    ds.set_epoch(3)
    single = {i: ds[i] for i in range(len(ds))}
    loader = SliceLoader(ds, batch_size=4)
    loader.set_epoch(3)
    for row in rows(loader):
        for name in "ABM":
            assert torch.equal(row[name], single[row["sample"]][name])
    outside = SliceLoader(SliceDataset(path), batch_size=4, transforms=augment)
    outside.set_epoch(3)
    for row in rows(outside):
        assert torch.equal(row["B"], single[row["sample"]]["B"])


def test_a_transform_that_may_disturb_the_model_is_refused_by_threads(tmp_path: Path) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=1, shape=(8, 8, 3))
    ds = SliceDataset(path, transform=double)
    assert torch.equal(ds[1]["A"], 2 * SliceDataset(path)[1]["A"])
    with pytest.raises(ValueError, match="DataLoader"):
        SliceLoader(ds)


def double(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"A": 2 * sample["A"]}


# --- batches


@pytest.mark.parametrize("transforms", [None, T.Compose([T.RandomFlip(), T.RandomCrop(32)])])
def test_memory_of_a_batch_is_used_again_only_when_it_is_free(
    transforms: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=2, shape=(64, 64, 20))
    loader = SliceLoader(SliceDataset(path), batch_size=4, transforms=transforms)
    kept = list(loader)
    held = {b["A"].untyped_storage().data_ptr() for b in kept}
    assert len(held) == len(kept)
    copies = [b["A"].clone() for b in kept]
    for batch in loader:  # another epoch, whose batches are dropped
        assert batch["A"].untyped_storage().data_ptr() not in held
    assert all(torch.equal(b["A"], c) for b, c in zip(kept, copies, strict=True))
    view = kept[0]["B"][0, 0, :1]
    expected = view.clone()
    del kept, batch
    seen = [b["A"].untyped_storage().data_ptr() for b in loader]
    assert len(set(seen)) < len(seen)
    assert torch.equal(view, expected)


def test_batches_go_to_a_device(tmp_path: Path) -> None:
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=1, shape=(8, 8, 4))
    batches = list(SliceLoader(SliceDataset(path), batch_size=3, device="meta"))
    assert [b["A"].shape for b in batches] == [(3, 1, 8, 8), (1, 1, 8, 8)]
    assert all(b["A"].device.type == "meta" and b["sample"].device.type == "meta" for b in batches)
    assert len(batches[0]["case"]) == 3
