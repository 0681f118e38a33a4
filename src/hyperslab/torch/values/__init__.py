"""What only reading every value tells, found out once and stored."""

from __future__ import annotations
