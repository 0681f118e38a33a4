"""What training must never get wrong: field cases C2, C4, C24, C25, and the usual defects.

Defects that code for this job often has, and the test that would catch each here:

- the neighbour slice runs off the end of a case: `test_neighbour_targets_never_leave_a_case`
  (test_cohorts);
- the motion artefact is computed and thrown away: `test_motion_changes_the_image_and_only_the_band_
  of_k_space` (test_transforms);
- `worker_init_fn` needs a global loader and breaks under spawn: there is none, and
  `test_workers_and_threads_draw_alike` runs under every start method;
- the file lock variable is set too late: case C12 (test_field_cases) and
  `test_no_lock_is_needed_nor_taken` below;
- a file opened before the fork is shared: `test_workers_read_the_same_bytes` (test_torch), whose
  parent has read before;
- every worker draws the same augmentation: `test_workers_and_threads_draw_alike`;
- a half turn is called a flip: `test_flip_mirrors_and_the_half_turn_does_not` (test_transforms);
- normalising after the crop: `test_scaling_does_not_depend_on_the_crop` below;
- a cache for each worker and rank: `test_processes_share_one_decoded_copy` below.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from hyperslab.testing import make_cohort
from hyperslab.torch import BlockShuffle, SliceDataset, SliceLoader, scaling
from hyperslab.torch import transforms as T

METHODS = multiprocessing.get_all_start_methods()


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("proofs") / "cohort.h5"
    return str(make_cohort(path, n_cases=4, shape=(32, 32, 10), chunks=(16, 16, 4))["path"])


def augmented(path: str) -> SliceDataset:
    """Everything random at once: the neighbour, and transforms of the sample."""
    augment = T.Compose(
        [
            T.RandomFlip(),
            T.RandomRotate90(),
            T.Misalign("A", pixels=2, degrees=3),
            T.MotionArtifact(p=0.5),
            T.Clamp(-1, 1),
            T.RandomCrop(24),
        ],
        seed=11,
    )
    return SliceDataset(path, neighbour=0.5, transform=augment, seed=11)


def samples_of(batches: Any) -> dict[int, tuple[bytes, ...]]:
    found: dict[int, tuple[bytes, ...]] = {}
    for batch in batches:
        for i, sample in enumerate(batch["sample"].tolist()):
            assert sample not in found
            found[sample] = tuple(batch[name][i].numpy().tobytes() for name in "ABM")
    return found


@pytest.fixture(scope="module")
def expected(cohort: str) -> list[dict[int, tuple[bytes, ...]]]:
    """Two epochs, sample by sample, in this process."""
    torch.set_num_threads(1)
    ds = augmented(cohort)
    found = []
    for epoch in range(2):
        ds.set_epoch(epoch)
        samples = [ds[i] for i in range(len(ds))]
        found.append({s["sample"]: tuple(s[n].numpy().tobytes() for n in "ABM") for s in samples})
    return found


def test_epochs_and_samples_differ(expected: list[dict[int, tuple[bytes, ...]]]) -> None:
    first, second = expected
    assert first.keys() == second.keys()
    assert sum(first[i] != second[i] for i in first) > 0.9 * len(first)


@pytest.mark.parametrize(
    ("n_workers", "method"),
    [(0, None), *((n, method) for n in (1, 4) for method in METHODS)],
)
def test_workers_and_threads_draw_alike(
    n_workers: int, method: str | None, cohort: str, expected: list[dict[int, tuple[bytes, ...]]]
) -> None:
    """Cases C2 and C24, with workers that stay from epoch to epoch."""
    ds = augmented(cohort)
    assert ds[0]["case"] == ds.cases[0]  # the parent has read before
    loader = DataLoader(
        ds,
        batch_size=7,
        sampler=BlockShuffle(ds),
        num_workers=n_workers,
        multiprocessing_context=method,
        persistent_workers=n_workers > 0,
    )
    for epoch, wanted in enumerate(expected):
        ds.set_epoch(epoch)
        assert samples_of(loader) == wanted
    del loader
    _stop_sharing()


def _stop_sharing() -> None:
    """End the thread by which this process hands shared memory to processes that it spawned."""
    from multiprocessing import resource_sharer

    resource_sharer.stop()


@pytest.mark.parametrize("shuffle", ["block", "full", False])
def test_the_loader_draws_alike(
    shuffle: Any, cohort: str, expected: list[dict[int, tuple[bytes, ...]]]
) -> None:
    loader = SliceLoader(augmented(cohort), batch_size=7, shuffle=shuffle)
    for epoch, wanted in enumerate(expected):
        loader.set_epoch(epoch)
        batches = list(loader)
        assert samples_of(batches) == wanted
        again = SliceLoader(augmented(cohort), batch_size=7, shuffle=shuffle)
        again.load_state_dict({"seed": 0, "epoch": epoch, "batches": 3})
        rest = samples_of(again)
        assert rest == {i: wanted[i] for b in batches[3:] for i in b["sample"].tolist()}


def test_masks_keep_their_labels(cohort: str) -> None:
    with h5py.File(cohort) as h5:
        labels = {int(v) for case in h5["MASK"] for v in np.unique(h5[f"MASK/{case}"][()])}
    ds = augmented(cohort)
    seen = torch.cat([ds[i]["M"].unique() for i in range(len(ds))]).unique()
    assert set(seen.int().tolist()) <= labels == {0, 1}


def test_scaling_does_not_depend_on_the_crop(cohort: str) -> None:
    options: dict[str, Any] = {"scaling": {"A": scaling.Percentiles(), "B": scaling.ZScore()}}
    whole = SliceDataset(cohort, **options)
    cropped = SliceDataset(cohort, **options, transform=T.CenterCrop(16))
    for i in range(len(whole)):
        for name in "AB":
            assert torch.equal(cropped[i][name], whole[i][name][:, 8:24, 8:24])


def test_no_lock_is_needed_nor_taken(tmp_path: Path) -> None:
    """A writer may open the file, with locking, while a dataset and its loader are in use."""
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=2, shape=(16, 16, 6))
    ds = SliceDataset(path)
    batches = iter(SliceLoader(ds, batch_size=2))
    next(batches)
    code = f"import h5py; h5py.File({path!r}, 'r+', locking=True).close()"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
    batches.close()  # type: ignore[attr-defined]


# --- ranks


@pytest.mark.parametrize("uneven", ["pad", "drop"])
@pytest.mark.parametrize("n_workers", [0, 2])
def test_two_ranks_and_five_samples(uneven: Any, n_workers: int, tmp_path: Path) -> None:
    """Case C25: equal lengths, all samples, no hang."""
    path = str(tmp_path / "c.h5")
    make_cohort(path, n_cases=1, shape=(8, 8, 5))
    ds = SliceDataset(path)
    shares = []
    for rank in range(2):
        sampler = BlockShuffle(ds, rank=rank, world_size=2, uneven=uneven)
        loader = DataLoader(ds, batch_size=1, sampler=sampler, num_workers=n_workers)
        ours = SliceLoader(ds, batch_size=1, rank=rank, world_size=2, uneven=uneven)
        share = [s for batch in loader for s in batch["sample"].tolist()]
        assert [s for batch in ours for s in batch["sample"].tolist()] == share
        assert len(share) == len(sampler) == len(ours)
        shares.append(share)
    counts = Counter(shares[0] + shares[1])
    assert len(shares[0]) == len(shares[1]) == (3 if uneven == "pad" else 2)
    assert len(counts) == (5 if uneven == "pad" else 4)
    assert max(counts.values()) <= 2


_RANK = """
import json, sys
import hyperslab.engine.read as engine
from hyperslab.torch import SliceDataset, SliceLoader

