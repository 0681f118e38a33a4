"""`Samples`: which slice of which case each sample is, and which slices it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyperslab.torch.cohorts.cohort import Cohort
from hyperslab.torch.draws import stream_number, uniform

__all__ = ["Samples"]


class Samples:
    """The samples of a cohort: in order of case, then slice.

    Parameters
    ----------
    cohort
        Whose slices.
    kept
        Per slice of all cases: whether it is a sample; None for all.
    context
        By input: how many slices on each side are channels too.
    neighbour
        By input: probability that the next slice is taken instead.
    seed
        Of that.

    Attributes
    ----------
    case
        int32, per sample: the number of its case.
    number
        int32, per sample: its slice.
    """

    def __init__(
        self,
        cohort: Cohort,
        kept: NDArray[np.bool_] | None,
        *,
        context: Mapping[str, int],
        neighbour: Mapping[str, float],
        seed: int,
    ) -> None:
        self.cohort = cohort
        self.kept = kept
        self.context = context
        self.neighbour = neighbour
        self.seed = seed
        n_slices = cohort.shapes[:, cohort.axis]
        first = np.cumsum(n_slices) - n_slices
        case = np.repeat(np.arange(n_slices.size, dtype=np.int32), n_slices)
        number = (np.arange(case.size) - first[case]).astype(np.int32)
        self.case = case if kept is None else case[kept]
        self.number = number if kept is None else number[kept]

    def __reduce__(self) -> tuple[Any, ...]:
        options = (self.context, self.neighbour, self.seed)
        return _samples, (self.cohort, self.kept, *options)

    def __len__(self) -> int:
        return self.case.size

    def of(self, cohort: Cohort, cases: NDArray[np.int64]) -> Samples:
        """Return the samples of some cases: `cohort` has those with the numbers `cases`."""
        kept = self.kept
        if kept is not None:
            n = self.cohort.shapes[:, self.cohort.axis]
            kept = kept[np.isin(np.repeat(np.arange(n.size), n), cases)]
        return _samples(cohort, kept, self.context, self.neighbour, self.seed)

    def n_channels(self, name: str) -> int:
        """Return how many channels input `name` has."""
        return 2 * self.context[name] + 1

    def halo(self, name: str) -> tuple[int, int]:
        """Return how many slices before and after its own a sample may need of input `name`."""
        context = self.context[name]
        return context, context + (name in self.neighbour)

    def channels(self, name: str, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return which slices samples take of input `name`: int64, (samples, channels).

        Never those of another case: what lies beyond the first or last slice is that slice.
        """
        numbers = self.number[positions].astype(np.int64)
        if name in self.neighbour:
            stream = stream_number(f"neighbour:{name}")
            draws = uniform(self.seed, epoch, positions, stream, 1)[:, 0]
            numbers += draws < self.neighbour[name]
        last = self.cohort.shapes[self.case[positions], self.cohort.axis] - 1
        numbers = np.minimum(numbers, last)
        context = self.context[name]
        around = numbers[:, None] + np.arange(-context, context + 1)
        found: NDArray[np.int64] = np.clip(around, 0, last[:, None])
        return found

    def describe(self, positions: NDArray[np.int64]) -> dict[str, list[Any]]:
        """Return what samples hold beside images: a list for each key."""
        cohort = self.cohort
        cases: list[int] = self.case[positions].tolist()
        found: dict[str, list[Any]] = {
            "case": [cohort.cases[case] for case in cases],
            "slice": self.number[positions].tolist(),
            "sample": positions.tolist(),
        }
        if cohort.spacing is not None:
            order = [axis for axis in range(3) if axis != cohort.axis] + [cohort.axis]
            found["spacing"] = list(torch.from_numpy(cohort.spacing[cases][:, order]).unbind(0))
        return found


def _samples(
    cohort: Cohort,
    kept: NDArray[np.bool_] | None,
    context: Mapping[str, int],
    neighbour: Mapping[str, float],
    seed: int,
) -> Samples:
    return Samples(cohort, kept, context=context, neighbour=neighbour, seed=seed)
