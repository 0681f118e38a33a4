"""Is a file whole? `verify` says, and which of its datasets, cases and slices are if it is not."""

from __future__ import annotations

from hyperslab.soundness.report import (
    CaseReport,
    Damage,
    DatasetReport,
    Problem,
    Report,
    as_dict,
)
from hyperslab.soundness.verdict import verify

__all__ = ["CaseReport", "Damage", "DatasetReport", "Problem", "Report", "as_dict", "verify"]
