"""How batches are made by threads."""

from __future__ import annotations
