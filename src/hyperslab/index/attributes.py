"""Attributes as plain Python and NumPy values that outlive the HDF5 handle."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperslab.errors import MetadataWarning

if TYPE_CHECKING:
    import h5py

__all__ = ["load_attributes"]


def load_attributes(item: h5py.Dataset | h5py.Group) -> dict[str, Any]:
    """Return the attributes of `item`, decoded.

    Returns
    -------
    dict
        Scalars as int, float, complex, bool or str; arrays of numbers as `numpy.ndarray` in native
        byte order; arrays of strings as arrays of str; a null attribute as None; a reference as the
        path it points to. An attribute that the HDF5 library cannot read is left out with a
        `MetadataWarning`.
    """
    found: dict[str, Any] = {}
    for name in item.attrs:
        try:
            found[name] = _plain(item.attrs[name], item)
        except (OSError, TypeError, ValueError, RuntimeError, KeyError) as error:
            warnings.warn(
                f"{item.file.filename}: attribute {name!r} of {item.name} cannot be read ({error}) "
                "and is left out.",
                MetadataWarning,
                stacklevel=2,
            )
    return found


def _plain(value: Any, item: h5py.Dataset | h5py.Group) -> Any:
    import h5py

    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, (h5py.Reference, h5py.RegionReference)):
        return item.file[value].name if value else None
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "S":
            return np.array([_text(v) for v in value.flat], dtype=np.str_).reshape(value.shape)
        if value.dtype.kind == "O":
            plain = np.empty(value.shape, dtype=object)
            for position, entry in np.ndenumerate(value):
                plain[position] = _plain(entry, item)
            return plain
        if value.dtype.fields is None:
            return value.astype(value.dtype.newbyteorder("="), copy=False)
        return value
    if isinstance(value, np.generic) and value.dtype.fields is None:
        return value.item()
    return value


def _text(value: bytes) -> str:
    """Decode as UTF-8, or as Latin-1, which older writers used and which never fails."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")
