"""`convert`: the elements that h5py reads, in other formats, whatever happens on the way."""

from __future__ import annotations

import errno
import itertools
import json
import math
import shutil
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import hyperslab as hs
from hyperslab.cli.app import app
from hyperslab.conversion import region
from hyperslab.conversion.codecs import CODECS
from hyperslab.conversion.shapes import decodings, region_shape, regions, shard_shape, view_chunks
from hyperslab.engine import cache
from hyperslab.errors import (
    CapacityError,
    ChunkDecodeError,
    MissingExtraError,
    OutputError,
    SelectionError,
)
from hyperslab.pyramid.mean import every_second, halve
from hyperslab.testing import make_bdv, make_imaris
from tests.images import h5py_imaris
from tests.pages import blocks, check_printed, run_page

zarr = pytest.importorskip("zarr", "3", reason="zarr 3 is not installed (the extra `zarr`)")
tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed (the extra `zarr`)")

SHAPE = (2, 2, 5, 70, 90)


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    path = tmp_path / "cells.ims"
    make_imaris(path, shape=SHAPE, chunks=(4, 32, 32))
    return path


def read(path: Path, level: int = 0) -> Any:
    """A level, by zarr itself."""
    return np.asarray(zarr.open_array(path / str(level), mode="r")[...])


def ome(path: Path) -> Any:
    return dict(zarr.open_group(path, mode="r").attrs)["ome"]


def count_chunks(path: Path, names: list[str], shape: tuple[int, ...]) -> int:
    """How many stored chunks of datasets hold something of `shape`, by h5py."""
    found = 0
    with h5py.File(path) as h5:
        for name in names:
            data = h5[name]
            for i in range(data.id.get_num_chunks()):
                offset = data.id.get_chunk_info(i).chunk_offset
                found += all(o < n for o, n in zip(offset, shape, strict=True))
    return found


# --- values, by layout


@pytest.mark.parametrize("codec", CODECS)
def test_imaris_padded(cells: Path, tmp_path: Path, codec: str) -> None:
    target = tmp_path / "cells.ome.zarr"
    report = hs.convert(cells, target, codec=codec)
    assert report is not None
    img = hs.open_image(cells)
    for number, level in enumerate(img.levels):
        want = h5py_imaris(cells, number, level.shape)
        found = zarr.open_array(target / str(number), mode="r")
        assert found.dtype == want.dtype
        assert np.array_equal(found[...], want)
        assert found.metadata.dimension_names == ("t", "c", "z", "y", "x")
        assert found.shards is not None
    expected = sum(
        count_chunks(
            cells,
            [
                f"DataSet/ResolutionLevel {n}/TimePoint {t}/Channel {c}/Data"
                for t in range(2)
                for c in range(2)
            ],
            level.shape[2:],
        )
        for n, level in enumerate(img.levels)
    )
    assert report.chunks_decoded == expected  # each once, and none of the padding alone
    if codec == "none":
        assert report.nbytes < report.target_nbytes < report.nbytes + 8000
    else:
        assert report.target_nbytes < 0.9 * report.nbytes
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cells.ims", "cells.ome.zarr"]


def test_what_zarr_writes_is_the_same(cells: Path, tmp_path: Path) -> None:
    """Byte for byte as zarr's own writer has it, but for the order of chunks in a shard."""
    shape = (1, 1, 2, 32, 32)
    for codec in ("zstd", "blosc", "none"):
        target, other = tmp_path / f"{codec}.zarr", tmp_path / f"{codec}-2.zarr"
        hs.convert(cells, target, chunks=shape, shards=(1, 1, 6, 64, 96), codec=codec)
        ours = zarr.open_array(target / "0", mode="r")
        shutil.copytree(target / "0", other)
        shutil.rmtree(other / "c")
        zarr.open_array(other, mode="r+")[...] = ours[...]
        files = sorted(p.relative_to(other) for p in (other / "c").rglob("*") if p.is_file())
        assert len(files) == 2 * 2 * 2
        assert files == sorted(
            p.relative_to(target / "0") for p in (target / "0/c").rglob("*") if p.is_file()
        )
        for name in files:
            a, b = (folder.joinpath(name).read_bytes() for folder in (target / "0", other))
            assert chunks_of(a, 3 * 2 * 3) == chunks_of(b, 3 * 2 * 3)


