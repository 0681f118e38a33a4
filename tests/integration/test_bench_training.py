"""`hyperslab bench --training`: what is compared, how it is counted, and what is reported."""

from __future__ import annotations

import importlib.util
import itertools
import json
import multiprocessing
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

import torch

from hyperslab.cli import training, training_turn
from hyperslab.cli.app import app
from hyperslab.cli.training import Contender, Contest, hold_contest, make_task
from hyperslab.cli.training_advice import Slices, advised_loader, advised_transforms
from hyperslab.cli.training_turn import Task, Turn, our_loader
from hyperslab.errors import HyperslabError
from hyperslab.testing import make_cohort

N_CASES, SHAPE = 3, (24, 24, 5)
INPUTS = {"A": "MR", "B": "CT"}
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
PEERS = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("monai", "torchio"))),
    reason="MONAI and TorchIO are not installed",
)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("training") / "cohort.h5"
    make_cohort(path, n_cases=N_CASES, shape=SHAPE)
    return str(path)


@pytest.fixture(autouse=True)
def torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def a_task(path: str, **changes: Any) -> Task:
    """What `make_task` would say, without asking for MONAI."""
    with h5py.File(path) as f:
        samples = tuple((case, k) for case in f["MR"] for k in range(f["MR"][case].shape[2]))
    known = Task(
        path=path,
        inputs=INPUTS,
        axis=2,
        samples=samples,
        batch=4,
        crop=16,
        quarter_turns=True,
        artefacts=None,
        track_meta=True,
    )
    return replace(known, **changes)


def run(*arguments: object, **environment: str) -> Any:
    words = ["bench", *map(str, arguments)]
    return CliRunner().invoke(app, words, env={"COLUMNS": "200", **environment})


