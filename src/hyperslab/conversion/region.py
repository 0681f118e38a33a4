"""A region, from the file into shards: what each thread, process or worker does."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hyperslab.conversion.coarser import fill_coarser, halved_axes
from hyperslab.conversion.codecs import decoder, encoder
from hyperslab.conversion.plan import ZarrPlan
from hyperslab.conversion.reading import read_once
from hyperslab.conversion.shard import write_shards
from hyperslab.exports.portable import Portable
from hyperslab.rewriting.memory import Memory

__all__ = ["Written", "convert_region"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What came of a region.

    Attributes
    ----------
    start
        Its first element.
    nbytes
        Decoded bytes.
    files
        The shards.
    chunks_decoded
        Chunks of the file that were decoded.
    """

    start: tuple[int, ...]
    nbytes: int
    files: list[Path]
    chunks_decoded: int


def convert_region(
    group: Path,
    source: Portable,
    plan: ZarrPlan,
    number: int,
    region: tuple[slice, ...],
    *,
    nearest: bool,
    memory: Memory | None = None,
    cancelled: threading.Event | None = None,
) -> Written:
    """Read a region of a level, and write its shards.

    Parameters
    ----------
    group
        Folder of the zarr group.
    source
        The image's level.
    plan
        Of the whole.
    number
        Which of the plan's levels.
    region
        Whole shards.
    nearest
        Whether coarser levels have every second element.
    memory
        Memory for the region.
    cancelled
        Set by whoever wants it to stop.
    """
    level = plan.levels[number]
    chunks_decoded = 0
    pool = ThreadPoolExecutor(level.threads, thread_name_prefix="hyperslab-convert")
    try:
        shape = [part.stop - part.start for part in region]
        values = (memory or Memory()).array(shape, plan.dtype)
        if level.made:
            finer = plan.levels[number - 1]
            fill_coarser(
                values,
                region,
                group / str(number - 1),
                finer,
                halved_axes(finer, level),
                nearest=nearest,
                decode=decoder(plan.codec),
                pool=pool,
            )
        else:
            there = tuple(region[plan.order.index(axis)] for axis in range(len(region)))
            out = values.transpose(np.argsort(plan.order))
            stats = read_once(source.level, there, out, threads=level.threads)
            chunks_decoded = stats.chunks_decoded
        files = write_shards(
            group / str(number),
            values,
            tuple(part.start for part in region),
            chunks=level.chunks,
            shards=level.shards,
            encode=encoder(plan.codec),
            pool=pool,
            cancelled=cancelled or threading.Event(),
        )
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return Written(
        start=tuple(part.start for part in region),
        nbytes=values.nbytes,
        files=files,
        chunks_decoded=chunks_decoded,
    )
