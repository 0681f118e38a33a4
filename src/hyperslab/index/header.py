"""The one fact of a dataset that no h5py call tells: are its partial edge chunks filtered?

HDF5 file format specification 3.0, sections IV.A.1 (object headers) and IV.A.2.i (data layout
message, version 4 and later, chunked: bit 0 of the flags is "do not apply filter to a partial
edge chunk").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["has_unfiltered_edges"]

_LAYOUT = 0x08
_CONTINUATION = 0x10


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
    for kind, body in _messages(stream, address + base, base):
        if kind == _LAYOUT and len(body) >= 3:
            version, layout_class, flags = body[0], body[1], body[2]
            return version >= 4 and layout_class == 2 and bool(flags & 1)
    return False


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
