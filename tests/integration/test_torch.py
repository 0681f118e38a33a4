"""Slices of a cohort for PyTorch: equal to h5py's, whichever process reads them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import hyperslab as hs
from hyperslab.engine.limits import limits
from hyperslab.errors import (
    ChunkDecodeError,
    MissingFileError,
    SampleError,
    SelectionError,
    StaleIndexError,
    UnsupportedDtypeError,
)
from hyperslab.testing import make_cohort
from hyperslab.torch import SliceDataset

INPUTS = {"A": "MR", "B": "CT", "M": "MASK"}
CHUNKS = (16, 20, 5)
SHAPE = (32, 40, 12)  # two by two chunks a slab; slabs of 5, 5 and 2 slices
METHODS = multiprocessing.get_all_start_methods()


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Six patients with MR, CT and MASK (case C2), 12 slices each."""
    path = tmp_path_factory.mktemp("cohort") / "cohort.h5"
    return str(make_cohort(path, n_cases=6, shape=SHAPE, chunks=CHUNKS)["path"])


def write(path: Path, datasets: dict[str, Any], **options: Any) -> Path:
    with h5py.File(path, "w") as h5:
        for name, data in datasets.items():
            h5.create_dataset(name, data=data, **options)
    return path


def volume(*shape: int, dtype: str = "f4", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)


def oracle(path: str | Path, inputs: dict[str, str], axis: int) -> Iterator[tuple[Any, ...]]:
    """Yield case, slice and the float32 planes of every sample, as h5py reads them."""
    with h5py.File(path, "r") as h5:
        for case in sorted(h5[next(iter(inputs.values()))]):  # all names here are of one length
            volumes = [h5[f"{group}/{case}"][()] for group in inputs.values()]
            for k in range(volumes[0].shape[axis]):
                yield case, k, [v.take(k, axis).astype("f4") for v in volumes]


def as_bytes(path: str | Path, axis: int = -1) -> Counter[tuple[Any, ...]]:
    return Counter(
        (case, k, *(plane.tobytes() for plane in planes))
        for case, k, planes in oracle(path, INPUTS, axis)
    )


def drain(loader: DataLoader[Any]) -> Counter[tuple[Any, ...]]:
    """Run one epoch; count (case, slice, bytes of every input)."""
    found: Counter[tuple[Any, ...]] = Counter()
    for batch in loader:
        for i, (case, k) in enumerate(zip(batch["case"], batch["slice"].tolist(), strict=True)):
            found[case, k, *(batch[name][i].numpy().tobytes() for name in INPUTS)] += 1
    return found


# --- what a sample is


@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
def test_every_sample_equals_h5py(cohort: str, axis: int) -> None:
    ds = SliceDataset(cohort, inputs=INPUTS, axis=axis)
    expected = list(oracle(cohort, INPUTS, axis))
    assert len(ds) == len(expected) == 6 * SHAPE[axis]
    together = ds.__getitems__(range(len(ds)))
    for i, (case, k, planes) in enumerate(expected):
        assert ds.sample(i) == (case, k)
        for sample in (ds[i], together[i]):
            assert list(sample) == ["A", "B", "M", "case", "slice", "sample"]
            assert (sample["case"], sample["slice"]) == (case, k)
            for name, plane in zip(INPUTS, planes, strict=True):
                assert sample[name].dtype == torch.float32
                assert sample[name].shape == (1, *plane.shape)
                np.testing.assert_array_equal(sample[name].numpy()[0], plane)


def test_a_mask_keeps_its_labels(cohort: str) -> None:
    ds = SliceDataset(cohort, inputs=INPUTS)
    labels = torch.cat([s["M"].unique() for s in ds.__getitems__(range(len(ds)))]).unique()
    assert labels.tolist() == [0.0, 1.0]


def test_defaults_are_those_of_a_cohort(cohort: str) -> None:
    ds = SliceDataset(Path(cohort))
    assert (ds.path, ds.axis) == (cohort, 2)
    assert ds.inputs == {"A": "/MR", "B": "/CT", "M": "/MASK"}
    assert ds.cases == ("1PA001", "1PA004", "1PB002", "1PB005", "1PC003", "1PC006")
    assert repr(ds) == (
        f"<SliceDataset {cohort!r}: 72 slices (axis 2) of 6 cases, A=/MR, B=/CT, M=/MASK>"
    )


