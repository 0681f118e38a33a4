"""The code of the documentation's pages, run as a reader would run it."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"

# What need not be printed digit by digit; sizes of compressed data depend on the zlib.
NEAR = re.compile(r"\d+\.\d+|\d+(?= kB|×)")


def run_page(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the ```python blocks of `page` (below docs/) from top to bottom, in `folder`.

    Returns
    -------
    dict
        The names that they leave behind.
    """
    path = DOCS / page
    text = path.read_text(encoding="utf-8")
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M))
    assert blocks, f"{page} has no code"
    for block in blocks:
        # As far down as on the page, so that a traceback names its line.
        above = "\n" * text.count("\n", 0, block.start(1))
        exec(compile(above + block[1], str(path), "exec"), names)
    return names


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M)


def check_printed(printed: str, said: str) -> None:
    """Compare what was printed with what a page says: "..." stands for anything, in lines or lines.

    Figures with a point may be off by a few per cent. In a loader's report, all depend on the
    machine, and so does what the bottleneck is.
    """
    pattern = ""
    figures: list[float] = []
    for line in said.splitlines(keepends=True):
        timed = "per second" in line
        figures += [] if timed else map(float, NEAR.findall(line))
        known = re.escape((re.compile(r"\d+") if timed else NEAR).sub("\0", line))
        known = known.replace(re.escape("\0"), r"\d+" if timed else r"(\d+(?:\.\d+)?)")
        if timed:
            known = known.replace(r"the\ loader", r"the\ (?:loader|model)")
        pattern += known.replace(re.escape("..."), ".*?")
    found = re.fullmatch(pattern, printed, re.S)
    assert found is not None, f"the page says\n{said}\nand the code prints\n{printed}"
    for figure, value in zip(figures, map(float, found.groups()), strict=True):
        assert math.isclose(figure, value, rel_tol=0.05, abs_tol=0.005), (figure, value, printed)
