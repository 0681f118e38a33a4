"""Units that napari can compare and convert."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["usable_unit"]

_NONE = "pixel"


@lru_cache(maxsize=256)
def usable_unit(unit: str) -> str:
    """Return `unit` if pint, which napari asks, knows it; else "pixel".

    Examples
    --------
    >>> usable_unit("")
    'pixel'
    """
    if not unit:
        return _NONE
    try:
        import pint
    except ModuleNotFoundError:
        return _NONE
    try:
        pint.get_application_registry().Unit(unit)  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 - a file's text may be anything, and so is what pint raises
        return _NONE
    return unit
