"""Image layouts: conventions by which programs lay out images in HDF5 files.

A layout describes: it says which datasets make up an image, and what is known about it
(`ImageSpec`). It never reads pixels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from hyperslab.errors import DamagedFileError, HyperslabError, LayoutError, MetadataWarning
from hyperslab.layouts import (
    bdv,
    emd,
    fastmri,
    hdf5_image,
    hyperspy,
    ilastik,
    imaris,
    labelled,
    lmb,
    luxendo,
    matlab,
    minc2,
    nexus,
    slices,
    unet,
    velox,
)
from hyperslab.layouts.levels import opened_as, with_levels
from hyperslab.layouts.links import child, list_contents
from hyperslab.layouts.spec import ChannelSpec, ImageSpec, IntensitySpec, LevelSpec
from hyperslab.layouts.template import describe_template

if TYPE_CHECKING:
    import h5py

__all__ = [
    "LAYOUTS",
    "ChannelSpec",
    "ImageSpec",
    "IntensitySpec",
    "Layout",
    "LevelSpec",
    "describe",
    "describe_template",
    "image_names",
    "known_layouts",
    "recognise",
]


P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One convention.

    Attributes
    ----------
    matches
        Whether a file follows it; reads a few items only.
    describe
        What an image is; the arguments are the open file, its path, and the image's name.
    images
        Names of the images in a file; a file with one only may call it "".
    default
        Which of several images the file itself says is the one to show; None: it says nothing.
    general
        1 where other conventions build upon it: it counts only for files that follow none with 0;
        2 where it counts only for files that follow none with 1 either.
    """

    matches: Callable[[h5py.File], bool]
    describe: Callable[[h5py.File, str, str], ImageSpec]
    images: Callable[[h5py.File], tuple[str, ...]] = lambda h5: ("",)
    default: Callable[[h5py.File], str | None] = lambda h5: None
    general: int = 0


def _describe_imaris(h5: h5py.File, path: str, image: str) -> ImageSpec:
    return imaris.describe(h5, path)


#: Known conventions by name.
LAYOUTS: dict[str, Layout] = {
    "imaris": Layout(matches=imaris.matches, describe=_describe_imaris),
    "bdv": Layout(matches=bdv.matches, describe=bdv.describe, images=bdv.images),
    "luxendo": Layout(matches=luxendo.matches, describe=luxendo.describe, images=luxendo.images),
    "lmb": Layout(matches=lmb.matches, describe=lmb.describe, images=lmb.images),
    "ilastik": Layout(matches=ilastik.matches, describe=ilastik.describe, images=ilastik.images),
    "matlab": Layout(matches=matlab.matches, describe=matlab.describe, images=matlab.images),
    "nexus": Layout(
        matches=nexus.matches, describe=nexus.describe, images=nexus.images, default=nexus.default
    ),
    "emd": Layout(matches=emd.matches, describe=emd.describe, images=emd.images),
    "velox": Layout(matches=velox.matches, describe=velox.describe, images=velox.images),
    "hyperspy": Layout(
        matches=hyperspy.matches, describe=hyperspy.describe, images=hyperspy.images
    ),
    "minc2": Layout(matches=minc2.matches, describe=minc2.describe),
    "fastmri": Layout(matches=fastmri.matches, describe=fastmri.describe, images=fastmri.images),
    "hdf5_image": Layout(
        matches=hdf5_image.matches,
        describe=hdf5_image.describe,
        images=hdf5_image.images,
        general=1,
    ),
    "unet": Layout(matches=unet.matches, describe=unet.describe, images=unet.images, general=1),
    "slices": Layout(
        matches=slices.matches, describe=slices.describe, images=slices.images, general=1
    ),
    "labelled": Layout(
        matches=labelled.matches, describe=labelled.describe, images=labelled.images, general=2
    ),
}


@cache
def known_layouts() -> dict[str, Layout]:
    """Return all layouts by name: ours, and those of installed packages.

    A package registers a `Layout` under the entry point group "hyperslab.layouts".

    Warns
    -----
    MetadataWarning
        For one that cannot be loaded, is no `Layout`, or has the name of one of ours; it is left
        out, so that files of other layouts open.
    """
    found = dict(LAYOUTS)
    for entry in entry_points(group="hyperslab.layouts"):
        package = entry.dist.name if entry.dist is not None else "?"
        problem = "there is one of that name already"
        if entry.name not in found:
            try:
                loaded = entry.load()
            except Exception as error:  # noqa: BLE001 - a module may raise anything when imported
                problem = f"{type(error).__name__}: {error}"
            else:
                if isinstance(loaded, Layout):
                    found[entry.name] = loaded
                    continue
                problem = f"it is {loaded!r}, not a hyperslab.layouts.Layout"
        warnings.warn(
            f"the layout {entry.name!r} of the installed package {package!r} ({entry.value}) is "
            f"left out: {problem}. Update or remove that package.",
            MetadataWarning,
            stacklevel=2,
        )
    return found


