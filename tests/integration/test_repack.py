"""`repack`: equal elements in other chunks, whatever happens on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import hyperslab as hs
from hyperslab.access import parse_access
from hyperslab.cli.app import app
from hyperslab.codecs.encode import CODECS
from hyperslab.engine import cache
from hyperslab.engine import read as read_module
from hyperslab.engine.limits import limits
from hyperslab.errors import CapacityError, ChunkDecodeError, OutputError, SelectionError
from hyperslab.index.session import library_lock
from hyperslab.rewriting import rewrite
from hyperslab.rewriting.copy import AXES_ATTRIBUTE
from hyperslab.rewriting.rewrite import plan_file
from hyperslab.testing import make_cohort

hdf5plugin = pytest.importorskip("hdf5plugin", reason="h5py reads lz4 and zstd with hdf5plugin")


def attributes(item: Any) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in item.attrs.items()}


def assert_alike(old: Path, new: Path) -> None:
    """Compare two files by h5py: objects, links, attributes, elements, types, fill values."""
    with h5py.File(old) as a, h5py.File(new) as b:

        def compare(one: Any, other: Any) -> None:
            assert attributes(one) == attributes(other)
            if isinstance(one, h5py.Group):
                assert list(one) == list(other)
                for name in one:
                    link, copied = one.get(name, getlink=True), other.get(name, getlink=True)
                    assert type(link) is type(copied)
                    if isinstance(link, h5py.HardLink):
                        compare(one[name], other[name])
                    else:
                        assert link.path == copied.path
            elif isinstance(one, h5py.Dataset):
                assert (one.dtype, one.shape, one.maxshape) == (
                    other.dtype,
                    other.shape,
                    other.maxshape,
                )
                assert np.asarray(one.fillvalue).tobytes() == np.asarray(other.fillvalue).tobytes()
                first, second = one[()], other[()]
                if one.dtype.hasobject:
                    assert np.array_equal(first, second)
                else:
                    assert np.asarray(first).tobytes() == np.asarray(second).tobytes()
            else:
                assert type(one) is type(other)

        compare(a, b)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repack") / "cohort.h5"
    make_cohort(path, n_cases=3, shape=(96, 80, 30))
    return path


@pytest.mark.parametrize("codec", list(CODECS))
def test_a_cohort_for_slices(cohort: Path, tmp_path: Path, codec: str) -> None:
    target = tmp_path / "fast.h5"
    report = hs.repack(cohort, target, access="[:, :, k]", codec=codec)
    assert report is not None
    assert report.verified
    assert_alike(cohort, target)
    array = hs.open(target)["MR/1PA001"]
    assert array.chunks == (96, 80, 1)
    assert [f.name for f in array.filters] == {
        "none": [],
        "gzip": ["shuffle", "gzip"],
        "lzf": ["shuffle", "lzf"],
        "lz4": ["shuffle", "lz4"],
        "zstd": ["shuffle", "zstd"],
        "blosc": ["blosc"],
    }[codec]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fast.h5"]
    array.read(np.s_[:, :, 7])
    assert hs.last_stats().bytes_read <= 96 * 80 * 4


@pytest.mark.parametrize("codec", list(CODECS))
def test_what_is_so_already_is_copied(cohort: Path, tmp_path: Path, codec: str) -> None:
    for a, b in ((cohort, tmp_path / "b.h5"), (tmp_path / "b.h5", tmp_path / "c.h5")):
        report = hs.repack(a, b, access="[:, :, k]", codec=codec)
    assert report is not None
    assert not report.plan.rewritten
    with h5py.File(tmp_path / "b.h5") as f, h5py.File(tmp_path / "c.h5") as g:
        for name in f["CT"]:
            one, other = f["CT"][name].id, g["CT"][name].id
            assert one.get_num_chunks() == other.get_num_chunks()
            assert one.read_direct_chunk((0, 0, 3)) == other.read_direct_chunk((0, 0, 3))


def test_lzf_of_noise(tmp_path: Path) -> None:
    """Chunks that do not become smaller; read by h5py without a plugin."""
    noise = np.random.default_rng(0).integers(0, 256, (30, 60, 70)).astype("u1")
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["x"] = noise
    hs.repack(tmp_path / "a.h5", tmp_path / "b.h5", access="[k]", codec="lzf")
    script = "import h5py, sys; print(h5py.File(sys.argv[1])['x'][()].sum())"
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "b.h5"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == noise.sum()
    with h5py.File(tmp_path / "b.h5") as f:
        assert f["x"].compression == "lzf"
        assert np.array_equal(f["x"][()], noise)


DTYPES = ["u1", "<i2", ">i2", "<f4", ">f8", "?", "<f2"]


@st.composite
def sources(draw: st.DrawFn) -> dict[str, Any]:
    ndim = draw(st.integers(2, 4))
    shape = tuple(draw(st.integers(1, 9)) for _ in range(ndim))
    chunked = draw(st.booleans())
    return {
        "shape": shape,
        "dtype": draw(st.sampled_from(DTYPES)),
        "old": tuple(draw(st.integers(1, n)) for n in shape) if chunked else None,
        "new": tuple(draw(st.integers(1, n + 2)) for n in shape),
        "filters": draw(st.sampled_from([{}, {"compression": "gzip", "shuffle": True}]))
        if chunked
        else {},
        "written": draw(st.floats(0, 1)),
        "fill": draw(st.sampled_from([0, 1])),
        "codec": draw(st.sampled_from(list(CODECS))),
        "memory": draw(st.sampled_from([600, 4000, 1 << 20])),
    }


@given(case=sources())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_dataset(case: dict[str, Any], tmp_path: Path) -> None:
    source, target = tmp_path / "a.h5", tmp_path / "b.h5"
    target.unlink(missing_ok=True)
    dice = np.random.default_rng(0)
    with h5py.File(source, "w") as f:
        d = f.create_dataset(
            "x",
            case["shape"],
            case["dtype"],
            chunks=case["old"],
            fillvalue=case["fill"],
            **case["filters"],
        )
        values = dice.integers(0, 100, case["shape"]).astype(case["dtype"])
        n = round(case["written"] * case["shape"][0])
        if n:
            d[:n] = values[:n]
    try:
        hs.repack(
            source,
            target,
            chunks=case["new"],
            codec=case["codec"],
            memory=case["memory"],
            datasets="/x",
        )
    except CapacityError:
        nbytes = np.prod([min(c, n) for c, n in zip(case["new"], case["shape"], strict=True)])
        assert nbytes * np.dtype(case["dtype"]).itemsize > case["memory"] // 2
        return
    assert_alike(source, target)


PATTERNS = ["[:, :, k]", "[k]", "[..., k]", "[:, k, 2w]", "patch 2x3", "tile 4x4", "plane", "whole"]


@given(case=sources(), access=st.sampled_from(PATTERNS), slice_first=st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_access(case: dict[str, Any], access: str, slice_first: bool, tmp_path: Path) -> None:
    source, target = tmp_path / "a.h5", tmp_path / "b.h5"
    target.unlink(missing_ok=True)
    shape = (*case["shape"], 5)[:3]
    values = np.random.default_rng(0).integers(0, 100, shape).astype(case["dtype"])
    with h5py.File(source, "w") as f:
        f.create_dataset("x", data=values, fillvalue=case["fill"], **case["filters"])
    report = hs.repack(
        source,
        target,
        access=access,
        codec=case["codec"],
        memory=100_000,
        datasets="/x",
        slice_first=slice_first,
    )
    assert report is not None
    order = (0, 1, 2)
    for plan in report.plan.rewritten:  # none, where the chunks were these already
        order = plan.order
        window = parse_access(access, 3).window
        if slice_first:
            assert [window[axis] == 1 for axis in order] == sorted(
                (w == 1 for w in window), reverse=True
            )
    with h5py.File(target) as f:
        assert f["x"][...].tobytes() == values.transpose(order).tobytes()


def test_everything_else_comes_along(tmp_path: Path) -> None:
    source, target = tmp_path / "a.h5", tmp_path / "b.h5"
    big = np.random.default_rng(0).normal(size=(60, 50, 40)).astype("f4")
    with h5py.File(source, "w", track_order=True) as f:
        f.attrs["title"] = "a file"
        f.attrs["empty"] = h5py.Empty("f4")
        f.attrs["words"] = ["one", "two"]
        f.attrs["table"] = np.array([(1, 2.5)], dtype=[("n", "i4"), ("x", ">f8")])
        group = f.create_group("z first/inside", track_order=True)
        data = group.create_dataset("data", data=big, compression="gzip")
        data.attrs["unit"] = np.bytes_("HU")
        data.attrs["fixed"] = np.array([b"a", b"bc"])
        data.attrs["me"] = data.ref
        f["again"] = data
        f["soft"] = h5py.SoftLink("/z first/inside/data")
        f["dangling"] = h5py.SoftLink("/nowhere")
        f["outside"] = h5py.ExternalLink("other.h5", "/x")
        f["text"] = "hello"
        f.create_dataset("strings", data=["a", "bcd"], dtype=h5py.string_dtype())
        f.create_dataset("ragged", (3,), h5py.vlen_dtype("i4"))[1] = [1, 2, 3]
        f["type"] = np.dtype("f8")
        f["null"] = h5py.Empty("i2")
        f.create_dataset("small", data=np.arange(6).reshape(2, 3))
        f.create_dataset("growing", data=big, maxshape=(None, 50, 80), chunks=(7, 50, 11))
        scale = f.create_dataset("depth", data=np.arange(40) * 0.5)
        scale.make_scale("depth in mm")
        data.dims[2].attach_scale(scale)
        data.dims[0].label = "row"
    hs.repack(source, target, access="[:, :, k]")
    with h5py.File(source) as a, h5py.File(target) as b:
        assert list(a) == list(b)
        for name in ("title", "words", "table"):
            assert np.array_equal(a.attrs[name], b.attrs[name])
        assert b.attrs["empty"] == a.attrs["empty"]
        data = b["z first/inside/data"]
        assert data.chunks == (60, 50, 1)
        assert np.array_equal(data[...], big)
        assert data.attrs["unit"] == a["again"].attrs["unit"]
        assert data.attrs["fixed"].tolist() == [b"a", b"bc"]
        assert b[data.attrs["me"]] == data
        assert b["again"] == data  # one object, two names
        assert b["soft"] == data
        assert b.get("dangling", getlink=True).path == "/nowhere"
        assert b.get("outside", getlink=True).filename == "other.h5"
        assert b["text"][()] == b"hello"
        assert b["strings"][...].tolist() == [b"a", b"bcd"]
        assert b["ragged"][1].tolist() == [1, 2, 3]
        assert b["type"].dtype == np.dtype("f8")
        assert b["null"].shape is None
        assert b["small"].chunks is None
        assert b["growing"].maxshape == (None, 50, 80)
        assert data.dims[2][0].name == "/depth"
        assert data.dims[2][0][3] == 1.5
        assert data.dims[0].label == "row"
        assert b["depth"].is_scale


def test_slices_first(cohort: Path, tmp_path: Path) -> None:
    target = tmp_path / "fast.h5"
    hs.repack(cohort, target, access="[:, :, k]", slice_first=True, datasets="/MR/*")
    with h5py.File(cohort) as a, h5py.File(target) as b:
        for name in a["MR"]:
            one, other = a["MR"][name], b["MR"][name]
            assert other.chunks == (1, 96, 80)
            assert np.array_equal(other[...], one[...].transpose(2, 0, 1))
            assert other.attrs[AXES_ATTRIBUTE].tolist() == [2, 0, 1]
            assert b["CT"][name].chunks == a["CT"][name].chunks


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_each_old_chunk_is_decoded_once(
    cohort: Path, tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hyperslab.engine import read

    decoded = 0
    original = read.remember

    def remember(stats: Any) -> None:
        nonlocal decoded
        decoded += stats.chunks_decoded
        original(stats)

    monkeypatch.setattr(read, "remember", remember)
    with h5py.File(cohort) as f:
        n_chunks = sum(d.id.get_num_chunks() for group in f.values() for d in group.values())
    # Room for one slab of chunks, and not for a case.
    hs.repack(
        cohort, tmp_path / "b.h5", access="[:, :, k]", codec=codec, memory=1 << 20, verify=False
    )
    assert decoded == n_chunks


def test_columns_in_little_memory(tmp_path: Path) -> None:
    """(20000, 400) from columns to rows, under 64 MB (rechunking's classic)."""
    source, target = tmp_path / "a.h5", tmp_path / "b.h5"
    values = np.random.default_rng(0).integers(0, 1000, (20000, 400)).astype("u4")
    with h5py.File(source, "w") as f:
        f.create_dataset("x", data=values, chunks=(2000, 1), compression="gzip")
    plan = plan_file(source, chunks=(20000, 10), memory=64_000_000)
    assert plan.rewritten[0].decodings == 1
    script = """
        import resource, sys
        import hyperslab as hs
        import h5py, numpy, imagecodecs
        from hyperslab.rewriting import repack
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        repack(sys.argv[1], sys.argv[2], chunks=(20000, 10), memory=64_000_000, threads=2)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(source), str(target)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert int(done.stdout) <= 64_000_000 * 1.1
    assert_alike(source, target)


def big_file(path: Path) -> Path:
    with h5py.File(path, "w") as f:
        for name in "abcd":
            values = np.random.default_rng(ord(name)).integers(0, 50, (200, 150, 40))
            f.create_dataset(name, data=values.astype("i2"), compression="gzip")
    return path


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_cancelled_and_gone_on_with(tmp_path: Path, codec: str) -> None:
    source, target = big_file(tmp_path / "a.h5"), tmp_path / "b.h5"
    stop = threading.Event()
    seen: list[tuple[str, int]] = []

    def watch(now: Any) -> None:
        seen.append((now.stage, now.done_nbytes))
        assert now.done_nbytes <= now.total_nbytes
        if now.done_nbytes > now.total_nbytes / 2:
            stop.set()

    how: dict[str, Any] = {"access": "[:, :, k]", "codec": codec, "memory": 800_000}
    assert hs.repack(source, target, **how, progress=watch, cancelled=stop) is None
    assert not target.exists()
    with pytest.raises(OutputError, match="--resume"):
        hs.repack(source, target, **how)
    with pytest.raises(OutputError, match="another repack"):
        hs.repack(source, target, **{**how, "memory": 900_000}, resume=True)
    report = hs.repack(source, target, **how, resume=True)
    assert report is not None
    assert report.resumed_nbytes >= seen[-2][1] > 0
    assert_alike(source, target)


@pytest.mark.parametrize(("codec", "lost"), [("none", "file.h5"), ("gzip", "chunks.bin")])
def test_a_spool_that_lost_files_is_begun_anew(tmp_path: Path, codec: str, lost: str) -> None:
    source, target = big_file(tmp_path / "a.h5"), tmp_path / "b.h5"
    stop = threading.Event()
    how: dict[str, Any] = {"access": "[k]", "codec": codec, "memory": 800_000}
    assert hs.repack(source, target, **how, cancelled=stop, progress=lambda _: stop.set()) is None
    (tmp_path / "b.h5.repacking" / lost).unlink()
    report = hs.repack(source, target, **how, resume=True, verify=False)
    assert report is not None
    assert report.resumed_nbytes == 0
    assert_alike(source, target)


def test_a_source_that_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    source, target = big_file(tmp_path / "a.h5"), tmp_path / "b.h5"
    stop = threading.Event()
    how: dict[str, Any] = {"access": "[k]", "memory": 800_000}
    assert hs.repack(source, target, **how, cancelled=stop, progress=lambda _: stop.set()) is None
    os.utime(source, ns=(1, 1))
    with pytest.raises(OutputError, match="the source has changed"):
        hs.repack(source, target, **how, resume=True)


def test_what_was_cancelled_before_it_began_leaves_nothing(tmp_path: Path) -> None:
    source = big_file(tmp_path / "a.h5")
    stop = threading.Event()
    stop.set()
    for codec in ("none", "gzip"):
        how: dict[str, Any] = {"access": "[k]", "codec": codec}
        assert hs.repack(source, tmp_path / "b.h5", **how, cancelled=stop) is None
        assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]


@pytest.mark.parametrize("codec", ["auto", "none", "gzip"])
def test_others_go_on_with_their_decoded_chunks(cohort: Path, tmp_path: Path, codec: str) -> None:
    """A window may be open while a repack runs: it loses no chunk, and gets none that it has not
    asked for."""
    cache.clear()
    array = hs.open(cohort)["CT/1PA001"]
    array[:, :, 3]
    kept = cache.nbytes()
    assert kept > 0
    seen: set[int] = set()

    def watch(_: Any) -> None:
        seen.add(limits.cache_nbytes)
        assert cache.nbytes() == kept
        array[:, :, 3]
        assert hs.last_stats().chunks_decoded == 0

    before = limits.cache_nbytes
    # Old chunks are cut by regions, so that others would keep them.
    report = hs.repack(
        cohort, tmp_path / "b.h5", access="[:, :, k]", codec=codec, memory=100_000, progress=watch
    )
    assert report is not None
    assert max(item.decodings for item in report.plan.rewritten) > 2
    assert seen == {before}


def test_a_caller_that_raises_ends_it(tmp_path: Path) -> None:
    source, target = big_file(tmp_path / "a.h5"), tmp_path / "b.h5"

    def stop(now: Any) -> None:
        if now.stage == "verify":
            raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        hs.repack(source, target, access="[k]", progress=stop)
    assert not target.exists()
    report = hs.repack(source, target, access="[k]", resume=True)
    assert report is not None
    assert report.resumed_nbytes == report.plan.nbytes
    assert_alike(source, target)


def test_a_damaged_source_leaves_nothing(tmp_path: Path) -> None:
    source, target = big_file(tmp_path / "a.h5"), tmp_path / "b.h5"
    with h5py.File(source) as f:
        info = f["c"].id.get_chunk_info(3)
    content = bytearray(source.read_bytes())
    content[info.byte_offset : info.byte_offset + 30] = b"\xff" * 30
    source.write_bytes(content)
    with pytest.raises(ChunkDecodeError, match="/c, chunk"):
        hs.repack(source, target, access="[:, :, k]")
    assert not target.exists()


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_disk_that_fails_is_noticed(
    tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = big_file(tmp_path / "a.h5"), tmp_path / "b.h5"
    original = rewrite.read_back

    def verify(making: Any) -> None:
        path = making.spool.file
        with h5py.File(path) as f:
            info = f["b"].id.get_chunk_info(5)
        content = bytearray(path.read_bytes())
        content[info.byte_offset + 20] ^= 1
        path.write_bytes(content)
        original(making)

    monkeypatch.setattr(rewrite, "read_back", verify)
    with pytest.raises(hs.errors.DamagedFileError):
        hs.repack(source, target, access="[:, :, k]", codec=codec)
    assert not target.exists()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = big_file(tmp_path / "a.h5"), tmp_path / "b.h5"

    class Usage:
        free = 1000

    monkeypatch.setattr(rewrite.shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(CapacityError, match=r"the disk has 1 kB\s*free"):
        hs.repack(source, target, access="[k]")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5"]


@pytest.mark.parametrize(
    ("how", "error", "match"),
    [
        ({}, OutputError, "an access pattern, a chunk shape"),
        (
            {
                "access": "[k",
            },
            SelectionError,
            "Patterns look like",
        ),
        ({"chunks": (1, 2)}, SelectionError, "has 3 axes"),
        ({"access": "[k]", "codec": "rar"}, ValueError, "There is no codec 'rar'"),
        ({"access": "[:, :, k]", "memory": 100}, CapacityError, "one chunk of shape"),
    ],
)
def test_wrong_use(
    cohort: Path, tmp_path: Path, how: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        hs.repack(cohort, tmp_path / "b.h5", **how)
    assert list(tmp_path.iterdir()) == []


def test_no_file_is_overwritten(cohort: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.h5"
    target.write_text("mine")
    for path in (target, cohort):
        with pytest.raises(OutputError, match="exists already"):
            hs.repack(cohort, path, access="[k]")
    assert target.read_text() == "mine"
    with pytest.raises(OutputError, match="no folder"):
        hs.repack(cohort, tmp_path / "none" / "b.h5", access="[k]")


CORPUS = [
    "layout-pyfive/dim_scales.hdf5",
    "ims-ptk2cell/PtK2Cell.ims",
    "minc2-nibabel/small.mnc",
]


@pytest.mark.parametrize("how", [{"access": "plane"}, {"access": "whole"}, {"access": "[k]"}])
def test_real_files_survive(corpus: Any, tmp_path: Path, how: dict[str, Any]) -> None:
    n_done = 0
    for name in CORPUS:
        source, target = Path(corpus.path(name)), tmp_path / "b.h5"
        target.unlink(missing_ok=True)
        plan = plan_file(source, **how)
        hs.repack(source, target, **how, codec="gzip")
        n_done += len(plan.rewritten)
        with h5py.File(source) as a, h5py.File(target) as b:
            names: list[str] = []
            a.visit(names.append)
            for each in names:
                assert set(a[each].attrs) == set(b[each].attrs)
                if isinstance(a[each], h5py.Dataset) and not a[each].dtype.hasobject:
                    assert np.asarray(a[each][()]).tobytes() == np.asarray(b[each][()]).tobytes()
    assert n_done > 4


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["repack", *map(str, arguments)], env={"COLUMNS": "140"})


def test_the_command(cohort: Path, tmp_path: Path) -> None:
    target = tmp_path / "fast.h5"
    how = ["--access", "[:, :, k]", "--codec", "gzip", "--memory", "100MB"]
    shown = run(cohort, target, *how, "--dry-run")
    assert shown.exit_code == 0
    assert "/MR/1PA001" in shown.stdout
    assert "once" in shown.stdout
    assert not target.exists()
    plan = json.loads(run(cohort, target, *how, "--dry-run", "--json").stdout)
    assert plan["rewritten"][0]["chunks"] == [96, 80, 1]
    done = run(cohort, target, *how)
    assert done.exit_code == 0
    assert "9 datasets rewritten" in done.stdout
    assert "read back and compared" in done.stdout
    assert_alike(cohort, target)
    report = json.loads(run(cohort, tmp_path / "b.h5", *how, "--json", "--no-verify").stdout)
    assert report["verified"] is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give one of --access, --chunks"),
        (["--access", "[k]", "--chunks", "1,2,3"], "give one of --access, --chunks"),
        (["--access", "[k]", "--memory", "lots"], "is no size"),
        (["--access", "[k]", "--codec", "rar"], "there is no codec"),
        (["--chunks", "a,b"], "is no shape"),
        (["--access", "[k"], "Patterns look like"),
    ],
)
def test_wrong_use_of_the_command(
    cohort: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    result = run(cohort, tmp_path / "b.h5", *arguments)
    assert result.exit_code == 2
    assert words in result.output.replace("\n", " ").replace("│", "")


def test_memory_in_words(tmp_path: Path) -> None:
    source = big_file(tmp_path / "a.h5")
    report = hs.repack(source, tmp_path / "b.h5", access="[k]", memory="2.5 MB")
    assert report is not None
    assert report.plan.memory_nbytes == 2_500_000
    for wrong in ("much", "", "0", 0, -1, "2 PB"):
        with pytest.raises(OutputError, match="is no size"):
            hs.repack(source, tmp_path / "c.h5", access="[k]", memory=wrong)
    assert not (tmp_path / "c.h5").exists()


@pytest.mark.parametrize("how", [{}, {"narrow": True}])
def test_a_plan_does_not_read_under_the_library_s_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    """All of h5py would wait meanwhile, and no thread could help."""
    source = tmp_path / "a.h5"
    with h5py.File(source, "w") as f:
        f.create_dataset("x", data=np.arange(64.0**3).reshape(64, 64, 64), compression="gzip")
    held: list[bool] = []
    original = read_module.execute

    def execute(*args: Any, **kwargs: Any) -> Any:
        held.append(library_lock.is_mine)
        return original(*args, **kwargs)

    monkeypatch.setattr(read_module, "execute", execute)
    plan = plan_file(source, access="[k]", **({"narrow": "same"} if how else {}))
    assert plan.rewritten
    assert held
    assert not any(held)
