"""Velox files (.emd of Thermo Fisher microscopes): `/Data/Image/ID/Data`, (row, column, frame).

`Metadata` beside it holds JSON for every frame, as bytes in a column: pixel size, position,
detector. `/Presentation/Displays/ImageDisplay` says in JSON how an image was shown: its label, its
contrast, its gamma.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

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
_DISPLAYS = "Presentation/Displays/ImageDisplay"
_MOST_TEXT = 1 << 20  # bytes of metadata of one frame
_MOST_DISPLAYS = 1000


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
        Axes TYX. The channel has the label, contrast and gamma with which the image was shown; the
        detector's name where it was not shown.

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
    Reads the metadata of the first frame, 60 kB, and how the file's images were shown, 1 kB each.
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
    shown = _shown(h5, where)
    channel = ChannelSpec(
        name=unquote(_text(shown, "display", "label") or "")
        or _text(facts, "Detector")
        or "Channel 0",
        contrast_limits=_limits(shown),
        gamma=_gamma(shown),
    )
    return describe_single(
        child(h5, f"{where}/Data"), [*axes, Axis(letter="T")], layout="velox", file=path,
        name=image, path=f"{where}/Data", channels=[channel],
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
        raw = item[:, 0].tobytes()
    except (AttributeError, IndexError, OSError, RuntimeError, TypeError, ValueError, KeyError):
        return None  # a group, damaged bytes
    found = _parse(raw)
    return found.get("BinaryResult") if isinstance(found, dict) else None


def _shown(h5: h5py.File, where: str) -> Any:
    """How the image at `where` was shown; None if it was not, or that is no JSON."""
    displays = child(h5, _DISPLAYS)
    for name in names_in(displays)[:_MOST_DISPLAYS]:
        item = child(displays, name)
        try:
            raw = item[0] if item.shape == (1,) else None
        except (AttributeError, OSError, RuntimeError, TypeError, ValueError):
            continue  # a group, damaged bytes
        found = _parse(raw)
        if _text(found, "dataPath") == where:
            return found
    return None


def _parse(raw: Any) -> Any:
    """Read JSON, from bytes that a zero may end; None if it is none."""
    if not isinstance(raw, bytes):
        return None
    try:
        return json.loads(raw.split(b"\0", 1)[0])
    except ValueError:
        return None
    except RecursionError:  # JSON can be nested without end
        return None


def _limits(shown: Any) -> tuple[float, float] | None:
    low, high = (number(_text(shown, "displayLevelsRange", end)) for end in ("begin", "end"))
    if low is None or high is None or low >= high:
        return None
    return float(low), float(high)


def _gamma(shown: Any) -> float | None:
    said = number(_text(shown, "gamma"))
    return float(said) if said is not None and said > 0 else None


def _text(facts: Any, *keys: str) -> str | None:
    for key in keys:
        facts = facts.get(key) if isinstance(facts, dict) else None
    return as_text(facts)
