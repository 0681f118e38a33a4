"""Coarser levels in a group of their own, for images of layouts that have no place for them.

`/hyperslab_levels/N` holds, at the same paths as in the file itself, what the datasets there are at
level N (0 is the finest): with the same axes, in the same order, some at half their extent, rounded
up. So a level can be added to an image of any layout, and nothing else changes in the file.
Attributes of `/hyperslab_levels` say how to open an image that no layout recognises: `layout`, and
`axes` where that takes them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperslab.layouts.items import read_text, warn
from hyperslab.layouts.links import child, has_dataset
from hyperslab.layouts.single import is_image
from hyperslab.layouts.spec import BESIDE, ImageSpec, LevelSpec

if TYPE_CHECKING:
    import h5py

__all__ = ["LEVELS_GROUP", "level_path", "opened_as", "with_levels"]

LEVELS_GROUP = "hyperslab_levels"


def level_path(number: int, path: str) -> str:
    """Return where level `number` of the dataset at `path` is."""
    return f"/{LEVELS_GROUP}/{number}/{path.strip('/')}"


def opened_as(h5: h5py.File) -> tuple[str | None, str | None]:
    """Return the layout and the axes that the file asks to be opened with, None each if none."""
    group = child(h5, LEVELS_GROUP)
    return read_text(group, "layout"), read_text(group, "axes")


def with_levels(h5: h5py.File, spec: ImageSpec) -> ImageSpec:
    """Return `spec` with the coarser levels that the file has in a group of their own.

    Parameters
    ----------
    h5
        The open file. No reference to it is kept.
    spec
        As a layout describes the image.

    Warns
    -----
    MetadataWarning
        Where a level does not fit; it is left out, and so are those after it.

    Notes
    -----
    Opens one dataset a level, and looks up a link for each of the others.
    """
    root = child(h5, LEVELS_GROUP)
    if root is None or spec.intensity is not None:
        return spec
    levels = list(spec.levels)
    while (group := child(root, str(len(levels)))) is not None:
        found = _level(h5, group, len(levels), spec, levels[-1])
        if isinstance(found, str):
            warn(spec.file, f"level {len(levels)} in /{LEVELS_GROUP} is left out: {found}.")
            break
        if found is None:
            break
        levels.append(found)
    return replace(spec, levels=tuple(levels))


def _level(
    h5: h5py.File, group: Any, number: int, spec: ImageSpec, finer: LevelSpec
) -> LevelSpec | str | None:
    """Return a level; None if there is none of this image; or what is wrong with it."""
    # At the paths of the finest level: what else the layout has may have paths of its own.
    names = [name for name in spec.levels[0].datasets if name is not None]
    if not names or any(BESIDE in name for name in names):
        return None
    there = [has_dataset(group, name.strip("/"), file=spec.file, subject=name) for name in names]
    if not any(there):
        return None  # of another image
    if not all(there):
        return f"there is none of {names[there.index(False)]}"
    first = group[names[0].strip("/")]
    if not is_image(first):
        return f"{first.name} is no image"
    n = spec.n_outer
    order = spec.order or tuple(range(first.ndim))
    if len(order) != first.ndim or len(finer.shape) - n != first.ndim:
        return f"{first.name} has {first.ndim} axes"
    shape = (*finer.shape[:n], *(int(first.shape[axis]) for axis in order))
    fits = all(a in (b, -(-b // 2)) for a, b in zip(shape, finer.shape, strict=True))
    if not fits or shape == finer.shape:
        return f"it has the shape {shape}, the level before it {finer.shape}"
    dtype, meant = np.dtype(first.dtype).newbyteorder("="), np.dtype(spec.dtype)
    alike = {dtype.kind, meant.kind} == {"i", "u"} and dtype.itemsize == meant.itemsize
    if dtype != meant and not alike:
        return f"it has the type {dtype}, the finest one {meant}"
    return LevelSpec(
        shape=shape,
        datasets=tuple(
            None if name is None else level_path(number, name) for name in spec.levels[0].datasets
        ),
    )
