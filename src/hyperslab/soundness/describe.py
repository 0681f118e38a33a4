"""One open dataset, described so that it can be checked without the HDF5 library.

In the process that asks the library: see `hyperslab.soundness.objects`.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import h5py
import numpy as np

from hyperslab.codecs.pipeline import is_native
from hyperslab.errors import HyperslabError
from hyperslab.index.build import load_chunk_table, load_filters
from hyperslab.index.records import Chunked, ChunkTable, DatasetIndex, Null, fingerprint
from hyperslab.index.virtual import load_mappings, source_files

__all__ = ["TROUBLE", "describe"]

# What h5py and NumPy raise about a damaged file.
TROUBLE = (
    ArithmeticError,
    AttributeError,
    HyperslabError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SystemError,
    TypeError,
    ValueError,
)


def describe(
    dataset: h5py.Dataset, path: str, *, axis: int
) -> tuple[dict[str, Any], DatasetIndex, ChunkTable | None]:
    """Describe an open dataset.

    Parameters
    ----------
    dataset
        Open; not kept.
    path
        What it is called.
    axis
        The slice axis, for virtual datasets: which slices each of their sources is for.

    Returns
    -------
    dict
        As JSON can hold it: what `hyperslab.soundness.examine` takes.
    DatasetIndex
        The same for the chunk table; its elements are of a type without meaning.
    ChunkTable or None
        Of a chunked dataset; None where its index cannot be read.
    """
    file = os.path.abspath(dataset.file.filename)
    dcpl = dataset.id.get_create_plist()
    shape = None if dataset.shape is None else tuple(int(n) for n in dataset.shape)
    dtype, in_heap, foreign = _element_type(dataset)
    # What lies in a heap takes another size in memory, which is the one that HDF5 tells.
    itemsize = 0 if in_heap or foreign else int(dataset.id.get_type().get_size())
    layout = dcpl.get_layout()
    filters = load_filters(dcpl)
    facts: dict[str, Any] = {
        "kind": "dataset",
        "name": path,
        "file": file,
        "shape": shape,
        "dtype": dtype,
        "itemsize": itemsize,
        "storage": "null",
        "chunks": None,
        "filters": [[f.code, f.values, f.name, f.optional] for f in filters],
        "table": "",
        "segments": [],
        "pieces": [],
        "library": in_heap and shape is not None,
        "unchecked": foreign,
    }
    index = DatasetIndex(
        file=file,
        name=path,
        shape=shape or (),
        dtype=np.dtype(f"V{itemsize or 1}"),
        file_dtype=np.dtype(f"V{itemsize or 1}"),
        fill=np.zeros((), np.uint8),  # nobody asks
        filters=filters,
        storage=Null(),
        direct=True,
        # Of chunks, it would have to be summed up, from an index that may be damaged.
        stored_nbytes=0 if layout == h5py.h5d.CHUNKED else int(dataset.id.get_storage_size()),
        fingerprint=fingerprint(file),
    )
    if shape is None:
        return facts, index, None
    nbytes = math.prod(shape) * itemsize or index.stored_nbytes
    if layout == h5py.h5d.CHUNKED:
        chunks = tuple(int(n) for n in dcpl.get_chunk())
        index = replace(index, storage=Chunked(chunks))
        facts |= {"storage": "chunked", "chunks": chunks}
        facts["library"] = in_heap or not is_native(filters)
        try:
            table = load_chunk_table(dataset, index)
            facts["n_entries"] = int(dataset.id.get_num_chunks())
        except TROUBLE as error:
            facts["table"] = f"its chunk index cannot be read: {error}"
            return facts, index, None
        facts["numbered"] = table.number is not None
        facts["unfiltered_edges"] = table.unfiltered_edges
        return facts, index, table
    if layout == h5py.h5d.COMPACT:
        facts |= {"storage": "compact", "library": True}  # to be had with the header only
    elif layout == h5py.h5d.VIRTUAL:
        facts |= {"storage": "virtual", "pieces": _pieces(dataset, file, axis)}
    elif dcpl.get_external_count():
        facts |= {"storage": "external", "segments": _raw_files(dcpl, file, nbytes)}
    else:
        facts["storage"] = "contiguous"
        # Behind a user block, the offset of what was never written is the block's size less 1.
        if nbytes and index.stored_nbytes and (offset := dataset.id.get_offset()) is not None:
            facts["segments"] = [[file, int(offset), nbytes]]
    return facts, index, None


def _pieces(dataset: h5py.Dataset, file: str, axis: int) -> list[list[Any]]:
    """Return file, dataset and range of slices of every source of a virtual dataset."""
    mappings = load_mappings(dataset, file)
    if mappings is None:
        return [[source, None, None] for source in dict.fromkeys(source_files(dataset, file))]
    found = []
    for mapping in mappings:
        slices = None
        if -len(mapping.virtual) <= axis < len(mapping.virtual):
            table = mapping.virtual[axis]
            slices = [int(table[0]), int(table[-1]) + 1]
        found.append([mapping.file, "/" + mapping.dataset.lstrip("/"), slices])
    return found


def _element_type(dataset: h5py.Dataset) -> tuple[str, bool, str]:
    """Return the element type in a word; whether elements lie in a heap; why they are foreign."""
    try:
        dtype = dataset.dtype
    except (TypeError, ValueError) as error:
        return "unknown", False, f"h5py cannot describe its element type: {error}"
    foreign = ""
    if h5py.h5t.find(dataset.id.get_type(), h5py.h5t.py_create(dtype)) is None:
        foreign = f"the HDF5 library does not convert its elements to what h5py takes, {dtype}"
    if h5py.check_string_dtype(dtype) is not None:
        word = "string"
    elif h5py.check_vlen_dtype(dtype) is not None:
        word = "variable-length"
    elif h5py.check_ref_dtype(dtype) is not None:
        word = "reference"
    elif dtype.fields:
        word = "compound"
    elif dtype.subdtype is not None:
        word = "array"
    elif dtype.kind == "V":
        word = "opaque"
    else:
        word = dtype.newbyteorder("=").name
    return word, bool(dtype.hasobject), foreign


def _raw_files(dcpl: h5py.h5p.PropDCID, file: str, nbytes: int) -> list[list[Any]]:
    """Return file, offset and size of the raw files of a dataset, in the order of its bytes.

    As HDF5 finds them, and then in the folder of `file`; see `hyperslab.index.build`.
    """
    folder = os.path.dirname(file)
    prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "").replace("${ORIGIN}", folder)
    found: list[list[Any]] = []
    left = nbytes
    for i in range(dcpl.get_external_count()):
        recorded, offset, size = dcpl.get_external(i)
        name = os.fsdecode(recorded)
        places = [os.path.join(prefix, name), os.path.join(folder, name)]
        place = next((p for p in places if os.path.exists(p)), places[-1])
        take = left if size == h5py.h5f.UNLIMITED else min(int(size), left)
        if take:
            found.append([os.path.abspath(place), int(offset), take])
        left -= take
    return found
