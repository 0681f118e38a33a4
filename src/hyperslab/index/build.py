"""From an open HDF5 file to a `DatasetIndex` and a `ChunkTable`."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.errors import MissingSourceError, UnsupportedDtypeError
from hyperslab.filters import Filter, filter_name
from hyperslab.grid import grid_shape, grid_strides
from hyperslab.index.extensible import chunk_coordinates, misplaced_axis
from hyperslab.index.header import has_extensible_array, has_unfiltered_edges
from hyperslab.index.records import (
    Chunked,
    ChunkTable,
    Compact,
    Contiguous,
    DatasetIndex,
    Null,
    Segment,
    Storage,
    Virtual,
    fingerprint,
)
from hyperslab.index.virtual import load_mappings, source_files

if TYPE_CHECKING:
    import h5py

__all__ = [
    "bad_entries",
    "decoded_chunk_nbytes",
    "describe_dataset",
    "load_chunk_table",
    "load_filters",
]


def describe_dataset(dataset: h5py.Dataset, path: str, *, name: str) -> DatasetIndex:
    """Return the facts of an open h5py `dataset`.

    Parameters
    ----------
    dataset
        Open; not kept.
    path
        Absolute path of the file that holds it.
    name
        How the caller called it, for messages.

    Raises
    ------
    UnsupportedDtypeError
        The elements are not numbers.

    Notes
    -----
    Cost: tens of microseconds; the chunk table is not touched.
    """
    dtype, file_dtype, direct = _element_type(dataset, path, name)
    dcpl = dataset.id.get_create_plist()
    storage, follows = _storage(dataset, dcpl, path, file_dtype)
    fill, fill_known = _fill_value(dcpl, dtype)
    return DatasetIndex(
        file=path,
        name=dataset.name or name,
        shape=(0,) if dataset.shape is None else tuple(int(n) for n in dataset.shape),
        dtype=dtype,
        file_dtype=file_dtype,
        fill=fill,
        filters=load_filters(dcpl),
        storage=storage,
        direct=direct and follows and fill_known,
        stored_nbytes=int(dataset.id.get_storage_size()),
        fingerprint=fingerprint(path),
    )


def _element_type(dataset: h5py.Dataset, path: str, name: str) -> tuple[np.dtype, np.dtype, bool]:
    """Return the native type, the type in the file, and whether the bytes in the file are that."""
    import h5py

    try:
        recorded = dataset.dtype
    except (TypeError, ValueError) as error:
        raise UnsupportedDtypeError(
            f"{path}: {name} has an element type that h5py cannot describe ({error}).",
            file=path,
            dataset=name,
        ) from error
    if recorded.kind not in "biufc" or recorded.subdtype is not None:
        if recorded.fields:
            what = f"compound elements (fields {', '.join(recorded.fields)})"
        elif recorded.subdtype is not None:
            what = f"array elements ({recorded})"
        elif h5py.check_string_dtype(recorded) is not None:
            what = "strings"
        elif h5py.check_ref_dtype(recorded) is not None:
            what = "references"
        elif h5py.check_vlen_dtype(recorded) is not None:
            what = "variable-length elements"
        else:
            what = f"elements of type {recorded}"
        raise UnsupportedDtypeError(
            f"{path}: {name} has {what}. hyperslab reads integers, floats, complex numbers and "
            f"booleans; read this one with h5py.File({path!r})[{name!r}][()].",
            file=path,
            dataset=name,
        )
    plain = np.dtype(recorded.str)  # without h5py's enum metadata
    stored = dataset.id.get_type()
    logical = recorded
    if stored.get_class() == h5py.h5t.ENUM and recorded.kind != "b":
        stored, logical = stored.get_super(), plain
    direct = bool(stored == h5py.h5t.py_create(logical, logical=True))
    file_dtype = np.dtype(np.uint8) if plain.kind == "b" else plain
    return plain.newbyteorder("="), file_dtype, direct


def _fill_value(dcpl: h5py.h5p.PropDCID, dtype: np.dtype) -> tuple[NDArray[Any], bool]:
    """Return what h5py gives for elements that were never written, and whether that is known.

    HDF5 leaves the reader's memory alone where the fill time is "never" or the value is undefined;
    h5py hands it zeroed memory.
    """
    import h5py

    fill = np.zeros((), dtype)
    never = dcpl.get_fill_time() == h5py.h5d.FILL_TIME_NEVER
    if not never and dcpl.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED:
        try:
            dcpl.get_fill_value(fill)
        except (RuntimeError, OSError, TypeError):
            return fill, False
    return fill, True


def load_filters(dcpl: h5py.h5p.PropDCID) -> tuple[Filter, ...]:
    """Return the filter pipeline that `dcpl` records, in the order of writing."""
    found = []
    for i in range(dcpl.get_nfilters()):
        code, flags, values, recorded = dcpl.get_filter(i)
        found.append(
            Filter(
                code=int(code),
                values=tuple(int(v) & 0xFFFFFFFF for v in values),
                name=filter_name(int(code), recorded.decode("utf-8", "replace").rstrip("\0")),
                optional=bool(flags & 1),
            )
        )
    return tuple(found)


def _storage(
    dataset: h5py.Dataset, dcpl: h5py.h5p.PropDCID, path: str, file_dtype: np.dtype
) -> tuple[Storage, bool]:
    """Return where the elements are, and whether we can follow it without the HDF5 library."""
    import h5py

    if dataset.shape is None:
        return Null(), True
    layout = dcpl.get_layout()
    if layout == h5py.h5d.CHUNKED:
        return Chunked(tuple(int(n) for n in dcpl.get_chunk())), True
    if layout == h5py.h5d.VIRTUAL:
        mappings = load_mappings(dataset, path)
        if mappings is None:
            _demand(source_files(dataset, path), path, str(dataset.name))
            return Virtual(()), False
        return Virtual(mappings), True
    nbytes = int(np.prod(dataset.shape, dtype=np.int64)) * file_dtype.itemsize
    if layout == h5py.h5d.COMPACT:
        raw = np.empty(dataset.shape, dataset.dtype)
        if nbytes:
            # Read in the file's own type, so that the bytes are those in the object header.
            dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=dataset.id.get_type())
        return Compact(raw.tobytes()), True
    if dcpl.get_external_count():
        return Contiguous(_external_segments(dcpl, path, str(dataset.name), nbytes)), True
    offset = dataset.id.get_offset()
    # Behind a user block, the offset of what was never written is the block's size less one.
    if offset is None or nbytes == 0 or dataset.id.get_storage_size() == 0:
        return Contiguous(()), True
    return Contiguous((Segment(path, int(offset), nbytes),)), True


def _demand(files: list[str], path: str, name: str) -> None:
    for source in files:
        if not os.path.exists(source):
            raise MissingSourceError(
                f"{path}: virtual dataset {name} needs {source}, which is not there. Put the file "
                "back, or set HDF5_VDS_PREFIX to its folder.",
                file=source,
                dataset=name,
            )


def _external_segments(
    dcpl: h5py.h5p.PropDCID, path: str, name: str, nbytes: int
) -> tuple[Segment, ...]:
    """Return the raw files of a dataset in the order of its bytes.

    HDF5 takes a relative name from HDF5_EXTFILE_PREFIX or the current folder (reference manual,
    H5Pset_external and H5Pset_efile_prefix); the folder of the HDF5 file is tried after these.
    """
    import h5py

    prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "")
    folder = os.path.dirname(path)
    prefix = prefix.replace("${ORIGIN}", folder)
    segments: list[Segment] = []
    left = nbytes
    for i in range(dcpl.get_external_count()):
        recorded, offset, size = dcpl.get_external(i)
        file_name = os.fsdecode(recorded)
        candidates = [os.path.join(prefix, file_name), os.path.join(folder, file_name)]
        found = next((c for c in candidates if os.path.exists(c)), None)
        if found is None:
            raise MissingSourceError(
                f"{path}: {name} keeps its data in {file_name}, which is not there (looked in "
                f"{prefix or os.getcwd()} and {folder}). Put the file back beside this one.",
                file=file_name,
                dataset=name,
            )
        take = left if size == h5py.h5f.UNLIMITED else min(int(size), left)
        if take:
            segments.append(Segment(os.path.abspath(found), int(offset), take))
        left -= take
    return tuple(segments)


def load_chunk_table(dataset: h5py.Dataset, index: DatasetIndex) -> ChunkTable:
    """Read the chunk table of an open chunked `dataset`, whose facts are `index`.

    Notes
    -----
    Cost: one pass of `chunk_iter`, about 2 microseconds a chunk; 24 bytes a chunk are kept.
    `get_chunk_info` in a loop would be quadratic.
    """
    storage = index.storage
    if not isinstance(storage, Chunked):
        raise TypeError(f"{index.name} is not chunked")
    origins: list[tuple[int, ...]] = []
    offsets: list[int] = []
    sizes: list[int] = []
    masks: list[int] = []

    def note(info: Any) -> None:
        origin, mask, offset, size = info
        origins.append(origin)
        masks.append(mask)
        offsets.append(offset)
        sizes.append(size)

    dataset.id.chunk_iter(note)
    grid = grid_shape(index.shape, storage.chunks)
    number = np.zeros(len(origins), np.int64)
    if origins:
        coordinates = np.array(origins, np.int64) // np.array(storage.chunks)
        coordinates = _true_coordinates(dataset, index, storage.chunks, coordinates)
        number = coordinates @ np.array(grid_strides(grid), np.int64)
        inside: NDArray[np.bool_] = np.all(coordinates < np.array(grid), axis=1)
    else:
        inside = np.zeros(0, np.bool_)
    order = np.argsort(number, kind="stable")
    order = order[inside[order]]
    number = number[order]
    full = number.size == int(np.prod(grid, dtype=np.int64))
    byte_offset = np.array(offsets, np.int64)[order]
    nbytes = np.array(sizes, np.int64)[order]
    filter_mask = np.array(masks, np.uint32)[order]
    return ChunkTable(
        number=None if full else number,
        byte_offset=byte_offset,
        nbytes=nbytes,
        filter_mask=filter_mask,
        unfiltered_edges=_edges_unfiltered(dataset, index, grid, number, nbytes, filter_mask),
        sound=not bad_entries(index, byte_offset, nbytes).any(),
    )


def bad_entries(
    index: DatasetIndex, byte_offset: NDArray[np.int64], nbytes: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Tell which entries of a chunk table cannot be true of the file that `index` describes."""
    if not isinstance(index.storage, Chunked):
        raise TypeError(f"{index.name} is not chunked")
    size = index.fingerprint.nbytes
    # Written so that it cannot overflow, whatever a damaged file says.
    bad = (byte_offset < 0) | (nbytes <= 0) | (nbytes > size) | (byte_offset > size - nbytes)
    if not index.filters:
        bad |= nbytes != decoded_chunk_nbytes(index)
    return bad