@pytest.mark.parametrize(
    ("inputs", "names"),
    [("MR", ["MR"]), (["CT", "/MR/"], ["CT", "/MR/"]), ({"x": "MASK", "y": "MASK"}, ["x", "y"])],
)
def test_inputs_by_group_alone(cohort: str, inputs: Any, names: list[str]) -> None:
    sample = SliceDataset(cohort, inputs=inputs)[5]
    assert list(sample) == [*names, "case", "slice", "sample"]
    with h5py.File(cohort, "r") as h5:
        for name in names:
            group = inputs[name] if isinstance(inputs, dict) else name
            np.testing.assert_array_equal(sample[name][0], h5[group]["1PA001"][..., 5])


def test_inputs_in_the_root_and_deep_down(tmp_path: Path) -> None:
    data = {"p1": volume(3, 4, 5), "deep/er/p1": volume(3, 4, 5, seed=1)}
    path = write(tmp_path / "f.h5", data)
    sample = SliceDataset(path, inputs={"A": "/", "B": "deep/er"})[2]
    np.testing.assert_array_equal(sample["A"][0], data["p1"][..., 2])
    np.testing.assert_array_equal(sample["B"][0], data["deep/er/p1"][..., 2])


def test_foreign_byte_order(tmp_path: Path) -> None:
    """Case C22: big-endian floats and integers come in native order."""
    data = {
        "MR/p1": volume(8, 6, 4).astype(">f4") / 7,
        "CT/p1": (volume(8, 6, 4, seed=1) - 50).astype(">i2"),
    }
    path = write(tmp_path / "big.h5", data, compression="gzip", shuffle=True)
    inputs = {"A": "MR", "B": "CT"}
    for dtype, expected in (("float32", ("f4", "f4")), (None, ("=f4", "=i2"))):
        ds = SliceDataset(path, inputs=inputs, dtype=dtype)
        for k, sample in enumerate(ds.__getitems__(range(4))):
            for (name, group), native in zip(inputs.items(), expected, strict=True):
                plane = sample[name].numpy()[0]
                assert plane.dtype == np.dtype(native)
                assert plane.dtype.isnative
                np.testing.assert_array_equal(plane, data[f"{group}/p1"][..., k])


# --- dtype


def test_dtype_of_each_input(cohort: str) -> None:
    plain = SliceDataset(cohort)[7]
    for dtype, wanted in [
        ({"M": torch.int64}, (torch.float32, torch.float32, torch.int64)),
        ({"M": "bool", "A": np.float16}, (torch.float16, torch.float32, torch.bool)),
        (None, (torch.float32, torch.float32, torch.uint8)),
        ({"M": None}, (torch.float32, torch.float32, torch.uint8)),
        (torch.float64, (torch.float64,) * 3),
    ]:
        sample = SliceDataset(cohort, dtype=dtype)[7]
        for name, expected in zip(INPUTS, wanted, strict=True):
            assert sample[name].dtype == expected
            assert torch.equal(sample[name], plain[name].to(expected))


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [
        (np.array([3, 300], "i4"), "uint8"),
        (np.array([3, -1], "i1"), "uint8"),
        (np.array([3, 2**63], "u8"), "int64"),
        (np.array([3, 0.5], "f4"), "int64"),
        (np.array([3, np.nan], "f4"), "int32"),
    ],
)
def test_an_integer_dtype_is_exact_or_an_error(tmp_path: Path, stored: Any, dtype: str) -> None:
    data = np.full((4, 5, 2), stored[0])
    data[3, 1, 1] = stored[1]
    path = write(tmp_path / "f.h5", {"L/p1": data})
    ds = SliceDataset(path, inputs="L", dtype=dtype)
    assert ds[0]["L"].unique().tolist() == [3]
    with pytest.raises(SampleError, match=rf"case 'p1', slice 1 holds the value {stored[1]}"):
        ds.__getitems__([0, 1])


def test_dtypes_that_cannot_be(cohort: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="NumPy and PyTorch share"):
        SliceDataset(cohort, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="NumPy and PyTorch share"):
        SliceDataset(cohort, dtype="datetime64[s]")
    with pytest.raises(ValueError, match=r"dtype names \['mask'\]"):
        SliceDataset(cohort, dtype={"mask": "uint8"})
    path = write(
        tmp_path / "f.h5", {"K/p1": volume(3, 4, 5) * 1j, "L/p1": volume(3, 4, 5, dtype="g")}
    )
    with pytest.raises(SampleError, match=r"/K/p1 holds complex.* imaginary"):
        SliceDataset(path, inputs="K")
    assert SliceDataset(path, inputs="K", dtype="complex64")[0]["K"].dtype == torch.complex64
    with pytest.raises(SampleError, match="PyTorch has no such dtype"):
        SliceDataset(path, inputs="L", dtype=None)


