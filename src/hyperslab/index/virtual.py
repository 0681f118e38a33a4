"""Virtual datasets: HDF5's mapping list, turned into per-axis index tables.

Mapping here instead of in the HDF5 library lets the sources be read in parallel, and makes a
missing one an error: the library fills it with zeros in silence.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.index.records import Mapping
from hyperslab.index.resolve import source_path

if TYPE_CHECKING:
    import h5py

__all__ = ["load_mappings", "source_files"]

_UNLIMITED = 2**64 - 1
_BLOCK_NUMBER = re.compile(r"%(%|b)")


def source_files(dataset: h5py.Dataset, path: str) -> list[str]:
    """Return the absolute paths of the files that virtual `dataset` of file `path` names."""
    dcpl = dataset.id.get_create_plist()
    return [
        source_path(dcpl.get_virtual_filename(i), path, os.environ.get("HDF5_VDS_PREFIX"))
        for i in range(dcpl.get_virtual_count())
    ]


def load_mappings(dataset: h5py.Dataset, path: str) -> tuple[Mapping, ...] | None:
    """Return the mappings of virtual `dataset` in file `path`.

    Returns
    -------
    tuple of Mapping, or None
        None where a mapping is no product of per-axis index tables (an irregular selection, or one
        whose two sides differ in shape): then only the HDF5 library can follow it.

    Notes
    -----
    An unlimited mapping is cut where the virtual dataset ends now. "%b" in a source's name stands
    for the number of the block along the unlimited axis, and "%%" for a percent sign (reference
    manual, H5Pset_virtual).
    """
    dcpl = dataset.id.get_create_plist()
    found: list[Mapping] = []
    for i in range(dcpl.get_virtual_count()):
        virtual = _slabs(dcpl.get_virtual_vspace(i))
        source = _slabs(dcpl.get_virtual_srcspace(i))
        if virtual is None or source is None:
            return None
        # "All of the source" is recorded without a shape: it is known once the source is opened.
        everything = not source and any(slab[2:] != (1, 1) for slab in virtual)
        file_name, dataset_name = dcpl.get_virtual_filename(i), dcpl.get_virtual_dsetname(i)
        endless = [axis for axis, slab in enumerate(virtual) if slab[2] == _UNLIMITED]
        numbered = "%b" in file_name.replace("%%", "") or "%b" in dataset_name.replace("%%", "")
        if numbered and len(endless) != 1:
            return None
        for number, slabs in (
            _numbered(virtual, endless, dataset.shape) if numbered else [(0, virtual)]
        ):
            tables = _tables(slabs, slabs if everything else source, dataset.shape)
            if tables is None:
                return None
            if any(table.size == 0 for table in tables[0]):
                continue
            found.append(
                Mapping(
                    file=source_path(
                        _fill_in(file_name, number), path, os.environ.get("HDF5_VDS_PREFIX")
                    ),
                    dataset=_fill_in(dataset_name, number),
                    virtual=tables[0],
                    source=None if everything else tables[1],
                    follows=() if everything else tables[2],
                    grows=bool(endless),
                )
            )
    return tuple(found)


_Slab = tuple[int, int, int, int]  # start, stride, count, block
_Tables = tuple[NDArray[np.int64], ...]


def _slabs(space: h5py.h5s.SpaceID) -> list[_Slab] | None:
    """Return the regular hyperslab that is selected in `space`, axis by axis."""
    import h5py

    kind = space.get_select_type()
    if kind == h5py.h5s.SEL_ALL:
        return [(0, 1, 1, n) for n in space.get_simple_extent_dims()]
    if kind == h5py.h5s.SEL_NONE:
        return [(0, 1, 0, 1) for _ in range(space.get_simple_extent_ndims())]
    if kind != h5py.h5s.SEL_HYPERSLABS or not space.is_regular_hyperslab():
        return None
    return [
        (int(start), int(stride), int(count), int(block))
        for start, stride, count, block in zip(*space.get_regular_hyperslab(), strict=True)
    ]


def _numbered(
    virtual: list[_Slab], endless: list[int], shape: tuple[int, ...]
) -> list[tuple[int, list[_Slab]]]:
    """Cut an unlimited selection into its blocks, each of which has a source of its own."""
    axis = endless[0]
    start, stride, _, block = virtual[axis]
    count = max(0, -(-(shape[axis] - start) // stride))
    return [
        (
            number,
            [*virtual[:axis], (start + number * stride, stride, 1, block), *virtual[axis + 1 :]],
        )
        for number in range(count)
    ]


def _tables(
    virtual: list[_Slab], source: list[_Slab], shape: tuple[int, ...]
) -> tuple[_Tables, _Tables, tuple[int | None, ...]] | None:
    mine = [_table(slab, extent, extent) for slab, extent in zip(virtual, shape, strict=True)]
    long = [i for i, slab in enumerate(virtual) if _length(slab) != 1]
    theirs_long = [i for i, slab in enumerate(source) if _length(slab) != 1]
    if len(long) != len(theirs_long):
        return None
    lengths = [1] * len(source)
    follows: list[int | None] = [None] * len(source)
    for i, j in zip(long, theirs_long, strict=True):
        follows[j] = i
        if _length(virtual[i]) != _length(source[j]):
            return None
        lengths[j] = mine[i].size
    # What the virtual dataset's end cuts off is cut off in the source as well.
    theirs = [_table(slab, None, n) for slab, n in zip(source, lengths, strict=True)]
    return tuple(mine), tuple(theirs), tuple(follows)


def _length(slab: _Slab) -> int:
    """Return how many indices `slab` selects; -1 where it is unlimited."""
    return -1 if slab[2] == _UNLIMITED or slab[3] == _UNLIMITED else slab[2] * slab[3]


def _table(slab: _Slab, extent: int | None, most: int) -> NDArray[np.int64]:
    """Return the first `most` indices of `slab` that lie below `extent`."""
    start, stride, count, block = slab
    if block == _UNLIMITED:
        block, count = most, 1
    count = min(count, -(-most // block)) if block else 0
    table = (start + stride * np.arange(count)[:, None] + np.arange(block)).reshape(-1)
    if extent is not None:
        table = table[table < extent]
    return table[:most].astype(np.int64, copy=False)


def _fill_in(name: str, number: int) -> str:
    def replace(match: re.Match[str]) -> Any:
        return "%" if match.group(1) == "%" else str(number)

    return _BLOCK_NUMBER.sub(replace, name)
