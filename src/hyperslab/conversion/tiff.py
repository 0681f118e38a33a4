"""OME-TIFF: header by tifffile, planes one after the other, BigTIFF from 4 GB on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hyperslab.conversion.flat import FlatPlan
from hyperslab.errors import MissingExtraError, OutputError
from hyperslab.image import Image

__all__ = ["check_tiff", "create_tiff", "require_tifffile"]

_DTYPES = (
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip
_UNITS = {"um": "µm", "A": "Å", "pixel": "pixel"}
_KNOWN = {"m", "mm", "cm", "nm", "pm", "µm", "Å", "pixel", "s", "ms", "µs", "min", "h"}
_BIG_NBYTES = 4_000_000_000


def require_tifffile() -> None:
    """Raise `MissingExtraError` unless tifffile is installed."""
    try:
        import tifffile  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "tifffile":
            raise
        raise MissingExtraError(
            "TIFF needs tifffile, which is not installed here. Install it with: "
            "pip install 'hyperslab[zarr]' (in a clone of it: pip install '.[zarr]')",
            package="tifffile",
            extra="zarr",
        ) from error


def check_tiff(image: Image, plan: FlatPlan) -> None:
    """Raise `OutputError` unless an OME-TIFF can hold the array."""
    others = [letter for letter in plan.axes if letter not in "TZYX"]
    if plan.axes[-2:] != "YX" or len(others) > 1:
        raise OutputError(
            f"{image.file}: OME-TIFF has planes of Y and X, and besides T and Z one axis more at "
            f"most; this would have {plan.axes or 'none'}. Convert it to .npy, or say what its "
            "axes are (--layout DATASET --axes LETTERS)."
        )
    if plan.dtype not in _DTYPES:
        raise OutputError(
            f"{image.file}: OME-TIFF has no {plan.dtype}, but {', '.join(_DTYPES)}. Convert it to "
            ".npy or .ome.zarr."
        )
    if not plan.nbytes:
        raise OutputError(f"{image.file}: there are no pixels, and a TIFF has at least one.")


def create_tiff(path: Path, image: Image, plan: FlatPlan) -> int:
    """Make the file, as large as it will be; return where its elements begin."""
    import tifffile

    axes = "".join(letter if letter in "TZYX" else "C" for letter in plan.axes)
    # An axis of one for every one that there is not: so the planes' order is in no doubt.
    sizes = dict(zip(axes, plan.shape, strict=True))
    where = tifffile.imwrite(
        path,
        shape=tuple(sizes.get(letter, 1) for letter in "TCZYX"),
        dtype=plan.dtype,
        ome=True,
        bigtiff=plan.nbytes > _BIG_NBYTES,
        photometric="minisblack",
        metadata=_metadata(image, plan),
        returnoffset=True,
    )
    if where is None:
        raise OutputError(f"{path}: tifffile did not say where the planes are.")
    return int(where[0])


def _metadata(image: Image, plan: FlatPlan) -> dict[str, Any]:
    found: dict[str, Any] = {"axes": "TCZYX", "Name": image.name or Path(image.file).stem}
    for letter, scale, unit in zip(
        image.axes, image.levels[plan.level].scale, image.units, strict=True
    ):
        step = abs(float(scale))
        unit = _UNITS.get(unit, unit)
        key = {"T": "TimeIncrement"}.get(letter, f"PhysicalSize{letter}")
        if letter in "TZYX" and letter in plan.axes and unit in _KNOWN and step > 0:
            found[key] = step
            found[f"{key}Unit"] = unit
    names = [channel.name for channel in image.channels]
    chosen = range(len(names))
    if "C" in image.axes:
        index = plan.selection[image.axes.index("C")]
        chosen = range(len(names))[index] if isinstance(index, slice) else range(index, index + 1)
    sizes = dict(zip(plan.axes, plan.shape, strict=True))
    if len(chosen) == sizes.get("C", 1) and "C" in (*plan.axes, *image.axes):
        found["Channel"] = {"Name": [names[i] for i in chosen]}
        colors = [image.channels[i].color for i in chosen]
        if all(color is not None for color in colors):
            found["Channel"]["Color"] = [_rgba(color) for color in colors if color is not None]
    return found


def _rgba(color: tuple[float, float, float]) -> int:
    """Return a color as OME has it: red, green, blue, opacity in a signed number of 32 bits."""
    red, green, blue = (int(255 * min(1.0, max(0.0, part)) + 0.5) for part in color)
    return int(np.uint32(red << 24 | green << 16 | blue << 8 | 255).astype(np.int32))