def recognise(h5: h5py.File) -> list[str]:
    """Return the names of the layouts that a file follows; general ones if it follows no other."""
    layouts = known_layouts()
    for general in sorted({layout.general for layout in layouts.values()}):
        names = [
            name
            for name, layout in layouts.items()
            if layout.general == general and layout.matches(h5)
        ]
        if names:
            return names
    return []


def _naming_damage(
    function: Callable[Concatenate[h5py.File, str, P], R],
) -> Callable[Concatenate[h5py.File, str, P], R]:
    """Turn what the HDF5 library raises over a damaged file into an error that names the file."""

    @wraps(function)
    def named(h5: h5py.File, path: str, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(h5, path, *args, **kwargs)
        except HyperslabError:
            raise
        except (KeyError, OSError, RuntimeError, ValueError) as error:
            raise DamagedFileError(
                f"{path}: the HDF5 library cannot make sense of what is in it: {error}. The file "
                "is damaged or truncated.",
                file=path,
            ) from error

    return named


@_naming_damage
def describe(
    h5: h5py.File,
    path: str,
    layout: str = "auto",
    *,
    axes: str | None = None,
    image: str | int | None = None,
) -> ImageSpec:
    """Describe an image in a file.

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
    image
        Name or number of an image, where the file has several and does not say itself which of
        them to show.

    Returns
    -------
    ImageSpec

    Raises
    ------
    LayoutError
        No layout fits, or several do, or there are several images and none was chosen, neither
        here nor by the file; the message lists the choices.
    MissingSourceError
        A file that the image is linked to is not there.
    DamagedFileError
        The HDF5 library cannot make sense of the file.
    """
    return with_levels(h5, _describe(h5, path, layout, axes, image))


def _describe(
    h5: h5py.File, path: str, layout: str, axes: str | None, image: str | int | None
) -> ImageSpec:
    name = _choose_layout(h5, path) if layout == "auto" else layout
    if name is None:
        name, said = opened_as(h5)
        axes = said if axes is None else axes
    layouts = known_layouts()
    if name in layouts:
        if axes is not None:
            raise LayoutError(
                f"{path}: axes={axes!r} was given, but the layout {name!r} has its own. Leave it "
                "out, or give a template or a dataset's path as the layout.",
                file=path,
            )
        found = layouts[name]
        images = found.images(h5)
        if image is None and len(images) > 1:
            image = found.default(h5)
        return found.describe(h5, path, _choose_image(images, image, path, name))
    if name is not None and ("{" in name or child(h5, name) is not None):
        return describe_template(h5, path, name, axes=axes)
    if name is None:
        problem = "the file follows no known layout"
    else:
        problem = f"{layout!r} is neither a known layout, nor a template, nor a dataset of the file"
    raise LayoutError(
        f"{path}: {problem}. Known layouts: {', '.join(layouts)}. For any other file, give the "
        "datasets' path with a field for every number in it, such as "
        "layout='t{t}/c{c}/data', or the path of one dataset and its axes=. "
        f"The file holds: {list_contents(h5)}.",
        file=path,
    )


@_naming_damage
def image_names(h5: h5py.File, path: str, layout: str = "auto") -> tuple[str, ...]:
    """Return the names of the images in a file.

    Raises
    ------
    LayoutError
        No layout fits, or several do.
    """
    name = _choose_layout(h5, path) if layout == "auto" else layout
    if name is None:
        name, _ = opened_as(h5)
    layouts = known_layouts()
    if name not in layouts:
        return (describe(h5, path, layout).name,)
    return layouts[name].images(h5)


def _choose_layout(h5: h5py.File, path: str) -> str | None:
    names = recognise(h5)
    if len(names) > 1:
        raise LayoutError(
            f"{path}: the file follows more than one layout: {', '.join(names)}. Say which to use: "
            f"layout={names[0]!r}.",
            file=path,
        )
    return names[0] if names else None


def _choose_image(names: tuple[str, ...], wanted: str | int | None, path: str, layout: str) -> str:
    told = ", ".join(map(repr, names))
    if not names:
        raise LayoutError(f"{path}: the file has no image in the layout {layout!r}", file=path)
    if wanted is None:
        if len(names) > 1:
            raise LayoutError(
                f"{path}: the file holds {len(names)} images: {told}. Say which: "
                f"image={names[0]!r}.",
                file=path,
            )
        return names[0]
    if isinstance(wanted, int) and -len(names) <= wanted < len(names):
        return names[wanted]
    if wanted in names:
        return str(wanted)
    raise LayoutError(
        f"{path}: there is no image {wanted!r} in the file; it holds {told}.", file=path
    )
