"""`repack` and what it does not rewrite: references, links, types, user blocks, other files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.engine.source import n_open
from hyperslab.errors import DamagedFileError, MetadataWarning, OutputError
from hyperslab.rewriting.copy import AXES_ATTRIBUTE
from hyperslab.rewriting.rewrite import plan_file


@pytest.fixture
def values() -> Any:
    return np.random.default_rng(0).integers(0, 1000, (40, 30, 20)).astype("i4")


def repack(source: Path, **how: Any) -> Path:
    target = source.with_name("new.h5")
    report = hs.repack(source, target, **({"access": "[:, :, k]"} | how))
    assert report is not None
    assert report.left_out == ()
    return target


def test_references_lead_to_the_copies(tmp_path: Path, values: Any) -> None:
    source = tmp_path / "a.h5"
    with h5py.File(source, "w") as f:
        # Something that moves all that comes after it.
        f.create_dataset("a_large", data=values, compression="gzip")
        f["group/inner"] = np.arange(5)
        many = f.create_dataset("many", (3, 2), h5py.ref_dtype, chunks=(2, 2))
        many[0, 0], many[2, 1] = f["group/inner"].ref, f["a_large"].ref
        f["one"] = f["group"].ref
        region = f.create_dataset("region", (2,), h5py.regionref_dtype)
        region[1] = f["a_large"].regionref[3:5, :, 7]
        pair = np.dtype([("who", h5py.ref_dtype), ("n", "i4"), ("word", h5py.string_dtype())])
        rows = f.create_dataset("rows", (2,), pair)
        rows[0] = (f["a_large"].ref, 7, "seven")
        lists = f.create_dataset("lists", (2,), h5py.vlen_dtype(h5py.ref_dtype))
        lists[1] = np.array([f["group"].ref, f["group/inner"].ref], h5py.ref_dtype)
        f.attrs["to"] = f["group/inner"].ref
        f.attrs.create("region", f["a_large"].regionref[0:2], dtype=h5py.regionref_dtype)
    with h5py.File(repack(source)) as f:
        assert f["a_large"].chunks == (40, 30, 1)
        assert f[f["many"][0, 0]] == f["group/inner"]
        assert f[f["many"][2, 1]] == f["a_large"]
        assert not f["many"][1, 0]
        assert f["many"].chunks == (2, 2)
        assert f[f["one"][()]] == f["group"]
        reference = f["region"][1]
        assert f[reference] == f["a_large"]
        assert np.array_equal(f["a_large"][reference].ravel(), values[3:5, :, 7].ravel())
        row = f["rows"][0]
        assert f[row["who"]] == f["a_large"]
        assert (row["n"], row["word"]) == (7, b"seven")
        assert [f[each].name for each in f["lists"][1]] == ["/group", "/group/inner"]
        assert len(f["lists"][0]) == 0
        assert f[f.attrs["to"]] == f["group/inner"]
        assert np.array_equal(f["a_large"][f.attrs["region"]], values[0:2])


def test_dimension_scales_follow_their_axes(tmp_path: Path, values: Any) -> None:
    source = tmp_path / "a.h5"
    with h5py.File(source, "w") as f:
        image = f.create_dataset("image", data=values)
        for axis, name in enumerate(("y", "x", "z")):
            f[name] = np.arange(values.shape[axis])
            f[name].make_scale(f"{name} in mm")
            image.dims[axis].attach_scale(f[name])
            image.dims[axis].label = name.upper()
        image.attrs["CLASS"] = np.bytes_("IMAGE")
    for slice_first, order in ((False, "yxz"), (True, "zyx")):
        target = repack(source, slice_first=slice_first)
        with h5py.File(target) as f:
            image = f["image"]
            if slice_first:
                assert image.attrs[AXES_ATTRIBUTE].tolist() == [2, 0, 1]
                assert image.shape == (20, 40, 30)
            for axis, name in enumerate(order):
                assert image.dims[axis][0] == f[name]
                assert image.dims[axis].label == name.upper()
                back = f[name].attrs["REFERENCE_LIST"][0]
                assert f[back[0]] == image
                assert back[1] == axis
            assert image.attrs["CLASS"] == b"IMAGE"
            assert f["y"].is_scale
        target.unlink()


def test_attributes_are_the_same_bytes(tmp_path: Path, values: Any) -> None:
    source = tmp_path / "a.h5"
    with h5py.File(source, "w", libver="latest", track_order=True) as f:
        data = f.create_dataset("data", data=values, track_order=True)
        data.attrs["z"] = 1
        data.attrs["a"] = "text"
        data.attrs["large"] = np.arange(20000)  # more than an object's header takes
        data.attrs["enum"] = np.array([1], h5py.enum_dtype({"RED": 0, "GREEN": 1}))
        data.attrs["padded"] = np.array([b"ab", b"c"], "S7")
        data.attrs["big"] = np.array([1, 2], ">i2")
        data.attrs["none"] = np.empty((0, 3))
        data.attrs["words"] = np.array(["eins", "zwei"], h5py.string_dtype())
    with h5py.File(source) as a, h5py.File(repack(source)) as b:
        old, new = a["data"].attrs, b["data"].attrs
        assert list(old) == list(new)
        for name in old:
            one_id, other_id = (h5py.h5a.open(f["data"].id, name.encode()) for f in (a, b))
            assert one_id.get_type().equal(other_id.get_type())
            assert one_id.shape == other_id.shape
            assert np.array_equal(old[name], new[name])
        assert new["words"].tolist() == ["eins", "zwei"]


def test_matlab_files_keep_their_cells(corpus: Any, tmp_path: Path) -> None:
    n_cells = 0
    for entry in corpus.entries:
        if not entry["name"].startswith("mat73-matjl/") or not entry.get("opens"):
            continue
        source = Path(corpus.path(entry["name"]))
        target = tmp_path / "new.mat"
        target.unlink(missing_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MetadataWarning)
            hs.repack(source, target, access="plane")
        assert source.read_bytes()[:512] == target.read_bytes()[:512]
        with h5py.File(source) as a, h5py.File(target) as b:
            assert a.userblock_size == b.userblock_size

            def visit(name: str, item: Any, a: Any = a, b: Any = b) -> None:
                nonlocal n_cells
                for attribute in item.attrs:
                    if h5py.check_ref_dtype(item.attrs.get_id(attribute).dtype) is None:
                        first, second = item.attrs[attribute], b[name].attrs[attribute]
                        assert repr(first) == repr(second)
                if isinstance(item, h5py.Dataset) and h5py.check_ref_dtype(item.dtype):
                    for old, new in zip(item[()].ravel(), b[name][()].ravel(), strict=True):
                        assert bool(old) == bool(new)
                        if old:
                            assert a[old].name == b[new].name
                            n_cells += 1

            a.visititems(visit)
    assert n_cells > 20


def test_links_to_other_files_stay_links(tmp_path: Path, values: Any) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as f:
        f.create_dataset("group/x", data=values, chunks=(5, 5, 5))
    source = tmp_path / "a.h5"
    with h5py.File(source, "w") as f:
        f["outside"] = h5py.ExternalLink("other.h5", "/group")
        f["sideways"] = h5py.SoftLink("/outside/x")
        f.create_dataset("own", data=values, chunks=(5, 5, 5))
    plan = plan_file(source, access="[:, :, k]")
    assert [item.path for item in plan.rewritten] == ["/own"]
    assert set(plan.elsewhere) == {"/outside", "/sideways"}
    with h5py.File(repack(source)) as f:
        assert f.get("outside", getlink=True).filename == "other.h5"
        assert f.get("sideways", getlink=True).path == "/outside/x"
        assert np.array_equal(f["sideways"], values)
    (tmp_path / "sub").mkdir()
    with pytest.warns(MetadataWarning, match="/outside and 1 more refer to other files"):
        hs.repack(source, tmp_path / "sub" / "new.h5", access="[:, :, k]")


def test_virtual_and_external_datasets(tmp_path: Path, values: Any) -> None:
    source = tmp_path / "a.h5"
    with h5py.File(tmp_path / "part.h5", "w") as f:
        f["x"] = values
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[...] = h5py.VirtualSource("part.h5", "x", values.shape)
    (tmp_path / "raw.bin").write_bytes(values.tobytes())
    with h5py.File(source, "w") as f:
        f.create_virtual_dataset("virtual", layout)
        external = [(str(tmp_path / "raw.bin"), 0, values.nbytes)]
        f.create_dataset("external", values.shape, values.dtype, external=external)
        f.create_dataset("own", data=values)
    target = repack(source)
    with h5py.File(target) as f:
        assert f["virtual"].is_virtual
        assert f["external"].external
        for name in f:
            assert np.array_equal(f[name], values)
    target.unlink()
    (tmp_path / "sub").mkdir()
    target = tmp_path / "sub" / "new.h5"
    hs.repack(source, target, access="[:, :, k]", datasets="/*")  # named: no view, and no warning
    with h5py.File(target) as f:
        for name in f:
            assert not f[name].is_virtual
            assert not f[name].external
            assert f[name].chunks == (40, 30, 1)
            assert np.array_equal(f[name], values)


def test_what_is_as_planned_is_copied(tmp_path: Path, values: Any) -> None:
    source = tmp_path / "a.h5"
    how = {"chunks": (40, 30, 1), "shuffle": True, "compression": "gzip"}
    with h5py.File(source, "w") as f:
        f.create_dataset("same", data=values, compression_opts=4, **how)
        f.create_dataset("level", data=values, compression_opts=9, **how)  # read no slower
        f.create_dataset("plain", data=values, **how | {"shuffle": False})
        f.create_dataset("cube", data=values, chunks=(5, 5, 5))
    plan = plan_file(source, access="[:, :, k]", codec="gzip")
    assert [item.path for item in plan.rewritten] == ["/cube", "/plain"]
    assert plan.copied == ("/level", "/same")
    with h5py.File(source) as a, h5py.File(repack(source, codec="gzip")) as b:
        for place in ((0, 0, 0), (0, 0, 13)):
            for name in plan.copied:
                assert a[name].id.read_direct_chunk(place) == b[name].id.read_direct_chunk(place)
        for name in a:
            assert np.array_equal(a[name], b[name])


def test_a_file_that_is_damaged_is_refused(corpus: Any, tmp_path: Path) -> None:
    source = corpus.path("hdf5-tools/tCVE_2018_11206_fill_new.h5")
    with pytest.raises(DamagedFileError, match="/dset1 cannot be copied"):
        hs.repack(source, tmp_path / "new.h5", access="plane")
    assert list(tmp_path.iterdir()) == []


def test_what_h5py_has_no_word_for_is_named(corpus: Any, tmp_path: Path) -> None:
    source = corpus.path("hdf5-tools/tudlink.h5")
    with pytest.warns(MetadataWarning, match="without /udlink1"):
        report = hs.repack(source, tmp_path / "new.h5", access="plane")
    assert report is not None
    assert len(report.left_out) == 2


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<c16", "u1"])
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_chunks_that_look_like_fill(tmp_path: Path, dtype: str, codec: str) -> None:
    source, target = tmp_path / "a.h5", tmp_path / "new.h5"
    stored = np.zeros((4, 3, 5), dtype)
    stored[1], stored[2, 0, 0] = -np.zeros((3, 5), dtype), 1
    fills = {"zero": 0, "nan": 0 if dtype == "u1" else np.nan}
    with h5py.File(source, "w") as f:
        for name, fill in fills.items():
            values = np.where(stored == 0, np.array(fill, dtype), stored) if fill else stored
            f.create_dataset(
                name, data=values, chunks=(2, 3, 2), fillvalue=np.array(fill, dtype)[()]
            )
    hs.repack(source, target, chunks=(1, 2, 5), codec=codec, datasets="*")
    with h5py.File(source) as a, h5py.File(target) as b:
        for name in fills:
            assert a[name][...].tobytes() == b[name][...].tobytes()
        # What is all fill is not stored, where chunks are compressed anyway.
        assert b["nan"].id.get_num_chunks() == (8 if codec == "none" else 1)


def test_a_name_that_is_taken_meanwhile_is_left_alone(tmp_path: Path, values: Any) -> None:
    source, target = tmp_path / "a.h5", tmp_path / "new.h5"
    with h5py.File(source, "w") as f:
        f["x"] = values

    def take(_: Any) -> None:
        target.write_text("mine")

    with pytest.raises(OutputError, match="exists meanwhile"):
        hs.repack(source, target, access="[k]", progress=take)
    assert target.read_text() == "mine"


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_the_user_block_comes_along(tmp_path: Path, values: Any, codec: str) -> None:
    source = tmp_path / "a.h5"
    with h5py.File(source, "w", userblock_size=1024) as f:
        f.create_dataset("x", data=values, chunks=(5, 5, 5))
    block = b"MATLAB 7.3 MAT-file".ljust(1024, b".")
    with open(source, "r+b") as stream:
        stream.write(block)
    target = repack(source, codec=codec)
    assert target.read_bytes()[:1024] == block
    with h5py.File(target) as f:
        assert f.userblock_size == 1024
        assert np.array_equal(f["x"], values)


def test_no_file_stays_open(tmp_path: Path, values: Any) -> None:
    source = tmp_path / "a.h5"
    with h5py.File(source, "w") as f:
        f.create_dataset("x", data=values, chunks=(5, 5, 5))
    repack(source)
    assert n_open() == 0  # one that is deleted next would keep its room on the disk
