"""What every test may use: hypothesis profiles, the real files, and a check for leaks."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# The default profile draws the same cases on every run; `make fuzz` draws new ones, and many more.
# There is no deadline: the first read of a process imports the codecs and starts the threads.
settings.register_profile("default", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("fuzz", derandomize=False, deadline=None, max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


# What the tests find out about their files goes nowhere that outlives them; child processes inherit
# the variable.
_CACHE = tempfile.TemporaryDirectory(prefix="hyperslab-tests-")
os.environ["HYPERSLAB_CACHE_DIR"] = _CACHE.name

# What `hyperslab.torch` is tested by, where PyTorch is not installed: left out, and said so.
_NEED_TORCH = (
    "contract/test_training_docs.py",
    "integration/test_bench_training.py",
    "integration/test_case_cache.py",
    "integration/test_cohorts.py",
    "integration/test_examples.py",
    "integration/test_facts.py",
    "integration/test_foreign.py",
    "integration/test_loader.py",
    "integration/test_torch.py",
    "integration/test_training_proofs.py",
    "unit/test_draws.py",
    "unit/test_order.py",
    "unit/test_scaling.py",
    "unit/test_transforms.py",
)
# And what writes medical images, where the packages of the extra "medical" are not.
_NEED_MEDICAL = (
    "contract/test_packing_docs.py",
    "integration/test_pack.py",
    "integration/test_pack_corpus.py",
    "integration/test_pack_interrupted.py",
    "property/test_pack_killed.py",
)
_LEFT_OUT = {
    package: names
    for package, names in {
        "torch": _NEED_TORCH,
        "nibabel": _NEED_MEDICAL,
        "pydicom": _NEED_MEDICAL,
        "SimpleITK": _NEED_MEDICAL,
    }.items()
    if importlib.util.find_spec(package) is None
}
collect_ignore = [name for names in _LEFT_OUT.values() for name in names]


def pytest_report_header() -> list[str]:
    """Say at the top of a run what is left out."""
    return [
        f"{package} is not installed, so these are left out: {', '.join(names)}"
        for package, names in _LEFT_OUT.items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Files that other people's software wrote, with what is known of each.

    Attributes
    ----------
    root
        The folder.
    entries
        `list.json`: one record a file, with `name` (path below `root`), `kind`, `opens` (whether
        the HDF5 library opens it; absent for sources in other formats) and `datasets` (`path`,
        `shape`, `dtype`, `layout`, `chunks`, `filters`).
    """

    root: Path
    entries: tuple[dict[str, Any], ...]

    def path(self, name: str) -> Path:
        return self.root / name

    def readable(self, kind: str | None = None) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield path and record of every HDF5 file that is no deliberately corrupt one.

        `kind` limits them, to "imaris" for instance.
        """
        for entry in self.entries:
            if not entry.get("opens") or entry["kind"] == "corrupt":
                continue
            if kind in (None, entry["kind"]):
                yield self.path(entry["name"]), entry


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """The real files; skips the test where they are not."""
    named = os.environ.get("HYPERSLAB_CORPUS")
    root = Path(named) if named else ROOT.parent / "shared" / "corpus"
    listing = root / "list.json"
    if not listing.is_file():
        pytest.skip(f"no real files: {listing} is absent (HYPERSLAB_CORPUS names their folder)")
    return Corpus(root=root, entries=tuple(json.loads(listing.read_text())))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if mount is None or sys.platform != "linux" or os.geteuid():
        pytest.skip("needs the right to mount a file system")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], check=False)
    if made.returncode:
        pytest.skip("this container may not mount")
    yield disk
    subprocess.run(["umount", disk], check=True)


# Kept by the interpreter and its libraries for good (matplotlib its fonts); no test's doing. Shared
# memory is how DataLoader workers hand tensors over, and PyTorch keeps some.
_NEVER_A_LEAK = (
    os.path.realpath(sys.prefix),  # as the system names an open file, links resolved
    os.path.realpath(sys.base_prefix),
    "/usr/",
    "/lib",
    "/etc/",
    "/dev/",
    "/memfd:",
)


def _open_files() -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):
        link = f"/proc/self/fd/{number}"
        try:
            target, mode = os.readlink(link), os.stat(link).st_mode
        except FileNotFoundError:  # the descriptor that listdir itself had
            continue
        if stat.S_ISREG(mode) and not target.startswith(_NEVER_A_LEAK):
            yield f"open file {target}"


def _mapped_files() -> Iterator[str]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        path = fields[5] if len(fields) == 6 else ""
        if path.startswith("/") and ".so" not in path and not path.startswith(_NEVER_A_LEAK):
            yield f"mapped file {path}"


def _threads() -> Iterator[str]:
    for thread in threading.enumerate():
        if not thread.name.startswith("hyperslab-"):  # the library's own pool is kept on purpose
            yield f"thread {thread.name!r} ({thread.ident})"


def _held() -> Counter[str]:
    held = Counter(_threads())
    if sys.platform == "linux":
        held.update(_open_files())
        held.update(_mapped_files())
    return held


def _release_idle() -> None:
    """Make the library close what it keeps open between reads, and drop what nobody refers to."""
    source = sys.modules.get("hyperslab.engine.source")
    if source is not None:
        source.close_idle()
    zarr = sys.modules.get("zarr.core.sync")
    if zarr is not None:
        zarr.cleanup_resources()  # the thread of its event loop
    gc.collect()


@pytest.fixture
def find_leaks() -> Callable[[float], list[str]]:
    """A function that says what is held now and was not when the fixture was set up.

    It takes the seconds for which it waits for threads to end.
    """
    before = _held()

    def find(patience_s: float) -> list[str]:
        give_up = time.monotonic() + patience_s
        while leaked := _held() - before:
            _release_idle()
            if time.monotonic() > give_up:
                leaked = _held() - before
                break
            time.sleep(0.01)
        return sorted(leaked.elements())

    return find


@pytest.fixture(autouse=True)
def _no_leaks(find_leaks: Callable[[float], list[str]]) -> Iterator[None]:
    yield
    leaked = find_leaks(2.0)
    if leaked:
        pytest.fail("the test leaves behind: " + "; ".join(leaked), pytrace=False)


@pytest.fixture(autouse=True)
def _limits_as_found() -> Iterator[None]:
    """Undo what a test, or a page of the docs that it runs, has configured for the process."""
    from hyperslab.engine.limits import configure, limits

    threads, cache_nbytes = limits.threads, limits.cache_nbytes
    yield
    configure(threads=threads, cache_nbytes=cache_nbytes)
