"""Recipes from public reports of people who read such files, each with its right outcome."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import ChecksumError, ChunkDecodeError, FileInUseWarning
from tests.compare import assert_same, h5py_read


def noise(shape: tuple[int, ...], dtype: Any = "u2", seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def chunk_of(path: Path, name: str, number: int = 0) -> tuple[int, int, int]:
    """Byte offset, stored size and filter mask of a chunk, as h5py says."""
    with h5py.File(path) as h5:
        info = h5[name].id.get_chunk_info(number)
    return info.byte_offset, info.size, info.filter_mask


def flip(path: Path, byte_offset: int) -> None:
    """Turn all bits of one byte around."""
    with path.open("r+b") as stream:
        stream.seek(byte_offset)
        byte = stream.read(1)[0]
        stream.seek(byte_offset)
        stream.write(bytes([byte ^ 0xFF]))


# --- C1: a slice of h5py's default gzip layout ---------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype"), [((512, 512, 200), "i2"), ((256, 256, 180), "f4")], ids=["i2", "f4"]
)
def test_slice_of_the_default_gzip_layout(
    shape: tuple[int, int, int], dtype: str, tmp_path: Path
) -> None:
    path = tmp_path / "cohort.h5"
    with h5py.File(path, "w") as h5:
        dataset = h5.create_dataset("MR/1PA001", shape, dtype, compression="gzip")
        chunks = dataset.chunks
        assert chunks is not None
        # One slab of chunks is written; the others stay holes.
        slab = slice(2 * chunks[2], 3 * chunks[2])
        y, x, z = np.ogrid[: shape[0], : shape[1], : chunks[2]]
        dataset[:, :, slab] = ((y + x) * 8 + z).astype(dtype)
    array = hs.open(path)["MR/1PA001"]
    in_a_plane = -(-shape[0] // chunks[0]) * -(-shape[1] // chunks[1])
    k = slab.start + 7
    with h5py.File(path) as h5:
        want = h5["MR/1PA001"][:, :, k]
    assert_same(array[:, :, k], want)
    assert want.any()
    stats = hs.last_stats()
    assert (stats.chunks_decoded, stats.chunks_filled) == (in_a_plane, 0)
    assert stats.bytes_decoded == in_a_plane * np.prod(chunks) * want.dtype.itemsize
    # The slice beside it lies in the same chunks: they are decoded already.
    array[..., k + 1]
    assert (hs.last_stats().chunks_decoded, hs.last_stats().chunks_cached) == (0, in_a_plane)
    assert not array[:, :, 0].any()
    assert (hs.last_stats().chunks_decoded, hs.last_stats().chunks_filled) == (0, in_a_plane)
    assert hs.last_stats().bytes_read == 0


# --- C5: filters that were skipped, chunk by chunk -----------------------------------------------


def test_lzf_chunks_that_do_not_compress(tmp_path: Path) -> None:
    path = tmp_path / "noise.h5"
    with h5py.File(path, "w") as h5:
        h5.create_dataset("x", data=noise((64, 64, 4)), chunks=(32, 32, 4), compression="lzf")
        h5.create_dataset(
            "y", data=noise((64, 64, 4)), chunks=(32, 32, 4), compression="lzf", shuffle=True
        )
    assert chunk_of(path, "x")[1:] == (8192, 1)
    file = hs.open(path)
    for name in ("x", "y"):
        want = h5py_read(path, name)
        assert_same(file[name][...], want)
        assert_same(file[name][3:40, ::-1, 1], want[3:40, ::-1, 1])


@pytest.mark.parametrize("shuffle", [False, True], ids=["gzip", "shuffle-gzip"])
def test_chunks_written_directly_with_filter_masks(shuffle: bool, tmp_path: Path) -> None:
    path = tmp_path / "masks.h5"
    values = noise((64, 16), seed=1)
    with h5py.File(path, "w") as h5:
        dataset = h5.create_dataset(
            "x", (64, 16), "u2", chunks=(16, 16), compression="gzip", shuffle=shuffle
        )
        dataset[...] = values
        n_filters = 1 + shuffle
        for mask in range(1, 2**n_filters):
            part = values[16 * mask : 16 * mask + 16]
            stored = part.tobytes()
            if shuffle and not mask & 1:
                stored = part.view("u1").reshape(-1, 2).T.tobytes()
            if not mask >> (n_filters - 1) & 1:
                stored = zlib.compress(stored)
            dataset.id.write_direct_chunk((16 * mask, 0), stored, mask)
    masks = [chunk_of(path, "x", i)[2] for i in range(4)]
    assert masks[: 2**n_filters] == list(range(2**n_filters))
    assert_same(h5py_read(path, "x"), values)
    array = hs.open(path)["x"]
    assert_same(array[...], values)
    assert_same(array[::3, 5:9], values[::3, 5:9])


# --- C6: Fletcher-32, at either end of the pipeline ----------------------------------------------


def _fletcher32_first(path: Path) -> np.ndarray[Any, Any]:
    values = (noise((8, 32), seed=2) & 0xFF).astype("u2")
    dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    dcpl.set_chunk((4, 32))
    dcpl.set_fletcher32()
    dcpl.set_shuffle()
    dcpl.set_deflate(4)
    with h5py.File(path, "w") as h5:
        space, kind = h5py.h5s.create_simple(values.shape), h5py.h5t.py_create(values.dtype)
        dataset = h5py.Dataset(h5py.h5d.create(h5.id, b"x", kind, space, dcpl))
        dataset[...] = values
    return values


def test_fletcher32_before_shuffle_and_gzip(tmp_path: Path) -> None:
    path = tmp_path / "first.h5"
    values = _fletcher32_first(path)
    array = hs.open(path)["x"]
    assert [entry.name for entry in array.filters] == ["fletcher32", "shuffle", "gzip"]
    assert_same(array[...], values)
    assert_same(array[5, ::-1], values[5, ::-1])


def test_fletcher32_before_gzip_finds_a_changed_element(tmp_path: Path) -> None:
    path = tmp_path / "first.h5"
    values = _fletcher32_first(path)
    with h5py.File(path, "r+") as h5:
        dataset = h5["x"]
        mask, stored = dataset.id.read_direct_chunk((4, 0))
        shuffled = bytearray(zlib.decompress(stored))
        shuffled[10] ^= 1
        dataset.id.write_direct_chunk((4, 0), zlib.compress(bytes(shuffled)), mask)
        offset = dataset.id.get_chunk_info(1).byte_offset
    array = hs.open(path)["x"]
    assert_same(array[:4], values[:4])
    with pytest.raises(ChecksumError, match=r"/x.*chunk \(1, 0\).*checksum") as caught:
        array[...]
    error = caught.value
    assert (error.file, error.dataset) == (str(path), "/x")
    assert (error.chunk, error.byte_offset) == ((1, 0), offset)


def test_fletcher32_behind_gzip_of_noise(tmp_path: Path) -> None:
    path = tmp_path / "last.h5"
    values = noise((64, 64, 4), seed=3)
    with h5py.File(path, "w") as h5:
        h5.create_dataset("x", data=values, chunks=(32, 32, 4), compression="gzip", fletcher32=True)
    offset, stored_nbytes, mask = chunk_of(path, "x", 2)
    assert (stored_nbytes, mask) == (8207, 0)  # more than the 8192 bytes it decodes to
    array = hs.open(path)["x"]
    assert_same(array[...], values)
    for where in (0, stored_nbytes // 2, stored_nbytes - 1):
        flip(path, offset + where)
        with pytest.raises(ChecksumError) as caught:
            hs.open(path)["x"][...]
        assert caught.value.chunk == (1, 0, 0)
        assert caught.value.byte_offset == offset
        assert "(1, 0, 0)" in str(caught.value)
        flip(path, offset + where)
    assert_same(hs.open(path)["x"][...], values)


def test_a_flipped_byte_of_a_gzip_stream_is_found(tmp_path: Path) -> None:
    """Without Fletcher-32 there is still the checksum at the end of every zlib stream."""
    path = tmp_path / "gzip.h5"
    with h5py.File(path, "w") as h5:
        h5.create_dataset("x", data=noise((64, 64)), chunks=(64, 64), compression="gzip")
    offset, nbytes, _ = chunk_of(path, "x")
    for where in np.linspace(2, nbytes - 1, 23).astype(int).tolist():
        flip(path, offset + where)
        with pytest.raises(ChunkDecodeError, match=r"chunk \(0, 0\)"):
            hs.open(path)["x"][...]
        flip(path, offset + where)


# --- C9: chunks that were never written ----------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_chunks_that_were_never_written(compression: str | None, tmp_path: Path) -> None:
    path = tmp_path / "holes.h5"
    with h5py.File(path, "w") as h5:
        dataset = h5.create_dataset(
            "x", (8, 8), "f4", chunks=(4, 4), fillvalue=-1024, compression=compression
        )
        dataset[:4, :4] = 1
        h5.create_dataset("empty", (8, 8), "f4", chunks=(4, 4), fillvalue=np.nan)
        h5.create_dataset("contiguous", (8, 8), "i2", fillvalue=-7)
    file = hs.open(path)
    array = file["x"]
    assert array.n_chunks == (1, 4)
    assert array.fill_value == -1024
    want = h5py_read(path, "x")
    assert want[7, 7] == -1024
    assert_same(array[...], want)
    stats = hs.last_stats()
    assert (stats.chunks_decoded, stats.chunks_filled) == (1, 3)
    assert_same(array[::-3, 2:7], want[::-3, 2:7])
    for name in ("empty", "contiguous"):
        assert_same(file[name][...], h5py_read(path, name))


# --- C12: a file that somebody is writing, or that nobody may write ------------------------------

_WRITER = """
import sys, h5py, numpy as np
path, libver, swmr = sys.argv[1:]
h5 = h5py.File(path, "w", libver=libver or None)
h5.create_dataset("x", data=np.arange(1000).reshape(10, 100), chunks=(5, 50), compression="gzip")
h5.create_dataset("y", data=np.arange(50))
if swmr:
    h5.swmr_mode = True
