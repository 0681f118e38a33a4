"""`repack` for viewing: the same image, in chunks for planes, with the levels that it lacked."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

import hyperslab as hs
from hyperslab.cli.app import app
from hyperslab.errors import LayoutError, MetadataWarning, OutputError
from hyperslab.layouts.levels import LEVELS_GROUP
from hyperslab.pyramid import steps
from hyperslab.rewriting.rewrite import plan_file
from hyperslab.rewriting.viewing import viewing_chunks
from hyperslab.testing import make_bdv, make_imaris, make_stack

hdf5plugin = pytest.importorskip("hdf5plugin", reason="h5py reads lz4 with hdf5plugin")

FACTS = ("layout", "axes", "shape", "dtype", "scale", "translation", "origin", "units", "channels")
FACTS += ("timestamps", "name")


@pytest.fixture(autouse=True)
def small_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have images of more than 40 pixels each way get coarser levels."""
    monkeypatch.setattr(steps, "_PLANE", 40)


def plainly_halved(values: Any, axes: tuple[int, ...], *, nearest: bool = False) -> Any:
    """Means of pairs, written as they are said; exact for small integers."""
    for axis in axes:
        n = values.shape[axis]
        even, odd = np.arange(0, n, 2), np.minimum(np.arange(1, n + 1, 2), n - 1)
        first, second = np.take(values, even, axis), np.take(values, odd, axis)
        values = first if nearest else (first.astype("f8") + second) / 2
    return values


def assert_same_image(source: Path, target: Path, name: Any = None, **how: Any) -> None:
    """Compare facts and every level; those that were computed are in the target."""
    one, other = hs.open_image(source, image=name, **how), hs.open_image(target, image=name)
    for fact in FACTS:
        assert getattr(one, fact) == getattr(other, fact), fact
    assert [level.shape for level in one.levels] == [level.shape for level in other.levels]
    assert one.levels[-1].computed
    assert not any(level.computed for level in other.levels)
    for a, b in zip(one.levels, other.levels, strict=True):
        np.testing.assert_array_equal(a[...], b[...])


def write_labelled(path: Path, **how: Any) -> None:
    """A volume with labelled axes, X first, of three channels and with steps."""
    values = np.random.default_rng(0).integers(0, 200, (90, 3, 61, 7)).astype("u1")
    with h5py.File(path, "w") as f:
        data = f.create_dataset("deep/in/data", data=values, chunks=(30, 1, 30, 3), **how)
        data.attrs["channel_names"] = ["one", "two", "three"]
        for axis, (label, step) in enumerate((("x", 0.5), (None, 0), ("y", 0.5), ("z", 3.0))):
            data.dims[axis].label = label or "channel"
            if label:
                scale = f.create_dataset(
                    f"scales/{label}", data=5 + step * np.arange(values.shape[axis])
                )
                scale.attrs["units"] = "um"
                scale.make_scale(label)
                data.dims[axis].attach_scale(scale)


def write_tagged(path: Path, mode: str, dtype: str) -> None:
    """An image as ilastik has it, with the channel last."""
    values = np.random.default_rng(0).integers(0, 90, (85, 64, 2)).astype(dtype)
    with h5py.File(path, "w") as f:
        data = f.create_dataset("exported", data=values)
        axes = [{"key": k, "resolution": 0.25 if k != "c" else 0} for k in "yxc"]
        data.attrs["axistags"] = json.dumps({"axes": axes})
        data.attrs["display_mode"] = mode


def write_picture(path: Path) -> None:
    """An HDF5 image in colours, component by component."""
    values = np.random.default_rng(0).integers(0, 255, (3, 70, 81)).astype("u1")
    with h5py.File(path, "w") as f:
        data = f.create_dataset("picture", data=values)
        data.attrs["CLASS"] = np.bytes_("IMAGE")
        data.attrs["IMAGE_SUBCLASS"] = np.bytes_("IMAGE_TRUECOLOR")
        data.attrs["INTERLACE_MODE"] = np.bytes_("INTERLACE_PLANE")


WRITERS: dict[str, Any] = {
    "imaris": lambda path: make_imaris(path, shape=(2, 2, 5, 133, 87), levels=1),
    "imaris with two levels": lambda path: make_imaris(
        path, shape=(1, 2, 9, 170, 190), levels=2, dtype="float32"
    ),
    "bdv": lambda path: make_bdv(path, shape=(2, 2, 5, 133, 87), levels=1),
    "bdv with two levels": lambda path: make_bdv(path, shape=(2, 1, 8, 165, 171), levels=2),
    "labelled": write_labelled,
    "ilastik": lambda path: write_tagged(path, "grayscale", "f4"),
    "ilastik labels": lambda path: write_tagged(path, "random-colortable", "i4"),
    "picture": write_picture,
}


