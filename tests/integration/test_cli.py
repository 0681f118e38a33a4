"""The command line: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

import hyperslab
from hyperslab.array import Array
from hyperslab.cli import bench, demo
from hyperslab.cli.app import app
from hyperslab.cli.listing import build_nodes, list_rows
from hyperslab.index.session import session
from hyperslab.index.tree import walk_file
from hyperslab.testing import make_cohort, make_imaris

WIDE = {"COLUMNS": "200"}


def run(*arguments: object, **environment: str) -> Any:
    """Run the command line; its output is as wide as can be unless COLUMNS says otherwise."""
    return CliRunner().invoke(app, [str(a) for a in arguments], env=WIDE | environment)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cohort") / "cohort.h5"
    make_cohort(path, n_cases=7, shape=(24, 20, 6))
    return path


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cells") / "cells.ims"
    make_imaris(path, shape=(4, 2, 5, 70, 90))
    return path


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Element types and storage of every kind, all of it sound."""
    path = tmp_path / "odd.h5"
    with h5py.File(path, "w") as f:
        f["text"] = "hello"
        f["words"] = np.array(["a", "bc"], dtype=h5py.string_dtype())
        f["bytes"] = np.array([b"ab", b"c"])
        f.create_dataset(
            "table", data=np.zeros(50, dtype=[("x", "f4"), ("y", "i2")]), compression="gzip"
        )
        f.create_dataset("ragged", (3,), dtype=h5py.vlen_dtype("int32"))
        f["colour"] = np.zeros(3, dtype=h5py.enum_dtype({"red": 0, "blue": 1}, basetype="u1"))
        f["reference"] = np.array([f.ref], dtype=h5py.ref_dtype)
        f["empty"] = h5py.Empty("f4")
        f["scalar"] = 2.5
        f["opaque"] = np.array([np.void(b"abc")])
        f["big"] = np.zeros((4, 5), ">i2")
        f["complex"] = np.zeros((3, 3), "c8")
        f["flag"] = np.zeros((3, 3), bool)
        f["type"] = np.dtype("f8")
        sparse = f.create_dataset(
            "sparse", (100, 100), "u2", chunks=(10, 10), shuffle=True, compression=6
        )
        sparse[:10, :20] = 1
        f["never"] = h5py.Dataset(
            h5py.h5d.create(f.id, b"late", h5py.h5t.NATIVE_INT16, h5py.h5s.create_simple((8,)))
        )
        f["inside/again"] = f["big"]
        f["inside/circle"] = f["/"]
        f["soft"] = h5py.SoftLink("/inside")
        f["inside"].attrs.update({"a": 1, "b": "two"})
    return path


# --- info


def test_info_shows_a_cohort(cohort: Path) -> None:
    result = run("info", cohort)
    assert result.exit_code == 0
    assert "21 datasets in 3 groups" in result.stdout
    assert "paired cohort: CT, MASK, MR hold 7 cases" in result.stdout
    with h5py.File(cohort) as f:
        names = sorted(f["MR"])
    shown = [name for name in names if name in result.stdout]
    assert shown == names[:3]
    assert result.stdout.count("… 4 more like these") == 3
    assert "--all shows every object" in result.stdout
    assert result.stderr == ""


def test_info_all_folds_nothing(cohort: Path) -> None:
    result = run("info", cohort, "--all")
    with h5py.File(cohort) as f:
        assert all(result.stdout.count(name) == 3 for name in f["MR"])
    assert "more like" not in result.stdout
    assert "--all" not in result.stdout


def test_info_says_who_is_not_paired(tmp_path: Path) -> None:
    path = tmp_path / "cohort.h5"
    make_cohort(path, n_cases=5, shape=(12, 12, 4))
    with h5py.File(path, "a") as f:
        del f["CT/1PA001"]
    assert "hold 5 cases, of which 1 are not in all" in run("info", path).stdout


def test_info_describes_an_image(cells: Path) -> None:
    result = run("info", cells)
    assert result.exit_code == 0
    for words in (
        "imaris image “Synthetic cells”",
        "T=4 C=2 Z=5 Y=70 X=90, uint16",
        "2: (5, 70, 90), (5, 35, 45)",
        "2 × 0.1235 × 0.1235 µm (Z, Y, X)",
        "■ DAPI 0 to 5000",
        "4 from 2024-03-05 10:20:00",
        "… 2 more like TimePoint 1",  # time point 0 has histograms, the others have none
    ):
        assert words in result.stdout


