"""`Remap`: where each output pixel comes from, for moves that only rearrange pixels.

Flips, quarter turns, crops and pads are planned one after another on a `Remap`, which is a few
numbers per sample, and then carried out together by one copy of what is left in the window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from hyperslab.errors import SampleError
from hyperslab.torch.transforms.inputs import Inputs, view_output

__all__ = ["Remap", "clamp", "crop", "flip", "plan_remap", "quarter_turns", "remap_inputs"]

Flags = NDArray[np.bool_]
# Same-sized integers, as which any dtype is moved: NumPy has no bfloat16.
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remap:
    """A rearrangement of the pixels of N samples, with what is done to their values on the way.

    Output sample i is: the source, transposed if `transpose[i]`, then mirrored along y if
    `flip_y[i]` and along x if `flip_x[i]` (that is the frame), then the window of `height` by
    `width` whose first pixel is (`top[i]`, `left[i]`) of the frame. Where the window reaches beyond
    the frame, there is padding.

    Attributes
    ----------
    source
        (H, W) of the source.
    transpose, flip_y, flip_x
        bool, (N,).
    top, left
        int64, (N,).
    height, width
        Of the output.
    images, masks
        Names of the inputs.
    pads
        Input to the value of its padding.
    clamps
        Input to the bounds (lo, hi) of its values.
    """

    source: tuple[int, int]
    transpose: Flags
    flip_y: Flags
    flip_x: Flags
    top: NDArray[np.int64]
    left: NDArray[np.int64]
    height: int
    width: int
    images: tuple[str, ...]
    masks: tuple[str, ...]
    pads: Mapping[str, float]
    clamps: Mapping[str, tuple[float, float]]

    @property
    def frame(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Height and width of each sample's frame: int64, (N,)."""
        height, width = self.source
        return (
            np.where(self.transpose, width, height),
            np.where(self.transpose, height, width),
        )

    @property
    def windowed(self) -> bool:
        """Whether the output is anything but whole frames."""
        return self.height * self.width != math.prod(self.source) or bool(
            self.top.any() or self.left.any()
        )

    @property
    def moves(self) -> bool:
        """Whether any pixel moves."""
        return self.windowed or bool(self.transpose.any() or self.flip_y.any() or self.flip_x.any())


def plan_remap(inputs: Inputs) -> Remap:
    """Return the `Remap` that leaves `inputs` as they are."""
    height, width = inputs.size
    no = np.zeros(inputs.n, np.bool_)
    origin = np.zeros(inputs.n, np.int64)
    return Remap(
        source=(height, width),
        transpose=no,
        flip_y=no,
        flip_x=no,
        top=origin,
        left=origin,
        height=height,
        width=width,
        images=inputs.images,
        masks=tuple(name for name in inputs.tensors if name in inputs.masks),
        pads={},
        clamps={},
    )


def flip(remap: Remap, y: Flags, x: Flags) -> Remap:
    """Mirror the samples flagged in `y` along y (up-down), those in `x` along x (left-right)."""
    frame_h, frame_w = remap.frame
    return replace(
        remap,
        flip_y=remap.flip_y ^ y,
        flip_x=remap.flip_x ^ x,
        top=np.where(y, frame_h - remap.height - remap.top, remap.top),
        left=np.where(x, frame_w - remap.width - remap.left, remap.left),
    )


def quarter_turns(remap: Remap, k: NDArray[np.int64]) -> Remap:
    """Turn each sample by `k` quarter turns counter-clockwise, 0 to 3; `torch.rot90` does so.

    Raises
    ------
    SampleError
        Samples in a batch would come to differ in shape.
    """
    turned = (k & 1).astype(np.bool_)
    if remap.height != remap.width and turned.size > 1:
        raise SampleError(
            f"samples of {remap.height} by {remap.width} pixels cannot be turned by 90 degrees in "
            "a batch, for they would differ in shape. Crop or pad to a square first "
            f"(CenterCrop({max(remap.height, remap.width)}) pads), or turn single samples.",
            shape=(remap.height, remap.width),
        )
    swap = turned.size == 1 and bool(turned[0])
    transposed = replace(
        remap,
        transpose=remap.transpose ^ turned,
        flip_y=np.where(turned, remap.flip_x, remap.flip_y),
        flip_x=np.where(turned, remap.flip_y, remap.flip_x),
        top=np.where(turned, remap.left, remap.top),
        left=np.where(turned, remap.top, remap.left),
        height=remap.width if swap else remap.height,
        width=remap.height if swap else remap.width,
    )
    # One turn is a transposition and then a flip along y; two are both flips; three mirror one.
    return flip(transposed, (k == 1) | (k == 2), (k == 2) | (k == 3))