@pytest.mark.filterwarnings("ignore:.*no xml file")
@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("layout", list(WRITERS))
def test_the_same_image_with_all_levels(tmp_path: Path, layout: str, codec: str) -> None:
    source, target = tmp_path / "a.h5", tmp_path / "new" / "b.h5"
    target.parent.mkdir()
    WRITERS[layout](source)
    report = hs.repack(source, target, for_="viewing", codec=codec, memory=4 << 20)
    assert report is not None
    assert report.verified
    assert report.plan.levels
    assert report.plan.in_place == (codec == "none")
    assert_same_image(source, target)
    image = hs.open_image(target)
    assert image.chunks[-2:] == image.shape[-2:]
    left = {p.name for p in target.parent.iterdir()} - {"b.xml"}
    assert left == {"b.h5"}
    # What was there before is there as it was.
    with h5py.File(source) as a, h5py.File(target) as b:
        names: list[str] = []
        a.visit(names.append)
        for name in names:
            assert set(a[name].attrs) == set(b[name].attrs)
            if isinstance(a[name], h5py.Dataset) and not name.startswith("s0"):
                assert np.array_equal(a[name][()], b[name][()])
        new: list[str] = []
        b.visit(new.append)
        added = set(new) - set(names)
        own = "imaris" in layout or "bdv" in layout
        assert all(name.startswith(LEVELS_GROUP) for name in added) == (not own)


def test_bigdataviewer_is_told(tmp_path: Path) -> None:
    source, target = tmp_path / "a.h5", tmp_path / "b.h5"
    make_bdv(source, shape=(1, 2, 20, 133, 87), levels=1, voxel=(1.0, 0.5, 0.5))
    hs.repack(source, target, for_="viewing")
    with h5py.File(target) as f:
        for setup in ("s00", "s01"):
            factors = [[1, 1, 1], [2, 2, 1], [4, 4, 2]]
            assert f[f"{setup}/resolutions"][()].tolist() == factors
            assert [chunk[::-1] for chunk in f[f"{setup}/subdivisions"][()].tolist()] == [
                list(f[f"t00000/{setup}/{n}/cells"].chunks) for n in range(3)
            ]
            assert f[f"t00000/{setup}/1/cells"].dtype == "i2"
    assert hs.open_image(tmp_path / "b.xml").file == str(target)
    assert hs.open_image(tmp_path / "a.xml").file == str(source)
    again = tmp_path / "c.h5"
    (tmp_path / "c.xml").write_text("mine")
    with pytest.warns(MetadataWarning, match=r"c.xml: exists already, and stays"):
        hs.repack(target, again, for_="viewing", codec="none")
    assert (tmp_path / "c.xml").read_text() == "mine"
    with h5py.File(again) as f:
        assert len(f["s00/resolutions"]) == 3


def test_imaris_is_told(tmp_path: Path) -> None:
    source, target = tmp_path / "a.ims", tmp_path / "b.ims"
    make_imaris(source, shape=(1, 1, 5, 1100, 1103), levels=1, dtype="uint8")
    hs.repack(source, target, for_="viewing")
    with h5py.File(target) as f:
        finest = f["DataSet/ResolutionLevel 0/TimePoint 0/Channel 0"]
        group = f["DataSet/ResolutionLevel 1/TimePoint 0/Channel 0"]
        text = {key: b"".join(group.attrs[key]).decode() for key in group.attrs}
        assert (text["ImageSizeZ"], text["ImageSizeY"], text["ImageSizeX"]) == ("5", "550", "552")
        for name in ("HistogramMin", "HistogramMax"):
            assert np.array_equal(group.attrs[name], finest.attrs[name])
        data = group["Data"]
        assert data.chunks == (3, 550, 552)
        assert data.shape == (6, 550, 552)  # whole chunks
        values = finest["Data"][:5, :1100, :1103]
        means = plainly_halved(values, (1, 2))
        assert np.array_equal(data[:5], np.floor(means + 0.5))
        assert not data[5:].any()


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_plain_stack_says_how_it_is_opened(tmp_path: Path, codec: str) -> None:
    source, target = tmp_path / "a.h5", tmp_path / "b.h5"
    make_stack(source, shape=(3, 2, 4, 97, 64), element_size_um=(2.0, 0.5, 0.5), missing=[(1, 0)])
    template = "t{t}/c{c}/data"
    with pytest.raises(LayoutError, match="no known layout"):
        hs.repack(source, target, for_="viewing")
    with pytest.warns(MetadataWarning, match="are missing"):
        hs.repack(source, target, for_="viewing", layout=template, codec=codec)
    with pytest.warns(MetadataWarning, match="are missing"):
        assert_same_image(source, target, layout=template)
    with h5py.File(target) as f:
        data = f[f"{LEVELS_GROUP}/1/t2/c1/data"][()]
        means = plainly_halved(f["t2/c1/data"][()], (1, 2))
        assert np.array_equal(data, np.floor(means + 0.5))
        assert f[LEVELS_GROUP].attrs["layout"] == template


