"""`Elastic`: bend images smoothly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hyperslab.torch.transforms.base import Parameters, Transform
from hyperslab.torch.transforms.checks import check_limit, check_probability, input_names
from hyperslab.torch.transforms.inputs import Inputs
from hyperslab.torch.transforms.intensity import check_image
from hyperslab.torch.transforms.warp import sample_grid, shift_grid, warp_samples

__all__ = ["Elastic"]


@dataclass(frozen=True)
class Elastic(Transform):
    """Displace pixels by a smooth random field, the same for all inputs concerned.

    The field is a uniform cubic B-spline over a square of control points. Each of these is
    displaced by a vector that is uniform over the disc of radius `max_displacement`; so no pixel
    moves further than that.

    Parameters
    ----------
    p
        Probability. 0, the default, is never: give one.
    control_points
        Along each axis, at least 4. More of them bend the image on a smaller scale.
    max_displacement
        Pixels.
    inputs
        Names of those to bend; by default all, masks included.

    Notes
    -----
    Parameters: `active`, bool; `dx` and `dy`, float64, (N, control_points, control_points), pixels:
    a pixel of the output shows what lies there, to the right and down of it, in the source. They
    are 0 where not active.

    Images are interpolated linearly, masks take the nearest pixel; beyond the edge is the mirror
    image. Control points are (size - 1) / (control_points - 3) pixels apart. While that is well
    above twice `max_displacement`, the image cannot fold over itself.
    """

    p: float = 0.0
    control_points: int = 9
    max_displacement: float = 5.0
    inputs: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_probability(self.p)
        check_limit("max_displacement", self.max_displacement)
        if self.control_points < 4:
            raise ValueError(
                f"control_points is {self.control_points}; a cubic spline needs at least 4"
            )
        if self.inputs is not None:
            object.__setattr__(self, "inputs", input_names(self.inputs))

    @property
    def draws(self) -> int:
        """One, and two for each control point."""
        return 1 + 2 * self.control_points**2

    def draw(self, u: NDArray[np.float64]) -> Parameters:
        """Make `active`, `dx` and `dy`."""
        active = u[:, 0] < self.p
        n = self.control_points
        points = u[:, 1:].reshape(len(u), n, n, 2)
        # The root makes the points uniform over the disc, not crowded at its centre.
        radius = np.sqrt(points[..., 0]) * self.max_displacement * active[:, None, None]
        angle = 2 * np.pi * points[..., 1]
        return {"active": active, "dx": radius * np.cos(angle), "dy": radius * np.sin(angle)}

    def apply(self, inputs: Inputs, parameters: Parameters) -> Inputs:
        """Bend the active samples of each input."""
        active, dx, dy = (parameters[k] for k in ("active", "dx", "dy"))
        if not active.any():
            return inputs
        grids: dict[tuple[torch.device, bool, int], torch.Tensor] = {}
        chosen = inputs.tensors if self.inputs is None else self.inputs
        changed = {}
        for name in inputs.chosen(chosen, "Elastic"):
            nearest = name in inputs.masks
            if not nearest:
                check_image(inputs, name, "Elastic")

            def bend(
                samples: torch.Tensor, i: NDArray[np.int64], nearest: bool = nearest
            ) -> torch.Tensor:
                key = (samples.device, samples.dtype == torch.float64, int(i[0]))
                if key not in grids:
                    grids[key] = shift_grid(dx[i], dy[i], samples)
                return sample_grid(samples, grids[key], nearest=nearest)

            changed[name] = warp_samples(inputs, name, active, bend)
        return inputs.with_tensors(changed)