# --- cases


def test_cases_are_in_natural_order(tmp_path: Path) -> None:
    names = ["p10", "p9", "p100", "q", "p09", "2", "10", "P1"]
    path = write(tmp_path / "f.h5", {f"MR/{name}": volume(2, 3, 2) for name in names})
    ds = SliceDataset(path, inputs="MR")
    assert ds.cases == ("2", "10", "P1", "p09", "p9", "p10", "p100", "q")
    assert [ds.sample(i) for i in range(3)] == [("2", 0), ("2", 1), ("10", 0)]
    chosen = SliceDataset(path, inputs="MR", cases={"p100", "2", "p9"})
    assert chosen.cases == ("2", "p9", "p100")
    assert len(chosen) == 6
    assert SliceDataset(path, inputs="MR", cases="q").cases == ("q",)


def test_cases_that_were_not_chosen_may_be_odd(tmp_path: Path) -> None:
    data = {"MR/p1": volume(2, 3, 2), "MR/p2": volume(2, 3), "MR/note": "scanned in May"}
    path = write(tmp_path / "f.h5", data)
    assert len(SliceDataset(path, inputs="MR", cases=["p1"])) == 2
    with pytest.raises(UnsupportedDtypeError, match="note has strings"):
        SliceDataset(path, inputs="MR")


def test_ragged_cases(tmp_path: Path) -> None:
    """H, W and the number of slices may differ; stacking is then the caller's business."""
    facts = make_cohort(tmp_path / "r.h5", n_cases=3, shape=(24, 20, 4), ragged=True)
    ds = SliceDataset(facts["path"])
    expected = list(oracle(facts["path"], INPUTS, -1))
    assert len({planes[0].shape for _, _, planes in expected}) == 3
    order = np.random.default_rng(0).permutation(len(ds)).tolist()
    for i, sample in zip(order, ds.__getitems__(order), strict=True):
        case, k, planes = expected[i]
        assert (sample["case"], sample["slice"]) == (case, k)
        for name, plane in zip(INPUTS, planes, strict=True):
            np.testing.assert_array_equal(sample[name][0], plane)


# --- indices


def test_indices(cohort: str) -> None:
    ds = SliceDataset(cohort)
    assert ds.sample(-1) == ds.sample(71) == ("1PC006", 11)
    assert torch.equal(ds[-1]["A"], ds[np.int64(71)]["A"])
    assert torch.equal(ds[torch.tensor(3)]["A"], ds[3]["A"])
    for bad in (72, -73):
        with pytest.raises(IndexError, match=f"no sample {bad}; the dataset has 72"):
            ds[bad]
        with pytest.raises(SelectionError):
            ds.__getitems__([0, bad])
    with pytest.raises(TypeError, match="integer, not slice"):
        ds[0:3]  # type: ignore[index]
    assert ds.__getitems__([]) == []
    few = SliceDataset(cohort, inputs="MR", cases="1PC003")
    assert [sample["slice"] for sample in few] == list(range(12))


def test_repeated_and_negative_indices(cohort: str) -> None:
    ds = SliceDataset(cohort)
    indices = [5, -67, 40, 5]
    for i, sample in zip(indices, ds.__getitems__(indices), strict=True):
        assert (sample["case"], sample["slice"]) == ds.sample(i)
        assert all(torch.equal(sample[name], ds[i][name]) for name in INPUTS)


# --- one plan for a batch


def test_a_batch_decodes_each_chunk_once(tmp_path: Path) -> None:
    facts = make_cohort(tmp_path / "c.h5", n_cases=2, shape=SHAPE, chunks=CHUNKS)
    ds = SliceDataset(facts["path"])
    ds.__getitems__([7, 1, 3, 0, 1, 2])  # first slab and one slice of the second, of one case
    assert hs.last_stats().chunks_decoded == 3 * 2 * (2 * 2)
    assert hs.last_stats().chunks_cached == 0
    ds.__getitems__([12, 13])  # the second case
    assert hs.last_stats().chunks_decoded == 3 * (2 * 2)


