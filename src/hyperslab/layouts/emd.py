"""EMD, electron microscopy data: groups that say `emd_group_type` = 1.

Such a group holds one dataset and, for every axis, a vector `dim1`, `dim2` ... with attributes
`name` and `units`; two values are enough for an axis of any size. The dataset is called `data`; in
files of version 0.5 also `realslice`, `datacube` and so on. From version 1 the type is "array" and
counting starts at `dim0`.

Sources of the format facts: the EMD pages of its authors in Berkeley, and files of four writers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperslab.errors import LayoutError
from hyperslab.layouts.axes import Axis, axis_letters, axis_of, read_vector, tidy_unit
from hyperslab.layouts.items import as_text, read_text
from hyperslab.layouts.links import child
from hyperslab.layouts.single import describe_single, is_image, names_in, objects_below
from hyperslab.layouts.spec import ChannelSpec, ImageSpec

if TYPE_CHECKING:
    import h5py

__all__ = ["describe", "images", "matches"]

_DEPTH = 6
_DIM = re.compile(r"dim[0-9]+")
_ARRAYS = ("1", "array")  # types of a group that holds an array
_MOST_NAMES = 1000


def matches(h5: h5py.File) -> bool:
    """Whether some group says that it holds an EMD array, and that can be an image."""
    hints = ("version_major", "emd_group_type")
    tops = [h5, *(child(h5, name) for name in names_in(h5)[:100])]
    return any(read_text(top, hint) for top in tops for hint in hints) and bool(images(h5))


def images(h5: h5py.File) -> tuple[str, ...]:
    """Name the images: the paths of their groups."""
    return tuple(_find(h5))


def _find(h5: h5py.File) -> dict[str, str]:
    """Name of the dataset by path of its group."""
    found = {}
    for path, item in objects_below(h5, depth=_DEPTH):
        if read_text(item, "emd_group_type") in _ARRAYS:
            name = _data_name(item)
            if name is not None:
                found[path] = name
    return found


def _data_name(group: Any) -> str | None:
    if is_image(child(group, "data")):
        return "data"
    names = [n for n in names_in(group) if not _DIM.fullmatch(n) and is_image(child(group, n))]
    return names[0] if len(names) == 1 else None


def describe(h5: h5py.File, path: str, image: str) -> ImageSpec:
    """Describe the array of an EMD group.

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
        Axes by their names: "R_x" is X; where both "R_x" and "Q_x" are there, the last is. An axis
        whose vector is one of texts is C, and these name its channels.

    Raises
    ------
    LayoutError
        There is no such image.

    Warns
    -----
    MetadataWarning
        Where the vector of an axis makes no sense.
    """
    found = _find(h5)
    if image not in found:
        raise LayoutError(
            f"{path}: there is no EMD array {image!r}; the file holds "
            f"{', '.join(map(repr, found)) or 'none'}.",
            file=path,
        )
    group, where = child(h5, image), f"/{image}/{found[image]}"
    data = child(h5, where)
    first = 0 if child(group, "dim0") is not None else 1
    dims = [child(group, f"dim{first + i}") for i in range(data.ndim)]
    texts = [_texts(dim, size) for dim, size in zip(dims, data.shape, strict=True)]
    names = [
        "channel" if t else read_text(d, "name") or "" for t, d in zip(texts, dims, strict=True)
    ]
    letters = axis_letters(names)
    axes = []
    for i, (letter, dim, size) in enumerate(zip(letters, dims, data.shape, strict=True)):
        if dim is None or texts[i]:
            axes.append(Axis(letter=letter))
            continue
        unit = tidy_unit(read_text(dim, "units"))
        subject = f"dim{first + i} of {image!r}"
        axes.append(
            axis_of(
                letter, size, read_vector(dim),
                unit=unit, file=path, subject=subject, first_two=True,
            )
        )  # fmt: skip
    labels = texts[letters.index("C")] if "C" in letters else None
    channels = [ChannelSpec(name=name) for name in labels] if labels else None
    return describe_single(
        data, axes, layout="emd", file=path, name=image, path=where, channels=channels
    )


def _texts(dim: Any, size: int) -> list[str] | None:
    """Texts of a vector, one for each index of an axis; None if it holds anything else."""
    try:
        if dim is None or dim.shape != (size,) or dim.dtype.kind not in "SUO" or size > _MOST_NAMES:
            return None
        values = [as_text(value) for value in np.asarray(dim[()]).ravel()]
    except (AttributeError, OSError, RuntimeError, TypeError, ValueError):
        return None  # a group, a damaged dataset, a type without a NumPy one
    return [value or f"Channel {i}" for i, value in enumerate(values)]
