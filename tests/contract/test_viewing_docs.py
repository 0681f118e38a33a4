"""The pages about viewing and storing: their code runs, and prints what they say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hyperslab.engine import cache
from tests.pages import DOCS, blocks, check_printed, run_page

PAGES = [
    "tutorials/napari.md",
    "how-to/bigdataviewer.md",
    "how-to/doctor.md",
    "how-to/no-pyramid.md",
    "how-to/repack.md",
]
XVFB = ["xvfb-run", "-a", "-s", "-screen 0 1040x700x24 +extension GLX"]
SCRIPT = DOCS / "scripts" / "screenshots.py"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_prints_what_it_says(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("scipy", reason="scipy is not installed")
    cache.clear()  # the pages count what is decoded
    names = run_page(page, tmp_path, monkeypatch)
    check_printed(capsys.readouterr().out, "".join(blocks(page, "text")))
    if page == "tutorials/napari.md":
        assert (tmp_path / "nuclei.csv").read_text().count("\n") == names["n"] + 1
        assert (tmp_path / "cells.png").stat().st_size > 1000
        assert names["layer"]["translate"][1] == pytest.approx(100 * 0.25 + 20.375)


def test_the_pictures_are_those_that_the_script_draws(tmp_path: Path) -> None:
    text = (DOCS / "tutorials" / "napari.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"images/(napari-[^)]*\.png)", text))
    pytest.importorskip("napari", reason="napari is not installed")
    from PIL import Image, ImageStat

    if shutil.which("xvfb-run") is None:
        pytest.skip("no xvfb-run: there is no screen to open windows on")
    subprocess.run(
        [*XVFB, sys.executable, str(SCRIPT), str(tmp_path)],
        check=True,
        timeout=200,
        capture_output=True,
    )
    assert {path.name for path in tmp_path.iterdir()} == shown
    for name in shown:
        with Image.open(tmp_path / name) as drawn, Image.open(DOCS / "images" / name) as kept:
            assert drawn.size == kept.size
            # As bright on the whole, give or take what another driver draws differently.
            means = [ImageStat.Stat(picture.convert("L")).mean[0] for picture in (drawn, kept)]
            assert means[0] == pytest.approx(means[1], abs=12)
