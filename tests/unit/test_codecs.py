"""Every decoder against h5py with hdf5plugin: the same bytes, or an error, and never a crash."""

from __future__ import annotations

import bz2
import contextlib
import ctypes
import functools
import importlib
import subprocess
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import imagecodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.codecs.base import Buffer, ChecksumMismatch, CodecError, Decoder
from hyperslab.codecs.shuffle import unshuffle_into

MODULES = {
    1: "gzip",
    2: "shuffle",
    3: "fletcher32",
    4: "szip",
    6: "scaleoffset",
    307: "bzip2",
    32000: "lzf",
    32001: "blosc",
    32004: "lz4",
    32008: "bitshuffle",
    32015: "zstd",
}
MODULE_NAMES = sorted(MODULES.values())

FILTERS: dict[str, dict[str, Any]] = {
    "gzip-1": {"compression": "gzip", "compression_opts": 1},
    "gzip-9": {"compression": "gzip", "compression_opts": 9},
    "shuffle": {"shuffle": True},
    "fletcher32": {"fletcher32": True},
    "szip-nn-8": {"compression": "szip", "compression_opts": ("nn", 8)},
    "szip-ec-32": {"compression": "szip", "compression_opts": ("ec", 32)},
    "lzf": {"compression": "lzf"},
    "lz4": hdf5plugin.LZ4(),
    "lz4-1000": hdf5plugin.LZ4(nbytes=1000),
    "zstd": hdf5plugin.Zstd(),
    "zstd-19": hdf5plugin.Zstd(clevel=19),
    "bzip2": hdf5plugin.BZip2(),
    "bitshuffle-none": hdf5plugin.Bitshuffle(cname="none"),
    "bitshuffle-none-64": hdf5plugin.Bitshuffle(cname="none", nelems=64),
    "bitshuffle-lz4": hdf5plugin.Bitshuffle(cname="lz4"),
    "bitshuffle-lz4-64": hdf5plugin.Bitshuffle(cname="lz4", nelems=64),
    "bitshuffle-zstd": hdf5plugin.Bitshuffle(cname="zstd"),
    "bitshuffle-zstd-64": hdf5plugin.Bitshuffle(cname="zstd", nelems=64),
    "blosc-blosclz-1": hdf5plugin.Blosc(cname="blosclz", shuffle=1),
    "blosc-lz4-0": hdf5plugin.Blosc(cname="lz4", shuffle=0),
    "blosc-lz4-1": hdf5plugin.Blosc(cname="lz4", shuffle=1),
    "blosc-lz4hc-2": hdf5plugin.Blosc(cname="lz4hc", shuffle=2),
    "blosc-zlib-1": hdf5plugin.Blosc(cname="zlib", shuffle=1),
    "blosc-zstd-2": hdf5plugin.Blosc(cname="zstd", shuffle=2),
}
DTYPES = ["u1", "i1", "?", "<u2", ">i2", ">i4", "<f4", ">f4", "<f8", ">c16"]
# One element, fewer than 8, tails of every kind, several blocks of every codec.
CHUNKS = [(1,), (7,), (129,), (3, 5, 7), (31, 70), (20011,)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One chunk as it lies in the file, with what h5py makes of it."""

    code: int
    values: tuple[int, ...]
    itemsize: int
    raw: bytes
    skipped: bool  # the writer did not apply the filter
    expected: bytes

    def build(self) -> Decoder:
        return build(self.code, self.values, self.itemsize)

    def decode(self, **kwargs: Any) -> bytes:
        return decode(self.build(), self.raw, **{"size": len(self.expected), **kwargs})


def build(code: int, values: tuple[int, ...], itemsize: int = 1) -> Decoder:
    module = importlib.import_module(f"hyperslab.codecs.{MODULES[code]}")
    decoder: Decoder = module.build_decoder(values, itemsize)
    return decoder


def decode(decoder: Decoder, raw: Buffer, *, size: int | None, with_out: bool = True) -> bytes:
    out = np.full(size, 0xA5, np.uint8) if with_out and size is not None else None
    found = decoder(raw, size, out)
    view = memoryview(found)
    assert view.contiguous
    assert view.ndim == 1
    assert view.itemsize == 1
    assert len(found) == view.nbytes
    return view.tobytes()


def bytes_in_file(dataset: h5py.Dataset, where: tuple[slice, ...]) -> bytes:
    """Read through HDF5 without any conversion of the elements."""
    values = dataset[where]
    assert values.dtype == dataset.dtype
    return bytes(values.tobytes())


def chunks_of(dataset: h5py.Dataset) -> Iterator[tuple[int, bytes, tuple[slice, ...]]]:
    for i in range(dataset.id.get_num_chunks()):
        origin = dataset.id.get_chunk_info(i).chunk_offset
        mask, raw = dataset.id.read_direct_chunk(origin)
        lengths = zip(origin, dataset.chunks, dataset.shape, strict=True)
        yield mask, raw, tuple(slice(o, min(o + c, n)) for o, c, n in lengths)


def store(
    data: np.ndarray, chunk: tuple[int, ...] | None = None, *, dcpl: Any = None, **options: Any
) -> list[Stored]:
    """Write `data` with one filter and take its (whole) chunks out again."""
    with h5py.File("memory", "w", driver="core", backing_store=False) as h5:
        if dcpl is None:
            dataset = h5.create_dataset("d", data=data, chunks=chunk or data.shape, **options)
        else:
            space = h5py.h5s.create_simple(data.shape)
            dtype = h5py.h5t.py_create(data.dtype)
            dataset = h5py.Dataset(h5py.h5d.create(h5.id, b"d", dtype, space, dcpl))
            dataset[...] = data
        plist = dataset.id.get_create_plist()
        assert plist.get_nfilters() == 1
        code, _, values, _ = plist.get_filter(0)
        return [
            Stored(
                code=code,
                values=values,
                itemsize=dataset.dtype.itemsize,
                raw=raw,
                skipped=bool(mask),
                expected=bytes_in_file(dataset, where),
            )
            for mask, raw, where in chunks_of(dataset)
        ]


def make(kind: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    n = int(np.prod(shape))
    rng = np.random.default_rng(n)
    if kind == "noise":
        raw = rng.bytes(n * np.dtype(dtype).itemsize)
        data = np.frombuffer(raw, dtype)
        return (np.frombuffer(raw, "u1") & 1).astype(bool) if dtype == "?" else data.reshape(shape)
    if kind == "constant":
        return np.full(shape, 3).astype(dtype)
    return (60 + 40 * np.sin(np.arange(n) / 50) + rng.normal(0, 2, n)).astype(dtype).reshape(shape)


# HDF5 applies szip to numbers of up to 8 bytes only, and h5py not to booleans.
APPLICABLE = [
    (name, dtype)
    for name in FILTERS
    for dtype in DTYPES
    if not (name.startswith("szip") and dtype in ("?", ">c16"))
]


@pytest.mark.parametrize(("name", "dtype"), APPLICABLE)
def test_the_bytes_are_those_of_h5py(name: str, dtype: str) -> None:
    n_decoded = 0
    for kind in ("smooth", "noise", "constant"):
        for chunk in CHUNKS:
            if name.startswith("szip") and np.prod(chunk) < 32:
                continue  # HDF5 wants at least one szip block in a chunk
            shape = (2 * chunk[0], *chunk[1:]) if len(chunk) > 1 else chunk
            data = make(kind, shape, dtype).reshape(shape)
            for stored in store(data, chunk, **FILTERS[name]):
                if stored.skipped:
                    assert stored.raw == stored.expected
                    continue
                assert stored.decode() == stored.expected
                assert stored.decode(with_out=False) == stored.expected
                assert stored.decode(size=None) == stored.expected
                n_decoded += 1
    assert n_decoded >= 2 * len(CHUNKS) - 8  # the compressors skip what they cannot make smaller


@functools.cache
def examples() -> dict[str, Stored]:
    """One chunk for each codec and mode, small enough to be damaged thousands of times."""
    data = np.repeat(np.arange(53, dtype="<u2") ** 2, 12).reshape(12, 53)
    found = {name: store(data, **FILTERS[name])[0] for name in FILTERS}
    found["scaleoffset"] = store(data, scaleoffset=0)[0]
    found["scaleoffset-float"] = store(data.astype("<f4"), scaleoffset=2)[0]
    found["szip-float"] = store(data.astype("<f8"), **FILTERS["szip-nn-8"])[0]
    assert not any(stored.skipped for stored in found.values())
    assert {MODULES[stored.code] for stored in found.values()} == set(MODULE_NAMES)
    return found


EXAMPLE_NAMES = [*FILTERS, "scaleoffset", "scaleoffset-float", "szip-float"]


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_any_kind_of_buffer_will_do(name: str) -> None:
    stored = examples()[name]
    writable = np.frombuffer(stored.raw, np.uint8).copy()
    padded = np.frombuffer(b"x" + stored.raw + b"y", np.uint8)
    for raw in (
        bytearray(stored.raw),
        memoryview(stored.raw),
        writable,
        padded[1:-1],
        memoryview(padded)[1:-1],
    ):
        before = bytes(raw)
        assert decode(stored.build(), raw, size=len(stored.expected)) == stored.expected
        assert decode(stored.build(), raw, size=None) == stored.expected
        assert bytes(raw) == before


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_another_size_than_the_one_expected_is_an_error(name: str) -> None:
    stored = examples()[name]
    for size in (0, 1, len(stored.expected) - 2, len(stored.expected) + 2, 2**20):
        with pytest.raises(CodecError):
            stored.decode(size=size)
        with pytest.raises(CodecError):
            stored.decode(size=size, with_out=False)


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_whatever_is_cut_off_is_missed(name: str) -> None:
    stored = examples()[name]
    # What stands at the end of these formats may be padding that holds nothing.
    spare = {"scaleoffset": 1, "scaleoffset-float": 1}.get(name, 0)
    for kept in range(len(stored.raw) - spare):
        try:
            found = decode(stored.build(), stored.raw[:kept], size=len(stored.expected))
        except CodecError:
            continue
        assert name.startswith("szip")  # Rice codes may end before their last byte does
        assert found == stored.expected


def check_damaged(stored: Stored, raw: bytes) -> None:
    size = len(stored.expected)
    for with_out in (True, False):
        with contextlib.suppress(CodecError):
            assert len(decode(stored.build(), raw, size=size, with_out=with_out)) == size
    with contextlib.suppress(CodecError):
        decode(stored.build(), raw, size=None)


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
@given(data=st.data())
def test_damage_gives_an_error_or_that_many_bytes(name: str, data: st.DataObject) -> None:
    stored = examples()[name]
    raw = bytearray(stored.raw)
    positions = st.integers(0, len(raw) - 1)
    for position in data.draw(st.lists(positions | st.integers(0, 24), min_size=1, max_size=6)):
        if position < len(raw):
            raw[position] = data.draw(st.integers(0, 255))
    end = data.draw(st.none() | positions)
    check_damaged(stored, bytes(raw[:end]))


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
@given(raw=st.binary(max_size=200))
def test_garbage_gives_an_error_or_that_many_bytes(name: str, raw: bytes) -> None:
    check_damaged(examples()[name], raw)


@pytest.mark.parametrize("name", ["gzip-9", "bzip2", "fletcher32"])
def test_a_flipped_bit_is_found_where_there_is_a_checksum(name: str) -> None:
    stored = examples()[name]
    for bit in range(0, 8 * len(stored.raw), 3):
        raw = bytearray(stored.raw)
        raw[bit // 8] ^= 1 << bit % 8
        try:
            found = decode(stored.build(), bytes(raw), size=len(stored.expected))
        except CodecError:
            continue
        assert found == stored.expected  # bits of the header that say nothing of the data


def test_many_threads_share_a_decoder() -> None:
    with ThreadPoolExecutor(4) as pool:
        for name, stored in examples().items():
            decoder = stored.build()
            sizes = [len(stored.expected)] * 20
            found = pool.map(lambda size, d=decoder, s=stored: decode(d, s.raw, size=size), sizes)
            assert set(found) == {stored.expected}, name


# gzip


def h5py_reads(raw: bytes, size: int, **options: Any) -> bytes:
    """Hand HDF5 a chunk of `size` bytes that it did not write."""
    with h5py.File("memory", "w", driver="core", backing_store=False) as h5:
        dataset = h5.create_dataset("d", (size,), "u1", chunks=(size,), **options)
        dataset.id.write_direct_chunk((0,), raw)
        h5.flush()
        return bytes(dataset[...].tobytes())


PLAIN = bytes(range(200)) * 40


def test_gzip_ends_with_the_stream_and_ignores_the_rest() -> None:
    raw = zlib.compress(PLAIN) + b"\x00trailing"
    assert h5py_reads(raw, len(PLAIN), compression="gzip") == PLAIN
    assert decode(build(1, (4,)), raw, size=len(PLAIN)) == PLAIN
    assert decode(build(1, (4,)), raw, size=None) == PLAIN


@pytest.mark.parametrize("wbits", [9, 12, 15])
@pytest.mark.parametrize("strategy", [zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE])
def test_gzip_of_every_flavour(wbits: int, strategy: int) -> None:
    for level in (0, 1, 9):
        stream = zlib.compressobj(level, zlib.DEFLATED, wbits, 1, strategy)
        raw = stream.compress(PLAIN) + stream.flush()
        assert decode(build(1, ()), raw, size=len(PLAIN)) == PLAIN


def test_gzip_of_unknown_size_and_any_ratio() -> None:
    zeros = bytes(3_000_000)
    raw = zlib.compress(zeros)
    assert len(zeros) > 500 * len(raw)
    assert decode(build(1, ()), raw, size=None) == zeros
    scratch = np.empty(100, np.uint8)
    assert bytes(build(1, ())(raw, None, scratch)) == zeros
    raw = zlib.compress(PLAIN)
    scratch = np.empty(len(PLAIN) + 5, np.uint8)
    found = build(1, ())(raw, None, scratch)
    assert bytes(found) == PLAIN
    assert np.shares_memory(np.frombuffer(found, np.uint8), scratch)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (zlib.compress(PLAIN)[:-1], "cut short"),
        (zlib.compress(PLAIN)[:-4] + bytes(4), "incorrect data check"),
        (zlib.compress(PLAIN, wbits=-15), "header|zlib stream"),
        (zlib.compress(PLAIN + b"x"), "more than the 8000 bytes"),
        (zlib.compress(PLAIN[:-1]), "7999 bytes, not to the 8000"),
        (b"", "cut short"),
    ],
)
def test_gzip_says_what_is_wrong(raw: bytes, reason: str) -> None:
    with pytest.raises(CodecError, match=reason):
        decode(build(1, ()), raw, size=len(PLAIN))


def test_bzip2_says_what_is_wrong() -> None:
    raw = bz2.compress(PLAIN)
    assert decode(build(307, ()), raw + b"rest", size=len(PLAIN)) == PLAIN
    for damaged, reason in [
        (raw[:-1], "cut short"),
        (raw[:-1] + b"\x00", "no sound bzip2 stream"),
        (bz2.compress(PLAIN + b"x"), "more than"),
        (bz2.compress(PLAIN[1:]), "7999 bytes, not"),
    ]:
        with pytest.raises(CodecError, match=reason):
            decode(build(307, ()), damaged, size=len(PLAIN))


# shuffle


@given(
    width=st.sampled_from([1, 2, 3, 4, 5, 8, 12, 16, 17, 40]),
    count=st.sampled_from([0, 1, 2, 7, 600, 2500, 20000]),
    left_over=st.integers(0, 39),
)
def test_shuffle_of_any_element_size_and_length(width: int, count: int, left_over: int) -> None:
    nbytes = count * width + left_over % width
    plain = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    raw = np.concatenate(
        [plain[: count * width].reshape(-1, width).T.ravel(), plain[count * width :]]
    )
    found = decode(build(2, (width,)), raw.tobytes(), size=nbytes)
    assert found == plain.tobytes()


def test_shuffle_of_compound_elements_is_that_of_h5py() -> None:
    dtype = np.dtype([("a", "u1"), ("b", "<f8"), ("c", "<i2")])
    data = np.zeros(1001, dtype)
    data["a"], data["b"], data["c"] = np.arange(1001) % 251, np.arange(1001) / 7, np.arange(1001)
    with h5py.File("memory", "w", driver="core", backing_store=False) as h5:
        dataset = h5.create_dataset("d", data=data, chunks=(1001,), shuffle=True)
        raw = dataset.id.read_direct_chunk((0,))[1]
        values = dataset.id.get_create_plist().get_filter(0)[2]
        assert dataset[...].tobytes() == data.tobytes()
    assert values == (11,)
    assert decode(build(2, values, 11), raw, size=data.nbytes) == data.tobytes()


def test_shuffle_that_has_nothing_to_do_gives_the_data_back() -> None:
    raw = np.arange(40, dtype=np.uint8)
    found = build(2, (1,))(raw, 40, np.empty(40, np.uint8))
    assert np.shares_memory(np.frombuffer(found, np.uint8), raw)


SHAPES = [(), (1,), (5,), (16, 32, 23), (1, 70, 70), (300, 300), (64, 64, 32)]


@given(
    dtype=st.sampled_from(["?", "u1", "<u2", ">u2", "<f4", ">i4", "<f8", ">f8", "<c16", "V3"]),
    shape=st.sampled_from(SHAPES),
    data=st.data(),
)
def test_unshuffle_into_any_part_and_any_destination(
    dtype: str, shape: tuple[int, ...], data: st.DataObject
) -> None:
    itemsize = np.dtype(dtype).itemsize
    rng = np.random.default_rng(len(shape))
    planes = rng.integers(0, 2 if dtype == "?" else 256, (itemsize, *shape), np.uint8)
    window = []
    for length in shape:
        start = data.draw(st.integers(0, length - 1))
        stop = data.draw(st.integers(start + 1, length) | st.just(length))
        window.append(slice(start, stop, data.draw(st.sampled_from([1, 1, 2]))))
    part = planes[(slice(None), *window)]
    if data.draw(st.booleans()):
        part = part[::-1]  # the other byte order
    expected = np.ascontiguousarray(np.moveaxis(part, 0, -1)).tobytes()
    size = part.shape[1:]
    layout = data.draw(st.sampled_from(["C", "F", "rows", "spread", "backwards", "unaligned"]))
    if layout == "rows":  # windows of longer ones
        longer = (*size[:-1], size[-1] + 3) if size else ()
        dest = np.zeros(longer, dtype)[(..., *(slice(n) for n in size))]
    elif layout == "spread":
        dest = np.zeros((*size, 3), dtype)[..., 1]
    elif layout == "backwards":
        dest = np.zeros(size, dtype)[(..., *(slice(None, None, -1) for _ in size))]
    elif layout == "unaligned":
        nbytes = int(np.prod(size)) * itemsize
        dest = np.zeros(nbytes + 1, np.uint8)[1:].view(dtype).reshape(size)
    else:
        dest = np.asarray(np.zeros(size, dtype), order=layout)  # type: ignore[call-overload]
    unshuffle_into(part, dest)
    assert dest.tobytes() == expected


# fletcher32


def test_fletcher32_of_old_versions_is_accepted_as_h5py_does() -> None:
    stored = store(make("smooth", (997,), "u1"), fletcher32=True)[0]
    a, b, c, d = stored.raw[-4:]
    old = stored.raw[:-4] + bytes([b, a, d, c])
    assert old != stored.raw
    assert h5py_reads(old, 997, fletcher32=True) == stored.expected
    assert decode(stored.build(), old, size=997) == stored.expected


def test_fletcher32_names_both_sums_and_gives_a_view() -> None:
    stored = examples()["fletcher32"]
    raw = np.frombuffer(stored.raw, np.uint8).copy()
    found = stored.build()(raw, len(stored.expected), None)
    assert np.shares_memory(np.frombuffer(found, np.uint8), raw)
    raw[7] ^= 1
    with pytest.raises(ChecksumMismatch, match=r"0x[0-9a-f]{8} .* 0x[0-9a-f]{8}|0x.*0x"):
        stored.build()(raw, len(stored.expected), None)
    for nbytes in range(5):
        with pytest.raises(CodecError, match="too few"):
            stored.build()(stored.raw[:nbytes], None, None)


# bitshuffle


def lz4_blocks(packed: bytes) -> list[int]:
    """Return the stored sizes of a bitshuffle-LZ4 chunk's blocks of 8 KiB."""
    sizes, position = [], 12
    while position + 4 <= len(packed):
        sizes.append(int.from_bytes(packed[position : position + 4], "big"))
        position += 4 + sizes[-1]
    return sizes


@pytest.mark.parametrize("tail", [0, 3])
def test_a_block_that_lz4_leaves_as_long_as_it_was(tail: int) -> None:
    """Filter 32004 would take it for uncompressed; bitshuffle's are always LZ4."""
    rng = np.random.default_rng(5)
    noise = rng.integers(0, 256, 8192, np.uint8)
    seen = set()
    for n_zeros in range(20, 90):
        block = noise.copy()
        block[:n_zeros] = 0  # in the transposed block, where LZ4 gains what noise costs
        plain = imagecodecs.bitshuffle_decode(block.tobytes(), itemsize=1)
        assert isinstance(plain, bytes)
        whole = np.frombuffer(plain + bytes(8192) + bytes(range(tail)), np.uint8)
        for data in (whole, whole[:8192]):
            stored = store(data, **hdf5plugin.Bitshuffle(cname="lz4"))[0]
            seen.add(lz4_blocks(stored.raw)[0])
            assert stored.decode() == stored.expected
    assert 8192 in seen


def test_a_last_block_as_long_as_what_is_left() -> None:
    """As above, for the last block, behind which stands a tail that is in no block."""
    rng = np.random.default_rng(6)
    noise = rng.integers(0, 256, 800, np.uint8)
    seen = set()
    for n_zeros in range(60):
        block = noise.copy()
        block[:n_zeros] = 0
        plain = imagecodecs.bitshuffle_decode(block.tobytes(), itemsize=1)
        assert isinstance(plain, bytes)
        stored = store(
            np.frombuffer(plain + b"123", np.uint8), **hdf5plugin.Bitshuffle(cname="lz4")
        )[0]
        seen.add(lz4_blocks(stored.raw)[0])
        assert stored.decode() == stored.expected
    assert {800, 803} <= seen


def test_bitshuffle_with_an_absurd_block_size_is_an_error() -> None:
    stored = examples()["bitshuffle-lz4"]
    block = (2**32 - 16).to_bytes(4, "big")
    raw = stored.raw[:8] + block + stored.raw[12:]
    check_damaged(stored, (2**32 + 16).to_bytes(8, "big") + block + raw[12:])
    assert decode(stored.build(), raw, size=len(stored.expected)) == stored.expected


@pytest.mark.parametrize(
    "values", [(), (0, 4), (0, 4, 0, 0, 2), (0, 4, 2, 7, 0), (0, 4, 2, 0, 1), (0, 4, 2, 0, 9)]
)
def test_bitshuffle_refuses_senseless_values(values: tuple[int, ...]) -> None:
    with pytest.raises(CodecError, match="bitshuffle"):
        build(32008, values)


def test_bitshuffle_without_the_later_values_is_uncompressed() -> None:
    stored = examples()["bitshuffle-none"]
    assert decode(build(32008, stored.values[:3]), stored.raw, size=None) == stored.expected


# szip


@pytest.mark.parametrize("method", ["nn", "ec"])
@pytest.mark.parametrize("block", [2, 8, 10, 30, 32])
@pytest.mark.parametrize("dtype", ["u1", "<i2", ">u2", "<i4", ">i4", "<f4", ">f8"])
def test_szip_of_any_scan_line(method: str, block: int, dtype: str) -> None:
    for shape in [(64,), (3, 33), (5, 7, 11), (40, 3), (2, 4100), (129, 64)]:
        for kind in ("smooth", "noise"):
            data = make(kind, shape, dtype)
            stored = store(data, compression="szip", compression_opts=(method, block))[0]
            if not stored.skipped:
                assert stored.decode() == stored.expected
                assert stored.decode(size=None) == stored.expected


def test_szip_ignores_options_that_are_none() -> None:
    stored = examples()["szip-nn-8"]
    options, *rest = stored.values
    found = decode(build(4, (options | 0xFFFFFF00, *rest)), stored.raw, size=len(stored.expected))
    assert found == stored.expected


def test_szip_that_ends_within_padded_lines_is_not_filled_up() -> None:
    stored = store(make("noise", (40, 33), "u1") & 15, compression="szip")[0]
    assert stored.values[3] % stored.values[1]  # lines are padded: libaec alone would not notice
    with pytest.raises(CodecError, match="cut short"):
        decode(stored.build(), stored.raw[: len(stored.raw) // 2], size=len(stored.expected))


@pytest.mark.parametrize(
    "values",
    [
        (),
        (169, 8, 16),
        (169, 7, 16, 33),
        (169, 0, 16, 33),
        (169, 34, 8, 64),
        (169, 8, 0, 33),
        (169, 8, 33, 33),
        (169, 8, 16, 0),
        (169, 8, 16, 5000),
    ],
)
def test_szip_refuses_senseless_values(values: tuple[int, ...]) -> None:
    with pytest.raises(CodecError, match="szip"):
        build(4, values)


# scale-offset


@functools.cache
def libhdf5() -> Any:
    """The HDF5 library that h5py itself has loaded, for the calls that h5py does not offer."""
    folder = Path(h5py.__file__).parent.parent / "h5py.libs"
    for path in sorted(folder.glob("libhdf5-*.so*")):
        return ctypes.CDLL(str(path))
    pytest.skip(f"no libhdf5 in {folder}: this h5py did not come as a Linux wheel")


def scaleoffset_dcpl(chunk: tuple[int, ...], scale_type: int, factor: int, fill: str) -> Any:
    """Return creation properties; `fill`: "default", "undefined", or a number."""
    dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    dcpl.set_chunk(chunk)
    dcpl.set_scaleoffset(scale_type, factor)
    if fill == "undefined":
        call = libhdf5().H5Pset_fill_value
        call.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
        assert call(dcpl.id, h5py.h5t.NATIVE_INT8.id, None) >= 0
    elif fill != "default":
        dcpl.set_fill_value(np.array(float(fill)))
    return dcpl


INTEGER, FLOAT = h5py.h5z.SO_INT, h5py.h5z.SO_FLOAT_DSCALE


@pytest.mark.parametrize("fill", ["default", "undefined", "7"])
@pytest.mark.parametrize("dtype", [f"{o}{s}{n}" for n in (1, 2, 4, 8) for s in "ui" for o in "<>"])
def test_scaleoffset_of_integers_with_bits_as_needed(dtype: str, fill: str) -> None:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(1)
    seen = set()
    spans = [0, 1, 2, 3, 6, 100, *(2**b for b in range(8, info.bits, 5)), info.max, 2**info.bits]
    for n in (1, 8, 13, 1000):
        for span in spans:
            for low in (info.min, 0, 5):
                high = min(low + span, int(info.max))
                data = rng.integers(low, high, n, dtype[1:], endpoint=True).astype(dtype)
                data[:: max(n // 7, 2)] = 7
                dcpl = scaleoffset_dcpl((n,), INTEGER, 0, fill)
                stored = store(data, dcpl=dcpl)[0]
                assert stored.values[7] == (fill != "undefined")
                if stored.skipped:
                    continue
                assert stored.decode() == stored.expected == data.tobytes()
                assert stored.decode(size=None) == stored.expected
                seen.add(int.from_bytes(stored.raw[:4], "little"))
    assert len(seen) > 3
    assert max(seen) == info.bits
    assert (0 in seen) == (fill == "undefined")


@pytest.mark.parametrize("fill", ["default", "undefined", "7"])
@pytest.mark.parametrize("dtype", ["<u1", "<i2", ">u2", ">i4", "<u4", "<i8", ">u8"])
def test_scaleoffset_of_integers_with_any_number_of_bits(dtype: str, fill: str) -> None:
    """Fewer bits than the data need lose data, in the same way as h5py does."""
    bits_of_type = np.iinfo(dtype).bits
    data = np.random.default_rng(2).integers(0, 120, 333).astype(dtype)
    data[::9] = 7
    for bits in range(1, bits_of_type + 1):
        stored = store(data, dcpl=scaleoffset_dcpl(data.shape, INTEGER, bits, fill))[0]
        assert not stored.skipped
        assert stored.decode() == stored.expected
    assert stored.raw == stored.expected  # with the bits of the full type HDF5 does nothing


@pytest.mark.parametrize("fill", ["default", "undefined", "7.25"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8"])
def test_scaleoffset_of_floats(dtype: str, fill: str) -> None:
    rng = np.random.default_rng(3)
    seen = set()
    for digits in (0, 1, 2, 3, 5, 7, 9):
        for data in (
            rng.normal(-20, 30, 500),
            rng.normal(0, 1e-3, 77),
            np.full(50, -1.375),
            np.full(9, 7.25),
            rng.normal(0, 1e6, 100),
            rng.normal(0, 1e12, 20),
            np.array([-0.004]),
        ):
            stored_as = data.astype(dtype)
            stored_as[::5] = 7.25
            dcpl = scaleoffset_dcpl(data.shape, FLOAT, digits, fill)
            stored = store(stored_as, dcpl=dcpl)[0]
            if stored.skipped:
                continue
            assert stored.decode() == stored.expected
            seen.add(int.from_bytes(stored.raw[:4], "little"))
    assert len(seen) > 8
    assert max(seen) == 8 * np.dtype(dtype).itemsize


def test_scaleoffset_of_h5py_in_several_dimensions() -> None:
    data = np.random.default_rng(4).integers(400, 900, (20, 30, 10)).astype(">u2")
    for stored in store(data, (5, 10, 5), scaleoffset=0, fillvalue=450):
        assert stored.decode() == stored.expected


SO_VALUES = (2, 0, 10, 0, 2, 0, 0, 1, *([0] * 12))


@pytest.mark.parametrize(
    ("position", "value"), [(0, 0), (0, 1), (1, 17), (3, 1), (3, 2), (4, 3), (4, 16), (4, 0)]
)
def test_scaleoffset_refuses_senseless_values(position: int, value: int) -> None:
    build(6, SO_VALUES)
    values = list(SO_VALUES)
    values[position] = value
    with pytest.raises(CodecError, match="scale-offset"):
        build(6, tuple(values))
    with pytest.raises(CodecError, match="scale-offset"):
        build(6, SO_VALUES[:19])


def test_scaleoffset_with_negative_bits_means_as_needed() -> None:
    values = (2, 2**32 - 3, *SO_VALUES[2:])
    raw = (1).to_bytes(4, "little") + b"\x08" + (5).to_bytes(8, "little") + bytes(8) + b"\x40\x00"
    found = decode(build(6, values), raw, size=20)
    assert np.frombuffer(found, "<u2").tolist() == [5, 0, *([5] * 8)]  # ones are the fill value, 0


@pytest.mark.parametrize(
    ("raw", "reason"),
    [(bytes(20), "too few"), (b"\x11" + bytes(40), "17 bits"), (b"\x08" + bytes(29), "too few")],
)
def test_scaleoffset_says_what_is_wrong(raw: bytes, reason: str) -> None:
    with pytest.raises(CodecError, match=reason):
        decode(build(6, SO_VALUES), raw, size=20)


# blosc, LZ4, LZF, Zstandard: what their libraries would not notice


def test_blosc_is_never_let_read_behind_the_data() -> None:
    stored = examples()["blosc-lz4-1"]
    raw = bytearray(stored.raw)
    raw[12:16] = (len(raw) + 1).to_bytes(4, "little")
    with pytest.raises(CodecError, match="claims"):
        decode(stored.build(), bytes(raw), size=len(stored.expected))
    with pytest.raises(CodecError, match="too few"):
        decode(stored.build(), stored.raw[:15], size=None)


def test_lzf_of_the_highest_ratio_and_unknown_size() -> None:
    stored = store(np.zeros(1_000_000, "u1"), compression="lzf")[0]
    assert len(stored.expected) > 85 * len(stored.raw)
    assert stored.decode(size=None) == stored.expected


def test_zstd_of_unknown_size_needs_the_size_in_the_frame() -> None:
    for n in (1, 255, 256, 65791, 65792, 70000):
        plain = bytes(n)
        raw = imagecodecs.zstd_encode(plain)
        assert decode(build(32015, ()), raw, size=None) == plain
    # Magic number, a descriptor without size or single segment, a window, one empty last block.
    raw = bytes.fromhex("28b52ffd 00 58 010000")
    assert decode(build(32015, ()), raw, size=0) == b""
    with pytest.raises(CodecError, match="does not state"):
        decode(build(32015, ()), raw, size=None)
    with pytest.raises(CodecError, match="no Zstandard frame"):
        decode(build(32015, ()), b"\x00" * 20, size=None)


@pytest.mark.parametrize("name", ["lz4", "bitshuffle-lz4", "bitshuffle-zstd", "szip-nn-8"])
def test_an_absurd_size_in_a_header_is_an_error_and_not_a_full_memory(name: str) -> None:
    stored = examples()[name]
    raw = bytearray(stored.raw)
    if name.startswith("szip"):
        raw[:4] = b"\xff" * 4
    else:
        raw[:8] = (2**62).to_bytes(8, "big")
    with pytest.raises(CodecError):
        decode(stored.build(), bytes(raw), size=None)


def test_a_decoder_is_imported_without_h5py() -> None:
    imports = "; ".join(f"import hyperslab.codecs.{name}" for name in MODULE_NAMES)
    code = f"{imports}; import sys; assert not {{'h5py', 'torch'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# Real files

CHUNKS_OF_A_DATASET = 20


def test_real_files_of_one_filter(corpus: Any) -> None:
    seen: dict[str, int] = {}
    for path, entry in corpus.readable():
        paths = [d["path"] for d in entry["datasets"] if len(d.get("filters", ())) == 1]
        if not paths:
            continue
        with h5py.File(path, "r", locking=False) as h5:
            for name in paths:
                for codec in check_real_dataset(h5[name]):
                    seen[codec] = seen.get(codec, 0) + 1
    assert set(seen) >= set(MODULE_NAMES) - {"bzip2"}  # there is none with that filter alone
    assert sum(seen.values()) > 1000


def check_real_dataset(dataset: h5py.Dataset) -> Iterator[str]:
    """Compare the first chunks with what HDF5 reads in the file's own type; yield the codec."""
    code, _, values, _ = dataset.id.get_create_plist().get_filter(0)
    if code not in MODULES or dataset.dtype.kind not in "iufcb" or dataset.shape is None:
        return
    stored_type = dataset.id.get_type()
    element = f"V{stored_type.get_size()}"
    decoder = build(code, values, stored_type.get_size())
    size = stored_type.get_size() * int(np.prod(dataset.chunks))
    for i in range(min(dataset.id.get_num_chunks(), CHUNKS_OF_A_DATASET)):
        origin = dataset.id.get_chunk_info(i).chunk_offset
        mask, raw = dataset.id.read_direct_chunk(origin)
        lengths = zip(origin, dataset.chunks, dataset.shape, strict=True)
        shape = tuple(min(c, n - o) for o, c, n in lengths)
        space = dataset.id.get_space()
        space.select_hyperslab(origin, shape)
        expected = np.empty(shape, element)
        dataset.id.read(h5py.h5s.create_simple(shape), space, expected, mtype=stored_type)
        found = raw if mask else decode(decoder, raw, size=size)
        chunk = np.frombuffer(found, element).reshape(dataset.chunks)
        part = chunk[tuple(slice(n) for n in shape)]
        assert part.tobytes() == expected.tobytes(), (dataset.file.filename, dataset.name, origin)
        yield MODULES[code]
