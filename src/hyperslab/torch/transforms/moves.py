"""Carrying out a `Remap`: one copy of each input, clamped on the way."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from hyperslab.errors import SampleError
from hyperslab.torch.transforms.inputs import Inputs, view_output
from hyperslab.torch.transforms.remap import Remap

__all__ = ["remap_inputs"]

# Same-sized integers, as which any dtype is moved: NumPy has no bfloat16.
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
    strided: _Strided | None = None
    gather = _Gather(remap)
    changed = {}
    for name, tensor in inputs.tensors.items():
        bounds = remap.clamps.get(name)
        owned = name in inputs.owned
        if moves:
            pad = _fitting(name, remap.pads.get(name, 0), tensor.dtype)
            if _is_plain(tensor) and tensor.element_size() in _SAME_SIZE:
                shape = (*tensor.shape[:2], remap.height, remap.width)
                target = view_output(out, name, shape, inputs.leading[name], tensor)
                if target is None or target.device != tensor.device:
                    target = torch.empty(shape, dtype=tensor.dtype)
                strided = strided or _Strided(remap)
                if strided.padded:
                    target.fill_(pad)
                strided(tensor, target)
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
            tensor = _clamp(tensor, *bounds, owned=owned)
        if tensor is not inputs.tensors[name]:
            changed[name] = tensor
    return inputs.with_tensors(changed) if changed else inputs


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether NumPy can see the tensor's memory, and nobody wants its gradient."""
    return tensor.device.type == "cpu" and not tensor.requires_grad


def _clamp(tensor: torch.Tensor, lo: float, hi: float, *, owned: bool) -> torch.Tensor:
    if _is_plain(tensor) and tensor.dtype in (torch.float32, torch.float64):
        # A tenth of a millisecond for a batch, on one thread. PyTorch would wake its others for
        # that, and wait milliseconds for them where they have to share the cores.
        clamped = tensor if owned else torch.empty_like(tensor)
        tensor.numpy().clip(lo, hi, out=clamped.numpy())
        return clamped
    return tensor.clamp_(lo, hi) if owned else tensor.clamp(lo, hi)


class _Strided:
    """Moves pixels on a CPU: one strided copy a sample. What is asked is worked out once."""

    def __init__(self, remap: Remap) -> None:
        frame_h, frame_w = remap.frame
        bottom, right = remap.top + remap.height, remap.left + remap.width
        # What the window shows of the frame; nothing, where a second crop took padding only.
        y0, y1 = (np.minimum(np.maximum(y, 0), frame_h) for y in (remap.top, bottom))
        x0, x1 = (np.minimum(np.maximum(x, 0), frame_w) for x in (remap.left, right))
        self.padded = bool((y1 - y0 < remap.height).any() or (x1 - x0 < remap.width).any())
        self._longest = max(remap.height, remap.width)
        # The same in the frame before it is mirrored, then where it goes in the output.
        rows = (
            np.where(remap.flip_y, frame_h - y1, y0),
            np.where(remap.flip_y, frame_h - y0, y1),
            y0 - remap.top,
            y1 - remap.top,
        )
        cols = (
            np.where(remap.flip_x, frame_w - x1, x0),
            np.where(remap.flip_x, frame_w - x0, x1),
            x0 - remap.left,
            x1 - remap.left,
        )
        columns = (remap.transpose, remap.flip_y, remap.flip_x, *rows, *cols)
        self._samples = list(zip(*(column.tolist() for column in columns), strict=True))

    def __call__(self, tensor: torch.Tensor, moved: torch.Tensor) -> None:
        """Copy the pixels of `tensor` to `moved`, and leave padding as it is there."""
        nbytes = tensor.element_size()
        source, target = (t.view(_SAME_SIZE[nbytes]).numpy() for t in (tensor, moved))
        # A transposed copy goes down the columns, where rows that are a power of two bytes apart
        # evict each other from the cache. So it is made from a near copy of the window, whose rows
        # are an odd number of cache lines apart.
        line = 64 // nbytes
        pitch = (-(-self._longest // line) | 1) * line
        spare = np.empty((source.shape[1], self._longest, pitch), source.dtype)
        for i, sample in enumerate(self._samples):
            turned, mirror_y, mirror_x, ra, rb, ya, yb, ca, cb, xa, xb = sample
            if turned:
                part = source[i, :, ca:cb, ra:rb]
                near = spare[:, : part.shape[1], : part.shape[2]]
                np.copyto(near, part)
                part = near.transpose(0, 2, 1)
            else:
                part = source[i, :, ra:rb, ca:cb]
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
