"""What becomes of the numbers of an image: an affine map of a window onto [-1, 1], and back.

Every map but "none" and "mask" takes a window of source values onto [-1, 1]; they differ in how the
window is found. So all can be undone: ``source = (stored - intercept) / slope``, for what was
inside the window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hyperslab.packing.refusal import Refused
from hyperslab.packing.volume import Volume

__all__ = ["DEFAULTS", "Fitted", "MapRule", "fit", "parse_map", "restore"]

# The window of CT is that of the SynthRAD challenges' evaluation.
DEFAULTS = {
    "CT": "window:-1024:3000",
    "CBCT": "window:-1024:3000",
    "MASK": "mask",
    "": "percentiles:0.5:99.5",
}
_HELP = (
    "window:LOW:HIGH (in the source's units), percentiles:LOW:HIGH (of the case's voxels), "
    "zscore:N (N standard deviations to either side of the case's mean, 3 unless given), none, mask"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRule:
    """How the window is found.

    Attributes
    ----------
    kind
        "window", "percentiles", "zscore", "none" or "mask".
    numbers
        LOW and HIGH, or N.
    """

    kind: str
    numbers: tuple[float, ...] = ()

    def __str__(self) -> str:
        return ":".join([self.kind, *(f"{value:g}" for value in self.numbers)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A map, as it is for one image.

    Attributes
    ----------
    rule
        How its window was found.
    slope, intercept
        ``stored = source * slope + intercept``.
    low, high
        The window, in the source's units: what is below or above is stored as its end.
    source_range
        Least and greatest value of the image.
    dtype
        Of what is stored.
    """

    rule: MapRule
    slope: float
    intercept: float
    low: float
    high: float
    source_range: tuple[float, float]
    dtype: np.dtype[Any]

    @property
    def is_plain(self) -> bool:
        """Whether values are stored as they are."""
        return self.rule.kind in ("none", "mask")

    def apply(self, real: NDArray[np.float64]) -> tuple[NDArray[Any], int]:
        """Return what is stored for source values, and how many of them were outside the window.

        Raises
        ------
        Refused
            A mask has values that are no whole numbers.
        """
        if self.is_plain:
            if self.rule.kind == "mask" and not np.array_equal(real, np.rint(real)):
                raise Refused("a mask has values that are no whole numbers")
            return real.astype(self.dtype), 0
        outside = int(np.count_nonzero((real < self.low) | (real > self.high)))
        real *= self.slope
        real += self.intercept
        np.clip(real, -1.0, 1.0, out=real)
        return real.astype(self.dtype), outside


def parse_map(text: str) -> MapRule:
    """Read a map as it is written on the command line.

    Raises
    ------
    ValueError
        It makes no sense.

    Examples
    --------
    >>> print(parse_map("window:-1000:2000"), parse_map("zscore"))
    window:-1000:2000 zscore:3
    """
    kind, *parts = text.strip().lower().split(":")
    try:
        numbers = tuple(float(part) for part in parts)
    except ValueError:
        numbers = (math.nan,)
    if kind == "zscore" and not numbers:
        numbers = (3.0,)
    n = {"window": 2, "percentiles": 2, "zscore": 1, "none": 0, "mask": 0}.get(kind)
    sound = n == len(numbers) and all(map(math.isfinite, numbers))
    if sound and n == 2:
        sound = numbers[0] < numbers[1]
    if sound and kind == "percentiles":
        sound = numbers[0] >= 0 and numbers[1] <= 100
    if sound and kind == "zscore":
        sound = numbers[0] > 0
    if not sound:
        raise ValueError(f"{text!r} is no map. Maps: {_HELP}.")
    return MapRule(kind=kind, numbers=numbers)