def crop(
    remap: Remap,
    top: NDArray[np.int64],
    left: NDArray[np.int64],
    size: tuple[int, int],
    pads: Mapping[str, float],
) -> Remap:
    """Take the window of `size` whose first pixel is (`top`, `left`), (N,) each, of the output.

    Where it reaches beyond the output, it holds `pads`. That needs a remap that is not `windowed`,
    since the frame's pixels outside an earlier window would show, and `clamps` that leave the
    padding as it is, since they act after it.
    """
    return replace(
        remap,
        top=remap.top + top,
        left=remap.left + left,
        height=size[0],
        width=size[1],
        pads={**remap.pads, **pads},
    )


def clamp(remap: Remap, lo: float, hi: float) -> Remap:
    """Limit the values of the images, their padding so far included, to [lo, hi]."""

    def limit(value: float) -> float:
        return min(max(value, lo), hi)

    pads = {k: v if k in remap.masks else limit(v) for k, v in remap.pads.items()}
    earlier = remap.clamps
    clamps = dict.fromkeys(remap.images, (lo, hi))
    clamps |= {name: (limit(low), limit(high)) for name, (low, high) in earlier.items()}
    return replace(remap, pads=pads, clamps=clamps)


def remap_inputs(
    inputs: Inputs, remap: Remap, out: Mapping[str, torch.Tensor] | None = None
) -> Inputs:
    """Carry out `remap`: one copy of what it keeps of each input, or none where nothing changes.

    Parameters
    ----------
    inputs, remap
        What to do it with, and what to do.
    out
        Where results may be written: as for `view_output`. They are where pixels move on a CPU.

    Returns
    -------
    Inputs
        New tensors, contiguous, of the same dtypes; a tensor that nothing happens to is passed on.

    Notes
    -----
    On a CPU every sample is one strided copy, since a gather has to make and read an index per
    pixel and takes ten times as long; on other devices, and for tensors that need gradients, it is
    one gather per input.
    """
    moves = remap.moves
    gather = _Gather(remap)
    changed = {}
    for name, tensor in inputs.tensors.items():
        bounds = remap.clamps.get(name)
        owned = name in inputs.owned
        if moves:
            pad = _fitting(name, remap.pads.get(name, 0), tensor.dtype)
            plain = (
                tensor.device.type == "cpu"
                and not tensor.requires_grad
                and tensor.element_size() in _SAME_SIZE
            )
            if plain:
                shape = (*tensor.shape[:2], remap.height, remap.width)
                target = view_output(out, name, shape, inputs.leading[name], tensor)
                if target is None or target.device != tensor.device:
                    target = torch.empty(shape, dtype=tensor.dtype)
                _copy_strided(tensor, target, remap, pad)
                tensor = target
            else:
                tensor = gather(tensor, pad)
            owned = True
        if bounds is not None:
            if not tensor.dtype.is_floating_point:
                raise SampleError(
                    f"{name!r} is {tensor.dtype} and would be clamped to {list(bounds)}. If it "
                    f"holds labels, name it as a mask: masks=({name!r},). If it is an image, make "
                    "it a floating-point one.",
                    inputs=(name,),
                )
            tensor = tensor.clamp_(*bounds) if owned else tensor.clamp(*bounds)
        if tensor is not inputs.tensors[name]:
            changed[name] = tensor
    return inputs.with_tensors(changed) if changed else inputs


