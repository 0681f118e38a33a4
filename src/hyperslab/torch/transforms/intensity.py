"""`Clamp`, `Window` and `ZScore`: change the values of images by given constants, never of masks.

All constants are given, and none is taken from the image at hand: a scale that is computed from a
slice or a crop differs from one to the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hyperslab.errors import SampleError
from hyperslab.torch.transforms.base import Exact, Parameters, Transform
from hyperslab.torch.transforms.checks import input_names
from hyperslab.torch.transforms.inputs import Inputs
from hyperslab.torch.transforms.remap import Remap, clamp

__all__ = ["Clamp", "Window", "ZScore"]


@dataclass(frozen=True)
class Clamp(Exact):
    """Limit the values of all images to [lo, hi]; NaN stays NaN.

    Parameters
    ----------
    lo, hi
        The bounds.
    """

    lo: float = -1.0
    hi: float = 1.0

    def __post_init__(self) -> None:
        if not self.lo <= self.hi:
            raise ValueError(f"Clamp({self.lo}, {self.hi}): the lower bound comes first")

    def extend(self, remap: Remap, parameters: Parameters) -> Remap:
        """Plan the bounds."""
        return clamp(remap, self.lo, self.hi)


@dataclass(frozen=True)
class Window(Transform):
    """Map [lo, hi] to `out` linearly, and clamp what lies outside.

    With the percentiles of a case, computed once over its whole volume, as `lo` and `hi`, this is
    scaling by percentiles.

    Parameters
    ----------
    lo, hi
        Values of the image.
    out
        What they become.
    inputs
        Names of the images concerned; by default all.
    """

    lo: float
    hi: float
    out: tuple[float, float] = (-1.0, 1.0)
    inputs: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not (self.lo < self.hi and self.out[0] <= self.out[1]):
            raise ValueError(
                f"Window({self.lo}, {self.hi}, out={self.out}): the lower bounds come first"
            )
        if self.inputs is not None:
            object.__setattr__(self, "inputs", input_names(self.inputs))

    def apply(self, inputs: Inputs, parameters: Parameters) -> Inputs:
        """Scale and clamp."""
        low, high = self.out
        scale = (high - low) / (self.hi - self.lo)
        changed = {}
        for name in floating_images(inputs, self.inputs, "Window"):
            scaled = inputs.tensors[name].sub(self.lo).mul_(scale).add_(low)
            changed[name] = scaled.clamp_(low, high)
        return inputs.with_tensors(changed)


@dataclass(frozen=True)
class ZScore(Transform):
    """Subtract `mean` and divide by `std`, both of the whole volume or cohort.

    Parameters
    ----------
    mean, std
        In the image's units.
    inputs
        Names of the images concerned; by default all.
    """

    mean: float
    std: float
    inputs: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and math.isfinite(self.std) and self.std > 0):
            raise ValueError(f"ZScore({self.mean}, {self.std}): both finite, and std above 0")
        if self.inputs is not None:
            object.__setattr__(self, "inputs", input_names(self.inputs))

    def apply(self, inputs: Inputs, parameters: Parameters) -> Inputs:
        """Shift and scale."""
        return inputs.with_tensors(
            {
                name: inputs.tensors[name].sub(self.mean).div_(self.std)
                for name in floating_images(inputs, self.inputs, "ZScore")
            }
        )


def floating_images(inputs: Inputs, names: Sequence[str] | None, transform: str) -> tuple[str, ...]:
    """Return the images concerned; raise where one is a mask or has no floating-point dtype."""
    chosen = inputs.images if names is None else inputs.chosen(names, transform)
    for name in chosen:
        check_image(inputs, name, transform)
    return chosen


def check_image(inputs: Inputs, name: str, transform: str) -> torch.Tensor:
    """Return the image `name`; raise where it is a mask or has no floating-point dtype."""
    tensor = inputs.tensors[name]
    if name in inputs.masks or not tensor.dtype.is_floating_point:
        what = "a mask" if name in inputs.masks else f"{tensor.dtype}"
        raise SampleError(
            f"{transform} makes new values, and {name!r} is {what}. It acts on floating-point "
            "images; name labels as masks.",
            inputs=(name,),
        )
    return tensor
