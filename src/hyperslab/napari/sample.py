"""Sample data: a small 5-D image, drawn when it is asked for."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from hyperslab.index.folder import cache_folder
from hyperslab.napari.layers import LayerData
from hyperslab.napari.reader import read
from hyperslab.testing import make_cells

__all__ = ["open_cells", "sample_path"]


def sample_path() -> Path:
    """Return where the sample is: an Imaris file of 83 MB in hyperslab's cache folder.

    Writes it there, the first time, in one step.
    """
    path = cache_folder("sample") / "cells.ims"
    if not path.exists():
        temporary = path.with_name(f".cells-{os.getpid()}-{secrets.token_hex(4)}.tmp")
        try:
            make_cells(temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return path


def open_cells() -> list[LayerData]:
    """Return the sample's layers."""
    return read(sample_path())
