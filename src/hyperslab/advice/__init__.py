"""Why a file is slow to read, in numbers, and what to do about it."""

from __future__ import annotations

from hyperslab.advice.adviser import advise
from hyperslab.advice.records import (
    Advice,
    Finding,
    KindAdvice,
    Machine,
    PatternAdvice,
    RepackOption,
)

__all__ = ["Advice", "Finding", "KindAdvice", "Machine", "PatternAdvice", "RepackOption", "advise"]
