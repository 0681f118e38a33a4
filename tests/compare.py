"""What "equal to h5py" means in every test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

__all__ = ["assert_same", "h5py_read"]


def h5py_read(path: Path | str, name: str) -> np.ndarray[Any, Any]:
    """All of a dataset, as h5py reads it, in native byte order."""
    with h5py.File(path, "r") as h5:
        found = np.asarray(h5[name][()])
    return found.astype(found.dtype.newbyteorder("="))


def assert_same(found: Any, want: Any) -> None:
    """Equal to the last bit, in shape, in dtype, and in being an array or a scalar."""
    assert isinstance(found, np.ndarray) == isinstance(want, np.ndarray)
    assert found.dtype == want.dtype
    assert found.dtype.isnative
    assert found.shape == want.shape
    if found.dtype.char in "gG":  # with bytes of padding
        np.testing.assert_array_equal(found, want)
    elif found.tobytes() != want.tobytes():
        np.testing.assert_array_equal(found, want)
        raise AssertionError("equal in value, but not bit for bit")