if __name__ == "__main__":
    path, folder, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
    counted, remember = [], engine.remember
    engine.remember = lambda stats: (counted.append(stats.chunks_decoded), remember(stats))
    ds = SliceDataset(path, cache=folder)
    loader = SliceLoader(ds, batch_size=4, rank=rank, world_size=2)
    seen = [s for batch in loader for s in batch["sample"].tolist()]
    print(json.dumps({"decoded": sum(counted), "seen": seen}))
"""


def test_processes_share_one_decoded_copy(cohort: str, tmp_path: Path) -> None:
    """Two ranks, one cache: its files are there once, and a third process decodes nothing."""
    script = tmp_path / "rank.py"
    script.write_text(_RANK)
    folder = tmp_path / "decoded"

    def start(rank: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(script), cohort, str(folder), str(rank)]
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    def result(process: subprocess.Popen[bytes]) -> dict[str, Any]:
        out, _ = process.communicate(timeout=100)
        assert process.returncode == 0
        found: dict[str, Any] = json.loads(out)
        return found

    both = [result(process) for process in [start(0), start(1)]]
    assert set(both[0]["seen"]) | set(both[1]["seen"]) == set(range(40))
    ds = SliceDataset(cohort, cache=folder)
    ds.preload(progress=False)  # what neither had to itself in time
    kept = [path.stat().st_size for path in folder.glob("*.npy")]
    assert len(kept) == 3 * 4
    assert sum(kept) < 1.1 * 4 * 10 * 32 * 32 * (4 + 4 + 1)
    assert result(start(1))["decoded"] == 0


# --- memory and descriptors

_EPOCHS = """
import json, os, sys
import torch
from torch.utils.data import DataLoader
from hyperslab.torch import SliceDataset, SliceLoader
from hyperslab.engine.source import n_open


