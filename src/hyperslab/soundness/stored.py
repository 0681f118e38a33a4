"""What of a dataset is to be fetched and decoded, and what that has shown."""

from __future__ import annotations

import numpy as np

from hyperslab.codecs.base import CodecError
from hyperslab.codecs.pipeline import Pipeline, is_native
from hyperslab.index.records import Fingerprint
from hyperslab.soundness.decode import Work, cut_run
from hyperslab.soundness.examine import Chunks, Examined, look_at, slices_of_bytes

__all__ = ["plan_work", "take_results"]


def plan_work(mine: Examined, *, most_nbytes: int) -> None:
    """Fill `mine.works` with what is to be fetched and decoded.

    Parameters
    ----------
    mine
        Of which bad chunks are left out.
    most_nbytes
        Of memory that one chunk may take; larger ones are not checked.
    """
    table = mine.table
    if table is not None and mine.fingerprint is not None:
        if mine.itemsize and is_native(mine.filters):
            _plan_chunks(mine, table, mine.fingerprint, most_nbytes)
        return
    for file, offset, nbytes in mine.segments:
        print_ = mine.fingerprint if file == mine.file else look_at(file)
        there = 0 if print_ is None or offset < 0 else min(nbytes, print_.nbytes - offset)
        if print_ is not None and there > 0:
            begin, size = cut_run(offset, there)
            mine.works.append(
                Work(
                    file=file,
                    fingerprint=print_,
                    byte_offset=begin,
                    nbytes=size,
                    filter_mask=np.zeros(size.size, np.uint32),
                    pipeline=None,
                    decoded_nbytes=0,
                )
            )


def _plan_chunks(mine: Examined, table: Chunks, print_: Fingerprint, most_nbytes: int) -> None:
    sound = np.flatnonzero(~table.bad)
    largest = int(table.nbytes[sound].max(initial=0)) + table.decoded_nbytes
    if mine.filters and largest > most_nbytes:
        mine.unchecked = (
            f"a chunk takes {largest} bytes of memory, and {most_nbytes} is what each thread may"
        )
        return
    try:
        pipeline = None
        if mine.filters:
            pipeline = Pipeline(
                mine.filters, itemsize=mine.itemsize, decoded_nbytes=table.decoded_nbytes
            )
    except CodecError as error:
        mine.fail(f"its filters make no sense: {error}")
        return
    mine.works.append(
        Work(
            file=mine.file,
            fingerprint=print_,
            byte_offset=table.byte_offset[sound],
            nbytes=table.nbytes[sound],
            filter_mask=table.filter_mask[sound],
            pipeline=pipeline,
            decoded_nbytes=table.decoded_nbytes,
        )
    )


def take_results(mine: Examined) -> None:
    """Note what decoding has found out."""
    begin = 0
    for work in mine.works:
        if mine.table is not None:
            rows = np.flatnonzero(~mine.table.bad)
            for i, reason in work.bad.items():
                mine.table.fail(int(rows[i]), reason)
            continue
        for i, reason in sorted(work.bad.items()):
            at, n = int(work.byte_offset[i]), int(work.nbytes[i])
            from_ = begin + at - int(work.byte_offset[0])
            mine.fail(reason, slices_of_bytes(mine, from_, n), byte_offset=at, nbytes=n)
        begin += int(work.nbytes.sum())
    mine.works = []
