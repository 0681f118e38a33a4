"""`repack` killed at random moments, gone on with, and killed again: in the end the file is equal.

By default a few moments of three ways; `make fuzz` takes twenty of every codec and more.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.codecs.encode import CODECS
from hyperslab.testing import make_imaris

pytest.importorskip("hdf5plugin", reason="h5py reads lz4, zstd and blosc with hdf5plugin")

FUZZ = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
N_KILLS = 20 if FUZZ else 2

SLICES = {"access": "[:, :, k]", "memory": 800_000}
VIEWING = {"for_": "viewing", "memory": 4_000_000, "datasets": None}
WAYS: dict[str, dict[str, Any]] = {
    "none": {**SLICES, "codec": "none"},
    "viewing": {**VIEWING, "codec": "gzip"},
    "narrow": {**SLICES, "codec": "auto", "narrow": "integers"},
}
if FUZZ:
    WAYS |= {codec: {**SLICES, "codec": codec} for codec in CODECS}
    WAYS["viewing in place"] = {**VIEWING, "codec": "none"}


def write(path: Path, way: str) -> None:
    if way.startswith("viewing"):
        make_imaris(path, shape=(2, 2, 6, 500, 430) if FUZZ else (1, 2, 6, 400, 330), levels=1)
        return
    with h5py.File(path, "w") as f:
        for name in "abcd" if FUZZ else "ab":
            values = np.random.default_rng(ord(name)).integers(0, 50, (200, 150, 40))
            f.create_dataset(name, data=values.astype("f8"), compression="gzip")


def assert_equal(source: Path, target: Path, way: str) -> None:
    with h5py.File(source) as a, h5py.File(target) as b:
        names: list[str] = []
        a.visit(names.append)
        for name in names:
            assert set(a[name].attrs) == set(b[name].attrs)
            if isinstance(a[name], h5py.Dataset):
                assert np.array_equal(a[name][()], b[name][()])
    if way.startswith("viewing"):
        one, other = hs.open_image(source), hs.open_image(target)
        assert [level.shape for level in one.levels] == [level.shape for level in other.levels]
        for first, second in zip(one.levels, other.levels, strict=True):
            assert not second.computed
            assert np.array_equal(first[...], second[...])


@pytest.mark.skipif(os.name != "posix", reason="kills a process by its signal")
@pytest.mark.parametrize("way", list(WAYS))
def test_killed_at_any_moment(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperslab.pyramid.steps._PLANE", 60)
    source, target = tmp_path / "a.h5", tmp_path / "b.h5"
    write(source, way)
    before = source.read_bytes()
    script = f"""
        import time
        import hyperslab.pyramid.steps as steps, hyperslab.rewriting.spool as spool
        steps._PLANE, spool._SYNC_S = 60, 0.0
        from hyperslab.rewriting import repack
        print("ready", flush=True)
        start = time.perf_counter()
        repack({str(source)!r}, {str(target)!r}, resume=True, **{WAYS[way]!r})
        print(time.perf_counter() - start)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    whole_s = float(done.stdout.split()[1])
    dice = random.Random(time.time_ns() if FUZZ else 1)
    n_killed = 0
    while n_killed < N_KILLS:
        target.unlink(missing_ok=True)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            # The later ones find more done, and less left to do.
            time.sleep(dice.uniform(0, whole_s * 0.7))
            child.send_signal(signal.SIGKILL)
            killed = child.wait() == -signal.SIGKILL
        assert source.read_bytes() == before
        assert killed or target.exists()
        n_killed += killed
        if target.exists():  # it had its name already, or was done: from the beginning again
            assert_equal(source, target, way)
            target.unlink()
    if not target.exists():
        assert hs.repack(source, target, resume=True, **WAYS[way]) is not None
    assert_equal(source, target, way)
    assert {p.name for p in tmp_path.iterdir()} == {"a.h5", "b.h5"}
