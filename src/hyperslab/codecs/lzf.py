"""Filter 32000, lzf: one LZF stream without header, as h5py writes it."""

from __future__ import annotations

from typing import Any

import imagecodecs
import numpy as np
from numpy.typing import NDArray

from hyperslab.codecs.base import Buffer, CodecError, Decoder, allocate, require_size

__all__ = ["build_decoder"]

# The stubs of imagecodecs know neither memoryviews nor arrays, which its functions all take.
_decode_lzf: Any = imagecodecs.lzf_decode

# Three bytes of LZF stand for 264 bytes at most: a long match.
_MAX_RATIO = 88
_MAX_NBYTES = 2**31 - 1


def build_decoder(values: tuple[int, ...], itemsize: int) -> Decoder:
    """Return the decoder of filter 32000.

    Parameters
    ----------
    values
        ``(revision, LZF version, chunk size in bytes)``; not used, for a filter above this one
        may make the third wrong.
    itemsize
        Not used.

    Returns
    -------
    Decoder
        The format has no checksum: damage may give wrong bytes of the right number.

    Notes
    -----
    Cost: 0.8 to 1.3 GB/s of decoded image data, 2 us a call; the GIL is released.
    """
    return _decode


def _decode(data: Buffer, size: int | None, out: NDArray[np.uint8] | None) -> Buffer:
    if len(data) == 0:  # liblzf looks at the first byte without asking
        raise CodecError("no bytes to decode")
    room = allocate(min(_MAX_RATIO * len(data), _MAX_NBYTES) if size is None else size, out)
    try:
        decoded: Buffer = _decode_lzf(data, out=room)
    except (imagecodecs.LzfError, ValueError) as error:
        raise CodecError(f"no sound LZF stream: {error}") from error
    require_size(len(decoded), size)
    return decoded
