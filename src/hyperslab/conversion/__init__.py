"""Images in formats that other programs read: OME-Zarr, ``.npy``, OME-TIFF."""

from __future__ import annotations

from hyperslab.conversion.job import ConversionReport, convert, plan_conversion
from hyperslab.conversion.plan import LevelPlan, ZarrPlan

__all__ = ["ConversionReport", "LevelPlan", "ZarrPlan", "convert", "plan_conversion"]