def test_subset_reads_by_one_plan(tmp_path: Path) -> None:
    facts = make_cohort(tmp_path / "c.h5", n_cases=2, shape=SHAPE, chunks=CHUNKS)
    subset = Subset(SliceDataset(facts["path"]), [16, 14, 12])
    (batch,) = DataLoader(subset, batch_size=3)
    assert hs.last_stats().chunks_decoded == 3 * (2 * 2)
    assert batch["A"].shape == (3, 1, 32, 40)
    assert batch["case"] == ["1PB002"] * 3
    assert batch["slice"].tolist() == [4, 2, 0]


class Negative(SliceDataset):
    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        return {**sample, "A": -sample["A"]}


def test_an_override_holds_for_batches_too(cohort: str) -> None:
    (batch,) = DataLoader(Negative(cohort, cases="1PA001"), batch_size=12)
    with h5py.File(cohort, "r") as h5:
        expected = np.moveaxis(h5["MR/1PA001"][()], -1, 0)
    np.testing.assert_array_equal(batch["A"][:, 0], -expected)


# --- processes


def test_main_process_reads_every_sample(cohort: str) -> None:
    ds = SliceDataset(cohort)
    assert drain(DataLoader(ds, batch_size=5, shuffle=True)) == as_bytes(cohort)


@pytest.mark.parametrize("n_workers", [1, 4])
@pytest.mark.parametrize("method", METHODS)
def test_workers_read_the_same_bytes(cohort: str, method: str, n_workers: int) -> None:
    """Case C2: identical samples, however workers start, though the parent has read before."""
    ds = SliceDataset(cohort)
    assert len(ds) == 72
    assert ds[0]["case"] == ds.cases[0]
    assert hs.open(cohort)["MR/1PA001"].attrs == {}
    loader = DataLoader(
        ds, batch_size=5, shuffle=True, num_workers=n_workers, multiprocessing_context=method
    )
    assert drain(loader) == as_bytes(cohort)


def test_no_hdf5_handle_is_kept(cohort: str) -> None:
    before = h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_ALL)
    ds = SliceDataset(cohort)
    ds.__getitems__(range(len(ds)))
    assert h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_ALL) == before


class Recorder(pickle.Unpickler):
    """An unpickler that keeps the modules of what it makes."""

    modules: set[str]

    def find_class(self, module: str, name: str) -> Any:
        self.modules.add(module.partition(".")[0])
        return super().find_class(module, name)


def test_pickle_is_small_and_holds_no_handle(tmp_path: Path) -> None:
    path = tmp_path / "many.h5"
    data = np.arange(2 * 2 * 200, dtype="i2").reshape(2, 2, 200)
    with h5py.File(path, "w", libver="latest") as h5:
        for i in range(1000):
            for group in ("MR", "CT", "MASK"):
                h5[f"{group}/patient_{i:04d}_baseline"] = data
    ds = SliceDataset(path)
    assert len(ds) == 200_000
    original = ds[199_999]
    pickled = pickle.dumps(ds)
    assert len(pickled) < 100_000
    with open(tmp_path / "ds.pickle", "wb") as stream:
        stream.write(pickled)
    with open(tmp_path / "ds.pickle", "rb") as stream:
        recorder = Recorder(stream)
        recorder.modules = set()
        twin = recorder.load()
    assert recorder.modules <= {"hyperslab", "numpy", "builtins", "copyreg"}
    assert (len(twin), twin.cases, twin.sample(12_345)) == (len(ds), ds.cases, ds.sample(12_345))
    assert torch.equal(twin[199_999]["B"], original["B"])
    assert twin[199_999]["slice"] == 199


def test_workers_share_the_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "fork" not in METHODS:
        pytest.skip("only a forked worker has the limits that are set here")
    facts = make_cohort(tmp_path / "c.h5", n_cases=6, shape=(64, 64, 24), chunks=(16, 16, 8))
    monkeypatch.setattr("hyperslab.torch.dataset.available_cpus", lambda: 8)
    monkeypatch.setattr(limits, "threads", 8)

    def threads(n_workers: int) -> set[int]:
        loader = DataLoader(
            SliceDataset(facts["path"]),
            batch_size=48,
            num_workers=n_workers,
            multiprocessing_context="fork" if n_workers else None,
            collate_fn=lambda samples: hs.last_stats().threads,
        )
        return set(loader)

    assert threads(0) == {8}
    assert threads(2) == {4}
    monkeypatch.setattr(limits, "threads", 3)
    assert threads(2) == {3}


# --- files that change, or are damaged


