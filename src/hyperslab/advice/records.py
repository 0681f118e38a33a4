"""What the adviser says: plain facts, in bytes and seconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Advice", "Finding", "KindAdvice", "PatternAdvice", "RepackOption"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about how the data are stored that is worth knowing.

    Attributes
    ----------
    key
        Name for programs, e.g. "automatic-chunks".
    text
        A sentence for people.
    costs
        Whether it makes reading slower or the file larger than need be.
    """

    key: str
    text: str
    costs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternAdvice:
    """What requests of one access pattern cost.

    Attributes
    ----------
    access
        The pattern.
    region
        Shape of what one request takes.
    chunks_touched
        Chunks that one request meets, on average over its places. 0 where there are no chunks.
    read_nbytes, decoded_nbytes, used_nbytes
        Stored bytes of these chunks, their decoded bytes, and the bytes of the result.
    amplification
        Decoded by used bytes.
    slab_nbytes
        Decoded bytes of the chunks of one request: what a cache has to hold for the next one.
    requests_per_slab
        How many requests those chunks serve.
    fits_h5py_cache, fits_our_cache
        Whether the slab fits the chunk cache that h5py gives a dataset by default, and ours.
    predicted_s
        Seconds a request: "h5py" and "hyperslab" for one at a random place, "hyperslab_in_order"
        where the order lets a slab serve all its requests (block shuffle, scrolling).
    measured_s
        Seconds a request, "h5py" and "hyperslab", medians of a few at random places; None where
        one would take too long.
    """

    access: str
    region: tuple[int, ...]
    chunks_touched: float
    read_nbytes: float
    decoded_nbytes: float
    used_nbytes: int
    amplification: float
    slab_nbytes: int
    requests_per_slab: float
    fits_h5py_cache: bool
    fits_our_cache: bool
    predicted_s: dict[str, float]
    measured_s: dict[str, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackOption:
    """What the first access pattern would cost after a repack.

    Attributes
    ----------
    codec, chunks
        How the data would be stored.
    ratio
        Decoded by stored bytes, on a sample.
    stored_nbytes
        Of all datasets of the kind, afterwards.
    repack_s
        How long the repack would take, without the time that a slow disk adds.
    predicted_s
        As `PatternAdvice.predicted_s`.
    needs_plugin
        Whether h5py would need hdf5plugin to read it.
    """

    codec: str
    chunks: tuple[int, ...]
    ratio: float
    stored_nbytes: int
    repack_s: float
    predicted_s: dict[str, float]
    needs_plugin: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KindAdvice:
    """Datasets that are stored alike.

    Attributes
    ----------
    datasets
        Their paths.
    example
        The one that was looked at closely.
    shape, dtype, storage, chunks, filters
        Of that one.
    stored_nbytes, decoded_nbytes
        Of all of them.
    patterns
        The first is the one that the verdict is about.
    options
        Repacks worth having, best first.
    findings
        What is noticeable.
    rates
        Bytes a second, measured: "decode" (all threads) and "disk"; "disk_cold" says whether the
        system was asked to forget the file before.
    """

    datasets: tuple[str, ...]
    example: str
    shape: tuple[int, ...]
    dtype: str
    storage: str
    chunks: tuple[int, ...] | None
    filters: tuple[str, ...]
    stored_nbytes: int
    decoded_nbytes: int
    patterns: tuple[PatternAdvice, ...]
    options: tuple[RepackOption, ...]
    findings: tuple[Finding, ...]
    rates: dict[str, float | bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The adviser's report on a file.

    Attributes
    ----------
    file, nbytes
        Which, and its size.
    kinds
        Largest first.
    verdict
        Two sentences.
    command
        What to run, "" if nothing.
    slow
        Whether a repack pays.
    """

    file: str
    nbytes: int
    kinds: tuple[KindAdvice, ...]
    verdict: str
    command: str
    slow: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON can hold it."""
        return asdict(self)
