"""Wrong input, damage, change, and everything that goes on at the same time."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab import errors
from hyperslab.engine.limits import limits
from hyperslab.engine.pool import run_together
from tests.compare import assert_same, h5py_read

Array = np.ndarray[Any, Any]

VALUES = (np.arange(60 * 50 * 40) % 1009).astype("i4").reshape(60, 50, 40)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with dataset "g/x", gzip chunks of (16, 16, 16), "g/flat" and "g/raw"."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as h5:
        h5.create_dataset("g/x", data=VALUES, chunks=(16, 16, 16), compression="gzip")
        h5.create_dataset("g/flat", data=VALUES)
        h5.create_dataset("g/raw", data=VALUES, chunks=(1, 50, 40))
    return path


@pytest.fixture
def settings() -> Iterator[Callable[..., None]]:
    """`hs.configure`, undone at the end."""
    before = limits.threads, limits.cache_nbytes
    yield hs.configure
    hs.configure(threads=before[0], cache_nbytes=before[1])


# --- wrong input ---------------------------------------------------------------------------------


def test_missing_path(tmp_path: Path) -> None:
    with pytest.raises(errors.MissingFileError, match=r"gone\.h5") as caught:
        hs.open(tmp_path / "gone.h5")
    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.file == str(tmp_path / "gone.h5")


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(errors.MissingFileError, match="folder"):
        hs.open(tmp_path)


@pytest.mark.parametrize("content", [b"", b"x", b"no HDF5 in here\n" * 1000, b"\x89HDF"], ids=len)
def test_not_hdf5(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(errors.NotHDF5Error, match=r"notes\.txt") as caught:
        hs.open(path)
    assert isinstance(caught.value, OSError)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_pipe(tmp_path: Path) -> None:
    """Opening it would wait for a writer for ever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(errors.NotHDF5Error, match="pipe"):
        hs.open(tmp_path / "pipe")


def test_signature_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "head.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(errors.NotHDF5Error, match=r"head\.h5"):
        list(hs.open(path))


