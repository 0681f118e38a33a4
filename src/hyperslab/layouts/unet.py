"""Training volumes: `raw` and `label` (and `weight`) at the top of a file, as 3-D U-Nets take them.

`raw` is ([C,] Z, Y, X) or ([C,] Y, X); `label` has the same pixels. `element_size_um` (z, y, x), an
attribute that some writers add, gives the size of a pixel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyperslab.errors import LayoutError
from hyperslab.layouts.axes import Axis
from hyperslab.layouts.items import numbers, read_text, warn
from hyperslab.layouts.links import child
from hyperslab.layouts.single import describe_single, is_image
from hyperslab.layouts.spec import ImageSpec

if TYPE_CHECKING:
    import h5py

__all__ = ["describe", "images", "matches"]

_NAMES = ("raw", "label", "weight")
_LABEL = "label"
_SPACE = "ZYX"


def matches(h5: h5py.File) -> bool:
    """Whether there is `raw`, or whole-numbered labels of nothing; opens a few datasets at most."""
    found = images(h5)
    if "raw" in found or _LABEL not in found:
        return "raw" in found
    return child(h5, _LABEL).dtype.kind in "iu" and child(h5, "image") is None


def images(h5: h5py.File) -> tuple[str, ...]:
    """Name the volumes."""
    return tuple(
        name
        for name in _NAMES
        if is_image(item := child(h5, name), kinds="biuf") and item.ndim <= 4
    )


def describe(h5: h5py.File, path: str, image: str) -> ImageSpec:
    """Describe one of the volumes.

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
        Three axes are ZYX, unless `raw` and `label` differ by a leading axis: that is C then.

    Raises
    ------
    LayoutError
        There is no such image.

    Warns
    -----
    MetadataWarning
        If `element_size_um` is there and makes no sense.
    """
    found = images(h5)
    if image not in found:
        raise LayoutError(
            f"{path}: there is no volume {image!r}; the file holds "
            f"{', '.join(map(repr, found)) or 'none'}.",
            file=path,
        )
    data = child(h5, image)
    others = [child(h5, name).shape for name in found if name != image]
    letters = "CZYX"[-data.ndim :]
    if data.ndim == 3 and data.shape[1:] in others:
        letters = "CYX"
    said = read_text(data, "element_size_um")
    sizes = numbers(said)
    if said is not None and (sizes is None or len(sizes) != 3 or min(sizes) <= 0):
        warn(
            path,
            f"/{image} has element_size_um = {said!r}, not three positive sizes (z, y, x): using "
            "size 1 without a unit.",
        )
        sizes = None
    known = dict(zip(_SPACE, sizes, strict=True)) if sizes else {}
    axes = [
        Axis(letter=letter, scale=known[letter], unit="um")
        if letter in known
        else Axis(letter=letter)
        for letter in letters
    ]
    return describe_single(
        data, axes, layout="unet", file=path, name=image, path=f"/{image}",
        labels=image == _LABEL and data.dtype.kind in "biu",
    )  # fmt: skip
