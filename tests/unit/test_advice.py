"""The adviser's arithmetic."""

from __future__ import annotations

import math
import os
import random
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from h5py._hl.filters import guess_chunk
from hypothesis import given
from hypothesis import strategies as st

from hyperslab import filters
from hyperslab.access import parse_access, slab_shape
from hyperslab.advice import Finding, KindAdvice, Machine, PatternAdvice, RepackOption, disk
from hyperslab.advice.cost import h5py_cache_nbytes, is_automatic, request_cost
from hyperslab.advice.findings import file_system, find
from hyperslab.advice.kinds import Kind, as_stored, default_patterns, find_kinds
from hyperslab.advice.probe import Line, measure_line, places, try_codecs
from hyperslab.advice.words import best_option, duration, verdict
from hyperslab.cli.drawings import Dots, draw_dots, draw_volume
from hyperslab.codecs.encode import CODECS
from hyperslab.filters import Filter
from hyperslab.index.tree import DatasetFacts, Entry


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=4), st.sampled_from([1, 2, 4, 8]))
def test_automatic_chunks_are_recognised(shape: list[int], itemsize: int) -> None:
    guess = tuple(int(n) for n in guess_chunk(tuple(shape), None, itemsize))
    assert is_automatic(tuple(shape), guess, itemsize)
    other = (guess[0] + 1, *guess[1:])
    assert not is_automatic(tuple(shape), other, itemsize)


def test_the_cost_of_a_slice() -> None:
    access = parse_access("[:, :, k]", 3)
    cost = request_cost(access, (512, 512, 200), (32, 32, 25), itemsize=2, ratio=2.0)
    assert cost.chunks_touched == 256
    assert cost.decoded_nbytes == 256 * 32 * 32 * 25 * 2
    assert cost.read_nbytes == cost.decoded_nbytes / 2
    assert cost.used_nbytes == 512 * 512 * 2
    assert cost.slab_nbytes == 512 * 512 * 25 * 2
    assert cost.requests_per_slab == 25


def test_the_cost_without_chunks() -> None:
    cost = request_cost(parse_access("[k]", 3), (10, 20, 30), None, itemsize=4)
    assert (cost.chunks_touched, cost.decoded_nbytes) == (0, 20 * 30 * 4)


@pytest.mark.parametrize(
    ("access", "shape", "read"),
    [
        ("[k]", (100, 64, 64), 64 * 64 * 4 + 4096),  # in one piece
        ("[:, k]", (10, 4096, 1024), 10 * (4096 + 4096)),  # ten rows, far apart
        ("[:, :, k]", (256, 256, 64), 256 * 256 * 64 * 4),  # every page of the dataset
        ("[:, :, 8w]", (64, 64, 1024), 64 * 64 * (32 + 4096)),  # a page for every run
        ("whole", (10, 10), 400),
    ],
)
def test_pages_of_contiguous_data(access: str, shape: tuple[int, ...], read: int) -> None:
    cost = request_cost(parse_access(access, len(shape)), shape, None, itemsize=4)
    assert cost.read_nbytes == pytest.approx(read, rel=0.01)
    assert cost.decoded_nbytes == cost.used_nbytes <= cost.read_nbytes


