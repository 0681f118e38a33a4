"""From stored elements to those of a tensor: which dtypes are possible, and the conversion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyperslab.errors import SampleError

__all__ = ["DTypes", "check_dtype", "convert", "tensor_dtypes"]

DType = str | type | np.dtype | torch.dtype | None
DTypes = DType | Mapping[str, DType]

_DEFAULT = np.dtype(np.float32)


def tensor_dtypes(names: tuple[str, ...], dtype: DTypes) -> dict[str, np.dtype | None]:
    """Return the tensors' dtype for every input of `names`; None: as stored.

    Raises
    ------
    TypeError
        NumPy and PyTorch do not both have a dtype.
    ValueError
        A mapping names an input that is not there.
    """
    if not isinstance(dtype, Mapping):
        return dict.fromkeys(names, _as_numpy(dtype))
    unknown = [name for name in dtype if name not in names]
    if unknown:
        raise ValueError(f"dtype names {unknown}, but the inputs are {list(names)}")
    return {name: _as_numpy(dtype[name]) if name in dtype else _DEFAULT for name in names}


def _as_numpy(dtype: DType) -> np.dtype | None:
    if dtype is None:
        return None
    try:
        if isinstance(dtype, torch.dtype):
            return torch.empty(0, dtype=dtype).numpy().dtype
        found = np.dtype(dtype).newbyteorder("=")
        torch.from_numpy(np.empty(0, found))
    except TypeError as error:
        raise TypeError(
            f"dtype {dtype!r} is none that NumPy and PyTorch share ({error}). Read as float32, for "
            "instance, and convert the batch."
        ) from error
    return found


def check_dtype(stored: np.dtype, dtype: np.dtype | None, *, path: str, dataset: str) -> None:
    """Raise `SampleError` if elements stored as `stored` cannot become a tensor of `dtype`."""
    if stored.kind == "c" and dtype is not None and dtype.kind != "c":
        reason = "which would lose the imaginary part"
    elif dtype is None and _is_foreign(stored):
        reason = "but PyTorch has no such dtype"
    else:
        return
    raise SampleError(
        f"{path}: {dataset} holds {stored}, {reason}. Say what its tensors are to be: dtype=...",
        file=path,
        dataset=dataset,
    )


def _is_foreign(dtype: np.dtype) -> bool:
    try:
        torch.from_numpy(np.empty(0, dtype))
    except TypeError:
        return True
    return False


def convert(
    stored: NDArray[Any], dtype: np.dtype | None
) -> tuple[NDArray[Any], tuple[int, ...] | None]:
    """Return `stored` as `dtype`, and where an integer dtype fails to hold its value.

    The result is `stored` itself if nothing is to be done. To floats values are rounded, to bool
    they become "not zero"; to integers they have to be exact: the second item is the index of the
    first element that is not, or None.
    """
    if dtype is None or stored.dtype == dtype:
        return stored, None
    if dtype.kind not in "iu" or np.can_cast(stored.dtype, dtype, "safe"):
        return stored.astype(dtype), None
    with np.errstate(invalid="ignore"):  # not-a-number has no integer: found below
        converted = stored.astype(dtype)
    wrong = converted != stored  # NumPy compares values, across signs too
    if not wrong.any():
        return converted, None
    return converted, tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
