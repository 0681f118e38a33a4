"""Is a file whole? What is said of sound, damaged and deadly files, held against h5py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

import hyperslab as hs
from hyperslab.array import Array
from hyperslab.cli.app import app
from hyperslab.codecs.pipeline import Pipeline
from hyperslab.errors import HyperslabError, MissingFileError, NotHDF5Error, StaleIndexError
from hyperslab.index.container import FileIndex
from hyperslab.soundness import Report, as_dict, decode, process
from hyperslab.soundness.dataset import extent_of_damage
from hyperslab.soundness.process import LibraryProcess
from hyperslab.soundness.slices import common, of_chunks, of_elements, rest
from hyperslab.soundness.verdict import verify_with
from hyperslab.testing import make_cohort
from tests.conftest import Corpus
from tests.libhdf5 import leave_edges_unfiltered
from tests.pages import blocks, check_printed, run_page

CHILD = Path(__file__).with_name("verify_child.py")
PATIENCE_S = 60

Check = Callable[..., Report]
Troubles = dict[str, list[str]]  # by file, what h5py cannot read of it


@pytest.fixture(scope="module")
def check() -> Iterator[Check]:
    """`hs.verify`, with one helping process for the whole module."""
    with LibraryProcess(timeout_s=20) as library:
        yield lambda path, **options: verify_with(library, path, **options)


def h5py_says(paths: list[Path]) -> Troubles:
    """Have h5py read `paths` through, by one child after the other's death."""
    found: Troubles = {}
    while left := [str(path) for path in paths if str(path) not in found]:
        command = [sys.executable, str(CHILD), *left]
        # What the library takes from memory that holds nothing is then the same each time.
        env = {**os.environ, "MALLOC_PERTURB_": "165"}
        child = subprocess.run(
            command, capture_output=True, timeout=PATIENCE_S, check=False, env=env
        )
        current = ""
        for kind, *rest_ in map(json.loads, child.stdout.splitlines()):
            if kind == "file":
                current = rest_[0]
                found[current] = []
            elif kind == "trouble":
                found[current].append(": ".join(rest_))
            else:
                current = ""
        if current:
            found[current].append(f"dies with {child.returncode}")
        assert child.stdout, child.stderr
    return found


# --- files that other people's software wrote, or somebody broke on purpose


def test_corrupt_files(corpus: Corpus, check: Check) -> None:
    """None passes that h5py cannot read through, and none does us any harm."""
    names = [e["name"] for e in corpus.entries if e["kind"] == "corrupt"]
    troubles = h5py_says([corpus.path(name) for name in names])
    assert len(names) >= 95
    unread = {name for name in names if troubles[str(corpus.path(name))]}
    assert len(unread) >= 85
    reports = {name: check(corpus.path(name)) for name in names}
    assert [name for name in unread if reports[name].sound] == []
    assert all(report.sound == (report.state == "intact") for report in reports.values())
    deadly = {n for n in names if any("dies" in t for t in troubles[str(corpus.path(n))])}
    assert deadly >= {"corrupt-cve/cve-2024-32609.h5"}
    for name in deadly:
        told = " ".join(problem.reason for problem in reports[name].problems)
        assert "the HDF5 library dies of it" in told


def test_sound_files(corpus: Corpus, check: Check) -> None:
    """What h5py reads through passes, and what it does not read does not."""
    paths = {str(path): entry["name"] for path, entry in corpus.readable()}
    troubles = h5py_says([Path(path) for path in paths])
    wrong = {}
    n_sound = 0
    for path, name in paths.items():
        report = check(path)
        n_sound += report.sound
        if report.sound == bool(troubles[path]):
            wrong[name] = troubles[path] or (report.problems, report.datasets)
    assert wrong == {}
    assert n_sound >= 340


