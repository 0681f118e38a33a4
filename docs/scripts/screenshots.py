"""Draw the documentation's pictures of napari: ``xvfb-run -a python docs/scripts/screenshots.py``.

Writes docs/images/napari-2d.png, napari-3d.png and napari-labels.png, from an image that is made
for it. Give another folder as the first argument to write elsewhere.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hyperslab as hs
from hyperslab.napari.window import open_window, wait_until_drawn
from hyperslab.testing import make_cells

IMAGES = Path(__file__).resolve().parents[1] / "images"


def plane(viewer: Any, img: hs.Image) -> None:
    """All channels of one plane, and the widget."""


def volume(viewer: Any, img: hs.Image) -> None:
    """All channels as volumes."""
    viewer.dims.ndisplay = 3
    camera = getattr(viewer, "scene", viewer).camera  # where it is since napari 0.9
    camera.angles = (-20, 30, -50)
    camera.zoom *= 0.9


def labels(viewer: Any, img: hs.Image) -> None:
    """Nuclei that were found, over the channel that they were found in."""
    from scipy import ndimage

    nuclei = np.asarray(img.isel(t=1, c="DAPI"))
    found, _ = ndimage.label(ndimage.gaussian_filter(nuclei, (0, 1, 1)) > 900)
    for other in ("Membrane", "Spots"):
        viewer.layers[other].visible = False
    layer = viewer.add_labels(
        found,
        name="nuclei",
        scale=img.scale[2:],
        translate=img.translation[2:],
        units=img.units[2:],
    )
    layer.contour = 2


SCENES: dict[str, Callable[[Any, hs.Image], None]] = {
    "napari-2d.png": plane,
    "napari-3d.png": volume,
    "napari-labels.png": labels,
}


def main(folder: Path) -> None:
    """Draw every scene in a window of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "cells.ims"
        make_cells(path)
        img = hs.open_image(path)
        for name, arrange in SCENES.items():
            viewer = open_window([img], widget=name == "napari-2d.png")
            wait_until_drawn(viewer)
            arrange(viewer, img)
            wait_until_drawn(viewer)
            viewer.screenshot(str(folder / name), canvas_only=False, flash=False)
            viewer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