h5.flush()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("libver", "swmr"), [("", ""), ("latest", ""), ("latest", "1")], ids=["old", "latest", "swmr"]
)
def test_a_file_that_another_process_has_open_for_writing(
    libver: str, swmr: str, tmp_path: Path
) -> None:
    path = tmp_path / "busy.h5"
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, path, libver, swmr],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        if not swmr:
            with pytest.raises(OSError, match="unable to"):
                h5py.File(path, "r")
        with pytest.warns(FileInUseWarning, match="writ"):
            found = hs.open(path)["x"][...]
        assert_same(found, np.arange(1000).reshape(10, 100))
        with pytest.warns(FileInUseWarning, match="writ"):
            found = hs.open(path)["y"][...]
        assert_same(found, np.arange(50))
    finally:
        writer.communicate("", timeout=30)
    assert writer.returncode == 0
    # The writer is gone: now there is nothing to warn of (and warnings are errors here).
    assert_same(hs.open(path)["x"][...], np.arange(1000).reshape(10, 100))


def test_a_file_that_may_only_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    path = folder / "x.h5"
    with h5py.File(path, "w") as h5:
        h5["x"] = np.arange(10)
    path.chmod(0o444)
    folder.chmod(0o555)
    try:
        assert_same(hs.open(path)["x"][::-1], np.arange(10)[::-1])
    finally:
        folder.chmod(0o755)


