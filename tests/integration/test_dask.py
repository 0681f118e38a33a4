"""`to_dask`: the values that h5py reads, in whatever thread, process or cluster computes them."""

from __future__ import annotations

import math
import os
import pickle
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hyperslab as hs
from hyperslab.errors import (
    MissingExtraError,
    MissingFileError,
    StaleIndexError,
)
from hyperslab.exports import blocks
from hyperslab.exports.portable import Portable
from hyperslab.testing import make_imaris
from tests.images import h5py_imaris
from tests.pages import DOCS

dask = pytest.importorskip("dask", reason="dask is not installed (the extra `dask`)")

SHAPE = (2, 2, 5, 70, 90)
MEBI = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "cells.ims"
    make_imaris(found, shape=SHAPE, chunks=(4, 32, 32))
    return found


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of few chunks, so that a small file has many."""
    monkeypatch.setattr(blocks, "_LEAST_NBYTES", 4 * 32 * 32 * 2)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads that end with the test."""
    with ThreadPoolExecutor(2) as executor, dask.config.set(pool=executor, scheduler="threads"):
        yield executor


# --- blocks


@st.composite
def levels(draw: st.DrawFn) -> tuple[Any, ...]:
    n_outer = draw(st.integers(0, 2))
    inner = draw(st.integers(1, 4))
    chunks = [draw(st.integers(1, 300)) for _ in range(inner)]
    shape = [draw(st.integers(0, 30)) * c + draw(st.integers(0, c)) for c in chunks]
    outer = [draw(st.integers(1, 50)) for _ in range(n_outer)]
    fitting = [min(c, n) for c, n in zip(chunks, shape, strict=True)]
    return (*outer, *shape), (*[1] * n_outer, *fitting), draw(st.sampled_from([1, 2, 8])), n_outer


@given(levels())
def test_blocks_are_whole_chunks(level: tuple[Any, ...]) -> None:
    shape, chunks, itemsize, n_outer = level
    block = blocks.block_shape(shape, chunks, itemsize=itemsize, n_outer=n_outer)
    for b, c, n in zip(block, chunks, shape, strict=True):
        assert b == n or (b % c == 0 and 0 < b < n)
    assert block[:n_outer] == (1,) * n_outer
    nbytes = math.prod(block) * itemsize
    assert nbytes >= 32 * MEBI or block[n_outer:] == shape[n_outer:]
    assert nbytes < max(64 * MEBI, math.prod(chunks) * itemsize + 1)


def test_blocks_of_a_level(path: Path, small_blocks: None) -> None:
    level = hs.open_image(path).levels[0]
    assert level.chunks == (1, 1, 4, 32, 32)
    array = level.to_dask()
    assert array.chunks == ((1, 1), (1, 1), (4, 1), (32, 32, 6), (32, 32, 26))
    assert (array.shape, array.dtype) == (SHAPE, np.uint16)


# --- values


@pytest.mark.parametrize("level", [0, 1])
def test_threads(path: Path, level: int, small_blocks: None, pool: Any) -> None:
    img = hs.open_image(path)
    want = h5py_imaris(path, level, img.levels[level].shape)
    array = img.to_dask(level)
    assert array.npartitions >= 8
    assert np.array_equal(array.compute(), want)
    assert np.array_equal(array[:, 1:, ::2, 5:, [3, 1]].compute(), want[:, 1:, ::2, 5:, [3, 1]])
    assert int(array.astype("u8").sum().compute()) == int(want.astype("u8").sum())


def test_processes(path: Path, small_blocks: None) -> None:
    array = hs.open_image(path).to_dask()
    with dask.config.set(scheduler="processes", num_workers=2):
        assert np.array_equal(array.compute(), h5py_imaris(path, 0, SHAPE))


CLUSTER = """
    import os, sys
    import numpy as np
    from dask.distributed import Client, LocalCluster
    import hyperslab as hs
    from hyperslab.exports import blocks

    def main():
        blocks._LEAST_NBYTES = 1 << 14
        path, want = sys.argv[1], np.load(sys.argv[2])
        array = hs.open_image(path).to_dask()
        options = dict(n_workers=2, threads_per_worker=2, dashboard_address=None)
        with LocalCluster(**options) as cluster, Client(cluster) as client:
            client.wait_for_workers(2, timeout=60)
            who = array.map_blocks(
                lambda b: np.full((1,) * b.ndim, os.getpid()), dtype="i8",
                chunks=tuple((1,) * n for n in array.numblocks),
            )
            pids = set(np.unique(who.compute()).tolist())
            assert np.array_equal(array.compute(), want)
            # Each process opened the file once, however many blocks it read.
            from hyperslab.exports.portable import _open
            opened = client.run(lambda: _open.cache_info().misses)
        print(array.npartitions, len(pids - {os.getpid()}), sorted(opened.values()))

    if __name__ == "__main__":
        main()
"""


