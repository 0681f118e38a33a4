"""The pages about training: their code runs from top to bottom, and prints what they say."""

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

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from hyperslab.cli.app import app
from hyperslab.torch.order.slabs import slabs_of
from tests.pages import DOCS, blocks, check_printed, run_page

PAGES = [
    "tutorials/train-fast.md",
    "how-to/train-on-slices.md",
    "how-to/many-files.md",
    "how-to/ragged-cohorts.md",
    "how-to/caching.md",
    "how-to/ddp.md",
    "how-to/reproducibility.md",
    "how-to/migrate-an-h5py-dataset.md",
]
SCRIPT = DOCS / "scripts" / "block_shuffle.py"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Let small networks not wait for the threads of a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.filterwarnings("ignore::hyperslab.errors.DamagedCaseWarning")
def test_a_page_prints_what_it_says(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = run_page(page, tmp_path, monkeypatch)
    names.clear()  # or the classes of the page keep loaders alive
    printed = capsys.readouterr()
    check_printed(printed.out, "".join(blocks(page, "text")))
    for told in re.findall(r"`(Decoding [^`]*)\.\.\.`", (DOCS / page).read_text(encoding="utf-8")):
        assert told in printed.err
    for session in blocks(page, "console"):
        command, _, output = session.partition("\n")
        if command.startswith("$ hyperslab "):
            result = CliRunner().invoke(app, command.split()[2:], env={"COLUMNS": "80"})
            assert result.exit_code == 0
            shown = re.sub(r" +$", "", result.stdout, flags=re.M)
            check_printed(shown, output.rstrip("\n") + "...")


def test_a_page_that_says_something_else_is_found() -> None:
    check_printed("a 1.02 b 7\nx\ny\nz\n", "a 1.00 b 7\n...z\n")
    timed = "9 samples, 70 per second, 3% of the time: the model is the bottleneck\n"
    check_printed(timed, timed.replace("70", "812").replace("the model", "the loader"))
    for said in ("a 1.00 b 8\n", "a 1.20 b 7\n", "a 1.00 b 7\nmore\n", "a 1.00\n"):
        with pytest.raises(AssertionError):
            check_printed("a 1.02 b 7\n", said)


@pytest.mark.skipif(os.name != "posix", reason="ends what hangs by its process group")
def test_the_script_for_several_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, script, *_ = blocks("how-to/ddp.md", "python")
    monkeypatch.chdir(tmp_path)
    exec(data, {})
    Path("train.py").write_text(script, encoding="utf-8")
    (session,) = blocks("how-to/ddp.md", "console")
    command, _, output = session.partition("\n")
    assert command.startswith("$ torchrun ")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    with subprocess.Popen(
        [*torchrun, *command.split()[2:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, errors = process.communicate(timeout=120)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    check_printed(printed, output)


# --- block shuffle


@pytest.fixture
def script() -> ModuleType:
    """What draws the picture, imported."""
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("block_shuffle", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_block_shuffle_is_measured_and_drawn_on_one_cohort(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: ModuleType,
) -> None:
    page = "explanation/block-shuffle.md"
    names = run_page(page, tmp_path, monkeypatch)
    check_printed(capsys.readouterr().out, "".join(blocks(page, "text")))
    slabs = slabs_of(names["ds"], 1 << 30)
    drawn = script.cohort(script.N_CASES, script.DEPTH, script.SLAB_DEPTH, script.SLICE_NBYTES)
    for column in ("first", "case", "begin", "end", "nbytes"):
        np.testing.assert_array_equal(getattr(slabs, column), getattr(drawn, column))


def test_the_picture_of_block_shuffle_is_as_drawn_now(tmp_path: Path, script: ModuleType) -> None:
    from matplotlib.image import imread

    script.main(tmp_path / "now.png")
    now, kept = imread(tmp_path / "now.png"), imread(script.PICTURE)
    assert now.shape == kept.shape
    assert np.abs(now - kept).mean() < 0.01  # fonts may differ
