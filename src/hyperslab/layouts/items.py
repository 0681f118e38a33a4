"""Metadata items: whatever type a writer gave them, as text or numbers, or not at all.

Writers disagree about types: one stores "255.000" as an array of one-byte strings, the next as a
string, as bytes or as a float. Everything is brought to text first, then parsed, so that one rule
holds for all. Nothing here raises over a value: what cannot be understood is None, and the caller
says in a MetadataWarning what is used instead.
"""

from __future__ import annotations

import math
import warnings
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperslab.errors import MetadataWarning

if TYPE_CHECKING:
    import h5py

__all__ = ["as_text", "moment", "number", "numbers", "read_text", "warn", "whole"]

_MOST_TEXT = 1 << 20  # elements; a longer "metadata item" is something else


def warn(file: str, message: str) -> None:
    """Issue a MetadataWarning that begins with the file's name."""
    warnings.warn(f"{file}: {message}", MetadataWarning, stacklevel=3)


def read_text(group: h5py.Group | h5py.Dataset | None, name: str) -> str | None:
    """Text of an item of `group`: an attribute, or a dataset of that name.

    Parameters
    ----------
    group
        None is treated as a group without items.
    name
        Imaris keeps values of more than 1024 characters as datasets, with "%" and "/" in the name
        written as "%p" and "%s".

    Returns
    -------
    str or None
        Without the blanks around it; None where there is no such item, where it is empty, or where
        its type cannot be read.
    """
    import h5py

    if group is None:
        return None
    try:
        if name in group.attrs:
            if math.prod(group.attrs.get_id(name).shape or ()) > _MOST_TEXT:
                return None
            return as_text(group.attrs[name])
        key = name.replace("%", "%p").replace("/", "%s")
        if isinstance(group, h5py.Group) and isinstance(group.get(key), h5py.Dataset):
            item = group[key]
            return as_text(item[()]) if item.shape is not None and item.size <= _MOST_TEXT else None
    except (OSError, RuntimeError, TypeError, ValueError, KeyError):
        # h5py has no NumPy type for it, or its bytes are damaged: as good as absent.
        return None
    return None


def as_text(value: Any) -> str | None:
    """Bring what h5py returned for an attribute to text, or None where that makes no sense.

    Numbers are written with the fewest digits that identify them in their own precision.
    """
    if isinstance(value, bytes):  # numpy.bytes_ too
        text = _decode(value)
    elif isinstance(value, str):
        text = value
    elif isinstance(value, np.ndarray):
        if value.dtype.kind == "S" and value.dtype.itemsize == 1:
            text = _decode(value.tobytes())
        elif value.dtype.kind in "SUO":
            parts = [as_text(item) or "" for item in value.ravel()]
            text = ("" if all(len(part) <= 1 for part in parts) else " ").join(parts)
        elif value.dtype.kind in "biuf":
            text = " ".join(map(str, value.ravel()))
        else:
            return None
    elif isinstance(value, bool | int | float | np.bool_ | np.number):
        text = str(value)
    else:
        return None
    return text.split("\0", 1)[0].strip() or None


def _decode(raw: bytes) -> str:
    """UTF-8, or else Latin-1, which takes any bytes."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def number(text: str | None) -> Decimal | None:
    """Exact finite number, or None.

    Decimal, so that differences of extents keep the digits that the file has: (111.6105 - 100.5) /
    90 is 0.12345, not 0.12345000000000005.
    """
    if text is None:
        return None
    try:
        value = Decimal(text if "." in text else text.replace(",", "."))
    except InvalidOperation:
        return None
    # Also refuses what a float cannot hold, so that no arithmetic on it can overflow.
    return value if value.is_finite() and math.isfinite(float(value)) else None


def whole(text: str | None) -> int | None:
    """Integer such as "128" or "128.000", or None."""
    value = number(text)
    return int(value) if value is not None and value == value.to_integral_value() else None


def numbers(text: str | None) -> tuple[float, ...] | None:
    """Finite numbers with blanks, commas or semicolons between; None if any is something else."""
    if text is None:
        return None
    values = [number(part) for part in text.replace(",", " ").replace(";", " ").split()]
    if not values or any(value is None for value in values):
        return None
    return tuple(float(value) for value in values if value is not None)


def moment(text: str | None) -> datetime | None:
    """Point in time from ISO 8601 text such as "2002-01-01 00:00:00.000", or None."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
