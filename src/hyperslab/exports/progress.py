"""A read in parts, under a progress bar."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.array import View, check_out

__all__ = ["fill_with_progress"]

_PARTS = 20  # steps of the progress bar, at least, where the shape has them


def fill_with_progress(
    view: View, out: NDArray[Any], *, threads: int | None, title: str
) -> NDArray[Any]:
    """Read `view` into `out` part by part along its first long axes, under a progress bar."""
    from rich.console import Console
    from rich.progress import Progress

    check_out(out, view.shape, view.dtype)
    # Parts of a time point, a channel ...: large enough to keep all threads busy.
    depth = 0
    while depth < view.ndim - 2 and math.prod(view.shape[:depth]) < _PARTS:
        depth += 1
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=view.nbytes)
        for position in np.ndindex(*view.shape[:depth]):
            part = out[(*position, ...)]
            view[position].read(out=part, threads=threads)
            bar.advance(task, part.nbytes)
    return out
