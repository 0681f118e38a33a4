"""fastMRI: raw and reconstructed slices of one MR scan, with the scanner's header as XML.

`kspace` is (slice, [coil,] row, column), complex; `reconstruction_rss` or `reconstruction_esc` is
(slice, row, column). Rows run along the header's x, the direction of readout. The header
(`ismrmrd_header`) gives matrix and field of view of both.

Source of the format facts: the fastMRI data set's paper and the ISMRMRD header schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from hyperslab.errors import LayoutError
from hyperslab.layouts.axes import Axis
from hyperslab.layouts.items import number, read_text, warn
from hyperslab.layouts.links import child
from hyperslab.layouts.single import describe_single, is_image
from hyperslab.layouts.spec import ChannelSpec, ImageSpec

if TYPE_CHECKING:
    import h5py

__all__ = ["describe", "images", "matches"]

_HEADER = "ismrmrd_header"
_RECONSTRUCTIONS = ("reconstruction_rss", "reconstruction_esc")
_RAW = "kspace"
_MASK = "mask"
_NAMES = (*_RECONSTRUCTIONS, _RAW, _MASK)
_AXES = {2: "YX", 3: "ZYX", 4: "ZCYX", 5: "TZCYX"}


def matches(h5: h5py.File) -> bool:
    """Whether there is a k-space, or a reconstruction beside a scanner's header."""
    telling = (_RAW, *_RECONSTRUCTIONS) if child(h5, _HEADER) is not None else (_RAW,)
    return any(name in images(h5) for name in telling)


def images(h5: h5py.File) -> tuple[str, ...]:
    """Name the images: reconstructions, k-space, and a mask if it has two axes."""
    return tuple(
        name for name in _NAMES if is_image(item := child(h5, name)) and item.ndim in _AXES
    )


def describe(h5: h5py.File, path: str, image: str) -> ImageSpec:
    """Describe one of the images of a fastMRI file.

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
        Coils are channels. Reconstructions have mm for units and limits of contrast from the
        file's attribute `max`. In k-space, steps along Y and X are one over the field of view, in
        1/mm, and position 0 is the pixel n // 2.

    Raises
    ------
    LayoutError
        There is no such image.

    Warns
    -----
    MetadataWarning
        Where the header is missing, or gives no usable matrix and field of view.
    """
    found = images(h5)
    if image not in found:
        raise LayoutError(
            f"{path}: there is no image {image!r} in this fastMRI file; it holds "
            f"{', '.join(map(repr, found)) or 'none'}.",
            file=path,
        )
    data = child(h5, image)
    letters = _AXES[data.ndim]
    axes = [Axis(letter=letter) for letter in letters]
    if image != _MASK:
        space = "encodedSpace" if image == _RAW else "reconSpace"
        spacing = _spacing(h5, space, in_k_space=image == _RAW, path=path)
        axes = [_axis(a, n, spacing) for a, n in zip(letters, data.shape, strict=True)]
    count = data.shape[letters.index("C")] if "C" in letters else 1
    stem = "Coil" if "C" in letters else "Channel"
    peak = number(read_text(h5, "max")) if image in _RECONSTRUCTIONS else None
    limits = (0.0, float(peak)) if peak is not None and peak > 0 else None
    return describe_single(
        data, axes, layout="fastmri", file=path, name=image, path=f"/{image}",
        channels=[ChannelSpec(name=f"{stem} {i}", contrast_limits=limits) for i in range(count)],
        labels=image == _MASK and data.dtype.kind in "biu",
    )  # fmt: skip


def _axis(letter: str, size: int, spacing: dict[str, tuple[float, str]]) -> Axis:
    scale, unit = spacing.get(letter, (1.0, ""))
    first = -(size // 2) * scale if unit == "1/mm" else 0.0
    return Axis(letter=letter, scale=scale, translation=first, unit=unit)


def _spacing(
    h5: h5py.File, space: str, *, in_k_space: bool, path: str
) -> dict[str, tuple[float, str]]:
    """Step and unit along Z, Y and X from the header; without those that it does not give."""
    root = _parse(read_text(h5, _HEADER))
    part = None if root is None else root.find(f"encoding/{space}")
    spacing: dict[str, tuple[float, str]] = {}
    problems = []
    for letter, name in (("Z", "z"), ("Y", "x"), ("X", "y")):  # rows run along the header's x
        matrix = number(None if part is None else part.findtext(f"matrixSize/{name}"))
        extent = number(None if part is None else part.findtext(f"fieldOfView_mm/{name}"))
        if extent is None or extent <= 0 or matrix is None or matrix <= 0:
            problems.append(name)
        elif in_k_space and letter != "Z":
            spacing[letter] = (1 / float(extent), "1/mm")
        else:
            spacing[letter] = (float(extent / matrix), "mm")
    if problems:
        warn(
            path,
            f"{_HEADER} gives no usable matrix and field of view in {space} along "
            f"{', '.join(problems)}: using pixel size 1 there, without a unit.",
        )
    return spacing


def _parse(text: str | None) -> Any:
    """Root of the header, its elements without their namespace; None if it is no XML."""
    if text is None or "<!" in text.replace("<!--", ""):
        return None  # a header declares no entities: one that does may be made to fill the memory
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError):
        return None
    for element in root.iter():
        if isinstance(element.tag, str):
            element.tag = element.tag.rpartition("}")[2]
    return root
