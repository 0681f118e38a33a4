"""Facts of a chunked dataset that no h5py call tells: how its chunks are indexed, and its edges.

HDF5 file format specification 3.0, sections IV.A.1 (object headers) and IV.A.2.i (data layout
message, version 4 and later, chunked: flags, number of dimensions, bytes per dimension, dimensions,
chunk index type; bit 0 of the flags is "do not apply filter to a partial edge chunk").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["has_extensible_array", "has_unfiltered_edges"]

_LAYOUT = 0x08
_CONTINUATION = 0x10
_CHUNKED = 2
_EXTENSIBLE_ARRAY = 4


def has_unfiltered_edges(stream: BinaryIO, address: int, base: int) -> bool:
    """Tell whether the dataset whose object header is at `address` leaves edge chunks unfiltered.

    Parameters
    ----------
    stream
        The file, opened in binary mode.
    address
        Byte address of the object header, relative to `base`.
    base
        Size of the user block, bytes.

    Returns
    -------
    bool
        False also for headers that predate the flag (version 1 headers never carry it).
    """
    body = _chunked_layout(stream, address, base)
    return body is not None and bool(body[2] & 1)


def has_extensible_array(stream: BinaryIO, address: int, base: int) -> bool:
    """Tell whether the dataset's chunks are indexed by an extensible array.

    Parameters and cost as of `has_unfiltered_edges`.
    """
    body = _chunked_layout(stream, address, base)
    if body is None:
        return False
    at = 5 + body[3] * body[4]
    return len(body) > at and body[at] == _EXTENSIBLE_ARRAY


def _chunked_layout(stream: BinaryIO, address: int, base: int) -> bytes | None:
    """Return the layout message of a chunked dataset, if it has one of version 4 or later."""
    for kind, body in _messages(stream, address + base, base):
        if kind == _LAYOUT and len(body) >= 5:
            return body if body[0] >= 4 and body[1] == _CHUNKED else None
    return None


def _messages(stream: BinaryIO, position: int, base: int) -> Iterator[tuple[int, bytes]]:
    stream.seek(position)
    head = stream.read(6)
    if head[:4] != b"OHDR":
        return
    flags = head[5]
    skip = (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
    width = 1 << (flags & 3)
    rest = stream.read(skip + width)
    nbytes = int.from_bytes(rest[skip : skip + width], "little")
    # A message header is type (1), size (2), flags (1) and, if recorded, creation order (2).
    header_nbytes = 6 if flags & 0x04 else 4
    blocks = [(stream.tell(), nbytes)]
    seen: set[int] = set()
    while blocks:
        start, length = blocks.pop(0)
        if start in seen:
            return
        seen.add(start)
        stream.seek(start)
        block = stream.read(length)
        at = 0
        while at + header_nbytes <= len(block):
            kind, size = struct.unpack_from("<BH", block, at)
            body = block[at + header_nbytes : at + header_nbytes + size]
            at += header_nbytes + size
            if kind == _CONTINUATION and len(body) >= 16:
                address, extent = struct.unpack_from("<QQ", body)
                # The block starts with "OCHK" and ends with a 4-byte checksum.
                blocks.append((address + base + 4, extent - 8))
            yield kind, body
