"""Chunks encoded the way HDF5's filters have them, for what is written anew.

Each encoder gives the bytes that the filter of that name stores, so that h5py, with hdf5plugin for
those that do not come with HDF5, reads them back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab import filters
from hyperslab.filters import Filter

__all__ = ["CODECS", "Codec", "codec", "crc32", "encode"]

# Of libdeflate, whose lowest level makes images about as small as zlib's level 4, three times as
# fast; its level 4 makes them up to 8 % smaller at half the speed, and decodes slower.
_GZIP_LEVEL = 1
_ZSTD_LEVEL = 3
_BLOSC_LEVEL = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """How chunks are stored.

    Attributes
    ----------
    name
        For people and the command line.
    shuffle
        Whether bytes of one significance are put side by side first.
    code, values
        Of the filter that compresses, as the file records it; 0 for none.
    needs_plugin
        Whether h5py needs the package hdf5plugin to read it. LZF comes with h5py, and other
        programs need a plugin for it.
    """

    name: str
    shuffle: bool = False
    code: int = 0
    values: tuple[int, ...] = ()
    needs_plugin: bool = False

    def pipeline(self, itemsize: int) -> tuple[Filter, ...]:
        """Return the filters that are recorded for elements of `itemsize` bytes."""
        found: list[Filter] = []
        if self.shuffle and itemsize > 1:
            found.append(Filter(code=filters.SHUFFLE, values=(itemsize,), name="shuffle"))
        if self.code:
            name = filters.filter_name(self.code)
            values = self.values
            if self.code == filters.BLOSC:
                values = (*values[:2], itemsize, *values[3:])
            found.append(Filter(code=self.code, values=values, name=name))
        return tuple(found)


CODECS = {
    codec.name: codec
    for codec in (
        Codec(name="none"),
        # The filter adds its version and the size of a chunk by itself, when the dataset is made.
        Codec(name="lzf", shuffle=True, code=filters.LZF),
        Codec(name="lz4", shuffle=True, code=filters.LZ4, needs_plugin=True),
        Codec(
            name="zstd", shuffle=True, code=filters.ZSTD, values=(_ZSTD_LEVEL,), needs_plugin=True
        ),
        Codec(name="gzip", shuffle=True, code=filters.GZIP, values=(_GZIP_LEVEL,)),
        # Revision, Blosc version, element size, chunk size (unknown here, and not needed), level,
        # shuffle, LZ4. Blosc shuffles by itself.
        Codec(
            name="blosc",
            code=filters.BLOSC,
            values=(2, 2, 0, 0, _BLOSC_LEVEL, 1, 1),
            needs_plugin=True,
        ),
    )
}


def codec(name: str) -> Codec:
    """Return the codec of that name.

    Raises
    ------
    ValueError
        There is none; the message lists those that there are.
    """
    if name not in CODECS:
        raise ValueError(f"There is no codec {name!r}. Codecs: {', '.join(CODECS)}.")
    return CODECS[name]


def encode(chunk: NDArray[np.generic], how: Codec) -> bytes:
    """Return the stored bytes of a chunk.

    Parameters
    ----------
    chunk
        The whole chunk, C-contiguous, in the byte order of the file.
    how
        One of `CODECS`.

    Notes
    -----
    Releases the interpreter's lock while it compresses. Formats: gzip is a zlib stream (HDF5's
    deflate); LZF (32000) one stream without a header, larger than the data where those do not
    compress; LZ4 (32004) has a header of 12 bytes, then blocks; zstd (32015) is one frame; Blosc
    (32001) one Blosc 1 chunk.
    """
    data = np.ascontiguousarray(chunk).reshape(-1).view(np.uint8)
    itemsize = chunk.dtype.itemsize
    if how.shuffle and itemsize > 1:
        data = np.ascontiguousarray(data.reshape(-1, itemsize).T).reshape(-1)
    if not how.code:
        return data.tobytes()
    return _encoder(how.code, itemsize)(data)


def crc32(data: memoryview) -> int:
    """Return the CRC-32 of contiguous bytes, as zlib does; some six times as fast (libdeflate)."""
    import imagecodecs

    found: int = imagecodecs.deflate_crc32(data)  # type: ignore[arg-type]  # anything with a buffer
    return found


def _encoder(code: int, itemsize: int) -> Callable[[Any], bytes]:  # of anything with a buffer
    import imagecodecs

    match code:
        case filters.GZIP:
            return lambda data: bytes(imagecodecs.deflate_encode(data, level=_GZIP_LEVEL))
        case filters.LZF:
            return lambda data: bytes(imagecodecs.lzf_encode(data))
        case filters.LZ4:
            return lambda data: bytes(imagecodecs.lz4h5_encode(data))
        case filters.ZSTD:
            return lambda data: bytes(imagecodecs.zstd_encode(data, level=_ZSTD_LEVEL))
        case filters.BLOSC:
            return lambda data: bytes(
                imagecodecs.blosc_encode(
                    data,
                    level=_BLOSC_LEVEL,
                    compressor="lz4",
                    shuffle=1,
                    typesize=itemsize,
                    numthreads=1,
                )
            )
    raise ValueError(f"filter {code} is not encoded here")
