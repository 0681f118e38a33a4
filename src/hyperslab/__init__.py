"""HDF5 image volumes at the speed of the hardware.

Reads existing HDF5 files in place, in parallel, outside the HDF5 library's lock, with the bytes
that h5py gives.

Examples
--------
>>> import hyperslab as hs
>>> sorted(hs.__all__)[:3]
['Array', 'File', 'Group']
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Array",
    "File",
    "Group",
    "Image",
    "advise",
    "configure",
    "convert",
    "errors",
    "last_stats",
    "list_images",
    "open",
    "open_image",
    "pack",
    "read_many",
    "repack",
    "verify",
]

if TYPE_CHECKING:
    from hyperslab import errors
    from hyperslab.advice import advise
    from hyperslab.array import Array
    from hyperslab.batch import read_many
    from hyperslab.conversion import convert
    from hyperslab.engine.limits import configure
    from hyperslab.engine.stats import last_stats
    from hyperslab.file import File, Group
    from hyperslab.file import open_file as open
    from hyperslab.image import Image, list_images, open_image
    from hyperslab.packing import pack
    from hyperslab.rewriting import repack
    from hyperslab.soundness import verify

# Loaded when first used, so that `import hyperslab` costs next to nothing.
_HOMES = {
    "Array": ("hyperslab.array", "Array"),
    "File": ("hyperslab.file", "File"),
    "Group": ("hyperslab.file", "Group"),
    "Image": ("hyperslab.image", "Image"),
    "advise": ("hyperslab.advice", "advise"),
    "configure": ("hyperslab.engine.limits", "configure"),
    "convert": ("hyperslab.conversion", "convert"),
    "errors": ("hyperslab.errors", ""),
    "last_stats": ("hyperslab.engine.stats", "last_stats"),
    "list_images": ("hyperslab.image", "list_images"),
    "open": ("hyperslab.file", "open_file"),
    "open_image": ("hyperslab.image", "open_image"),
    "pack": ("hyperslab.packing", "pack"),
    "read_many": ("hyperslab.batch", "read_many"),
    "repack": ("hyperslab.rewriting", "repack"),
    "verify": ("hyperslab.soundness", "verify"),
}


def __getattr__(name: str) -> Any:
    try:
        module, attribute = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'hyperslab' has no attribute {name!r}") from None
    found = importlib.import_module(module)
    value = getattr(found, attribute) if attribute else found
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
