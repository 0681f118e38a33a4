"""``hyperslab view FILE``: an image in a napari window."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hyperslab.cli.figures import check_target
from hyperslab.cli.terminal import examples
from hyperslab.image import list_images, open_image
from hyperslab.napari.reader import images_of
from hyperslab.napari.window import show

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    ("hyperslab view cells.ims", "the image in a window"),
    ("hyperslab view embryo.h5 --image 'angle 90'", "one of several images"),
    ("hyperslab view plain.h5 --layout data --axes TZYX", "a dataset seen as an image"),
    ("hyperslab view cells.ims --screenshot cells.png", "a picture of the window, and no window"),
)


def command(
    file: Annotated[
        Path, typer.Argument(help="An HDF5 file, or an xml of BigDataViewer.", metavar="FILE")
    ],
    layout: Annotated[
        str, typer.Option(help="Layout, template or dataset to see as an image.", metavar="NAME")
    ] = "auto",
    axes: Annotated[
        str | None, typer.Option(help="Axes of that dataset, e.g. ZYX.", metavar="LETTERS")
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this one of several images, by name or number; may be repeated.",
            metavar="NAME",
        ),
    ] = None,
    screenshot: Annotated[
        Path | None,
        typer.Option(help="Save a picture of the window as PNG, and end.", metavar="OUT.png"),
    ] = None,
    widget: Annotated[
        bool, typer.Option("--widget/--no-widget", help="Dock hyperslab's widget.")
    ] = True,
    wait: Annotated[
        bool, typer.Option("--wait", help="Freeze while a plane is read, as napari does by itself.")
    ] = False,
) -> None:
    """Show an image in napari: only what is in sight is read, and the window does not freeze.

    Without a screen, run it under Xvfb: xvfb-run -a hyperslab view FILE --screenshot OUT.png
    """
    if axes is not None and layout == "auto":
        raise typer.BadParameter("--axes needs --layout, the dataset that has them")
    if screenshot is not None:
        check_target(screenshot)
    if image:
        names = list_images(file, layout) if axes is None else ()
        images = [
            open_image(file, layout, axes=axes, image=_name_or_number(each, names))
            for each in image
        ]
    elif axes is not None:
        images = [open_image(file, layout, axes=axes)]
    else:
        images, _ = images_of(str(file), layout)
    # For this process only: what napari takes from the environment, it does not save.
    os.environ.setdefault("NAPARI_ASYNC", "0" if wait else "1")
    show(images, screenshot=screenshot, widget=widget)


def _name_or_number(text: str, names: Sequence[str]) -> str | int:
    return int(text) if text.isdecimal() and text not in names else text
