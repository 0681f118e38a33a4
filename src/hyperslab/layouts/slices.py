"""Slices for segmentation, one file each: `image` with `label` (ACDC) or `mask` (BraTS) beside it.

An image is (H, W), or (H, W, C) with a few modalities last; ACDC's whole volumes are (D, H, W).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyperslab.errors import LayoutError
from hyperslab.layouts.axes import Axis
from hyperslab.layouts.links import child
from hyperslab.layouts.single import describe_single, is_image
from hyperslab.layouts.spec import ImageSpec

if TYPE_CHECKING:
    import h5py

__all__ = ["describe", "images", "matches"]

_IMAGE = "image"
_LABELS = ("label", "mask")
_MOST_CHANNELS = 8


def matches(h5: h5py.File) -> bool:
    """Whether there is an image with labels of the same pixels; opens three datasets at most."""
    return bool(images(h5))


def images(h5: h5py.File) -> tuple[str, ...]:
    """Name image and labels; nothing if they do not belong together."""
    names = [
        name
        for name in (_IMAGE, *_LABELS)
        if is_image(item := child(h5, name), kinds="biuf") and item.ndim <= 3
    ]
    shapes = [child(h5, name).shape for name in names]
    if len(names) < 2 or names[0] != _IMAGE:
        return ()
    return tuple(names) if all(_fits(shapes[0], shape) for shape in shapes[1:]) else ()


def _fits(image: tuple[int, ...], label: tuple[int, ...]) -> bool:
    """Whether both have the same pixels, whatever their channels."""
    if image == label:
        return True
    return (
        all(len(shape) == 2 or shape[2] <= _MOST_CHANNELS for shape in (image, label))
        and image[:2] == label[:2]
    )


def describe(h5: h5py.File, path: str, image: str) -> ImageSpec:
    """Describe the image or its labels.

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
        Of three axes, the last is C if it is at most 8 long; else they are ZYX.

    Raises
    ------
    LayoutError
        There is no such image.
    """
    found = images(h5)
    if image not in found:
        raise LayoutError(
            f"{path}: there is no image {image!r} with labels; the file holds "
            f"{', '.join(map(repr, found)) or 'none'}.",
            file=path,
        )
    data = child(h5, image)
    letters = "YX"
    if data.ndim == 3:
        letters = "YXC" if data.shape[2] <= _MOST_CHANNELS else "ZYX"
    axes = [Axis(letter=letter) for letter in letters]
    return describe_single(
        data, axes, layout="slices", file=path, name=image, path=f"/{image}",
        labels=image in _LABELS and data.dtype.kind in "biu",
    )  # fmt: skip
