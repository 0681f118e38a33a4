"""`Remap`: where each output pixel comes from, for moves that only rearrange pixels.

Flips, quarter turns, crops and pads are planned one after another on a `Remap`, which is a few
numbers per sample. `remap_inputs` then carries them out together, by one copy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hyperslab.errors import SampleError
from hyperslab.torch.transforms.inputs import Inputs

__all__ = ["Remap", "clamp", "crop", "flip", "plan_remap", "quarter_turns"]

Flags = NDArray[np.bool_]


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
