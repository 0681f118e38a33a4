"""The slabs of a `SliceDataset`: which slices come out of the same chunks."""

from __future__ import annotations

import numpy as np

from hyperslab.array import Array
from hyperslab.torch.dataset import SliceDataset
from hyperslab.torch.order import Slabs, cut_slabs

__all__ = ["slabs_of"]

# Elements of a cache line of a contiguous dataset: reading one of them fetches them all.
_LINE_NBYTES = 64


def slabs_of(dataset: SliceDataset) -> Slabs:
    """Return the slabs of a training set: the slices that come out of the same chunks."""
    axis = dataset.axis
    depths: list[tuple[int, ...]] = []
    nbytes: list[int] = []
    for case, shape in enumerate(dataset.case_shapes.tolist()):
        arrays = [dataset.array(name, case) for name in dataset.inputs]
        depths.append(tuple(_depth(array, axis) for array in arrays))
        plane = shape[:axis] + shape[axis + 1 :]
        nbytes.append(plane[0] * plane[1] * sum(array.dtype.itemsize for array in arrays))
    return cut_slabs(dataset.case_shapes[:, axis], depths, np.array(nbytes, np.int64))


def _depth(array: Array, axis: int) -> int:
    """Return how many slices are fetched by fetching one."""
    if array.chunks is not None:
        return array.chunks[axis]
    return max(1, _LINE_NBYTES // array.dtype.itemsize) if axis == array.ndim - 1 else 1
