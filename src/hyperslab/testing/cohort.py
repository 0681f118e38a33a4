"""A training cohort: paired MR, CT and MASK volumes in one file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperslab.testing.phantom import draw_phantom

__all__ = ["make_cohort"]

_DRAWN = ("MR", "CT", "MASK")


def _as_dtype(volume: npt.NDArray[np.float32], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """[-1, 1] as it is for floats; times 1000 (or what fits) for integers, from 0 if unsigned."""
    if dtype.kind == "f":
        return volume.astype(dtype)
    if dtype.kind == "u":
        return np.rint((volume + 1) * min(1000, np.iinfo(dtype).max // 2)).astype(dtype)
    return np.rint(volume * min(1000, np.iinfo(dtype).max)).astype(dtype)


def make_cohort(
    path: str | os.PathLike[str],
    *,
    n_cases: int = 4,
    shape: tuple[int, int, int] = (64, 64, 24),
    inputs: Sequence[str] = ("MR", "CT", "MASK"),
    dtype: npt.DTypeLike = "float32",
    compression: str | int | None = "gzip",
    chunks: tuple[int, int, int] | bool | None = None,
    slice_first: bool = False,
    seed: int = 0,
    ragged: bool = False,
) -> dict[str, Any]:
    """Write groups MR, CT and MASK with one 3-D dataset per patient in each.

    Parameters
    ----------
    path
        File to write; one that exists is replaced.
    n_cases
        Number of patients, named "1PA001", "1PB002", "1PC003", "1PA004" and so on.
    shape
        (H, W, D) of a patient: rows, columns, slices.
    inputs
        Which of "MR", "CT" and "MASK" to write.
    dtype
        Of MR and CT; MASK is uint8 with values 0 and 1. Floats lie in [-1, 1], signed integers in
        [-1000, 1000], unsigned in [0, 2000] (8-bit: as far as they reach).
    compression, chunks
        As for `h5py.Group.create_dataset`. By default gzip with the chunk shape that h5py chooses,
        which is what most files have. `chunks` is in the order of the stored axes.
    slice_first
        Store (D, H, W) instead of (H, W, D).
    seed
        The same seed gives the same patients.
    ragged
        Give every patient another H, W and number of slices.

    Returns
    -------
    dict
        `path` (str), `inputs`, `cases` (names, sorted, as h5py lists them), `axis` (the slice axis:
        2, or 0 with `slice_first`), `shapes` (case to stored shape), `dtypes` (input to NumPy
        name), `chunks` (of the first dataset, None if contiguous), `n_slices` (all cases together),
        `nbytes` (decoded, all datasets together).

    Raises
    ------
    ValueError
        For an input that is not one of the three, or n_cases below 1.

    Notes
    -----
    A (64, 64, 24) patient takes about 20 ms with gzip; a (256, 256, 180) one about 1.5 s to draw,
    and more to compress.
    """
    import h5py

    unknown = [name for name in inputs if name not in _DRAWN]
    if unknown or not inputs:
        raise ValueError(f"inputs may be MR, CT and MASK, not {unknown or 'none at all'}.")
    if n_cases < 1:
        raise ValueError(f"n_cases is {n_cases}; a cohort has at least one.")
    kind = np.dtype(dtype)
    target = os.fspath(path)
    cases = [f"1P{'ABC'[i % 3]}{i + 1:03d}" for i in range(n_cases)]
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    stored_chunks: tuple[int, ...] | None = None
    nbytes = 0
    with h5py.File(target, "w") as h5:
        for number, case in enumerate(cases):
            size = shape
            if ragged:
                size = (
                    max(1, shape[0] - 5 * (number % 4)),
                    max(1, shape[1] - (3 * number) % max(1, shape[1] // 2)),
                    max(1, shape[2] + 2 * number),
                )
            mr, ct, mask = draw_phantom(size, seed=seed, case=number)
            drawn: dict[str, npt.NDArray[Any]] = {"MR": mr, "CT": ct, "MASK": mask}
            for name in inputs:
                volume = drawn[name] if name == "MASK" else _as_dtype(drawn[name], kind)
                if slice_first:
                    volume = np.ascontiguousarray(volume.transpose(2, 0, 1))
                data = h5.create_dataset(
                    f"{name}/{case}", data=volume, chunks=chunks, compression=compression
                )
                shapes[case] = data.shape
                dtypes[name] = data.dtype.name
                nbytes += volume.nbytes
                if number == 0 and name == inputs[0]:
                    stored_chunks = data.chunks
    axis = 0 if slice_first else 2
    return {
        "path": target,
        "inputs": tuple(inputs),
        "cases": sorted(cases),
        "axis": axis,
        "shapes": shapes,
        "dtypes": dtypes,
        "chunks": stored_chunks,
        "n_slices": sum(size[axis] for size in shapes.values()),
        "nbytes": nbytes,
    }