def chunks_of(shard: bytes, n: int) -> list[bytes | None]:
    index = np.frombuffer(shard[-16 * n - 4 : -4], "<u8").reshape(n, 2).tolist()
    return [None if a == 2**64 - 1 else shard[a : a + size] for a, size in index]


def test_bdv_missing_views(tmp_path: Path) -> None:
    path, target = tmp_path / "embryo.h5", tmp_path / "embryo.ome.zarr"
    make_bdv(path, missing=[(1, 0)])
    hs.convert(path, target)
    with h5py.File(path) as h5:
        for t, c in itertools.product(range(2), range(2)):
            for level in range(2):
                found = read(target, level)[t, c]
                if (t, c) == (1, 0):
                    assert not found.any()
                else:
                    want = h5[f"t{t:05d}/s{c:02d}/{level}/cells"][...].view("u2")
                    assert np.array_equal(found, want)


@pytest.mark.parametrize(
    ("axes", "written", "order"),
    [("ZYX", "ZYX", (0, 1, 2)), ("YXC", "CYX", (2, 0, 1)), ("ZTYX", "TZYX", (1, 0, 2, 3)),
     ("EYX", "EYX", (0, 1, 2)), ("YX", "YX", (0, 1))],
)  # fmt: skip
@pytest.mark.parametrize("ending", [".ome.zarr", ".tif", ".npy"])
def test_plain_with_axes(
    tmp_path: Path, axes: str, written: str, order: tuple[int, ...], ending: str
) -> None:
    shape = {"Z": 7, "T": 3, "C": 4, "Y": 50, "X": 60, "E": 5}
    values = np.random.default_rng(0).normal(size=[shape[a] for a in axes]).astype(">f4")
    values[0] = -0.0  # is not what an absent chunk reads as
    path, target = tmp_path / "a.h5", tmp_path / f"a{ending}"
    with h5py.File(path, "w") as h5:
        h5.create_dataset("x", data=values, chunks=tuple(min(6, n) for n in values.shape))
    report = hs.convert(path, target, layout="x", axes=axes)
    assert report is not None
    if ending == ".npy":
        found, want = np.load(target), values
    else:
        want = values.transpose(order)
        if ending == ".tif":
            found = tifffile.imread(target)
        else:
            found = read(target)
            assert [axis["name"] for axis in ome(target)["multiscales"][0]["axes"]] == list(
                written.lower()
            )
    assert (found.dtype, found.shape) == (np.float32, want.shape)
    assert found.tobytes() == want.astype("f4").tobytes()
    # Some were decoded when the contrast was looked at, and kept.
    assert report.chunks_decoded <= count_chunks(path, ["x"], values.shape)


def minc(path: Path) -> None:
    stored = np.random.default_rng(1).integers(-900, 900, (6, 40, 30), np.int16)
    with h5py.File(path, "w") as h5:
        root = h5.create_group("minc-2.0")
        image = root.create_dataset("image/0/image", data=stored, chunks=(2, 16, 16))
        image.attrs["dimorder"] = np.bytes_("zspace,yspace,xspace")
        image.attrs["valid_range"] = np.array([-1000.0, 1000.0])
        root["image/0/image-min"] = np.arange(6.0)
        root["image/0/image-max"] = np.arange(6.0) * 3 + 10
        for name, n in zip(("zspace", "yspace", "xspace"), stored.shape, strict=True):
            axis = root.create_dataset(f"dimensions/{name}", data=0)
            axis.attrs["step"], axis.attrs["start"], axis.attrs["length"] = 1.5, -10.0, n


@pytest.mark.parametrize("physical", [True, False])
def test_minc2_physical_values(tmp_path: Path, physical: bool) -> None:
    path, target = tmp_path / "brain.mnc", tmp_path / "brain.ome.zarr"
    minc(path)
    report = hs.convert(path, target, physical=physical)
    assert report is not None
    with h5py.File(path) as h5:
        stored = h5["minc-2.0/image/0/image"][...]
        low, high = (h5[f"minc-2.0/image/0/image-{m}"][...] for m in ("min", "max"))
    found = read(target)
    assert found.dtype == (np.float64 if physical else np.int16)
    if physical:
        want = (stored + 1000.0) / 2000 * (high - low)[:, None, None] + low[:, None, None]
        assert np.allclose(found, want, rtol=1e-12, atol=1e-12)
        assert np.array_equal(found, hs.open_image(path)[...])
    else:
        assert np.array_equal(found, stored)
    assert report.chunks_decoded <= 3 * 3 * 2  # some were kept from the look at the contrast
    (transforms,) = (
        d["coordinateTransformations"] for d in ome(target)["multiscales"][0]["datasets"]
    )
    assert transforms[0]["scale"] == [1.5] * 3
    assert transforms[1]["translation"] == [-10.0] * 3