# --- truncation


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A file with every kind of storage that a truncation can reach, and what is in it."""
    path = tmp_path_factory.mktemp("volumes") / "v.h5"
    rng = np.random.default_rng(3)
    kinds: dict[str, dict[str, Any]] = {
        "gzip": {"compression": "gzip"},
        "sums": {"fletcher32": True, "shuffle": True},
        "plain": {},
        "flat": {"chunks": None},
    }
    with h5py.File(path, "w") as h5:
        for case in range(3):
            for kind, options in kinds.items():
                data = rng.integers(0, 99, (12, 10, 9)).astype("i2")
                h5.create_dataset(f"{kind}/{case}", data=data, **{"chunks": (5, 5, 4)} | options)
    with h5py.File(path) as h5:
        values = {f"/{k}/{c}": h5[f"{k}/{c}"][()] for k in kinds for c in range(3)}
    return path, values


def cut(source: Path, target: Path, nbytes: int) -> Path:
    shutil.copy(source, target)
    os.truncate(target, nbytes)
    return target


@pytest.mark.parametrize("axis", [-1, 0])
def test_truncated_anywhere(
    volumes: tuple[Path, dict[str, Any]], axis: int, tmp_path: Path, check: Check
) -> None:
    """What is called whole comes back with its values, and nothing else can be read."""
    source, values = volumes
    whole = source.stat().st_size
    n_partly = n_intact = 0
    for nbytes in np.random.default_rng(axis + 9).integers(1, whole, 25).tolist():
        path = cut(source, tmp_path / f"{nbytes}.h5", nbytes)
        report = check(path, axis=axis)
        assert not report.sound
        if nbytes < 48:
            assert report.problems
            continue
        assert report.truncated
        assert report.expected_nbytes == whole
        assert report.percent_present == pytest.approx(100 * nbytes / whole)
        container = FileIndex(path, incomplete=True)
        for dataset in report.datasets:
            want = values[dataset.name]
            if dataset.state == "intact":
                n_intact += 1
                assert np.array_equal(Array(container, dataset.name)[...], want)
                assert dataset.intact_slices == ((0, want.shape[axis]),)
                continue
            with pytest.raises(HyperslabError):
                Array(container, dataset.name)[...]
            assert dataset.damage
            assert dataset.intact_slices is not None
            good = [i for low, high in dataset.intact_slices for i in range(low, high)]
            n_partly += bool(good)
            for i in range(want.shape[axis]):
                part: tuple[Any, ...] = (..., i) if axis == -1 else (i,)
                if i in good:
                    assert np.array_equal(Array(container, dataset.name)[part], want[part])
                    continue
                with pytest.raises(HyperslabError):
                    Array(container, dataset.name)[part]
    assert n_intact > 20
    assert n_partly > 0


def test_half_a_cohort(tmp_path: Path, check: Check) -> None:
    source = tmp_path / "c.h5"
    made = make_cohort(source, n_cases=8, shape=(48, 48, 16))
    path = cut(source, tmp_path / "half.h5", source.stat().st_size // 2)
    report = check(path)
    assert report.percent_present == pytest.approx(50.0, abs=0.01)
    assert [case.name for case in report.cases] == list(made["cases"])
    whole = [case.name for case in report.cases if case.intact]
    assert 0 < len(whole) < 8
    torch = pytest.importorskip("hyperslab.torch", reason="PyTorch is not installed")
    with pytest.raises(NotHDF5Error, match=r"truncated.*policy=\"skip\""):
        torch.SliceDataset(path)
    with pytest.warns(hs.errors.DamagedCaseWarning):
        dataset = torch.SliceDataset(path, policy="skip", facts=tmp_path / "facts")
    assert list(dataset.cases) == whole
    bad = [one.reason for one in dataset.skipped if "lie outside" in one.reason]
    assert bad
    assert all("chunks cannot be read; slices along axis 2 that are whole:" in why for why in bad)


@pytest.mark.parametrize(
    ("template", "names", "n_cases"),
    [
        ("{0}/{1}", ("MR", "CT", "mask"), 2),
        ("{1}/{0}", ("MR", "CT", "mask"), 2),
        ("{0}/{1}", ("source", "target"), 3),
        ("{1}/{0}", ("source", "target"), 3),
        ("{0}/{1}", ("MR",), 3),
    ],
)
def test_cases_of_any_cohort(
    template: str, names: tuple[str, ...], n_cases: int, tmp_path: Path, check: Check
) -> None:
    path = tmp_path / "c.h5"
    cases = [f"p{i}" for i in (1, 2, 10)][:n_cases]
    with h5py.File(path, "w") as h5:
        for case in cases:
            for name in names:
                h5[template.format(name, case)] = np.zeros((3, 4, 5))
    found = check(path).cases
    assert [case.name for case in found] == (cases if len(names) > 1 else [])
    for case in found:
        want = {"/" + template.format(name, case.name) for name in names}
        assert (set(case.datasets), case.bad, case.intact_slices) == (want, (), ((0, 5),))


# --- damage to one chunk


def flip(path: Path, at: int) -> None:
    with open(path, "r+b") as stream:
        stream.seek(at)
        [byte] = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte ^ 0x10]))


@pytest.mark.parametrize(
    ("options", "word"),
    [({"compression": "gzip"}, "gzip"), ({"fletcher32": True}, "fletcher32")],
    ids=["gzip", "fletcher32"],
)
def test_damaged_chunks_are_named(
    options: dict[str, Any], word: str, tmp_path: Path, check: Check
) -> None:
    path = tmp_path / "x.h5"
    data = np.random.default_rng(0).normal(size=(20, 20, 20)).astype("f4")
    with h5py.File(path, "w", userblock_size=1024) as h5:
        h5.create_dataset("MR/a", data=data, chunks=(8, 8, 6), **options)
        h5.create_dataset("MR/b", data=data, chunks=(8, 8, 6), **options)
        h5.create_dataset("CT/a", data=data, chunks=(8, 8, 6), **options)
        h5.create_dataset("CT/b", data=data, chunks=(8, 8, 6), **options)
        infos = [h5["CT/b"].id.get_chunk_info(i) for i in (1, 30)]
    assert check(path).sound
    for info in infos:
        flip(path, info.byte_offset + info.size // 2)
    report = check(path)
    assert (report.state, report.truncated, report.problems) == ("damaged", False, ())
    [bad] = [dataset for dataset in report.datasets if dataset.state != "intact"]
    assert (bad.name, bad.n_chunks, bad.n_bad, bad.chunks) == ("/CT/b", 36, 2, (8, 8, 6))
    for damage, info in zip(bad.damage, infos, strict=True):
        assert damage.chunk == tuple(
            o // c for o, c in zip(info.chunk_offset, (8, 8, 6), strict=True)
        )
        assert (damage.byte_offset, damage.nbytes) == (info.byte_offset, info.size)
        assert word in damage.reason
    assert [damage.chunk for damage in bad.damage] == [(0, 0, 1), (2, 1, 2)]
    assert bad.intact_slices == ((0, 6), (18, 20))
    assert [(case.name, case.bad) for case in report.cases] == [("a", ()), ("b", ("/CT/b",))]
    assert report.cases[1].intact_slices == ((0, 6), (18, 20))
    extent = extent_of_damage(Array(FileIndex(path), "/CT/b"), 2)
    assert extent.startswith("2 of its 36 chunks")
    assert extent.endswith(": 0-5, 18-19.")
    assert extent_of_damage(Array(FileIndex(path), "/CT/a"), 2) == ""
    assert check(path, quick=True).sound
    assert check(path, axis=1).datasets[1].intact_slices == ((16, 20),)
    assert check(path, axis=5).datasets[1].intact_slices is None
    assert json.loads(json.dumps(as_dict(report)))["datasets"][1]["n_bad"] == 2


def test_every_chunk_is_decoded_once(
    tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.h5"
    data = np.random.default_rng(0).integers(0, 9, (40, 40)).astype("i4")
    with h5py.File(path, "w") as h5:
        h5.create_dataset("a", data=data, chunks=(5, 5), compression="gzip", shuffle=True)
        sparse = h5.create_dataset("b", (40, 40), "i4", chunks=(7, 7), compression="lzf")
        sparse[3:9, 30:] = 1
        h5.create_dataset("c", data=data, chunks=(9, 9))
    counts: dict[int, int] = {}
    lock, whole = threading.Lock(), Pipeline.decode

    def count(self: Pipeline, *arguments: Any) -> Any:
        with lock:
            counts[id(self)] = counts.get(id(self), 0) + 1
        return whole(self, *arguments)

    monkeypatch.setattr(Pipeline, "decode", count)
    report = check(path, threads=3)
    assert report.sound
    assert sorted(counts.values()) == [4, 64]
    assert [dataset.n_chunks for dataset in report.datasets] == [64, 4, 25]
    counts.clear()
    assert check(path, quick=True).sound
    assert not counts


def test_flips_anywhere(tmp_path: Path, check: Check) -> None:
    """Whatever byte is wrong: nothing passes that h5py cannot read."""
    source = tmp_path / "source.h5"
    data = np.random.default_rng(0).integers(0, 9, (16, 16)).astype("i4")
    with h5py.File(source, "w") as h5:
        h5.create_dataset("g/a", data=data, chunks=(8, 8), compression="gzip")
        h5.create_dataset("g/b", data=data, chunks=(8, 8), fletcher32=True)
        h5["g"].attrs["name"] = "some text"
        h5.create_dataset("words", data=["a", "bc"])
    with open(source, "rb") as stream:
        content = stream.read()
    # Nearly all of it is unused, and zero.
    used = [i for i, byte in enumerate(content) if byte]
    paths = []
    for at in np.random.default_rng(1).choice(used, 80, replace=False).tolist():
        paths.append(tmp_path / f"{at}.h5")
        shutil.copy(source, paths[-1])
        flip(paths[-1], at)
    troubles = h5py_says(paths)
    reports = {str(path): check(path) for path in paths}
    unread = {path for path, told in troubles.items() if told}
    assert 20 < len(unread) < 79
    assert [path for path in unread if reports[path].sound] == []
    stricter = {path for path, report in reports.items() if not report.sound} - unread
    assert len(stricter) < 5, [reports[path] for path in stricter]


def test_damage_without_a_checksum_may_pass(tmp_path: Path, check: Check) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as h5:
        offset = h5.create_dataset("x", data=np.arange(1000)).id.get_offset()
    flip(path, offset + 99)
    assert check(path).sound


# --- damage to the index


def index_file(path: Path, **options: Any) -> tuple[list[int], bytes]:
    """Write dataset "x" of four chunks and a sound one; return byte offsets, and the file."""
    data = np.random.default_rng(0).integers(0, 9, (20, 20)).astype("i4")
    with h5py.File(path, "w", **options) as h5:
        dataset = h5.create_dataset("x", data=data, chunks=(10, 10))
        h5.create_dataset("y", data=data, chunks=(10, 10), compression="gzip")
        offsets = [dataset.id.get_chunk_info(i).byte_offset for i in range(4)]
    return offsets, path.read_bytes()


def as_address(offset: int) -> bytes:
    return offset.to_bytes(8, "little")


def test_a_chunk_index_that_is_destroyed(tmp_path: Path, check: Check) -> None:
    path = tmp_path / "x.h5"
    offsets, content = index_file(path)
    at = content.index(b"TREE\x01")
    assert at < content.index(as_address(offsets[0]))
    path.write_bytes(content[:at] + b"LOST" + content[at + 4 :])
    report = check(path)
    x, y = report.datasets
    assert (x.state, y.state) == ("damaged", "intact")
    assert "chunk index cannot be read" in x.damage[0].reason
    assert x.intact_slices == ()


def test_entries_of_the_index_that_are_wrong(tmp_path: Path, check: Check) -> None:
    path = tmp_path / "x.h5"
    offsets, content = index_file(path)
    third = content.index(as_address(offsets[2]))

    def with_entry(offset: int) -> Any:
        path.write_bytes(content[:third] + as_address(offset) + content[third + 8 :])
        return check(path, quick=True).datasets[0]

    far = with_entry(len(content) - 100)
    assert [(d.chunk, d.byte_offset, d.nbytes) for d in far.damage] == [
        ((1, 0), len(content) - 100, 400)
    ]
    assert "outside the file" in far.damage[0].reason
    assert far.intact_slices == ((10, 20),)
    shared = with_entry(offsets[0])
    assert [damage.chunk for damage in shared.damage] == [(0, 0), (1, 0)]
    assert all("same bytes" in damage.reason for damage in shared.damage)
    partly = with_entry(offsets[1] + 200)
    assert {(0, 1), (1, 0)} <= {damage.chunk for damage in partly.damage}
    assert with_entry(offsets[2]).state == "intact"
    # Before the address: the stored size, the filter mask, and three offsets.
    path.write_bytes(content[: third - 32] + (399).to_bytes(4, "little") + content[third - 28 :])
    short = check(path, quick=True).datasets[0]
    assert [(d.chunk, d.reason) for d in short.damage] == [((1, 0), "it takes 399 bytes, not 400")]


def test_missing_and_undecodable_chunks_of_one_dataset(tmp_path: Path, check: Check) -> None:
    path = tmp_path / "x.h5"
    data = np.random.default_rng(0).integers(0, 99, (10, 50)).astype("i4")
    with h5py.File(path, "w") as h5:
        dataset = h5.create_dataset("x", (10, 50), "i4", chunks=(10, 10), compression="gzip")
        for i in (4, 0, 3, 1, 2):  # so that those that will be missing are the middle ones
            dataset[:, 10 * i : 10 * i + 10] = data[:, 10 * i : 10 * i + 10]
        h5.flush()
        infos = [dataset.id.get_chunk_info(i) for i in range(5)]
    os.truncate(path, infos[1].byte_offset + 1)
    flip(path, infos[3].byte_offset + infos[3].size // 2)
    [x] = check(path).datasets
    assert [damage.chunk for damage in x.damage] == [(0, 1), (0, 2), (0, 3)]
    assert [("outside" in d.reason, "gzip" in d.reason) for d in x.damage] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    assert x.intact_slices == ((0, 10), (40, 50))


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_chunks_that_were_never_written(libver: str, tmp_path: Path, check: Check) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver=libver) as h5:
        part = h5.create_dataset("part", (8, 8), "f4", chunks=(4, 4), fillvalue=-1024)
        part[:4, :4] = 1
        h5.create_dataset("none", (8, 8), "f4", chunks=(4, 4))
        h5.create_dataset("late", (8, 8), "f4")
        grown = h5.create_dataset("grown", (9, 4), "f4", chunks=(2, 2), maxshape=(9, None))
        grown[...] = 3
        grown.resize((3, 4))
        grown.resize((5, 7))
        h5.create_dataset("null", data=h5py.Empty("f4"))
        h5["scalar"] = 3.5
        h5["nothing"] = np.zeros((0, 4))
    report = check(path)
    assert report.sound, report
    chunks = {dataset.name: dataset.n_chunks for dataset in report.datasets}
    assert (chunks["/part"], chunks["/none"], chunks["/late"]) == (1, 0, 0)


def test_edges_that_are_not_filtered(tmp_path: Path, check: Check) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver="latest") as h5:
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        dcpl.set_chunk((4, 4))
        dcpl.set_deflate(4)
        leave_edges_unfiltered(dcpl)
        space = h5py.h5s.create_simple((7, 9))
        made = h5py.Dataset(h5py.h5d.create(h5.id, b"x", h5py.h5t.NATIVE_INT32, space, dcpl))
        made[...] = np.arange(63).reshape(7, 9)
    assert check(path).sound


# --- what a file refers to


def test_links(tmp_path: Path, check: Check) -> None:
    path, other = tmp_path / "x.h5", tmp_path / "other.h5"
    with h5py.File(other, "w") as h5:
        h5.create_dataset("data", data=np.arange(40), chunks=(10,), fletcher32=True)
        info = h5["data"].id.get_chunk_info(2)
    with h5py.File(path, "w") as h5:
        h5["a/x"] = np.arange(4)
        h5["good"] = h5py.SoftLink("/a/x")
        h5["there"] = h5py.ExternalLink("other.h5", "/data")
        h5["round"] = h5["/"]
    report = check(path)
    assert report.sound
    assert [(dataset.name, dataset.file) for dataset in report.datasets] == [
        ("/a/x", str(path)),
        ("/there", str(other)),
    ]
    flip(other, info.byte_offset)
    assert [d.chunk for d in check(path).datasets[1].damage] == [(2,)]
    with h5py.File(path, "a") as h5:
        h5["soft"] = h5py.SoftLink("/nowhere")
        h5["gone"] = h5py.ExternalLink("gone.h5", "/data")
    other.unlink()
    report = check(path)
    assert not report.sound
    assert {problem.where for problem in report.problems} == {"/soft", "/gone", "/there"}
    assert "gone.h5, which is not there" in next(
        problem.reason for problem in report.problems if problem.where == "/gone"
    )


def test_virtual_datasets(tmp_path: Path, check: Check) -> None:
    parts = [tmp_path / f"part{i}.h5" for i in range(3)]
    layout = h5py.VirtualLayout((8, 6, 3), "i4")
    for i, part in enumerate(parts):
        with h5py.File(part, "w") as h5:
            data = np.full((8, 6), i, "i4")
            h5.create_dataset("x", data=data, chunks=(4, 6), fletcher32=True)
            info = h5["x"].id.get_chunk_info(1)
        layout[:, :, i] = h5py.VirtualSource(part.name, "x", (8, 6))
    path = tmp_path / "whole.h5"
    with h5py.File(path, "w") as h5:
        h5.create_virtual_dataset("v", layout)
    report = check(path)
    assert report.sound
    assert [dataset.name for dataset in report.datasets] == ["/v", "/x", "/x", "/x"]
    flip(parts[2], info.byte_offset)
    parts[0].unlink()
    report = check(path)
    v, *sources = report.datasets
    assert v.n_bad == 2
    assert v.intact_slices == ((1, 2),)
    assert f"it needs {parts[0]}, which is not there" in v.damage[0].reason
    assert "damaged" in v.damage[1].reason
    assert [(s.file, s.state) for s in sources] == [
        (str(parts[1]), "intact"),
        (str(parts[2]), "damaged"),
    ]
    os.truncate(parts[1], parts[1].stat().st_size // 2)
    assert check(path).datasets[0].intact_slices == ()


def test_raw_files(tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = np.arange(60, dtype="i4").reshape(10, 6)
    with h5py.File("x.h5", "w") as h5:
        h5.create_dataset("x", data=data, external=[("a.raw", 0, 120), ("b.raw", 10, 120)])
    assert check("x.h5", axis=0).sound
    os.truncate("b.raw", 10 + 120 - 50)
    [x] = check("x.h5", axis=0).datasets
    assert (x.storage, x.n_bad, x.intact_slices) == ("external", 1, ((0, 7),))
    assert (x.damage[0].byte_offset, x.damage[0].nbytes) == (80, 50)
    Path("a.raw").unlink()
    [x] = check("x.h5", axis=0).datasets
    assert x.intact_slices == ((5, 7),)
    assert "a.raw, which is not there" in x.damage[0].reason


def test_filters_that_nothing_decodes(tmp_path: Path, check: Check) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as h5:
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        dcpl.set_chunk((4,))
        dcpl.set_filter(405, h5py.h5z.FLAG_OPTIONAL, (1,))
        space = h5py.h5s.create_simple((8,))
        made = h5py.h5d.create(h5.id, b"x", h5py.h5t.NATIVE_INT32, space, dcpl)
        made.write_direct_chunk((0,), b"something")
        h5["y"] = np.arange(3)
    for quick in (False, True):
        report = check(path, quick=quick)
        assert (report.state, report.sound) == ("unchecked", False)
        assert [dataset.state for dataset in report.datasets] == ["unchecked", "intact"]
        assert "405" in report.datasets[0].unchecked


def test_a_mark_of_a_writer_that_died(tmp_path: Path, check: Check) -> None:
    path, left = tmp_path / "x.h5", tmp_path / "left.h5"
    with h5py.File(path, "w", libver="latest") as h5:
        h5.create_dataset("x", data=np.arange(99), chunks=(10,), maxshape=(None,))
        h5.swmr_mode = True
        h5.flush()
        shutil.copy(path, left)
    report = check(left)
    assert [problem.where for problem in report.problems] == [""]
    assert "marked as open for writing" in report.problems[0].reason
    assert [dataset.state for dataset in report.datasets] == ["intact"]
    assert check(path).sound


# --- no HDF5 files, and files that change


def test_what_is_no_hdf5_file(tmp_path: Path, check: Check) -> None:
    with pytest.raises(MissingFileError):
        check(tmp_path / "gone.h5")
    with pytest.raises(MissingFileError):
        check(tmp_path)
    (tmp_path / "empty.h5").touch()
    (tmp_path / "text.h5").write_text("no HDF5 in here")
    for name, word in (("empty", "is empty"), ("text", "no HDF5 signature")):
        report = check(tmp_path / f"{name}.h5")
        assert (report.sound, report.expected_nbytes, report.percent_present) == (False, None, None)
        assert word in report.problems[0].reason
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotHDF5Error, match="pipe"):
        check(tmp_path / "pipe")


def test_a_file_that_changes_meanwhile(
    tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.h5"
    index_file(path)
    whole = decode.check_work

    def slowly(*arguments: Any, **options: Any) -> None:
        whole(*arguments, **options)
        os.utime(path, ns=(1, 1))

    monkeypatch.setattr("hyperslab.soundness.verdict.check_work", slowly)
    with pytest.raises(StaleIndexError, match=r"x\.h5"):
        check(path)


# --- a library that dies, hangs, or lies


SABOTAGE = """
import sys; sys.path[:] = {path!r}
import os, time
from hyperslab.soundness import child, objects
whole = objects.describe
def describe(dataset, path, axis):
    if "bad" in path:
        ACTION
    return whole(dataset, path, axis=axis)
