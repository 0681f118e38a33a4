"""Stored numbers as physical values: ``slope * stored + offset``, constants that the file gives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.node import Cells, Node, computed_node
from hyperslab.engine.planner import plan_read
from hyperslab.engine.read import execute
from hyperslab.engine.stats import ReadStats
from hyperslab.index.records import Fingerprint
from hyperslab.layouts.spec import IntensitySpec
from hyperslab.selection import select

__all__ = ["physical_node"]


def physical_node(
    stored: Node,
    intensity: IntensitySpec,
    *,
    file: str,
    fingerprint: Fingerprint,
    sources: dict[str, Fingerprint],
    name: str,
    cell: tuple[int, ...],
) -> Cells:
    """Return a node of the physical values of `stored`, float64.

    Parameters
    ----------
    stored
        The numbers as they are in the file.
    intensity
        The constants.
    file, fingerprint, sources, name
        As `computed_node`.
    cell
        Shape of what is computed at once: chunks of `stored`.

    Notes
    -----
    The product and the sum are rounded once each, like NumPy's ``slope * stored + offset``.
    """
    lead = stored.shape[: intensity.n_axes]
    whole = lead + (1,) * (len(stored.shape) - len(lead))
    slope = np.array(intensity.slope, np.float64).reshape(whole)
    offset = np.array(intensity.offset, np.float64).reshape(whole)

    def compute(origin: tuple[int, ...], out: NDArray[Any]) -> ReadStats:
        there = tuple(slice(a, a + n) for a, n in zip(origin, out.shape, strict=True))
        numbers = np.empty(out.shape, stored.dtype)
        plan = plan_read([(stored, select(there, stored.shape), numbers)])
        stats = execute(plan)
        sources.update(plan.files)
        own = there[: intensity.n_axes] + (slice(None),) * (len(there) - intensity.n_axes)
        np.multiply(slope[own], numbers, out=out)
        out += offset[own]
        return stats

    return computed_node(
        compute,
        file=file,
        name=f"physical values of {name}",
        fingerprint=fingerprint,
        sources=sources,
        shape=stored.shape,
        dtype=np.dtype(np.float64),
        cell=cell,
    )
