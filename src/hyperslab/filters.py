"""HDF5 filters: what the file recorded, and what they are called.

Numbers are the registered identifiers of the HDF Group's list of filter plugins.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "BITSHUFFLE", "BLOSC", "BLOSC2", "BZIP2", "FLETCHER32", "GZIP", "LZ4", "LZF", "NBIT",
    "SCALEOFFSET", "SHUFFLE", "SZIP", "ZFP", "ZSTD", "Filter", "filter_name", "filter_package",
]  # fmt: skip

GZIP = 1
SHUFFLE = 2
FLETCHER32 = 3
SZIP = 4
NBIT = 5
SCALEOFFSET = 6
BZIP2 = 307
LZF = 32000
BLOSC = 32001
LZ4 = 32004
BITSHUFFLE = 32008
ZFP = 32013
ZSTD = 32015
BLOSC2 = 32026

_NAMES = {
    GZIP: "gzip", SHUFFLE: "shuffle", FLETCHER32: "fletcher32", SZIP: "szip", NBIT: "n-bit",
    SCALEOFFSET: "scale-offset", 305: "LZO", BZIP2: "bzip2", LZF: "lzf", BLOSC: "blosc",
    32002: "MAFISC", 32003: "Snappy", LZ4: "lz4", 32005: "APAX", 32006: "CBF", 32007: "JPEG-XR",
    BITSHUFFLE: "bitshuffle", 32009: "SPDP", 32010: "LPC-Rice", 32011: "CCSDS-123",
    32012: "JPEG-LS", ZFP: "zfp", 32014: "fpzip", ZSTD: "zstd", 32016: "B3D", 32017: "SZ",
    32018: "FCIDECOMP", 32019: "JPEG", 32020: "VBZ", 32021: "FAPEC", 32022: "BitGroom",
    32023: "Granular BitRound", 32024: "SZ3", 32025: "Delta-Rice", BLOSC2: "blosc2",
    32027: "FLAC", 32028: "SPERR", 32030: "DynamicFilter",
}  # fmt: skip

# Filters that `pip install hdf5plugin` brings (hdf5plugin 7.1's list).
_IN_HDF5PLUGIN = {BZIP2, BLOSC, LZ4, BITSHUFFLE, ZFP, ZSTD, 32017, 32018, 32024, BLOSC2, 32028}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """One entry of a dataset's filter pipeline, as the file records it.

    Attributes
    ----------
    code
        Registered filter identifier.
    values
        Client data values, unsigned 32-bit each.
    name
        Name for people: ours where known, else the one in the file.
    optional
        True if the writer was allowed to skip the filter for a chunk.
    """

    code: int
    values: tuple[int, ...] = ()
    name: str = ""
    optional: bool = True


def filter_name(code: int, recorded: str = "") -> str:
    """Return a person's name for filter `code`; `recorded` is what the file calls it."""
    return _NAMES.get(code) or recorded or f"filter {code}"


def filter_package(code: int) -> str:
    """Return the pip package that lets h5py decode filter `code` ("" if none is known)."""
    return "hdf5plugin" if code in _IN_HDF5PLUGIN else ""
