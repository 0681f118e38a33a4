"""In which order samples are visited, and which make a batch."""

from __future__ import annotations
