"""Which files and cases a training set is made of."""

from __future__ import annotations
