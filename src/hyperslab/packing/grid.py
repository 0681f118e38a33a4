"""Where the voxels of an image lie: one convention for all that is packed.

Axes are (rows, columns, slices). Row indices grow towards posterior, column indices towards the
patient's left, slice indices towards superior, each as nearly as the image's own axes allow: axes
are exchanged and turned around, and nothing is interpolated. Positions are in mm, x to the left,
y to posterior and z to superior (LPS), as in DICOM and ITK.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.packing.refusal import Refused

__all__ = ["TOLERANCE", "Grid", "Turn", "difference", "grid_of"]

TOLERANCE = 0.01  # of a voxel: how far apart corners of the same grid may be
_EVEN = 1e-3  # how much axes may deviate from right angles: what few decimals amount to
_TARGET = (1, 0, 2)  # rows run along y, columns along x, slices along z


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Where voxels lie.

    Attributes
    ----------
    shape
        (rows, columns, slices).
    spacing
        Distance of neighbouring voxels along each of these, mm.
    origin
        Position (x, y, z) of the centre of voxel (0, 0, 0), mm, LPS.
    direction
        3 x 3, row by row: column `a` is the unit vector along which axis `a` runs. The voxel at
        index `i` lies at ``origin + direction @ (spacing * i)``.
    """

    shape: tuple[int, int, int]
    spacing: tuple[float, float, float]
    origin: tuple[float, float, float]
    direction: tuple[tuple[float, float, float], ...]

    def at(self, index: tuple[float, ...]) -> NDArray[np.float64]:
        """Return the position of a voxel, (x, y, z), mm."""
        step = np.array(self.direction) * np.array(self.spacing)
        found: NDArray[np.float64] = np.array(self.origin) + step @ np.array(index, np.float64)
        return found

    def corners(self) -> NDArray[np.float64]:
        """Return the positions of the eight corner voxels, float64, (8, 3)."""
        ends = [(0, n - 1) for n in self.shape]
        return np.array([self.at(index) for index in itertools.product(*ends)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How an array as a file has it becomes one of (rows, columns, slices).

    Attributes
    ----------
    order
        Which axis of the file's each of the three is.
    flips
        Whether it runs the other way.
    """

    order: tuple[int, int, int]
    flips: tuple[bool, bool, bool]

    def __call__(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a view of the array."""
        steps = tuple(slice(None, None, -1 if flip else 1) for flip in self.flips)
        return values.transpose(self.order)[steps]


def grid_of(
    shape: tuple[int, ...], matrix: NDArray[np.float64], origin: NDArray[np.float64]
) -> tuple[Grid, Turn]:
    """Return the grid of an array, and how the array is brought into its axes.

    Parameters
    ----------
    shape
        Of the array, three numbers.
    matrix
        3 x 3: column `a` is the step along the array's axis `a`, mm, LPS.
    origin
        Position of the centre of the array's first voxel, mm, LPS.

    Raises
    ------
    Refused
        The axes have no length, or are not at right angles to each other.
    """
    if len(shape) != 3 or 0 in shape:
        raise Refused(f"its shape is {shape}; an image has three axes, and none is empty")
    steps = np.linalg.norm(matrix, axis=0)
    if not (np.isfinite(matrix).all() and np.isfinite(origin).all() and (steps > 0).all()):
        raise Refused("it does not say where its voxels lie: spacing or position make no sense")
    units = matrix / steps
    skew = float(np.abs(units.T @ units - np.eye(3)).max())
    if skew > _EVEN:
        raise Refused(
            f"its axes are not at right angles (off by {np.degrees(np.arcsin(min(skew, 1))):.2f} "
            "degrees); resample it to a straight grid first"
        )

    def fit(order: tuple[int, ...]) -> float:
        return float(sum(abs(units[_TARGET[a], axis]) for a, axis in enumerate(order)))

    # Where axes lie half way between two directions, rounding must not decide: the first wins.
    best = max(round(fit(order), 6) for order in itertools.permutations(range(3)))
    a, b, c = next(o for o in itertools.permutations(range(3)) if fit(o) >= best - 1e-5)
    order = (a, b, c)
    flips = tuple(bool(units[_TARGET[i], axis] < 0) for i, axis in enumerate(order))
    first = np.array([shape[i] - 1 if flip else 0 for i, flip in zip(order, flips, strict=True)])
    position = origin + matrix[:, list(order)] @ first
    turned = units[:, list(order)] * np.where(flips, -1.0, 1.0) + 0.0
    grid = Grid(
        shape=(shape[a], shape[b], shape[c]),
        spacing=(float(steps[a]), float(steps[b]), float(steps[c])),
        origin=(float(position[0]), float(position[1]), float(position[2])),
        direction=tuple((float(x), float(y), float(z)) for x, y, z in turned),
    )
    return grid, Turn(order=order, flips=(flips[0], flips[1], flips[2]))


def difference(one: Grid, other: Grid) -> str:
    """Say how two grids differ; "" where they are the same.

    They are where they have the same shape and all corners lie within `TOLERANCE` of the smaller
    spacing of each other.
    """
    if one.shape != other.shape:
        return f"shape {one.shape}, not {other.shape}"
    off = float(np.linalg.norm(one.corners() - other.corners(), axis=1).max())
    if off <= TOLERANCE * min(*one.spacing, *other.spacing):
        return ""
    if not np.allclose(one.spacing, other.spacing, rtol=1e-4):
        return f"spacing {_mm(one.spacing)}, not {_mm(other.spacing)}"
    if not np.allclose(one.direction, other.direction, atol=1e-4):
        return f"other directions, so that corners are up to {off:.3g} mm apart"
    return f"origin {_mm(one.origin)}, not {_mm(other.origin)}"


def _mm(values: tuple[float, ...]) -> str:
    return " x ".join(f"{value:.6g}" for value in values) + " mm"
