"""x"""

from __future__ import annotations

EXAMPLES = ""


def command() -> None:
    """x"""
