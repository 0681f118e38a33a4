"""Images as h5py has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray


def h5py_imaris(path: Path, level: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """A level of an Imaris file, `shape` its true (T, C, Z, Y, X), padding cut off."""
    n_t, n_c, z, y, x = shape
    with h5py.File(path) as h5:
        root = h5[f"DataSet/ResolutionLevel {level}"]
        whole = [
            [root[f"TimePoint {t}/Channel {c}/Data"][:z, :y, :x] for c in range(n_c)]
            for t in range(n_t)
        ]
    return np.array(whole)
