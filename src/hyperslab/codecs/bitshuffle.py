"""Filter 32008, bitshuffle: bit planes of blocks of elements, alone or under LZ4 or Zstandard.

Compressed chunks start with the decoded size (8 bytes) and the block size in bytes (4 bytes); each
block is its stored size (4 bytes) and its data; all big-endian. The last block may be shorter, by
whole groups of 8 elements; what is left, fewer than 8 elements, stands at the end as it is. Without
compression there is no header. (bshuf_h5filter.c and bitshuffle_core.c of bitshuffle 0.5.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Any

import imagecodecs
import numpy as np
from numpy.typing import NDArray

from hyperslab.codecs.base import Buffer, CodecError, Decoder, allocate, as_view, require_size

__all__ = ["build_decoder"]

# The stubs of imagecodecs know neither memoryviews nor arrays, which its functions all take.
_decode_bitshuffle: Any = imagecodecs.bitshuffle_decode
_decode_lz4_block: Any = imagecodecs.lz4_decode
_decode_lz4h5: Any = imagecodecs.lz4h5_decode
_decode_zstd_frames: Any = imagecodecs.zstd_decode

_NONE, _LZ4, _ZSTD = 0, 2, 3
_HEADER = Struct(">QI")
_STORED_NBYTES = Struct(">I")
_GROUP = 8  # elements whose bits are transposed together
_TARGET_BLOCK_NBYTES = 8192
_MIN_BLOCK = 128
_LZ4_MAX_NBYTES = 0x7E000000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocks:
    """Where the blocks of a compressed chunk lie, checked against its length."""

    data: memoryview
    decoded_nbytes: int
    declared_nbytes: int  # block size as the header has it
    block_nbytes: int  # block size in force
    tail_nbytes: int  # elements that stand behind the blocks as they are
    stored_nbytes: list[int]  # of each block, its own size field left out
    end: int  # where the blocks end and the tail begins


_BlockDecoder = Callable[[_Blocks, NDArray[np.uint8]], None]


def build_decoder(values: tuple[int, ...], itemsize: int) -> Decoder:
    """Return the decoder of filter 32008.

    Parameters
    ----------
    values
        ``(major, minor, element size, block size, compression, level)``: block size in elements,
        0 for bitshuffle's rule (8 KiB, at least 128 elements); compression 0 none, 2 LZ4, 3
        Zstandard. The last three may be missing.
    itemsize
        Not used: bitshuffle goes by the element size in the file.

    Returns
    -------
    Decoder
        The format has no checksum: damage may give wrong bytes of the right number.

    Raises
    ------
    CodecError
        Element size 0 or missing, an unknown compression, or blocks of no whole groups.

    Notes
    -----
    Cost, of decoded image data in blocks of 8 KiB: alone 4 GB/s, with LZ4 3 GB/s, with Zstandard 1
    to 1.9 GB/s; blocks of 128 bytes 0.2 to 0.7 GB/s. A call takes 2, 7 or 15 us. With compression
    0.15 us a block (LZ4; 0.3 with Zstandard) are spent in Python, to walk over the blocks; the rest
    is two calls in C with the GIL released, and a temporary buffer of the decoded size.
    """
    if len(values) < 3 or values[2] < 1:
        raise CodecError(f"bitshuffle with client values {values}: no element size")
    width = values[2]
    block = values[3] if len(values) > 3 else 0
    compression = values[4] if len(values) > 4 else _NONE
    if compression == _NONE:
        _require_groups(block)

        def decode(data: Buffer, size: int | None, out: NDArray[np.uint8] | None) -> Buffer:
            require_size(len(data), size)
            return _transpose(data, width, block, allocate(len(data), out))

        return decode
    if compression == _LZ4:
        return _build_block_decoder(width, _decode_lz4)
    if compression == _ZSTD:
        return _build_block_decoder(width, _decode_zstd)
    raise CodecError(f"bitshuffle with compression {compression}: known are 0, 2 (LZ4), 3 (zstd)")


def _transpose(data: Buffer, width: int, block: int, dest: NDArray[np.uint8]) -> Buffer:
    """Undo the transposition of bits from `data` into `dest`, which is as long."""
    if len(data) % width:
        raise CodecError(f"{len(data)} bytes are no whole number of {width}-byte elements")
    if len(data) == 0:
        return dest
    try:
        decoded: Buffer = _decode_bitshuffle(
            as_view(data), itemsize=width, blocksize=block, out=dest
        )
    except (imagecodecs.BitshuffleError, ValueError) as error:
        raise CodecError(f"bitshuffle: {error}") from error
    require_size(len(decoded), len(dest))
    return decoded


def _build_block_decoder(width: int, decode_blocks: _BlockDecoder) -> Decoder:
    def decode(data: Buffer, size: int | None, out: NDArray[np.uint8] | None) -> Buffer:
        blocks = _find_blocks(as_view(data), width, size)
        planes = allocate(blocks.decoded_nbytes)
        decode_blocks(blocks, planes)
        if blocks.tail_nbytes:
            end = blocks.end + blocks.tail_nbytes
            planes[-blocks.tail_nbytes :] = np.frombuffer(blocks.data[blocks.end : end], np.uint8)
        dest = allocate(blocks.decoded_nbytes, out)
        return _transpose(planes, width, blocks.block_nbytes // width, dest)

    return decode


def _find_blocks(data: memoryview, width: int, size: int | None) -> _Blocks:
    """Walk over the blocks' sizes and check that they fit the data."""
    if len(data) < _HEADER.size:
        raise CodecError(f"{len(data)} bytes are too few for the bitshuffle header")
    decoded_nbytes, declared = _HEADER.unpack_from(data)
    require_size(decoded_nbytes, size)
    if decoded_nbytes % width:
        raise CodecError(f"{decoded_nbytes} bytes are no whole number of {width}-byte elements")
    block = declared // width or _default_block(width)
    _require_groups(block)
    tail_nbytes = decoded_nbytes // width % _GROUP * width
    n_blocks = -(-(decoded_nbytes - tail_nbytes) // (block * width))
    if n_blocks * _STORED_NBYTES.size > len(data):  # keeps a damaged size from filling memory
        raise CodecError(f"{len(data)} bytes are too few for {n_blocks} blocks")
    stored: list[int] = []
    position = _HEADER.size
    read = _STORED_NBYTES.unpack_from
    try:
        for _ in range(n_blocks):  # thousands in some chunks, and under the GIL
            (nbytes,) = read(data, position)
            stored.append(nbytes)
            position += _STORED_NBYTES.size + nbytes
    except StructError as error:
        message = f"{len(data)} bytes end before block {len(stored)} of {n_blocks}"
        raise CodecError(message) from error
    if position + tail_nbytes > len(data):
        raise CodecError(f"blocks and tail need {position + tail_nbytes} bytes, not {len(data)}")
    return _Blocks(
        data=data,
        decoded_nbytes=decoded_nbytes,
        declared_nbytes=declared,
        block_nbytes=block * width,
        tail_nbytes=tail_nbytes,
        stored_nbytes=stored,
        end=position,
    )


def _decode_lz4(blocks: _Blocks, planes: NDArray[np.uint8]) -> None:
    """Decompress all blocks into the beginning of `planes`."""
    packed_nbytes = blocks.decoded_nbytes - blocks.tail_nbytes
    try:
        if _reads_as_lz4h5(blocks):
            found = len(_decode_lz4h5(blocks.data[: blocks.end], out=planes))
            require_size(found, packed_nbytes)
            return
        for i, payload in enumerate(_payloads(blocks)):
            begin = i * blocks.block_nbytes
            dest = planes[begin : min(begin + blocks.block_nbytes, packed_nbytes)]
            require_size(len(_decode_lz4_block(payload, out=dest)), len(dest))
    except (imagecodecs.Lz4Error, imagecodecs.Lz4h5Error, ValueError, OverflowError) as error:
        raise CodecError(f"no sound LZ4 block: {error}") from error


def _reads_as_lz4h5(blocks: _Blocks) -> bool:
    """Tell whether the layout means the same to filter 32004, which has one call for all blocks.

    Header and blocks are the same there, but a block whose stored size equals what it decodes to
    (or, at the end, the room that is left) is taken for uncompressed; in bitshuffle none is.
    """
    stored, block_nbytes = blocks.stored_nbytes, blocks.block_nbytes
    if not stored or blocks.declared_nbytes != block_nbytes or block_nbytes > _LZ4_MAX_NBYTES:
        return False
    left = blocks.decoded_nbytes - (len(stored) - 1) * block_nbytes
    return stored[-1] != left and block_nbytes not in stored


def _payloads(blocks: _Blocks) -> list[memoryview]:
    """Return the data of each block, without its size field."""
    payloads = []
    position = _HEADER.size
    for nbytes in blocks.stored_nbytes:
        position += _STORED_NBYTES.size
        payloads.append(blocks.data[position : position + nbytes])
        position += nbytes
    return payloads


def _decode_zstd(blocks: _Blocks, planes: NDArray[np.uint8]) -> None:
    """Decompress all blocks into the beginning of `planes`: Zstandard frames may be chained."""
    packed_nbytes = blocks.decoded_nbytes - blocks.tail_nbytes
    if not packed_nbytes:
        return
    frames = b"".join(_payloads(blocks))
    try:
        found = len(_decode_zstd_frames(frames, out=planes[:packed_nbytes]))
    except (imagecodecs.ZstdError, ValueError) as error:
        raise CodecError(f"no sound Zstandard block: {error}") from error
    require_size(found, packed_nbytes)


def _require_groups(block: int) -> None:
    if block % _GROUP:
        raise CodecError(f"bitshuffle with blocks of {block} elements: no multiple of {_GROUP}")


def _default_block(width: int) -> int:
    """Return bitshuffle's own choice of elements a block."""
    return max(_TARGET_BLOCK_NBYTES // width // _GROUP * _GROUP, _MIN_BLOCK)
