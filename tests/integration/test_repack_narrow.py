"""`repack` with smaller types: never a value that is another."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from typer.testing import CliRunner

import hyperslab as hs
from hyperslab.cli.app import app
from hyperslab.errors import OutputError
from hyperslab.rewriting.narrow import Found
from hyperslab.rewriting.rewrite import plan_file
from hyperslab.testing import make_bdv, make_imaris

SIZE = (40, 50, 60)


def write(path: Path, **datasets: Any) -> Path:
    with h5py.File(path, "w") as f:
        for name, values in datasets.items():
            f.create_dataset(name.replace("__", "/"), data=values, chunks=True, compression="gzip")
    return path


def values(dtype: str, low: float = 0, high: float = 100) -> Any:
    dice = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        return dice.uniform(low, high, SIZE).astype(dtype)
    found = dice.integers(int(low), int(high), SIZE, endpoint=True).astype(dtype)
    found[0, 0, 0], found[-1, -1, -1] = low, high  # ends that are met but once have to be found
    return found


SAME = [
    # what there is, what becomes of it by narrow=True, and by narrow="integers"
    (values("f4").astype("f8"), "f4", "f4"),
    (values("f8"), "f8", "f8"),
    (values("f4"), "f4", "f4"),
    (values("u1").astype("f8"), "f4", "u1"),
    (values("u1").astype(">f8"), "f4", "u1"),
    (values("i2", -1000, 3000).astype("f4"), "f4", "i2"),
    (values("i4", -(2**24), 2**24).astype("f4"), "f4", "f4"),
    (values("i8", -(2**31), 2**31 - 1).astype("f8"), "f8", "i4"),
    (values("i8", 0, 2**53).astype("f8"), "f8", "f8"),
    (values("u1").astype("f2"), "f2", "u1"),
    (values("i8", 0, 100), "i1", "i1"),
    (values("i8", 0, 128), "i2", "i2"),
    (values("u8", 0, 255), "u1", "u1"),
    (values("u8", 0, 256), "u2", "u2"),
    (values(">u4", 0, 65535), "u2", "u2"),
    (values(">i2", -129, 5), ">i2", ">i2"),
    (values("i8", -(2**31), 2**31 - 1), "i4", "i4"),
    (values("i8", -(2**31) - 1, 5), "i8", "i8"),
    (values("u1"), "u1", "u1"),
]


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize(("source", "same", "integers"), SAME)
def test_types(tmp_path: Path, source: Any, same: str, integers: str, codec: str) -> None:
    path = write(tmp_path / "a.h5", x=source)
    for how, expected in ((True, same), ("integers", integers), (False, source.dtype.str)):
        target = tmp_path / f"{how}.h5"
        report = hs.repack(path, target, access="[k]", narrow=how, codec=codec, memory=1 << 20)
        assert report is not None
        with h5py.File(target) as f:
            assert f["x"].dtype == np.dtype(expected)
            assert np.array_equal(f["x"][()], source)
            # Which is 0.0, and which -0.0?
            assert np.array_equal(np.signbit(f["x"][()]), np.signbit(source))
        shrunk = np.dtype(expected).itemsize < source.dtype.itemsize
        assert [each.new for each in report.plan.narrowed if each.new] == (
            [np.dtype(expected).name] if shrunk else []
        )
        assert hs.open(target)["x"].chunks == (1, 50, 60)


SPOILERS = {
    "a fraction": (0.5, "f4"),
    "a fine fraction": (0.1, "f8"),
    "minus zero": (-0.0, "f4"),
    "no number": (np.nan, "f4"),
    "infinite": (np.inf, "f4"),
    "great": (1e300, "f8"),
    "tiny": (5e-324, "f8"),
    "above 2**24": (2.0**24 + 1, "u4"),
}


@pytest.mark.parametrize("place", [(0, 0, 0), (39, 49, 59), (17, 3, 44)])
@pytest.mark.parametrize("what", list(SPOILERS))
def test_one_value_decides(tmp_path: Path, what: str, place: Any) -> None:
    spoiler, expected = SPOILERS[what]
    source = values("u1").astype("f8")
    source[place] = spoiler
    path = write(tmp_path / "a.h5", x=source)
    report = hs.repack(path, tmp_path / "b.h5", access="[k]", narrow="integers", memory=500_000)
    assert report is not None
    with h5py.File(tmp_path / "b.h5") as f:
        assert f["x"].dtype == np.dtype(expected)
        assert f["x"][()].astype("f8").tobytes() == source.tobytes()
    assert report.plan.narrowed[0].why.startswith("/x: float32 has no") == (expected == "f8")


def test_nan_of_any_kind(tmp_path: Path) -> None:
    """A NaN has bits of its own; those that float32 cannot hold are kept."""
    plain = values("f4").astype("f8")
    plain[5] = np.nan
    odd = plain.copy()
    odd.view("u8")[5, 5, 5] |= 1
    for name, source, expected in (("plain", plain, "f4"), ("odd", odd, "f8")):
        path = write(tmp_path / f"{name}.h5", x=source)
        hs.repack(path, tmp_path / f"{name}-b.h5", access="[k]", narrow=True)
        with h5py.File(tmp_path / f"{name}-b.h5") as f:
            assert f["x"].dtype == expected
            assert f["x"][()].astype("f8").tobytes() == source.tobytes()


@pytest.mark.parametrize("n_written", [20, 40])
@pytest.mark.parametrize(
    ("dtype", "fill", "expected"),
    [
        ("f8", 0.1, "f8"),
        ("f8", 1.5, "f4"),
        ("i8", 1000, "i2"),
        ("i8", -3, "i1"),
        ("f8", np.nan, "f4"),
    ],
)
def test_the_fill_value_survives(
    tmp_path: Path, dtype: str, fill: Any, expected: str, n_written: int
) -> None:
    source, target = tmp_path / "a.h5", tmp_path / "b.h5"
    with h5py.File(source, "w") as f:
        data = f.create_dataset(
            "x", SIZE, dtype, fillvalue=fill, chunks=(10, 10, 10), maxshape=(None, 50, 60)
        )
        data[:n_written] = 7
        data.attrs["unit"] = "HU"
        data.attrs["far"] = np.float64(0.1)
    hs.repack(source, target, access="[k]", narrow=True)
    with h5py.File(source) as a, h5py.File(target) as b:
        assert b["x"].dtype == expected
        assert np.array_equal(b["x"].fillvalue, fill, equal_nan=True)
        assert np.array_equal(a["x"][()], b["x"][()], equal_nan=True)
        assert b["x"].maxshape == (None, 50, 60)
        assert dict(a["x"].attrs) == dict(b["x"].attrs)


def test_what_belongs_together_gets_one_type(tmp_path: Path) -> None:
    small, large = values("i8"), values("i8", 0, 1000)
    source = write(
        tmp_path / "a.h5",
        MR__anna=small,
        MR__bert=large,
        CT__anna=small,
        MASK__bert=small.astype("i4"),
        t0__c0__data=small,
        t0__c1__data=large,
        t1__c0__data=small,
        other__x=small,
    )
    report = hs.repack(source, tmp_path / "b.h5", access="[k]", narrow=True)
    assert report is not None
    assert {each.path: each.new for each in report.plan.narrowed} == {
        "/MR/anna": "int16", "/MR/bert": "int16", "/CT/anna": "int8", "/MASK/bert": "int8",
        "/t0/c0/data": "int16", "/t0/c1/data": "int16", "/t1/c0/data": "int16", "/other/x": "int8",
    }  # fmt: skip
    with h5py.File(source) as a, h5py.File(tmp_path / "b.h5") as b:
        for each in report.plan.narrowed:
            assert b[each.path].dtype.name == each.new
            assert np.array_equal(a[each.path][()], b[each.path][()])


def test_an_image_stays_one(tmp_path: Path) -> None:
    """Of channels that differ in range; and coarser levels are means of the narrower numbers."""
    source, target = tmp_path / "a.ims", tmp_path / "b.ims"

    def draw(t: int, c: int) -> Any:
        return np.random.default_rng(c).integers(0, 200 + 5000 * c, (5, 300, 290)).astype("u4")

    make_imaris(source, shape=(1, 2, 5, 300, 290), dtype="uint32", levels=1, data=draw)
    for how in ({"access": "plane"}, {"for_": "viewing"}):
        target.unlink(missing_ok=True)
        report = hs.repack(source, target, **how, narrow=True)
        assert report is not None
        assert {each.new for each in report.plan.narrowed} == {"uint16"}
        image = hs.open_image(target)
        assert image.dtype == "uint16"
        assert np.array_equal(image[...], hs.open_image(source)[...])
    # Imaris has no whole numbers with a sign.
    make_imaris(
        source,
        shape=(1, 1, 5, 300, 290),
        dtype="float32",
        levels=1,
        data=lambda t, c: draw(t, c) - 50.0,
    )
    target.unlink()
    report = hs.repack(source, target, for_="viewing", narrow="integers")
    assert report is not None
    assert [each.new for each in report.plan.narrowed] == [""]
    assert "that Imaris knows" in report.plan.narrowed[0].why


def test_levels_of_whole_numbers_are_rounded(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("hyperslab.pyramid.steps._PLANE", 20)
    source, target = tmp_path / "a.h5", tmp_path / "b.h5"
    write(source, x=values("u1").astype("f8"))
    hs.repack(source, target, for_="viewing", layout="x", narrow="integers")
    image = hs.open_image(target)
    assert image.dtype == "uint8"
    assert len(image.levels) > 2
    for level in image.levels[1:]:
        assert not level.computed
    with h5py.File(source, "w") as f:
        f["x"] = image[...]
    for one, other in zip(image.levels, hs.open_image(source, layout="x").levels, strict=True):
        assert np.array_equal(one[...], other[...])


def test_levels_have_the_type_of_the_finest(tmp_path: Path, monkeypatch: Any) -> None:
    """One pixel decides for all levels, though it is in none of the coarser ones."""
    monkeypatch.setattr("hyperslab.pyramid.steps._PLANE", 20)
    monkeypatch.setattr("hyperslab.rewriting.plan._LEAST_NBYTES", 0)
    source = values("i4")
    source[3, 3, 3] = 300
    first, second = tmp_path / "b.h5", tmp_path / "c.h5"
    hs.repack(write(tmp_path / "a.h5", x=source), first, for_="viewing", layout="x")
    report = hs.repack(first, second, access="plane", narrow=True)
    assert report is not None
    assert len(report.plan.narrowed) > 2
    assert {each.new for each in report.plan.narrowed} == {"int16"}
    levels = hs.open_image(second).levels
    assert not levels[-1].computed
    assert np.array_equal(levels[0][...], source)


def write_unusual(path: Path, kind: str) -> None:
    small = values("i4")
    with h5py.File(path, "w") as f:
        if kind == "named":
            f["type"] = np.dtype("i4")
            f.create_dataset("x", data=small, dtype=f["type"])
        elif kind == "enumeration":
            dtype = h5py.enum_dtype({"none": 0, "bone": 100}, basetype="i4")
            f.create_dataset("x", data=small, dtype=dtype)
        elif kind == "netCDF":
            f.create_dataset("x", data=small).attrs["_FillValue"] = np.int32(-1)
        elif kind == "MATLAB":
            f.create_dataset("x", data=small).attrs["MATLAB_class"] = np.bytes_("int32")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("named", "named one"),
        ("enumeration", "enumeration"),
        ("netCDF", "_FillValue"),
        ("MATLAB", "MATLAB"),
    ],
)
def test_types_with_a_meaning_stay(tmp_path: Path, kind: str, why: str) -> None:
    source, target = tmp_path / "a.h5", tmp_path / "b.h5"
    write_unusual(source, kind)
    report = hs.repack(source, target, access="[k]", narrow="integers")
    assert report is not None
    assert [(each.new, why in each.why) for each in report.plan.narrowed] == [("", True)]
    with h5py.File(source) as a, h5py.File(target) as b:
        assert a["x"].id.get_type() == b["x"].id.get_type()
        assert np.array_equal(a["x"][()], b["x"][()])


@pytest.mark.filterwarnings("ignore:.*no xml file")
def test_signs_that_are_none_stay(tmp_path: Path) -> None:
    source, target = tmp_path / "a.h5", tmp_path / "b.h5"
    make_bdv(source, shape=(1, 1, 5, 170, 190), levels=1)
    report = hs.repack(source, target, access="plane", narrow=True)
    assert report is not None
    assert "BigDataViewer" in report.plan.narrowed[0].why
    assert np.array_equal(hs.open_image(target)[...], hs.open_image(source)[...])


@given(
    source=hnp.arrays(
        st.sampled_from(["f8", "f4", "i8", "u8", "i4", "u2", "i2"]),
        hnp.array_shapes(min_dims=2, max_dims=3, max_side=6),
    ),
    how=st.sampled_from([True, "integers"]),
    whole=st.booleans(),
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_values(tmp_path: Path, source: Any, how: Any, whole: bool) -> None:
    if whole and source.dtype.kind == "f":
        source = np.round(source)
    path, target = tmp_path / "a.h5", tmp_path / "b.h5"
    with h5py.File(path, "w") as f:
        f["x"] = source
    target.unlink(missing_ok=True)
    hs.repack(path, target, access="[k]", datasets="/x", narrow=how, memory=1000)
    with h5py.File(target) as f:
        got = f["x"][()]
    assert np.array_equal(got, source, equal_nan=source.dtype.kind == "f")
    assert np.array_equal(np.signbit(got), np.signbit(source))
    assert got.dtype.itemsize <= source.dtype.itemsize
    if source.dtype.kind == "f" and got.dtype.kind == "f":
        assert got.astype(source.dtype).tobytes() == source.tobytes()


def test_found_in_parts_is_found_as_a_whole() -> None:
    one, other = Found(single=True, whole=True), Found(single=True, whole=True)
    one.add(np.array([3.0, 250.0]))
    other.add(np.array([-7.0]))
    assert one.narrowest(np.dtype("f8")) == "|u1"
    one.merge(other)
    assert one.narrowest(np.dtype("f8")) == "<i2"
    assert one.narrowest(np.dtype("f8"), ("<f4", "<u2")) == "<f4"
    other.add(np.array([0.1]))
    one.merge(other)
    assert one.narrowest(np.dtype("f8")) == ""


def test_looking_is_not_done_twice(tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.h5", x=values("i8"), y=values("f8")), tmp_path / "b.h5"
    stop = threading.Event()
    stages: list[str] = []

    def watch(now: Any) -> None:
        stages.append(now.stage)
        assert 0 <= now.done_nbytes <= now.total_nbytes
        if now.stage == "encode":
            stop.set()

    how: dict[str, Any] = {"access": "[k]", "narrow": True, "memory": 400_000}
    assert hs.repack(source, target, **how, progress=watch, cancelled=stop) is None
    assert stages[0] == "look"
    stages.clear()
    stop.clear()
    with pytest.raises(OutputError, match="another repack"):
        hs.repack(source, target, **{**how, "narrow": False}, resume=True)
    report = hs.repack(source, target, **how, resume=True, progress=watch)
    assert report is not None
    assert report.resumed_nbytes > 0
    assert "look" not in stages
    assert [each.new for each in report.plan.narrowed] == ["int8", ""]
    with h5py.File(target) as f:
        assert np.array_equal(f["x"][()], values("i8"))


def test_cancelled_while_looking(tmp_path: Path) -> None:
    source = write(tmp_path / "a.h5", x=values("i8"))
    stop = threading.Event()
    stop.set()
    assert hs.repack(source, tmp_path / "b.h5", access="[k]", narrow=True, cancelled=stop) is None
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["repack", *map(str, arguments)], env={"COLUMNS": "140"})


def test_the_command(tmp_path: Path) -> None:
    source = write(
        tmp_path / "a.h5",
        MR__a=values("i8"),
        MR__b=values("i8"),
        CT__a=values("f8"),
        CT__b=values("f8"),
    )
    shown = run(source, tmp_path / "b.h5", "--access", "[k]", "--narrow", "--dry-run")
    assert "/MR/a and 1 more: int64 becomes int8, every value exactly." in shown.stdout
    assert "/CT/a and 1 more: stay float64. /CT/a: float32 has no" in shown.stdout
    how = ["--access", "[k]", "--narrow-integers", "--json"]
    done = json.loads(run(source, tmp_path / "b.h5", *how).stdout)
    assert [each["new"] for each in done["plan"]["narrowed"]] == ["", "", "int8", "int8"]
    with h5py.File(tmp_path / "b.h5") as f:
        assert f["MR/b"].dtype == "i1"
    with pytest.raises(OutputError, match="there are True and 'integers'"):
        plan_file(source, access="[k]", narrow="all")
