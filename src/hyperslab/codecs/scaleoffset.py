"""Filter 6, scale-offset: values minus their minimum, in as many bits as the largest needs.

A chunk starts with 21 bytes: bits per value (4 bytes, little-endian), size of the minimum (1 byte),
the minimum (little-endian, 8 bytes are used), the rest zero. Then follow the values, most
significant bit first, without gaps. Where the bits are those of the full type, the elements follow
as they are. Where the dataset has a fill value, a value of all ones stands for it. Floating point
values were multiplied by a power of ten and rounded before. (H5Zscaleoffset.c of HDF5.)
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.codecs.base import Buffer, CodecError, Decoder, allocate, require_size

__all__ = ["build_decoder"]

_N_VALUES = 20
_HEADER_NBYTES = 21
_MINIMUM = 5  # offset of the minimum
_MAX_MINIMUM_NBYTES = 8
_FLOAT_DSCALE, _INTEGER = 0, 2  # scale types; 1, float by exponent, was never written


def build_decoder(values: tuple[int, ...], itemsize: int) -> Decoder:
    """Return the decoder of filter 6.

    Parameters
    ----------
    values
        Twenty numbers: scale type (0 float, 2 integer), scale factor (signed; decimal digits, or
        bits per value, 0 for as many as needed), number of elements, class (0 integer, 1 float),
        element size, sign (0 unsigned, 1 two's complement), byte order (0 little, 1 big), whether
        there is a fill value (0, 1), then the fill value, least significant 4 bytes first.
    itemsize
        Not used: the filter goes by the element size in the file.

    Returns
    -------
    Decoder
        Gives elements in the byte order of the file. Where the writer asked for the bits of the
        full type, HDF5 leaves the chunk alone, and a view of `data` comes back.

        The format has no checksum: damage may give wrong bytes of the right number.

    Raises
    ------
    CodecError
        Client values that HDF5 refuses: another number of them, an element size or a scale type
        that does not exist, more bits than the type has.

    Notes
    -----
    Cost: 2.5 GB/s of decoded image data, 30 us a call, all in NumPy, which releases the GIL; a
    temporary array of an eighth of the elements, a padded copy of the stored bytes, and with a fill
    value one byte an element more, for floats a copy of the elements.
    """
    if len(values) != _N_VALUES:
        raise CodecError(f"scale-offset with {len(values)} client values, not {_N_VALUES}")
    scale_type, factor, count, is_float, width, _, big_endian, has_fill = values[:8]
    factor -= (factor & 0x80000000) << 1
    if width not in ((4, 8) if is_float else (1, 2, 4, 8)) or is_float > 1:
        raise CodecError(f"scale-offset of class {is_float} with elements of {width} bytes")
    if scale_type != (_FLOAT_DSCALE if is_float else _INTEGER):
        raise CodecError(f"scale-offset of class {is_float} with scale type {scale_type}")
    full = 8 * width
    if not is_float and factor > full:
        raise CodecError(f"scale-offset with {factor} bits for a value of {full}")
    unsigned = np.dtype(f"u{width}")
    fill = (values[8] | values[9] << 32) & ((1 << full) - 1)
    swap = bool(big_endian) != (sys.byteorder == "big")

    def decode(data: Buffer, size: int | None, out: NDArray[np.uint8] | None) -> Buffer:
        if not is_float and factor == full:
            require_size(len(data), size)
            return data
        require_size(count * width, size)
        if len(data) < _HEADER_NBYTES:
            raise CodecError(f"{len(data)} bytes are too few for the scale-offset header")
        bits = int.from_bytes(data[:4], "little")
        if bits > full:
            raise CodecError(f"{bits} bits for a value of {full}")
        if len(data) - _HEADER_NBYTES < -(-count * bits // 8):
            raise CodecError(f"{len(data)} bytes are too few for {count} values of {bits} bits")
        minimum_nbytes = min(int(data[_MINIMUM - 1]), _MAX_MINIMUM_NBYTES)
        minimum = int.from_bytes(data[_MINIMUM : _MINIMUM + minimum_nbytes], "little")
        minimum &= (1 << full) - 1
        packed = np.frombuffer(data, np.uint8, offset=_HEADER_NBYTES)
        dest = allocate(count * width, out)
        elements = dest.view(unsigned)
        if bits == full:
            dest[...] = packed[: len(dest)]
        else:
            _unpack(packed, elements, bits)
            is_fill = elements == (1 << bits) - 1 if has_fill else None
            if is_float:
                _scale(elements, minimum, factor)
            else:
                elements += unsigned.type(minimum)
            if is_fill is not None:
                np.copyto(elements, unsigned.type(fill), where=is_fill)
        if swap:
            elements.byteswap(inplace=True)
        return dest

    return decode


def _scale(elements: NDArray[Any], minimum: int, digits: int) -> None:
    """Turn scaled integers into the floats they stand for, in place and at their precision."""
    integers = elements.view(f"i{elements.itemsize}")
    floats = elements.view(f"f{elements.itemsize}")
    real = floats.dtype.type
    offset = elements.dtype.type(minimum).view(real)
    with np.errstate(all="ignore"):
        scaled = integers.astype(real)
        scaled /= real(10) ** real(digits)
        np.add(scaled, offset, out=floats)


def _unpack(packed: NDArray[np.uint8], dest: NDArray[Any], bits: int) -> None:
    """Write the `bits`-bit numbers of `packed`, most significant bit first, into `dest`.

    Numbers repeat their position in a byte after `period` of them, which fill `step` bytes. So
    number k of every period is one strided array of words, to be shifted and masked.
    """
    if bits == 0:
        dest[...] = 0
        return
    period = 8 // math.gcd(8, bits)
    step = bits * period // 8
    used = -(-len(dest) * bits // 8)
    padded = np.empty(used + step + 8, np.uint8)
    padded[:used] = packed[:used]
    padded[used:] = 0
    for k in range(min(period, len(dest))):
        part = dest[k::period]
        part[...] = _read_field(padded, len(part), step, k * bits, bits)


def _read_field(
    packed: NDArray[np.uint8], count: int, step: int, start: int, bits: int
) -> NDArray[Any]:
    """Return bits `start` to ``start + bits`` of `count` records of `step` bytes each."""
    first, lead = divmod(start, 8)
    if lead + bits > 64:
        field = _read_field(packed, count, step, start, bits - 32)
        field = field.astype(np.uint64)
        field <<= 32
        field |= _read_field(packed, count, step, start + bits - 32, 32)
        return field
    width = next(n for n in (1, 2, 4, 8) if lead + bits <= 8 * n)
    words = np.ndarray((count,), f">u{width}", packed, first, (step,)).astype(f"u{width}")
    words >>= 8 * width - lead - bits
    if lead:
        words &= (1 << bits) - 1
    return words