def test_a_changed_file_is_an_error(tmp_path: Path) -> None:
    path = Path(make_cohort(tmp_path / "c.h5", n_cases=1, shape=(8, 8, 3))["path"])
    ds = SliceDataset(path)
    ds[0]
    pickled = pickle.dumps(ds)
    make_cohort(path, n_cases=1, shape=(8, 8, 3), seed=1)
    os.utime(path, ns=(1, 1))  # two writes may come within one tick of the file system's clock
    with pytest.raises(StaleIndexError, match="changed"):
        ds[1]
    with pytest.raises(StaleIndexError, match="Make a new SliceDataset"):
        pickle.loads(pickled)[0]
    assert torch.equal(SliceDataset(path)[0]["M"], SliceDataset(path)[0]["M"])


@pytest.mark.parametrize("n_workers", [0, 1])
def test_damage_names_the_samples(tmp_path: Path, n_workers: int) -> None:
    path = Path(make_cohort(tmp_path / "c.h5", n_cases=3, shape=SHAPE, chunks=CHUNKS)["path"])
    with h5py.File(path, "r") as h5:
        info = h5["CT/1PB002"].id.get_chunk_info_by_coord((16, 0, 5))
    with path.open("r+b") as stream:
        stream.seek(info.byte_offset)
        stream.write(b"\xff" * info.size)
    ds = SliceDataset(path)
    sound = [i for i in range(len(ds)) if not 12 + 5 <= i < 12 + 10]
    assert len(ds.__getitems__(sound)) == 36 - 5
    loader = DataLoader(
        ds,
        batch_size=36,
        num_workers=n_workers,
        multiprocessing_context=METHODS[0] if n_workers else None,
    )
    told = r"CT/1PB002(.|\n)*\(1, 0, 1\)(.|\n)*slices 5 to 9 of case '1PB002'"
    batches = iter(loader)
    with pytest.raises(ChunkDecodeError, match=told) as caught:
        next(batches)
    assert list(batches) == []  # or the worker is waited for, for five seconds
    if not n_workers:  # a DataLoader hands on a worker's message, without the attributes
        assert caught.value.samples == tuple(("1PB002", k) for k in range(5, 10))
        assert caught.value.byte_offset == info.byte_offset
        assert pickle.loads(pickle.dumps(caught.value)).samples == caught.value.samples


def test_damage_in_a_source_names_the_samples_of_the_batch(tmp_path: Path) -> None:
    data = volume(8, 6, 4)
    source = write(tmp_path / "source.h5", {"v": data}, chunks=(8, 6, 2), compression="gzip")
    with h5py.File(tmp_path / "f.h5", "w") as h5:
        layout = h5py.VirtualLayout((8, 6, 4), "f4")
        layout[...] = h5py.VirtualSource("source.h5", "v", (8, 6, 4))
        h5.create_virtual_dataset("MR/p1", layout)
    with h5py.File(source, "r") as h5:
        info = h5["v"].id.get_chunk_info(1)
    with source.open("r+b") as stream:
        stream.seek(info.byte_offset)
        stream.write(b"\xff" * info.size)
    ds = SliceDataset(tmp_path / "f.h5", inputs="MR")
    np.testing.assert_array_equal(ds[1]["MR"][0], data[..., 1])
    with pytest.raises(
        ChunkDecodeError, match=r"source\.h5.*one or more of slice 1 of.*slice 3"
    ) as e:
        ds.__getitems__([1, 3])
    assert e.value.samples == (("p1", 1), ("p1", 3))


# --- cohorts that do not pair up


def test_no_such_group(cohort: str) -> None:
    with pytest.raises(
        SampleError, match=r"no group /PET for input 'P'.*/ holds CT \(group\)"
    ) as e:
        SliceDataset(cohort, inputs={"A": "MR", "P": "PET"})
    assert (e.value.file, e.value.inputs) == (cohort, ("P",))
    with pytest.raises(
        SampleError, match=r"/MR holds 1PA001 \(dataset\), .* MASK|/MR holds 1PA001"
    ):
        SliceDataset(cohort, inputs="MR/deep/er")
    with pytest.raises(SampleError, match="some inputs are one dataset and others"):
        SliceDataset(cohort, inputs={"A": "MR/1PA001", "B": "CT"})


