"""`pack` where it is interrupted, where disk or memory are short, and that its file is the same."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import CapacityError, DamagedFileError, OutputError
from hyperslab.packing import packer, restore
from hyperslab.rewriting import spool
from tests.trees import draw, write, write_case, write_tree


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("pack") / "d")


@pytest.fixture(scope="module")
def content(source: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file that one thread makes of it without a break."""
    target = tmp_path_factory.mktemp("packed") / "a.h5"
    assert hs.pack(source, target, threads=1) is not None
    return target.read_bytes()


@pytest.mark.parametrize("how", [{"threads": 2}, {"threads": 7}, {"memory": 900_000}])
def test_the_same_file_by_any_number_of_threads(
    source: Path, content: bytes, tmp_path: Path, how: dict[str, Any]
) -> None:
    report = hs.pack(source, tmp_path / "a.h5", **how)
    assert report is not None
    assert report.refused == ()
    assert (tmp_path / "a.h5").read_bytes() == content


def test_memory_limits_the_cases_in_work(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hyperslab.packing import cases

    lock, busy, most = threading.Lock(), 0, 0
    original = cases.pack_image

    def pack_image(*arguments: Any) -> Any:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        time.sleep(0.01)
        try:
            return original(*arguments)
        finally:
            with lock:
                busy -= 1

    monkeypatch.setattr(cases, "pack_image", pack_image)
    # A case takes 2 x 2 bytes a voxel to read, and 4 + 4 + 1 encoded.
    nbytes = 48 * 40 * 12 * 13
    for n in (1, 2, 3):
        most = 0
        assert hs.pack(source, tmp_path / f"{n}.h5", threads=6, memory=n * nbytes) is not None
        assert most == n


def interrupted(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, **how: Any) -> int:
    """Have a pack stop half way; return how many images it had done."""
    stop = threading.Event()
    seen = []

    def watch(now: Any) -> None:
        assert 0 < now.done <= now.total
        seen.append(now.stage)
        if now.stage == "pack" and now.done >= now.total / 2:
            stop.set()

    with monkeypatch.context() as patch:
        patch.setattr(spool, "_SYNC_S", 0.0)
        assert hs.pack(source, target, threads=1, progress=watch, cancelled=stop, **how) is None
    assert set(seen) == {"look", "pack"}
    assert not target.exists()
    return 3 * seen.count("pack")


def test_cancelled_and_gone_on_with(
    source: Path, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.h5"
    n_done = interrupted(source, target, monkeypatch)
    with pytest.raises(OutputError, match="a pack was interrupted here"):
        hs.pack(source, target)
    with pytest.raises(OutputError, match="another pack"):
        hs.pack(source, target, resume=True, maps={"MR": "zscore"})
    report = hs.pack(source, target, resume=True)
    assert report is not None
    assert report.resumed >= n_done > 0
    assert target.read_bytes() == content


def test_what_changed_meanwhile_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = write_tree(tmp_path / "d"), tmp_path / "a.h5"
    n_done = interrupted(source, target, monkeypatch)
    # Another image, a case that is new, and one that is gone.
    write(source / "p0" / "ct.nii.gz", draw((48, 40, 12), seed=77)["ct"])
    write_case(source / "p00")
    shutil.rmtree(source / "p1")
    report = hs.pack(source, target, resume=True)
    assert report is not None
    assert report.resumed == n_done - 1 - 3
    fresh = hs.pack(source, tmp_path / "b.h5")
    assert fresh is not None
    assert target.read_bytes() == (tmp_path / "b.h5").read_bytes()
    with h5py.File(target) as f:
        assert list(f["CT"]) == ["p0", "p00", "p2", "p3", "p4", "p5"]


def test_another_reference_is_another_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = write_tree(tmp_path / "d", 4), tmp_path / "a.h5"
    for case in source.iterdir():
        write(case / "ct.nii.gz", draw((48, 40, 12))["ct"], origin=(-20.0, 12.0, 41.0))
    n_done = interrupted(source, target, monkeypatch, resample="CT")
    assert n_done == 6
    write(source / "p0" / "ct.nii.gz", draw((48, 40, 12))["ct"], origin=(-20.0, 12.0, 42.0))
    report = hs.pack(source, target, resample="CT", resume=True)
    assert report is not None
    assert report.resumed == 3
    assert hs.pack(source, tmp_path / "b.h5", resample="CT") is not None
    assert target.read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_voxels_in_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header that is the same says nothing of them."""
    source, target = tmp_path / "d", tmp_path / "a.h5"
    for seed in range(4):
        write_case(source / f"p{seed}", ".mhd" if seed % 2 else ".nhdr", seed=seed)
    assert interrupted(source, target, monkeypatch) == 6
    for path in [*source.glob("p0/ct*"), *source.glob("p1/ct*")]:
        if path.suffix not in (".mhd", ".nhdr"):
            path.write_bytes(path.with_name(path.name.replace("ct", "mr")).read_bytes())
    report = hs.pack(source, target, resume=True)
    assert report is not None
    assert report.resumed == 4
    with h5py.File(target) as f:
        for case, seed in (("p0", 0), ("p1", 1)):
            ct = f["CT"][case]
            assert np.array_equal(restore(ct, ct.attrs).round(), draw(seed=seed)["mr"])


def test_nothing_is_left_of_a_pack_that_had_done_nothing(source: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    assert hs.pack(source, tmp_path / "a.h5", cancelled=stop) is None
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_is_noticed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = packer.verify_file

    def verify(path: Path, *rest: Any, **how: Any) -> None:
        with h5py.File(path) as f:
            info = f["CT/p3"].id.get_chunk_info(5)
        content = bytearray(path.read_bytes())
        content[info.byte_offset + 20] ^= 1
        path.write_bytes(content)
        original(path, *rest, **how)

    monkeypatch.setattr(packer, "verify_file", verify)
    with pytest.raises(DamagedFileError, match="/CT/p3 has another chunk 5 than was written"):
        hs.pack(source, tmp_path / "a.h5", codec="none")
    assert not (tmp_path / "a.h5").exists()


@pytest.mark.parametrize("n_cases", [12, 30])
def test_a_disk_that_fills_up(
    small_disk: Path,
    tmp_path: Path,
    n_cases: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the file is made of the spool, and while chunks are spooled."""
    source, target = write_tree(tmp_path / "d", n_cases, (44, 44, 15)), small_disk / "a.h5"
    monkeypatch.setattr(packer, "_check_room", lambda *_: None)
    with pytest.raises(CapacityError, match="no space is left"):
        hs.pack(source, target, codec="none")
    assert not target.exists()
    shutil.move(small_disk / "a.h5.packing", tmp_path / "a.h5.packing")
    report = hs.pack(source, tmp_path / "a.h5", codec="none", resume=True)
    assert report is not None
    assert report.resumed > 0
    assert hs.pack(source, tmp_path / "b.h5", codec="none") is not None
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_room_is_looked_for_first(
    source: Path,
    tmp_path: Path,
    small_disk: Path,
) -> None:
    write_tree(tmp_path / "d", 20)
    with pytest.raises(CapacityError, match="are needed for a moment"):
        hs.pack(tmp_path / "d", small_disk / "a.h5", codec="none")
    assert list(small_disk.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize("suffix", [".nii.gz", ".mha"])
def test_the_peak_stays_below_the_ceiling(tmp_path: Path, suffix: str) -> None:
    shape = (256, 256, 60)
    for seed in range(4):
        ramp = np.indices(shape, np.int16).sum(0, np.int16) + np.int16(seed)
        write(tmp_path / "d" / f"p{seed}" / f"mr{suffix}", ramp)
        write(tmp_path / "d" / f"p{seed}" / f"ct{suffix}", ramp * np.int16(2), origin=(0, 0, 0))
    script = """
        import sys
        import nibabel, SimpleITK, h5py, imagecodecs, pydicom, numpy
        import hyperslab as hs

        def rss(key):
            line = next(s for s in open("/proc/self/status") if s.startswith(key))
            return int(line.split()[1]) * 1024

        before = rss("VmRSS")
        report = hs.pack(sys.argv[1], sys.argv[2], resample="CT", codec="none", threads=4,
                         memory=int(sys.argv[3]))
        assert len(report.cases) == 4, report.refused
        print(rss("VmHWM") - before)
    """
    ceiling = 150_000_000  # room for one case: 256 x 256 x 60 x (2 + 8 + 8 + 8) is 102 MB
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), tmp_path / "d", tmp_path / "a.h5",
         str(ceiling)],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert 50_000_000 < int(done.stdout) < ceiling
