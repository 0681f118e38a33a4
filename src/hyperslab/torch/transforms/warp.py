"""Sampling between pixels: where each output pixel looks, and what it finds there.

A grid says where each pixel of the output looks in the source. It is complex, (N, H, W): the real
part is x and the imaginary part y, both scaled as `torch.nn.functional.grid_sample` wants them with
``align_corners=True``: -1 is the centre of the first pixel and 1 that of the last. (Complex, since
the sum of a row and a column is then one pass over memory. It is seen as real in the end.)

Beyond the edge the image goes on as its mirror image, without repeating the edge pixel:
``d c b | a b c d | c b a``, as `numpy.pad` does in mode "reflect" and scipy.ndimage in "mirror".
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import grid_sample

from hyperslab.torch.transforms.inputs import Inputs

__all__ = ["rigid_grid", "sample_grid", "shift_grid", "spline_weights", "warp_samples"]

_PIXELS_AT_ONCE = 1 << 18
_EXACT_FLOAT32 = 1 << 24  # a float32 tells pixel numbers apart up to here


def rigid_grid(
    dx: NDArray[np.float64],
    dy: NDArray[np.float64],
    degrees: NDArray[np.float64],
    like: torch.Tensor,
) -> torch.Tensor:
    """Return the grid of a rotation about the image's centre, then a shift.

    Parameters
    ----------
    dx, dy
        (N,), pixels: how far the image's content goes to the right and down.
    degrees
        (N,): counter-clockwise as shown with row 0 on top, as quarter turns are.
    like
        (..., H, W): its size, dtype and device are those that the grid is for.

    Returns
    -------
    torch.Tensor
        complex, (N, H, W).
    """
    height, width = like.shape[-2:]
    # Source = rotation by minus the angle of (output - centre - shift), scaled to [-1, 1].
    angle = np.deg2rad(degrees)[:, None]
    scale_x, scale_y = 2 / max(width - 1, 1), 2 / max(height - 1, 1)
    x = np.arange(width) - (width - 1) / 2 - dx[:, None]
    y = np.arange(height) - (height - 1) / 2 - dy[:, None]
    of_x = x * (np.cos(angle) * scale_x + 1j * np.sin(angle) * scale_y)
    of_y = y * (-np.sin(angle) * scale_x + 1j * np.cos(angle) * scale_y)
    dtype = _grid_dtype(like)
    return _to(of_x, dtype, like.device)[:, None, :] + _to(of_y, dtype, like.device)[:, :, None]


def shift_grid(
    control_x: NDArray[np.float64], control_y: NDArray[np.float64], like: torch.Tensor
) -> torch.Tensor:
    """Return the grid of a smooth displacement between control points.

    Parameters
    ----------
    control_x, control_y
        (N, n, n), pixels: displacements at n by n control points, y first.
    like
        (..., H, W): its size, dtype and device are those that the grid is for.

    Returns
    -------
    torch.Tensor
        complex, (N, H, W): output pixel p looks at p + displacement(p). The displacement is a
        uniform cubic B-spline, so it is never larger than the largest of its control points.
    """
    height, width = like.shape[-2:]
    n = control_x.shape[-1]
    dtype, device = _grid_dtype(like), like.device
    scaled = control_x * (2 / max(width - 1, 1)) + 2j * control_y / max(height - 1, 1)
    along_y = _to(spline_weights(height, n), dtype, device)
    along_x = _to(spline_weights(width, n), dtype, device)
    grid = along_y @ _to(scaled, dtype, device) @ along_x.T
    grid += _to(_centred(width).astype(np.complex128), dtype, device)
    grid += _to(1j * _centred(height), dtype, device)[:, None]
    return grid


@functools.lru_cache(maxsize=32)
def spline_weights(length: int, n: int) -> NDArray[np.float64]:
    """Return the weight of each control point at each pixel, read-only: float64, (length, n).

    The pixels span the n - 3 pieces of a uniform cubic B-spline. Weights are not negative, and sum
    to 1 at every pixel.
    """
    place = np.linspace(0, n - 3, length)
    piece = np.minimum(place.astype(np.int64), n - 4)
    t = place - piece
    four = np.stack(
        [(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3], axis=1
    )
    weights = np.zeros((length, n))
    weights[np.arange(length)[:, None], piece[:, None] + np.arange(4)] = four / 6
    weights.flags.writeable = False
    return weights


def sample_grid(source: torch.Tensor, grid: torch.Tensor, *, nearest: bool) -> torch.Tensor:
    """Return what each pixel finds: (N, C, H, W), of the source's dtype.

    Parameters
    ----------
    source
        (N, C, H, W); floating point unless `nearest`.
    grid
        complex, (N, H, W).
    nearest
        Take the nearest pixel's value, whatever the dtype, instead of interpolating linearly.

    Notes
    -----
    float64 is computed in float64, all else in float32.
    """
    where = torch.view_as_real(grid)
    if not nearest:
        computed = source.to(where.dtype)
        found = grid_sample(
            computed, where, mode="bilinear", padding_mode="reflection", align_corners=True
        )
        return found.to(source.dtype)
    # The pixel's number is looked up, and then its value, which so stays as it is.
    n, channels, height, width = source.shape
    numbers = torch.arange(height * width, dtype=where.dtype, device=source.device)
    number = grid_sample(
        numbers.reshape(1, 1, height, width).expand(n, -1, -1, -1),
        where,
        mode="nearest",
        padding_mode="reflection",
        align_corners=True,
    )
    flat = number.to(torch.int64).reshape(n, 1, -1).expand(-1, channels, -1)
    return source.reshape(n, channels, -1).gather(2, flat).reshape(source.shape)


def warp_samples(
    inputs: Inputs,
    name: str,
    active: NDArray[np.bool_],
    warp: Callable[[torch.Tensor, NDArray[np.int64]], torch.Tensor],
) -> torch.Tensor:
    """Return the tensor `name` with `warp(samples, numbers)` in the place of the active samples.

    The others are copied, unless `inputs` owns the tensor: then the active ones are written to it.
    On a CPU a few samples are warped at a time, since their grids then stay in its caches.
    """
    tensor = inputs.tensors[name]
    numbers = np.flatnonzero(active)
    whole = numbers.size == active.size
    at_once = numbers.size
    if tensor.device.type == "cpu" and tensor[0, 0].numel():
        at_once = max(_PIXELS_AT_ONCE // tensor[0, 0].numel(), torch.get_num_threads())
    if whole and numbers.size <= at_once:
        return warp(tensor, numbers)
    if name not in inputs.owned:
        tensor, source = torch.empty_like(tensor) if whole else tensor.clone(), tensor
    else:
        source = tensor
    for start in range(0, numbers.size, at_once):
        some = numbers[start : start + at_once]
        index = torch.from_numpy(some).to(tensor.device)
        tensor.index_copy_(0, index, warp(source[index], some))
    return tensor


def _grid_dtype(like: torch.Tensor) -> torch.dtype:
    exact = like.dtype == torch.float64 or like.shape[-1] * like.shape[-2] > _EXACT_FLOAT32
    return torch.complex128 if exact else torch.complex64


def _to(values: NDArray[np.generic], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.tensor(values, device=device, dtype=dtype)


def _centred(length: int) -> NDArray[np.float64]:
    return np.linspace(-1, 1, length) if length > 1 else np.zeros(1)
