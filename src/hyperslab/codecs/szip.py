"""Filter 4, szip: the decoded size (4 bytes, little-endian), then extended Rice coding.

HDF5 wraps libaec in the interface of the older SZIP library, which adds two things to the coded
samples (sz_compat.c of libaec): samples of 32 and 64 bits are coded as bytes, all first bytes
before all second ones, as shuffle would have it; and each scan line is padded to whole coding
blocks.
"""

from __future__ import annotations

from typing import Any

import imagecodecs
import numpy as np
from numpy.typing import NDArray

from hyperslab.codecs.base import Buffer, CodecError, Decoder, allocate, as_view, require_size
from hyperslab.codecs.shuffle import unshuffle_into

__all__ = ["build_decoder"]

# The stubs of imagecodecs know neither memoryviews nor arrays, which its functions all take.
_decode_szip: Any = imagecodecs.szip_decode

_SIZE_NBYTES = 4
_OPTION_BITS = 0xFF
_MAX_BLOCKS_PER_LINE = 128


def build_decoder(values: tuple[int, ...], itemsize: int) -> Decoder:
    """Return the decoder of filter 4.

    Parameters
    ----------
    values
        ``(options, pixels per block, bits per pixel, pixels per scan line)``.
    itemsize
        Not used.

    Returns
    -------
    Decoder
        The format has no checksum: damage may give wrong bytes of the right number.

    Raises
    ------
    CodecError
        Client values outside of what SZIP allows.

    Notes
    -----
    libaec is asked for padded scan lines of plain samples, and both additions are undone here: its
    own wrapper cannot tell a line of padding from one that the data were too short for.

    Cost: 0.2 to 0.4 GB/s of decoded image data, 3 us a call; the GIL is released. Lines of padding
    and samples of 32 and 64 bits take a temporary buffer of the decoded size.
    """
    if len(values) != 4:
        raise CodecError(f"szip with client values {values}: expected four")
    options, block, bits, line = values
    options &= _OPTION_BITS
    if not 2 <= block <= 32 or block % 2 or not 1 <= line <= _MAX_BLOCKS_PER_LINE * block:
        raise CodecError(f"szip with {block} pixels a block and {line} pixels a scan line")
    if not (1 <= bits <= 24 or bits in (32, 64)):
        raise CodecError(f"szip with {bits} bits per pixel")
    n_planes = bits // 8 if bits in (32, 64) else 1
    sample_bits = 8 if n_planes > 1 else bits
    sample_nbytes = 1 if sample_bits <= 8 else 2 if sample_bits <= 16 else 4
    padded_line = -(-line // block) * block
    line_nbytes = line * sample_nbytes
    padded_nbytes = padded_line * sample_nbytes

    def decode(data: Buffer, size: int | None, out: NDArray[np.uint8] | None) -> Buffer:
        if len(data) <= _SIZE_NBYTES:
            raise CodecError(f"{len(data)} bytes are too few for szip")
        decoded_nbytes = int.from_bytes(data[:_SIZE_NBYTES], "little")
        require_size(decoded_nbytes, size)
        if decoded_nbytes % (sample_nbytes * n_planes):
            raise CodecError(f"{decoded_nbytes} bytes are no whole number of pixels")
        dest = allocate(decoded_nbytes, out)
        if decoded_nbytes == 0:
            return dest
        n_lines = -(-decoded_nbytes // line_nbytes)
        direct = padded_line == line and n_planes == 1
        samples = dest if direct else allocate(n_lines * padded_nbytes)
        needed = decoded_nbytes + (n_lines - 1) * (padded_nbytes - line_nbytes)
        coded = as_view(data)[_SIZE_NBYTES:]
        try:
            found = len(_decode_szip(coded, options, block, sample_bits, padded_line, out=samples))
        except (imagecodecs.SzipError, ValueError) as error:
            raise CodecError(f"no sound szip data: {error}") from error
        if found < needed:
            raise CodecError(f"the szip data are cut short: {found} of {needed} bytes decoded")
        if direct:
            return dest
        if padded_line != line:
            samples = samples.reshape(n_lines, padded_nbytes)[:, :line_nbytes].reshape(-1)
        samples = samples[:decoded_nbytes]
        if n_planes == 1:
            dest[...] = samples
        else:
            unshuffle_into(samples.reshape(n_planes, -1), dest.view(f"V{n_planes}"))
        return dest

    return decode
