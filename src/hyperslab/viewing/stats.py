"""What read-ahead has done, in counts that a test can assert."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ReadAheadStats"]


@dataclass(slots=True, kw_only=True)
class ReadAheadStats:
    """What read-ahead has done in this process.

    Attributes
    ----------
    chunks_decoded
        Chunks that were decoded ahead.
    chunks_used
        Of these, those of slabs that were then looked at.
    slabs_dropped
        Slabs that were given up before all of their chunks were decoded, since the viewer was
        there already, or went elsewhere.
    slabs_waiting
        Slabs of which some chunks are still to be decoded; 0: there is nothing to do.
    n_failed
        How often something could not be read. Nothing of it is kept, and whoever reads it gets the
        error.
    """

    chunks_decoded: int = 0
    chunks_used: int = 0
    slabs_dropped: int = 0
    slabs_waiting: int = 0
    n_failed: int = 0
