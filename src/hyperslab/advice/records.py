"""What the adviser says: plain facts, in bytes and seconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Advice", "Finding", "KindAdvice", "Machine", "PatternAdvice", "RepackOption"]


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
        The pattern, as it was given.
    as_stored
        The same for the stored dataset: an image's `[t, c, z]` is `[z, :, :]` of one of its
        datasets.
    guessed
        Whether nobody gave the pattern: it suits the shape.
    region
        Shape of what one request takes.
    chunks_touched
        Chunks that one request meets, on average over its places. 0 where there are no chunks.
    read_nbytes, decoded_nbytes, used_nbytes
        Stored bytes of these chunks (without chunks: of the file's pages that are touched), their
        decoded bytes, and the bytes of the result.
    amplification, read_amplification
        Decoded by used bytes, and read by used bytes.
    slab_region, slab_nbytes
        Shape and decoded bytes of the elements in the chunks of one request: what a cache has to
        hold for the next one.
    requests_per_slab
        How many requests those chunks serve.
    fits_h5py_cache, fits_our_cache
        Whether the slab fits the chunk cache that h5py gives a dataset by default, and ours.
    predicted_s
        Seconds a request, from memory: "h5py" and "hyperslab" for one at a random place,
        "h5py_in_order" and "hyperslab_in_order" where the order lets a slab serve all its requests
        (scrolling; the block shuffle of `SliceLoader`, which h5py does not have). Those of h5py are
        None where it cannot read the dataset.
    measured_s
        The same, medians of a few at random places (means, where requests meet more chunks at one
        place than at another); None instead of the whole where one would take
        too long, and without the entries that were not measured.
    disk_s
        What a request takes longer if nothing of it is in the system's memory, at the rate of the
        disk. None where that is not known.
    """

    access: str
    as_stored: str
    guessed: bool
    region: tuple[int, ...]
    chunks_touched: float
    read_nbytes: float
    decoded_nbytes: float
    used_nbytes: int
    amplification: float
    read_amplification: float
    slab_region: tuple[int, ...]
    slab_nbytes: int
    requests_per_slab: float
    fits_h5py_cache: bool
    fits_our_cache: bool
    predicted_s: dict[str, float | None]
    measured_s: dict[str, float] | None
    disk_s: float | None

    @property
    def ours_s(self) -> float:
        """Predicted seconds of a request at a random place, by hyperslab."""
        return self.predicted_s["hyperslab"] or 0.0

    @property
    def in_order_s(self) -> float:
        """Predicted seconds of a request where slabs serve all of theirs, by hyperslab."""
        return self.predicted_s["hyperslab_in_order"] or 0.0


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
        How long the repack would take, reading back included, without what a slow disk adds and
        what every run takes, some tenths of a second.
    predicted_s
        As `PatternAdvice.predicted_s`: of requests to a sample that was written that way.
    disk_s
        As `PatternAdvice.disk_s`.
    needs_plugin
        Whether h5py would need hdf5plugin to read it.
    """

    codec: str
    chunks: tuple[int, ...]
    ratio: float
    stored_nbytes: int
    repack_s: float
    predicted_s: dict[str, float | None]
    disk_s: float | None
    needs_plugin: bool

    @property
    def ours_s(self) -> float:
        """Predicted seconds of a request at a random place, by hyperslab."""
        return self.predicted_s["hyperslab"] or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KindAdvice:
    """Datasets that are stored alike.

    Attributes
    ----------
    datasets
        Their paths.
    example
        The one that was looked at closely: the largest.
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
    decode_bytes_per_s
        Decoded bytes a second, measured on the example's own chunks: "one_thread" and
        "all_threads".
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
    decode_bytes_per_s: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the times are of.

    Attributes
    ----------
    hdf5
        Version of the HDF5 library that h5py uses.
    h5py_cache_nbytes
        The chunk cache that it gives a dataset by default.
    cache_nbytes, threads
        Our cache of decoded chunks, and the threads of a read.
    memory_nbytes
        Memory at hand: files that are larger come from the disk each time.
    disk_bytes_per_s
        Of stretches of the file.
    disk_cold
        True if these were seen not to be in the system's memory, so that the rate is the disk's;
        False if they were, None where that is not known.
    file_system
        Type of the file system that the file is on, "" if unknown.
    """

    hdf5: str
    h5py_cache_nbytes: int
    cache_nbytes: int
    threads: int
    memory_nbytes: int
    disk_bytes_per_s: float
    disk_cold: bool | None
    file_system: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The adviser's report on a file.

    Attributes
    ----------
    file, nbytes
        Which, and its size.
    machine
        What was measured on.
    kinds
        Largest first.
    verdict
        Two sentences, on the largest kind for which something can be done, or the largest.
    action
        "repack"; "block-shuffle", where an order that serves each slab once is about as fast as a
        repack; or "nothing".
    command
        What to run, or to write in Python for "block-shuffle"; "" if nothing.
    slow
        Whether requests at random places would be at least twice as fast after a repack.
    left_out
        What was not looked at, and why: sentences.
    """

    file: str
    nbytes: int
    machine: Machine
    kinds: tuple[KindAdvice, ...]
    verdict: str
    action: str
    command: str
    slow: bool
    left_out: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON can hold it."""
        return asdict(self)
