"""Files that other people's software wrote: whatever h5py reads of them comes back equal."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Corpus

CHILD = Path(__file__).with_name("corpus_child.py")
PATIENCE_S = 60  # for a batch of files, which takes a second or two

# What the check covered when it was written. It may grow; should it shrink, the reason is wanted.
LEAST_FILES = 376
LEAST_DATASETS = 4100  # integers, floats, complex numbers and booleans

# Where we refuse what h5py reads: a corrupt file has lost its filters, but not the sizes of its
# filtered chunks. h5py takes what follows such a chunk in the file for the rest of it.
KNOWN_TO_BE_STRICTER = {("corrupt-cve/cve-2025-44904.h5", "/Scale_offset_float_data_le")}

Entry = dict[str, Any]  # of the list of these files: see `Corpus`

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """One line of a child's report; see corpus_child.py for the verdicts."""

    file: str
    name: str
    verdict: str
    detail: str

    def __str__(self) -> str:
        return f"{self.file} {self.name}: {self.verdict}: {self.detail}"


@dataclass(slots=True)
class Report:
    """What the children of one test had to say.

    Attributes
    ----------
    results
        One for each dataset, group and link.
    done
        Files that were gone through to the end.
    deaths
        File, what was being done ("h5py" or "hyperslab", and the name), and how the child died.
    """

    results: list[Result] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    deaths: list[tuple[str, str, str, str]] = field(default_factory=list)

    def of(self, *verdicts: str) -> list[Result]:
        return [result for result in self.results if result.verdict in verdicts]


def run_child(root: Path, files: list[Entry]) -> Iterator[list[Any]]:
    """Yield the lines of one child, and at the end how it died, if it did."""
    asked = [
        [str(root / entry["name"]), *(item["path"] for item in entry.get("datasets", ()))]
        for entry in files
    ]
    command = [sys.executable, str(CHILD), *map(json.dumps, asked)]
    try:
        child = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)
        output, death = child.stdout, child.returncode and f"exit status {child.returncode}"
        trace = child.stderr
    except subprocess.TimeoutExpired as error:
        output, death = error.stdout or b"", f"not done after {PATIENCE_S} s"
        trace = error.stderr or b""
    for line in output.splitlines():
        yield json.loads(line)
    if death:
        yield ["death", f"{death}; {trace.decode(errors='replace')[-300:]}"]


def read_files(root: Path, files: list[Entry]) -> Report:
    """Have `files` read by one child after the other: each goes on behind the last one's death."""
    report = Report()
    while files:
        started = 0
        current, step = "", ("", "")
        for kind, *rest in run_child(root, files):
            if kind == "file":
                current, started = files[started]["name"], started + 1
            elif kind == "end":
                report.done.append(current)
            elif kind == "result":
                report.results.append(Result(current, *rest))
            elif kind == "death":
                report.deaths.append((current, *step, *rest))
            else:
                step = (kind, rest[0])
        files = files[max(1, started) :]
    return report


def read_all(root: Path, files: list[Entry]) -> Report:
    """Read `files` by two children at a time."""
    # Neighbours are alike, large ones too: deal them out.
    n = max(1, len(files) // 20)
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(lambda i: read_files(root, files[i::n]), range(n)))
    whole = Report()
    for part in parts:
        whole.results += part.results
        whole.done += part.done
        whole.deaths += part.deaths
    counts = Counter(result.verdict for result in whole.results)
    log.info("%d files: %s", len(whole.done), dict(counts))
    for result in whole.of("neither", "refused"):
        log.info("%s", result)
    return whole


def test_sound_files(corpus: Corpus) -> None:
    entries = {
        entry["name"]: entry
        for entry in corpus.entries
        if entry.get("opens") and entry["kind"] != "corrupt"
    }
    report = read_all(corpus.root, list(entries.values()))
    assert not report.deaths
    assert sorted(report.done) == sorted(entries)
    assert len(report.done) >= LEAST_FILES
    assert not [str(result) for result in report.of("different", "excess")]
    # h5py fills what a missing source would have supplied; we say that it is missing.
    refused = [str(result) for result in report.of("refused")]
    assert all(": MissingSourceError: " in text for text in refused), refused
    assert len(refused) <= 1
    assert len(report.of("equal")) >= LEAST_DATASETS
    # Nothing that the list of these files names was passed over.
    seen = {(result.file, result.name) for result in report.results}
    listed = {(name, item["path"]) for name, entry in entries.items() for item in entry["datasets"]}
    assert len(listed) > 1000
    assert not listed - seen


def test_corrupt_files(corpus: Corpus) -> None:
    """Errors, not wrong data, and no death that the HDF5 library alone does not die as well."""
    files = [
        entry
        for entry in corpus.entries
        if entry["kind"] == "corrupt" and not entry["name"].endswith(".md")
    ]
    report = read_all(corpus.root, files)
    assert [death for death in report.deaths if death[1] != "h5py"] == []
    assert len(report.done) + len(report.deaths) == len(files) >= 90
    assert not [str(result) for result in report.of("different", "excess")]
    refused = {(result.file, result.name) for result in report.of("refused")}
    assert refused <= KNOWN_TO_BE_STRICTER
    assert len(report.of("neither")) >= 50
    assert len(report.of("equal")) >= 100


def test_the_check_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is wrong, and one that dies, are found out and laid at the right door."""
    import h5py
    import numpy as np

    for name in ("a", "b", "c"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as h5:
            h5["x"] = np.arange(5)
    broken = tmp_path / "broken_child.py"
    broken.write_text(
        "import os, sys\n"
        f"sys.path.insert(0, {str(CHILD.parent)!r})\n"
        "import corpus_child, hyperslab\n"
        "read = hyperslab.Array.__getitem__\n"
        "def wrong(self, index):\n"
        "    if self.file.endswith('b.h5'):\n"
        "        os.abort()\n"
        "    return read(self, index) + self.file.endswith('c.h5')\n"
        "hyperslab.Array.__getitem__ = wrong\n"
        "corpus_child.main(sys.argv[1:])\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "CHILD", broken)
    report = read_files(tmp_path, [{"name": f"{name}.h5"} for name in "abc"])
    assert [(r.file, r.verdict) for r in report.results if r.name == "/x"] == [
        ("a.h5", "equal"),
        ("c.h5", "different"),
    ]
    assert [death[:3] for death in report.deaths] == [("b.h5", "hyperslab", "/x")]
    assert report.done == ["a.h5", "c.h5"]
