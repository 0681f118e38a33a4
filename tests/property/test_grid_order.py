"""An image whose axes are in another order than its datasets': reads equal the transposed array."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hyperslab.engine.node import Grid, node_of
from hyperslab.engine.read import read
from hyperslab.index.container import FileIndex
from hyperslab.selection import select

STORED = {
    "contiguous": {},
    "chunked": {"chunks": (1, 2, 3)},
    "packed": {"chunks": (2, 2, 2), "compression": "gzip", "shuffle": True},
    "slabs": {"chunks": (1, 3, 5)},
}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("stored", STORED)
def test_every_order(tmp_path: Path, stored: str, order: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 1000, (2, 4, 3, 5), dtype=np.uint16)
    with h5py.File(tmp_path / "a.h5", "w") as h5:
        for i, volume in enumerate(pixels):
            h5.create_dataset(f"d{i}", data=volume, **STORED[stored])
    whole = pixels.transpose(0, *(axis + 1 for axis in order))
    container = FileIndex(tmp_path / "a.h5")
    grid = Grid(
        shape=whole.shape,
        dtype=whole.dtype,
        n_outer=1,
        child=lambda i: node_of(container, f"/d{i}"),
        order=order,
    )
    for index in (*INDICES, *drawn(rng, whole.shape, 20)):
        expected = whole[index]
        out = np.full(expected.shape, 7, whole.dtype)
        read([(grid, select(index, whole.shape), out)], threads=1)
        np.testing.assert_array_equal(out, expected, err_msg=str(index))


INDICES: list[Any] = [
    np.s_[...],
    np.s_[1, ::-1, 1:, ::2],
    np.s_[:, [1, 0, 1]],
    np.s_[..., [2, 0]],
    np.s_[[1, 0], :, [1, 2]],
    np.s_[:, [1, 2], [2, 0]],
    np.s_[1, [[1], [2]], :, [0, 1]],
    np.s_[:, None, 2],
]


def drawn(rng: np.random.Generator, shape: tuple[int, ...], n: int) -> list[Any]:
    """Random indices: along every axis a number, a slice, a list or a mask."""
    found = []
    for _ in range(n):
        parts: list[Any] = []
        tables = 0
        for extent in shape:
            kind = rng.integers(0, 4 if not tables else 2)
            if kind == 0:
                parts.append(int(rng.integers(-extent, extent)))
            elif kind == 1:
                low, high = sorted(rng.integers(0, extent + 1, 2))
                step = int(rng.choice([1, 2, -1]))
                parts.append(slice(low, high, step) if step > 0 else slice(None, None, -1))
            elif kind == 2:
                tables += 1
                parts.append(rng.integers(0, extent, 3).tolist())
            else:
                tables += 1
                parts.append(rng.random(extent) < 0.6)
        found.append(tuple(parts))
    return found
