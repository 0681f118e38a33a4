"""Which slices a sample takes, and how they become tensors."""

from __future__ import annotations
