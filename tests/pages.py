"""The code of the documentation's pages, run as a reader would run it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"


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
