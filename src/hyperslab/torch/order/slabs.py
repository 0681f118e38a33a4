"""The slabs of a `SliceDataset`: which slices come out of the same chunks."""

from __future__ import annotations

import numpy as np

from hyperslab.array import Array
from hyperslab.torch.dataset import SliceDataset
from hyperslab.torch.order.order import Slabs, cut_slabs, slab_depth

__all__ = ["slabs_of"]

# Elements of a cache line of a contiguous dataset: reading one of them fetches them all.
_LINE_NBYTES = 64

# A case is kept whole where so many fit into the memory, if samples need slices beside their own.
_WHOLE_CASES = 4


def slabs_of(dataset: SliceDataset, memory_nbytes: int) -> Slabs:
    """Return the slabs of a training set: the slices that come out of the same chunks.

    Where samples need neighbours of their slice too, those of a slab's first and last slice lie in
    other chunks. So whole cases are slabs then, if `memory_nbytes` holds four of them: each chunk
    is decoded once all the same.
    """
    axis = dataset.axis
    beyond = max(sum(dataset.assembler.samples.halo(name)) for name in dataset.inputs)
    depths: list[int] = []
    nbytes: list[int] = []
    for case, shape in enumerate(dataset.case_shapes.tolist()):
        arrays = [dataset.array(name, case) for name in dataset.inputs]
        plane = shape[:axis] + shape[axis + 1 :]
        nbytes.append(plane[0] * plane[1] * sum(array.dtype.itemsize for array in arrays))
        n = shape[axis]
        whole = beyond > 0 and _WHOLE_CASES * n * nbytes[-1] <= memory_nbytes
        depths.append(n if whole else slab_depth(n, (_depth(array, axis) for array in arrays)))
    return cut_slabs(
        dataset.case_numbers.astype(np.int64),
        dataset.slice_numbers.astype(np.int64),
        np.array(depths, np.int64),
        np.array(nbytes, np.int64),
        n_beyond=beyond,
    )


def _depth(array: Array, axis: int) -> int:
    """Return how many slices are fetched by fetching one."""
    if array.chunks is not None:
        return array.chunks[axis]
    return max(1, _LINE_NBYTES // array.dtype.itemsize) if axis == array.ndim - 1 else 1
