"""`RandomCrop` and `CenterCrop`: one window for all inputs, padded first where they are smaller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyperslab.torch.transforms.base import Exact, Parameters
from hyperslab.torch.transforms.checks import window_size
from hyperslab.torch.transforms.remap import Remap, crop

__all__ = ["CenterCrop", "RandomCrop"]


@dataclass(frozen=True)
class CenterCrop(Exact):
    """Take the window in the middle, the same for all inputs.

    Parameters
    ----------
    size
        Pixels: (height, width), or one number for both.
    pad_value
        What images smaller than the window are padded with, for all of them or by name. Images
        that a mapping leaves out get -1.
    mask_pad_value
        The same for masks. Masks that a mapping leaves out get 0.

    Notes
    -----
    Padding surrounds the input; of an odd number of pixels, top and left get one more. Cropping
    mirrors that: of an odd number, top and left lose one more. So a crop takes away what padding
    has added.
    """

    size: int | Sequence[int]
    pad_value: float | Mapping[str, float] = -1.0
    mask_pad_value: float | Mapping[str, float] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", window_size(self.size))

    def follows(self, remap: Remap) -> bool:
        """Whether nothing is padded; or nothing was cut off, and clamps leave the padding be."""
        height, width = window_size(self.size)
        if remap.height >= height and remap.width >= width:
            return True
        pads = self._pads(remap)
        return not remap.windowed and all(
            lo <= pads[name] <= hi for name, (lo, hi) in remap.clamps.items()
        )

    def extend(self, remap: Remap, parameters: Parameters) -> Remap:
        """Plan the window."""
        height, width = size = window_size(self.size)
        room_y, room_x = remap.height - height, remap.width - width
        pads = self._pads(remap) if min(room_y, room_x) < 0 else {}
        top = self._origin(room_y, parameters.get("top"))
        left = self._origin(room_x, parameters.get("left"))
        n = remap.top.size
        return crop(remap, np.broadcast_to(top, n), np.broadcast_to(left, n), size, pads)

    def _origin(self, room: int, fraction: NDArray[np.float64] | None) -> NDArray[np.int64]:
        """Return the window's first pixel where it has `room` pixels to move in."""
        if fraction is None or room <= 0:
            # Half of it, away from zero: the odd pixel is at the top or left, padded or cut.
            return np.array((room + 1) // 2 if room > 0 else -((1 - room) // 2))
        return (fraction * (room + 1)).astype(np.int64)  # 0 to room, both included

    def _pads(self, remap: Remap) -> dict[str, float]:
        def value(given: float | Mapping[str, float], name: str, default: float) -> float:
            return given.get(name, default) if isinstance(given, Mapping) else given

        return {name: value(self.pad_value, name, -1.0) for name in remap.images} | {
            name: value(self.mask_pad_value, name, 0) for name in remap.masks
        }


@dataclass(frozen=True)
class RandomCrop(CenterCrop):
    """Take a window at random, the same for all inputs.

    All places are equally likely, those at either edge included. An axis that is smaller than the
    window is padded as by `CenterCrop`, whose parameters these are.

    Notes
    -----
    Parameters: `top` and `left`, float64 in [0, 1): how much of the room above and to the left of
    the window is left there. With H rows and a window of h, its first row is
    ``floor(top * (H - h + 1))``.
    """

    @property
    def draws(self) -> int:
        """Two: down, and across."""
        return 2

    def draw(self, u: NDArray[np.float64]) -> Parameters:
        """Make `top` and `left`."""
        return {"top": u[:, 0], "left": u[:, 1]}
