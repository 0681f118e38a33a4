"""Every Python session in the README and the docs runs as it stands there."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sessions_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "hyperslab.torch" in page.read_text(encoding="utf-8"):
        pytest.importorskip("torch", reason="the page uses PyTorch, which is not installed")
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert result.attempted > 0
    assert result.failed == 0


def test_the_tutorial_is_among_them() -> None:
    assert ROOT / "docs" / "tutorials" / "first-steps.md" in PAGES
