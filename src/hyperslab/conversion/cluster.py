"""Regions on a dask.distributed cluster: each worker writes whole shards."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hyperslab.conversion.plan import ZarrPlan
from hyperslab.conversion.region import Written, convert_region
from hyperslab.errors import MissingExtraError
from hyperslab.exports.portable import Portable
from hyperslab.rewriting.encode import Cancelled

__all__ = ["Run", "on_cluster"]

Region = tuple[slice, ...]
Run = Callable[[Portable, int, Iterator[Region]], Iterator[Written]]

_AHEAD = 2  # regions a thread of a worker that are sent before they are done


@contextmanager
def on_cluster(
    address: str, group: Path, plan: ZarrPlan, *, nearest: bool, cancelled: threading.Event
) -> Iterator[Run]:
    """Give a function that has regions converted by the cluster at `address`.

    The workers must see the file and the result under the same paths. A worker's thread works on
    one region at a time, and takes for it the memory that the plan says.
    """
    try:
        from distributed import Client, as_completed, wait
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] not in ("dask", "distributed"):
            raise
        raise MissingExtraError(
            "--scheduler needs dask.distributed, which is not installed here. Install it with: "
            "pip install 'hyperslab[dask]' (in a clone of it: pip install '.[dask]')",
            package="distributed",
            extra="dask",
        ) from error

    connect: Any = Client
    completed: Any = as_completed
    wait_for: Any = wait
    with connect(address, set_as_default=False) as client:

        def run(source: Portable, number: int, regions: Iterator[Region]) -> Iterator[Written]:
            task = partial(convert_region, group, source, plan, number, nearest=nearest)
            most = _AHEAD * max(1, sum(client.nthreads().values()))
            # Not pure: what counts is what is written, and that may have been deleted since.
            pending = {
                client.submit(task, region, pure=False)
                for region in itertools.islice(regions, most)
            }
            working = completed(list(pending))
            try:
                for future in working:
                    if cancelled.is_set():
                        raise Cancelled
                    pending.discard(future)
                    written: Written = future.result()
                    for region in itertools.islice(regions, 1):
                        more = client.submit(task, region, pure=False)
                        pending.add(more)
                        working.add(more)
                    yield written
            finally:
                # Nobody writes any more when this returns, or whoever goes on would be in the way.
                wait_for(list(pending))

        yield run
