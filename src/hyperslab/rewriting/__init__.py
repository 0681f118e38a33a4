"""Files written anew, for the way in which they are read."""

from __future__ import annotations

from hyperslab.rewriting.making import Progress
from hyperslab.rewriting.plan import DatasetPlan, RepackPlan
from hyperslab.rewriting.rewrite import RepackReport, repack

__all__ = ["DatasetPlan", "Progress", "RepackPlan", "RepackReport", "repack"]
