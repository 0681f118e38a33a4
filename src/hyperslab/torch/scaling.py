"""Intensity scaling: constants of a whole case, applied to every slice of it alike.

The constants come from the facts of a case's volume (or are given), never from a slice or a crop:
those would be scaled differently from one to the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hyperslab.errors import SampleError
from hyperslab.torch.values.facts import DatasetFacts

__all__ = ["Constants", "Percentiles", "Scaling", "Window", "ZScore", "apply_scaling", "invert"]

_MOST = float(np.finfo(np.float32).max)  # what float32 tensors can be multiplied by


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """How the values of one case are scaled: ``clip((x - subtract) * multiply + add, low, high)``.

    Attributes
    ----------
    subtract
        In units of the data.
    multiply
        Never 0, always finite.
    add
        In units of the result.
    low, high
        Bounds of the result; -inf and inf for none. They are the same for a case without spread,
        all of whose values become that one.
    """

    subtract: float
    multiply: float
    add: float
    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Map the percentiles `lo` and `hi` of each case to the ends of `out`, linearly.

    Parameters
    ----------
    lo, hi
        In percent of the case's finite values.
    out
        What they become.
    clamp
        Limit values beyond them to `out`.

    Notes
    -----
    Where both percentiles are one value, or there are no values, every value becomes ``out[0]``.
    So it does in a volume of which nearly all is background: choose `hi` above its share.
    """

    lo: float = 1.0
    hi: float = 99.0
    out: tuple[float, float] = (-1.0, 1.0)
    clamp: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.lo < self.hi <= 100:
            raise ValueError(f"{self}: lo and hi are in percent, 0 <= lo < hi <= 100")
        _check_out(self)

    @property
    def quantiles(self) -> tuple[float, ...]:
        """Which quantiles the facts have to have, percent."""
        return (float(self.lo), float(self.hi))

    @property
    def needs_facts(self) -> bool:
        """True: the constants differ from case to case."""
        return True

    def constants(self, facts: DatasetFacts | None) -> Constants:
        """Return the constants of a case; its facts have to have `quantiles`.

        Raises
        ------
        SampleError
            The facts are of a damaged dataset.
        ValueError
            They lack what is needed.
        """
        found = _sound(self, facts)
        if not found.has(self.quantiles):
            raise ValueError(f"{self} needs facts with the quantiles {self.quantiles}")
        lo, hi = (found.quantiles[q] for q in self.quantiles)
        return _stretch(lo, hi, self.out, clamp=self.clamp)


@dataclass(frozen=True, slots=True)
class Window:
    """Map [lo, hi] to `out` linearly, for data in absolute units such as CT in Hounsfield units.

    Parameters
    ----------
    lo, hi
        In units of the data.
    out
        What they become.
    clamp
        Limit values beyond them to `out`.
    """

    lo: float
    hi: float
    out: tuple[float, float] = (-1.0, 1.0)
    clamp: bool = True

    def __post_init__(self) -> None:
        if not -math.inf < self.lo < self.hi < math.inf:
            raise ValueError(f"{self}: lo and hi are finite, and lo is the lower one")
        _check_out(self)

    @property
    def quantiles(self) -> tuple[float, ...]:
        """None."""
        return ()

    @property
    def needs_facts(self) -> bool:
        """False: the constants are the same for every case."""
        return False

    def constants(self, facts: DatasetFacts | None = None) -> Constants:
        """Return the constants of any case; `facts` are not looked at."""
        return _stretch(self.lo, self.hi, self.out, clamp=self.clamp)


@dataclass(frozen=True, slots=True)
class ZScore:
    """Subtract the mean of each case, and divide by its (population) standard deviation.

    Notes
    -----
    Where all values are one, or there are none, every value becomes 0.
    """

    @property
    def quantiles(self) -> tuple[float, ...]:
        """None."""
        return ()

    @property
    def needs_facts(self) -> bool:
        """True: the constants differ from case to case."""
        return True

    def constants(self, facts: DatasetFacts | None) -> Constants:
        """Return the constants of a case.

        Raises
        ------
        SampleError
            The facts are of a damaged dataset.
        ValueError
            There are none.
        """
        found = _sound(self, facts)
        if found.mean is None or found.std is None:
            raise ValueError(f"{self} needs facts with mean and std")
        return _constants(found.mean, 1.0, found.std, add=0.0, nothing=0.0)


