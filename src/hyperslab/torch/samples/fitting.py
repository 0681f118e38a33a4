"""Planes of any size to planes of one size: cropped or padded about their middle."""

from __future__ import annotations

import torch

__all__ = ["fit_planes"]


def fit_planes(planes: torch.Tensor, size: tuple[int, int], value: float) -> torch.Tensor:
    """Return `planes`, (..., H, W), cropped or padded to `size`; themselves if they have it.

    Padding is `value`. Of an odd number of pixels, top and left get (or lose) one more, as with
    `hyperslab.torch.transforms.CenterCrop`: a crop takes away what padding has added.
    """
    if planes.shape[-2:] == size:
        return planes
    (from_y, to_y), (from_x, to_x) = (
        _spans(n, wanted) for n, wanted in zip(planes.shape[-2:], size, strict=True)
    )
    fitted = torch.full((*planes.shape[:-2], *size), value, dtype=planes.dtype)
    fitted[..., to_y, to_x] = planes[..., from_y, from_x]
    return fitted


def _spans(n: int, wanted: int) -> tuple[slice, slice]:
    """Return which of `n` pixels are taken, and where they go among those `wanted`."""
    before = (abs(n - wanted) + 1) // 2
    if n >= wanted:
        return slice(before, before + wanted), slice(0, wanted)
    return slice(0, n), slice(before, before + n)
