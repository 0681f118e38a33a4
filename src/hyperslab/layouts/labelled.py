"""Datasets whose dimensions have labels: HDF5's own way to say what an array's axes are.

A dataset is an image if every dimension has a label that means something ("t", "z", "y", "x",
"channel"), Y and X are among them, and none comes twice. Two attributes are read besides:
`element_size_um` (z, y, x) and `channel_names`, as SIMA's files of calcium imaging have them.

Source of the format facts: the HDF5 dimension scale specification, and files of two writers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hyperslab.errors import LayoutError
from hyperslab.layouts.axes import (
    Axis,
    axis_letters,
    axis_of,
    labels_of,
    meant_by,
    read_vector,
    scale_of,
    tidy_unit,
)
from hyperslab.layouts.items import as_text, read_text, warn
from hyperslab.layouts.links import child
from hyperslab.layouts.single import describe_single, is_image, objects_below
from hyperslab.layouts.spec import ChannelSpec, ImageSpec
from hyperslab.layouts.volumes import element_size

if TYPE_CHECKING:
    import h5py

__all__ = ["describe", "images", "matches"]

_DEPTH, _MOST = 4, 300  # how far to look for datasets, for any HDF5 file may be asked
_SPACE = "ZYX"


def matches(h5: h5py.File) -> bool:
    """Whether one of the first objects of the file has labels that make it an image."""
    return bool(images(h5))


def images(h5: h5py.File) -> tuple[str, ...]:
    """Name the images: the paths of their datasets."""
    return tuple(
        path for path, item in objects_below(h5, depth=_DEPTH, most=_MOST) if _is_labelled(item)
    )


def _is_labelled(item: Any) -> bool:
    if not is_image(item):
        return False
    meant = [meant_by(label) for label in labels_of(item)]
    return None not in meant and len(set(meant)) == len(meant) and {"Y", "X"} <= set(meant)


def describe(h5: h5py.File, path: str, image: str) -> ImageSpec:
    """Describe a dataset by the labels of its dimensions.

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
        Step, position and unit of an axis come from the dimension's scale, else from
        `element_size_um`.

    Raises
    ------
    LayoutError
        There is no such image.

    Warns
    -----
    MetadataWarning
        Where a scale, `element_size_um` or `channel_names` do not fit the dataset.

    Notes
    -----
    Reads the scales of the dimensions.
    """
    data = child(h5, image)
    if not _is_labelled(data):
        raise LayoutError(
            f"{path}: {image!r} is no dataset whose dimensions have labels; the file holds "
            f"{', '.join(map(repr, images(h5))) or 'none'}.",
            file=path,
        )
    letters = axis_letters(labels_of(data))
    n_space = sum(letter in _SPACE for letter in letters)
    sizes, unit = element_size(data, n_space, file=path)
    known = dict(zip(_SPACE[-n_space:], sizes, strict=True)) if unit else {}
    axes = []
    for i, (letter, size) in enumerate(zip(letters, data.shape, strict=True)):
        scale = scale_of(data, i)
        values = read_vector(scale)
        if values is not None and letter != "C":
            said = tidy_unit(read_text(scale, "UNIT") or read_text(scale, "units"))
            subject = f"the scale of axis {letter} of /{image}"
            axes.append(axis_of(letter, size, values, unit=said, file=path, subject=subject))
        elif letter in known:
            axes.append(Axis(letter=letter, scale=known[letter], unit=unit))
        else:
            axes.append(Axis(letter=letter))
    count = data.shape[letters.index("C")] if "C" in letters else 1
    return describe_single(
        data, axes, layout="labelled", file=path, name=image, path=f"/{image}",
        channels=[ChannelSpec(name=name) for name in _channel_names(data, count, path)],
    )  # fmt: skip


def _channel_names(data: h5py.Dataset, count: int, path: str) -> list[str]:
    """Names from `channel_names`; numbers, with a warning, where that has not one for each."""
    numbered = [f"Channel {i}" for i in range(count)]
    try:
        said = data.attrs.get("channel_names")
    except (OSError, RuntimeError, TypeError, ValueError, KeyError):
        return numbered  # a type that h5py has no NumPy type for, or damaged
    if said is None:
        return numbered
    names = [as_text(name) for name in np.atleast_1d(said).ravel()]
    if len(names) != count:
        warn(
            path,
            f"{data.name} has channel_names for {len(names)} of {count} channels: using numbers.",
        )
        return numbered
    return [name or number for name, number in zip(names, numbered, strict=True)]
