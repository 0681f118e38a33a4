"""Filter 32015, Zstandard: one frame (RFC 8878)."""

from __future__ import annotations

from typing import Any

import imagecodecs
import numpy as np
from numpy.typing import NDArray

from hyperslab.codecs.base import Buffer, CodecError, Decoder, allocate, require_size

__all__ = ["build_decoder"]

# The stubs of imagecodecs know neither memoryviews nor arrays, which its functions all take.
_decode_zstd: Any = imagecodecs.zstd_decode

_MAGIC = 0xFD2FB528
_DESCRIPTOR = 4  # offset of the frame header's first byte behind the magic number


def build_decoder(values: tuple[int, ...], itemsize: int) -> Decoder:
    """Return the decoder of filter 32015.

    Parameters
    ----------
    values
        The compression level; decoding does not need it.
    itemsize
        Not used.

    Returns
    -------
    Decoder
        Frames written by the plugin have no checksum: damage may give wrong bytes of the right
        number.

    Notes
    -----
    Cost: 0.5 to 1.1 GB/s of decoded image data, 9 us a call, most of them to set up a context; the
    GIL is released.
    """
    return _decode


def _decode(data: Buffer, size: int | None, out: NDArray[np.uint8] | None) -> Buffer:
    room = allocate(_content_nbytes(data) if size is None else size, out)
    try:
        decoded: Buffer = _decode_zstd(data, out=room)
    except (imagecodecs.ZstdError, ValueError) as error:
        raise CodecError(f"no sound Zstandard frame: {error}") from error
    require_size(len(decoded), len(room))
    return decoded


def _content_nbytes(data: Buffer) -> int:
    """Return the decoded size that the frame header states (RFC 8878, 3.1.1.1)."""
    if int.from_bytes(data[:_DESCRIPTOR], "little") != _MAGIC or len(data) <= _DESCRIPTOR:
        raise CodecError("no Zstandard frame begins here")
    descriptor = int(data[_DESCRIPTOR])
    single_segment = descriptor >> 5 & 1
    n_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
    if n_bytes == 0:
        raise CodecError("the Zstandard frame does not state its decoded size")
    start = _DESCRIPTOR + 1 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3]
    field = data[start : start + n_bytes]
    if len(field) < n_bytes:
        raise CodecError("the Zstandard frame header is cut short")
    return int.from_bytes(field, "little") + (256 if n_bytes == 2 else 0)