Scaling = Percentiles | Window | ZScore


def apply_scaling(x: torch.Tensor, rows: Sequence[Constants]) -> None:
    """Scale a batch in place.

    Parameters
    ----------
    x
        (N, C, H, W), float32 or another floating dtype, on any device, of any strides.
    rows
        For each of the N samples, the constants of its case.

    Raises
    ------
    SampleError
        `x` holds no floating-point numbers.
    ValueError
        There are not N rows.

    Notes
    -----
    NaN stays NaN. Against float64 arithmetic the result is off by at most
    ``4 * eps * (|multiply * (x - subtract)| + |add|)``, eps being 2**-23 for float32, however far
    `subtract` is from 0. Four passes over `x` (three if nothing is clamped), and no temporary of
    its size.
    """
    if not x.dtype.is_floating_point:
        raise SampleError(
            f"scaling makes new values, and these are {x.dtype}. Ask for floating-point tensors of "
            "this input, or leave its scaling out."
        )
    if len(rows) != len(x):
        raise ValueError(f"{len(x)} samples need as many rows of constants, not {len(rows)}")
    wide = torch.tensor(
        [[row.subtract, row.multiply, row.add, row.low, row.high] for row in rows],
        dtype=torch.float64,
    ).reshape(-1, 5)
    # What rounding takes from `subtract`, `add` gives back.
    lost = wide[:, 0] - wide[:, 0].to(x.dtype).to(torch.float64)
    wide[:, 2] -= lost * wide[:, 1]
    columns = wide.to(device=x.device, dtype=x.dtype).T
    subtract, multiply, add, low, high = columns.reshape(5, -1, *[1] * (x.ndim - 1)).unbind()
    x.sub_(subtract).mul_(multiply).add_(add)
    if any(row.low > -math.inf or row.high < math.inf for row in rows):
        x.clamp_(low, high)


def invert(values: torch.Tensor, constants: Constants) -> torch.Tensor:
    """Return scaled values of one case in the units of its data again, such as Hounsfield units.

    Parameters
    ----------
    values
        Of any shape; what a model made, say.
    constants
        Those of the case.

    Returns
    -------
    torch.Tensor
        New memory, of the shape and dtype of `values`. Where scaling has clamped, the bound comes
        back; elsewhere the value, up to the rounding of `values`. A case without spread comes back
        as its one value.

    Notes
    -----
    Computes in float64, so it takes three times the memory of float32 values.
    """
    if constants.low == constants.high:
        return torch.where(values.isnan(), values, constants.subtract)
    wide = values.to(torch.float64, copy=True)
    return (
        wide.sub_(constants.add).div_(constants.multiply).add_(constants.subtract).to(values.dtype)
    )


def _stretch(lo: float, hi: float, out: tuple[float, float], *, clamp: bool) -> Constants:
    bounds = (out[0], out[1]) if clamp else (-math.inf, math.inf)
    return _constants(lo, out[1] - out[0], hi - lo, add=out[0], nothing=out[0], bounds=bounds)


def _constants(
    subtract: float,
    gain: float,
    spread: float,
    *,
    add: float,
    nothing: float,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Constants:
    """Return what takes `spread` to `gain`, and everything to `nothing` where there is no spread.

    There is none either where it is too small for float32 to divide by. NaN fails every comparison.
    """
    there = abs(subtract) <= _MOST
    if not (there and 0 < spread < math.inf and gain / spread <= _MOST):
        # Bounds do it, not a factor of 0: infinity times 0 is NaN.
        only = subtract if there else 0.0
        return Constants(subtract=only, multiply=1.0, add=0.0, low=nothing, high=nothing)
    return Constants(
        subtract=subtract, multiply=gain / spread, add=add, low=bounds[0], high=bounds[1]
    )


def _sound(scaling: Scaling, facts: DatasetFacts | None) -> DatasetFacts:
    if facts is None:
        raise ValueError(
            f"{scaling} needs the facts of each case: hyperslab.torch.values.facts.survey"
        )
    if facts.damage is not None:
        raise SampleError(f"{scaling} needs values, and there are none: {facts.damage}")
    return facts


def _check_out(scaling: Percentiles | Window) -> None:
    low, high = scaling.out
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"{scaling}: out is two finite numbers, the lower one first")
