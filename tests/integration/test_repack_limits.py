"""`repack` where memory or disk is short, and the codec that it chooses."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import CapacityError
from hyperslab.rewriting import rewrite
from hyperslab.rewriting.rewrite import plan_file


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cases of 48 MB, in chunks and with gzip as h5py chooses them."""
    path = tmp_path_factory.mktemp("cohort") / "cohort.h5"
    ramp = np.arange(256, dtype="f4")
    case = ramp[:, None, None] + 0.5 * ramp[:, None] + np.arange(180, dtype="f4")
    with h5py.File(path, "w") as f:
        for name in ("MR/a", "MR/b"):
            f.create_dataset(name, data=case, compression="gzip", compression_opts=1)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize("memory", [64_000_000, 256_000_000, 1_000_000_000])
def test_the_peak_stays_below_the_ceiling(cohort: Path, tmp_path: Path, memory: int) -> None:
    script = """
        import sys
        from hyperslab.rewriting import repack
        repack(sys.argv[1], sys.argv[2], access="[:, :, k]", codec=sys.argv[3],
               memory=int(sys.argv[4]), threads=4)
        line = next(s for s in open("/proc/self/status") if s.startswith("VmHWM"))
        print(int(line.split()[1]) * 1024)
    """
    for codec in ("none", "lz4"):
        target = tmp_path / f"{codec}.h5"
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), cohort, target, codec, str(memory)],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert int(done.stdout) < memory + 150_000_000
        assert hs.open(target)["MR/a"].chunks == (256, 256, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize("chunks", [None, (32, 32, 32)])
def test_pages_of_the_file_do_not_add_up(tmp_path: Path, chunks: tuple[int, ...] | None) -> None:
    """What is read through a map of the file counts as memory, until it is let go."""
    source = tmp_path / "a.h5"
    with h5py.File(source, "w") as f:
        data = f.create_dataset("x", (256, 256, 800), "f4", chunks=chunks)
        for i in range(0, 256, 32):
            data[i : i + 32] = np.arange(i * 256 * 800, (i + 32) * 256 * 800).reshape(32, 256, 800)
    script = """
        import sys
        from hyperslab.rewriting import repack
        repack(sys.argv[1], sys.argv[2], access=sys.argv[3], codec="none", memory=32_000_000)
        line = next(s for s in open("/proc/self/status") if s.startswith("VmHWM"))
        print(int(line.split()[1]) * 1024)
    """
    for access in ("[:, :, k]", "patch 60x60x60"):
        target = tmp_path / "b.h5"
        target.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), source, target, access],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert int(done.stdout) < 32_000_000 + 150_000_000
        with h5py.File(target) as f:
            assert np.array_equal(f["x"][77], np.arange(77 * 204800, 78 * 204800).reshape(256, 800))


# While chunks are written, or encoded ones spooled; when the file is made of these; and while HDF5
# copies what is not rewritten.
@pytest.mark.parametrize(
    ("codec", "n_datasets", "which"),
    [("none", 12, "/x*"), ("gzip", 12, "/x*"), ("gzip", 5, "/x*"), ("none", 12, "/x0")],
)
def test_a_disk_that_fills_up(
    small_disk: Path,
    tmp_path: Path,
    codec: str,
    n_datasets: int,
    which: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = tmp_path / "a.h5", small_disk / "b.h5"
    values = np.random.default_rng(0).integers(0, 2**31, (64, 64, 40)).astype("i4")
    with h5py.File(source, "w") as f:
        for i in range(n_datasets):
            f.create_dataset(f"x{i}", data=values, chunks=(8, 8, 8))
        f.create_dataset("copied", data=values.reshape(-1))
    before = source.read_bytes()
    monkeypatch.setattr(rewrite, "_check_room", lambda *_: None)
    how: dict[str, Any] = {"access": "[:, :, k]", "codec": codec, "memory": 2_000_000}
    how["datasets"] = which
    with pytest.raises(CapacityError, match="no space is left"):
        hs.repack(source, target, **how)
    assert not target.exists()
    assert source.read_bytes() == before
    # What could be done is gone on with where there is room.
    if which == "/x0":
        assert list(small_disk.iterdir()) == []  # nothing had been done
    else:
        shutil.move(small_disk / "b.h5.repacking", tmp_path / "b.h5.repacking")
    target = tmp_path / "b.h5"
    assert hs.repack(source, target, **how, resume=True) is not None
    with h5py.File(target) as f:
        for name in f:
            assert np.array_equal(f[name][...].ravel(), values.ravel())


def test_room_is_looked_for_first(tmp_path: Path, small_disk: Path) -> None:
    source = tmp_path / "a.h5"
    with h5py.File(source, "w") as f:
        f.create_dataset("x", data=np.ones((200, 200, 200)), chunks=(50, 50, 50))
    with pytest.raises(CapacityError, match="are needed for a moment"):
        hs.repack(source, small_disk / "b.h5", access="[k]")
    assert list(small_disk.iterdir()) == []


def test_the_codec_is_chosen_by_a_sample(tmp_path: Path) -> None:
    smooth = np.broadcast_to(np.arange(50, dtype="i4"), (60, 70, 50))
    noise = np.random.default_rng(0).integers(-(2**31), 2**31, smooth.shape).astype("i4")
    for name, values, codec in (("smooth", smooth, "gzip"), ("noise", noise, "none")):
        source, target = tmp_path / f"{name}.h5", tmp_path / f"{name}-fast.h5"
        with h5py.File(source, "w") as f:
            f["x"] = values
        plan = plan_file(source, access="[:, :, k]")
        assert plan.rewritten[0].codec.name == codec
        assert "times smaller" in plan.why
        report = hs.repack(source, target, access="[:, :, k]", slice_first=True)
        assert report is not None
        assert report.plan.rewritten[0].codec.name == codec
        with h5py.File(target) as f:
            assert f["x"].compression == (codec if codec == "gzip" else None)
            assert np.array_equal(f["x"], values.transpose(2, 0, 1))
