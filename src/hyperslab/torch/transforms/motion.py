"""`MotionArtifact`: what a patient who moves during an MR scan does to the image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hyperslab.torch.transforms.base import Parameters, Transform
from hyperslab.torch.transforms.checks import check_limit, check_probability
from hyperslab.torch.transforms.inputs import Inputs
from hyperslab.torch.transforms.intensity import check_image
from hyperslab.torch.transforms.warp import rigid_grid, sample_grid, warp_samples

__all__ = ["MotionArtifact"]

_WIDTH = 256  # of the image whose columns `band` counts


@dataclass(frozen=True)
class MotionArtifact(Transform):
    """Mix k-space columns of a moved image into those of the image.

    The moved image is the mean of several that are turned and shifted at random. In k-space (the
    Fourier transform over H and W, zero frequency in the centre), the columns in a band on either
    side of the centre come from the moved image, and all others stay as they are.

    Parameters
    ----------
    input
        Name of the image, the source as a rule. With a `Swap` further on, name the one that
        becomes the source.
    p
        Probability. 0, the default, is never: give one.
    moves
        How many moved images are averaged.
    degrees, pixels
        Angles, and shifts along x and along y, are uniform between minus and plus this.
    band
        (inner, least outer, most outer), columns from the centre of a 256 pixels wide image: the
        band is ``inner <= distance <= outer``, with a whole number between the latter two as
        `outer`. For images of width W, the distance is scaled by 256 / W.

    Notes
    -----
    Parameters: `active`, bool; `outer`, int64; `dx`, `dy` and `degrees`, float64, (N, moves), as
    for `Misalign`, 0 where not active.

    Since whole columns are exchanged, the transform along H cancels, and rows suffice: the image
    plus the inverse transform of the band of (moved - image). The band is symmetric, so the result
    is real. Linear interpolation, mirrored beyond the edge. About 1.2 ms for an image of 256 by 256
    pixels on one core, nearly all for the moved images.
    """

    input: str = "A"
    p: float = 0.0
    moves: int = 3
    degrees: float = 5.0
    pixels: float = 10.0
    band: tuple[int, int, int] = (5, 21, 24)

    def __post_init__(self) -> None:
        check_probability(self.p)
        check_limit("degrees", self.degrees)
        check_limit("pixels", self.pixels)
        if self.moves < 1:
            raise ValueError(f"moves is {self.moves}; at least one moved image is needed")
        inner, least, most = self.band
        if not 0 <= inner <= least <= most <= _WIDTH // 2:
            raise ValueError(
                f"band is {self.band}; it is (inner, least outer, most outer), rising, in columns "
                f"from the centre, of which there are {_WIDTH // 2}"
            )

    @property
    def draws(self) -> int:
        """Two, and three for each moved image."""
        return 2 + 3 * self.moves

    def draw(self, u: NDArray[np.float64]) -> Parameters:
        """Make `active`, `outer`, `dx`, `dy` and `degrees`."""
        active = u[:, 0] < self.p
        _, least, most = self.band
        jitter = np.where(
            active[:, None, None], 2 * u[:, 2:].reshape(len(u), self.moves, 3) - 1, 0.0
        )
        return {
            "active": active,
            "outer": np.where(active, least + ((most - least + 1) * u[:, 1]).astype(np.int64), 0),
            "dx": self.pixels * jitter[..., 0],
            "dy": self.pixels * jitter[..., 1],
            "degrees": self.degrees * jitter[..., 2],
        }

    def apply(self, inputs: Inputs, parameters: Parameters) -> Inputs:
        """Mix the columns of the active samples."""
        (name,) = inputs.chosen([self.input], "MotionArtifact")
        check_image(inputs, name, "MotionArtifact")
        active, outer, dx, dy, degrees = (
            parameters[k] for k in ("active", "outer", "dx", "dy", "degrees")
        )

        def mix(samples: torch.Tensor, i: NDArray[np.int64]) -> torch.Tensor:
            exact = samples.to(torch.promote_types(samples.dtype, torch.float32))
            change = exact * -float(dx.shape[1])
            for move in range(dx.shape[1]):
                grid = rigid_grid(dx[i, move], dy[i, move], degrees[i, move], exact)
                change += sample_grid(exact, grid, nearest=False)
            change /= dx.shape[1]  # the mean of the moved images, less the image
            width = samples.shape[-1]
            mixed = torch.fft.rfft(change)
            distance = np.arange(width // 2 + 1) * (_WIDTH / width)
            kept = (distance >= self.band[0]) & (distance <= outer[i, None])
            mixed *= torch.from_numpy(kept).to(mixed.device)[:, None, None, :]
            result: torch.Tensor = exact + torch.fft.irfft(mixed, n=width)
            return result.to(samples.dtype)

        if not active.any():
            return inputs
        return inputs.with_tensors({name: warp_samples(inputs, name, active, mix)})
