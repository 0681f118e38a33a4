"""`RandomFlip` and `RandomRotate90`: the symmetries of the square, exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyperslab.torch.transforms.base import Exact, Parameters
from hyperslab.torch.transforms.checks import check_probability
from hyperslab.torch.transforms.remap import Remap, flip, quarter_turns

__all__ = ["RandomFlip", "RandomRotate90"]


@dataclass(frozen=True)
class RandomFlip(Exact):
    """Mirror all inputs of a sample alike: along y and along x, each by its own draw.

    Mirroring along both axes at once is a half turn. That is no mirror image, and so not what most
    people mean by a flip; `both` asks for just that.

    Parameters
    ----------
    p
        Probability of each of the two flips; with `both`, of the half turn.
    both
        Flip both axes together, or none.

    Notes
    -----
    Parameters: `y` (up-down) and `x` (left-right), bool.
    """

    p: float = 0.5
    both: bool = False

    def __post_init__(self) -> None:
        check_probability(self.p)

    @property
    def draws(self) -> int:
        """Two; one for a half turn."""
        return 1 if self.both else 2

    def draw(self, u: NDArray[np.float64]) -> Parameters:
        """Make `y` and `x`."""
        return {"y": u[:, 0] < self.p, "x": u[:, -1] < self.p}

    def extend(self, remap: Remap, parameters: Parameters) -> Remap:
        """Plan the flips."""
        return flip(remap, parameters["y"], parameters["x"])


@dataclass(frozen=True)
class RandomRotate90(Exact):
    """Turn all inputs of a sample alike, by one, two or three quarter turns.

    Parameters
    ----------
    p
        Probability of a turn; the three are equally likely.

    Notes
    -----
    Parameters: `k`, int64: quarter turns counter-clockwise (as shown with row 0 on top), 0 to 3.

    A quarter turn swaps H and W. Where they differ, single samples can be turned, and a batch of
    several is refused with `SampleError`.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self.p)

    @property
    def draws(self) -> int:
        """Two: whether, and how far."""
        return 2

    def draw(self, u: NDArray[np.float64]) -> Parameters:
        """Make `k`."""
        return {"k": np.where(u[:, 0] < self.p, 1 + (3 * u[:, 1]).astype(np.int64), 0)}

    def extend(self, remap: Remap, parameters: Parameters) -> Remap:
        """Plan the turns."""
        return quarter_turns(remap, parameters["k"])
