"""Decoded cases kept on disk or in shared memory, for all processes of a machine."""

from __future__ import annotations
