"""`preload`: fill a decoded cache before training."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hyperslab.array import Array
from hyperslab.errors import PerformanceWarning
from hyperslab.torch.decoded.case_cache import CaseCache
from hyperslab.torch.decoded.case_folder import InUseError, human

__all__ = ["preload"]

_WAIT_S = 0.05  # between two looks at what others are filling


def preload(cache: CaseCache, arrays: Sequence[tuple[Array, int]], *, progress: bool) -> None:
    """Decode all of `arrays` into `cache`, or nothing if they do not fit.

    Parameters
    ----------
    cache
        To be filled.
    arrays
        Datasets with their slice axes. What is there already is not decoded again.
    progress
        Say on the terminal (on stderr) what is needed, and show a progress bar.

    Raises
    ------
    CapacityError
        There is no room; the message and the attributes say how much is needed and how much there
        is, of the budget, the disk or the memory, a cgroup's limit included. Nothing has been
        written then, unless another process has taken the room since.
    StaleIndexError, DamagedFileError, ChunkDecodeError, ChecksumError
        As reading the sources. What has been decoded before is kept.

    Warns
    -----
    PerformanceWarning
        Some of `arrays` cannot be cached: it is not known which files their values come from.

    Notes
    -----
    Several processes may preload the same at once: they share the work, and each returns when all
    of it is done.
    """
    needed = cache.check_room(arrays)
    waiting = [(array, axis) for array, axis in arrays if cache.get(array, axis) is None]
    # Where processes begin differs, so that they meet late.
    first = os.getpid() % max(1, len(waiting))
    waiting = waiting[first:] + waiting[:first]
    title = f"{len(waiting)} of {len(arrays)} datasets, {human(needed)}, into {cache.folder}"
    n_unknown = 0
    with _bar(title, sum(array.nbytes for array, _ in waiting), shown=progress) as advance:
        while waiting:
            others: list[tuple[Array, int]] = []
            for array, axis in waiting:
                try:
                    n_unknown += cache.fill_now(array, axis) is None
                except InUseError:
                    others.append((array, axis))
                else:
                    advance(array.nbytes)
            if len(others) == len(waiting):
                time.sleep(_WAIT_S)
            waiting = others
    if n_unknown:
        warnings.warn(
            f"{n_unknown} of {len(arrays)} datasets are not in the cache: they are virtual, and it "
            "is not known which files their values come from. They are read from those files.",
            PerformanceWarning,
            stacklevel=2,
        )


@contextmanager
def _bar(title: str, total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Give a function that moves a progress bar on; one that does nothing if it is not shown."""
    if not shown or not total:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    console.print(f"Decoding {title}", highlight=False, soft_wrap=True)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("decoding", total=total)
        yield lambda nbytes: bar.advance(task, nbytes)