def decoded_chunk_nbytes(index: DatasetIndex) -> int:
    """Return the size of a whole decoded chunk, bytes."""
    if not isinstance(index.storage, Chunked):
        raise TypeError(f"{index.name} is not chunked")
    return math.prod(index.storage.chunks) * index.file_dtype.itemsize


def _true_coordinates(
    dataset: h5py.Dataset,
    index: DatasetIndex,
    chunks: tuple[int, ...],
    reported: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Correct the coordinates that HDF5 reports, for the one chunk index where they are wrong."""
    import h5py

    axis = misplaced_axis(dataset.maxshape)
    if axis is None:
        return reported
    address = h5py.h5o.get_info(dataset.id).addr
    with open(index.file, "rb") as stream:
        if not has_extensible_array(stream, address, dataset.file.userblock_size):
            return reported
    most = [
        None if n is None else -(-n // c) for n, c in zip(dataset.maxshape, chunks, strict=True)
    ]
    return chunk_coordinates(reported, most, axis)


def _edges_unfiltered(
    dataset: h5py.Dataset,
    index: DatasetIndex,
    grid: tuple[int, ...],
    number: NDArray[np.int64],
    nbytes: NDArray[np.int64],
    filter_mask: NDArray[np.uint32],
) -> bool:
    """Ask the object header, but only where a partial edge chunk looks like an unfiltered one."""
    import h5py

    if not isinstance(index.storage, Chunked) or not index.filters:
        return False
    partial = np.zeros(number.size, np.bool_)
    for axis, stride in enumerate(grid_strides(grid)):
        if index.shape[axis] % index.storage.chunks[axis]:
            partial |= number // stride % grid[axis] == grid[axis] - 1
    if not (partial & (nbytes == decoded_chunk_nbytes(index)) & (filter_mask == 0)).any():
        return False
    address = h5py.h5o.get_info(dataset.id).addr
    with open(index.file, "rb") as stream:
        return has_unfiltered_edges(stream, address, dataset.file.userblock_size)
