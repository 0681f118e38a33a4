"""`convert` killed at random moments, and gone on with: in the end the result is equal.

By default three times; `make fuzz` does it twenty times.
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

import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import OutputError
from hyperslab.testing import make_imaris
from tests.images import h5py_imaris

zarr = pytest.importorskip("zarr", "3", reason="zarr 3 is not installed (the extra `zarr`)")
tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed (the extra `zarr`)")

FUZZ = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
N_KILLS = 20 if FUZZ else 3
SHAPE = (3, 2, 16, 128, 160)
FORMS: dict[str, dict[str, Any]] = {
    ".ome.zarr": {"chunks": (1, 1, 4, 32, 32), "shards": (1, 1, 16, 32, 32)},
    ".npy": {"memory": 200_000},
    ".tif": {"memory": 200_000},
}
CHILD = """
    import sys
    import hyperslab as hs
    from hyperslab.conversion import journal
    journal._SYNC_S = 0.0
    hs.convert(sys.argv[1], sys.argv[2], resume=True, threads=1, **eval(sys.argv[3]))
"""


def n_notes(folder: Path) -> int:
    try:
        return (folder / "journal.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def assert_equal(source: Path, target: Path, ending: str) -> None:
    if ending == ".ome.zarr":
        for number, level in enumerate(hs.open_image(source).levels):
            found = zarr.open_array(target / str(number), mode="r")[...]
            assert np.array_equal(found, h5py_imaris(source, number, level.shape))
    else:
        found = np.load(target) if ending == ".npy" else tifffile.imread(target)
        assert np.array_equal(found, h5py_imaris(source, 0, SHAPE))


@pytest.mark.skipif(os.name != "posix", reason="kills a process by its signal")
@pytest.mark.parametrize("ending", FORMS)
def test_killed_at_any_moment(tmp_path: Path, ending: str) -> None:
    source, target = tmp_path / "cells.ims", tmp_path / f"out{ending}"
    make_imaris(source, shape=SHAPE, chunks=(8, 32, 32))
    before = source.read_bytes()
    how = FORMS[ending]
    command = [sys.executable, "-c", textwrap.dedent(CHILD), source, target, repr(how)]
    dice = random.Random(time.time_ns() if FUZZ else 7)
    folder = tmp_path / f"out{ending}.converting"
    n_killed = 0
    while n_killed < N_KILLS:
        with subprocess.Popen(command) as child:
            give_up = time.monotonic() + 60
            known = n_notes(folder)
            while child.poll() is None and n_notes(folder) <= known:
                assert time.monotonic() < give_up
                time.sleep(0.001)
            time.sleep(dice.random() * 0.02)
            child.kill()
        assert source.read_bytes() == before
        if not target.exists():
            assert child.returncode == -signal.SIGKILL
            n_killed += 1
        elif n_killed < N_KILLS:  # it was too late: it is whole, and begun anew
            assert_equal(source, target, ending)
            os.rename(target, tmp_path / f"done-{n_killed}-{time.time_ns()}")
    with pytest.raises(OutputError, match="--resume"):
        hs.convert(source, target, threads=1, **how)
    report = hs.convert(source, target, threads=1, resume=True, **how)
    assert report is not None
    assert report.resumed_nbytes > 0
    assert not folder.exists()
    assert_equal(source, target, ending)