@pytest.mark.parametrize("labels", [True, False])
def test_levels_that_the_file_lacks(tmp_path: Path, labels: bool) -> None:
    """Means of pairs, or every second label; as `Image.levels` and by NumPy from level 0."""
    path, target = tmp_path / "seg.mnc", tmp_path / "seg.ome.zarr"
    values = np.random.default_rng(2).integers(0, 200, (3, 1101, 1203), np.uint8)
    with h5py.File(path, "w") as h5:
        root = h5.create_group("minc-2.0")
        root.attrs["class"] = np.bytes_("label__" if labels else "")
        image = root.create_dataset("image/0/image", data=values, chunks=(1, 300, 300))
        image.attrs["valid_range"] = np.array([0.0, 255.0])
        root["image/0/image-min"] = np.zeros(3)
        root["image/0/image-max"] = np.full(3, 255.0)
        image.attrs["dimorder"] = np.bytes_("zspace,yspace,xspace")
        for name, step in (("zspace", 4.0), ("yspace", 1.0), ("xspace", 1.0)):
            axis = root.create_dataset(f"dimensions/{name}", data=0)
            axis.attrs["step"], axis.attrs["start"] = step, 0.0
    img = hs.open_image(path, physical=False)
    assert img.spec.labels is labels
    report = hs.convert(img, target, chunks=(2, 100, 128), shards=(4, 300, 384), memory=30_000_000)
    assert report is not None
    assert [level.made for level in report.plan.levels] == [False, True]
    assert report.chunks_decoded == 3 * 4 * 5
    found = read(target, 1)
    want = (every_second if labels else halve)(values, (1, 2))
    assert found.shape == (3, 551, 602)
    assert np.array_equal(found, want)
    assert np.array_equal(found, img.levels[1][...])
    assert ("omero" in ome(target), "image-label" in ome(target)) == (not labels, labels)
    second = ome(target)["multiscales"][0]["datasets"][1]["coordinateTransformations"]
    assert second[0]["scale"] == [4.0, 2.0, 2.0]
    assert second[1]["translation"] == [0.0, 0.5, 0.5]


def test_chunks_never_written_take_no_room(tmp_path: Path) -> None:
    path, target = tmp_path / "sparse.ims", tmp_path / "sparse.ome.zarr"
    make_imaris(
        path, shape=(4, 2, 16, 512, 512), chunks=(8, 128, 128), levels=1, sparse=True, n_written=1
    )
    report = hs.convert(path, target, shards=(1, 1, 16, 256, 256))
    assert report is not None
    names = [f"DataSet/ResolutionLevel 0/TimePoint {t}/Channel {c}/Data"
             for t in range(4) for c in range(2)]  # fmt: skip
    n_written = count_chunks(path, names, (16, 512, 512))
    assert 0 < n_written < 8 * 2 * 4 * 4
    assert report.chunks_decoded == n_written
    files = [p for p in (target / "0/c").rglob("*") if p.is_file()]
    assert 0 < len(files) <= n_written
    assert np.array_equal(read(target), h5py_imaris(path, 0, (4, 2, 16, 512, 512)))


# --- metadata


