"""The plugin in real windows, opened by one child process under Xvfb; and what needs no window."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import weakref
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import LayoutError, MissingExtraError
from hyperslab.napari import attendant, reader, window
from hyperslab.napari.access import plane_cost, plane_words
from hyperslab.napari.layers import image_layers
from hyperslab.napari.plain import only_dataset
from hyperslab.napari.units import handy_units
from hyperslab.testing import make_bdv, make_imaris

XVFB = ["xvfb-run", "-a", "-s", "-screen 0 1280x900x24 +extension GLX"]
CHILD = Path(__file__).with_name("napari_child.py")


def write_files(folder: Path) -> None:
    """Write what the child opens."""
    make_imaris(
        folder / "cells.ims",
        shape=(2, 3, 6, 70, 90),
        chunks=(3, 64, 64),
        channel_names=("DAPI", "GFP/actin", "Far red"),
        colors=((0, 0, 1), (0, 1, 0), (0.086, 0.608, 0.384)),
        ranges=((10, 900), (20, 800), (30, 700)),
    )
    make_imaris(
        folder / "sparse.ims",
        shape=(60, 3, 48, 2048, 5888),
        chunks=(16, 256, 256),
        levels=5,
        sparse=True,
        n_written=4,
        histogram=False,
    )
    stack = np.random.default_rng(0).integers(0, 4000, (48, 96, 96)).astype("u2")
    np.save(folder / "stack.npy", stack)
    with h5py.File(folder / "stack.h5", "w") as f:
        f.create_dataset("raw", data=stack, chunks=(16, 32, 32), compression="gzip")
    with h5py.File(folder / "labels.h5", "w") as f:
        f["raw"] = np.arange(20 * 30, dtype="u1").reshape(20, 30) % 200
        f["label"] = (np.arange(20 * 30).reshape(20, 30) % 7).astype("i8")
    with h5py.File(folder / "mask.h5", "w") as f:
        f["deep/mask"] = np.eye(30, dtype=bool)
    with h5py.File(folder / "complex.h5", "w") as f:
        f["field"] = np.full((20, 30), 3 + 4j, "c8")
    with h5py.File(folder / "color.h5", "w") as f:
        picture = f.create_dataset("photo", data=np.full((20, 30, 3), (250, 130, 10), "u1"))
        picture.attrs.update(
            {"CLASS": np.bytes_("IMAGE"), "IMAGE_SUBCLASS": np.bytes_("IMAGE_TRUECOLOR")}
        )
    with h5py.File(folder / "scaled.h5", "w") as f:
        volume = f.create_dataset("raw", data=np.zeros((4, 20, 30), "f2"))
        volume.attrs["element_size_um"] = (2.0, 0.5, 0.25)
    (folder / "text.txt").write_text("no image")
    with h5py.File(folder / "plain.h5", "w") as f:
        f["a"] = np.zeros((20, 30))
        f["b"] = np.zeros((20, 30))
    with h5py.File(folder / "line.h5", "w") as f:
        f["raw"] = np.zeros(9)
    with h5py.File(folder / "many.h5", "w") as f:
        for i in range(11):
            f.create_dataset(f"i{i:02}", data=np.full((20, 30), i, "u1")).attrs["CLASS"] = (
                np.bytes_("IMAGE")
            )

    with h5py.File(folder / "slices.h5", "w") as f:
        f["MR/p1"] = np.arange(20 * 30 * 5, dtype="u2").reshape(20, 30, 5)
    make_imaris(folder / "spectrum.ims", shape=(1, 40, 1, 20, 30), chunks=(1, 20, 30))
    make_damaged(folder / "damaged.ims")


def make_damaged(path: Path) -> None:
    """Write an image whose second channel does not decode."""
    make_imaris(path, shape=(1, 2, 3, 70, 90), chunks=(3, 64, 64))
    with h5py.File(path) as h5:
        data = h5["DataSet/ResolutionLevel 0/TimePoint 0/Channel 1/Data"]
        places = [data.id.get_chunk_info(i).byte_offset for i in range(data.id.get_num_chunks())]
    with path.open("r+b") as stream:
        for place in places:
            stream.seek(place)
            stream.write(bytes(64))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the child found."""
    if importlib.util.find_spec("napari") is None:
        pytest.skip("napari is not installed")
    if shutil.which("xvfb-run") is None:
        pytest.skip("no xvfb-run: there is no screen to open windows on")
    folder = tmp_path_factory.mktemp("napari")
    write_files(folder)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("NAPARI", "QT_"))}
    environment |= {"NAPARI_CONFIG": "", "HYPERSLAB_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [*XVFB, sys.executable, str(CHILD), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "report.json").read_text()) | {"folder": str(folder)}


def test_a_layer_a_channel(report: Any) -> None:
    found = report["channels_of_imaris"]
    assert [layer["name"] for layer in found["layers"]] == ["DAPI", "GFP/actin", "Far red"]
    for layer, limits, color in zip(
        found["layers"],
        ([10, 900], [20, 800], [30, 700]),
        ([0, 0, 1], [0, 1, 0], [0.086, 0.608, 0.384]),
        strict=True,
    ):
        assert layer["kind"] == "Image"
        assert layer["shape"] == [2, 6, 70, 90]
        assert layer["multiscale"]
        assert layer["scale"] == pytest.approx([1, 2, 0.12345, 0.12345], abs=1e-12)
        half = 0.12345 / 2
        assert layer["translate"] == pytest.approx([0, -2, 20.25 + half, 100.5 + half])
        assert layer["units"] == ["pixel", "µm", "µm", "µm"]
        assert layer["axis_labels"] == ["t", "z", "y", "x"]
        assert layer["blending"] == "additive"
        assert layer["contrast_limits"] == limits
        assert layer["contrast_limits_range"][1] > limits[1]
        assert layer["color"] == pytest.approx(color, abs=0.01)
    assert found["dims"] == ["t", "z", "y", "x"]


def test_adding_decodes_little(report: Any) -> None:
    # The file gives the limits; what is shown is one plane of some level, and the thumbnail's.
    found = report["channels_of_imaris"]["added"]
    assert 0 < found["chunks"] <= 3 * (4 + 1)


def test_the_plane_is_right(report: Any, tmp_path: Path) -> None:
    found = report["channels_of_imaris"]
    facts = make_imaris(
        tmp_path / "cells.ims",
        shape=(2, 3, 6, 70, 90),
        chunks=(3, 64, 64),
        channel_names=("DAPI", "GFP/actin", "Far red"),
        colors=((0, 0, 1), (0, 1, 0), (0.086, 0.608, 0.384)),
        ranges=((10, 900), (20, 800), (30, 700)),
    )
    level = found["plane_level"]
    with h5py.File(facts.path) as h5:
        _, y, x = facts.level_sizes[level]
        name = f"DataSet/ResolutionLevel {level}/TimePoint 1/Channel 0/Data"
        want = h5[name][4, :y, :x]
    np.testing.assert_array_equal(found["plane"], want)
    # Blue, green and the dark green that has little red in it.
    red, green, blue = found["brightest"]
    assert green > 100
    assert blue > 100
    assert red < green


def test_the_widget(report: Any) -> None:
    found = report["channels_of_imaris"]
    assert "T=2, C=3, Z=6, Y=70, X=90, uint16" in found["facts"]
    assert "1 × 1 × 3 × 64 × 64" in found["facts"]
    assert "takes 4 chunks" in found["facts"]
    assert found["levels"][0] == "automatic: now 0"
    assert "gzip, " in found["facts"]
    assert "2 × 0.1235 × 0.1235 µm" in found["facts"]
    assert "from the cache" in found["last"]
    assert found["followed"] == 1
    assert found["levels"][1] == "0: 2 × 3 × 6 × 70 × 90"
    assert found["locked"] == [1, 1]
    assert found["unlocked"] is None
    assert found["kept"] > 0
    assert found["kept_after_clear"] == 0


def test_volumes_keep_to_the_budget(report: Any) -> None:
    found = report["channels_of_imaris"]
    levels = [level for level, _ in found["volumes"]]
    assert levels[:2] == [0, 1]
    assert levels[2] == max(levels)
    assert found["volumes"][0][1] == [6, 70, 90]
    assert found["volumes"][1][1] == [6, 35, 45]
    assert found["level_in_2d"] is None


def test_volumes_over_time_keep_to_the_budget(report: Any) -> None:
    found = report["channels_of_imaris"]
    assert found["over_time"] == [[0, [2, 6, 70]], [1, [2, 6, 35]]]
    assert found["in_space_again"] == 1  # which is over the budget, and the coarsest


def test_a_file_of_208_gb(report: Any) -> None:
    found = report["sparse"]
    shapes = found["shapes"]
    assert shapes[0] == [60, 48, 2048, 5888]
    assert all(np.prod(a) > np.prod(b) for a, b in pairwise(shapes))
    assert len(found["limits"]) == 3
    assert all(low < high for low, high in found["limits"])

    def in_plane(level: int) -> int:
        return -(-shapes[level][2] // 256) * -(-shapes[level][3] // 256)

    # One plane of the level in sight a channel, and one of the coarsest for the thumbnail. napari
    # does it up to three times: for the coarsest level, and as the window finds its size.
    coarsest = len(shapes) - 1
    once = 3 * (in_plane(found["level"]) + in_plane(coarsest))
    assert 0 < found["added"]["touched"] <= 3 * once
    for step in found["steps"]:
        assert step["level"] == found["level"]
        assert 0 < step["touched"] <= 3 * (in_plane(step["level"]) + in_plane(coarsest))
    assert found["volume"]["nbytes"] <= attendant.DEFAULT_BUDGET_NBYTES
    finer = shapes[found["volume"]["level"] - 1][1:]
    assert 2 * np.prod(finer) > attendant.DEFAULT_BUDGET_NBYTES or max(finer) > 2048


def test_scrolling_decodes_each_chunk_once(report: Any) -> None:
    found = report["scrolling"]
    assert found["wrong"] == []
    assert found["chunks"] + found["ahead"] == 3 * 3 * 3


def test_labels(report: Any) -> None:
    raw, label = report["kinds"]["labels.h5"]
    assert (raw["kind"], raw["name"]) == ("Image", "raw")
    assert (label["kind"], label["name"]) == ("Labels", "label")
    assert not label["editable"]
    plane = np.arange(20 * 30).reshape(20, 30) % 7
    np.testing.assert_array_equal(report["kinds"]["label plane"], plane)
    assert report["kinds"]["others"] == ["label"]
    assert report["kinds"]["opened"] == "label [1]"  # a second of that name


def test_other_types(report: Any) -> None:
    kinds = report["kinds"]
    assert kinds["mask.h5"][0]["dtype"] == "uint8"
    assert kinds["mask.h5"][0]["contrast_limits"] == [0, 1]
    (field,) = kinds["complex.h5"]
    assert (field["dtype"], field["contrast_limits"]) == ("float32", [5, 6])
    assert [layer["color"] for layer in kinds["color.h5"]] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert {tuple(layer["contrast_limits"]) for layer in kinds["color.h5"]} == {(0, 255)}
    (scaled,) = kinds["scaled.h5"]
    assert (scaled["dtype"], scaled["scale"]) == ("float32", [2, 0.5, 0.25])
    assert scaled["units"] == ["µm"] * 3


def test_what_is_no_image(report: Any) -> None:
    kinds = report["kinds"]
    assert "hyperslab" in kinds["text.txt"]
    assert kinds["plain.h5"].startswith("LayoutError")
    assert "/a (20, 30) float64" in kinds["plain.h5"]
    assert "LayoutError" in kinds["line.h5"]


def test_many_images(report: Any) -> None:
    kinds = report["kinds"]
    assert len(kinds["many.h5"]) == reader.MOST_IMAGES
    assert any("holds 11 images; the first 8" in said for said in kinds["many.h5 said"])


def test_the_sample(report: Any) -> None:
    assert report["kinds"]["sample"] == ["DAPI", "Membrane", "Spots"]


def test_planes_of_slices_along_the_last_axis(report: Any) -> None:
    found = report["orders"]["slices"]
    assert (found["shape"], found["axis_labels"]) == ([5, 20, 30], ["z", "y", "x"])
    volume = np.arange(20 * 30 * 5).reshape(20, 30, 5)
    np.testing.assert_array_equal(report["orders"]["slice"], volume[:, :, 3])


def test_many_channels_are_one_layer(report: Any, tmp_path: Path) -> None:
    found = report["orders"]["spectrum"]
    assert (found["shape"], found["axis_labels"]) == ([1, 40, 1, 20, 30], list("tczyx"))
    make_imaris(tmp_path / "x.ims", shape=(1, 40, 1, 20, 30), chunks=(1, 20, 30))
    with h5py.File(tmp_path / "x.ims") as h5:
        want = h5["DataSet/ResolutionLevel 0/TimePoint 0/Channel 34/Data"][0]
    np.testing.assert_array_equal(report["orders"]["channel 34"], want)


def test_a_picture_is_whole_or_not_there(report: Any) -> None:
    found = report["pictures"]
    assert "cells.ims" not in found
    assert found["damaged.ims"].startswith("ChunkDecodeError: ")
    assert "Channel 1/Data" in found["damaged.ims"]
    assert found["files"] == ["cells.ims.png"]


def test_the_window_stays_responsive(report: Any) -> None:
    found = report["responsive"]
    assert found["busy"]
    assert found["waited"]
    assert found["ticks"] >= 20  # the read waited for them
    assert found["right"]


# What needs no window.


def test_only_ours_are_claimed(tmp_path: Path) -> None:
    write_files(tmp_path)
    (tmp_path / "other.mat").write_bytes(b"MATLAB 5.0 MAT-file")
    (tmp_path / "other.xml").write_text("<svg/>")
    facts = make_bdv(tmp_path / "embryo.h5")
    assert reader.get_reader(str(tmp_path / "cells.ims")) is reader.read
    assert reader.get_reader([str(tmp_path / "cells.ims"), tmp_path / "stack.h5"]) is reader.read
    assert reader.get_reader(facts.xml_path) is reader.read
    for name in ("other.mat", "other.xml", "text.txt", "missing.h5", "."):
        assert reader.get_reader(str(tmp_path / name)) is None
    assert reader.get_reader([str(tmp_path / "cells.ims"), str(tmp_path / "text.txt")]) is None
    assert reader.get_reader([]) is None


def test_one_plain_dataset_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "one.h5"
    with h5py.File(path, "w") as f:
        f["g/volume"] = np.zeros((4, 20, 30), "u1")
        f["table"] = np.zeros((100, 3))
        f["again"] = f["g/volume"]
    assert only_dataset(str(path)) in (("/g/volume", "ZYX"), ("/again", "ZYX"))
    with pytest.warns(UserWarning, match="is shown as ZYX"):
        ((data, keywords, kind),) = reader.layers_of(str(path))
    assert (data.shape, kind, keywords["axis_labels"]) == ((4, 20, 30), "image", list("zyx"))


def test_images_that_cannot_be_shown_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "two.h5"
    with h5py.File(path, "w") as f:
        f["good"] = np.zeros((20, 30))
        f["empty"] = np.zeros((0, 30), "u1")
    images = [hs.open_image(path, name, axes="YX") for name in ("empty", "good")]
    monkeypatch.setattr(reader, "images_of", lambda path: (images, 2))
    with pytest.warns(UserWarning, match="at least one element"):
        (only,) = reader.layers_of(str(path))
    assert only[1]["name"] == "good"
    monkeypatch.setattr(reader, "images_of", lambda path: (images[:1], 1))
    with pytest.raises(LayoutError, match="at least one element"):
        reader.layers_of(str(path))


def test_a_color_table(tmp_path: Path) -> None:
    table = [(i / 255, 0.0, 1 - i / 255) for i in range(256)]
    make_imaris(tmp_path / "x.ims", color_tables={1: table})
    found = image_layers(hs.open_image(tmp_path / "x.ims"))
    colormap = found[1][1]["colormap"]
    assert len(colormap["colors"]) == 256
    assert colormap["colors"][0] == pytest.approx((0, 0, 1))


def test_layers_read_nothing_where_the_file_gives_limits(tmp_path: Path) -> None:
    make_imaris(tmp_path / "x.ims", ranges=((1, 5), (2, 6)))
    img = hs.open_image(tmp_path / "x.ims")
    before = hs.last_stats()
    found = image_layers(img)
    assert hs.last_stats() is before
    assert [keywords["contrast_limits"] for _, keywords, _ in found] == [(1, 5), (2, 6)]
    for channel, (data, _, _) in enumerate(found):
        np.testing.assert_array_equal(data[0][0, 1], img[0, channel, 1])


def test_a_line_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f["x"] = np.zeros(9)
    with pytest.raises(LayoutError, match="two axes or more"):
        image_layers(hs.open_image(tmp_path / "x.h5", "x", axes="X"))


def test_the_cost_of_a_plane(tmp_path: Path) -> None:
    make_imaris(tmp_path / "x.ims", shape=(1, 1, 20, 200, 300), chunks=(8, 64, 64), levels=1)
    level = hs.open_image(tmp_path / "x.ims").levels[0]
    cost = plane_cost(level)
    _ = level[0, 0, 3]
    assert hs.last_stats().chunks_decoded == cost.n_chunks == 4 * 5
    assert cost.planes_together == 8
    assert cost.decoded_nbytes == 8 * cost.used_nbytes == 8 * 200 * 300 * 2
    assert "serve 8 planes" in plane_words(level)


def test_the_level_of_a_volume() -> None:
    shapes = [(7, 10, 4096, 10), (7, 10, 2048, 10), (7, 5, 4, 2)]
    assert attendant.shown_level(shapes, (1, 2, 3), 1, 1 << 30) == 1
    assert attendant.shown_level(shapes, (1, 2, 3), 1, 204800) == 1
    assert attendant.shown_level(shapes, (1, 2, 3), 1, 204799) == 2
    assert attendant.shown_level(shapes, (1, 2, 3), 2, 204800) == 2
    assert attendant.shown_level(shapes, (1, 2, 3), 1, 1) == 2
    assert attendant.shown_level(shapes, (0, 1, 3), 1, 700) == 0


def test_a_viewer_is_not_held() -> None:
    class Events:
        def connect(self, function: Any, position: str = "") -> None:
            pass

    class Viewer:
        layers: Any
        dims: Any

    class Layers(list[Any]):
        events: Any

    viewer = Viewer()
    viewer.layers = Layers()
    viewer.layers.events = SimpleNamespace(inserted=Events())
    viewer.dims = SimpleNamespace(events=SimpleNamespace(ndisplay=Events(), order=Events()))
    assert attendant.attend(viewer) is attendant.attend(viewer)
    held = weakref.ref(viewer)
    del viewer
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("axes", ["YXZ", "XZY", "TYZX", "ZYX", "CXTYZ"])
def test_parts_in_another_order(tmp_path: Path, axes: str) -> None:
    shape = tuple(range(3, 3 + len(axes)))
    values = np.arange(np.prod(shape)).reshape(shape)
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f["x"] = values
    (data, keywords, _), *others = image_layers(hs.open_image(tmp_path / "x.h5", "x", axes=axes))
    assert keywords["axis_labels"][-2:] == ["y", "x"]
    assert len(others) == (2 if "C" in axes else 0)
    kept = [axis.upper() for axis in keywords["axis_labels"]]
    found = values[0] if "C" in axes else values
    want = found.transpose([axes.replace("C", "").index(axis) for axis in kept])
    np.testing.assert_array_equal(data, want)
    assert (data.shape, data.chunks, len(data)) == (want.shape, data.chunks, want.shape[0])
    for index in (
        np.s_[1],
        np.s_[..., 2],
        np.s_[-1, ..., 1:3],
        np.s_[:, ::-1],
        np.s_[np.int64(1), 0:2],
        np.s_[[2, 0]],
        np.s_[..., None, 0],
        want > 7,
    ):
        np.testing.assert_array_equal(data[index], want[index], err_msg=f"{index}")
    np.testing.assert_array_equal(data[1:, ..., 1:3][0, ...], want[1:, ..., 1:3][0, ...])
    np.testing.assert_array_equal(data[1:, 1:3][..., 1], want[1:, 1:3][..., 1])


def test_lengths_in_handy_units() -> None:
    pytest.importorskip("pint")
    assert handy_units(["", "um", "um"], [1, 0.2, 0.1]) == [("pixel", 1), ("um", 1), ("um", 1)]
    (none, _), (unit, factor), again = handy_units(["", "m", "m"], [1, 8e-12, 9e-12])
    assert (none, unit, again) == ("pixel", "pm", ("pm", factor))
    assert factor == pytest.approx(1e12)
    assert handy_units(["m"], [2.7e-8])[0] == ("um", pytest.approx(1e6))
    assert handy_units(["nm"], [5e7])[0] == ("m", pytest.approx(1e-9))
    assert handy_units(["s", "furlongs of light", "m"], [1e-9, 1e-9, 0.0]) == [
        ("s", 1), ("pixel", 1), ("m", 1),
    ]  # fmt: skip


def view(*words: str, screen: bool, cwd: Path, **environment: str) -> Any:
    """Run ``hyperslab view``."""
    left_out = ("NAPARI", "QT_", "DISPLAY", "WAYLAND")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    return subprocess.run(
        [*(XVFB if screen else []), sys.executable, "-m", "hyperslab", "view", *words],
        env=kept | {"NAPARI_CONFIG": "", "COLUMNS": "300"} | environment,
        cwd=cwd, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("target", ["cells-fast.ims", "cells.ome.zarr"])
def test_made_fast_while_one_looks_at_it(report: Any, target: str) -> None:
    found = report["made_fast"][target]
    assert found["at first"]
    assert found["while it runs"] == [False, True]
    words, there = found["cancelled"]
    assert words.startswith(f"Cancelled. Writing {target} again")
    assert not there
    assert found["done"].startswith(f"{target}: ")
    assert found["progress"][-1] == 1000
    assert "exists" in found["again"]
    source = hs.open_image(Path(report["folder"]) / "cells.ims")
    if target.endswith(".ims"):
        assert found["can be opened"]
        assert found["layers"][3:] == [f"cells-fast: {c.name}" for c in source.channels]
        copy = hs.open_image(Path(report["folder"]) / target)
        assert np.array_equal(copy[...], source[...])
    else:
        zarr = pytest.importorskip("zarr", reason="zarr is not installed")
        copy = zarr.open_array(Path(report["folder"]) / target / "0", mode="r")
        assert np.array_equal(copy[...], source[...])
        if importlib.util.find_spec("napari_ome_zarr") is None:
            assert "pip install napari-ome-zarr" in found["done"]


def test_a_name_beside_the_file(tmp_path: Path) -> None:
    pytest.importorskip("qtpy", reason="napari is not installed")
    from hyperslab.napari.faster import suggested_target

    source = tmp_path / "a.ims"
    for form, names in (
        ("hdf5", ["a-fast.ims", "a-fast-2.ims", "a-fast-3.ims"]),
        ("zarr", ["a.ome.zarr", "a-2.ome.zarr"]),
    ):
        for name in names:
            found = suggested_target(str(source), form)
            assert found == str(tmp_path / name)
            Path(found).touch()


def test_the_command(report: Any, tmp_path: Path) -> None:
    make_imaris(tmp_path / "cells.ims")
    done = view("cells.ims", "--screenshot", "out.png", screen=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out.png").read_bytes()[:4] == b"\x89PNG"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cells.ims", "out.png"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is always a screen")
@pytest.mark.parametrize("display", ["", ":5987", "localhost:5987.0", "unix:5987"])
def test_no_screen(tmp_path: Path, display: str) -> None:
    pytest.importorskip("qtpy")
    make_imaris(tmp_path / "cells.ims")
    done = view("cells.ims", screen=False, cwd=tmp_path, DISPLAY=display)
    assert done.returncode == 2
    assert "There is no screen to open a window on" in done.stderr
    assert display in done.stderr
    assert "xvfb-run" in done.stderr


@pytest.mark.parametrize("package", ["napari", "qtpy"])
def test_without_napari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    make_imaris(tmp_path / "cells.ims")
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "napari", ModuleType("napari"))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"hyperslab\[napari\]") as caught:
        window.show([hs.open_image(tmp_path / "cells.ims")])
    assert caught.value.facts["extra"] == "napari"


def test_wrong_use(tmp_path: Path) -> None:
    make_imaris(tmp_path / "cells.ims")
    for words, said in (
        (("cells.ims", "--screenshot", "there/out.png"), "there is no folder there"),
        (("cells.ims", "--screenshot", "out.jpg"), "pictures are PNG"),
        (("cells.ims", "--axes", "ZYX"), "--axes needs --layout"),
        (("cells.ims", "--image", "7"), "there is no image 7"),
        (("missing.ims",), "no such file"),
    ):
        done = view(*words, screen=False, cwd=tmp_path)
        assert (done.returncode, said in " ".join(done.stderr.split())) == (2, True), done.stderr
