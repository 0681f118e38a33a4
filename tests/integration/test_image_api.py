"""What an image offers a person: selections by name, positions, contrast, pictures, a refusal."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Picture

import hyperslab as hs
from hyperslab.engine import cache
from hyperslab.errors import CapacityError, LayoutError, OutputError, SelectionError
from hyperslab.exports import capacity, contrast, planes, thumbnail
from hyperslab.exports.png import encode_png
from hyperslab.layouts.spec import ChannelSpec
from hyperslab.testing import make_imaris
from tests.images import h5py_imaris
from tests.pages import DOCS, run_page

SHAPE = (2, 2, 5, 70, 90)
NO_LIMITS = ((3.0, 3.0), (0.0, 1e9))  # neither makes sense for uint16
pytestmark = pytest.mark.filterwarnings("ignore::hyperslab.errors.MetadataWarning")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "cells.ims"
    make_imaris(found, shape=SHAPE, chunks=(4, 32, 32))
    return found


def plain_image(path: Path, values: Any, axes: str, **options: Any) -> hs.Image:
    with h5py.File(path, "w") as h5:
        h5.create_dataset("x", data=values, **options)
    return hs.open_image(path, "x", axes=axes)


# --- isel


@pytest.mark.parametrize(
    ("indexers", "index"),
    [
        ({}, np.s_[...]),
        ({"T": 1}, np.s_[1]),
        ({"t": -1, "c": "Membrane"}, np.s_[-1, 1]),
        ({"C": "DAPI", "Z": slice(1, 4)}, np.s_[:, 0, 1:4]),
        ({"X": slice(None, None, -3), "T": 0}, np.s_[0, :, :, :, ::-3]),
        ({"C": ["Membrane", 0]}, np.s_[:, [1, 0]]),
        ({"T": [1, 0, 1], "Z": [4, 2]}, np.ix_([1, 0, 1], [0, 1], [4, 2], range(70), range(90))),
        ({"T": 0, "Z": 1, "Y": 2, "X": 3, "C": 1}, np.s_[0, 1, 1, 2, 3]),
    ],
    ids=str,
)
def test_isel(path: Path, indexers: dict[str, Any], index: Any) -> None:
    img = hs.open_image(path)
    before = hs.last_stats()
    view = img.isel(**indexers)
    assert hs.last_stats() is before
    want = h5py_imaris(path, 0, SHAPE)[index]
    assert view.shape == want.shape
    assert np.array_equal(view, want)


def test_isel_of_a_level(path: Path) -> None:
    want = h5py_imaris(path, 1, (2, 2, 5, 35, 45))
    assert np.array_equal(hs.open_image(path).isel(level=1, C="Membrane", T=1), want[1, 1])


@pytest.mark.parametrize(
    ("indexers", "said"),
    [
        ({"Q": 0}, r"no axis 'Q'.*T, C, Z, Y, X"),
        ({"depth": 0}, r"no axis 'depth'"),
        ({"T": 0, "t": 0}, r"axis T was given twice"),
        ({"C": "GFP"}, r"no channel is called 'GFP'.*0 'DAPI', 1 'Membrane'"),
        ({"Z": 5}, r"cells\.ims: Z=5: index 5 is out of bounds"),
        ({"Z": None}, r"Z=None"),
    ],
    ids=str,
)
def test_isel_says_what_there_is(path: Path, indexers: dict[str, Any], said: str) -> None:
    with pytest.raises(SelectionError, match=said):
        hs.open_image(path).isel(**indexers)


def test_a_name_twice_is_no_name(tmp_path: Path) -> None:
    make_imaris(tmp_path / "twins.ims", channel_names=["GFP", "GFP"], shape=(1, 2, 2, 8, 8))
    img = hs.open_image(tmp_path / "twins.ims")
    with pytest.raises(SelectionError, match=r"several channels are called 'GFP'"):
        img.isel(C="GFP")
    assert img.isel(C=1).shape == (1, 2, 8, 8)


# --- positions


def test_coordinates(path: Path) -> None:
    img = hs.open_image(path)
    x = img.coordinates("x")
    assert (x.dtype, x.shape) == (np.float64, (90,))
    assert np.allclose(x, 100.5 + 0.12345 * (np.arange(90) + 0.5))
    assert x[0] == img.translation[-1]
    assert img.coordinates("Z").tolist() == [-2, 0, 2, 4, 6]
    assert np.allclose(img.coordinates("X", level=1), x.reshape(-1, 2).mean(axis=1))
    with pytest.raises(SelectionError, match="no axis 'ZY'"):
        img.coordinates("ZY")


# --- contrast


def test_the_file_s_limits_cost_nothing(path: Path) -> None:
    img = hs.open_image(path)
    before = hs.last_stats()
    assert img.contrast_limits(1) == img.contrast_limits("Membrane") == (0.0, 5000.0)
    assert hs.last_stats() is before


def test_measured_limits_cost_one_coarse_plane_a_channel(tmp_path: Path) -> None:
    path = tmp_path / "cells.ims"
    make_imaris(
        path, shape=(3, 2, 20, 150, 200), chunks=(4, 32, 32), ranges=NO_LIMITS, histogram=False
    )
    img = hs.open_image(path)
    coarsest = img.levels[-1]
    assert len(img.levels) == 4
    plane = h5py_imaris(path, 3, coarsest.shape)[0, :, coarsest.shape[2] // 2]
    chunks = -(-plane.shape[1] // 32) * -(-plane.shape[2] // 32)
    for channel in (0, 1):
        cache.clear()
        found = img.contrast_limits(channel)
        stats = hs.last_stats()
        assert stats.chunks_decoded == chunks
        ordered = np.sort(plane[channel], axis=None)
        low, high = (round(p * (ordered.size - 1)) for p in (0.001, 0.999))
        assert found == (ordered[low], ordered[high])
        assert found[0] < found[1]
        cache.clear()
        assert img.contrast_limits(channel) == found
        assert hs.last_stats() is stats  # once
        assert hs.open_image(path).contrast_limits(channel) == found
    with pytest.raises(SelectionError, match="no channel 2"):
        img.contrast_limits(2)


def test_limits_that_make_no_sense_are_not_taken(path: Path) -> None:
    img = hs.open_image(path)
    measured = contrast.contrast_limits(None, img.levels, 0)
    assert 0 < measured[1] < 65535
    for limits in (*NO_LIMITS, (0.0, float("inf")), (-1.0, 9.0), (9.0, 1.0)):
        assert contrast.contrast_limits(limits, img.levels, 0) == measured
    assert contrast.contrast_limits((1.0, 65535.0), img.levels, 0) == (1.0, 65535.0)


def test_a_huge_plane_is_looked_at_in_its_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contrast, "_WINDOW", 16)
    values = np.zeros((64, 64), "u2")
    values[24:40, 24:40] = np.arange(256).reshape(16, 16) + 7
    img = plain_image(tmp_path / "x.h5", values, "YX", chunks=(8, 8), compression="gzip")
    assert img.contrast_limits() == (7, 262)
    assert hs.last_stats().chunks_decoded == 4


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        (np.zeros((4, 4), "u2"), (0, 1)),
        (np.full((4, 4), 255, "u1"), (254, 255)),
        (np.full((4, 4), -3, "i2"), (-3, -2)),
        (np.array([[0] * 2000 + [9]], "u2"), (0, 9)),  # rarer than the percentiles see
        (np.array([[True, True]]), (0, 1)),
        (np.array([[np.nan, 2, 4, np.inf]], "f4"), (2, 4)),
        (np.full((2, 2), np.nan, "f8"), (0, 1)),
        (np.full((2, 2), 1e300), (1e300, np.nextafter(1e300, np.inf))),
        (np.array([[3 + 4j, 0]]), (0, 5)),
        (np.zeros((0, 4), "u2"), (0, 1)),
    ],
    ids=str,
)
def test_limits_of_odd_planes(tmp_path: Path, values: Any, limits: tuple[float, float]) -> None:
    found = plain_image(tmp_path / "x.h5", values, "YX").contrast_limits()
    assert found == limits
    assert all(type(limit) is float for limit in found)


def test_a_new_file_is_measured_anew(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    img = plain_image(path, np.arange(100, dtype="u2").reshape(10, 10), "YX")
    assert img.contrast_limits() == (0, 99)
    with h5py.File(path, "r+") as h5:
        h5["x"][...] = np.arange(100).reshape(10, 10) + 1000
    img.refresh()
    assert img.contrast_limits() == (1000, 1099)


# --- read refuses


def test_what_does_not_fit_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    img = hs.open_image(path)
    before = hs.last_stats()
    monkeypatch.setattr(capacity, "_LOOK_NBYTES", 1000)
    monkeypatch.setattr(capacity, "memory_at_hand", lambda: img.nbytes - 1)
    for attempt in (
        img.read,
        lambda: img.read(progress=True),
        lambda: img[...],
        lambda: np.asarray(img),
        lambda: img.levels[0].read(),
        lambda: np.asarray(img.levels[0].lazy[...]),
    ):
        with pytest.raises(CapacityError, match=r"252 kB") as caught:
            attempt()
        assert caught.value.facts["wanted_nbytes"] == img.nbytes == 252_000
        assert caught.value.facts["at_hand_nbytes"] == img.nbytes - 1
    for advice in ("part", "level=1", "to_dask()", "numpy.memmap"):
        assert advice in str(caught.value)
    assert hs.last_stats() is before
    assert img[1].nbytes == img.nbytes // 2
    assert img.read(level=1).nbytes == img.nbytes // 4
    out = np.empty(img.shape, img.dtype)
    assert img.read(out=out) is out
    monkeypatch.setattr(capacity, "memory_at_hand", lambda: img.nbytes)
    assert np.array_equal(img.read(), out)


def test_the_memory_is_looked_up(tmp_path: Path) -> None:
    path = tmp_path / "logical.ims"
    shape = (40_000, 1, 48, 2048, 5888)
    with h5py.File(path, "w") as h5:
        h5.create_dataset("x", shape, "u2", chunks=(1, 1, 16, 256, 256))
    img = hs.open_image(path, "x", axes="TCZYX")
    with pytest.raises(CapacityError, match=r"46\.3 TB"):
        img.read()
    assert not img[39_999, 0, 47, 2000:, 5800:].any()


# --- pictures


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9)).flatmap(
        lambda shape: st.binary(min_size=3 * shape[0] * shape[1], max_size=3 * shape[0] * shape[1])
        .map(lambda raw: np.frombuffer(raw, np.uint8).reshape(*shape, 3))
    )
)  # fmt: skip
def test_png_is_what_other_programs_read(pixels: Any) -> None:
    import io

    with Picture.open(io.BytesIO(encode_png(pixels))) as picture:
        assert (picture.mode, picture.size) == ("RGB", (pixels.shape[1], pixels.shape[0]))
        assert np.array_equal(np.asarray(picture), pixels)


def test_a_thumbnail(tmp_path: Path) -> None:
    path = tmp_path / "cells.ims"
    values = np.zeros((2, 2, 12, 160, 240), "u2")
    values[0, 0, 5, :80] = 1000  # Z 4 to 7 share the middle plane's chunks
    values[0, 1, 7, :, :120] = 4000
    values[0, 0, 0] = values[1] = 5000  # another slab, another time
    make_imaris(
        path, shape=values.shape, chunks=(4, 32, 32), data=values, voxel=(1, 0.5, 0.5),
        levels=[(12, 160, 240), (12, 80, 120), (12, 40, 60)],
        colors=[(1, 0, 0), (0, 0, 1)], ranges=[(0, 2000), (0, 4000)],
    )  # fmt: skip
    img = hs.open_image(path)
    img.save_thumbnail(tmp_path / "small.png", size=60)
    assert hs.last_stats().chunks_decoded == 4  # 2 x 2 chunks of a plane of 40 x 60
    with Picture.open(tmp_path / "small.png") as picture:
        pixels = np.asarray(picture)
    assert pixels.shape == (40, 60, 3)
    assert pixels[2, 2].tolist() == [128, 0, 255]
    assert pixels[2, 57].tolist() == [128, 0, 0]
    assert pixels[37, 2].tolist() == [0, 0, 255]
    assert pixels[37, 57].tolist() == [0, 0, 0]
    for size, want in ((61, (41, 61)), (120, (80, 120)), (256, (160, 240))):
        img.save_thumbnail(tmp_path / "other.PNG", size)
        with Picture.open(tmp_path / "other.PNG") as picture:
            assert picture.size[::-1] == want


def test_colours_add_up_to_white_at_most(tmp_path: Path) -> None:
    values = np.full((1, 2, 1, 8, 8), 900, "u2")
    make_imaris(
        tmp_path / "x.ims", shape=values.shape, data=values,
        colors=[(1, 0.5, 0), (0.8, 0.25, 0)], ranges=[(0, 900)] * 2,
    )  # fmt: skip
    hs.open_image(tmp_path / "x.ims").save_thumbnail(tmp_path / "x.png")
    with Picture.open(tmp_path / "x.png") as picture:
        assert picture.getpixel((3, 3)) == (255, 191, 0)


def test_a_thumbnail_has_physical_proportions(tmp_path: Path) -> None:
    make_imaris(tmp_path / "x.ims", shape=(1, 1, 2, 50, 100), voxel=(1, 4.0, 1.0))
    hs.open_image(tmp_path / "x.ims").save_thumbnail(tmp_path / "x.png", size=80)
    with Picture.open(tmp_path / "x.png") as picture:
        assert picture.size == (40, 80)


def test_thumbnails_that_cannot_be(path: Path, tmp_path: Path) -> None:
    img = hs.open_image(path)
    with pytest.raises(OutputError, match=r"\.png"):
        img.save_thumbnail(tmp_path / "x.jpg")
    with pytest.raises(OutputError, match="0 pixels"):
        img.save_thumbnail(tmp_path / "x.png", size=0)
    empty = plain_image(tmp_path / "x.h5", np.zeros((0, 4), "u2"), "YX")
    with pytest.raises(LayoutError, match=r"x\.h5.*no pixels"):
        empty.save_thumbnail(tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()


def test_resampling_keeps_the_mean() -> None:
    plane = np.arange(12.0).reshape(4, 3)
    assert thumbnail.resample(plane, (2, 3)).tolist() == [[1.5, 2.5, 3.5], [7.5, 8.5, 9.5]]
    assert thumbnail.resample(plane, (4, 1)).tolist() == [[1], [4], [7], [10]]
    assert thumbnail.resample(plane, (3, 3))[:, 0].tolist() == [0, 3, 7.5]  # rows 0; 1; 2 and 3
    assert thumbnail.resample(plane[:1, :2], (2, 4)).tolist() == [[0, 0, 1, 1]] * 2


def test_blending() -> None:
    plane = np.array([[-5.0, 0, 5, 10, 99, np.nan]])
    plain = thumbnail.blend(ChannelSpec(name=""), (1, 0.5, 0), plane, (0, 10))
    assert plain[0, :, 0].tolist() == [0, 0, 0.5, 1, 1, 0]
    assert plain[0, :, 1].tolist() == [0, 0, 0.25, 0.5, 0.5, 0]
    bent = thumbnail.blend(ChannelSpec(name="", gamma=2.0), (1, 1, 1), plane, (0, 10))
    assert bent[0, :, 2].tolist() == [0, 0, 0.25, 1, 1, 0]
    table = ((0.0, 0.0, 1.0), (0.0, 1.0, 0.0), (1.0, 0.0, 0.0))
    tinted = thumbnail.blend(ChannelSpec(name="", color_table=table), (1, 1, 1), plane, (0, 10))
    assert tinted[0, 1:4].tolist() == [list(c) for c in table]


@pytest.mark.parametrize(("axes", "index"), [
    ("YX", np.s_[:, :]), ("XY", np.s_[:, :]), ("TYX", np.s_[0]), ("YXC", np.s_[:, :, 1]),
    ("ZYX", np.s_[2]), ("CZX", np.s_[1]), ("AYX", np.s_[2]), ("YZX", np.s_[:, 2]),
])  # fmt: skip
@pytest.mark.parametrize("project", [False, True])
def test_planes_of_any_axes(tmp_path: Path, axes: str, index: Any, project: bool) -> None:
    values = np.random.default_rng(0).random([{"Y": 6, "X": 7}.get(a, 5) for a in axes])
    chunks = tuple({"Z": 2}.get(a, n) for a, n in zip(axes, values.shape, strict=True))
    img = plain_image(tmp_path / "x.h5", values, axes, chunks=chunks)
    want = values[index]
    if project and axes == "ZYX":
        want = values[2:4].max(axis=0)
    if project and axes == "YZX":
        want = values[:, 2:4].max(axis=1)
    got = planes.read_plane(img.levels[0], 1 if "C" in axes else 0, project=project)
    assert np.array_equal(got, want.T if axes == "XY" else want)


def test_planes_that_are_large_are_not_projected(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    img = hs.open_image(path)
    want = h5py_imaris(path, 0, SHAPE)[0, 1]
    read = lambda: planes.read_plane(img.levels[0], 1, project=True)  # noqa: E731
    assert np.array_equal(read(), want[:4].max(axis=0))
    monkeypatch.setattr(planes, "_SLAB_NBYTES", 4 * 70 * 90 * 2 - 1)
    assert np.array_equal(read(), want[2])


# --- HTML


class _Reader(HTMLParser):
    """Collects the cells of a table, and which tags were opened and not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag != "br":
            self.open.append(tag)
        if tag in ("th", "td", "caption"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.cells[-1] += data


def test_html(path: Path) -> None:
    img = hs.open_image(path)
    before = hs.last_stats()
    html = img._repr_html_()
    assert hs.last_stats() is before
    read = _Reader(html)
    assert read.open == []
    found = dict(zip(read.cells[1::2], read.cells[2::2], strict=True))
    assert read.cells[0] == "Synthetic cells"
    assert found["Axes"] == "T=2, C=2, Z=5, Y=70, X=90"
    assert found["Size"] == "252 kB, uint16"
    assert found["Pixel"] == "2 um x 0.12345 um x 0.12345 um"
    assert found["Channels"] == "DAPI, 0 to 5000Membrane, 0 to 5000"
    assert found["Time"] == "2024-03-05 10:20:00 to 2024-03-05 10:20:30"
    assert found["Levels"].startswith("0: 2 × 2 × 5 × 70 × 90, 252 kB1: 2 × 2 × 5 × 35 × 45, ")
    assert (found["Layout"], found["File"]) == ("imaris", str(path))
    assert re.findall(r"background:([^\"]*)", html) == ["rgb(51,102,255)", "rgb(26,255,76)"]


def test_html_has_the_file_s_texts_as_texts(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>&amp;\"'"
    path = tmp_path / "a<b>&.ims"
    make_imaris(path, shape=(1, 1, 2, 8, 8), channel_names=[evil], unit="<i>", time_stamps=False)
    read = _Reader(hs.open_image(path)._repr_html_())
    assert read.tags == {"table", "caption", "b", "tbody", "tr", "th", "td", "br", "span"} - {"br"}
    found = dict(zip(read.cells[1::2], read.cells[2::2], strict=True))
    assert found["Channels"].startswith(evil)
    assert found["File"] == str(path)
    assert "Time" not in found
    assert found["Level"] == "0: 1 × 1 × 2 × 8 × 8, 256 B"


# --- the page


def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("dask", reason="dask is not installed (the extra `dask`)")
    pytest.importorskip("xarray", reason="xarray is not installed (the extra `dask`)")
    import dask

    with dask.config.set(scheduler="sync"):
        names = run_page("how-to/notebook.md", tmp_path, monkeypatch)
    text = (DOCS / "how-to" / "notebook.md").read_text(encoding="utf-8")
    said = re.findall(r"^ *print\(.*\)  # (.*)$", text, re.M)
    assert capsys.readouterr().out.splitlines() == said
    assert (tmp_path / "cells.png").stat().st_size > 1000
    assert isinstance(names["img"], hs.Image)
