"""Filter 32004, LZ4: a header, then blocks of LZ4.

Header: decoded size (8 bytes), block size (4 bytes); each block: stored size (4 bytes), data, LZ4
or, where the stored size equals the block size, as they are. All big-endian (the HDF Group's
registered plugin; Imaris writes the same).
"""

from __future__ import annotations

from typing import Any

import imagecodecs
import numpy as np
from numpy.typing import NDArray

from hyperslab.codecs.base import Buffer, CodecError, Decoder, allocate, require_size

__all__ = ["build_decoder"]

# The stubs of imagecodecs know neither memoryviews nor arrays, which its functions all take.
_decode_lz4h5: Any = imagecodecs.lz4h5_decode

_HEADER_NBYTES = 12


def build_decoder(values: tuple[int, ...], itemsize: int) -> Decoder:
    """Return the decoder of filter 32004.

    Parameters
    ----------
    values
        The block size the writer was asked for; not used, the header has the real one.
    itemsize
        Not used.

    Returns
    -------
    Decoder
        The format has no checksum: damage may give wrong bytes of the right number.

    Notes
    -----
    Cost: 3 to 5 GB/s of decoded image data, what does not compress as fast as a copy, 2 us a call;
    one call in C for all blocks, with the GIL released.
    """
    return _decode


def _decode(data: Buffer, size: int | None, out: NDArray[np.uint8] | None) -> Buffer:
    if len(data) < _HEADER_NBYTES:
        raise CodecError(f"{len(data)} bytes are too few for the LZ4 header")
    decoded_nbytes = int.from_bytes(data[:8], "big")
    require_size(decoded_nbytes, size)
    room = allocate(decoded_nbytes, out)
    if decoded_nbytes == 0:
        return room
    try:
        decoded: Buffer = _decode_lz4h5(data, out=room)
    except (imagecodecs.Lz4h5Error, ValueError) as error:
        raise CodecError(f"no sound LZ4 blocks: {error}") from error
    require_size(len(decoded), decoded_nbytes)
    return decoded