def test_metadata(tmp_path: Path) -> None:
    path, target = tmp_path / "cells.ims", tmp_path / "cells.ome.zarr"
    facts = make_imaris(path, shape=SHAPE, chunks=(4, 32, 32))
    hs.convert(path, target)
    img = hs.open_image(path)
    attributes = dict(zarr.open_group(target, mode="r").attrs)
    said = attributes["ome"]
    assert said["version"] == "0.5"
    (scales,) = said["multiscales"]
    assert scales["name"] == "Synthetic cells"
    assert [(a["name"], a["type"], a.get("unit")) for a in scales["axes"]] == [
        ("t", "time", None),
        ("c", "channel", None),
        *((letter, "space", "micrometer") for letter in "zyx"),
    ]
    for level, entry in zip(img.levels, scales["datasets"], strict=True):
        scale, translation = entry["coordinateTransformations"]
        assert (scale["type"], tuple(scale["scale"])) == ("scale", level.scale)
        assert tuple(translation["translation"]) == level.translation
        assert zarr.open_array(target / entry["path"], mode="r").shape == level.shape
    channels = said["omero"]["channels"]
    assert [c["label"] for c in channels] == list(facts.channel_names)
    assert [c["color"] for c in channels] == [
        "".join(f"{int(255 * part + 0.5):02X}" for part in color) for color in facts.colors
    ]
    for channel, limits in zip(channels, facts.ranges, strict=True):
        assert channel["window"] == {"min": 0, "max": 65535, "start": limits[0], "end": limits[1]}
    assert attributes["hyperslab"]["layout"] == "imaris"
    assert facts.timestamps is not None
    assert attributes["hyperslab"]["timestamps"] == [t.isoformat() for t in facts.timestamps]


def test_ome_zarr_models_agree(cells: Path, tmp_path: Path) -> None:
    models = pytest.importorskip("ome_zarr_models.v05", reason="ome-zarr-models is not installed")
    target = tmp_path / "cells.ome.zarr"
    hs.convert(cells, target)
    image = models.Image.from_zarr(zarr.open_group(target, mode="r"))
    assert len(image.attributes.ome.multiscales[0].datasets) == 3
    minc(tmp_path / "brain.mnc")
    hs.convert(tmp_path / "brain.mnc", tmp_path / "brain.ome.zarr")
    models.Image.from_zarr(zarr.open_group(tmp_path / "brain.ome.zarr", mode="r"))
    # And it can say no.
    group = zarr.open_group(target, mode="r+")
    said = dict(group.attrs)["ome"]
    del said["multiscales"][0]["datasets"][0]["coordinateTransformations"]
    group.attrs["ome"] = said
    with pytest.raises(ValueError, match="coordinateTransformations"):
        models.Image.from_zarr(zarr.open_group(target, mode="r"))


def test_tiff_metadata(cells: Path, tmp_path: Path) -> None:
    target = tmp_path / "cells.tif"
    hs.convert(cells, target, level=1)
    with tifffile.TiffFile(target) as tiff:
        assert (tiff.is_ome, tiff.is_bigtiff) == (True, False)
        assert tiff.series[0].axes == "TCZYX"
        assert np.array_equal(tiff.asarray(), h5py_imaris(cells, 1, (2, 2, 5, 35, 45)))
        pixels = tifffile.xml2dict(tiff.ome_metadata)["OME"]["Image"]["Pixels"]
    assert (pixels["PhysicalSizeX"], pixels["PhysicalSizeXUnit"]) == (2 * 0.12345, "µm")
    assert (pixels["PhysicalSizeZ"], pixels["PhysicalSizeZUnit"]) == (2.0, "µm")
    assert [c["Name"] for c in pixels["Channel"]] == ["DAPI", "Membrane"]
    assert [c["Color"] & 0xFFFFFFFF for c in pixels["Channel"]] == [0x3366FFFF, 0x1AFF4DFF]


