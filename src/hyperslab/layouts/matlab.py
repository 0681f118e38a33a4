"""MATLAB v7.3: variables that can be images.

Every variable has an attribute `MATLAB_class`. MATLAB counts the first axis fastest, HDF5 the last,
so an array of size (Y, X, Z) in MATLAB has the shape (Z, X, Y) in the file. Fields of structures
are datasets in groups. What cell arrays and objects hold is below `/#refs#`, without names.

Source of the format facts: MATLAB's own files; its image conventions for what the axes mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hyperslab.errors import LayoutError
from hyperslab.layouts.axes import Axis
from hyperslab.layouts.items import read_text
from hyperslab.layouts.links import child, list_contents
from hyperslab.layouts.single import describe_single, is_image, names_in, objects_below
from hyperslab.layouts.spec import ChannelSpec, ImageSpec

if TYPE_CHECKING:
    import h5py

__all__ = ["describe", "images", "matches"]

_CLASS = "MATLAB_class"
_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_NUMBERS = _INTEGERS | {"double", "single", "logical"}
_DEPTH = 4
_FEW = 8  # pixels along a side: a smaller matrix is no image if there is a larger one
_MORE = "SNPQUVW"  # letters of axes beyond the fifth
_COLORS = (("Red", (1.0, 0.0, 0.0)), ("Green", (0.0, 1.0, 0.0)), ("Blue", (0.0, 0.0, 1.0)))


def matches(h5: h5py.File) -> bool:
    """Whether the file is MATLAB's, and has a variable that can be an image."""
    tagged = any(read_text(child(h5, name), _CLASS) for name in names_in(h5)[:100])
    return tagged and bool(images(h5))


def images(h5: h5py.File) -> tuple[str, ...]:
    """Names of the numeric variables, and fields of structures, that are no vectors.

    Matrices with less than 8 rows or columns are listed only if there is nothing larger.
    """
    found = {
        path: min(item.shape[-2:])
        for path, item in objects_below(h5, depth=_DEPTH, closed=_is_closed)
        if not path.startswith("#") and _can_be_image(item)
    }
    large = tuple(path for path, side in found.items() if side >= _FEW)
    return large or tuple(found)


def describe(h5: h5py.File, path: str, image: str) -> ImageSpec:
    """Describe one variable as an image; no pixel is read.

    Parameters
    ----------
    h5
        The open file. No reference to it is kept.
    path
        Its path, for messages and for the result.
    image
        Name of the variable, with "/" before the fields of structures.

    Returns
    -------
    ImageSpec
        One level, axes in the order TCZYX. MATLAB's axes are taken for Y, X, Z, C, T; for Y, X, C
        and Y, X, C, T where there are three integers a pixel, red, green and blue. Logical arrays
        are labels.

    Raises
    ------
    LayoutError
        If there is no such variable.
    """
    dataset = child(h5, image)
    if not _can_be_image(dataset):
        raise LayoutError(
            f"{path}: there is no numeric array {image!r}. The file holds: {list_contents(h5)}.",
            file=path,
        )
    kind = read_text(dataset, _CLASS)
    ndim = dataset.ndim
    # In MATLAB's order; the file's is the reverse.
    colored = 3 <= ndim <= 4 and dataset.shape[-3] == 3 and kind in _INTEGERS
    letters = {True: "YXCT", False: "YXZT" if ndim == 4 else "YXZCT" + _MORE}[colored][:ndim][::-1]
    channels = [ChannelSpec(name=name, color=color) for name, color in _COLORS]
    return describe_single(
        dataset,
        [Axis(letter=letter) for letter in letters],
        layout="matlab",
        file=path,
        name=image,
        path=f"/{image}",
        channels=channels if colored else None,
        labels=kind == "logical",
    )


def _can_be_image(item: Any) -> bool:
    """Whether `item` is a numeric array with rows and columns."""
    return (
        is_image(item, kinds="biuf")
        and min(item.shape[-2:]) > 1
        and item.ndim <= len("YXZCT" + _MORE)
        and read_text(item, _CLASS) in _NUMBERS
        and read_text(item, "MATLAB_empty") in (None, "0")
    )


def _is_closed(group: Any) -> bool:
    """Whether to leave out what a group holds: unnamed values, and the columns of a sparse one."""
    return str(group.name).startswith("/#") or read_text(group, "MATLAB_sparse") is not None
