"""The example that trains, alone and by two processes; the pages for Lightning and for MONAI."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest

from hyperslab.testing import make_cohort
from tests.pages import run_page

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "mr_to_ct.py"
EPOCH = re.compile(r"^epoch (\d+): loss ([\d.]+), validation MAE ([\d.]+) \(([\d.]+) HU\); ", re.M)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four patients to train on and one to validate on, whose slices two ranks cannot halve."""
    path = tmp_path_factory.mktemp("cohort") / "cohort.h5"
    make_cohort(path, n_cases=5, shape=(40, 44, 7), seed=3)
    return path


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have PyTorch compute in one thread: several that share a core wait for each other."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def example() -> ModuleType:
    """The example, imported."""
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("mr_to_ct", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*arguments: object, timeout_s: float = 120) -> str:
    """Run Python with these arguments to its end, with all processes that it starts."""
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=timeout_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, printed
    return printed


def check_validation(printed: float, path: Path, checkpoint: Path, example: ModuleType) -> None:
    """Compare an error with that of the weights in `checkpoint`, each slice read by h5py, once."""
    net = example.UNet(example.WIDTH)
    net.load_state_dict(torch.load(checkpoint)["net"])
    error = pixels = 0.0
    with h5py.File(path, "r") as h5:
        _, held_out = example.split_cases(sorted(h5["MR"]), 0.75, seed=0)
        for case in held_out:
            mr, ct, mask = (h5[f"{group}/{case}"][()] for group in ("MR", "CT", "MASK"))
            for k in range(mr.shape[-1]):
                with torch.no_grad():
                    made = net(torch.from_numpy(mr[None, None, :, :, k].copy())).numpy()[0, 0]
                error += float((np.abs(made - ct[..., k], dtype="f8") * mask[..., k]).sum())
                pixels += float(mask[..., k].sum())
    assert printed == pytest.approx(error / pixels, abs=6e-5)


def test_the_example_learns(tmp_path: Path, cohort: Path, example: ModuleType) -> None:
    printed = run(EXAMPLE, "--data", cohort, "--out", tmp_path, "--epochs", 3, "--batch", 4)
    before = re.search(r"^validate on 7 of 1; at first, validation MAE ([\d.]+)", printed, re.M)
    assert before is not None
    epochs = EPOCH.findall(printed)
    losses = [float(epoch[1]) for epoch in epochs]
    assert losses[2] < losses[1] < losses[0]
    mae, hu = map(float, epochs[2][2:])
    assert mae < 0.7 * float(before[1])
    assert hu == pytest.approx(1000 * mae, abs=0.06)
    reports = re.findall(r"; 28 samples, \d+ per second, .* is the bottleneck$", printed, re.M)
    assert len(reports) == 3
    check_validation(mae, cohort, tmp_path / "mr_to_ct.pt", example)
    assert (tmp_path / "mr_to_ct.png").is_file()