def fit(rule: MapRule, volume: Volume) -> Fitted:
    """Find the window of an image.

    Raises
    ------
    Refused
        It has values that are no finite numbers, or no two that differ, so that there is no window;
        or, of a mask, values that do not fit into uint8.

    Notes
    -----
    Percentiles, mean and standard deviation are of all voxels of the image. Takes one slice at a
    time, but for percentiles, which take a copy.
    """
    low, high = _range(volume)
    if rule.kind == "mask" and not (low >= 0 and high <= 255):
        raise Refused(f"a mask has values from {low:g} to {high:g}, which do not fit into uint8")
    if rule.kind in ("none", "mask"):
        dtype = np.dtype(np.uint8) if rule.kind == "mask" else _own_dtype(volume)
        return Fitted(
            rule=rule, slope=1.0, intercept=0.0, low=low, high=high, source_range=(low, high),
            dtype=dtype,
        )  # fmt: skip
    if rule.kind == "window":
        start, end = rule.numbers
    elif rule.kind == "percentiles":
        start, end = _percentiles(volume, rule.numbers)
    else:
        mean, deviation = _moments(volume)
        start, end = (mean - rule.numbers[0] * deviation, mean + rule.numbers[0] * deviation)
    if not start < end:
        raise Refused(f"{rule} finds no window: it begins and ends at {start:g}")
    slope = 2.0 / (end - start)
    return Fitted(
        rule=rule,
        slope=slope,
        intercept=-1.0 - start * slope,
        low=start,
        high=end,
        source_range=(low, high),
        dtype=np.dtype(np.float32),
    )


def _own_dtype(volume: Volume) -> np.dtype[Any]:
    plain = volume.slope == 1 and volume.intercept == 0
    return volume.values.dtype.newbyteorder("=") if plain else np.dtype(np.float32)


def _slices(volume: Volume) -> range:
    return range(volume.values.shape[2])


def _range(volume: Volume) -> tuple[float, float]:
    ends = []
    for k in _slices(volume):
        plane = volume.values[:, :, k]
        ends += [float(plane.min()), float(plane.max())]
    # A NaN makes the least and the greatest of its slice one.
    if not all(map(math.isfinite, ends)):
        n = sum(int((~np.isfinite(volume.values[:, :, k])).sum()) for k in _slices(volume))
        raise Refused(f"{n} voxels are no finite numbers (NaN or infinite)")
    scaled = [end * volume.slope + volume.intercept for end in (min(ends), max(ends))]
    return min(scaled), max(scaled)


def _percentiles(volume: Volume, wanted: tuple[float, ...]) -> list[float]:
    """Return percentiles, interpolated linearly between values, in float64."""
    if volume.slope < 0:
        wanted = tuple(100 - p for p in wanted)
    ordered = volume.values.flatten()
    places = [p / 100 * (ordered.size - 1) for p in wanted]
    ordered.partition(sorted({end for at in places for end in (math.floor(at), math.ceil(at))}))
    found = []
    for at in places:
        below, above = float(ordered[math.floor(at)]), float(ordered[math.ceil(at)])
        value = below + (above - below) * (at - math.floor(at))
        found.append(value * volume.slope + volume.intercept)
    return found


def _moments(volume: Volume) -> tuple[float, float]:
    """Return mean and standard deviation; by two passes, since one would cancel."""
    planes = [(slice(None), slice(None), slice(k, k + 1)) for k in _slices(volume)]
    n = volume.values.size
    mean = math.fsum(float(volume.real(plane).sum()) for plane in planes) / n
    square = math.fsum(float(((volume.real(plane) - mean) ** 2).sum()) for plane in planes)
    return mean, math.sqrt(square / n)


def restore(stored: ArrayLike, attributes: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the source's values of what was packed, in its units (HU for CT).

    Parameters
    ----------
    stored
        Elements of a dataset, or of a network's prediction of them.
    attributes
        Of the dataset: "slope" and "intercept" count.

    Returns
    -------
    ndarray
        float64, of the same shape; new memory. What was outside of the window comes back as the end
        of the window. Within, a value comes back to a ten-millionth of the window's width; of a
        source of whole numbers, round it.

    Raises
    ------
    ValueError
        The attributes are not those of a packed dataset.

    Examples
    --------
    >>> restore([-1, 0, 1], {"slope": 2 / 4024, "intercept": -1 + 1024 * 2 / 4024}).round()
    array([-1024.,   988.,  3000.])
    """
    try:
        slope, intercept = (float(attributes[name]) for name in ("slope", "intercept"))
    except KeyError as error:
        raise ValueError(
            f"The dataset has no attribute {error}, so `hyperslab pack` has not written it, and "
            "nothing is known of its source's values."
        ) from error
    return (np.asarray(stored, np.float64) - intercept) / slope
