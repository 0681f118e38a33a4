"""MINC 2: the medical images of the Montreal Neurological Institute.

`/minc-2.0/image/0/image` is the image, its attribute `dimorder` names the axes, and
`/minc-2.0/dimensions` says where they lie. Stored integers stand for real values: `valid_range`
maps onto `image-min` to `image-max`, which there is one of for each slice. Coarser levels
(`image/1` ...) have a scaling of their own and are left out.

Source of the format facts: the MINC 2 documentation of libminc, and files of three writers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.errors import LayoutError
from hyperslab.layouts.axes import Axis, axis_letters, axis_of, read_vector, tidy_unit
from hyperslab.layouts.items import number, numbers, read_text, warn
from hyperslab.layouts.links import child
from hyperslab.layouts.single import arrange, describe_single, is_image
from hyperslab.layouts.spec import ImageSpec, IntensitySpec

if TYPE_CHECKING:
    import h5py

__all__ = ["describe", "matches"]

_FOLDER = "/minc-2.0/image/0"
_IMAGE = f"{_FOLDER}/image"
_DIMENSIONS = "/minc-2.0/dimensions"
_USUAL = ("time", "zspace", "yspace", "xspace")
_OBLIQUE = 1e-3  # how far a direction may be off its axis before it is worth a warning
_MOST_CONSTANTS = 1 << 16  # slopes to keep, rather than to have an unusual order of axes


def matches(h5: h5py.File) -> bool:
    """Whether the file has an image where MINC keeps it; opens one dataset."""
    return is_image(child(h5, _IMAGE), kinds="biuf")


def describe(h5: h5py.File, path: str, image: str = "") -> ImageSpec:
    """Describe the image of a MINC 2 file; pixels are not read.

    Parameters
    ----------
    h5
        The open file. No reference to it is kept.
    path
        Its path, for messages and for the result.
    image
        "", for there is one image.

    Returns
    -------
    ImageSpec
        Axes in the order T, C (vector_dimension), Z, Y, X, except where each slice along Y or X
        has a scaling of its own, and the image is large: then that axis is the first. `scale` is
        negative where the file's step is. Sizes are in mm where the file gives no unit, times in s.
        `intensity` gives real values; for stored values outside of `valid_range` it means nothing.

    Raises
    ------
    LayoutError
        There is no image in the file.

    Warns
    -----
    MetadataWarning
        For steps, starts and ranges that are missing or make no sense; for axes that are not
        those of the scanner, because the rotation is left out.

    Notes
    -----
    Reads `image-min` and `image-max`: one number a slice.
    """
    data = child(h5, _IMAGE)
    if not is_image(data, kinds="biuf"):
        raise LayoutError(
            f"{path}: a MINC 2 image was asked for, but {_IMAGE} is no dataset of real numbers "
            "with two axes or more. `hyperslab info` lists what is there.",
            file=path,
        )
    names = _dimension_order(data, path)
    letters = axis_letters(["channel" if n == "vector_dimension" else n for n in names])
    axes = []
    for letter, name, size in zip(letters, names, data.shape, strict=True):
        axes.append(_axis(child(h5, f"{_DIMENSIONS}/{name}"), letter, name, size, path))
    order = arrange(letters)
    intensity = None
    if data.dtype.kind in "iu":
        order, intensity = _intensity(h5, data, order, path)
    kind = read_text(child(h5, "/minc-2.0"), "class") or ""
    return describe_single(
        data, axes, layout="minc2", file=path, name="", path=_IMAGE,
        order=order, intensity=intensity, labels=kind.startswith("label"),
    )  # fmt: skip


def _dimension_order(data: h5py.Dataset, path: str) -> list[str]:
    said = read_text(data, "dimorder")
    names = [name.strip() for name in (said or "").split(",") if name.strip()]
    if len(names) == data.ndim == len(set(names)):
        return names
    usual = ["vector_dimension", *_USUAL][-data.ndim :]
    usual = [f"axis{i}" for i in range(data.ndim - len(usual))] + usual
    warn(
        path,
        f"{_IMAGE} has {data.ndim} axes and dimorder = {said!r}: using {','.join(usual)}.",
    )
    return usual


def _axis(item: Any, letter: str, name: str, size: int, path: str) -> Axis:
    if letter == "C":
        return Axis(letter=letter)
    spatial = letter in "ZYX"
    unit = tidy_unit(read_text(item, "units")) or {"T": "s"}.get(letter, "mm" if spatial else "")
    if (read_text(item, "spacing") or "").startswith("irregular"):
        subject = f"{_DIMENSIONS}/{name}"
        return axis_of(letter, size, read_vector(item), unit=unit, file=path, subject=subject)
    step, start = (number(read_text(item, which)) for which in ("step", "start"))
    problems = [
        f"{which} {value}"
        for which, value, usable in (
            ("step", step, bool(step)),
            ("start", start, start is not None),
        )
        if not usable
    ]
    if problems:
        warn(
            path,
            f"{_DIMENSIONS}/{name} has {', '.join(problems)}: using "
            f"{'step 1' if not step else ''}{' and ' if len(problems) > 1 else ''}"
            f"{'start 0' if start is None else ''}.",
        )
    scale, first = float(step or 1), float(start or 0)
    if spatial:
        _check_direction(item, letter, name, path)
        if (read_text(item, "alignment") or "").startswith("start"):
            return Axis(
                letter=letter, scale=scale, translation=first + scale / 2, origin=first, unit=unit
            )
    return Axis(letter=letter, scale=scale, translation=first, unit=unit)


def _check_direction(item: Any, letter: str, name: str, path: str) -> None:
    said = numbers(read_text(item, "direction_cosines"))
    if said is None:
        return
    straight = [float(axis == letter) for axis in "XYZ"]
    if len(said) != 3 or any(abs(a - b) > _OBLIQUE for a, b in zip(said, straight, strict=True)):
        warn(
            path,
            f"{_DIMENSIONS}/{name} has the direction {said}: using the axis {name} itself, "
            "without the rotation.",
        )


def _intensity(
    h5: h5py.File, data: h5py.Dataset, order: tuple[int, ...], path: str
) -> tuple[tuple[int, ...], IntensitySpec | None]:
    """Order of the axes, and slopes and offsets over the first of them."""
    low, high = _slice_limits(h5, data, "image-min"), _slice_limits(h5, data, "image-max")
    if low is None or high is None or (low.ndim and high.ndim and low.shape != high.shape):
        warn(
            path,
            f"{_FOLDER}: image-min and image-max are missing, or are not one number a slice: "
            "using the stored numbers as they are.",
        )
        return order, None
    stored_low, stored_high = _valid_range(data, path)
    low, high = np.broadcast_arrays(low, high)
    slope = (high - low) / (stored_high - stored_low)
    offset = low - stored_low * slope
    ndim, k = data.ndim, slope.ndim
    varying = [i for i in range(k) if data.shape[i] > 1]
    if np.all(slope == slope.flat[0]) and np.all(offset == offset.flat[0]):
        varying = []
    n_axes = 1 + max((order.index(i) for i in varying), default=-1)
    if math.prod(data.shape[i] for i in order[:n_axes]) > max(slope.size, _MOST_CONSTANTS):
        order = tuple(sorted(order, key=lambda i: i not in varying))
        n_axes = len(varying)
    shape = tuple(int(data.shape[i]) for i in order[:n_axes])

    def spread(values: NDArray[np.float64]) -> tuple[float, ...]:
        whole = values.reshape(values.shape + (1,) * (ndim - k)).transpose(order)
        table = whole[(slice(None),) * n_axes + (0,) * (ndim - n_axes)]
        return tuple(np.broadcast_to(table, shape).ravel().tolist())

    return order, IntensitySpec(n_axes=n_axes, slope=spread(slope), offset=spread(offset))


def _slice_limits(h5: h5py.File, data: h5py.Dataset, name: str) -> NDArray[np.float64] | None:
    """Limits over the first axes of the image; None if they are not that, or not finite."""
    import h5py

    item = child(h5, f"{_FOLDER}/{name}")
    try:
        if not isinstance(item, h5py.Dataset) or item.shape is None or item.dtype.kind not in "iuf":
            return None
        if item.ndim >= data.ndim or item.shape != data.shape[: item.ndim]:
            return None
        values = np.asarray(item[()], np.float64)
    except (OSError, RuntimeError, TypeError, ValueError, KeyError):
        return None  # damaged, or packed by a filter that is not installed
    return values if np.all(np.isfinite(values)) else None


def _valid_range(data: h5py.Dataset, path: str) -> tuple[float, float]:
    """Stored values that stand for image-min and image-max: the type's own, where not given."""
    limits = np.iinfo(data.dtype)
    said = read_text(data, "valid_range")
    if said is None:
        return float(limits.min), float(limits.max)
    found = numbers(said)
    if found is None or len(found) != 2 or not limits.min <= found[0] < found[1] <= limits.max:
        warn(
            path,
            f"{_IMAGE} has valid_range = {said!r}, which is no range of {data.dtype}: using "
            f"{limits.min} to {limits.max}.",
        )
        return float(limits.min), float(limits.max)
    return found[0], found[1]