# --- what is compared


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", ">i2", "uint16"])
def test_advice_reads_as_float32(axis: int, dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    data = np.arange(60).reshape(3, 4, 5).astype(dtype)
    with h5py.File(path, "w") as f:
        f["MR/p1"], f["CT/p1"] = data, data[::-1]
    advice = Slices(str(path), inputs=INPUTS, axis=axis, samples=[("p1", 0), ("p1", 2)])
    sample = advice[1]
    advice.close()
    assert len(advice) == 2
    assert (sample["case"], sample["slice"]) == ("p1", 2)
    for name, stored in (("A", data), ("B", data[::-1])):
        assert sample[name].dtype == torch.float32
        assert np.array_equal(sample[name][0].numpy(), stored.take(2, axis))


def test_advice_opens_once_in_each_process(cohort: str, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = a_task(cohort).samples
    opened = []
    real = h5py.File
    monkeypatch.setattr(h5py, "File", lambda *a: opened.append(a) or real(*a))
    advice = Slices(cohort, inputs=INPUTS, axis=2, samples=samples)
    assert opened == []
    twin = pickle.loads(pickle.dumps(advice))
    for dataset in (advice, twin):
        assert all(dataset[i]["slice"] == i for i in range(4))
        dataset.close()
    assert len(opened) == 2


def _views(plane: np.ndarray) -> Iterator[np.ndarray]:
    """Yield what half turns followed by quarter turns can make of a plane: its four rotations."""
    for k in range(4):
        yield np.rot90(plane, k)


def _turn_of(plane: np.ndarray, found: np.ndarray) -> tuple[int, int, int]:
    """Return which rotation of `plane`, and which window of it, `found` is."""
    h, w = found.shape
    for k, view in enumerate(_views(plane)):
        windows = np.lib.stride_tricks.sliding_window_view(view, (h, w))
        hits = np.argwhere((windows == found).all(axis=(2, 3)))
        if len(hits):
            return k, *map(int, hits[0])
    raise AssertionError("no window of any rotation")


@PEERS
@pytest.mark.parametrize("track_meta", [True, False])
def test_advice_augments_as_we_do(
    track_meta: bool, cohort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = a_task(cohort, track_meta=track_meta)
    with h5py.File(cohort) as f:
        planes = {
            (name, *sample): f[group][sample[0]][..., sample[1]]
            for name, group in INPUTS.items()
            for sample in task.samples
        }
    ours = [batch for epoch in range(4) for batch in _epoch(our_loader(task), epoch)]
    advice = advised_loader(task, workers=0)
    assert (type(advice.dataset[0]["A"]) is torch.Tensor) is not track_meta
    theirs = [batch for _ in range(4) for batch in advice]
    seen = []
    for batches in (ours, theirs):
        found = []
        for batch in batches:
            for i, where in enumerate(zip(batch["case"], batch["slice"].tolist(), strict=True)):
                a, b = (
                    _turn_of(planes[name, *where], np.asarray(batch[name][i, 0])) for name in "AB"
                )
                assert a == b  # the pair shares its geometry
                found.append(a)
        assert len(found) == 4 * len(task.samples)
        assert len(set(found)) > 30  # of 4 rotations times 81 windows
        seen.append({k for k, _, _ in found})
    assert seen == [{0, 1, 2, 3}] * 2
    _close(advice)


def _epoch(loader: Any, epoch: int) -> list[dict[str, Any]]:
    loader.set_epoch(epoch)
    return list(loader)


def _close(advice: Any) -> None:
    advice.dataset.close()


@PEERS
def test_artefacts_befall_the_source_alone(cohort: str) -> None:
    task = a_task(cohort, artefacts=training_turn.ARTEFACTS, crop=24, batch=64)
    augment = advised_transforms(task)
    steps = [type(step).__name__ for step in augment.transforms]  # type: ignore[attr-defined]
    assert steps == [
        "RandFlipd", "RandRotate90d", "RandAffined", "Lambdad", "Lambdad", "RandSpatialCropd",
    ]  # fmt: skip
    with h5py.File(cohort) as f:
        planes = {s: (f["MR"][s[0]][..., s[1]], f["CT"][s[0]][..., s[1]]) for s in task.samples}
    advice = advised_loader(task, workers=0)
    for batches in (list(advice) + list(advice), _epoch(our_loader(task), 0)):
        moved = []
        for batch in batches:
            for i, where in enumerate(zip(batch["case"], batch["slice"].tolist(), strict=True)):
                a, b = (np.asarray(batch[name][i, 0]) for name in "AB")
                k, _, _ = _turn_of(planes[where][1], b)
                moved.append(not np.array_equal(np.rot90(planes[where][0], k), a))
        assert 0.4 < np.mean(moved) < 1  # three in four, since each of the two has p = 0.5
    _close(advice)


@PEERS
@pytest.mark.parametrize("workers", [0, 3])
def test_advised_settings(workers: int, cohort: str) -> None:
    advice = advised_loader(a_task(cohort), workers=workers)
    assert (advice.num_workers, advice.persistent_workers) == (workers, workers > 0)
    assert (advice.batch_size, advice.pin_memory, advice.drop_last) == (4, False, False)
    assert type(advice.sampler).__name__ == "RandomSampler"


@PEERS
def test_planes_that_are_not_square_are_not_turned(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    make_cohort(path, n_cases=1, shape=(24, 20, 6), inputs=("MR", "CT"))
    task = make_task(str(path), inputs=INPUTS, batch=4, crop=192)
    assert (task.quarter_turns, task.crop, task.axis) == (False, 20, 2)
    advice = advised_loader(task, workers=0)
    shapes = {tuple(b["A"].shape) for b in [*advice, *our_loader(task)]}
    assert shapes == {(4, 1, 20, 20), (2, 1, 20, 20)}
    _close(advice)


# --- how it is counted


class _Clock:
    """Time that passes when batches are made, and only then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(training_turn, "_cpu_s", lambda: 2 * self.now)

    def epochs(
        self, n_batches: int, *, first_s: float, other_s: float
    ) -> tuple[Callable[[int], Any], list[str]]:
        """Return epochs of batches of ten, whose first batch takes longer, and a log of them."""
        log: list[str] = []

        def epoch(number: int) -> Iterator[dict[str, Any]]:
            log.append(f"begin {number}")
            try:
                for i in range(n_batches):
                    self.now += first_s if i == 0 else other_s
                    yield {"case": ["p"] * 10}
            finally:
                log.append(f"end {number}")

        return epoch, log


@pytest.mark.parametrize(
    ("seconds", "pairs", "wall_s"),
    [
        (100, 350, 91),  # seven epochs of 13 s; the eighth hands over its first batch at 101 s
        (60, 200, 52),  # four; the fifth hands over a batch in time, and does not end in time
        (12, 40, 12.25),  # no epoch ends before the time: all batches count
        (0, 10, 10),  # one batch at least
    ],
)
def test_ours_is_counted_in_whole_epochs(
    seconds: float, pairs: int, wall_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = _Clock(monkeypatch)
    epoch, log = clock.epochs(5, first_s=10, other_s=0.75)
    turn = training_turn._measure(epoch, None, seconds)
    assert (turn.pairs, turn.wall_s, turn.cpu_s) == (pairs, wall_s, 2 * wall_s)
    assert log[0] == "begin 1"
    assert log[-1].startswith("end")


def test_advice_is_counted_in_groups_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch)
    epoch, log = clock.epochs(100, first_s=50, other_s=1)
    turn = training_turn._measure(epoch, 4, 9.5)
    assert (turn.pairs, turn.wall_s) == (120, 12)  # 10 s is past the time; the group has 12
    assert log == ["begin 1", "end 1"]
    epoch, log = clock.epochs(6, first_s=1, other_s=1)
    turn = training_turn._measure(epoch, 4, 9.5)  # 2 of the first epoch, 6, and a group of 4
    assert (turn.pairs, turn.wall_s) == (120, 12)
    assert log == [f"{what} {i}" for i in (1, 2, 3) for what in ("begin", "end")]


def test_an_epoch_shorter_than_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    epoch, _ = _Clock(monkeypatch).epochs(2, first_s=1, other_s=1)
    assert training_turn._measure(epoch, 4, 0).pairs == 20


def test_our_warm_up_is_another_epoch(cohort: str, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs: list[int] = []
    forgotten: list[int] = []
    monkeypatch.setattr(training_turn.cache, "forget", lambda: forgotten.append(epochs[-1]))
    torch.set_num_threads(2)
    real = training_turn._our_epochs

    def watched(task: Task) -> Callable[[int], Any]:
        epoch = real(task)
        return lambda number: epochs.append(number) or epoch(number)

    monkeypatch.setattr(training_turn, "_our_epochs", watched)
    turn = training_turn._turn(a_task(cohort), None, 0.0)
    assert epochs == forgotten == [0, 1]
    assert turn.pairs == 4
    assert torch.get_num_threads() == 1


def _burn(seconds: float, nbytes: int, taken_s: Any, ready: Any, done: Any) -> None:
    held = np.ones(nbytes, np.uint8)
    while os.times().user < seconds:
        sum(range(20_000))
    with open("/dev/zero", "rb", buffering=0) as zeros:
        while os.times().system < seconds:
            zeros.read(1 << 20)
    taken_s.value = os.times().user + os.times().system
    ready.set()
    done.wait(20)
    assert held[-1] == 1


@LINUX
def test_workers_are_counted() -> None:
    context = multiprocessing.get_context("fork")
    taken_s, ready, done = context.Value("d"), context.Event(), context.Event()
    before_nbytes = training_turn._peak_rss_nbytes()
    worker = context.Process(target=_burn, args=(0.12, 64 << 20, taken_s, ready, done))
    worker.start()
    assert ready.wait(20)
    own_s, cpu_s = time.process_time(), training_turn._cpu_s()
    nbytes = training_turn._peak_rss_nbytes()
    done.set()
    worker.join()
    assert cpu_s is not None
    assert nbytes is not None
    assert before_nbytes is not None
    assert cpu_s - own_s == pytest.approx(taken_s.value, abs=0.06)
    assert nbytes - before_nbytes > 64 << 20


@LINUX
def test_own_peak_is_what_the_kernel_says() -> None:
    import resource

    held = np.ones(8 << 20, np.uint8)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = training_turn._peak_rss_nbytes()
    assert found is not None
    assert 0.5 * peak < found <= 1.1 * peak
    assert found > held.nbytes


# --- the contest


@PEERS
def test_contest_in_processes_of_their_own(cohort: str, capfd: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    n_threads = torch.get_num_threads()
    task = make_task(cohort, inputs=INPUTS, batch=4, crop=16)
    contest = hold_contest(task, rounds=1, seconds=0, advised=(1,), tell=told.append)
    assert contest.checked == 8  # two batches
    assert "".join(capfd.readouterr()) == ""  # the processes end quietly
    assert told == [
        "comparing what both read", "round 1 of 1: hyperslab", "round 1 of 1: advice, 1 workers"
    ]  # fmt: skip
    assert [c.workers for c in contest.contenders] == [None, 1]
    for contender in contest.contenders:
        (turn,) = contender.turns
        assert turn.pairs == 4
        assert turn.wall_s > 0
        if sys.platform == "linux":
            assert turn.cpu_s is not None
            assert turn.peak_rss_nbytes is not None
            assert turn.peak_rss_nbytes > 50e6  # PyTorch alone is more
    assert torch.get_num_threads() == n_threads  # that was for the processes only


class _Deadly:
    """A task that ends the process which receives it."""

    path = "cohort.h5"

    def __reduce__(self) -> Any:
        return os._exit, (3,)


def test_a_process_that_ends_early_is_told() -> None:
    with pytest.raises(HyperslabError, match=r"cohort.h5: .* 2 workers, ended before it was done"):
        training_turn.take_turn(_Deadly(), workers=2, seconds=0)  # type: ignore[arg-type]


def _turns(*pairs: int) -> tuple[Turn, ...]:
    return tuple(Turn(pairs=n, wall_s=2.0, cpu_s=4.0, peak_rss_nbytes=1000 * n) for n in pairs)


def test_ratio_is_of_medians_against_the_best() -> None:
    contest = Contest(
        checked=1,
        ours=Contender(workers=None, turns=_turns(100, 4000, 1000)),
        advised=(
            Contender(workers=0, turns=_turns(30, 10, 20)),
            Contender(workers=2, turns=_turns(50, 40, 900)),
            Contender(workers=4, turns=_turns(49, 49, 49)),
        ),
    )
    assert contest.best.workers == 2
    assert contest.times_faster == 20
    assert [c.pairs_per_s for c in contest.contenders] == [500, 10, 25, 24.5]
    assert contest.ours.cpu_s_per_1000_pairs == 4
    assert contest.ours.peak_rss_nbytes == 4_000_000
    unknown = replace(contest.ours.turns[0], cpu_s=None, peak_rss_nbytes=None)
    bare = Contender(workers=2, turns=(unknown,))
    assert (bare.cpu_s_per_1000_pairs, bare.peak_rss_nbytes) == (None, None)


# --- the command


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Task, int | None, float]]:
    """Turns that are made up; returns the log of what was asked for."""
    asked: list[tuple[Task, int | None, float]] = []
    speed = itertools.count(1)

    def take_turn(task: Task, *, workers: int | None, seconds: float) -> Turn:
        asked.append((task, workers, seconds))
        pairs = 2000 if workers is None else 10 * (workers + 1) + next(speed)
        cpu_s = None if workers == 4 else 3.0
        return Turn(pairs=pairs, wall_s=2.0, cpu_s=cpu_s, peak_rss_nbytes=500_000_000)

    monkeypatch.setattr(training, "take_turn", take_turn)
    return asked


@PEERS
def test_json(cohort: str, staged: list[Any]) -> None:
    result = run("--training", cohort, "--json", "-", "--rounds", 2, "--seconds", 1.5, "--crop", 16)
    assert result.exit_code == 0, result.output
    assert [workers for _, workers, _ in staged] == [None, 0, 2, 4] * 2
    assert {seconds for _, _, seconds in staged} == {1.5}
    task = staged[0][0]
    assert task == a_task(cohort, inputs={"A": "/MR", "B": "/CT"}, batch=32, samples=task.samples)
    assert sorted(task.samples) == sorted(a_task(cohort).samples)
    report = json.loads(result.stdout)
    assert report["file"] == cohort
    assert (report["samples"], report["cases"]) == (N_CASES * SHAPE[2], N_CASES)
    assert (report["batch"], report["crop"], report["axis"]) == (32, 16, 2)
    assert (report["rounds"], report["seconds"]) == (2, 1.5)
    assert report["page_cache"] == "warm"
    assert report["checked_samples"] == N_CASES * SHAPE[2]
    assert report["machine"]["torch"] == torch.__version__
    assert {"h5py", "hdf5", "monai", "cpus"} <= set(report["machine"])
    ours, *advice = report["contenders"]
    assert (ours["contender"], ours["workers"], ours["pairs_per_s"]) == ("hyperslab", None, 1000)
    assert [(a["contender"], a["workers"]) for a in advice] == [("advice", n) for n in (0, 2, 4)]
    assert report["best_advice_workers"] == 4
    assert report["times_faster"] == ours["pairs_per_s"] / advice[2]["pairs_per_s"]
    assert ours["times_best_advice"] == report["times_faster"]
    assert advice[2]["times_best_advice"] == 1
    assert advice[2]["cpu_s_per_1000_pairs"] is None
    assert all(len(entry["turns"]) == 2 for entry in report["contenders"])
    assert ours["turns"][0] == asdict(
        Turn(pairs=2000, wall_s=2.0, cpu_s=3.0, peak_rss_nbytes=500_000_000)
    )


@PEERS
def test_table_and_plot(cohort: str, staged: list[Any], tmp_path: Path) -> None:
    figures, chart = tmp_path / "figures.json", tmp_path / "chart.png"
    options = ("--json", figures, "--plot", chart, "--rounds", 1, "--artefacts", "--batch", 8)
    result = run(
        "--training", cohort, *options, "--input", "A=MR", "--input", "M=MASK", COLUMNS="80"
    )
    assert result.exit_code == 0, result.output
    task = staged[0][0]
    assert task.artefacts == training_turn.ARTEFACTS
    assert task.inputs == {"A": "/MR", "M": "/MASK"}
    assert task.images == ["A"]
    rows = [line.split() for line in result.stdout.splitlines() if line.endswith("×")]
    assert [row[:2] for row in rows] == [
        ["hyperslab", "1,000"], ["advice,", "no"], ["advice,", "2"], ["advice,", "4"]
    ]  # fmt: skip
    assert rows[0][2:] == ["1.50", "500", "MB", "38×"]
    assert rows[3][3:] == ["26", "?", "500", "MB", "1.0×"]
    assert max(map(len, result.stdout.splitlines()[:11])) <= 80
    words = " ".join(result.stdout.split())
    assert "15 slices of 3 cases, MR and MASK" in words
    assert "half turns, quarter turns, misalignment, motion, clamp, crop 24" in words
    assert "15 samples compared bit for bit" in words
    assert "torchio" in words
    assert json.loads(figures.read_text())["artefacts"]["p"] == 0.5
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_the_same_is_the_same_bit_for_bit() -> None:
    a = torch.tensor([[0.0, float("nan")]])
    assert training._same(a, a.clone())
    for other in (-a, a.reshape(2, 1), a.view(torch.int32), torch.tensor([[0.0, 1.0]])):
        assert not training._same(a, other)


def test_a_file_too_large_for_the_page_cache(cohort: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert training.warm_page_cache(cohort)
    monkeypatch.setattr(training, "memory_nbytes", lambda: 2 * os.path.getsize(cohort) - 2)
    assert not training.warm_page_cache(cohort)


@PEERS
def test_nothing_is_timed_that_differs(
    cohort: str, staged: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Slices.__getitem__

    def wrong(self: Slices, index: int) -> dict[str, Any]:
        sample = real(self, index)
        if index == 3:
            sample["B"] = torch.where(sample["B"] == 0, -0.0, sample["B"]).contiguous()
            sample["B"][0, 5, 5] += 1e-3
        return sample

    monkeypatch.setattr(Slices, "__getitem__", wrong)
    result = run("--training", cohort)
    assert result.exit_code == 1
    assert "slice 3 of case '1PA001'" in result.stderr
    assert staged == []


@PEERS
@pytest.mark.parametrize("package", ["monai", "torchio"])
def test_without_the_extra(
    package: str, cohort: str, staged: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = run("--training", cohort, "--artefacts")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: bench --training needs {package}")
    assert "pip install 'hyperslab[bench]'" in result.stderr
    assert result.stdout == ""
    assert staged == []


@PEERS
@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--training", "MR/1PA001"], 2, "DATASET does not go with --training"),
        (["--training", "--repeat", "3"], 2, "--repeat does not go with --training"),
        (["--crop", "16"], 2, "--crop needs --training"),
        (["--input", "A=MR"], 2, "--input needs --training"),
        (["--no-track-meta"], 2, "--track-meta needs --training"),
        (["--training", "--input", "MR"], 2, "write NAME=GROUP"),
        (["--training", "--input", "A=MR", "--input", "A=CT"], 2, "each name once"),
        (["--training", "--input", "A=MR", "--input", "B=PET"], 1, "PET"),
        (["--training", "--plot", "x.foo"], 2, "ending '.foo'"),
        (["--training", "--rounds", "0"], 2, "--rounds"),
    ],
)
def test_wrong_use(
    options: list[str], status: int, words: str, cohort: str, staged: list[Any]
) -> None:
    result = run(cohort, *options)
    assert result.exit_code == status, result.output
    assert words in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert staged == []


@PEERS
def test_no_such_file(staged: list[Any], tmp_path: Path) -> None:
    result = run("--training", tmp_path / "none.h5")
    assert result.exit_code == 2
    assert "no such file" in result.stderr
    assert staged == []
