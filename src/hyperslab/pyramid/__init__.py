"""Coarser levels for images that have none, or too few: computed when they are looked at."""

from __future__ import annotations
