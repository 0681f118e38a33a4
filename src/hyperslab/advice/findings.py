"""What is noticeable about how data are stored."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab import filters
from hyperslab.advice.cost import is_automatic
from hyperslab.advice.kinds import Kind
from hyperslab.advice.records import Finding
from hyperslab.exports.text import human_nbytes

__all__ = ["file_system", "find"]

_SMALL_NBYTES, _LARGE_NBYTES = 16 << 10, 64 << 20
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "lustre", "beegfs", "gpfs", "9p"}
_COMPRESS = {filters.GZIP, filters.LZF, filters.LZ4, filters.ZSTD, filters.BZIP2}


def find(
    kind: Kind, sample: NDArray[Any] | None, *, system: str, fill: Any = None
) -> list[Finding]:
    """Return what is noticeable about a kind of datasets.

    Parameters
    ----------
    kind
        Which.
    sample
        Some elements of the example, in native byte order; None if none could be read.
    system
        Type of the file system that the file is on, see `file_system`.
    fill
        The example's fill value; None if unknown.
    """
    found: list[Finding] = []

    def say(key: str, text: str, *, costs: bool = True) -> None:
        found.append(Finding(key=key, text=text, costs=costs))

    facts, chunks = kind.facts, kind.facts.chunks
    if chunks is not None:
        nbytes = math.prod(chunks) * kind.itemsize
        if is_automatic(kind.shape, chunks, kind.itemsize):
            say(
                "automatic-chunks",
                f"Chunks {chunks} are those that h5py chooses when no chunk shape is given: near-"
                "cubes, for no way of reading in particular.",
            )
        if nbytes < _SMALL_NBYTES and math.prod(kind.shape) * kind.itemsize > 1 << 20:
            say(
                "small-chunks",
                f"A chunk has {human_nbytes(nbytes)}: the work for each chunk outweighs decoding.",
            )
        if nbytes > _LARGE_NBYTES:
            say(
                "large-chunks",
                f"A chunk has {human_nbytes(nbytes)}: whatever is read of it, all is decoded, and "
                "one thread decodes it.",
            )
        codes = [entry.code for entry in facts.filters]
        if kind.itemsize > 1 and filters.SHUFFLE not in codes and _COMPRESS & set(codes):
            name = next(entry.name for entry in facts.filters if entry.code in _COMPRESS)
            say(
                "no-shuffle",
                f"{name} without shuffle: with it, elements of {kind.itemsize} bytes usually take "
                "less space, and decode faster.",
            )
        if kind.allocated < 1:
            reads = "the fill value" if fill is None else f"{fill}"
            say(
                "sparse",
                f"{_percent(1 - kind.allocated)} not allocated, reads as {reads}: chunks that were "
                "never written cost nothing.",
                costs=False,
            )
    if "big-endian" in facts.dtype:
        say("big-endian", "Elements are big-endian: each is turned around when it is read.")
    if facts.storage == "contiguous" and system in _NETWORK:
        say(
            "network",
            f"Contiguous data on a network disk ({system}): a slice across the rows takes a "
            "request for every row.",
        )
    if sample is not None and sample.size and sample.dtype == np.float64:
        narrow = _narrow(sample)
        if narrow:
            say(
                "wide-floats", f"float64 that holds {narrow} (on a sample): half the bytes or less."
            )
    each = kind.decoded_nbytes // len(kind.paths)
    if len(kind.paths) > 1000 and each < 256 << 10:
        say(
            "many-datasets",
            f"{len(kind.paths):,} datasets of {human_nbytes(each)} on average: opening them takes "
            "longer than reading.",
        )
    return found


def _percent(share: float) -> str:
    """Return a share, never as none or all where it is neither."""
    digits = 0 if 0.01 <= share <= 0.99 else 2
    return f"{min(max(100 * share, 0.01), 99.99):.{digits}f}%"


def _narrow(sample: NDArray[Any]) -> str:
    finite = sample[np.isfinite(sample)]
    if finite.size and np.all(finite == np.round(finite)) and np.all(np.abs(finite) < 2**31):
        return "integers"
    with np.errstate(over="ignore"):
        as_float32 = finite.astype(np.float32).astype(np.float64)
    return "float32" if finite.size and np.array_equal(as_float32, finite) else ""


def file_system(path: str) -> str:
    """Return the type of the file system that `path` is on, e.g. "ext4"; "" where unknown."""
    try:
        with open("/proc/mounts", encoding="utf-8") as stream:
            mounts = [line.split()[1:3] for line in stream]
    except OSError:
        return ""  # not Linux
    real = os.path.realpath(path)
    best, kind = "", ""
    for where, system in mounts:
        at = where.replace("\\040", " ")
        if (real == at or real.startswith(at.rstrip("/") + "/")) and len(at) >= len(best):
            best, kind = at, system
    return kind
