"""Where coarser levels go in a file, by its layout, and what the layout says beside them.

Imaris, BigDataViewer and Luxendo have places of their own, which their programs read. For any other
layout, levels go into a group that hyperslab reads (`hyperslab.layouts.levels`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperslab.layouts.levels import LEVELS_GROUP, level_path
from hyperslab.layouts.spec import ImageSpec
from hyperslab.rewriting.plan import DatasetPlan, RepackPlan

if TYPE_CHECKING:
    import h5py

__all__ = ["finish", "is_padded", "kind_of", "places_of"]

_IMARIS = re.compile(r"(.*/ResolutionLevel )(\d+)(/TimePoint \d+/Channel \d+/Data)")
_BDV = re.compile(r"(/t\d+/s\d+/)(\d+)(/cells)")
_LUXENDO = re.compile(r"/Data(?:_(\d+)_(\d+)_(\d+))?")
_PATTERNS = {"imaris": _IMARIS, "bdv": _BDV, "luxendo": _LUXENDO}
_ABOUT = (
    "Coarser levels of the datasets at the same paths: along axes that are halved, means of pairs; "
    "of labels, every second one."
)


def kind_of(spec: ImageSpec, *, here: bool) -> str:
    """Return which convention an image's coarser levels follow: its layout's, or "beside".

    Parameters
    ----------
    spec
        The image.
    here
        Whether all of its datasets are in the file itself. Else a place in the layout may lead into
        another file, which must not be written to.
    """
    pattern = _PATTERNS.get(spec.layout)
    names = [name for level in spec.levels for name in level.datasets if name is not None]
    fits = here and pattern is not None and all(pattern.fullmatch(name) for name in names)
    return spec.layout if fits else "beside"


def is_padded(kind: str) -> bool:
    """Tell whether a convention has datasets padded to whole chunks."""
    return kind == "imaris"


def places_of(
    kind: str,
    h5: h5py.File,
    spec: ImageSpec,
    factors: Sequence[Sequence[int]],
) -> list[list[str | None]]:
    """Return the paths of the datasets of each level that is added, in the order of `spec`.

    Parameters
    ----------
    kind
        As `kind_of` returns.
    h5
        The source.
    spec
        The image.
    factors
        For each level that is added: by which it is smaller than the coarsest one that there is,
        per axis of the datasets.
    """
    finest, coarsest = spec.levels[0].datasets, spec.levels[-1].datasets
    if kind == "beside":
        first = len(spec.levels)
        return [
            [None if name is None else level_path(first + i, name) for name in finest]
            for i in range(len(factors))
        ]
    pattern = _PATTERNS[kind]
    matched = [None if name is None else pattern.fullmatch(name) for name in coarsest]
    if kind == "luxendo":
        return [[None if m is None else _luxendo(m, *by) for m in matched] for by in factors]
    last = max(_numbers(h5, m[1]) for m in matched if m is not None)
    return [
        [None if m is None else f"{m[1]}{last + 1 + i}{m[3]}" for m in matched]
        for i in range(len(factors))
    ]


def _luxendo(found: re.Match[str], z: int, y: int, x: int) -> str:
    w, h, d = (int(n or 1) * by for n, by in zip(found.groups(), (x, y, z), strict=True))
    return f"/Data_{w}_{h}_{d}"


def _numbers(h5: h5py.File, stem: str) -> int:
    """Return the highest number that follows `stem`, of levels that the layout left out too."""
    folder, name = posixpath.split(stem)
    matches = (re.fullmatch(re.escape(name) + r"(\d+)", each) for each in h5[folder])
    return max(int(match[1]) for match in matches if match)


def finish(out: h5py.File, plan: RepackPlan) -> None:
    """Write what layouts say beside their levels, into the file that is being made.

    Notes
    -----
    Imaris: the true size of each level, and the ends of the histogram as the level before has them
    (means lie within); no histogram. BigDataViewer: the factors of all levels, and their chunk
    shapes. Others: how the file is to be opened, where nothing in it tells.
    """
    levels = [(item, item.level) for item in plan.levels if item.level is not None]
    for item, level in levels:
        if level.kind == "imaris":
            _finish_imaris(out, item, level.finer or level.origin)
    setups = {item.path.split("/")[2] for item, level in levels if level.kind == "bdv"}
    for setup in sorted(setups):
        _finish_bdv(out, setup, [i for i, _ in levels if i.path.split("/")[2] == setup])
    layout, axes = plan.opened_as
    if layout != "auto" or any(level.kind == "beside" for _, level in levels):
        group = out.require_group(LEVELS_GROUP)
        group.attrs["about"] = _ABOUT
        if layout != "auto":
            group.attrs["layout"] = layout
            if axes is not None:
                group.attrs["axes"] = axes


def _finish_imaris(out: h5py.File, item: DatasetPlan, finer: str) -> None:
    group, before = out[posixpath.dirname(item.path)], out[posixpath.dirname(finer)]
    for letter, size in zip("ZYX", item.shape, strict=True):
        # Imaris keeps text as arrays of characters.
        group.attrs[f"ImageSize{letter}"] = np.array(list(str(size)), "S1")
    for name in ("HistogramMin", "HistogramMax"):
        if name in before.attrs:
            group.attrs[name] = before.attrs[name]


def _finish_bdv(out: h5py.File, setup: str, items: Sequence[DatasetPlan]) -> None:
    """Add rows to the tables of a setup, which are in the order x, y, z."""
    first = items[0].path.split("/")[1]
    added = {
        int(item.path.split("/")[3]): item for item in items if item.path.split("/")[1] == first
    }
    numbers = sorted(int(name) for name in out[f"{first}/{setup}"] if name.isdecimal())
    factors: list[Any] = np.atleast_2d(out[f"{setup}/resolutions"][()]).tolist()
    if len(factors) != numbers.index(min(added)):
        return  # it does not say of each level what it is
    for number in sorted(added):
        level = added[number].level
        steps = (1, 1, 1) if level is None else level.steps
        factors.append([f * step for f, step in zip(factors[-1], reversed(steps), strict=True)])
    chunks = [out[f"{first}/{setup}/{n}/cells"].chunks for n in numbers]
    tables: dict[str, Any] = {"resolutions": np.array(factors, np.float64)}
    if None not in chunks and "subdivisions" in out[setup]:
        tables["subdivisions"] = np.array([chunk[::-1] for chunk in chunks], np.int32)
    for name, values in tables.items():
        dtype = out[f"{setup}/{name}"].dtype
        del out[f"{setup}/{name}"]
        out[setup].create_dataset(name, data=values.astype(dtype))
