"""What the project promises as a whole: its surface, its errors, its floors and its files."""

from __future__ import annotations

import copy
import doctest
import importlib
import importlib.util
import inspect
import mmap
import pickle
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hyperslab import errors

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "hyperslab"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

PUBLIC = ["last_stats", "open", "open_image", "read_many"]
HEAVY = ["h5py", "imagecodecs", "nibabel", "pandas", "pydicom", "SimpleITK", "torch"]

ERRORS = [
    getattr(errors, name)
    for name in errors.__all__
    if issubclass(getattr(errors, name), errors.HyperslabError)
]
FACTS: dict[str, Any] = {
    "file": "cohort.h5",
    "dataset": "/MR/p001",
    "chunk": (3, 0, 12),
    "byte_offset": 2**40,
    "samples": ("p001", "p007"),
}


# Modules that need a package which hyperslab does without, by that package.
OPTIONAL = {"hyperslab.torch": "torch", "hyperslab.xarray": "xarray"}


def is_usable(name: str) -> bool:
    """Tell whether a module can be imported here: what it needs is installed."""
    needs = [p for stem, p in OPTIONAL.items() if name == stem or name.startswith(f"{stem}.")]
    return all(importlib.util.find_spec(package) is not None for package in needs)


def all_modules() -> list[str]:
    names = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [name for name in names if not name.endswith("__main__")]


# --- surface


def test_import_is_light() -> None:
    code = f"import sys, hyperslab; print([m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_public_names() -> None:
    import hyperslab

    assert set(PUBLIC) <= set(hyperslab.__all__)
    assert list(hyperslab.__all__) == sorted(hyperslab.__all__)
    for name in hyperslab.__all__:
        assert getattr(hyperslab, name) is not None


def test_public_things_are_documented() -> None:
    import hyperslab

    things = {name: getattr(hyperslab, name) for name in hyperslab.__all__ if name[0] != "_"}
    for name, thing in list(things.items()):
        if inspect.isclass(thing):
            things |= {f"{name}.{key}": getattr(thing, key) for key in vars(thing) if key[0] != "_"}
    bare = [
        name
        for name, thing in things.items()
        if (callable(thing) or isinstance(thing, property)) and not inspect.getdoc(thing)
    ]
    assert bare == []


def test_version_is_one() -> None:
    import hyperslab

    assert hyperslab.__version__ == PYPROJECT["project"]["version"]


def test_command_is_there() -> None:
    module, _, function = PYPROJECT["project"]["scripts"]["hyperslab"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize("name", all_modules())
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_usable(name):
        pytest.skip("what it needs is not installed")
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name), verbose=False)
    assert result.failed == 0


# --- errors


def test_every_error_is_exported() -> None:
    def tree(root: type) -> set[type]:
        return {root}.union(*(tree(child) for child in root.__subclasses__()))

    for name in filter(is_usable, all_modules()):
        importlib.import_module(name)
    own = {cls for cls in tree(errors.HyperslabError) if cls.__module__.startswith("hyperslab")}
    assert own == set(ERRORS)


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_error_is_also_a_builtin(cls: type[errors.HyperslabError]) -> None:
    builtin = [base for base in cls.__mro__ if base.__module__ == "builtins"]
    specific = set(builtin) - {Exception, BaseException, object}
    assert specific or cls is errors.HyperslabError


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_error_pickles_with_its_facts(cls: type[errors.HyperslabError], protocol: int) -> None:
    error = cls("cohort.h5: chunk (3, 0, 12) is damaged.", **FACTS)
    for twin in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(twin) is cls
        assert str(twin) == str(error) == "cohort.h5: chunk (3, 0, 12) is damaged."
        assert {key: getattr(twin, key) for key in FACTS} == FACTS


def test_absent_facts_are_none() -> None:
    error = errors.ChunkDecodeError("No more is known.")
    assert (error.file, error.dataset, error.chunk, error.byte_offset) == (None,) * 4


# --- floors


def floors_in_contract() -> dict[str, int]:
    contracts = {c["id"]: c for c in PYPROJECT["tool"]["importlinter"]["contracts"]}
    layers = reversed(contracts["floors"]["layers"])
    return {name: floor for floor, layer in enumerate(layers) for name in re.findall(r"\w+", layer)}


def floors_in_docs() -> dict[str, int]:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| ([^|]+) \|", text, flags=re.MULTILINE)
    return {name: int(floor) for floor, cell in rows for name in re.findall(r"`(\w+)/?`", cell)}


def test_floors_are_documented() -> None:
    there = {
        path.stem
        for path in PACKAGE.iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").exists())
        and not path.name.startswith("__")
    }
    contract = floors_in_contract()
    assert floors_in_docs() == {name: contract[name] for name in there}


# --- files


def test_types_are_shipped() -> None:
    assert (PACKAGE / "py.typed").is_file()
    assert PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/hyperslab"]


def test_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert 10 < len(lines) <= 120


def test_all_extra_holds_every_extra() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert set(re.findall(r"\w+", everything)) - {"hyperslab"} == set(extras) - {"all", "dev"}


def test_constraints_pin_what_is_asked_for() -> None:
    pinned = set(re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    project = PYPROJECT["project"]
    asked = project["dependencies"] + [
        item
        for extra in ("dev", "torch", "plot", "medical")
        for item in project["optional-dependencies"][extra]
    ]
    names = {re.match(r"[\w.-]+", item)[0] for item in asked}  # type: ignore[index]
    assert {plain(name) for name in names} <= {plain(name) for name in pinned}


def plain(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_no_file_names_a_machine() -> None:
    """No absolute path of the machine it was written on, and no package registry's host."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode:
        pytest.skip(f"not a git work tree: {listing.stderr.strip()}")
    # Spelt in pieces, so that this file does not name them either.
    folders = [f"/{folder}/" for folder in ("work", "root", "opt")]
    hosts = [
        ".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"))
    ]
    hosts.append("download." + "pytorch.org")
    starts = r"(?<![\w.}>)~*-])"  # not inside a relative path, a variable's path or an address
    machine = re.compile(f"{starts}({'|'.join(folders)})|({'|'.join(map(re.escape, hosts))})")
    found = []
    for name in filter(None, listing.stdout.split("\0")):
        path = ROOT / name
        if not path.is_file() or b"\0" in path.read_bytes():  # deleted, or binary
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if machine.search(line):
                found.append(f"{name}:{number}: {line.strip()}")
    assert found == []


# --- the check that is around every test


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors and maps are listed on Linux only")
def test_leaks_are_found(tmp_path: Path, find_leaks: Callable[[float], list[str]]) -> None:
    assert find_leaks(0) == []
    path = tmp_path / "kept.bin"
    path.write_bytes(b"\0" * mmap.PAGESIZE)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="stray")
    with path.open("rb") as stream:
        thread.start()
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ):
            leaked = find_leaks(0)
            stop.set()
            thread.join()
    # mmap keeps a descriptor of its own beside the stream's.
    assert leaked[:-1] == [f"mapped file {path}"] + [f"open file {path}"] * 2
    assert leaked[-1].startswith("thread 'stray'")
    assert find_leaks(0) == []
