"""The page about packing: its code runs, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hyperslab.packing.intensity import DEFAULTS, parse_map
from tests.pages import DOCS, blocks, check_printed, run_page

PAGE = "how-to/pack.md"


def test_the_page_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="the page trains with PyTorch, which is not installed")
    run_page(PAGE, tmp_path, monkeypatch)
    check_printed(capsys.readouterr().out, "".join(blocks(PAGE, "text")))


def test_the_maps_are_those_of_the_page() -> None:
    text = (DOCS / PAGE).read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)[^`]*` \| [^|]* \| ([^|]*) \|$", text, re.MULTILINE)
    maps = {kind: told for kind, told in rows if kind in ("window", "percentiles", "mask")}
    for group, default in DEFAULTS.items():
        told = maps[parse_map(default).kind]
        assert (f"`{group}`" if group else "all others") in told
        assert parse_map(default).kind == "mask" or f"`{default}`" in told


def test_the_attributes_are_those_of_the_page(tmp_path: Path) -> None:
    import h5py

    import hyperslab as hs
    from hyperslab.testing import make_case_folders

    make_case_folders(tmp_path / "d", n_cases=1, shape=(16, 16, 4), suffix=".mha")
    assert hs.pack(tmp_path / "d", tmp_path / "a.h5") is not None
    with h5py.File(tmp_path / "a.h5") as f:
        written = {name for group in f.values() for name in group["1BA001"].attrs}
    text = (DOCS / PAGE).read_text(encoding="utf-8")
    table = text[text.index("| attribute | holds |") : text.index("`SliceDataset` hands")]
    told = {name for row in re.findall(r"^\| (`[^|]*) \|", table, re.M)
            for name in re.findall(r"`(\w+)`", row)}  # fmt: skip
    # What programs know that look at images: HDF5's own, and an attribute that others read.
    assert written - told == {"DIMENSION_LABELS", "element_size_um"}
    assert told - written == set()
