"""The reader: files to layers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence

from hyperslab.errors import HyperslabError, LayoutError
from hyperslab.image import Image, list_images, open_image
from hyperslab.index.session import check_signature
from hyperslab.layouts.bdv_xml import file_of_xml
from hyperslab.napari.layers import LayerData, image_layers
from hyperslab.napari.plain import only_dataset

__all__ = ["MOST_IMAGES", "get_reader", "images_of", "layers_of", "layers_of_images", "read"]

MOST_IMAGES = 8  # of a file that are opened at once

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Reader = Callable[[Paths], list[LayerData]]


def get_reader(path: Paths) -> Reader | None:
    """Return the reader if every path is an HDF5 file, or an xml of BigDataViewer that names one.

    Looks at a few bytes of each, since extensions such as .mat and .xml say little.
    """
    paths = _several(path)
    return read if paths and all(map(_is_ours, paths)) else None


def read(path: Paths) -> list[LayerData]:
    """Return the layers of all images of the files at `path`; at most 8 images a file.

    Raises
    ------
    LayoutError
        A file has no image that we know how to find, or nothing that can be shown.
    """
    layers: list[LayerData] = []
    for each in _several(path):
        layers += layers_of(each)
    attend_current_viewer()
    return layers


def layers_of(path: str) -> list[LayerData]:
    """Return the layers of the first 8 images of a file; see `images_of`, `layers_of_images`."""
    images, n_all = images_of(path)
    return layers_of_images(images, titled=n_all > 1)


def layers_of_images(images: Sequence[Image], *, titled: bool) -> list[LayerData]:
    """Return the layers of some images; their names tell the images apart if `titled`.

    Those that cannot be shown are left out, with a warning; if there is none that can, the first
    one's `LayoutError` is raised.
    """
    layers: list[LayerData] = []
    problem: LayoutError | None = None
    for image in images:
        try:
            layers += image_layers(image, title=image.name if titled else None)
        except LayoutError as error:
            problem = problem or error
    if problem is not None:
        if not layers:
            raise problem
        warnings.warn(str(problem), stacklevel=2)
    return layers


def images_of(path: str, layout: str = "auto") -> tuple[list[Image], int]:
    """Return the first 8 images of a file, and how many there are; warns if there are more.

    A file of no known layout, but with one dataset that may be an image, has that, with a warning.
    """
    try:
        names = list_images(path, layout)
    except LayoutError:
        plain = only_dataset(path) if layout == "auto" else None
        if plain is None:
            raise  # it lists the choices
        dataset, axes = plain
        warnings.warn(
            f"{os.path.basename(path)} does not say what its axes are: {dataset} is shown as "
            f"{axes}. For other axes: hyperslab view FILE --layout {dataset} --axes LETTERS.",
            stacklevel=2,
        )
        return [open_image(path, dataset, axes=axes)], 1
    images: list[Image] = []
    problem: HyperslabError | None = None
    for number in range(len(names)):
        if len(images) == MOST_IMAGES:
            warnings.warn(
                f"{os.path.basename(path)} holds {len(names)} images; the first {MOST_IMAGES} were "
                "opened. The widget 'HDF5 image' opens the others.",
                stacklevel=2,
            )
            break
        try:
            images.append(open_image(path, layout, image=number))
        except HyperslabError as error:
            problem = problem or error
    if not images and problem is not None:
        raise problem
    return images, len(names)


def attend_current_viewer() -> None:
    """Look after our layers in the viewer that is open; without a window, do nothing."""
    try:
        import napari
    except ModuleNotFoundError:
        return
    viewer = napari.current_viewer()
    if viewer is not None:
        from hyperslab.napari.attendant import attend

        attend(viewer)


def _several(path: Paths) -> list[str]:
    if isinstance(path, (str, os.PathLike)):
        return [os.fspath(path)]
    return [os.fspath(each) for each in path]


def _is_ours(path: str) -> bool:
    if path.lower().endswith(".xml"):
        named = file_of_xml(path)
        return named is not None and _is_ours(named)
    try:
        check_signature(path)
    except OSError:  # no such file, or no HDF5 file: another reader's business
        return False
    return True