@given(st.data())
def test_pages_are_no_fewer_than_are_touched(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
    window = [data.draw(st.integers(1, n)) for n in shape]
    text = f"[{', '.join(f'{w}w' for w in window)}]"
    cost = request_cost(parse_access(text, len(shape)), shape, None, itemsize=512)
    offsets = np.arange(math.prod(shape)).reshape(shape)[tuple(slice(0, w) for w in window)] * 512
    n_pages = len(np.unique(offsets // 4096))
    assert cost.used_nbytes <= cost.read_nbytes <= math.prod(shape) * 512
    # On average over where the dataset begins, a run takes a page more than it fills.
    assert cost.read_nbytes >= min(n_pages * 4096, math.prod(shape) * 512) - 4096


def test_the_library_s_cache() -> None:
    assert h5py_cache_nbytes((1, 14, 6)) == 1 << 20
    assert h5py_cache_nbytes((2, 0, 0)) == 8 << 20


@pytest.mark.parametrize(
    ("shape", "first"),
    [
        ((256, 256, 60), "[:, :, k]"),
        ((60, 256, 256), "[k, :, :]"),
        ((256, 60, 240), "[:, k, :]"),
        ((100, 100, 100), "[k, :, :]"),
        ((5, 3, 20, 100, 100), "[t, c, z, :, :]"),
        ((9, 20, 100, 100), "[t, z, :, :]"),
        ((900, 900), "tile 512x512"),
        ((9,), "whole"),
    ],
)
def test_likely_patterns(shape: tuple[int, ...], first: str) -> None:
    patterns = default_patterns(shape)
    assert patterns[0] == first
    for pattern in patterns:
        if not pattern.startswith("patch") or len(shape) >= 3:
            parse_access(pattern, len(shape))


@pytest.mark.parametrize(
    ("text", "ndim", "stored"),
    [
        ("[t, c, z]", 3, "[z, :, :]"),
        ("[t, c, z, :, :]", 3, "[z, :, :]"),
        ("[T, C, 64w, :, :]", 3, "[64w, :, :]"),
        ("[c, z, :, :]", 3, "[z, :, :]"),
        ("[t, c, z]", 5, "[t, c, z]"),
        ("[t, :, :]", 3, "[t, :, :]"),  # a series of planes
        ("[k, :, :]", 3, "[k, :, :]"),
        ("patch 8x8", 3, "patch 8x8"),
    ],
)
def test_patterns_of_images(text: str, ndim: int, stored: str) -> None:
    assert as_stored(text, ndim) == stored
    parse_access(stored, ndim)


def test_volumes_of_microscopes_are_read_by_the_plane() -> None:
    for path in ("/DataSet/ResolutionLevel 0/TimePoint 0/Channel 1/Data", "/t00003/s00/0/cells"):
        assert default_patterns((8, 64, 64), path)[0] == "[t, c, z]"
    assert default_patterns((8, 64, 64), "/t/s/0")[0] == "[k, :, :]"


def entry(path: str, shape: tuple[int, ...] = (64, 64, 32), **how: object) -> Entry:
    known: dict[str, object] = {
        "shape": shape,
        "dtype": "float32",
        "numeric": True,
        "storage": "chunked",
        "chunks": (16, 16, 8),
        "filters": (Filter(code=filters.GZIP, name="gzip"),),
        "native": True,
        "stored_nbytes": 100_000,
        "decoded_nbytes": math.prod(shape) * 4,
        "chunks_allocated": 64,
        "chunks_total": 64,
    }
    return Entry(path=path, kind="dataset", facts=DatasetFacts(**(known | how)))  # type: ignore[arg-type]


def test_kinds_are_cases_put_together() -> None:
    entries = [entry(f"/MR/p{i}") for i in range(5)] + [entry(f"/CT/p{i}") for i in range(4)]
    entries += [entry("/MR/big", shape=(128, 64, 32)), entry("/small", shape=(4, 4))]
    entries += [entry("/text", numeric=False)]
    kinds = find_kinds(entries)
    assert [(len(kind.paths), kind.example) for kind in kinds] == [(6, "/MR/big"), (4, "/CT/p0")]
    assert kinds[0].decoded_nbytes == (5 + 2) * 64 * 64 * 32 * 4
    assert kinds[0].itemsize == 4
    assert [kind.example for kind in find_kinds(entries, only="/sm*")] == ["/small"]


def kind(**how: object) -> Kind:
    (found,) = find_kinds([entry("/x", **how)])  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("key", "how"),
    [
        ("automatic-chunks", {"chunks": tuple(map(int, guess_chunk((64, 64, 32), None, 4)))}),
        ("small-chunks", {"shape": (256, 256, 32), "chunks": (4, 4, 4)}),
        ("large-chunks", {"shape": (512, 512, 100), "chunks": (512, 512, 100)}),
        ("no-shuffle", {}),
        ("sparse", {"chunks_allocated": 3}),
        ("big-endian", {"dtype": "float32 big-endian"}),
    ],
)
def test_findings(key: str, how: dict[str, object]) -> None:
    assert key in [finding.key for finding in find(kind(**how), None, system="ext4")]
    sound = {
        "chunks": (64, 64, 2),
        "filters": (
            Filter(code=filters.SHUFFLE, values=(4,), name="shuffle"),
            Filter(code=filters.GZIP, name="gzip"),
        ),
    }
    assert find(kind(**sound), np.zeros(3, "f4"), system="ext4") == []


def test_findings_about_values_and_disks() -> None:
    plain = {"storage": "contiguous", "chunks": None, "filters": ()}
    assert [f.key for f in find(kind(**plain), None, system="nfs4")] == ["network"]
    assert find(kind(**plain), None, system="ext4") == []
    wide = {**plain, "dtype": "float64", "decoded_nbytes": 64 * 64 * 32 * 8}
    for values, holds in (
        (np.array([1.0, -7.0, np.nan]), "integers"),
        (np.array([0.5, 0.25]), "float32"),
        (np.array([0.1, 1 / 3]), None),
        (np.array([np.nan]), None),
    ):
        found = find(kind(**wide), values, system="")
        assert [f.key for f in found] == (["wide-floats"] if holds else [])
        assert all(str(holds) in f.text for f in found)


def test_the_file_system_is_known(tmp_path: object) -> None:
    assert file_system("/proc/self") in ("proc", "")
    assert file_system(str(tmp_path))


def test_what_a_repack_leaves_alone() -> None:
    assert kind().is_repackable
    (small,) = find_kinds([entry("/x", shape=(64, 64))], only="/x")
    assert not small.is_repackable
    assert not kind(storage="virtual", chunks=None).is_repackable
    assert not kind(native=False).is_repackable


def test_what_is_not_allocated() -> None:
    sparse = kind(chunks_allocated=16, stored_nbytes=4 * 64 * 64 * 32 // 8)
    assert sparse.allocated == 0.25
    assert sparse.ratio == 2.0  # a quarter is there, and takes an eighth
    for allocated, words in ((16, "75%"), (63, "2%"), (64, "")):
        found = find(kind(chunks_allocated=allocated), None, system="", fill=np.float32(-1024))
        text = " ".join(f.text for f in found if f.key == "sparse")
        assert text.startswith(f"{words} not allocated, reads as -1024.0") if words else not text
    huge = kind(chunks_allocated=1, chunks_total=10**6)
    assert "99.99% not allocated" in find(huge, None, system="")[-1].text


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=3),
    st.integers(1, 40),
    st.floats(1e-5, 1e-2),
    st.floats(1e-6, 1e-3),
)
def test_a_straight_line_is_found(
    counts: list[int], cell: int, call_s: float, chunk_s: float
) -> None:
    chunks = (cell,) * len(counts)
    region = shape = tuple(n * cell for n in counts)
    tried: list[int] = []

    def timer(regions: Sequence[tuple[slice, ...]]) -> list[float]:
        sizes = [math.prod((s.stop - s.start) // cell for s in index) for index in regions]
        tried.extend(sizes)
        return [call_s + n * chunk_s for n in sizes]

    limit = 64 << 20
    line = measure_line(timer, region, shape, chunks, itemsize=1, dice=random.Random(0))
    n = math.prod(counts)
    assert all(size * cell ** len(counts) <= limit or size == 1 for size in tried)
    if n * cell ** len(counts) <= limit:
        assert line.at(n) == pytest.approx(call_s + n * chunk_s)
        assert max(tried) <= max(8, n / 4)  # what is predicted has not been made
    else:  # a multiple of the largest trial, since page faults are what counts
        largest = max(tried)
        assert line.at(n) == pytest.approx((call_s + largest * chunk_s) * n / largest)


def test_a_line_through_two_measurements() -> None:
    line = Line(4, 1.0, 0.1)
    assert line.at(4) == 1.0
    assert line.at(14) == pytest.approx(2.0)
    assert line.at(2) == 0.5


def test_places_are_inside_and_at_chunks() -> None:
    dice = random.Random(0)
    for index in places((8, 6), (64, 10), (4, 6), n=50, dice=dice):
        assert all(0 <= i.start < i.stop <= n for i, n in zip(index, (64, 10), strict=True))
        assert [i.stop - i.start for i in index] == [8, 6]
        assert index[0].start % 4 == 0
    starts = {index[0].start for index in places((1,), (64,), (4,), n=200, dice=dice)}
    assert any(start % 4 for start in starts)


def test_codecs_are_tried() -> None:
    zeros = np.zeros((32, 32), "f4")
    trials = {trial.codec: trial for trial in try_codecs([zeros, zeros])}
    assert set(trials) == set(CODECS)
    assert trials["none"].ratio == 1
    assert all(trials[name].ratio > 10 for name in ("lz4", "zstd", "gzip"))
    assert all(t.encode_bytes_per_s > 0 and t.decode_bytes_per_s > 0 for t in trials.values())


MACHINE = Machine(
    hdf5="2.0.0",
    h5py_cache_nbytes=8 << 20,
    cache_nbytes=1 << 30,
    threads=2,
    memory_nbytes=8 << 30,
    disk_bytes_per_s=1e9,
    disk_cold=True,
    file_system="ext4",
)


def option(codec: str, seconds: float, stored: int, disk_s: float = 0.0) -> RepackOption:
    return RepackOption(
        codec=codec,
        chunks=(64, 64, 1),
        ratio=1.0,
        stored_nbytes=stored,
        repack_s=3.0,
        predicted_s={"h5py": 2 * seconds, "hyperslab": seconds, "hyperslab_in_order": seconds},
        disk_s=disk_s,
        needs_plugin=CODECS[codec].needs_plugin,
    )


def slices(
    *options: RepackOption,
    seconds: float = 0.01,
    in_order: float = 0.005,
    paths: tuple[str, ...] = ("/MR/a", "/CT/a"),
    stored: int = 100,
    disk_s: float = 0.0,
) -> KindAdvice:
    """A kind that is read by the slice, 16 of them in a slab."""
    pattern = PatternAdvice(
        access="[:, :, k]",
        as_stored="[:, :, k]",
        guessed=True,
        region=(64, 64, 1),
        chunks_touched=16,
        read_nbytes=1e5,
        decoded_nbytes=64 * 64 * 16 * 4,
        used_nbytes=64 * 64 * 4,
        amplification=16,
        read_amplification=8,
        slab_region=(64, 64, 16),
        slab_nbytes=64 * 64 * 16 * 4,
        requests_per_slab=16,
        fits_h5py_cache=True,
        fits_our_cache=True,
        predicted_s={"h5py": 0.05, "hyperslab": seconds, "hyperslab_in_order": in_order},
        measured_s=None,
        disk_s=disk_s,
    )
    return KindAdvice(
        datasets=paths,
        example=paths[0],
        shape=(64, 64, 64),
        dtype="float32",
        storage="chunked",
        chunks=(16, 16, 16),
        filters=("gzip",),
        stored_nbytes=stored,
        decoded_nbytes=1000,
        patterns=(pattern,),
        options=options,
        findings=(),
        decode_bytes_per_s={"one_thread": 1.0, "all_threads": 2.0},
    )


def test_the_verdict_is_one_of_three() -> None:
    repack = verdict("a b.h5", [slices(option("none", 0.001, 400))], MACHINE, datasets="/M*")
    assert (repack.action, repack.slow) == ("repack", True)
    assert shlex.split(repack.command) == [
        *("hyperslab", "repack", "a b.h5", "a b-fast.h5", "--access", "[:, :, k]"),
        *("--codec", "none", "--dataset", "/M*"),
    ]
    assert "takes 1 ms instead of 10 ms" in repack.words
    assert "4.0 times the disk space and some 3 s of work" in repack.words
    # An order that serves each slab once is as fast: nothing needs to be written.
    block = verdict("x.h5", [slices(option("none", 0.001, 400), in_order=0.0012)], MACHINE)
    assert (block.action, block.slow) == ("block-shuffle", True)
    assert block.command == (
        "SliceLoader(SliceDataset('x.h5', inputs=['MR', 'CT'], axis=-1), batch_size=32, "
        "shuffle='block')"
    )
    # But only of cohorts: an image is no training set.
    deep = slices(option("none", 0.001, 400), in_order=0.0012, paths=("/a/b/c",))
    assert verdict("x.h5", [deep], MACHINE).action == "repack"
    nothing = verdict("x.h5", [slices(option("none", 0.006, 400))], MACHINE)
    assert (nothing.action, nothing.slow, nothing.command) == ("nothing", False, "")
    # Twice as fast, and yet nobody will notice.
    quick = slices(option("none", 0.00001, 400), seconds=0.00005)
    assert not verdict("x.h5", [quick], MACHINE).slow
    hurt = replace(slices(), findings=(Finding(key="damaged", text="", costs=True),))
    assert "could not be tried" in verdict("x.h5", [hurt], MACHINE).words
    elsewhere = replace(slices(), storage="virtual")
    assert "in other files" in verdict("x.h5", [elsewhere], MACHINE).words


@pytest.mark.parametrize(
    ("amplification", "stored", "slow"), [(1.2, 200, False), (1.2, 120, True), (2.0, 200, True)]
)
def test_more_disk_space_alone_mends_nothing(amplification: float, stored: int, slow: bool) -> None:
    """Chunks that suit are kept: whether speed is worth the space is somebody else's choice."""
    kind = slices(option("none", 0.001, stored))
    kind = replace(kind, patterns=(replace(kind.patterns[0], amplification=amplification),))
    found = verdict("x.h5", [kind], MACHINE)
    assert found.slow == slow
    assert bool(found.command) == slow
    if not slow:
        assert "1 ms instead of 10 ms, for 2.0 times the disk space" in found.words


def test_the_verdict_is_about_what_is_slow() -> None:
    good = slices(option("none", 0.01, 400), paths=("/good/a",))
    bad = slices(option("none", 0.001, 400), paths=("/bad/a",))
    assert verdict("x.h5", [good, bad], MACHINE).slow
    for kinds in ([good, bad], [bad, good]):
        assert "instead of 10 ms" in verdict("x.h5", kinds, MACHINE).words
    assert not verdict("x.h5", [good], MACHINE).slow


@pytest.mark.parametrize(
    ("options", "best"),
    [
        # About as fast, and smaller.
        ([("none", 0.001, 400), ("gzip", 0.0014, 100)], "gzip"),
        ([("none", 0.001, 400), ("gzip", 0.0030, 100)], "none"),
        # A plugin has to be worth its while.
        ([("none", 0.001, 400), ("blosc", 0.0012, 210)], "none"),
        ([("none", 0.001, 400), ("blosc", 0.0012, 190)], "blosc"),
    ],
)
def test_the_best_repack(options: list[tuple[str, float, int]], best: str) -> None:
    found = best_option(slices(*(option(*how) for how in options)), MACHINE)
    assert found is not None
    assert found.codec == best


def test_what_does_not_fit_into_memory_comes_from_the_disk() -> None:
    options = (option("none", 0.001, 400, disk_s=0.1), option("gzip", 0.004, 100, disk_s=0.025))
    small = best_option(slices(*options), MACHINE)
    large = best_option(slices(*options), replace(MACHINE, memory_nbytes=50))
    assert small is not None
    assert large is not None
    assert (small.codec, large.codec) == ("none", "gzip")
    kind = slices(*options, seconds=0.01, disk_s=0.02)
    assert verdict("x.h5", [kind], MACHINE).slow
    assert not verdict("x.h5", [kind], replace(MACHINE, memory_nbytes=50)).slow


@given(st.data())
def test_a_picture_of_any_request(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 2000), min_size=1, max_size=5)))
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    access = parse_access(
        "[" + ", ".join(data.draw(st.sampled_from(":k")) for _ in shape) + "]", len(shape)
    )
    region, slab = access.region(shape), slab_shape(access, shape, chunks)
    root = ElementTree.fromstring(draw_volume(shape, chunks, region, slab))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for polygon in root.iter("polygon"):
        points = [tuple(map(float, p.split(","))) for p in polygon.attrib["points"].split()]
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
    assert len(list(root.iter("polygon"))) == 9
    assert len(list(root.iter("line"))) < 800
    plain = ElementTree.fromstring(draw_volume(shape, None, region, region))
    assert len(list(plain.iter("polygon"))) == 6


