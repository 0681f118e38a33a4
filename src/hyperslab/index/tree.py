"""A walk through a whole file: every object, in one visit, without reading an element."""

from __future__ import annotations

import importlib.util
import math
import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hyperslab.codecs.pipeline import is_native
from hyperslab.errors import HyperslabError, UnsupportedDtypeError
from hyperslab.filters import Filter, filter_package
from hyperslab.grid import grid_shape
from hyperslab.index.build import describe_dataset, load_filters
from hyperslab.index.resolve import get_object
from hyperslab.index.virtual import source_files

if TYPE_CHECKING:
    import h5py
    import numpy as np

__all__ = ["DatasetFacts", "Entry", "natural_key", "walk_file"]

_DEEPEST = 100  # groups in groups; keeps a damaged file from sending the walk round and round


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """A dataset as a person wants to see it listed; also one whose elements are not numbers.

    Attributes
    ----------
    shape
        Extent along each axis; None for a null dataset.
    dtype
        In words: a NumPy name, "int16 big-endian", "string", "compound (x, y)" ...
    numeric
        True if hyperslab reads elements of that type.
    storage
        "chunked", "contiguous", "external", "compact", "virtual" or "null".
    chunks
        Chunk shape, None where there are no chunks.
    filters
        In the order in which they were applied on writing.
    native
        True if hyperslab decodes all of the filters itself.
    stored_nbytes, decoded_nbytes
        Size in the file; and in memory once it is read, None where elements have no fixed size.
    chunks_allocated, chunks_total
        Chunks that the file holds, and that the grid has; (0, 0) if not chunked.
    """

    shape: tuple[int, ...] | None
    dtype: str
    numeric: bool
    storage: str
    chunks: tuple[int, ...] | None
    filters: tuple[Filter, ...]
    native: bool
    stored_nbytes: int
    decoded_nbytes: int | None
    chunks_allocated: int
    chunks_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One link of the file, and what is behind it.

    Attributes
    ----------
    path
        Absolute HDF5 path.
    kind
        "group", "dataset", "datatype", or "broken" for what cannot be opened.
    target
        Where a soft link ("/path") or an external one ("file.h5:/path") leads; "" for a hard link.
    repeats
        Path under which the same object is listed otherwise, "" if this is its only or first place.
        A group that repeats another has no entries of its own.
    n_attributes
        Of the object.
    facts
        Of a dataset.
    problem
        Why its data cannot be had; "" if they can, or if only their type stands in the way.
    """

    path: str
    kind: str
    target: str = ""
    repeats: str = ""
    n_attributes: int = 0
    facts: DatasetFacts | None = None
    problem: str = ""


def natural_key(name: str) -> tuple[list[str | int], str]:
    """Return a key that sorts names as people do: runs of digits count as numbers.

    Examples
    --------
    >>> sorted(["p10", "p2", "P1"], key=natural_key)
    ['P1', 'p2', 'p10']
    """
    parts: list[str | int] = list(re.split("([0-9]+)", name))
    parts[1::2] = map(int, parts[1::2])  # text and number alternate, so like meets like
    return parts, name


def walk_file(h5: h5py.File) -> Iterator[Entry]:
    """List every object of an open file, depth first, names in natural order.

    Parameters
    ----------
    h5
        Open until the last entry is drawn; not kept.

    Yields
    ------
    Entry
        The root group first; a group before its members. External links are followed. Soft links
        within the file are listed and not followed, since the object has a place of its own.

    Notes
    -----
    What is wrong with one object is its `problem`, and nothing is raised. About 150 microseconds a
    dataset. Chunks are counted; their table is not read.
    """
    try:
        walk = _Walk(h5)
    except _TROUBLE as error:
        yield _broken("/", "", f"the root group cannot be read: {error}")
        return
    yield from walk.group(walk.root, "/", Entry(path="/", kind="group"), 0)


class _Walk:
    def __init__(self, h5: h5py.File) -> None:
        self._h5 = h5
        self.root: h5py.Group = h5["/"]
        # HDF5's number of the file, and the address in it. A file that is opened anew, by another
        # external link, gets another number; those above us are open, so no circle goes unnoticed.
        self._first: dict[tuple[int, int], str] = {}
        self._file_number = _identity(self.root)[0]

    def group(self, group: h5py.Group, path: str, entry: Entry, depth: int) -> Iterator[Entry]:
        self._first.setdefault(_identity(group), path)
        yield entry
        try:
            # h5py gives the name as bytes where it is no UTF-8.
            keys = {
                key if isinstance(key, str) else key.decode("utf-8", "backslashreplace"): key
                for key in group
            }
        except _TROUBLE as error:
            yield _broken(posixpath.join(path, "?"), "", f"the members cannot be listed: {error}")
            return
        for name in sorted(keys, key=natural_key):
            yield from self._member(group, keys[name], posixpath.join(path, name), depth)

    def _member(
        self, group: h5py.Group, key: str | bytes, path: str, depth: int
    ) -> Iterator[Entry]:
        import h5py

        target, soft = "", False
        try:
            raw = key.encode("utf-8") if isinstance(key, str) else key
            if group.id.links.get_info(raw).type != h5py.h5l.TYPE_HARD:
                link = group.get(key, getlink=True)
                if isinstance(link, h5py.SoftLink):
                    target, soft = posixpath.join(group.name or "/", link.path), True
                elif isinstance(link, h5py.ExternalLink):
                    target = f"{link.filename}:{link.path}"
            item = group[key]
            identity = _identity(item)
            n_attributes = int(h5py.h5a.get_num_attrs(item.id))
        except _TROUBLE as error:
            yield _broken(path, target, self._reason(path, error))
            return
        repeats = self._first.get(identity, "")
        if soft and identity[0] == self._file_number:
            repeats = repeats or posixpath.normpath(target)
        elif not repeats:
            self._first[identity] = path
        if isinstance(item, h5py.Group):
            entry = Entry(
                path=path, kind="group", target=target, repeats=repeats, n_attributes=n_attributes
            )
            if repeats:
                yield entry
            elif depth == _DEEPEST:
                yield _broken(path, target, f"lies more than {_DEEPEST} groups deep")
            else:
                yield from self.group(item, path, entry, depth + 1)
            return
        facts, problem = None, ""
        if isinstance(item, h5py.Dataset):
            try:
                facts, problem = _describe(item, path)
            except _TROUBLE as error:
                yield _broken(path, target, f"cannot be described: {error}")
                return
        yield Entry(
            path=path,
            kind="datatype" if facts is None else "dataset",
            target=target,
            repeats=repeats,
            n_attributes=n_attributes,
            facts=facts,
            problem=problem,
        )

    def _reason(self, path: str, error: Exception) -> str:
        """Say why the object at `path` cannot be opened, in the words of whoever asks for it."""
        try:
            get_object(self._h5, path)
        except HyperslabError as reason:
            return reason.message.removeprefix(f"{self._h5.filename}: ")
        except _TROUBLE:
            pass  # a name that is no UTF-8, say: then the first error tells as much as there is
        return str(error)


# What h5py raises where a file is damaged or holds something that it has no word for.
_TROUBLE = (HyperslabError, KeyError, OSError, RuntimeError, TypeError, ValueError)


def _broken(path: str, target: str, problem: str) -> Entry:
    return Entry(path=path, kind="broken", target=target, problem=problem)


def _identity(item: Any) -> tuple[int, int]:
    import h5py

    info = h5py.h5o.get_info(item.id)
    return int(info.fileno), int(info.addr)


def _describe(dataset: h5py.Dataset, path: str) -> tuple[DatasetFacts, str]:
    """Return the facts of an open dataset, and why it cannot be read ("" if it can)."""
    problem, numeric = "", True
    try:
        describe_dataset(dataset, os.path.abspath(dataset.file.filename), name=path)
    except UnsupportedDtypeError:
        numeric = False
    except HyperslabError as error:
        problem = error.message.removeprefix(f"{os.path.abspath(dataset.file.filename)}: ")
    except _TROUBLE as error:
        problem = f"cannot be indexed: {error}"
    dcpl = dataset.id.get_create_plist()
    storage = "null" if dataset.shape is None else _storage_name(dcpl)
    chunks = None
    allocated = total = 0
    if storage == "chunked":
        chunks = tuple(int(n) for n in dcpl.get_chunk())
        total = math.prod(grid_shape(dataset.shape, chunks))
        allocated = int(dataset.id.get_num_chunks())
    elif storage == "virtual" and not problem:
        missing = [s for s in source_files(dataset, dataset.file.filename) if not os.path.exists(s)]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            problem = f"needs {missing[0]}{more}, which is not there"
    filters = load_filters(dcpl)
    native = is_native(filters)
    if numeric and not native and not problem:
        problem = _lacking(filters)
    dtype, itemsize = _type_in_words(dataset)
    return DatasetFacts(
        shape=None if dataset.shape is None else tuple(int(n) for n in dataset.shape),
        dtype=dtype,
        numeric=numeric,
        storage=storage,
        chunks=chunks,
        filters=filters,
        native=native,
        stored_nbytes=int(dataset.id.get_storage_size()),
        decoded_nbytes=None if itemsize is None else int(dataset.size or 0) * itemsize,
        chunks_allocated=allocated,
        chunks_total=total,
    ), problem


def _storage_name(dcpl: h5py.h5p.PropDCID) -> str:
    import h5py

    if dcpl.get_external_count():
        return "external"
    names = {
        h5py.h5d.CHUNKED: "chunked",
        h5py.h5d.COMPACT: "compact",
        h5py.h5d.VIRTUAL: "virtual",
    }
    return names.get(dcpl.get_layout(), "contiguous")


def _lacking(filters: tuple[Filter, ...]) -> str:
    """Say which filter nothing here decodes, "" if the HDF5 library has, or can be given, all."""
    import h5py

    for entry in filters:
        package = filter_package(entry.code)
        if h5py.h5z.filter_avail(entry.code):
            continue
        if package and importlib.util.find_spec(package) is not None:
            continue
        advice = f"; pip install {package} brings it" if package else ""
        return f"nothing installed here decodes {entry.name} (filter {entry.code}){advice}"
    return ""


def _type_in_words(dataset: h5py.Dataset) -> tuple[str, int | None]:
    """Return a dataset's element type for people, and the bytes of an element if they are fixed."""
    import h5py

    try:
        dtype: np.dtype = dataset.dtype
    except (TypeError, ValueError):
        return f"type class {dataset.id.get_type().get_class()}", None
    if (text := h5py.check_string_dtype(dtype)) is not None:
        if text.length is None:
            return "string", None
        return f"string[{text.length}]", text.length
    if (base := h5py.check_vlen_dtype(dtype)) is not None:
        return f"vlen {base}", None
    if (reference := h5py.check_ref_dtype(dtype)) is not None:
        return "region reference" if reference is h5py.RegionReference else "reference", None
    itemsize = None if dtype.hasobject else dtype.itemsize
    if dtype.fields:
        return f"compound ({', '.join(dtype.fields)})", itemsize
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return f"{base}[{' × '.join(map(str, shape))}]", itemsize
    if dtype.kind == "V":
        return f"opaque[{dtype.itemsize}]", itemsize
    words = dtype.newbyteorder("=").name
    if dtype.kind != "b" and h5py.check_enum_dtype(dtype) is not None:
        words = f"enum {words}"
    return words + ("" if dtype.isnative else " big-endian"), itemsize
