"""`pack` is killed at any moment, goes on, and makes the same file.

By default it is killed three times; `make fuzz` does it twenty times.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import hyperslab as hs
from tests.trees import write_tree

N_KILLS = 20 if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz" else 3


@pytest.mark.skipif(os.name != "posix", reason="kills a process by its signal")
def test_killed_at_any_moment(tmp_path: Path) -> None:
    source, target = write_tree(tmp_path / "d"), tmp_path / "a.h5"
    whole = hs.pack(source, tmp_path / "b.h5", threads=1)
    assert whole is not None
    content = (tmp_path / "b.h5").read_bytes()
    script = f"""
        import hyperslab.rewriting.spool as spool
        spool._SYNC_S = 0.0
        from hyperslab.packing import pack
        import nibabel, SimpleITK, h5py, imagecodecs
        print("ready", flush=True)
        pack({str(source)!r}, {str(target)!r}, threads=2, resume=True)
    """
    dice = random.Random()
    n_killed = 0
    for _ in range(N_KILLS):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(dice.uniform(0.0, 0.25))
            child.send_signal(signal.SIGKILL)
            killed = child.wait() == -signal.SIGKILL
        n_killed += killed
        if killed:
            assert not target.exists() or target.read_bytes() == content
        if target.exists():
            assert target.read_bytes() == content
            target.unlink()
            shutil.rmtree(tmp_path / "a.h5.packing", ignore_errors=True)
    assert n_killed > 0
    report = hs.pack(source, target, resume=True)
    assert report is not None
    assert target.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5", "b.h5", "d"]
