"""What the last read did, in counts that a test can assert."""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["ReadStats", "last_stats", "remember"]


@dataclass(slots=True, kw_only=True)
class ReadStats:
    """The work of one read (one `a[...]`, `read` or `read_many`).

    Attributes
    ----------
    chunks_decoded
        Chunks that were fetched and decoded (or, unfiltered, copied) by this read.
    chunks_cached
        Chunks that were found decoded in the cache, or that another thread decoded meanwhile.
    chunks_filled
        Chunks that the file does not hold and that read as the fill value.
    chunks_library
        Of `chunks_decoded`, those that went through the HDF5 library.
    preads
        Calls to the operating system that read from a file.
    bytes_read
        Bytes fetched from files, stored form; memory-mapped elements count as they are copied.
    bytes_decoded
        Bytes that came out of decoders.
    bytes_returned
        Bytes of the result.
    threads
        Threads that took part, the caller's included.
    seconds
        Wall time from the call to the filled result.
    """

    chunks_decoded: int = 0
    chunks_cached: int = 0
    chunks_filled: int = 0
    chunks_library: int = 0
    preads: int = 0
    bytes_read: int = 0
    bytes_decoded: int = 0
    bytes_returned: int = 0
    threads: int = 1
    seconds: float = 0.0

    def add(self, other: ReadStats) -> None:
        """Add the counts of a thread that took part."""
        self.chunks_decoded += other.chunks_decoded
        self.chunks_cached += other.chunks_cached
        self.chunks_library += other.chunks_library
        self.preads += other.preads
        self.bytes_read += other.bytes_read
        self.bytes_decoded += other.bytes_decoded


_mine = threading.local()
_latest = ReadStats()


def remember(stats: ReadStats) -> None:
    """Keep `stats` as what the calling thread's, and the process's, last read did."""
    global _latest
    _mine.stats = _latest = stats


def last_stats() -> ReadStats:
    """Return what the calling thread's last read did.

    A thread that has not read anything gets the process's last read; before the first, zeros.

    Examples
    --------
    >>> import hyperslab as hs
    >>> hs.last_stats().chunks_decoded >= 0
    True
    """
    found: ReadStats = getattr(_mine, "stats", _latest)
    return found
