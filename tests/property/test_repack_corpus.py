"""Real files survive `repack` to three layouts: the same objects, attributes and elements.

By default a sample of them; `make fuzz` takes all.
"""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import DamagedFileError, LayoutError, MetadataWarning, MissingFileError

HOWS: list[dict[str, Any]] = [
    {"access": "plane", "codec": "gzip"},
    {"access": "[k]", "codec": "none"},
    {"access": "[:, k]", "codec": "blosc", "memory": 4 << 20},
]
STEP = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz" else 9
MOST_NBYTES = 64 << 20


def plain(value: Any, file: h5py.File) -> Any:
    """Return a value in a form that can be compared between files: names for references."""
    if isinstance(value, h5py.RegionReference):
        if not value:
            return "no region"
        region = h5py.h5r.get_region(value, file.id)
        return file[value].name, region.get_select_bounds(), region.get_select_npoints()
    if isinstance(value, h5py.Reference):
        return file[value].name if value else "no reference"
    if isinstance(value, h5py.Empty):
        return "empty", str(value.dtype)
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return value.shape, [plain(each, file) for each in value.reshape(-1)]
    if isinstance(value, np.void) and value.dtype.names:
        return [plain(value[name], file) for name in value.dtype.names]
    if isinstance(value, tuple):
        return [plain(each, file) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return str(value.dtype), np.shape(value), value.tobytes()
    return repr(value)


def attributes(item: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in item.attrs:
        try:
            value = item.attrs[name]
        except (OSError, TypeError, ValueError):
            continue  # of a type that h5py has no word for
        if name == "REFERENCE_LIST":
            found[name] = sorted((item.file[who].name, int(axis)) for who, axis in value)
        else:
            found[name] = plain(value, item.file)
    return found


class Comparison:
    """Walks through two files in step; `n` counts the datasets whose elements were compared."""

    def __init__(self, elsewhere: tuple[str, ...], left_out: tuple[str, ...]) -> None:
        self.elsewhere = elsewhere
        self.left_out = " ".join(left_out)
        self.n = 0
        self.seen: set[Any] = set()

    def walk(self, one: Any, other: Any, path: str) -> None:
        if h5py.h5o.get_info(one.id).addr in self.seen:
            return
        self.seen.add(h5py.h5o.get_info(one.id).addr)
        assert type(one) is type(other), path
        old, new = attributes(one), attributes(other)
        assert list(old) == list(new), path
        assert old == new, path
        if isinstance(one, h5py.Group):
            assert [n for n in one if f"{path}/{n} (a link" not in self.left_out] == list(other), (
                path
            )
            for name in other:
                key = name if isinstance(name, bytes) else name.encode()
                kind = one.id.links.get_info(key).type
                assert kind == other.id.links.get_info(key).type
                if kind == h5py.h5l.TYPE_HARD:
                    self.walk(one[name], other[name], f"{path}/{name}")
                else:
                    assert one.id.links.get_val(key) == other.id.links.get_val(key)
        elif isinstance(one, h5py.Dataset) and path not in self.elsewhere:
            self.compare(one, other, path)

    def compare(self, one: h5py.Dataset, other: h5py.Dataset, path: str) -> None:
        assert (one.shape, one.maxshape) == (other.shape, other.maxshape), path
        try:
            too_large = one.dtype != other.dtype or (one.size or 0) * one.dtype.itemsize
            if too_large > MOST_NBYTES:
                return
            values = one[()]
        except (OSError, TypeError, ValueError):
            return  # not to be read in the source either
        assert one.dtype == other.dtype
        assert plain(values, one.file) == plain(other[()], other.file), path
        self.n += 1


@pytest.mark.filterwarnings("ignore::hyperslab.errors.MetadataWarning")
def test_real_files_survive(corpus: Any, tmp_path: Path) -> None:
    pytest.importorskip("hdf5plugin", reason="h5py reads blosc with hdf5plugin")
    entries = [e for e in corpus.entries if e.get("opens") and not e["name"].startswith("corrupt-")]
    n_compared = n_rewritten = 0
    target = tmp_path / "new.h5"
    for entry in entries[::STEP]:
        source = corpus.path(entry["name"])
        for how in HOWS:
            target.unlink(missing_ok=True)
            shutil.rmtree(tmp_path / "new.h5.repacking", ignore_errors=True)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", MetadataWarning)
                    report = hs.repack(source, target, **how)
            except DamagedFileError:
                with pytest.raises((KeyError, OSError, RuntimeError)), h5py.File(source) as f:
                    f.visititems(lambda *_: None)
                continue
            assert report is not None
            compared = Comparison(report.plan.elsewhere, report.left_out)
            with h5py.File(source) as a, h5py.File(target) as b:
                compared.walk(a["/"], b["/"], "")
            n_compared += compared.n
            n_rewritten += len(report.plan.rewritten)
    assert n_compared > 100
    assert n_rewritten > 10


def open_all(path: Path, names: tuple[str, ...]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetadataWarning)
        return [hs.open_image(path, image=name) for name in (names if len(names) > 1 else [None])]


def test_real_images_get_levels(
    corpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For viewing: the same images, and the levels that were computed before are in the file."""
    monkeypatch.setattr("hyperslab.pyramid.steps._PLANE", 40)
    entries = [e for e in corpus.entries if e.get("opens") and not e["name"].startswith("corrupt-")]
    n_images = n_levels = 0
    for number, entry in enumerate(entries[::STEP]):
        source = Path(corpus.path(entry["name"]))
        target = tmp_path / source.name
        try:
            if source.stat().st_size > MOST_NBYTES:
                continue
            names = hs.list_images(source)
            images = open_all(source, names)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MetadataWarning)
                report = hs.repack(
                    source, target, for_="viewing", codec=["gzip", "none"][number % 2]
                )
            assert report is not None
            if report.plan.elsewhere:
                continue  # links that lead nowhere from here
            results = open_all(target, names)
        except (LayoutError, MissingFileError):
            continue  # no image; or one in files that are not there
        for one, other in zip(images, results, strict=True):
            for fact in ("layout", "axes", "shape", "scale", "translation", "units", "channels"):
                assert repr(getattr(one, fact)) == repr(getattr(other, fact))
            assert [lv.shape for lv in one.levels] == [lv.shape for lv in other.levels]
            n_images += 1
            for a, b in zip(one.levels, other.levels, strict=True):
                if a.nbytes < MOST_NBYTES:
                    assert np.array_equal(a[...], b[...], equal_nan=a.dtype.kind in "fc")
                    n_levels += a.computed and not b.computed
    assert n_images > 3
    assert n_levels > 3


def test_real_numbers_are_narrowed_exactly(corpus: Any, tmp_path: Path) -> None:
    entries = [e for e in corpus.entries if e.get("opens") and not e["name"].startswith("corrupt-")]
    pytest.importorskip("hdf5plugin", reason="the files have filters of all kinds")
    n_seen = n_narrowed = 0
    target = tmp_path / "new.h5"
    for entry in entries[::STEP]:
        source = Path(corpus.path(entry["name"]))
        if source.stat().st_size > MOST_NBYTES // STEP:
            continue
        target.unlink(missing_ok=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MetadataWarning)
                report = hs.repack(source, target, access="whole", narrow="integers")
        except DamagedFileError:
            continue
        assert report is not None
        with h5py.File(source) as a, h5py.File(target) as b:
            for each in report.plan.narrowed:
                old, new = a[each.path], b[each.path]
                assert (new.dtype.name == each.new) if each.new else (new.dtype == old.dtype)
                if old.size * old.dtype.itemsize < MOST_NBYTES:
                    nan = old.dtype.kind == "f"
                    assert np.array_equal(old[()], new[()], equal_nan=nan)
                assert attributes(old) == attributes(new)
                n_seen += 1
                n_narrowed += bool(each.new)
    assert n_seen > 3
    assert n_narrowed > 3 or STEP > 1
