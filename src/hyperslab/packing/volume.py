"""An image before it is packed: what its header says, and its voxels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.packing.grid import Grid, Turn

__all__ = ["Header", "Volume", "need_package"]


def need_package(package: str, error: ImportError) -> Exception:
    """Return the error for a package that reads images and is not installed."""
    from hyperslab.errors import MissingExtraError

    return MissingExtraError(
        f"hyperslab pack reads these images with {package}, which is not installed here ({error}). "
        "Install it with: pip install 'hyperslab[medical]' (in a clone of it: "
        "pip install '.[medical]')",
        package=package,
        extra="medical",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What an image's header says.

    Attributes
    ----------
    kind
        "NIfTI", "MetaImage", "NRRD" or "DICOM".
    grid, turn
        Where its voxels lie, and how its array is brought into that order.
    dtype
        Of the elements as the file has them.
    itemsize
        Bytes that a voxel takes when it has been read.
    modality
        "MR", "CT" and so on, where the file says so; else "".
    files
        All of its files, in the order of slices where there is one for each.
    note
        Something worth knowing, else "".
    """

    kind: str
    grid: Grid
    turn: Turn
    dtype: np.dtype[Any]
    itemsize: int
    modality: str
    files: tuple[str, ...]
    note: str = ""

    @property
    def n_voxels(self) -> int:
        """How many voxels it has."""
        rows, columns, slices = self.grid.shape
        return rows * columns * slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """An image that has been read.

    Attributes
    ----------
    values
        (rows, columns, slices), as the file has them; a view.
    slope, intercept
        What the file says they mean: ``values * slope + intercept``.
    grid
        Where they lie.
    owner
        What `values` is a view of, if that has to be kept.
    """

    values: NDArray[Any]
    slope: float
    intercept: float
    grid: Grid
    owner: object = field(default=None, repr=False)

    @property
    def is_whole(self) -> bool:
        """Whether all values are whole numbers by their type."""
        whole = self.values.dtype.kind in "biu"
        return whole and self.slope == 1 and self.intercept == int(self.intercept)

    def real(self, region: tuple[slice, ...]) -> NDArray[np.float64]:
        """Return what the values of a region mean, float64; new memory."""
        piece = self.values[region].astype(np.float64)
        if self.slope != 1:
            piece *= self.slope
        if self.intercept != 0:
            piece += self.intercept
        return piece
