"""Costs of a request, from shapes alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hyperslab.access import Access, chunks_touched, slab_shape

__all__ = ["Cost", "h5py_cache_nbytes", "is_automatic", "request_cost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """See `PatternAdvice`, whose attributes of the same names these are.

    `slab_region` is the shape of the slab.
    """

    region: tuple[int, ...]
    chunks_touched: float
    read_nbytes: float
    decoded_nbytes: float
    used_nbytes: int
    slab_region: tuple[int, ...]
    slab_nbytes: int
    requests_per_slab: float


def request_cost(
    access: Access,
    shape: tuple[int, ...],
    chunks: tuple[int, ...] | None,
    *,
    itemsize: int,
    ratio: float = 1.0,
) -> Cost:
    """Return what one request costs.

    Parameters
    ----------
    access, shape, itemsize
        The pattern; the dataset's shape and bytes of an element.
    chunks
        None for a dataset without chunks: nothing is decoded, and what is read are the pages of the
        file that hold what is used.
    ratio
        Decoded by stored bytes.
    """
    region = access.region(shape)
    used = math.prod(region) * itemsize
    if chunks is None:
        return Cost(
            region=region,
            chunks_touched=0.0,
            read_nbytes=_pages_nbytes(region, shape, itemsize),
            decoded_nbytes=float(used),
            used_nbytes=used,
            slab_region=region,
            slab_nbytes=used,
            requests_per_slab=1.0,
        )
    n = chunks_touched(access, shape, chunks)
    decoded = n * math.prod(chunks) * itemsize
    slab = slab_shape(access, shape, chunks)
    return Cost(
        region=region,
        chunks_touched=n,
        read_nbytes=decoded / max(ratio, 1e-9),
        decoded_nbytes=decoded,
        used_nbytes=used,
        slab_region=slab,
        slab_nbytes=math.prod(slab) * itemsize,
        requests_per_slab=max(1.0, math.prod(slab) / max(1, math.prod(region))),
    )


_PAGE_NBYTES = 4096


def _pages_nbytes(region: tuple[int, ...], shape: tuple[int, ...], itemsize: int) -> float:
    """Return the bytes of the pages that a box of a contiguous dataset lies in, on average.

    A run of neighbouring bytes that begins anywhere takes a page more than it fills; and runs never
    take more than all that lies between the first and the last of them.
    """
    run = span = itemsize
    n_runs, stride, joined = 1, itemsize, True
    for size, extent in zip(reversed(region), reversed(shape), strict=True):
        if joined:
            run *= size
            joined = size == extent
        else:
            n_runs *= size
        span += (size - 1) * stride
        stride *= extent
    read = min(n_runs * (run + _PAGE_NBYTES), span + _PAGE_NBYTES)
    return float(max(min(read, stride), n_runs * run))


def h5py_cache_nbytes(hdf5_version: tuple[int, ...]) -> int:
    """Return the chunk cache that the HDF5 library gives a dataset by default.

    8 MiB since HDF5 2.0, before that 1 MiB (release notes of HDF5 2.0.0).
    """
    return (8 if hdf5_version[0] >= 2 else 1) << 20


# What h5py aims at when a user gives chunks=True or compression alone: 16 KiB, and twice as much
# for every tenfold size of the dataset above a MiB; 8 KiB to 1 MiB.
_BASE, _LEAST, _MOST = 16 << 10, 8 << 10, 1 << 20


def is_automatic(shape: tuple[int, ...], chunks: tuple[int, ...], itemsize: int) -> bool:
    """Tell whether `chunks` are those that h5py chooses when nobody gives any.

    Notes
    -----
    h5py halves the axes in turn until a chunk is near a size that grows with the dataset
    (`guess_chunk` in h5py/_hl/filters.py of h5py 3.16; its documentation says that the rule may
    change).

    Examples
    --------
    >>> is_automatic((512, 512, 200), (32, 32, 25), 2)
    True
    >>> is_automatic((512, 512, 200), (1, 512, 200), 2)
    False
    """
    guess = [float(n or 1024) for n in shape]
    whole = math.prod(guess) * itemsize
    target = min(_MOST, max(_LEAST, _BASE * 2 ** math.log10(whole / (1 << 20))))
    axis = 0
    while True:
        nbytes = math.prod(guess) * itemsize
        near = nbytes < target or abs(nbytes - target) / target < 0.5
        if (near and nbytes < _MOST) or math.prod(guess) == 1:
            break
        guess[axis % len(guess)] = math.ceil(guess[axis % len(guess)] / 2)
        axis += 1
    return tuple(int(n) for n in guess) == chunks