def test_the_example_makes_a_cohort(
    tmp_path: Path,
    example: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(example, "WIDTH", 4)
    example.main(out=tmp_path / "new" / "folder", minutes=0)  # one epoch, however many are wanted
    printed = capsys.readouterr().out
    assert printed.startswith(
        "1 x cpu: train on 288 slices of 9 patients\nvalidate on 96 of 3; at first, "
    )
    (epoch,) = EPOCH.findall(printed)
    folder = tmp_path / "new" / "folder"
    check_validation(float(epoch[2]), folder / "cohort.h5", folder / "mr_to_ct.pt", example)


@pytest.mark.skipif(os.name != "posix", reason="ends what hangs by its process group")
def test_two_processes_share_the_example(tmp_path: Path, cohort: Path, example: ModuleType) -> None:
    options = ["--data", cohort, "--out", tmp_path, "--epochs", 3, "--batch", 4]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    printed = run(*torchrun, EXAMPLE, *options)  # torchrun fails if either does
    assert "2 x cpu: train on 28 slices of 4 patients\nvalidate on 7 of 1; " in printed
    epochs = EPOCH.findall(printed)
    assert [epoch[0] for epoch in epochs] == ["1", "2", "3"]  # by one of the two
    losses = [float(epoch[1]) for epoch in epochs]
    assert losses[2] < losses[1] < losses[0]
    assert printed.count("; 14 samples") == 3  # of 28, in each of two
    check_validation(float(epochs[-1][2]), cohort, tmp_path / "mr_to_ct.pt", example)
    assert (tmp_path / "mr_to_ct.png").is_file()


def test_the_example_resumes_exactly(
    tmp_path: Path,
    cohort: Path,
    example: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(example, "WIDTH", 4)

    def epochs(out: str, **options: Any) -> list[tuple[str, ...]]:
        example.main(data=cohort, out=tmp_path / out, epochs=3, batch=4, **options)
        found: list[tuple[str, ...]] = EPOCH.findall(capsys.readouterr().out)
        return found

    whole = epochs("whole")
    assert [epoch[0] for epoch in whole] == ["1", "2", "3"]
    assert len({epoch[1] for epoch in whole}) == 3
    assert epochs("parts", minutes=0.0) == whole[:1]
    assert epochs("parts", minutes=0.0, resume=True) == whole[1:2]
    assert epochs("parts", resume=True) == whole[2:]
    assert epochs("other", minutes=0.0, seed=1) != whole[:1]


def test_the_picture(
    tmp_path: Path, cohort: Path, example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    figures: list[Figure] = []

    class Kept(Figure):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            figures.append(self)

    monkeypatch.setattr(example, "Figure", Kept)
    example.main(data=cohort, out=tmp_path, epochs=0)
    (figure,) = figures
    pixels = imread(tmp_path / "mr_to_ct.png")
    height, width = pixels.shape[:2]
    assert figure.bbox.size.tolist() == [width, height]
    panels, bars = figure.axes[:12], figure.axes[12:]
    assert [axis.get_title() for axis in panels[:4]] == [
        "MR",
        "synthetic CT",
        "CT",
        "synthetic CT - CT",
    ]
    labels = [axis.get_ylabel() for axis in panels[::4]]
    _, (case,) = example.split_cases(example.SliceDataset(cohort).cases, 0.75, seed=0)
    assert labels == [f"{case}, slice {k}" for k in (1, 3, 5)]
    assert [axis.get_xlabel() for axis in bars] == ["scaled", "HU", "HU"]
    with h5py.File(cohort, "r") as h5:
        mr, ct, mask = (h5[f"{group}/{case}"][..., 3] for group in ("MR", "CT", "MASK"))
    images = [axis.images[0] for axis in panels[4:8]]
    shown = [image.get_array().filled() for image in images]
    np.testing.assert_array_equal(shown[0], mr)
    np.testing.assert_allclose(shown[2], 1000 * ct, atol=1e-3)
    np.testing.assert_allclose(shown[3], (shown[1] - shown[2]) * mask, atol=1e-3)
    assert images[1].get_clim() == images[2].get_clim() == (-1000, 1000)
    low, high = images[3].get_clim()
    assert low == -high < 0
    for i, axis in enumerate(panels):
        x0, y0, x1, y1 = axis.get_window_extent().extents.round().astype(int)
        inside = pixels[height - y1 + 2 : height - y0 - 2, x0 + 2 : x1 - 2, :3].reshape(-1, 3)
        assert len(np.unique(inside, axis=0)) > 2
        coloured = (np.ptp(inside, axis=1) > 0.1).mean()
        assert (coloured > 0.02) == (i % 4 == 3)  # the difference, and nothing else
    whole = figure.get_tightbbox().extents * figure.dpi  # with every label
    assert whole.min() >= 0
    assert (whole[2:] <= figure.bbox.size).all()


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning")
def test_the_lightning_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lightning")
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)  # it is set there, and unset here
    names = run_page("how-to/lightning.md", tmp_path, monkeypatch)
    assert 0 < names["trainer"].callback_metrics["val_mae"] < 0.3
    assert re.search(r"^tensor\(0\.\d+\)$", capsys.readouterr().out, re.M)

    class Recording(names["MRToCT"]):
        def training_step(self, batch: dict[str, Any], index: int) -> Any:
            seen.append(batch["sample"].tolist())
            return super().training_step(batch, index)

    def fit(**options: Any) -> list[list[int]]:
        seen.clear()
        names["new_trainer"]().fit(Recording(), datamodule=names["Slices"]("cohort.h5"), **options)
        return list(seen)

    seen: list[list[int]] = []
    whole = fit()
    ds = names["SliceDataset"]("cohort.h5")
    cases, _ = names["split_cases"](ds.cases, 0.7, seed=0)
    loader = names["SliceLoader"](ds.with_cases(cases), batch_size=8, seed=0)
    expected = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        expected += [batch["sample"].tolist() for batch in loader]
    assert whole == expected
    assert whole[:6] != whole[6:12] != whole[12:]
    assert fit(ckpt_path="checkpoints/epoch=1-step=8.ckpt") == whole[8:]


def test_the_monai_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("monai")
    names = run_page("how-to/monai.md", tmp_path, monkeypatch)
    printed = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"^\d (0\.\d+)$", printed, re.M)]
    assert len(losses) == 3
    assert losses[2] < losses[0]
    assert re.search(r"^MAE 0\.\d+\nSSIM 0\.\d+$", printed, re.M)
    assert "<class 'torch.Tensor'> tensor([0., 1.])" in printed
    # The transform is MONAI's, and paired: it moves all inputs of a sample alike, or none.
    jittered, plain = names["jittered"], names["train"]
    moved = 0
    for after, before in zip(jittered, plain, strict=True):
        same = {name: torch.equal(after[name], before[name]) for name in "BM"}
        moved += not same["B"]
        assert same["M"] or not same["B"]
    assert 0.25 < moved / len(plain) < 0.75
