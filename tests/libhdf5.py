"""The HDF5 library that h5py has loaded, for the few things that h5py does not offer."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import h5py
import pytest

__all__ = ["CHUNK_INDEXES", "chunk_index", "leave_edges_unfiltered"]

# H5D_chunk_index_t of H5Ddevelop.h, in its order.
CHUNK_INDEXES = [
    "v1 B-tree",
    "single chunk",
    "implicit",
    "fixed array",
    "extensible array",
    "v2 B-tree",
]

_DONT_FILTER_PARTIAL_CHUNKS = 2


def _library() -> ctypes.CDLL:
    """Load what is loaded already; skips the test where it cannot be found."""
    maps = Path("/proc/self/maps")
    loaded = maps.read_text().split() if maps.exists() else []
    found = dict.fromkeys(p for p in loaded if re.search(r"/libhdf5(?!_hl)[^/]*\.so[^/]*$", p))
    # Other packages (netCDF4, which xarray may load) bring libraries of their own, to which h5py's
    # identifiers mean nothing. h5py's wheels have theirs in h5py.libs.
    ours = [path for path in found if "/h5py.libs/" in path] or list(found)
    if len(ours) == 1:
        return ctypes.CDLL(ours[0])
    pytest.skip("the HDF5 library that h5py has loaded cannot be found in /proc/self/maps")


def _call(name: str, *arguments: object) -> None:
    function = getattr(_library(), name, None)
    if function is None:
        pytest.skip(f"this build of the HDF5 library has no {name}")
    if function(*arguments) < 0:
        raise OSError(f"{name} failed")


def chunk_index(dataset: h5py.Dataset) -> str:
    """How the dataset's chunks are indexed, as one of `CHUNK_INDEXES`."""
    found = ctypes.c_int(-1)
    _call("H5Dget_chunk_index_type", ctypes.c_int64(dataset.id.id), ctypes.byref(found))
    return CHUNK_INDEXES[found.value]


def leave_edges_unfiltered(dcpl: h5py.h5p.PropDCID) -> None:
    """Make datasets created with `dcpl` store partial edge chunks without any filter."""
    options = ctypes.c_uint(_DONT_FILTER_PARTIAL_CHUNKS)
    _call("H5Pset_chunk_opts", ctypes.c_int64(dcpl.id), options)