def test_a_cluster_of_two_processes(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed (the extra `dask`)")
    script, want = tmp_path / "cluster.py", tmp_path / "want.npy"
    script.write_text(textwrap.dedent(CLUSTER))
    np.save(want, h5py_imaris(path, 0, SHAPE))
    assert run_script(script, path, want).split() == ["48", "2", "[1,", "1]"]


def run_script(script: Path, *arguments: Path) -> str:
    run = subprocess.run(
        [sys.executable, script, *arguments],
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


# --- little is read, and little is sent


def test_only_the_slice_of_a_block_is_read(path: Path) -> None:
    img = hs.open_image(path)
    array = img.to_dask()
    assert array.chunksize == (1, 1, 5, 70, 90)
    before = hs.last_stats()
    part = array[1, 0, 2, 3:30, 40:50]
    assert hs.last_stats() is before  # nothing was read to make it
    values = part.compute(scheduler="sync")
    assert np.array_equal(values, img[1, 0, 2, 3:30, 40:50])
    _ = img[0, 0, 0, 0, 0]
    part = array[1, 1, 2, 3:30, 40:50]
    part.compute(scheduler="sync")
    assert hs.last_stats().chunks_decoded == 1


def test_the_graph_is_small(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    img = hs.open_image(path)
    few = pickle.dumps(img.to_dask())
    monkeypatch.setattr(blocks, "_LEAST_NBYTES", 1)
    array = img.to_dask()
    assert array.npartitions == 2 * 2 * 2 * 3 * 3
    many = pickle.dumps(array)
    assert len(few) < 3000
    assert len(many) - len(few) < 100
    # The level is a node of its own, beside the blocks that refer to it.
    assert len(dict(array.dask)) == array.npartitions + 1
    again = pickle.loads(many)
    assert np.array_equal(again[1, 1, 4].compute(scheduler="sync"), img[1, 1, 4])


def test_names_tell_files_and_levels_apart(path: Path) -> None:
    img = hs.open_image(path)
    name = img.to_dask().name
    assert hs.open_image(path).to_dask().name == name
    assert img.to_dask(1).name != name
    os.utime(path, ns=(1, 1))
    assert hs.open_image(path).to_dask().name != name


def test_one_opening_a_process(path: Path) -> None:
    level = hs.open_image(path).levels[1]
    first, second = (pickle.loads(pickle.dumps(Portable(level))) for _ in range(2))
    assert first.level is second.level
    assert first.level is not level
    assert (first.shape, first.ndim, first.dtype) == (level.shape, 5, level.dtype)
    assert np.array_equal(first[1, 1], level[1, 1])
    assert first[0, 0, 0, 0, 0].shape == ()


# --- what goes wrong


def test_a_changed_file_is_not_read(path: Path) -> None:
    sent = pickle.dumps(hs.open_image(path).to_dask())
    with h5py.File(path, "r+") as h5:
        h5.attrs["later"] = 1
    with pytest.raises(StaleIndexError, match=r"cells\.ims"):
        pickle.loads(sent).compute(scheduler="sync")
    path.unlink()
    with pytest.raises(MissingFileError, match=r"cells\.ims"):
        pickle.loads(sent).compute(scheduler="sync")


def test_dask_is_asked_for_by_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level = hs.open_image(path).levels[0]
    monkeypatch.setitem(sys.modules, "dask.array", None)
    with pytest.raises(MissingExtraError, match=r"hyperslab\[dask\]") as caught:
        level.to_dask()
    assert (caught.value.facts["package"], caught.value.facts["extra"]) == ("dask", "dask")


def test_images_do_without_dask() -> None:
    code = (
        "import sys, hyperslab.image, hyperslab.exports.blocks, hyperslab.exports.labelled;"
        "print([m for m in ('dask', 'xarray', 'distributed') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_no_such_level(path: Path) -> None:
    with pytest.raises(IndexError):
        hs.open_image(path).to_dask(7)


# --- the page


def test_the_page_runs(tmp_path: Path) -> None:
    text = (DOCS / "how-to" / "dask-cluster.md").read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    script = tmp_path / "page.py"
    script.write_text("\n".join(found), encoding="utf-8")
    (said,) = re.findall(r"^```text\n(.*?)^```", text, re.S | re.M)
    assert run_script(script) == said