def facts_by_h5py(path: Path) -> dict[str, dict[str, Any]]:
    """What h5py says of every dataset."""
    found: dict[str, dict[str, Any]] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found["/" + name] = {
                "shape": list(item.shape),
                "dtype": item.dtype.name,
                "chunks": None if item.chunks is None else list(item.chunks),
                "stored_nbytes": item.id.get_storage_size(),
                "decoded_nbytes": item.nbytes,
                "chunks_allocated": item.id.get_num_chunks() if item.chunks else 0,
                "n_attributes": len(item.attrs),
            }

    with h5py.File(path) as f:
        f.visititems(note)
    return found


@pytest.mark.parametrize("which", ["cohort", "cells"])
def test_info_json_agrees_with_h5py(which: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(which)
    report = json.loads(run("info", path, "--json").stdout)
    expected = facts_by_h5py(path)
    found = {o["path"]: o for o in report["objects"] if o["kind"] == "dataset"}
    assert {p: {key: o[key] for key in expected[p]} for p, o in found.items()} == expected
    assert report["n_datasets"] == len(expected)
    assert report["nbytes"] == path.stat().st_size
    assert report["stored_nbytes"] == sum(f["stored_nbytes"] for f in expected.values())
    assert report["problems"] == []
    assert report["layout"]["name"] == {"cohort": "paired cohort", "cells": "imaris"}[which]


def test_info_json_has_the_image(cells: Path) -> None:
    layout = json.loads(run("info", cells, "--json").stdout)["layout"]
    assert layout["axes"] == "TCZYX"
    assert layout["shape"] == [4, 2, 5, 70, 90]
    assert [level["shape"][2:] for level in layout["levels"]] == [[5, 70, 90], [5, 35, 45]]
    assert layout["scale"][2:] == [2.0, 0.12345, 0.12345]
    assert [c["name"] for c in layout["channels"]] == ["DAPI", "Membrane"]


def test_info_shows_all_images(tmp_path: Path) -> None:
    path = tmp_path / "several.h5"
    with h5py.File(path, "w") as f:
        f["raw"] = np.zeros((9, 20), "u2")
        f["label"] = np.zeros((9, 20), "u1")
    result = run("info", path)
    assert result.exit_code == 0
    assert "unet: 2 images" in result.stdout
    assert "image   Y=9 X=20, uint16" in result.stdout
    assert "labels  Y=9 X=20, uint8" in result.stdout
    layout = json.loads(run("info", path, "--json").stdout)["layout"]
    assert [image["dtype"] for image in layout["images"]] == ["uint16", "uint8"]
    one = json.loads(run("info", path, "--json", "--image", "label").stdout)["layout"]
    assert (one["image"], one["dtype"]) == ("label", "uint8")
    assert hyperslab.open_image(path, image="label").series == ("raw", "label")


def test_info_of_many_images(tmp_path: Path) -> None:
    path = tmp_path / "many.h5"
    with h5py.File(path, "w") as f:
        for i in range(20):
            dataset = f.create_dataset(f"image{i:02}", data=np.zeros((9, 20), "u1"))
            dataset.attrs["CLASS"] = np.bytes_("IMAGE")
    out = run("info", path).stdout
    assert "hdf5_image: 20 images" in out
    assert out.count("image   Y=9 X=20") == 4
    assert "and 16 more:" in out
    assert "image15, ..." in out.replace("/", "")


def test_info_sees_a_dataset_as_an_image(tmp_path: Path) -> None:
    path = tmp_path / "plain.h5"
    with h5py.File(path, "w") as f:
        f.create_dataset("x", shape=(3, 1500, 40), dtype="u1", chunks=(1, 100, 40))
    result = run("info", path, "--layout", "x", "--axes", "TYX")
    assert "T=3 Y=1500 X=40" in result.stdout
    assert "2: (3, 1500, 40), (3, 750, 20) (the last 1 computed when read)" in result.stdout
    layout = json.loads(run("info", path, "--layout", "x", "--axes", "TYX", "--json").stdout)
    assert layout["layout"]["computed_levels"] == [[3, 750, 20]]
    assert run("info", path, "--axes", "TYX").exit_code == 2
    assert run("info", path, "--layout", "x", "--axes", "TY").exit_code == 1


def test_info_lists_every_type(odd: Path) -> None:
    result = run("info", odd, "--json")
    assert result.exit_code == 0
    objects = {o["path"]: o for o in json.loads(result.stdout)["objects"]}
    words = {p: o["dtype"] for p, o in objects.items() if o["kind"] == "dataset"}
    assert words["/text"] == words["/words"] == "string"
    assert words["/bytes"] == "string[2]"
    assert words["/table"] == "compound (x, y)"
    assert words["/ragged"] == "vlen int32"
    assert words["/colour"] == "enum uint8"
    assert words["/reference"] == "reference"
    assert words["/opaque"] == "opaque[3]"
    assert words["/big"] == "int16 big-endian"
    assert (words["/complex"], words["/flag"]) == ("complex64", "bool")
    assert objects["/type"]["kind"] == "datatype"
    assert objects["/empty"]["storage"] == "null"
    numeric = {p for p, o in objects.items() if o.get("numeric")}
    with h5py.File(odd) as f:
        readable = {p for p in words if p not in ("/empty",) and f[p].dtype.kind in "iufcb"}
    assert numeric - {"/empty"} == readable
    assert [f["name"] for f in objects["/sparse"]["filters"]] == ["shuffle", "gzip"]
    assert [f["name"] for f in objects["/table"]["filters"]] == ["gzip"]


def test_info_prints_every_type(odd: Path) -> None:
    result = run("info", odd)
    assert result.exit_code == 0
    line = {text.split()[1]: text for text in result.stdout.splitlines() if "─ " in text}
    assert "not numbers" in line["table"]
    assert "2 of 100 chunks written" in line["sparse"]
    assert "never written" in line["never"]
    assert "→ /inside" in line["soft"]
    assert "98 chunks never written" in result.stdout


def test_info_goes_round_no_circle(odd: Path) -> None:
    objects = {o["path"]: o for o in json.loads(run("info", odd, "--json").stdout)["objects"]}
    assert objects["/inside/circle"]["repeats"] == "/"
    assert objects["/inside/again"]["repeats"] == "/big"
    assert objects["/soft"]["repeats"] == "/inside"
    assert objects["/soft"]["n_attributes"] == 2
    assert not any(p.startswith(("/soft/", "/inside/circle/")) for p in objects)


def test_info_shows_what_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "broken.h5"
    layout = h5py.VirtualLayout((2, 4), "f4")
    layout[0] = h5py.VirtualSource("gone.h5", "d", (4,))
    with h5py.File(path, "w") as f:
        f["good"] = np.arange(4)
        f["elsewhere"] = h5py.ExternalLink("nowhere.h5", "/x")
        f["soft"] = h5py.SoftLink("/nothing")
        f.create_virtual_dataset("virtual", layout)
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        dcpl.set_chunk((2,))
        dcpl.set_filter(512, h5py.h5z.FLAG_OPTIONAL)  # nobody's
        space = h5py.h5s.create_simple((4,))
        h5py.h5d.create(f.id, b"secret", h5py.h5t.NATIVE_INT16, space, dcpl)
    result = run("info", path)
    assert result.exit_code == 1
    problems = [text for text in result.stdout.splitlines() if text.startswith("Problem: ")]
    for word in ("nowhere.h5", "/nothing", "gone.h5", "filter 512"):
        assert sum(word in text for text in problems) == 1
    assert len(problems) == 4
    assert "Traceback" not in result.output
    as_json = run("info", path, "--json")
    assert as_json.exit_code == 1
    report = json.loads(as_json.stdout)
    assert {p["where"] for p in report["problems"]} == {
        "/elsewhere", "/soft", "/virtual", "/secret"
    }  # fmt: skip


def test_info_survives_a_damaged_object(cohort: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.h5"
    raw = bytearray(cohort.read_bytes())
    with h5py.File(cohort) as f:
        address = h5py.h5o.get_info(f["MR/1PA004"].id).addr
    raw[address : address + 16] = b"\xff" * 16
    path.write_bytes(raw)
    result = run("info", path)
    assert result.exit_code == 1
    assert "1PA004" in result.stdout
    assert "1PA007" in result.stdout


def test_info_reports_an_incomplete_image(tmp_path: Path) -> None:
    facts = make_imaris(tmp_path / "cells.ims", shape=(2, 1, 2, 16, 16), multi_file=True)
    os.remove(facts.linked_files[1])
    result = run("info", facts.path)
    assert result.exit_code == 1
    assert "imaris: see the problem below" in result.stdout
    assert os.path.basename(facts.linked_files[1]) in result.stdout


@pytest.mark.parametrize("which", ["cohort", "cells"])
def test_info_fits_a_narrow_terminal(which: str, request: pytest.FixtureRequest) -> None:
    result = run("info", request.getfixturevalue(which), COLUMNS="80")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("chunks (" in text for text in lines)
    assert "float32" in result.stdout or "uint16" in result.stdout


def test_info_of_many_different_members(tmp_path: Path) -> None:
    path = tmp_path / "many.h5"
    with h5py.File(path, "w") as f:
        for i in range(60):
            f.create_dataset(f"d{i}", (1,) * (i % 30), f"{'iuf'[i // 30]}{4}")
    result = run("info", path)
    assert "20 others" in result.stdout
    assert len(result.stdout.splitlines()) < 60
    assert "others" not in run("info", path, "--all").stdout


def test_rows_in_ascii(cohort: Path) -> None:
    with session(str(cohort)) as h5:
        rows = list_rows(build_nodes(walk_file(h5)), plain=True)
    guides = {row.guide for row in rows}
    assert guides == {"|- ", "`- ", "|  |- ", "|  `- ", "   |- ", "   `- "}


def test_walk_takes_names_that_are_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin.h5"
    with h5py.File(path, "w") as f:
        h5py.h5g.create(f.id, b"caf\xe9")
        f["p10"], f["p9"] = 1, 2
    with session(str(path)) as h5:
        paths = [entry.path for entry in walk_file(h5)]
    assert paths == ["/", "/caf\\xe9", "/p9", "/p10"]


# --- bench


WORK_KEYS = {
    "work", "title", "nbytes", "pairs", "h5py_s", "hyperslab_s", "times_faster",
    "h5py_bytes_per_s", "hyperslab_bytes_per_s",
}  # fmt: skip
QUICK = ("--repeat", "2", "--seconds", "0")


def test_bench_json(cohort: Path) -> None:
    result = run("bench", cohort, "MR/1PB002", "--json", "-", *QUICK)
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    with h5py.File(cohort) as f:
        dataset = f["MR/1PB002"]
        assert report["dataset"] == dataset.name
        assert report["shape"] == list(dataset.shape)
        assert report["chunks"] == list(dataset.chunks)
        assert report["stored_nbytes"] == dataset.id.get_storage_size()
        volume_nbytes = dataset.nbytes
    assert report["machine"]["h5py"] == h5py.version.version
    assert report["machine"]["hdf5"] == h5py.version.hdf5_version
    works = {work["work"]: work for work in report["works"]}
    assert list(works) == [
        "volume", "plane_axis0", "plane_axis1", "plane_axis2", "batch_axis2", "batch_axis0"
    ]  # fmt: skip
    assert all(set(work) == WORK_KEYS for work in works.values())
    assert works["volume"]["nbytes"] == volume_nbytes
    assert works["plane_axis1"]["nbytes"] == 24 * 6 * 4
    assert "of 14 datasets" in works["batch_axis2"]["title"]  # MR and CT of 7 cases
    for work in works.values():
        assert work["pairs"] == 2
        assert work["times_faster"] > 0
        assert math.isclose(work["hyperslab_bytes_per_s"], work["nbytes"] / work["hyperslab_s"])


def test_bench_prints_and_writes(cohort: Path, tmp_path: Path) -> None:
    figures, chart = tmp_path / "figures.json", tmp_path / "chart.png"
    result = run("bench", cohort, "--json", figures, "--plot", chart, *QUICK, COLUMNS="80")
    assert result.exit_code == 0
    for words in ("whole volume", "plane [k, :, :]", "plane [:, :, k]", "times faster", "HDF5"):
        assert words in result.stdout
    assert len(json.loads(figures.read_text())["works"]) == 6
    assert chart.read_bytes().startswith(b"\x89PNG")
    table = [text for text in result.stdout.splitlines() if "×" in text]
    assert len(table) == 6
    assert max(map(len, table)) <= 80


@pytest.mark.parametrize(
    ("shape", "works"),
    [
        ((40,), ["volume"]),
        ((), ["volume"]),
        ((8, 9), ["volume", "plane_axis0", "plane_axis1", "batch_axis1", "batch_axis0"]),
        (
            (2, 3, 4, 5),
            ["volume", *(f"plane_axis{i}" for i in (1, 2, 3)), "batch_axis3", "batch_axis1"],
        ),
    ],
)
def test_bench_any_number_of_axes(shape: tuple[int, ...], works: list[str], tmp_path: Path) -> None:
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as f:
        f["d"] = np.arange(math.prod(shape), dtype=">i4").reshape(shape)
    result = run("bench", path, "--json", "-", *QUICK)
    assert result.exit_code == 0
    assert [work["work"] for work in json.loads(result.stdout)["works"]] == works


def test_bench_chooses_what_looks_like_the_image(tmp_path: Path) -> None:
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as f:
        f["line"] = np.zeros(100_000)
        f.create_dataset("never/written", (100, 100, 100), "f4", chunks=(10, 10, 10))
        f["small"] = np.zeros((10, 10))
        f["image"] = np.zeros((20, 20, 20))
        f["text"] = "x"
    assert json.loads(run("bench", path, "--json", "-", *QUICK).stdout)["dataset"] == "/image"


def test_bench_reads_a_part_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as f:
        f.create_dataset(
            "d", data=np.arange(9600, dtype="i4").reshape(24, 20, 20), chunks=(4, 10, 10)
        )
    monkeypatch.setattr(bench, "_MOST_VOLUME_NBYTES", 20_000)
    volume = json.loads(run("bench", path, "--json", "-", *QUICK).stdout)["works"][0]
    assert volume["title"] == "part of the volume, 19.2 kB of 38.4 kB"
    assert volume["nbytes"] == 12 * 20 * 20 * 4


@pytest.mark.parametrize("most_nbytes", [1, 100, 1000, 2400, 10_000, 48_000, 10**6])
@pytest.mark.parametrize("chunks", [None, (3, 7, 10), (40, 1, 5)])
def test_bench_cuts_between_chunks(most_nbytes: int, chunks: tuple[int, int, int] | None) -> None:
    shape = (40, 30, 20)
    part, nbytes = bench._middle(shape, 2, chunks, most_nbytes)
    step = chunks or (1, 1, 1)
    extent = [s.stop - s.start for s in part]
    assert nbytes == 2 * math.prod(extent)
    assert nbytes <= most_nbytes or extent == [min(c, n) for c, n in zip(step, shape, strict=True)]
    for piece, c, n in zip(part, step, shape, strict=True):
        assert 0 <= piece.start < piece.stop <= n
        assert piece.start % c == 0
        assert (
            piece.stop == n or (piece.stop - piece.start) % c == 0 or piece.stop - piece.start < c
        )


def test_bench_times_nothing_that_differs(cohort: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Array.read

    def read_badly(self: Array, *arguments: Any, **options: Any) -> Any:
        result = read(self, *arguments, **options)
        result.flat[-1] += 1
        return result

    monkeypatch.setattr(Array, "read", read_badly)
    result = run("bench", cohort, *QUICK)
    assert result.exit_code == 1
    assert "different values" in result.stderr
    assert "times faster" not in result.stdout


# --- demo


def test_demo(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    result = run("demo", "--size", "small", "--out", out, COLUMNS="80")
    assert result.exit_code == 0, result.output
    batches = "SliceDataset" if importlib.util.find_spec("torch") else "read_many"
    for words in ("Training: cohort.h5", "Viewing: cells.ims", "times faster", batches):
        assert words in result.stdout
    for name in ("cohort.h5", "cells.ims", "cohort.png", "cells.png"):
        assert (out / name).stat().st_size > 10_000
        assert str(out / name) in result.stdout
    assert (out / "cells.png").read_bytes().startswith(b"\x89PNG")
    assert len([text for text in result.stdout.splitlines() if "×" in text]) == 7
    shown = hyperslab.open_image(out / "cells.ims")
    assert shown.axes == "TCZYX"
    assert len(shown.levels) == 3


def test_demo_without_extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("hyperslab.torch")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("torch", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    plan = demo._Plan(
        n_cases=2, case=(24, 24, 6), image=(1, 3, 2, 32, 32), chunks=(2, 16, 16), repeat=1,
        seconds=0,
    )  # fmt: skip
    monkeypatch.setitem(demo._PLANS, demo._Size.SMALL, plan)
    result = run("demo", "--size", "small", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "since PyTorch is not installed" in result.stdout
    assert "pip install 'hyperslab[plot]'" in result.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cells.ims", "cohort.h5"]


# --- errors, exit statuses, help


def truncated(cohort: Path, folder: Path) -> list[object]:
    path = folder / "cut.h5"
    path.write_bytes(cohort.read_bytes()[:5000])
    return ["info", path]


def damaged_chunk(cohort: Path, folder: Path) -> list[object]:
    path = folder / "damaged.h5"
    raw = bytearray(cohort.read_bytes())
    with h5py.File(cohort) as f:
        chunk = f["MR/1PA001"].id.get_chunk_info(0)
    raw[chunk.byte_offset : chunk.byte_offset + 8] = b"\xff" * 8
    path.write_bytes(raw)
    return ["bench", path, "MR/1PA001"]


def text_file(cohort: Path, folder: Path) -> list[object]:
    path = folder / "notes.txt"
    path.write_text("no HDF5 here")
    return ["info", path]


def no_numbers(cohort: Path, folder: Path) -> list[object]:
    path = folder / "words.h5"
    with h5py.File(path, "w") as f:
        f["words"] = "x"
    return ["bench", path]


def strings(cohort: Path, folder: Path) -> list[object]:
    return [*no_numbers(cohort, folder), "words"]


Case = Callable[[Path, Path], list[object]]
CASES: dict[str, tuple[int, Case, str]] = {
    "missing path": (2, lambda c, f: ["info", f / "none.h5"], "no such file"),
    "folder": (2, lambda c, f: ["info", f], "is a folder"),
    "not HDF5": (2, text_file, "not an HDF5 file"),
    "unknown dataset": (2, lambda c, f: ["bench", c, "MR/1PA00"], "Did you mean"),
    "group": (2, lambda c, f: ["bench", c, "MR"], "is a group. Name a dataset, such as /MR/1PA001"),
    "nothing to read": (2, no_numbers, "no dataset of numbers"),
    "strings": (2, strings, "has strings"),
    "no such folder": (2, lambda c, f: ["bench", c, "--plot", f / "no" / "x.png"], "no folder"),
    "no such format": (2, lambda c, f: ["bench", c, "--plot", f / "x.foo"], "ending '.foo'"),
    "out is a file": (2, lambda c, f: ["demo", "--out", c / "x"], "cannot be made"),
    "unknown option": (2, lambda c, f: ["info", c, "--nonsense"], "--nonsense"),
    "unknown command": (2, lambda c, f: ["inform", c], "No such command"),
    "truncated": (1, truncated, "truncated file"),
    "damaged chunk": (1, damaged_chunk, "chunk (0, 0, 0)"),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_use_and_problems(name: str, cohort: Path, tmp_path: Path) -> None:
    status, make, words = CASES[name]
    result = run(*make(cohort, tmp_path))
    assert result.exit_code == status, result.output
    assert words in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""
    if "Usage" not in result.stderr:
        assert result.stderr.startswith("Error: ")
        assert len(result.stderr.splitlines()) == 1


def test_plot_without_matplotlib(cohort: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("bench", cohort, "--plot", cohort.with_name("x.png"))
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: Pictures need matplotlib")
    assert "pip install 'hyperslab[plot]'" in result.stderr
    assert result.stdout == ""


def test_warnings_are_notes(tmp_path: Path) -> None:
    facts = make_imaris(tmp_path / "cells.ims", shape=(1, 1, 2, 16, 16))
    with h5py.File(facts.path, "a") as f:
        del f["DataSetInfo/Image"].attrs["ExtMax0"]
    result = run("info", facts.path)
    assert result.exit_code == 0
    assert result.stderr.startswith("Note: ")
    assert "Warning" not in result.stderr


def test_unreadable_file(cohort: Path, tmp_path: Path) -> None:
    path = tmp_path / "locked.h5"
    path.write_bytes(cohort.read_bytes())
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    result = run("info", path)
    assert result.exit_code == 2
    assert str(path) in result.stderr


@pytest.mark.parametrize("command", ["info", "bench", "demo"])
def test_help_has_examples(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert result.stdout.count(f"hyperslab {command}") >= 2
    assert "Examples" in result.stdout


def test_help_lists_the_commands() -> None:
    result = run()
    assert result.exit_code == 2
    assert all(f" {name} " in result.output for name in ("info", "bench", "demo"))


def test_version() -> None:
    assert run("--version").stdout == f"hyperslab {hyperslab.__version__}\n"


def test_module_runs(cohort: Path) -> None:
    """In a process of its own, into a pipe that knows ASCII only."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONIOENCODING": "ascii",
    }
    process = subprocess.run(
        [sys.executable, "-m", "hyperslab", "info", str(cohort)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert process.returncode == 0, process.stderr
    assert "|- CT" in process.stdout
    assert "... 4 more like these" in process.stdout
    assert "x)" in process.stdout
    assert "?" not in process.stdout
