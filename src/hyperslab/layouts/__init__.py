"""Image layouts: conventions by which programs lay out images in HDF5 files.

A layout describes: it says which datasets make up an image, and what is known about it
(`ImageSpec`). It never reads pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hyperslab.errors import LayoutError
from hyperslab.layouts import imaris
from hyperslab.layouts.links import child, list_contents
from hyperslab.layouts.spec import ChannelSpec, ImageSpec, LevelSpec
from hyperslab.layouts.template import describe_template

if TYPE_CHECKING:
    import h5py

__all__ = [
    "LAYOUTS",
    "ChannelSpec",
    "ImageSpec",
    "Layout",
    "LevelSpec",
    "describe",
    "describe_template",
    "recognise",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One convention.

    Attributes
    ----------
    matches
        Whether a file follows it; reads a few items only.
    describe
        What the image is; the arguments are the open file and its path.
    """

    matches: Callable[[h5py.File], bool]
    describe: Callable[[h5py.File, str], ImageSpec]


#: Known conventions by name, in the order in which a file is tried against them.
LAYOUTS: dict[str, Layout] = {
    "imaris": Layout(matches=imaris.matches, describe=imaris.describe),
}


def recognise(h5: h5py.File) -> str | None:
    """Name of the layout that a file follows, or None."""
    return next((name for name, layout in LAYOUTS.items() if layout.matches(h5)), None)


def describe(
    h5: h5py.File, path: str, layout: str = "auto", *, axes: str | None = None
) -> ImageSpec:
    """Describe the image in a file.

    Parameters
    ----------
    h5
        The open file. No reference to it is kept.
    path
        Its path, for messages and for the result.
    layout
        "auto" recognises the layout; else the name of one; else a template such as
        "t{t}/c{c}/data", or the path of one dataset (see `describe_template`).
    axes
        Only with a template or a path: letters of the axes.

    Returns
    -------
    ImageSpec

    Raises
    ------
    LayoutError
        If no layout fits; the message lists the known ones.
    MissingSourceError
        If a file that the image is linked to is not there.
    """
    name = recognise(h5) if layout == "auto" else layout
    if name in LAYOUTS:
        if axes is not None:
            raise LayoutError(
                f"{path}: axes={axes!r} was given, but the layout {name!r} has its own. Leave it "
                "out, or give a template or a dataset's path as the layout.",
                file=path,
            )
        return LAYOUTS[name].describe(h5, path)
    if name is not None and ("{" in name or child(h5, name) is not None):
        return describe_template(h5, path, name, axes=axes)
    if name is None:
        problem = "the file follows no known layout"
    else:
        problem = f"{layout!r} is neither a known layout, nor a template, nor a dataset of the file"
    raise LayoutError(
        f"{path}: {problem}. Known layouts: {', '.join(LAYOUTS)}. For any other file, give the "
        "datasets' path with a field for every number in it, such as "
        "layout='t{t}/c{c}/data', or the path of one dataset and its axes=. "
        f"The file holds: {list_contents(h5)}.",
        file=path,
    )
