"""Units that napari can compare and convert, and lengths in handy numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

__all__ = ["handy_units", "usable_unit"]

_NONE = "pixel"
_LENGTHS = ("m", "mm", "um", "nm", "pm")
# Steps that napari draws, and writes out, well; and the least of a step that is changed.
_LEAST, _MOST, _HANDY = 1e-4, 1e4, 0.01


def _registry() -> Any:
    """Return the registry of units that napari uses; None without pint, which comes with it."""
    try:
        import pint
    except ModuleNotFoundError:
        return None
    return pint.get_application_registry()  # type: ignore[no-untyped-call]


@lru_cache(maxsize=256)
def usable_unit(unit: str) -> str:
    """Return `unit` if pint, which napari asks, knows it; else "pixel".

    Examples
    --------
    >>> usable_unit("")
    'pixel'
    """
    registry = _registry() if unit else None
    if registry is None:
        return _NONE
    try:
        registry.Unit(unit)
    except Exception:  # noqa: BLE001 - a file's text may be anything, and so is what pint raises
        return _NONE
    return unit


def handy_units(units: Sequence[str], steps: Sequence[float]) -> list[tuple[str, float]]:
    """Return for every axis a unit to use, and what lengths along it are to be multiplied by.

    Parameters
    ----------
    units
        As the file has them, "" for none.
    steps
        Size of a pixel along each axis.

    Returns
    -------
    list of (str, float)
        Axes of one unit stay together. A unit of length is changed only where a step would be less
        than 1e-4 or more than 1e4: a metre, in electron microscopy. Others have the factor 1.
    """
    found = {unit: (usable_unit(unit), 1.0) for unit in units}
    for unit, (usable, _) in found.items():
        sizes = [abs(s) for u, s in zip(units, steps, strict=True) if u == unit and s]
        if usable != _NONE and sizes and not _LEAST <= min(sizes) < _MOST:
            found[unit] = _handy(usable, min(sizes))
    return [found[unit] for unit in units]


def _handy(unit: str, step: float) -> tuple[str, float]:
    """Return the largest unit in which a step is no tiny number, and the factor to it."""
    registry = _registry()
    if not registry.Unit(unit).is_compatible_with("m"):
        return unit, 1.0
    for length in _LENGTHS:
        factor = float(registry.Quantity(1.0, unit).to(length).magnitude)
        if step * factor >= _HANDY:
            return length, factor
    return unit, 1.0