def test_the_slab_is_drawn_around_what_is_used() -> None:
    text = draw_volume((256, 256, 64), (32, 32, 8), (256, 256, 1), (256, 256, 8))
    root = ElementTree.fromstring(text)
    spans = {}
    for group in root.iter("g"):
        xs = [
            float(point.split(",")[0])
            for polygon in group.iter("polygon")
            for point in polygon.attrib["points"].split()
        ]
        if xs:
            spans[group.attrib["class"]] = (min(xs), max(xs))
    for outer, inner in (("volume", "slab"), ("slab", "used")):
        assert spans[outer][0] < spans[inner][0] < spans[inner][1] < spans[outer][1]


def test_dots_are_where_their_seconds_are() -> None:
    rows = [
        Dots(label=name, group="all", who=who, predicted_s=p, measured_s=m)
        for name, who, p, m in (("a", "h5py", 0.1, 0.001), ("b & c", "ours", 0.01, None))
    ]
    root = ElementTree.fromstring(draw_dots(rows))
    at = {
        (circle.attrib["class"], i): float(circle.attrib["cx"])
        for i, group in enumerate(root.iter("g"))
        for circle in group.iter("circle")
    }
    ring, disc, other = at["ring", 0], at["disc", 0], at["ring", 1]
    assert other == pytest.approx((ring + disc) / 2, abs=0.2)  # decades are alike
    assert disc < other < ring
    assert draw_dots([replace(rows[0], predicted_s=None, measured_s=None)]) == ""


def test_the_disk_is_told_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(9 << 20))
    for seen in (True, False, None):
        monkeypatch.setattr(disk, "_is_cold", lambda *_, seen=seen: seen)
        rate, cold = disk.disk_rate(str(path), dice=random.Random(0))
        assert rate > 0
        assert cold is seen
    path.write_bytes(b"")
    assert disk.disk_rate(str(path), dice=random.Random(0)) == (0.0, None)


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system does not tell")
def test_what_was_just_read_is_not_cold(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(1 << 20))
    with path.open("rb") as stream:
        stream.read()
        assert disk._is_cold(stream.fileno(), (0, 1 << 19)) in (False, None)


def test_a_system_that_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RWF_NOWAIT", "posix_fadvise", "fdatasync"):
        monkeypatch.delattr(os, name, raising=False)
    path = tmp_path / "x"
    path.write_bytes(bytes(1 << 20))
    rate, cold = disk.disk_rate(str(path), dice=random.Random(0))
    assert (rate > 0, cold) == (True, None)


def test_durations() -> None:
    found = [duration(s) for s in (0.0000123, 0.0999, 1.5, 99.4, 600, 1e5)]
    assert found == ["0.012 ms", "100 ms", "1.5 s", "99 s", "10 min", "28 h"]
