"""Files without a layout: what can be seen as an image all the same."""

from __future__ import annotations

from hyperslab.index.session import session
from hyperslab.index.tree import walk_file

__all__ = ["guess_axes", "only_dataset"]

_AXES = {2: "YX", 3: "ZYX", 4: "TZYX", 5: "TCZYX"}
_LEAST_PIXELS = 8  # along both of the last axes: a table of numbers is no picture


def guess_axes(shape: tuple[int, ...]) -> str | None:
    """Return the axes that a dataset of that shape has by napari's custom; None: no image.

    Examples
    --------
    >>> guess_axes((48, 512, 512)), guess_axes((1000, 3))
    ('ZYX', None)
    """
    axes = _AXES.get(len(shape))
    return axes if axes is not None and min(shape[-2:]) >= _LEAST_PIXELS else None


def only_dataset(path: str) -> tuple[str, str] | None:
    """Return the one dataset of the file that may be an image, and its likely axes.

    Returns
    -------
    tuple of str
        Path and axes.
    None
        There is none, or more than one.
    """
    found: list[tuple[str, str]] = []
    with session(path) as h5:
        for entry in walk_file(h5):
            facts = entry.facts
            if facts is None or not facts.numeric or not facts.shape or entry.repeats:
                continue
            axes = guess_axes(facts.shape)
            if axes is not None:
                found.append((entry.path, axes))
            if len(found) > 1:
                return None
    return found[0] if found else None
