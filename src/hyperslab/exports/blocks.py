"""A level as a dask array. Needs dask, of the extra `dask`."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import numpy as np

from hyperslab.errors import MissingExtraError
from hyperslab.exports.portable import Portable

if TYPE_CHECKING:
    import dask.array as da

    from hyperslab.level import Level

__all__ = ["block_shape", "to_dask"]

_LEAST_NBYTES = 32 << 20


def block_shape(
    shape: tuple[int, ...], chunks: tuple[int, ...], *, itemsize: int, n_outer: int
) -> tuple[int, ...]:
    """Return the shape of dask's blocks: whole multiples of chunks, or the whole extent.

    Parameters
    ----------
    shape
        Of the level.
    chunks
        What is fetched together.
    itemsize
        Bytes of an element.
    n_outer
        How many leading axes are spread over datasets; a block has 1 there.

    Returns
    -------
    tuple of int
        At least 32 MiB and below 64, where the datasets are that large and a chunk is not larger.
        Blocks grow in the plane first, towards a square, since that is what is looked at.

    Examples
    --------
    >>> block_shape((60, 3, 48, 2048, 5888), (1, 1, 16, 256, 256), itemsize=2, n_outer=2)
    (1, 1, 16, 1024, 1024)
    """
    block = list(chunks)
    n = len(shape)
    while math.prod(block) * itemsize < _LEAST_NBYTES:
        growing = [axis for axis in range(n_outer, n) if block[axis] < shape[axis]]
        if not growing:
            break
        plane = [axis for axis in growing if axis >= n - 2]
        axis = min(plane, key=block.__getitem__) if plane else growing[-1]
        block[axis] = min(2 * block[axis], shape[axis])
    return tuple(block)


def to_dask(level: Level) -> da.Array:
    """Return a level as a dask array; nothing is read.

    See `Level.to_dask`.
    """
    try:
        import dask.array as da
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] != "dask":
            raise  # dask is there, and something that it needs is not
        raise MissingExtraError(
            "to_dask needs dask, which is not installed here. Install it with: "
            "pip install 'hyperslab[dask]' (in a clone of it: pip install '.[dask]')",
            package="dask",
            extra="dask",
        ) from error
    source = Portable(level)
    block = block_shape(
        level.shape,
        level.chunks,
        itemsize=level.dtype.itemsize,
        n_outer=level.image.spec.n_outer,
    )
    seen = level.image.container.fingerprint
    token = hashlib.sha256(repr((source.key, seen)).encode()).hexdigest()[:32]
    # The level is one node of the graph, and blocks refer to it: a copy in each would be opened as
    # often. That layer is not spelt out before it is computed, and dask lets slices of a block
    # through to the level: a plane of a block is read without the rest of it.
    return da.from_array(  # type: ignore[no-any-return, no-untyped-call]
        source,
        chunks=block,
        name=f"hyperslab-{token}",
        lock=False,
        asarray=True,
        meta=np.empty((0,) * level.ndim, level.dtype),
        inline_array=False,
    )