class Labelled(SliceDataset):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        case = self.cases.index(sample["case"])
        return sample | {"scanner": self.array("A", case).attrs["scanner"]}


def rss(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def children():
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as stream:
        return stream.read().split()


if __name__ == "__main__":
    pattern, kind = sys.argv[1:]
    torch.set_num_threads(1)
    if kind == "loader":
        ds = SliceDataset(pattern)
        loader = SliceLoader(ds, batch_size=32)
    else:
        ds = Labelled(pattern)
        loader = DataLoader(ds, batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
    found = []
    for epoch in range(20):
        n = 0
        for batch in loader:
            n += len(batch["case"])
        assert n == len(ds)
        workers = [pid for pid in children() if "spawn" not in pid] if kind == "workers" else []
        found.append([rss(pid) for pid in [os.getpid(), *workers]])
    print(json.dumps({"rss": found, "open": n_open()}))
"""


@pytest.fixture(scope="module")
def many_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    values = np.random.default_rng(0).normal(size=(12, 12, 4)).astype("f4")
    for i in range(200):
        with h5py.File(folder / f"p{i}.h5", "w") as h5:
            for name in ("MR", "CT", "MASK"):
                h5.create_dataset(name, data=values + i, compression="gzip")
                h5[name].attrs["scanner"] = f"scanner {i % 7}"
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("kind", ["loader", "workers"])
def test_memory_is_flat_over_200_files_and_64_descriptors(
    kind: str, many_files: Path, tmp_path: Path
) -> None:
    """Case C4: RSS after epochs 3 and 20 differ by less than 5 %."""
    script = tmp_path / "epochs.py"
    script.write_text(_EPOCHS)
    command = ["bash", "-c", 'ulimit -n 64; exec "$@"', "bash"]
    command += [sys.executable, str(script), str(many_files / "*.h5"), kind]
    environment = os.environ | {"HYPERSLAB_CACHE_MB": "1"}
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=200, env=environment, check=False
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    third, last = found["rss"][2], found["rss"][-1]
    assert len(third) == (1 if kind == "loader" else 3)
    assert max(last) < 1.05 * max(third)
    assert sum(last) < 1.05 * sum(third)
    assert found["open"] <= 16
