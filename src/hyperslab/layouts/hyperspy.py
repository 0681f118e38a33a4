"""HyperSpy's own files (.hspy): `/Experiments/NAME/data`, with a group `axis-N` for every axis.

An axis has the attributes `name`, `scale`, `offset` (position of the first pixel), `units`,
`navigate` and, in old files, `index_in_array`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hyperslab.errors import LayoutError
from hyperslab.layouts.axes import Axis, axis_letters, tidy_unit
from hyperslab.layouts.items import number, read_text, warn
from hyperslab.layouts.links import child
from hyperslab.layouts.single import describe_single, is_image, names_in
from hyperslab.layouts.spec import ImageSpec

if TYPE_CHECKING:
    import h5py

__all__ = ["describe", "images", "matches"]

_TOP = "Experiments"


def matches(h5: h5py.File) -> bool:
    """Whether there is an experiment with axes, and its data can be an image."""
    return bool(images(h5))


def images(h5: h5py.File) -> tuple[str, ...]:
    """Name the experiments whose data have two axes or more."""
    top = child(h5, _TOP)
    return tuple(name for name in names_in(top) if _is_experiment(child(top, name)))


def _is_experiment(group: Any) -> bool:
    return child(group, "axis-0") is not None and is_image(child(group, "data"))


def describe(h5: h5py.File, path: str, image: str) -> ImageSpec:
    """Describe the data of one experiment.

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

    Raises
    ------
    LayoutError
        There is no such image.

    Warns
    -----
    MetadataWarning
        Where a scale or an offset is no number.
    """
    if image not in images(h5):
        raise LayoutError(
            f"{path}: there is no experiment {image!r} with an image; the file holds "
            f"{', '.join(map(repr, images(h5))) or 'none'}.",
            file=path,
        )
    group = child(child(h5, _TOP), image)
    data = child(group, "data")
    items = [child(group, f"axis-{i}") for i in range(data.ndim)]
    letters = axis_letters([read_text(item, "name") or "" for item in items])
    axes = [
        _axis(item, letter, path, f"axis-{i} of {image!r}")
        for i, (item, letter) in enumerate(zip(items, letters, strict=True))
    ]
    return describe_single(
        data, axes, layout="hyperspy", file=path, name=image, path=f"/{_TOP}/{image}/data"
    )


def _axis(item: Any, letter: str, path: str, subject: str) -> Axis:
    scale, offset = (number(read_text(item, name)) for name in ("scale", "offset"))
    step = 0.0 if scale is None else float(scale)
    if step == 0 or offset is None or not math.isfinite(1 / step):
        warn(path, f"{subject} gives no usable scale and offset: using steps of 1 from 0.")
        return Axis(letter=letter)
    unit = tidy_unit(read_text(item, "units"))
    return Axis(letter=letter, scale=step, translation=float(offset), unit=unit)