@pytest.mark.parametrize("kind", [str, Path, os.fspath])
def test_paths_of_every_kind(
    kind: Callable[[Any], Any], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    for name in (path, path.name):
        assert hs.open(kind(name)).path == str(path)


def test_missing_dataset(path: Path) -> None:
    file = hs.open(path)
    with pytest.raises(errors.MissingObjectError, match=r"x\.h5.*'/g/y'.*flat, raw, x"):
        file["g/y"]
    with pytest.raises(TypeError, match="int"):
        file[3]  # type: ignore[index]


def test_group_where_a_dataset_is_needed(path: Path) -> None:
    group = hs.open(path)["g"]
    assert isinstance(group, hs.Group)
    with pytest.raises(TypeError, match="group"):
        hs.read_many([(group, 0)])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        group[0]  # type: ignore[index]


def _odd_dtypes(h5: h5py.File) -> None:
    h5["compound"] = np.zeros(3, [("a", "i4"), ("b", "f8")])
    h5["text"] = ["one", "two"]
    h5["fixed"] = np.array([b"one", b"two"])
    h5["ragged"] = np.array([np.arange(2), np.arange(3)], h5py.vlen_dtype("i4"))
    h5["reference"] = np.array([h5["text"].ref], h5py.ref_dtype)
    h5["opaque"] = np.zeros(3, "V5")
    h5["array"] = np.zeros(3, np.dtype(("i4", (2, 2))))
    h5.create_dataset("arrays", (3,), np.dtype(("i4", (2, 2))))
    h5["time"] = np.zeros(3, "M8[s]").astype(h5py.opaque_dtype("M8[s]"))


@pytest.mark.parametrize(
    "name", ["compound", "text", "fixed", "ragged", "reference", "opaque", "arrays", "time"]
)
def test_elements_that_are_no_numbers(name: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.h5"
    with h5py.File(path, "w") as h5:
        _odd_dtypes(h5)
    file = hs.open(path)
    assert name in file
    with pytest.raises(errors.UnsupportedDtypeError, match=rf"odd\.h5.*{name}") as caught:
        file[name]
    assert isinstance(caught.value, TypeError)
    assert caught.value.dataset == f"/{name}"


def test_enumerations_are_integers(tmp_path: Path) -> None:
    path = tmp_path / "enum.h5"
    kind = h5py.enum_dtype({"a": 1, "b": 2}, "i2")
    with h5py.File(path, "w") as h5:
        h5.create_dataset("x", data=np.array([1, 2, 1]), dtype=kind)
    found = hs.open(path)["x"][...]
    assert_same(found, np.array([1, 2, 1], "i2"))


@pytest.mark.parametrize(
    "index",
    [
        60,
        (0, 0, 0, 0),
        (..., 40),
        [60],
        np.zeros((3, 3), bool),
        "x",
        1.0,
        (..., ...),
        [[1], [2, 3]],
    ],
    ids=str,
)
def test_bad_selection(index: Any, path: Path) -> None:
    array = hs.open(path)["g/x"]
    for ask in (
        lambda: array[index],
        lambda: array.read(index),
        lambda: array.lazy[index],
        lambda: hs.read_many([(array, index)]),
    ):
        with pytest.raises(errors.SelectionError) as caught:
            ask()
        assert isinstance(caught.value, IndexError)


def _bad_outs() -> dict[str, tuple[Any, str]]:
    read_only = np.zeros((3, 50), "i4")
    read_only.flags.writeable = False
    return {
        "shape": (np.zeros((3, 49), "i4"), r"shape \(3, 49\).*\(3, 50\)"),
        "ndim": (np.zeros((1, 3, 50), "i4"), "shape"),
        "dtype": (np.zeros((3, 50), "f4"), "float32.*int32"),
        "byte order": (np.zeros((3, 50), ">i4"), "dtype"),
        "read-only": (read_only, "read-only"),
        "list": ([[0] * 50] * 3, "list"),
        "bytes": (bytearray(600), "bytearray"),
    }


@pytest.mark.parametrize("kind", _bad_outs())
def test_bad_out(kind: str, path: Path) -> None:
    out, message = _bad_outs()[kind]
    array = hs.open(path)["g/x"]
    with pytest.raises(errors.OutputError, match=message) as caught:
        array.read(np.s_[:3, :, 0], out=out)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(errors.OutputError):
        hs.read_many([(array, np.s_[:3, :, 0])], out=[out])
    assert not np.asarray(out).any()


def test_bad_out_for_a_batch(path: Path) -> None:
    array = hs.open(path)["g/x"]
    with pytest.raises(errors.OutputError, match=r"for 1 .*2 parts"):
        hs.read_many([(array, 0), (array, 1)], out=np.zeros((1, 50, 40), "i4"))
    with pytest.raises(errors.OutputError):
        hs.read_many([(array, 0), (array, 1)], out=np.zeros((2, 50, 41), "i4"))


@pytest.mark.parametrize("keywords", [{"threads": 0}, {"cache_nbytes": -1}])
def test_bad_settings(keywords: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        hs.configure(**keywords)


# --- files that change ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["g/x", "g/flat", "g/raw"])
@pytest.mark.parametrize("touched", [False, True], ids=["indexed", "read before"])
def test_changed_file(touched: bool, name: str, path: Path) -> None:
    file = hs.open(path)
    array = file[name]
    if touched:
        array[3]
    with h5py.File(path, "r+") as h5:
        h5[name][3] = -5
    with pytest.raises(errors.StaleIndexError, match=r"x\.h5.*refresh") as caught:
        array[3]
    assert isinstance(caught.value, OSError)
    with pytest.raises(errors.StaleIndexError):
        np.asarray(array.lazy[3])
    file.refresh()
    assert (array[3] == -5).all()
    assert_same(array[...], h5py_read(path, name))


def test_replaced_file_of_another_shape(path: Path, tmp_path: Path) -> None:
    file = hs.open(path)
    array = file["g/x"]
    view = array.lazy[-1]
    array[...]
    with h5py.File(tmp_path / "new.h5", "w") as h5:
        h5.create_dataset("g/x", data=np.arange(20.0).reshape(4, 5), chunks=(2, 2))
    os.replace(tmp_path / "new.h5", path)
    for ask in (lambda: array[...], lambda: np.asarray(view), lambda: list(file["g"])):
        with pytest.raises(errors.StaleIndexError):
            ask()
    file.refresh()
    assert (array.shape, array.dtype, array.chunks) == ((4, 5), np.dtype("f8"), (2, 2))
    assert_same(array[...], np.arange(20.0).reshape(4, 5))
    assert list(file["g"]) == ["x"]
    # A view keeps a selection of the old shape: it must not quietly read something else.
    with pytest.raises(errors.HyperslabError):
        np.asarray(view)


def test_deleted_file(path: Path) -> None:
    array = hs.open(path)["g/x"]
    array[0]
    path.unlink()
    with pytest.raises(errors.MissingFileError, match=r"x\.h5"):
        array[0]


def test_dataset_that_goes_away(path: Path) -> None:
    file = hs.open(path)
    array = file["g/x"]
    with h5py.File(path, "r+") as h5:
        del h5["g/x"]
    file.refresh()
    with pytest.raises(errors.MissingObjectError, match="/g/x"):
        array[0]


def test_new_values_after_opening_anew(path: Path) -> None:
    """Chunks decoded before are those of another file, though it has the same name."""
    before = hs.open(path)["g/x"][3, 4]
    with h5py.File(path, "r+") as h5:
        h5["g/x"][3] = -5
    after = hs.open(path)["g/x"][3, 4]
    assert (before != after).all()
    assert (after == -5).all()


def test_a_file_that_this_process_has_open(path: Path) -> None:
    with h5py.File(path, "r") as h5:
        want = h5["g/x"][5]
        assert_same(hs.open(path)["g/x"][5], want)
        assert_same(h5["g/x"][5], want)


@pytest.mark.filterwarnings("ignore::hyperslab.errors.FileInUseWarning")
def test_a_file_that_this_process_writes(path: Path) -> None:
    with h5py.File(path, "r+") as h5:
        assert_same(hs.open(path)["g/x"][5], VALUES[5])
        h5["g/x"][5] = 0
        h5.flush()
        assert not hs.open(path)["g/x"][5].any()
        h5["g/x"][6] = 0
    assert not h5py_read(path, "g/x")[5:7].any()


# --- damage --------------------------------------------------------------------------------------


def _claim_to_be_whole(path: Path) -> None:
    """Write the file's size into its superblock, so that the HDF5 library opens it though cut."""
    with path.open("r+b") as stream:
        head = stream.read(48)
        assert head[8] == 0  # superblock version 0: end of file address at byte 40
        stream.seek(40)
        stream.write(path.stat().st_size.to_bytes(8, "little"))


@pytest.mark.parametrize("name", ["x", "flat"])
def test_truncated_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "cut.h5"
    with h5py.File(path, "w", libver="earliest") as h5:
        if name == "flat":
            h5.create_dataset("flat", data=VALUES)
            first = h5["flat"].id.get_offset()
        else:
            h5.create_dataset("x", data=VALUES, chunks=(16, 16, 16), compression="gzip")
            last = max(
                (h5["x"].id.get_chunk_info(i) for i in range(h5["x"].id.get_num_chunks())),
                key=lambda info: info.byte_offset,
            )
            first = last.byte_offset
    os.truncate(path, first + 10)
    with pytest.raises(errors.HyperslabError, match=r"cut\.h5.*truncated"):
        hs.open(path)[name][...]
    _claim_to_be_whole(path)
    with pytest.raises(errors.DamagedFileError, match=rf"cut\.h5.*/{name}") as caught:
        hs.open(path)[name][...]
    error = caught.value
    assert (error.file, error.dataset) == (str(path), f"/{name}")
    if name == "x":  # the HDF5 library opens it: we find out which chunk is gone
        assert error.byte_offset == first
        assert str(first) in str(error)
        chunk = tuple(i // 16 for i in last.chunk_offset)
        assert error.chunk == chunk
        assert str(chunk) in str(error)
        # What is still there can be read.
        assert_same(hs.open(path)["x"][:16], VALUES[:16])


def test_truncated_at_any_place(path: Path, tmp_path: Path) -> None:
    """Always one of our errors, or the right values."""
    size = path.stat().st_size
    for keep in np.linspace(0, size - 1, 40).astype(int).tolist():
        cut = tmp_path / f"{keep}.h5"
        shutil.copy(path, cut)
        os.truncate(cut, keep)
        if keep > 48:
            _claim_to_be_whole(cut)
        for name in ("x", "flat", "raw"):
            with contextlib.suppress(errors.HyperslabError):
                assert_same(hs.open(cut)["g"][name][...], VALUES)


def test_corrupted_chunk(path: Path) -> None:
    with h5py.File(path) as h5:
        info = h5["g/x"].id.get_chunk_info(7)
    with path.open("r+b") as stream:
        stream.seek(info.byte_offset)
        stream.write(b"\xa5" * (info.size // 2))
    chunk = tuple(i // 16 for i in info.chunk_offset)
    array = hs.open(path)["g/x"]
    with pytest.raises(errors.ChunkDecodeError, match=r"x\.h5: /g/x, chunk.*gzip") as caught:
        array[...]
    error = caught.value
    assert (error.dataset, error.chunk, error.byte_offset) == ("/g/x", chunk, info.byte_offset)
    for fact in (str(chunk), str(info.byte_offset)):
        assert fact in str(error)
    # It stays an error (nothing half decoded is kept), and only for those who need the chunk.
    with pytest.raises(errors.ChunkDecodeError):
        array[tuple(i + 3 for i in info.chunk_offset)]
    assert_same(array[-1], VALUES[-1])
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.chunk, copy.file) == (str(error), error.chunk, error.file)


def test_one_bad_chunk_among_many_threads(path: Path, settings: Callable[..., None]) -> None:
    """The error comes out, nobody waits for ever, and the next read works."""
    with h5py.File(path) as h5:
        info = h5["g/x"].id.get_chunk_info(20)
    sound = path.read_bytes()
    with path.open("r+b") as stream:
        stream.seek(info.byte_offset)
        stream.write(bytes(info.size))
    for cache_nbytes in (0, 64 << 20):
        settings(cache_nbytes=cache_nbytes)
        array = hs.open(path)["g/x"]
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(array.read, np.s_[1:, 1:, 1:], threads=3) for _ in range(8)]
            for result in asked:
                assert isinstance(result.exception(timeout=60), errors.ChunkDecodeError)
    path.write_bytes(sound)
    assert_same(hs.open(path)["g/x"][...], VALUES)


# --- pickling ------------------------------------------------------------------------------------

_UNPICKLER = """
import pickle, sys
import numpy as np
objects = pickle.load(sys.stdin.buffer)
found = [
    np.asarray(objects["file"]["g/x"][2, 3:5]),
    np.asarray(objects["group"]["x"][2, 3:5]),
    np.asarray(objects["array"][2, 3:5]),
    np.asarray(objects["view"]),
]
pickle.dump(found, sys.stdout.buffer)
"""


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
def test_pickles_are_small_and_work_in_another_process(used: bool, path: Path) -> None:
    file = hs.open(path)
    array = file["g/x"]
    objects = {"file": file, "group": file["g"], "array": array, "view": array.lazy[2][3:5]}
    if used:
        for thing in (array[...], list(file["g"]), array.attrs, np.asarray(objects["view"])):
            assert thing is not None
    for name, thing in objects.items():
        assert len(pickle.dumps(thing)) < 2048, name
        copy = pickle.loads(pickle.dumps(thing))
        assert type(copy) is type(thing)
        assert repr(copy) == repr(thing)
    child = subprocess.run(
        [sys.executable, "-c", _UNPICKLER],
        input=pickle.dumps(objects),
        capture_output=True,
        timeout=60,
        check=True,
    )
    for found in pickle.loads(child.stdout):
        assert_same(found, VALUES[2, 3:5])


# --- at the same time ----------------------------------------------------------------------------


def test_many_threads_that_want_one_chunk_decode_it_once(
    tmp_path: Path, settings: Callable[..., None]
) -> None:
    settings(cache_nbytes=256 << 20)
    path = tmp_path / "one.h5"
    values = np.random.default_rng(0).integers(0, 50, (64, 256, 256)).astype("u2")
    with h5py.File(path, "w") as h5:
        h5.create_dataset(
            "x", data=values, chunks=values.shape, compression="gzip", compression_opts=1
        )
    array = hs.open(path)["x"]
    n = 8
    together = threading.Barrier(n)

    def read(k: int) -> tuple[Array, Any]:
        together.wait(30)
        return array[k], hs.last_stats()

    with ThreadPoolExecutor(n) as pool:
        results = list(pool.map(read, range(n), timeout=60))
    for k, (found, _) in enumerate(results):
        assert_same(found, values[k])
    assert sum(stats.chunks_decoded for _, stats in results) == 1
    assert sum(stats.chunks_cached for _, stats in results) == n - 1


def test_stats_are_of_the_thread_that_asks(path: Path) -> None:
    array = hs.open(path)["g/x"]
    array[0:16, 0:16, 0:16]
    mine = hs.last_stats()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: hs.last_stats()).result() is mine  # it has read nothing yet
        theirs = pool.submit(lambda: (array[:], hs.last_stats())[1]).result()
    assert hs.last_stats() is mine
    assert mine.bytes_returned == 16**3 * 4
    assert theirs.bytes_returned == VALUES.nbytes


def test_random_reads_by_many_threads(path: Path, settings: Callable[..., None]) -> None:
    """With a cache that holds a few chunks only, so that they come and go all the time."""
    settings(cache_nbytes=5 * 16**3 * 4)
    file = hs.open(path)
    arrays = [file["g/x"], file["g/flat"], file["g/raw"]]

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            array = arrays[rng.integers(3)]
            a, b = np.sort(rng.integers(0, 60, 2))
            index: Any = [np.s_[a:b], np.s_[..., a % 40], np.s_[rng.integers(0, 60, 9), ::-2]][
                rng.integers(3)
            ]
            assert_same(array.read(index, threads=int(rng.integers(1, 5))), VALUES[index])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(read, range(12), timeout=120))


def test_a_read_inside_a_pool_inside_a_read(path: Path) -> None:
    """Every helper of our own pool is busy with a read that asks for helpers."""
    array = hs.open(path)["g/x"]
    results: list[Array] = []
    tickets = iter(range(80))

    def work() -> None:
        for _ in tickets:
            inner = ThreadPoolExecutor(2)
            with inner:
                asked = [inner.submit(array.read, threads=4) for _ in range(2)]
                results.extend(result.result(60) for result in asked)
            results.append(array.read(threads=4))

    lock = threading.Lock()
    drawn = tickets
    tickets = iter(lambda: _next(lock, drawn), None)  # type: ignore[assignment]
    runner = threading.Thread(target=run_together, args=(work, 16, threading.Event()), daemon=True)
    runner.start()
    runner.join(120)
    assert not runner.is_alive(), "reads inside reads wait for each other"
    assert len(results) == 3 * 80
    assert all((found == VALUES).all() for found in results)


def _next(lock: threading.Lock, tickets: Iterator[int]) -> int | None:
    with lock:
        return next(tickets, None)


_FORKER = """
import os, random, signal, sys, threading, time, warnings
import numpy as np
import hyperslab as hs

warnings.simplefilter("ignore", DeprecationWarning)
path, n_forks = sys.argv[1], int(sys.argv[2])
file = hs.open(path)
arrays = [file["g/x"], file["g/flat"], file["g/raw"]]
want = arrays[0][...]
stop, wrong = threading.Event(), []

def read(seed):
    rng = random.Random(seed)
    while not stop.is_set():
        k = rng.randrange(60)
        array = rng.choice(arrays)
        if rng.random() < 0.2:
            # Visits the HDF5 library, so that a fork may come in the middle of that.
            array = hs.open(path)["g/x"]
        if not (array.read(np.s_[k], threads=2) == want[k]).all():
            wrong.append(seed)

def child():
    signal.alarm(30)
    for array in (*arrays, hs.open(path)["g/x"]):
        for threads in (1, 3):
            if not (array.read(threads=threads) == want).all():
                return 3
    if set(hs.open(path)["g"]) != {"x", "flat", "raw"}:
        return 4
    return 0

readers = [threading.Thread(target=read, args=(i,)) for i in range(4)]
for reader in readers:
    reader.start()
codes = []
for i in range(n_forks):
    time.sleep(random.Random(i).random() * 0.01)
    pid = os.fork()
    if pid == 0:
        code = 5
        try:
            code = child()
        finally:
            os._exit(code)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
stop.set()
for reader in readers:
    reader.join(30)
print(codes, wrong)
sys.exit(any(codes) or bool(wrong) or any(reader.is_alive() for reader in readers))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("cache_mb", [0, 64])
def test_fork_while_threads_read(cache_mb: int, path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _FORKER, path, "25"],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env={**os.environ, "HYPERSLAB_CACHE_MB": str(cache_mb)},
    )
    assert result.returncode == 0, result.stdout + result.stderr


_FEW_DESCRIPTORS = """
import os, resource, sys
from concurrent.futures import ThreadPoolExecutor
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import hyperslab as hs

files = [hs.open(os.path.join(sys.argv[1], name)) for name in sorted(os.listdir(sys.argv[1]))]
assert len(files) == 200
most = 0
for _ in range(2):
    for i, file in enumerate(files):
        for name in ("x", "flat"):
            assert (file[name][...] == i).all()
            assert (file[name][::2, 1] == i).all()
        most = max(most, len(os.listdir("/proc/self/fd")))
with ThreadPoolExecutor(8) as pool:
    list(pool.map(lambda file: file["x"].read(threads=2), files))
found = hs.read_many([(file[name], 3) for file in files for name in ("x", "flat")])
assert found[:, 0].tolist() == [i for i in range(200) for _ in range(2)]
print(most)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc/self/fd")
def test_many_files_with_few_descriptors(tmp_path: Path) -> None:
    for i in range(200):
        with h5py.File(tmp_path / f"{i:03}.h5", "w") as h5:
            h5.create_dataset("x", data=np.full((8, 8), i), chunks=(4, 8), compression="gzip")
            h5.create_dataset("flat", data=np.full((8, 8), i))
    result = subprocess.run(
        [sys.executable, "-c", _FEW_DESCRIPTORS, tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 60


def test_opening_reads_next_to_nothing(path: Path) -> None:
    """`hs.open` looks for the signature; it takes neither h5py nor a visit to the library."""
    code = (
        "import sys, hyperslab as hs; file = hs.open(sys.argv[1]); "
        "sys.exit('h5py' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == 0


_FROM_A_CALLBACK = """
import sys, threading
import h5py, numpy as np
import hyperslab as hs
path = sys.argv[1]
stop = threading.Event()

def read_on():
    while not stop.is_set():
        file = hs.open(path)
        for i in range(0, 40, 7):
            file[f"d{i}"][3]

reader = threading.Thread(target=read_on)
reader.start()
file, found = hs.open(path), []
with h5py.File(path) as h5:
    for _ in range(3):
        h5.visititems(lambda name, item: found.append(int(hs.open(path)[name][2])))
stop.set()
reader.join()
assert found == [2] * 120
"""


def test_reading_inside_an_h5py_callback_while_others_read(tmp_path: Path) -> None:
    """The callback runs with h5py's lock held: nothing of ours may wait for it the other way."""
    path = tmp_path / "many.h5"
    with h5py.File(path, "w") as h5:
        for i in range(40):
            h5.create_dataset(f"d{i}", data=np.arange(100), chunks=(10,), compression="gzip")
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", _FROM_A_CALLBACK, path],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr


_FIRST_USE = """
import importlib.abc, os, sys, threading, time

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "h5py._hl.base":  # by now h5py's lock exists, and its import is half way
            inside.set()
            time.sleep(0.5)

inside = threading.Event()
sys.meta_path.insert(0, Slow())
from hyperslab.index.session import library_lock

def enter():
    with library_lock:
        import h5py
        h5py.get_config()

first = threading.Thread(target=lambda: __import__("h5py"), daemon=True)
first.start()
assert inside.wait(60)
second = threading.Thread(target=enter, daemon=True)
second.start()
for thread in (first, second):
    thread.join(20)
    if thread.is_alive():
        os.write(2, b"each waits for the other")
        os._exit(1)  # the interpreter could not end either
"""


def test_first_uses_of_the_library_do_not_wait_for_each_other() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _FIRST_USE], capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr
