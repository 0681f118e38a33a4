"""`Swap`: exchange source and target."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from hyperslab.errors import SampleError
from hyperslab.torch.transforms.base import Parameters, Transform
from hyperslab.torch.transforms.checks import check_probability
from hyperslab.torch.transforms.inputs import Inputs

__all__ = ["Swap"]


@dataclass(frozen=True)
class Swap(Transform):
    """Exchange two inputs: always, or sample by sample.

    Parameters
    ----------
    p
        Probability. 1, the default, exchanges all samples, and copies nothing.
    first, second
        Names of the two.

    Notes
    -----
    Parameters: `swapped`, bool; none where `p` is 1.

    What stands after a swap finds the new source under the name of `first`; what stands before it
    finds the old one.
    """

    p: float = 1.0
    first: str = "A"
    second: str = "B"

    def __post_init__(self) -> None:
        check_probability(self.p)
        if self.first == self.second:
            raise ValueError(f"Swap needs two inputs, and both are {self.first!r}")

    @property
    def draws(self) -> int:
        """One; none where `p` is 1."""
        return 0 if self.p == 1 else 1

    def draw(self, u: NDArray[np.float64]) -> Parameters:
        """Make `swapped`."""
        return {"swapped": u[:, 0] < self.p} if self.draws else {}

    def apply(self, inputs: Inputs, parameters: Parameters) -> Inputs:
        """Exchange the two, or their flagged samples."""
        first, second = inputs.chosen([self.first, self.second], "Swap")
        if (first in inputs.masks) != (second in inputs.masks):
            raise SampleError(
                f"Swap would exchange {first!r} and {second!r}, of which one is a mask and the "
                "other an image",
                inputs=(first, second),
            )
        if not self.draws:
            return _exchange(inputs, first, second)
        swapped = parameters["swapped"]
        if not swapped.any():
            return inputs
        a, b = inputs.tensors[first], inputs.tensors[second]
        if inputs.leading[first] != inputs.leading[second] or a.dtype != b.dtype:
            raise SampleError(
                f"some samples of {first!r}, {a.dtype} with {a.shape[1]} channels, are to change "
                f"places with those of {second!r}, {b.dtype} with {b.shape[1]} channels. They have "
                "to agree; Swap(p=1), which exchanges all, can do without.",
                inputs=(first, second),
            )
        flags = torch.from_numpy(swapped).to(a.device)[:, None, None, None]
        return inputs.with_tensors(
            {first: torch.where(flags, b, a), second: torch.where(flags, a, b)}
        )


def _exchange(inputs: Inputs, first: str, second: str) -> Inputs:
    names = {first: second, second: first}

    def other(name: str) -> str:
        return names.get(name, name)

    return replace(
        inputs,
        tensors={name: inputs.tensors[other(name)] for name in inputs.tensors},
        leading={name: inputs.leading[other(name)] for name in inputs.leading},
        owned=frozenset(map(other, inputs.owned)),
    )