def test_cases_that_an_input_lacks(tmp_path: Path) -> None:
    names = {"MR": range(12), "CT": [0, 1, 3, 4, 5, 6, 7, 8, 9, 10], "MASK": [*range(1, 12), 12]}
    data = {f"{group}/p{i}": volume(2, 3, 4) for group, cases in names.items() for i in cases}
    path = write(tmp_path / "f.h5", data)
    with pytest.raises(SampleError) as e:
        SliceDataset(path)
    message = str(e.value)
    assert "4 of 13 cases" in message
    assert "input 'A' (/MR) lacks p12" in message
    assert "input 'B' (/CT) lacks p2, p11, p12" in message
    assert "input 'M' (/MASK) lacks p0" in message
    assert e.value.cases == ("p0", "p2", "p11", "p12")
    assert e.value.inputs == ("A", "B", "M")
    whole = [f"p{i}" for i in range(13) if f"p{i}" not in e.value.cases]
    assert len(SliceDataset(path, cases=whole)) == 9 * 4
    with pytest.raises(SampleError, match=r"1 of 2 cases .*'B' \(/CT\) lacks p2\."):
        SliceDataset(path, cases=["p1", "p2"])


def test_cases_that_nobody_has(cohort: str) -> None:
    with pytest.raises(
        SampleError, match=r"no input has: 1PA01\. Close to the first: .*1PA001"
    ) as e:
        SliceDataset(cohort, cases=["1PA01", "1PB002"])
    assert e.value.cases == ("1PA01",)
    with pytest.raises(SampleError, match=r"no input has: x, y\. There are 1PA001, 1PA004, "):
        SliceDataset(cohort, cases=["y", "1PB002", "x"])
    with pytest.raises(SampleError, match="1PA001 more than once"):
        SliceDataset(cohort, cases=["1PA001", "1PB002", "1PA001"])
    with pytest.raises(SampleError, match="`cases` is empty"):
        SliceDataset(cohort, cases=[])
    with pytest.raises(TypeError, match="named by str, not int"):
        SliceDataset(cohort, cases=[1])  # type: ignore[list-item]


def test_no_cases(tmp_path: Path) -> None:
    path = write(tmp_path / "f.h5", {"MR/p1/volume": volume(2, 3, 4)})
    with pytest.raises(SampleError, match="no dataset in /MR"):
        SliceDataset(path, inputs="MR")


def test_shapes_that_differ(tmp_path: Path) -> None:
    data = {f"{group}/p{i}": volume(4, 5, 6) for group in ("MR", "CT") for i in range(4)}
    data |= {"CT/p1": volume(4, 5, 7), "MR/p2": volume(4, 5), "CT/p2": volume(4, 5)}
    data |= {"CT/p3": volume(4, 5, 0), "MR/p3": volume(4, 5, 0)}
    path = write(tmp_path / "f.h5", data)
    with pytest.raises(SampleError) as e:
        SliceDataset(path, inputs={"A": "MR", "B": "CT"})
    message = str(e.value)
    assert "3 of 4 cases" in message
    assert "p1: A (4, 5, 6), B (4, 5, 7) (they differ)" in message
    assert "p2: A (4, 5), B (4, 5) (not 3-D, or empty)" in message
    assert "p3: A (4, 5, 0), B (4, 5, 0) (not 3-D, or empty)" in message
    assert e.value.cases == ("p1", "p2", "p3")
    assert len(SliceDataset(path, inputs={"A": "MR", "B": "CT"}, cases="p0")) == 6


def test_long_lists_are_cut(tmp_path: Path) -> None:
    data = {f"MR/p{i}": volume(1, 1, 1) for i in range(40)} | {"CT/p0": volume(1, 1, 1)}
    path = write(tmp_path / "f.h5", data)
    with pytest.raises(SampleError, match=r"lacks p1, p2, .*p8 and 31 more\.") as e:
        SliceDataset(path, inputs=["MR", "CT"])
    assert len(e.value.cases) == 39


def test_wrong_use(cohort: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be called 'case'"):
        SliceDataset(cohort, inputs={"case": "MR"})
    with pytest.raises(ValueError, match="inputs is empty"):
        SliceDataset(cohort, inputs={})
    with pytest.raises(ValueError, match="twice"):
        SliceDataset(cohort, inputs=["MR", "MR"])
    with pytest.raises(TypeError, match="both str"):
        SliceDataset(cohort, inputs={"A": 3})  # type: ignore[dict-item]
    for axis in (3, -4):
        with pytest.raises(ValueError, match=f"axis is {axis}"):
            SliceDataset(cohort, axis=axis)
    with pytest.raises(MissingFileError):
        SliceDataset(tmp_path / "absent.h5")


def test_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import hyperslab.errors\n"
        "try: import hyperslab.torch\n"
        "except hyperslab.errors.MissingExtraError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'hyperslab[torch]'" in run.stdout