_READER = """
import sys, numpy as np, hyperslab as hs
path = sys.argv[1]
try:
    open(path, "r+b")
except OSError:
    found = hs.open(path)["x"][...]
    sys.exit(0 if found.tolist() == list(range(10)) else 3)
sys.exit(4)
"""


def test_a_file_in_a_read_only_mount(tmp_path: Path) -> None:
    if not shutil.which("unshare") or os.geteuid() != 0:
        pytest.skip("only root, with the unshare command, can mount a folder read-only")
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as h5:
        h5.create_dataset("x", data=np.arange(10), compression="gzip")
    path.chmod(0o444)
    # In a mount namespace of its own, so that nothing is left behind.
    mount = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 77; shift; exec "$@"'
    command = ["sh", "-c", mount, "sh", tmp_path, sys.executable, "-c", _READER, path]
    result = subprocess.run(
        ["unshare", "-m", *command], capture_output=True, text=True, timeout=60, check=False
    )
    if result.returncode == 77 or "unshare failed" in result.stderr:
        pytest.skip(f"no read-only mount can be made here: {result.stderr.strip()}")
    assert result.returncode == 0, result.stderr


# --- C14: indices that h5py refuses --------------------------------------------------------------


def _odd_indices() -> dict[str, Any]:
    rng = np.random.default_rng(14)
    shuffled = rng.permutation(2000)[:1500]
    mask = rng.random(2000) < 0.3
    return {
        "shuffled": shuffled,
        "duplicates": rng.integers(0, 2000, 1500),
        "few, many times": [7, 7, 1999, 7, -1, 3],
        "negative": -1 - shuffled,
        "backwards": np.s_[::-1],
        "backwards in steps": np.s_[1990:5:-7, ::-5, 3],
        "mask": mask,
        "mask and step": (mask, slice(None, None, -9), Ellipsis),
        "mask of two axes": np.add.outer(np.arange(2000), np.arange(64)) % 1001 == 0,
        "pairs": (shuffled[:300], np.arange(300) % 64),
        "apart": (shuffled[:20], slice(3, 9), np.arange(20)),
        "ellipsis": (Ellipsis, 5),
        "new axes": (None, 1234, Ellipsis, None),
        "nothing": [],
    }


