"""Attributes and references, copied from one file to another.

A reference is an address inside its file, so that it means nothing in a copy: each is made anew,
of the copy of what it refers to. All other attributes are moved as the bytes they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import h5py

__all__ = ["Key", "References", "copy_attributes", "copy_references", "key_of"]

Key = tuple[int, int]

_PIECE = 1 << 16  # references that are in work at a time
# Attributes of HDF5's dimension scales that have an entry for each axis.
_BY_AXIS = ("DIMENSION_LIST", "DIMENSION_LABELS")


def key_of(item: Any) -> Key:
    """Return what tells an object from all others of its file: HDF5's number of it, and where."""
    import h5py

    info = h5py.h5o.get_info(item)
    return int(info.fileno), int(info.addr)


class References:
    """What became of each object of the source: references of the one file as those of the other.

    Parameters
    ----------
    source, target
        Open files.
    """

    def __init__(self, source: h5py.File, target: h5py.File) -> None:
        self._source = source
        self._target = target
        self._made: dict[Key, tuple[Any, Any]] = {}
        self._orders: dict[Key, tuple[int, ...]] = {}

    def note(self, item: Any, made: Any) -> None:
        """Note that `made` is the copy of `item`; both are handles, and not kept."""
        import h5py

        old, new = (h5py.h5r.create(each, b".", h5py.h5r.OBJECT) for each in (item, made))
        self._made[key_of(item)] = (old, new)

    def note_order(self, item: Any, order: tuple[int, ...]) -> None:
        """Note that the copy of `item` has its axes in another order."""
        self._orders[key_of(item)] = order

    def made(self, key: Key) -> Any | None:
        """Return a handle of the copy of an object, None if there is none (yet)."""
        import h5py

        found = self._made.get(key)
        return None if found is None else h5py.h5r.dereference(found[1], self._target.id)

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """Yield handles of each object and its copy, in the order in which they were made."""
        import h5py

        for old, new in self._made.values():
            yield (
                h5py.h5r.dereference(old, self._source.id),
                h5py.h5r.dereference(new, self._target.id),
            )

    def translated(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return `values`, as h5py reads them, with references to the copies."""
        import h5py

        dtype = values.dtype
        out = np.empty(values.shape, dtype)
        if dtype.names:
            for name in dtype.names:
                out[name] = self.translated(values[name])
            return out
        if dtype.kind != "O":
            return values
        inner = h5py.check_vlen_dtype(dtype)
        if inner is not None and h5py.check_string_dtype(dtype) is None:
            for place in np.ndindex(*values.shape):
                out[place] = self.translated(np.asarray(values[place], inner))
            return out
        if h5py.check_ref_dtype(dtype) is None:
            return values
        for place in np.ndindex(*values.shape):
            out[place] = self._translated_one(values[place])
        return out

    def _translated_one(self, reference: Any) -> Any:
        import h5py

        if not reference:
            return None
        try:
            item = h5py.h5r.dereference(reference, self._source.id)
            key = key_of(item)
        except (ValueError, RuntimeError, KeyError, OSError):
            return None  # it leads nowhere in the source either
        made = self.made(key)
        if made is None:
            return None
        if not isinstance(reference, h5py.RegionReference):
            return h5py.h5r.create(made, b".", h5py.h5r.OBJECT)
        if key in self._orders:
            return None  # the region of another shape; see `copy_attributes`
        region = h5py.h5r.get_region(reference, self._source.id)
        return h5py.h5r.create(made, b".", h5py.h5r.DATASET_REGION, region)

    def reordered(self, reference: Any, axis: int) -> int:
        """Return which axis of a dataset's copy its axis `axis` is."""
        import h5py

        if not reference:
            return axis
        order = self._orders.get(key_of(h5py.h5r.dereference(reference, self._source.id)))
        return axis if order is None else order.index(axis)


def copy_attributes(
    item: Any, made: Any, references: References, *, order: tuple[int, ...] | None = None
) -> list[str]:
    """Copy the attributes of an object, in their order.

    Parameters
    ----------
    item, made
        Handles of the object and its copy.
    references
        Of the copies of all objects.
    order
        Which axis of `item` each axis of `made` is. What dimension scales have for each axis is
        brought into that order; references to regions of a dataset with another order are null.

    Returns
    -------
    list
        What could not be copied, in words.
    """
    import h5py

    left_out = []
    names: list[bytes] = []
    tracked = item.get_create_plist().get_attr_creation_order() if _has_plist(item) else 0
    h5py.h5a.iterate(
        item,
        lambda name, *_: names.append(name),
        index_type=h5py.h5.INDEX_CRT_ORDER if tracked else h5py.h5.INDEX_NAME,
    )
    for name in names:
        try:
            _copy_attribute(item, made, name, references, order)
        except (TypeError, NotImplementedError) as error:  # of a type that h5py has no word for
            where = h5py.h5i.get_name(item) or b"?"
            left_out.append(
                f"attribute {name.decode('utf-8', 'backslashreplace')} of "
                f"{where.decode('utf-8', 'backslashreplace')} ({error})"
            )
    return left_out


def _has_plist(item: Any) -> bool:
    import h5py

    return isinstance(item, h5py.h5d.DatasetID | h5py.h5g.GroupID)


def _copy_attribute(
    item: Any, made: Any, name: bytes, references: References, order: tuple[int, ...] | None
) -> None:
    import h5py

    source = h5py.h5a.open(item, name)
    kind, space = source.get_type(), source.get_space()
    copy = h5py.h5a.create(made, name, kind, space)
    if space.get_simple_extent_type() == h5py.h5s.NULL or not math.prod(source.shape):
        return
    refers = _refers(kind)
    values = np.empty(source.shape, source.dtype if refers else f"V{kind.get_size()}")
    # Read as the type that the file has, nothing is converted. What has no fixed length comes as
    # pointers to memory that HDF5 allocates, and that writing gives back.
    source.read(values, mtype=None if refers else kind)
    if order is not None and name.decode("latin-1") in _BY_AXIS and values.shape == (len(order),):
        values = values[list(order)]
    if not refers:
        copy.write(np.ascontiguousarray(values), mtype=kind)
        return
    translated = references.translated(values)
    if name == b"REFERENCE_LIST" and values.dtype.names and len(values.dtype.names) == 2:
        who, axis = values.dtype.names
        for place in np.ndindex(*values.shape):
            translated[place][axis] = references.reordered(values[place][who], values[place][axis])
    copy.write(translated)


def copy_references(item: Any, made: Any, references: References) -> None:
    """Write the references that dataset `item` holds, if it does, into its copy `made`."""
    import h5py

    kind = item.get_type()
    if not _refers(kind) or not math.prod(item.shape or ()):
        return
    shape = tuple(item.shape)
    if not shape:
        values = np.empty((), item.dtype)
        item.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, references.translated(values))
        return
    rows = max(1, _PIECE // max(1, math.prod(shape[1:])))
    for start in range(0, shape[0], rows):
        count = (min(rows, shape[0] - start), *shape[1:])
        place = item.get_space()
        place.select_hyperslab((start, *[0] * (len(shape) - 1)), count)
        memory = h5py.h5s.create_simple(count)
        values = np.empty(count, item.dtype)
        item.read(memory, place, values)
        made.write(memory, place, references.translated(values))


def _refers(kind: Any) -> bool:
    """Tell whether a type is, or holds, references."""
    import h5py

    if isinstance(kind, h5py.h5t.TypeReferenceID):
        return True
    if isinstance(kind, h5py.h5t.TypeVlenID | h5py.h5t.TypeArrayID):
        return _refers(kind.get_super())
    if isinstance(kind, h5py.h5t.TypeCompoundID):
        return any(_refers(kind.get_member_type(i)) for i in range(kind.get_nmembers()))
    return False
