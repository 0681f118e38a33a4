"""What every decoder agrees on: the call, the buffers and the two errors.

A codec module holds one function, ``build_decoder(values, itemsize)``. `values` are the filter's
client data values as the file records them, `itemsize` is the size in bytes of one element of the
dataset. It returns a :data:`Decoder`, or raises :class:`CodecError` where the values make no sense.

A decoder is called as ``decode(data, size, out)``:

data
    The stored bytes. Contiguous, one-dimensional, one byte per item, so that ``len(data)`` is the
    number of bytes. Never written to.
size
    How many bytes must come out, or None where nobody knows. With a size, a decoder returns that
    many bytes or raises; it never returns fewer, more, or bytes it did not decode.
out
    Memory of the caller, ``uint8``, C-contiguous, not overlapping `data`: exactly `size` long. It
    may be used as destination or left alone; after an error it holds anything. Where `size` is
    None, `out` may be given too, of any length, as scratch memory.

The result is `out`, a part of it, a view of `data`, or a buffer of its own: the caller looks at
what came back and keeps `data` alive as long as it uses it.

Decoders hold no state and may run in any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Buffer",
    "ChecksumMismatch",
    "CodecError",
    "Decoder",
    "allocate",
    "as_view",
    "require_size",
]

Buffer = bytes | bytearray | memoryview | NDArray[np.uint8]

Decoder = Callable[[Buffer, int | None, NDArray[np.uint8] | None], Buffer]


class CodecError(ValueError):
    """The stored bytes, or the filter's client values, are not what the filter writes."""


class ChecksumMismatch(CodecError):
    """The stored checksum differs from the one of the bytes."""


def allocate(size: int, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """Return `size` bytes to decode into: the beginning of `out` where that is long enough.

    Parameters
    ----------
    size
        Bytes needed. May come from a damaged header.
    out
        Memory of the caller, or None.

    Returns
    -------
    ndarray
        ``(size,)`` uint8, not initialised.

    Raises
    ------
    CodecError
        No such amount of memory can be had.
    """
    if out is not None and len(out) >= size:
        return out if len(out) == size else out[:size]
    try:
        return np.empty(size, np.uint8)
    except (MemoryError, ValueError) as error:
        message = f"the header asks for {size} bytes, more than can be allocated"
        raise CodecError(message) from error


def as_view(data: Buffer) -> memoryview:
    """Return a memoryview of `data`, which slices without a copy."""
    return memoryview(cast(bytes, data))  # an ndarray has the protocol, but not the type


def require_size(found: int, size: int | None) -> None:
    """Raise CodecError unless `found` bytes are the `size` expected (None expects nothing)."""
    if size is not None and found != size:
        raise CodecError(f"decodes to {found} bytes, not to the {size} expected")