def _copy_strided(tensor: torch.Tensor, moved: torch.Tensor, remap: Remap, pad: float) -> None:
    height, width = remap.height, remap.width
    frame_h, frame_w = remap.frame
    # What the window shows of the frame; nothing, where a second crop took padding only.
    y0, y1 = (np.clip(y, 0, frame_h) for y in (remap.top, remap.top + height))
    x0, x1 = (np.clip(x, 0, frame_w) for x in (remap.left, remap.left + width))
    if ((y1 - y0 < height) | (x1 - x0 < width)).any():
        moved.fill_(pad)
    bits = _SAME_SIZE[tensor.element_size()]
    source, target = tensor.view(bits).numpy(), moved.view(bits).numpy()
    # A transposed copy goes down the columns, where rows that are a power of two bytes apart evict
    # each other from the cache. So it is made from a near copy of the window, whose rows are an odd
    # number of cache lines apart.
    line, longest = 64 // tensor.element_size(), max(height, width)
    pitch = (-(-longest // line) | 1) * line
    spare = np.empty((source.shape[1], longest, pitch), source.dtype)
    # The window in the frame, before that is mirrored.
    rows_from, rows_to = np.where(remap.flip_y, (frame_h - y1, frame_h - y0), (y0, y1))
    cols_from, cols_to = np.where(remap.flip_x, (frame_w - x1, frame_w - x0), (x0, x1))

    rows = (rows_from, rows_to, y0 - remap.top, y1 - remap.top)
    cols = (cols_from, cols_to, x0 - remap.left, x1 - remap.left)
    flags = (remap.transpose, remap.flip_y, remap.flip_x)
    for i, (turned, mirror_y, mirror_x, ra, rb, ya, yb, ca, cb, xa, xb) in enumerate(
        zip(*(column.tolist() for column in (*flags, *rows, *cols)), strict=True)
    ):
        part = source[i, :, ca:cb, ra:rb] if turned else source[i, :, ra:rb, ca:cb]
        if turned:
            near = spare[:, : part.shape[1], : part.shape[2]]
            np.copyto(near, part)
            part = near.transpose(0, 2, 1)
        if mirror_y:
            part = part[:, ::-1]
        if mirror_x:
            part = part[:, :, ::-1]
        np.copyto(target[i, :, ya:yb, xa:xb], part)


class _Gather:
    """The same by one gather, for any device; the index is made once per device."""

    def __init__(self, remap: Remap) -> None:
        self._remap = remap
        self._index: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, tensor: torch.Tensor, pad: float) -> torch.Tensor:
        n, channels = tensor.shape[:2]
        if tensor.device not in self._index:
            self._index[tensor.device] = self._make_index(tensor.device)
        index, outside = self._index[tensor.device]
        shape = (n, channels, self._remap.height, self._remap.width)
        flat = index.reshape(n, 1, -1).expand(-1, channels, -1)
        moved = tensor.reshape(n, channels, -1).gather(2, flat).reshape(shape)
        return moved.masked_fill_(outside[:, None], pad)

    def _make_index(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the source pixel of every output pixel, and where there is none: (N, h, w)."""
        remap = self._remap
        height, width = remap.source

        def column(values: NDArray[np.generic]) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device)[:, None]

        frame_h, frame_w = map(column, remap.frame)
        y = column(remap.top) + torch.arange(remap.height, device=device)
        x = column(remap.left) + torch.arange(remap.width, device=device)
        outside = ((y < 0) | (y >= frame_h))[:, :, None] | ((x < 0) | (x >= frame_w))[:, None, :]
        y = torch.where(column(remap.flip_y), frame_h - 1 - y, y)[:, :, None]
        x = torch.where(column(remap.flip_x), frame_w - 1 - x, x)[:, None, :]
        turned = column(remap.transpose)[:, None]
        row = torch.where(turned, x, y).clamp_(0, height - 1)
        return row * width + torch.where(turned, y, x).clamp_(0, width - 1), outside


def _fitting(name: str, pad: float, dtype: torch.dtype) -> float:
    """Return `pad` as a value of `dtype`; raise where it is none."""
    if dtype.is_floating_point or dtype.is_complex:
        return pad
    if dtype == torch.bool:
        fits = pad in (0, 1)
    else:
        info = torch.iinfo(dtype)
        fits = pad == int(pad) and info.min <= pad <= info.max
    if not fits:
        raise SampleError(
            f"{name!r} is {dtype}, which cannot hold the padding {pad}. Give another pad_value, or "
            "make the tensor a floating-point one.",
            inputs=(name,),
        )
    return int(pad)
