"""What OME-Zarr 0.5 says of an image beside its pixels.

Specification: https://ngff.openmicroscopy.org/0.5/
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from hyperslab.conversion.plan import ZarrPlan
from hyperslab.exports.thumbnail import channel_color
from hyperslab.image import Image

__all__ = ["attributes"]

_TYPES = {"T": "time", "C": "channel", "Z": "space", "Y": "space", "X": "space"}
_UNITS = {
    "um": "micrometer", "nm": "nanometer", "mm": "millimeter", "cm": "centimeter", "m": "meter",
    "A": "angstrom", "Å": "angstrom", "pm": "picometer", "s": "second", "ms": "millisecond",
    "us": "microsecond", "min": "minute", "h": "hour",
}  # fmt: skip


def attributes(image: Image, plan: ZarrPlan) -> dict[str, Any]:
    """Return the attributes of the group: `ome`, and of what it was made.

    Reads a plane of each channel whose contrast the file does not say.
    """
    ome: dict[str, Any] = {
        "version": "0.5",
        "multiscales": [
            {
                "name": image.name or os.path.splitext(os.path.basename(image.file))[0],
                "axes": [_axis(image, axis) for axis in plan.order],
                "datasets": [
                    {
                        "path": str(i),
                        "coordinateTransformations": [
                            {"type": "scale", "scale": list(level.scale)},
                            {"type": "translation", "translation": list(level.translation)},
                        ],
                    }
                    for i, level in enumerate(plan.levels)
                ],
            }
        ],
    }
    if image.spec.labels:
        ome["image-label"] = {"version": "0.5"}
    elif plan.dtype != "bool" and image.dtype.kind != "c":
        channels = [_channel(image, i) for i in range(len(image.channels))]
        ome["omero"] = {"channels": channels, "rdefs": {"model": "color"}}
    made: dict[str, Any] = {"file": os.path.basename(image.file), "layout": image.layout}
    if image.timestamps is not None:
        made["timestamps"] = [moment.isoformat() for moment in image.timestamps]
    return {"ome": ome, "hyperslab": made}


def _axis(image: Image, axis: int) -> dict[str, str]:
    letter, unit = image.axes[axis], image.units[axis]
    found = {"name": letter.lower()}
    if letter in _TYPES:
        found["type"] = _TYPES[letter]
    if unit and letter != "C":
        found["unit"] = _UNITS.get(unit, unit)
    return found


def _channel(image: Image, number: int) -> dict[str, Any]:
    low, high = image.contrast_limits(number)
    least, most = low, high
    if image.dtype.kind in "iu":
        info = np.iinfo(image.dtype)
        least, most = float(info.min), float(info.max)
    color = channel_color(image.spec, number)
    parts = [int(255 * min(1.0, max(0.0, part)) + 0.5) for part in color]
    return {
        "label": image.channels[number].name,
        "color": "".join(f"{part:02X}" for part in parts),
        "active": True,
        "window": {"min": least, "max": most, "start": low, "end": high},
    }
