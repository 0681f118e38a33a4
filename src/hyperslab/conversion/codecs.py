"""Codecs of zarr chunks, by the names that the command line has for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hyperslab.errors import OutputError

__all__ = ["CODECS", "check", "compressor", "decoder", "encoder"]

CODECS = ("blosc", "zstd", "gzip", "none")

_ZSTD_LEVEL = 1
_BLOSC_LEVEL = 1
_GZIP_LEVEL = 5


def check(codec: str) -> None:
    """Raise `OutputError` unless there is such a codec."""
    if codec not in CODECS:
        raise OutputError(f"There is no codec {codec!r}. Codecs: {', '.join(CODECS)}.")


def compressor(codec: str) -> Any:
    """Return what zarr records for a codec, or None."""
    from zarr import codecs

    match codec:
        case "zstd":
            return codecs.ZstdCodec(level=_ZSTD_LEVEL)
        case "blosc":
            return codecs.BloscCodec(cname="zstd", clevel=_BLOSC_LEVEL, shuffle="shuffle")
        case "gzip":
            return codecs.GzipCodec(level=_GZIP_LEVEL)
    return None


def encoder(codec: str) -> Callable[[Any], Any]:
    """Return the function that encodes a chunk, C-contiguous, as `compressor` says."""
    found = _numcodec(codec)
    return memoryview if found is None else found.encode


def decoder(codec: str) -> Callable[[Any], Any]:
    """Return the function that gives a chunk's bytes back."""
    found = _numcodec(codec)
    return memoryview if found is None else found.decode


def _numcodec(codec: str) -> Any:
    """Return what zarr itself calls; it releases the interpreter's lock."""
    import numcodecs

    match codec:
        case "zstd":
            return numcodecs.Zstd(level=_ZSTD_LEVEL)
        case "blosc":
            return numcodecs.Blosc("zstd", _BLOSC_LEVEL, numcodecs.Blosc.SHUFFLE)
        case "gzip":
            return numcodecs.GZip(_GZIP_LEVEL)
    return None