@pytest.mark.parametrize("layout", ["imaris", "labelled"])
def test_napari_shows_the_levels(tmp_path: Path, layout: str) -> None:
    pytest.importorskip("napari", reason="the plugin is for napari")
    from hyperslab.napari.layers import image_layers

    source, target = tmp_path / "a.h5", tmp_path / "b.h5"
    WRITERS[layout](source)
    hs.repack(source, target, for_="viewing")
    one, other = (image_layers(hs.open_image(path)) for path in (source, target))
    assert len(one) == len(other) == len(hs.open_image(source).channels)
    for (data, facts, kind), (stored, same, as_before) in zip(one, other, strict=True):
        assert kind == as_before
        assert facts["name"] == same["name"]
        assert np.array_equal(facts["scale"], same["scale"])
        assert len(data) == len(stored) > 1
        for a, b in zip(data, stored, strict=True):
            assert np.array_equal(np.asarray(a), np.asarray(b))


def test_a_dataset_with_axes_of_its_own(tmp_path: Path) -> None:
    source, target = tmp_path / "a.h5", tmp_path / "b.h5"
    values = np.random.default_rng(0).normal(size=(41, 5, 83)).astype("f8")
    with h5py.File(source, "w") as f:
        f["x"] = values
        f["other"] = values
    hs.repack(source, target, for_="viewing", layout="x", axes="XTY")
    assert_same_image(source, target, layout="x", axes="XTY")
    with h5py.File(target) as f:
        assert f["x"].chunks == (41, 1, 83)
        assert f["other"].chunks is None
        assert f[f"{LEVELS_GROUP}/1/x"].shape == (21, 5, 42)


def test_levels_are_gone_on_with(tmp_path: Path) -> None:
    source = tmp_path / "a.ims"
    make_imaris(source, shape=(2, 2, 6, 200, 190), levels=1)
    for codec in ("none", "gzip"):
        plan = plan_file(source, for_="viewing", codec=codec, memory=1_700_000)
        finest = sum(item.nbytes for item in plan.rewritten if item.level is None)
        for wanted in (finest // 2, finest + 1000, plan.nbytes - 100_000):
            target = tmp_path / f"{codec}{wanted}.ims"
            stop = threading.Event()
            how: dict[str, Any] = {"for_": "viewing", "codec": codec, "memory": 1_700_000}

            def watch(now: Any, wanted: int = wanted, stop: threading.Event = stop) -> None:
                if now.stage == "encode" and now.done_nbytes >= wanted:
                    stop.set()

            assert hs.repack(source, target, **how, progress=watch, cancelled=stop) is None
            assert not target.exists()
            report = hs.repack(source, target, **how, resume=True)
            assert report is not None
            assert report.resumed_nbytes >= wanted
            assert_same_image(source, target)


def test_less_memory_than_a_chunk(tmp_path: Path) -> None:
    """Old chunks that are larger than a thread's share are halved in parts."""
    source, target = tmp_path / "a.h5", tmp_path / "b.h5"
    values = np.random.default_rng(0).integers(0, 60000, (9, 301, 207)).astype("u2")
    with h5py.File(source, "w") as f:
        f.create_dataset("x", data=values, chunks=(9, 301, 207), compression="gzip")
    for memory in (4_200_000, 64 << 20):
        target.unlink(missing_ok=True)
        hs.repack(source, target, for_="viewing", layout="x", memory=memory, threads=3)
        assert_same_image(source, target, layout="x")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_the_peak_stays_below_the_ceiling(tmp_path: Path) -> None:
    source = tmp_path / "a.h5"
    ramp = np.arange(1400, dtype="u2")
    with h5py.File(source, "w") as f:
        data = f.create_dataset("x", (32, 1400, 1400), "u2", chunks=(8, 200, 200), compression=1)
        for z in range(0, 32, 8):
            data[z : z + 8] = ramp[:, None] + 2 * ramp + z
    script = """
        import sys
        from hyperslab.rewriting import repack
        repack(sys.argv[1], sys.argv[2], for_="viewing", layout="x", codec=sys.argv[3],
               memory=24_000_000, threads=4)
        line = next(s for s in open("/proc/self/status") if s.startswith("VmHWM"))
        print(int(line.split()[1]) * 1024)
    """
    for codec in ("none", "lz4"):
        target = tmp_path / f"{codec}.h5"
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), source, target, codec],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert int(done.stdout) < 24_000_000 + 150_000_000
        assert [level.computed for level in hs.open_image(target).levels[:2]] == [False, False]


