"""Folders of medical images, as a file that is ready for training."""

from __future__ import annotations

from hyperslab.packing.intensity import restore
from hyperslab.packing.packer import pack
from hyperslab.packing.records import (
    PackedCase,
    PackedImage,
    PackReport,
    Progress,
    RefusedCase,
)

__all__ = [
    "PackReport",
    "PackedCase",
    "PackedImage",
    "Progress",
    "RefusedCase",
    "pack",
    "restore",
]
