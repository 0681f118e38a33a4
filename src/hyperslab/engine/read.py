"""Read: plan, then carry the plan out with all the threads it is worth."""

from __future__ import annotations

import time
from typing import Any

from numpy.typing import NDArray

from hyperslab.engine.job import Job
from hyperslab.engine.limits import limits
from hyperslab.engine.node import Node
from hyperslab.engine.plan import ReadPlan
from hyperslab.engine.planner import plan_read
from hyperslab.engine.pool import run_together
from hyperslab.engine.stats import ReadStats, remember
from hyperslab.index.container import stale
from hyperslab.index.records import fingerprint
from hyperslab.selection import Selection

__all__ = ["execute", "read"]

Array = NDArray[Any]

# What decides how many threads a read is worth: about how long its work takes one of them.
_DECODED_PER_S = 500e6
_COPIED_PER_S = 5e9
_WORTH_A_THREAD_S = 200e-6


def read(
    requests: list[tuple[Node, Selection, Array]],
    *,
    threads: int | None = None,
    keep: bool | None = None,
) -> ReadStats:
    """Plan and carry out `requests`; see `plan_read` and `execute`."""
    start = time.perf_counter()
    stats = execute(plan_read(requests, keep=keep), threads=threads)
    stats.bytes_returned = sum(dest.nbytes for _, _, dest in requests)
    stats.seconds = time.perf_counter() - start
    remember(stats)
    return stats


def execute(plan: ReadPlan, *, threads: int | None = None) -> ReadStats:
    """Carry out `plan`: fill every destination.

    Parameters
    ----------
    plan
        Whose destinations nobody else touches meanwhile.
    threads
        Most threads to use, the caller's included; by default the configured number. A small plan
        is carried out by the caller's thread alone.

    Returns
    -------
    ReadStats

    Raises
    ------
    StaleIndexError
        A file changed since it was indexed, or while it was read.
    ChunkDecodeError, ChecksumError, DamagedFileError
        With file, dataset, chunk and byte offset. Destinations are then partly filled.

    Notes
    -----
    Peak memory: per thread, the stored bytes of one batch (at most 1 MiB, or one chunk) and one
    decoded chunk, besides what the cache keeps.
    """
    _check_files(plan)
    for dest, fill in plan.fills:
        dest[...] = fill
    job = Job(plan)
    n_threads = _worth(plan, job.n_tasks, threads or limits.threads)
    run_together(job.work, n_threads, job.stop)
    for scatter in plan.scatters:
        scatter.dest[scatter.index] = scatter.source
    _check_files(plan)
    stats = job.stats
    stats.threads = n_threads
    stats.chunks_filled = plan.n_filled
    return stats


def _check_files(plan: ReadPlan) -> None:
    for path, expected in plan.files:
        if fingerprint(path) != expected:
            raise stale(path)


def _worth(plan: ReadPlan, n_tasks: int, most: int) -> int:
    if most == 1 or n_tasks < 2:
        return 1
    copied = sum(run.dest.nbytes for run in plan.runs)
    copied += sum(8 * mapped.dest.nbytes for mapped in plan.mapped)  # strided: cache misses
    copied += int(plan.nbytes.sum())
    seconds = plan.decoded_nbytes / _DECODED_PER_S + copied / _COPIED_PER_S
    return max(1, min(most, n_tasks, int(seconds / _WORTH_A_THREAD_S)))