objects.describe = describe
child.main()
"""


@pytest.mark.parametrize(
    ("action", "word"),
    [
        ("os.abort()", "dies of it (SIGABRT)"),
        ("os._exit(3)", "dies of it (exit status 3)"),
        ("time.sleep(60)", "has not come back after 0.7 s"),
        ("os.write(4, b'x' * 100); os.write(5, b'x' * 100)", "cannot be described|dies|hangs|back"),
        ("bytearray(1 << 40)", "cannot be described"),
    ],
    ids=["abort", "exit", "hang", "garbage", "memory"],
)
def test_a_library_that_fails(
    action: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as h5:
        for name in ("a", "bad", "c"):
            h5[name] = np.arange(9)
    monkeypatch.setattr(process, "_PROGRAM", SABOTAGE.replace("ACTION", action))
    report = hs.verify(path, timeout_s=0.7)
    assert [problem.where for problem in report.problems] == ["/bad"]
    assert any(each in report.problems[0].reason for each in word.split("|"))
    assert [(d.name, d.state) for d in report.datasets] == [("/a", "intact"), ("/c", "intact")]


def test_a_library_that_always_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as h5:
        for i in range(process._MOST_DEATHS + 3):
            h5[f"bad{i:02}"] = np.arange(9)
        h5["a"] = np.arange(9)
    monkeypatch.setattr(process, "_PROGRAM", SABOTAGE.replace("ACTION", "os._exit(1)"))
    report = hs.verify(path)
    assert [p.where for p in report.problems][:-1] == [
        f"/bad{i:02}" for i in range(process._MOST_DEATHS)
    ]
    assert "given up on" in report.problems[-1].reason
    assert [dataset.name for dataset in report.datasets] == ["/a"]
    monkeypatch.setattr(process, "_PROGRAM", SABOTAGE.replace("ACTION", "time.sleep(60)"))
    report = hs.verify(path, timeout_s=0.3)
    assert [problem.where for problem in report.problems] == ["/bad00", "/bad01", ""]
    monkeypatch.setattr(process, "_PROGRAM", "raise SystemExit(7)")
    report = hs.verify(path)
    assert [p.reason for p in report.problems] == [
        "the HDF5 library dies of it (exit status 7) when it is looked at"
    ]


def test_this_process_never_asks_the_library(tmp_path: Path) -> None:
    path = tmp_path / "c.h5"
    make_cohort(path, n_cases=2, shape=(16, 16, 4))
    code = (
        "import sys, hyperslab as hs\n"
        "from hyperslab.soundness.report import Report\n"  # its package is not what hs.verify is
        "print(hs.verify(sys.argv[1]).sound, 'h5py' in sys.modules, 'torch' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["True", "False", "False"]


# --- ranges of slices


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slices_equal_a_full_search(axis: int) -> None:
    rng = np.random.default_rng(axis)
    for _ in range(60):
        shape = tuple(int(n) for n in rng.integers(1, 7, 3))
        chunks = tuple(int(n) for n in rng.integers(1, 4, 3))
        bad = np.zeros(shape, bool)
        first, stop = sorted(int(n) for n in rng.integers(0, bad.size + 1, 2))
        bad.reshape(-1)[first:stop] = True
        others = tuple(i for i in range(3) if i != axis)
        assert (
            listed(of_elements(first, stop, shape, axis))
            == np.flatnonzero(bad.any(others)).tolist()
        )
        grid = [-(-n // c) for n, c in zip(shape, chunks, strict=True)]
        number = rng.choice(int(np.prod(grid)), int(rng.integers(1, np.prod(grid) + 1)), False)
        bad[...] = False
        for n in number:
            at = np.unravel_index(n, grid)
            bad[tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, chunks, strict=True))] = True
        found = of_chunks(number, shape, chunks, axis)
        assert listed(found) == np.flatnonzero(bad.any(others)).tolist()
        whole = rest(found, shape[axis])
        assert listed(whole) == np.flatnonzero(~bad.any(others)).tolist()
        assert common([whole, rest((), shape[axis])], shape[axis]) == whole


def listed(slices: Any) -> list[int]:
    assert all(a < b for a, b in slices)
    return [i for low, high in slices for i in range(low, high)]


# --- the command


def run(*arguments: object, **environment: str) -> Any:
    return CliRunner().invoke(
        app, [str(a) for a in arguments], env={"COLUMNS": "200"} | environment
    )


def test_command(tmp_path: Path) -> None:
    source = tmp_path / "c.h5"
    make_cohort(source, n_cases=5, shape=(48, 48, 16))
    sound = run("verify", source)
    assert sound.exit_code == 0
    assert f"{source}: sound. 15 datasets" in sound.stdout
    half = cut(source, tmp_path / "half.h5", source.stat().st_size // 2)
    cut_off = run("verify", half)
    assert cut_off.exit_code == 1
    for told in ("truncated", "50.0% present", "of 5 cases are whole: 1PA001", "outside the file"):
        assert told in cut_off.stdout
    quick = run("verify", half, "--quick", "--json")
    assert quick.exit_code == 1
    report = json.loads(quick.stdout)
    assert report == json.loads(
        json.dumps({"hyperslab": hs.__version__, **as_dict(hs.verify(half, quick=True))})
    )
    assert (report["sound"], report["truncated"], report["quick"]) == (False, True, True)
    assert run("verify", tmp_path / "gone.h5").exit_code == 2
    assert run("verify", tmp_path).exit_code == 2
    text = tmp_path / "notes.txt"
    text.write_text("no HDF5")
    no_file = run("verify", text)
    assert no_file.exit_code == 1
    assert "no HDF5 signature" in no_file.stdout


def test_the_command_folds(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as h5:
        for i in range(40):
            h5[f"good{i}"] = i
            h5[f"link{i}"] = h5py.SoftLink("/nowhere")
            made = h5.create_dataset(f"x{i}", data=np.arange(9), chunks=(9,), fletcher32=True)
            offset = made.id.get_chunk_info(0).byte_offset
            h5.flush()
            flip(path, offset)
    short, long = run("verify", path), run("verify", path, "--all")
    assert short.exit_code == long.exit_code == 1
    assert "40 of 80 datasets are damaged; 40 problems besides" in short.stdout
    for told in ("and 28 more damaged datasets", "and 28 more problems", "and 16 more"):
        assert told in short.stdout
        assert told not in long.stdout
    for name in ("/x39", "/good39", "/link39"):
        assert name in long.stdout


def test_the_page_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_page("how-to/verify.md", tmp_path, monkeypatch)
    check_printed(capsys.readouterr().out, "".join(blocks("how-to/verify.md", "text")))