def test_bigtiff(cells: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperslab.conversion.tiff._BIG_NBYTES", 1000)
    hs.convert(cells, tmp_path / "cells.tif")
    with tifffile.TiffFile(tmp_path / "cells.tif") as tiff:
        assert tiff.is_bigtiff
        assert np.array_equal(tiff.asarray(), h5py_imaris(cells, 0, SHAPE))


@pytest.mark.parametrize("ending", [".npy", ".tif"])
@pytest.mark.parametrize("memory", [30_000, 1 << 30])
def test_a_part(cells: Path, tmp_path: Path, ending: str, memory: int) -> None:
    target = tmp_path / f"part{ending}"
    part = np.s_[1, :, 1:5, 3:-20, -50:]
    report = hs.convert(cells, target, selection=part, memory=memory)
    assert report is not None
    want = h5py_imaris(cells, 0, SHAPE)[part]
    found = np.load(target) if ending == ".npy" else tifffile.imread(target)
    assert np.array_equal(found, want)
    assert report.chunks_decoded == 2 * 2 * 2 * 2  # and none of them twice
    n_regions = sum(1 for _ in report.plan.regions())
    assert n_regions == 1 if memory > 1e9 else n_regions > 2


# --- shapes


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(1, 12)), min_size=1,
             max_size=3),
    st.integers(1, 5000),
)  # fmt: skip
def test_regions(axes: list[tuple[int, int, int]], most: int) -> None:
    shape, unit, source = (tuple(column) for column in zip(*axes, strict=True))
    region = region_shape(shape, unit, source, 1, most)
    assert all(r % u == 0 for r, u in zip(region, unit, strict=True))
    inside = math.prod(min(r, n) for r, n in zip(region, shape, strict=True))
    assert inside <= max(most, math.prod(min(u, n) for u, n in zip(unit, shape, strict=True)))
    seen = np.zeros(shape, int)
    touched: Counter[tuple[int, ...]] = Counter()
    for box in regions(shape, region):
        seen[box] += 1
        first = [range(b.start // s, -(-b.stop // s)) for b, s in zip(box, source, strict=True)]
        touched.update(itertools.product(*first))
    assert (seen == 1).all()
    assert math.isclose(decodings(shape, region, source), sum(touched.values()) / len(touched))
    if most == 5000 >= 40 ** len(shape):
        assert decodings(shape, region, source) == 1


def test_shapes_for_viewing() -> None:
    shape = (60, 3, 48, 2048, 5888)
    for itemsize in (1, 2, 4, 8):
        chunks = view_chunks("TCZYX", shape, itemsize)
        shards = shard_shape("TCZYX", shape, chunks, itemsize)
        assert math.prod(chunks) * itemsize == 1 << 20
        assert (1 << 24) < math.prod(shards) * itemsize <= (1 << 26)
        assert shards[:2] == (1, 1)
        assert all(s % c == 0 for s, c in zip(shards, chunks, strict=True))
        small = shard_shape("TCZYX", shape, chunks, itemsize, 5 << 20)
        assert math.prod(small) * itemsize <= 5 << 20


def test_less_memory_decodes_in_passes(cells: Path, tmp_path: Path) -> None:
    """Chunks of the source straddle shards: then more memory, or more decodings."""
    how: dict[str, Any] = {"chunks": (1, 1, 5, 20, 30), "shards": (1, 1, 5, 20, 90), "threads": 1}
    found = []
    cache.clear()
    for memory in (1 << 20, 100_000):
        target = tmp_path / f"{memory}.ome.zarr"
        report = hs.convert(cells, target, memory=memory, **how)
        assert report is not None
        assert np.array_equal(read(target), h5py_imaris(cells, 0, SHAPE))
        assert cache.nbytes() == 0  # what is used in part is not kept
        level = report.plan.levels[0]
        # Of a region of whole chunks, 2 x 3 x 3; else rows of shards cut across them.
        found.append((level.decodings, level.region[3]))
        n = 4 * 2 * 3 * 3
        others = sum(
            round(each.decodings * math.prod(-(-a // b) for a, b in zip(each.shape,
                  each.source_chunks, strict=True)))
            for each in report.plan.levels[1:]
        )  # fmt: skip
        assert report.chunks_decoded == round(level.decodings * n) + others
    assert found == [(1.0, 80), (2.0, 20)]
    with pytest.raises(CapacityError, match="Allow more"):
        hs.convert(cells, tmp_path / "no.ome.zarr", memory=60_000, **how)
    assert not (tmp_path / "no.ome.zarr.converting").exists()


# --- interrupted


def interrupt(path: Path, target: Path, **how: Any) -> int:
    """Convert until a third is done; return how much that was."""
    stop = threading.Event()
    seen = []

    def progress(done: int, total: int) -> None:
        seen.append(done)
        if done >= total / 3:
            stop.set()

    assert hs.convert(path, target, progress=progress, cancelled=stop, **how) is None
    return seen[-1]


SMALL: dict[str, Any] = {"chunks": (1, 1, 5, 35, 90), "shards": (1, 1, 5, 70, 90)}


def test_cancel_and_resume(cells: Path, tmp_path: Path) -> None:
    target = tmp_path / "cells.ome.zarr"
    done = interrupt(cells, target, **SMALL)
    assert 0 < done < 252_000
    assert not target.exists()
    seen: list[tuple[int, int]] = []
    report = hs.convert(cells, target, resume=True, progress=lambda *now: seen.append(now), **SMALL)
    assert report is not None
    assert report.resumed_nbytes == done
    assert seen == sorted(seen)
    assert seen[-1] == (report.nbytes, report.nbytes)
    whole = hs.convert(cells, tmp_path / "whole.ome.zarr", **SMALL)
    assert whole is not None
    assert 0 < report.chunks_decoded < whole.chunks_decoded
    for level in range(3):
        assert np.array_equal(read(target, level), read(tmp_path / "whole.ome.zarr", level))


def test_only_the_same_is_gone_on_with(cells: Path, tmp_path: Path) -> None:
    target = tmp_path / "cells.ome.zarr"
    interrupt(cells, target, **SMALL)
    with pytest.raises(OutputError, match="another conversion"):
        hs.convert(cells, target, resume=True, codec="gzip", **SMALL)
    with h5py.File(cells, "r+") as h5:
        h5.attrs["later"] = 1
    with pytest.raises(OutputError, match="changed since"):
        hs.convert(cells, target, resume=True, **SMALL)


def test_nothing_is_replaced(cells: Path, tmp_path: Path) -> None:
    target = tmp_path / "cells.npy"
    with pytest.raises(OutputError, match="meanwhile"):
        hs.convert(cells, target, progress=lambda *_: target.touch())
    assert target.read_bytes() == b""
    target.unlink()
    report = hs.convert(cells, target, resume=True)
    assert report is not None
    assert report.resumed_nbytes == report.nbytes
    assert np.array_equal(np.load(target), h5py_imaris(cells, 0, SHAPE))


def test_a_shard_that_was_lost_is_made_again(cells: Path, tmp_path: Path) -> None:
    target = tmp_path / "cells.ome.zarr"
    interrupt(cells, target, **SMALL)
    made = tmp_path / "cells.ome.zarr.converting/data/0/c"
    first, second, *_ = sorted(p for p in made.rglob("*") if p.is_file())
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    journal = tmp_path / "cells.ome.zarr.converting/journal.jsonl"
    journal.write_text(journal.read_text() + '{"level": 0, "start"')
    report = hs.convert(cells, target, resume=True, **SMALL)
    assert report is not None
    assert np.array_equal(read(target), h5py_imaris(cells, 0, SHAPE))


def test_a_full_disk(cells: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "cells.ome.zarr"
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
        with pytest.raises(CapacityError, match="free"):
            hs.convert(cells, target)
    assert [p.name for p in tmp_path.iterdir()] == ["cells.ims"]

    def full(*_: Any, **__: Any) -> Any:
        if Path(tmp_path / "cells.ome.zarr.converting/data/0/c/0/1").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*_, **__)

    write = region.write_shards
    with monkeypatch.context() as patch:
        patch.setattr(region, "write_shards", full)
        with pytest.raises(CapacityError, match="--resume"):
            hs.convert(cells, target)
    assert not target.exists()
    report = hs.convert(cells, target, resume=True)
    assert report is not None
    assert report.resumed_nbytes == 2 * 5 * 70 * 90 * 2
    assert np.array_equal(read(target), h5py_imaris(cells, 0, SHAPE))


@pytest.mark.parametrize("ending", [".ome.zarr", ".npy", ".tif"])
def test_a_disk_that_really_is_full(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    source, target = tmp_path / "a.h5", small_disk / f"a{ending}"
    values = np.random.default_rng(0).integers(0, 1 << 16, (24, 400, 400), np.uint16)  # 7.7 MB
    with h5py.File(source, "w") as h5:
        h5.create_dataset("x", data=values, chunks=(4, 100, 100))
    how: dict[str, Any] = {"layout": "x", "axes": "ZYX", "memory": 2_000_000}
    if ending == ".ome.zarr":
        how |= {"chunks": (4, 100, 100), "shards": (4, 100, 100)}
    with pytest.raises(CapacityError, match="free"):
        hs.convert(source, target, **how)
    assert list(small_disk.iterdir()) == []
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)  # somebody else took the room
    with pytest.raises(CapacityError, match="--resume"):
        hs.convert(source, target, **how)
    assert [p.name for p in small_disk.iterdir()] == [f"a{ending}.converting"]
    # With more room it goes on.
    shutil.move(small_disk / f"a{ending}.converting", tmp_path / f"a{ending}.converting")
    report = hs.convert(source, tmp_path / f"a{ending}", resume=True, **how)
    assert report is not None
    assert 0 < report.resumed_nbytes < report.nbytes
    if ending == ".ome.zarr":
        found = read(tmp_path / "a.ome.zarr")
    else:
        path = tmp_path / f"a{ending}"
        found = np.load(path) if ending == ".npy" else tifffile.imread(path)
    assert np.array_equal(found, values)


def test_a_damaged_source(cells: Path, tmp_path: Path) -> None:
    with h5py.File(cells) as h5:
        data = h5["DataSet/ResolutionLevel 0/TimePoint 1/Channel 0/Data"]
        at = data.id.get_chunk_info(0).byte_offset
    with open(cells, "r+b") as stream:
        stream.seek(at)
        stream.write(b"\xff" * 20)
    for ending in (".ome.zarr", ".npy", ".tif"):
        with pytest.raises(ChunkDecodeError, match="TimePoint 1/Channel 0"):
            hs.convert(cells, tmp_path / f"out{ending}")
        assert not (tmp_path / f"out{ending}").exists()


# --- memory

MEMORY = """
    import json, resource, sys
    import hyperslab as hs
    report = hs.convert(sys.argv[1], sys.argv[2], memory=int(sys.argv[3]),
                        layout="x", axes="ZYX")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, report.nbytes)
"""


@pytest.mark.parametrize("ending", [".ome.zarr", ".npy", ".tif"])
def test_memory_has_a_ceiling(tmp_path: Path, ending: str) -> None:
    path, target = tmp_path / "large.h5", tmp_path / f"out{ending}"
    with h5py.File(path, "w") as h5:
        data = h5.create_dataset("x", (64, 2048, 1600), "u2", chunks=(8, 256, 200),
                                 compression="gzip", compression_opts=1)  # fmt: skip
        for z in range(0, 64, 8):
            data[z : z + 8] = np.arange(8 * 2048 * 1600, dtype="u4").reshape(8, 2048, 1600) // (
                z + 9
            )
    script = tmp_path / "child.py"
    script.write_text(textwrap.dedent(MEMORY))
    memory = 32_000_000
    # A process of its own in between: a child begins with its parent's peak.
    run = subprocess.run(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)",
         sys.executable, script, path, target, str(memory)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    peak, nbytes = map(int, run.stdout.split())
    assert nbytes > 2 * (memory + 150_000_000)
    assert peak < memory + 150_000_000
    shutil.rmtree(target, ignore_errors=True)


# --- a cluster

CLUSTER = """
    import os, sys, threading
    from dask.distributed import Client, LocalCluster
    import hyperslab as hs
    from hyperslab.exports.portable import _open

    def main():
        path, target = sys.argv[1:]
        options = dict(n_workers=2, threads_per_worker=2, dashboard_address=None)
        with LocalCluster(**options) as cluster, Client(cluster) as client:
            client.wait_for_workers(2, timeout=60)
            how = dict(scheduler=cluster.scheduler_address,
                       chunks=(1, 1, 5, 35, 45), shards=(1, 1, 5, 35, 90))
            stop = threading.Event()
            assert hs.convert(path, target, **how, cancelled=stop,
                              progress=lambda done, total: stop.set()) is None
            assert not os.path.exists(target)
            seen = []
            report = hs.convert(path, target, **how, resume=True,
                                progress=lambda *now: seen.append(now))
            assert report.resumed_nbytes > 0
            opened = client.run(lambda: _open.cache_info().misses)
            pids = client.run(os.getpid)
        assert seen[-1] == (report.nbytes, report.nbytes) and len(seen) == 2 * 2 * 3
        assert os.getpid() not in pids.values()
        print(sum(n > 0 for n in opened.values()), report.chunks_decoded)

    if __name__ == "__main__":
        main()
"""


def test_a_cluster_of_two_processes(cells: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed (the extra `dask`)")
    script, target = tmp_path / "cluster.py", tmp_path / "cells.ome.zarr"
    script.write_text(textwrap.dedent(CLUSTER))
    run = subprocess.run(
        [sys.executable, script, cells, target],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    here = hs.convert(
        cells, tmp_path / "here.ome.zarr", chunks=(1, 1, 5, 35, 45), shards=(1, 1, 5, 35, 90)
    )
    assert here is not None
    workers, chunks_decoded = map(int, run.stdout.split())
    assert workers == 2
    assert 0 < chunks_decoded < here.chunks_decoded  # the rest had been done before
    for number, level in enumerate(hs.open_image(cells).levels):
        assert np.array_equal(read(target, number), h5py_imaris(cells, number, level.shape))


# --- what is refused


def test_refusals(cells: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out.ome.zarr"
    for wrong, how, words in (
        ("out.png", {}, "ending"),
        ("nowhere/out.npy", {}, "no folder"),
        ("cells.ims", {}, "exists already"),
        ("out.npy", {"codec": "zstd"}, "for .ome.zarr"),
        ("out.npy", {"scheduler": "tcp://127.0.0.1:1"}, "cluster"),
        ("out.ome.zarr", {"selection": np.s_[0]}, "selection"),
        ("out.ome.zarr", {"codec": "lz4"}, "Codecs: blosc"),
        ("out.ome.zarr", {"chunks": (1, 256, 256)}, "TCZYX"),
        ("out.ome.zarr", {"chunks": (1, 1, 2, 9, 9), "shards": (1, 1, 2, 10, 9)}, "multiples"),
        ("out.tif", {"selection": np.s_[..., 0]}, "planes"),
    ):
        with pytest.raises(OutputError, match=words):
            hs.convert(cells, tmp_path / wrong, **how)  # type: ignore[arg-type]
    for how in ({"level": 9}, {"level": -1}, {"selection": np.s_[::2]}, {"selection": np.s_[5]},
                {"selection": np.s_[0, 0, 0, 0, 0, 0]}):  # fmt: skip
        with pytest.raises(SelectionError):
            hs.convert(cells, tmp_path / "out.npy", **how)  # type: ignore[arg-type]
    with h5py.File(tmp_path / "odd.h5", "w") as h5:
        h5["x"] = np.zeros((2, 3, 4, 5, 6), "i8")
    with pytest.raises(OutputError, match="one axis more"):
        hs.convert(tmp_path / "odd.h5", target, layout="x", axes="CEZYX")
    with pytest.raises(OutputError, match="no int64"):
        hs.convert(tmp_path / "odd.h5", tmp_path / "o.tif", layout="x", axes="TCZYX")
    monkeypatch.setattr("hyperslab.conversion.store.version", lambda _: "2.18.1")
    with pytest.raises(MissingExtraError, match=r"hyperslab\[zarr\]"):
        hs.convert(cells, target)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cells.ims", "odd.h5"]


def test_the_page_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_page("how-to/convert.md", tmp_path, monkeypatch)
    check_printed(capsys.readouterr().out, "".join(blocks("how-to/convert.md", "text")))


# --- the command


def test_the_command(cells: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    target = tmp_path / "cells.ome.zarr"
    result = run(app, ["convert", str(cells), str(target), "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "once" in result.output
    assert not target.exists()
    result = run(app, ["convert", str(cells), str(target), "--json", "--level", "1", "--memory",
                       "100MB", "--chunks", "1,1,5,32,32"])  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [level["number"] for level in report["plan"]["levels"]] == [1, 2]
    assert np.array_equal(read(target), h5py_imaris(cells, 1, (2, 2, 5, 35, 45)))
    part = tmp_path / "part.npy"
    result = run(app, ["convert", str(cells), str(part), "--select", "0, :, 1:3"])
    assert result.exit_code == 0, result.output
    assert np.array_equal(np.load(part), h5py_imaris(cells, 0, SHAPE)[0, :, 1:3])
    assert "kB" in result.output
    for wrong in (
        [str(part)],  # exists
        [str(tmp_path / "x.npy"), "--axes", "ZYX"],
        [str(tmp_path / "x.npy"), "--select", "a"],
        [str(tmp_path / "x.ome.zarr"), "--chunks", "0,1"],
        [str(tmp_path / "x.ome.zarr"), "--memory", "much"],
    ):
        assert run(app, ["convert", str(cells), *wrong]).exit_code == 2
