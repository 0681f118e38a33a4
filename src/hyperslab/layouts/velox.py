"""Velox files (.emd of Thermo Fisher microscopes): `/Data/Image/ID/Data`, (row, column, frame).

`Metadata` beside it holds JSON for every frame, as bytes in a column: pixel size, position,
detector.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperslab.errors import LayoutError
from hyperslab.layouts.axes import Axis, tidy_unit
from hyperslab.layouts.items import as_text, number, warn
from hyperslab.layouts.links import child
from hyperslab.layouts.single import describe_single, is_image, names_in
from hyperslab.layouts.spec import ChannelSpec, ImageSpec

if TYPE_CHECKING:
    import h5py

__all__ = ["describe", "images", "matches"]

_TOP = "Data/Image"
_MOST_TEXT = 1 << 20  # bytes of metadata of one frame


def matches(h5: h5py.File) -> bool:
    """Whether there are images where Velox keeps them, with their metadata."""
    return bool(images(h5))


def images(h5: h5py.File) -> tuple[str, ...]:
    """Name the images: their IDs. Fourier transforms, pairs of numbers, are left out."""
    top = child(h5, _TOP)
    return tuple(name for name in names_in(top) if _is_frames(child(top, name)))


def _is_frames(group: Any) -> bool:
    data = child(group, "Data")
    return is_image(data) and data.ndim == 3 and child(group, "Metadata") is not None


def describe(h5: h5py.File, path: str, image: str) -> ImageSpec:
    """Describe the frames of one image.

    Parameters
    ----------
    h5
        The open file. No reference to it is kept.
    path
        Its path, for messages and for the result.
    image
        One of `images`.

    Returns
    -------
    ImageSpec
        Axes TYX; the channel has the detector's name.

    Raises
    ------
    LayoutError
        There is no such image.

    Warns
    -----
    MetadataWarning
        If the metadata give no pixel size.

    Notes
    -----
    Reads the metadata of the first frame, 60 kB.
    """
    found = images(h5)
    if image not in found:
        raise LayoutError(
            f"{path}: there is no Velox image {image!r}; the file holds "
            f"{', '.join(map(repr, found)) or 'none'}.",
            file=path,
        )
    where = f"/{_TOP}/{image}"
    facts = _metadata(child(h5, f"{where}/Metadata"))
    axes = [_axis(facts, "Y", "height", "y"), _axis(facts, "X", "width", "x")]
    if not all(axis.scale > 0 for axis in axes):
        axes = [Axis(letter="Y"), Axis(letter="X")]
        warn(path, f"{where}/Metadata gives no pixel size: using size 1 without a unit.")
    name = _text(facts, "Detector") or "Channel 0"
    return describe_single(
        child(h5, f"{where}/Data"), [*axes, Axis(letter="T")], layout="velox", file=path,
        name=image, path=f"{where}/Data", channels=[ChannelSpec(name=name)],
    )  # fmt: skip


def _axis(facts: Any, letter: str, size: str, offset: str) -> Axis:
    return Axis(
        letter=letter,
        scale=float(number(_text(facts, "PixelSize", size)) or 0),
        translation=float(number(_text(facts, "Offset", offset)) or 0),
        unit=tidy_unit(_text(facts, f"PixelUnit{letter}")),
    )


def _metadata(item: Any) -> Any:
    """What is said of the first frame's pixels; None if it is no JSON."""
    try:
        if item.ndim != 2 or item.dtype != np.uint8 or not 0 < item.shape[0] <= _MOST_TEXT:
            return None
        text = item[:, 0].tobytes().split(b"\0", 1)[0]
        return json.loads(text)["BinaryResult"]
    except (AttributeError, IndexError, OSError, RuntimeError, TypeError, ValueError, KeyError):
        return None  # a group, damaged bytes, text that is no JSON
    except RecursionError:  # JSON can be nested without end
        return None


def _text(facts: Any, *keys: str) -> str | None:
    for key in keys:
        facts = facts.get(key) if isinstance(facts, dict) else None
    return as_text(facts)
