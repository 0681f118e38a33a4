"""Every chunk fetched and decoded, by all cores, and nothing kept: what fails does not stop others.

No HDF5 library is asked.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hyperslab.codecs.base import CodecError
from hyperslab.codecs.pipeline import Pipeline
from hyperslab.engine.limits import limits
from hyperslab.engine.pool import run_together
from hyperslab.engine.scratch import scratch
from hyperslab.engine.source import OpenFile, acquire, release
from hyperslab.errors import DamagedFileError
from hyperslab.index.records import Fingerprint

__all__ = ["Work", "check_work", "cut_run"]

_ADVANCE_NBYTES = 4 << 20
_MOST_REASONS = 10_000  # that are kept, of one dataset; the others are told in general


@dataclass(slots=True, kw_only=True, eq=False)
class Work:
    """Stored bytes of one dataset that are to be checked, in rows; and what was found.

    Attributes
    ----------
    file, fingerprint
        Where they lie, and what that file looked like.
    byte_offset, nbytes
        Of each row.
    filter_mask
        Of each row.
    pipeline
        Decoders; None where the bytes are the elements, so that they only have to be there.
    decoded_nbytes
        Of a row, where there is a pipeline.
    bad
        Rows that failed, and why.
    """

    file: str
    fingerprint: Fingerprint
    byte_offset: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    filter_mask: NDArray[np.uint32]
    pipeline: Pipeline | None
    decoded_nbytes: int
    bad: dict[int, str] = field(default_factory=dict)

    def fail(self, row: int, reason: str) -> None:
        """Note that a row failed."""
        self.bad[row] = reason if len(self.bad) < _MOST_REASONS else "cannot be decoded"


def cut_run(byte_offset: int, nbytes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut a run of bytes into rows of 4 MiB: their offsets and sizes."""
    starts = np.arange(0, nbytes, _ADVANCE_NBYTES, dtype=np.int64)
    return byte_offset + starts, np.minimum(_ADVANCE_NBYTES, nbytes - starts)


def check_work(
    works: Sequence[Work],
    *,
    threads: int | None = None,
    advance: Callable[[int], None] = lambda nbytes: None,
) -> None:
    """Fetch and decode every row of `works`, and note in `Work.bad` which fail.

    Parameters
    ----------
    works
        Of any files. Their rows lie within them.
    threads
        Most threads to use; by default the configured number.
    advance
        Called now and then, by any thread, with the number of stored bytes done since.

    Raises
    ------
    StaleIndexError, MissingFileError
        A file is no longer what it was.

    Notes
    -----
    In the order in which the bytes lie. Peak memory: per thread, the stored bytes of a row and one
    decoded, kept from row to row.
    """
    if not works:
        return
    work = np.repeat(np.arange(len(works)), [w.nbytes.size for w in works])
    row = np.concatenate([np.arange(w.nbytes.size) for w in works])
    files = {name: i for i, name in enumerate(dict.fromkeys(w.file for w in works))}
    file = np.array([files[w.file] for w in works])[work]
    order = np.lexsort((np.concatenate([w.byte_offset for w in works]), file))
    job = _Job(works, work[order], row[order], advance)
    run_together(job.work, max(1, min(threads or limits.threads, order.size)), job.stop)


class _Job:
    """What the threads share."""

    def __init__(
        self,
        works: Sequence[Work],
        work: NDArray[np.int64],
        row: NDArray[np.int64],
        advance: Callable[[int], None],
    ) -> None:
        self.stop = threading.Event()
        self._works = works
        self._work = work
        self._row = row
        self._advance = advance
        self._next = itertools.count()
        self._lock = threading.Lock()

    def work(self) -> None:
        """Draw rows until none is left; the body of every thread."""
        file: OpenFile | None = None
        mine: Work | None = None
        done = 0
        try:
            while not self.stop.is_set() and (i := next(self._next)) < self._row.size:
                work, row = self._works[int(self._work[i])], int(self._row[i])
                if work is not mine:
                    if file is not None:
                        release(file)
                        file = None
                    file, mine = acquire(work.file, work.fingerprint), work
                if file is not None and (reason := _failure(file, work, row)):
                    with self._lock:
                        work.fail(row, reason)
                done += int(work.nbytes[row])
                if done >= _ADVANCE_NBYTES:
                    self._advance(done)
                    done = 0
        finally:
            if file is not None:
                release(file)
            scratch.trim()
            self._advance(done)


def _failure(file: OpenFile, work: Work, row: int) -> str:
    """Return why a row cannot be had, "" if it can."""
    offset, nbytes = int(work.byte_offset[row]), int(work.nbytes[row])
    try:
        stored = scratch.stored(nbytes)
        file.read_into((stored,), offset, nbytes)
        if work.pipeline is not None:
            out = scratch.cell(work.decoded_nbytes)
            work.pipeline.decode(stored, int(work.filter_mask[row]), out)
    except CodecError as error:
        return str(error)
    except MemoryError:
        return f"there is no memory for its {max(nbytes, work.decoded_nbytes)} bytes"
    except DamagedFileError as error:
        return error.message.removeprefix(f"{file.path}: ")
    except OSError as error:
        return f"its bytes cannot be read: {error.strerror or error}"
    return ""
