"""Random numbers that depend on nothing but (seed, epoch, sample, stream).

An ordinary generator has a state, and so its numbers depend on who drew before: on the number of
workers, on the order of the samples, on where an epoch was interrupted. A counter-based generator
has none: each number is a function of its address. Any process can compute the numbers of any
sample, and gets the same.

The function is Philox4x32-10 of J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel
random numbers: as easy as 1, 2, 3", SC '11 (2011), doi:10.1145/2063384.2063405: ten rounds on a
counter of four 32-bit words under a key of two. The words are used as

- key: the seed, low word first;
- counter: the sample id's low word; its upper 16 bits below 16 bits that number the draws in pairs;
  the epoch; the stream.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["philox4x32", "stream_number", "uniform", "uniforms"]

_ROUNDS = 10
# The multipliers and Weyl increments of section 4.3 of the paper. Word 0 goes with the first.
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_INCREMENTS = (0x9E3779B9, 0xBB67AE85)

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_ID_BITS = 48
_MOST_DRAWS = 2 << 16


def philox4x32(counter: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Return Philox4x32-10 of many counters under one key.

    Parameters
    ----------
    counter
        uint64, (4, L): L counters of four 32-bit words, word 0 first.
    key
        Two 32-bit words.

    Returns
    -------
    numpy.ndarray
        uint64, (4, L): 32-bit words.

    Notes
    -----
    About 60 NumPy calls whatever L is: some 50 µs for few counters, then 25 ns each.
    """
    even, odd = counter[0::2], counter[1::2]  # words 0 and 2 are multiplied, 1 and 3 are not
    for i in range(_ROUNDS):
        bumped = [(k + i * step) & 0xFFFFFFFF for k, step in zip(key, _INCREMENTS, strict=True)]
        product = (even * _MULTIPLIERS)[::-1]
        even = (product >> _32) ^ odd ^ np.array(bumped, np.uint64)[:, None]
        odd = product & _LOW
    words = np.empty_like(counter)
    words[0::2], words[1::2] = even, odd
    return words


def stream_number(label: str) -> int:
    """Return the stream that `label` names, 0 to 2**32 - 1: the same in every process and version.

    It is the CRC-32 of the label's UTF-8 bytes.
    """
    return zlib.crc32(label.encode())


def uniform(seed: int, epoch: int, ids: ArrayLike, stream: int, n: int) -> NDArray[np.float64]:
    """Return `n` numbers in [0, 1) for each sample.

    Parameters
    ----------
    seed
        0 to 2**64 - 1.
    epoch
        0 to 2**32 - 1.
    ids
        Samples: 1-D integers, 0 to 2**48 - 1.
    stream
        0 to 2**32 - 1, one for each purpose; see `stream_number`.
    n
        Numbers a sample, at most 131072. Asking for more leaves the first ones as they are.

    Returns
    -------
    numpy.ndarray
        float64, (samples, n), multiples of 2**-53. Row i depends on `ids[i]` only.

    Raises
    ------
    ValueError, TypeError
        A number is out of its range, or no integer.

    Examples
    --------
    >>> u = uniform(0, 3, [7, 8], stream_number("RandomFlip"), 2)
    >>> u.shape, bool((u[1] == uniform(0, 3, [8], stream_number("RandomFlip"), 2)).all())
    ((2, 2), True)
    """
    return uniforms(seed, epoch, ids, [(stream, n)])[0]


def uniforms(
    seed: int, epoch: int, ids: ArrayLike, streams: Sequence[tuple[int, int]]
) -> list[NDArray[np.float64]]:
    """Return what `uniform` returns for several (stream, n), at the cost of one call."""
    seed = _within("seed", seed, 64)
    epoch = _within("epoch", epoch, 32)
    samples = _ids(ids)
    pairs = []  # draws come in pairs: four words make two numbers
    for stream, n in streams:
        _within("stream", stream, 32)
        if not 0 <= operator.index(n) <= _MOST_DRAWS:
            raise ValueError(f"n is {n}; a stream has 0 to {_MOST_DRAWS} numbers a sample")
        pairs.append((n + 1) // 2)

    blocks = sum(pairs)
    counter = np.empty((4, samples.size, blocks), np.uint64)
    counter[0] = (samples & _LOW)[:, None]
    counter[1] = (samples >> _32)[:, None]
    counter[2] = epoch
    start = 0
    for (stream, _), count in zip(streams, pairs, strict=True):
        counter[1, :, start : start + count] |= np.arange(count, dtype=np.uint64) << np.uint64(16)
        counter[3, :, start : start + count] = stream
        start += count

    words = philox4x32(counter.reshape(4, -1), (seed & 0xFFFFFFFF, seed >> 32))
    # 53 bits: 27 of one word above 26 of the next.
    upper, lower = words[0::2] >> np.uint64(5), words[1::2] >> np.uint64(6)
    numbers = ((upper << np.uint64(26)) | lower).astype(np.float64) * 2.0**-53
    numbers = numbers.reshape(2, samples.size, blocks).transpose(1, 2, 0)

    drawn, start = [], 0
    for (_, n), count in zip(streams, pairs, strict=True):
        block = numbers[:, start : start + count].reshape(samples.size, 2 * count)
        drawn.append(block[:, :n])
        start += count
    return drawn


def _within(name: str, value: int, bits: int) -> int:
    value = operator.index(value)
    if not 0 <= value < 1 << bits:
        raise ValueError(f"{name} is {value}; it may be 0 to 2**{bits} - 1")
    return value


def _ids(ids: ArrayLike) -> NDArray[np.uint64]:
    samples = np.asarray(ids)
    if samples.ndim != 1:
        raise ValueError(f"ids has shape {samples.shape}; give one id per sample, in one dimension")
    if not samples.size:
        return np.empty(0, np.uint64)
    if samples.dtype.kind not in "iu":
        raise TypeError(f"ids are {samples.dtype}; sample ids are integers")
    least, most = int(samples.min()), int(samples.max())
    if least < 0 or most >> _ID_BITS:
        raise ValueError(f"ids run from {least} to {most}; an id may be 0 to 2**{_ID_BITS} - 1")
    return samples.astype(np.uint64)