def test_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    source, target = tmp_path / "a.h5", tmp_path / "b.h5"
    make_stack(source, shape=(1, 2, 4, 97, 64))
    hs.repack(source, target, for_="viewing", layout="t{t}/c{c}/data")
    n_levels = len(hs.open_image(target).levels)
    for change, words in (
        (lambda g: g.move("1/t0/c1/data", "1/t0/c1/lost"), "there is none of /t0/c1/data"),
        (lambda g: g["1/t0/c1"].move("lost", "data"), ""),
        (lambda g: g.move("1", "one") or g.move("2", "1"), "it has the shape"),
    ):
        with h5py.File(target, "r+") as f:
            change(f[LEVELS_GROUP])
        if not words:
            assert len(hs.open_image(target).levels) == n_levels
            continue
        with pytest.warns(MetadataWarning, match=words):
            image = hs.open_image(target)
        assert [level.computed for level in image.levels] == [False] + [True] * (n_levels - 1)
        if words.startswith("it has"):
            # It is made anew, in the place of what does not fit.
            again = tmp_path / "c.h5"
            with pytest.warns(MetadataWarning, match=words):
                hs.repack(target, again, for_="viewing")
            assert not any(level.computed for level in hs.open_image(again).levels)


@pytest.mark.parametrize(
    ("letters", "shape", "itemsize", "expected"),
    [
        ("ZYX", (48, 2048, 5888), 2, (2, 512, 491)),
        ("ZYX", (48, 600, 700), 1, (2, 600, 700)),
        ("ZYX", (40, 100, 100), 2, (16, 100, 100)),
        ("YX", (513, 5), 8, (513, 5)),
        ("TCYX", (9, 3, 2048, 2048), 16, (1, 1, 256, 256)),
        ("XTY", (41, 5, 83), 4, (41, 1, 83)),
    ],
)
def test_chunks(letters: str, shape: Any, itemsize: int, expected: Any) -> None:
    assert viewing_chunks(letters, shape, itemsize) == expected


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"for_": "viewing", "access": "[k]"}, OutputError, "Give one of these"),
        ({"for_": "training"}, OutputError, "there is 'viewing'"),
        ({"access": "[k]", "layout": "x"}, OutputError, "go with for_='viewing'"),
        ({"for_": "viewing", "slice_first": True}, OutputError, "by an access pattern"),
        ({"for_": "viewing", "layout": "nothing"}, LayoutError, "neither a known layout"),
    ],
)
def test_wrong_use(tmp_path: Path, how: dict[str, Any], error: Any, words: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["x"] = np.zeros((50, 60, 70))
    with pytest.raises(error, match=words):
        hs.repack(tmp_path / "a.h5", tmp_path / "b.h5", **how)
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["repack", *map(str, arguments)], env={"COLUMNS": "140"})


def test_the_command(tmp_path: Path) -> None:
    source, target = tmp_path / "a.ims", tmp_path / "b.ims"
    make_imaris(source, shape=(1, 2, 5, 133, 287), levels=1)
    shown = run(source, target, "--for", "viewing", "--dry-run")
    assert shown.exit_code == 0
    assert "level 1" in shown.stdout
    plan = json.loads(run(source, target, "--for", "viewing", "--dry-run", "--json").stdout)
    assert [item["level"] for item in plan["rewritten"]] == [None] * 2 + [1, 2, 3] * 2
    done = run(source, target, "--for", "viewing")
    assert done.exit_code == 0
    assert "2 datasets rewritten" in done.stdout
    assert "6 added" in done.stdout
    assert_same_image(source, target)
    for wrong in (["--for", "fun"], ["--access", "[k]", "--axes", "ZYX"], []):
        assert run(source, tmp_path / "c.ims", *wrong).exit_code == 2