@pytest.fixture(scope="module")
def many_planes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray[Any, Any]]:
    path = tmp_path_factory.mktemp("odd") / "x.h5"
    values = (np.arange(2000 * 64 * 64) % 251).astype("u1").reshape(2000, 64, 64)
    with h5py.File(path, "w") as h5:
        h5.create_dataset(
            "x", data=values, chunks=(10, 64, 64), compression="gzip", compression_opts=1
        )
    return path, values


@pytest.mark.parametrize("kind", _odd_indices())
def test_odd_indices_decode_each_chunk_once(
    kind: str, many_planes: tuple[Path, np.ndarray[Any, Any]], no_cache: None
) -> None:
    path, values = many_planes
    index = _odd_indices()[kind]
    plane = np.repeat(np.arange(2000), 64 * 64).reshape(2000, 64, 64)
    assert_same(hs.open(path)["x"][index], values[index])
    assert hs.last_stats().chunks_decoded == np.unique(plane[index] // 10).size


@pytest.fixture
def no_cache() -> Any:
    """No chunk is kept, so that every count is of this read alone."""
    from hyperslab.engine.limits import limits

    before = limits.cache_nbytes
    hs.configure(cache_nbytes=0)
    yield
    hs.configure(cache_nbytes=before)


def test_a_batch_decodes_each_chunk_once(
    many_planes: tuple[Path, np.ndarray[Any, Any]], no_cache: None
) -> None:
    path, values = many_planes
    array = hs.open(path)["x"]
    planes = [5, 3, 17, 5, 1999, 12]
    found = hs.read_many([(array, k) for k in planes])
    assert isinstance(found, np.ndarray)
    assert_same(found, values[planes])
    assert hs.last_stats().chunks_decoded == 3


# --- C22: byte order -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [">i2", ">f4", ">i8", ">f8"])
@pytest.mark.parametrize(
    "how",
    [{}, {"compression": "gzip"}, {"compression": "gzip", "shuffle": True}, {"chunks": (3, 5)}],
    ids=["contiguous", "gzip", "shuffle-gzip", "chunked"],
)
def test_big_endian_elements_become_tensors(
    dtype: str, how: dict[str, Any], tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "be.h5"
    values = (np.arange(200).reshape(10, 20) - 100).astype(dtype)
    with h5py.File(path, "w") as h5:
        h5.create_dataset("x", data=values, **how)
    array = hs.open(path)["x"]
    found = array[2:, ::3]
    assert found.dtype == values.dtype.newbyteorder("=")
    assert found.dtype.isnative
    tensor = torch.from_numpy(found)
    assert tensor.tolist() == values[2:, ::3].tolist()
    assert_same(array[...], h5py_read(path, "x"))


def test_readers_get_their_own_memory(tmp_path: Path) -> None:
    """What a read returns may be written to, and no later read sees that."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as h5:
        h5["contiguous"] = np.arange(20)
        h5.create_dataset("chunked", data=np.arange(20), chunks=(5,), compression="gzip")
        h5.create_dataset("raw", data=np.arange(20), chunks=(5,))
    for name, array in hs.open(path).items():
        read: list[Callable[[], Any]] = [
            lambda a=array: a[...],
            lambda a=array: a[2:4],
            lambda a=array: a[[3, 1]],
        ]
        for again in read:
            first = again()
            first[...] = -1
            assert (again() >= 0).all(), name
