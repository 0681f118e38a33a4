"""The plugin for napari: a reader, a widget and sample data. See ``napari.yaml``."""

from __future__ import annotations
