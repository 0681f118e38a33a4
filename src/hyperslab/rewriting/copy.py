"""A file's objects, copied: groups, links, attributes, and the datasets that stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperslab import filters
from hyperslab.rewriting.plan import DatasetPlan

if TYPE_CHECKING:
    import h5py

__all__ = ["AXES_ATTRIBUTE", "copy_objects", "tracks_order"]

AXES_ATTRIBUTE = "hyperslab_axis_order"
# Attributes of HDF5's dimension scales, which refer to objects by their address: made anew.
_SCALES = {"DIMENSION_LIST", "REFERENCE_LIST", "CLASS", "NAME"}

Key = tuple[int, int]


class _Copier:
    def __init__(
        self,
        source: h5py.File,
        target: h5py.File,
        plans: dict[str, DatasetPlan],
        *,
        in_place: bool,
    ) -> None:
        self.in_place = in_place
        self.source = source
        self.target = target
        self.plans = plans
        # By the objects themselves: a dataset may have several paths.
        self.planned = {_key(source[path]): path for path in plans}
        self.made: dict[Key, str] = {}
        self.rewritten: dict[str, h5py.Dataset] = {}

    def copy_group(self, source: h5py.Group, target: h5py.Group) -> None:
        import h5py

        self.made[_key(source)] = target.name
        for name in source:
            link = source.get(name, getlink=True)
            if isinstance(link, h5py.SoftLink | h5py.ExternalLink):
                target[name] = link
                continue
            self.copy_object(source[name], target, name)

    def copy_object(self, item: Any, target: h5py.Group, name: str) -> None:
        import h5py

        known = self.made.get(_key(item))
        if known is not None:
            target[name] = self.target[known]  # a second link to the same object
            return
        path = f"{target.name.rstrip('/')}/{name}"
        if isinstance(item, h5py.Group):
            self.copy_group(item, target.create_group(name, track_order=tracks_order(item)))
        elif _key(item) in self.planned:
            planned = self.planned[_key(item)]
            self.rewritten[planned] = self.create(item, target, name, self.plans[planned])
        else:
            self.source.copy(item, target, name=name, without_attrs=True)
        self.made[_key(item)] = path

    def create(
        self, item: h5py.Dataset, target: h5py.Group, name: str, plan: DatasetPlan
    ) -> h5py.Dataset:
        """Make an empty dataset with the new chunks and filters, and the old type and fill."""
        import h5py

        how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        how.set_chunk(plan.chunks)
        old = item.id.get_create_plist()
        if old.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED:
            value = np.zeros((), item.dtype)
            old.get_fill_value(value)
            how.set_fill_value(value)
        if self.in_place:
            how.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        for entry in plan.codec.pipeline(item.dtype.itemsize):
            if entry.code == filters.SHUFFLE:
                how.set_shuffle()
            elif entry.code == filters.GZIP:
                how.set_deflate(entry.values[0])
            else:
                # Without its plugin, HDF5 knows a filter by number alone if it is optional.
                how.set_filter(entry.code, h5py.h5z.FLAG_OPTIONAL, entry.values)
        maximum = item.maxshape or item.shape
        space = h5py.h5s.create_simple(plan.shape, tuple(
            h5py.h5s.UNLIMITED if maximum[axis] is None else maximum[axis] for axis in plan.order
        ))  # fmt: skip
        made = h5py.h5d.create(target.id, name.encode(), item.id.get_type(), space, how)
        return h5py.Dataset(made)

    def copy_attributes(self) -> None:
        """Copy the attributes of everything, now that what they may refer to is there."""
        for item, copy, _ in self._pairs():
            plan = self._plan_of(item)
            scale = "DIMENSION_LIST" in item.attrs or item.attrs.get("CLASS") == b"DIMENSION_SCALE"
            for name in item.attrs:
                if not (scale and name in _SCALES):
                    self._copy_attribute(item, copy, name)
            if plan is not None and plan.order != tuple(range(len(plan.order))):
                copy.attrs[AXES_ATTRIBUTE] = np.array(plan.order, np.int64)
        self._attach_scales()

    def _plan_of(self, item: Any) -> DatasetPlan | None:
        path = self.planned.get(_key(item))
        return None if path is None else self.plans[path]

    def _pairs(self) -> Iterator[tuple[Any, Any, str]]:
        """Yield source and copy of every object, once."""
        import h5py

        yield self.source, self.target, "/"
        seen: set[Key] = {_key(self.source)}

        def walk(source: h5py.Group) -> Iterator[tuple[Any, Any, str]]:
            for name in source:
                link = source.get(name, getlink=True)
                if not isinstance(link, h5py.HardLink):
                    continue
                item = source[name]
                if _key(item) in seen:
                    continue
                seen.add(_key(item))
                path = self.made[_key(item)]
                yield item, self.target[path], path
                if isinstance(item, h5py.Group):
                    yield from walk(item)

        yield from walk(self.source)

    def _copy_attribute(self, item: Any, copy: Any, name: str) -> None:
        import h5py

        source = h5py.h5a.open(item.id, name.encode("utf-8", "surrogateescape"))
        kind, space = source.get_type(), source.get_space()
        made = h5py.h5a.create(
            copy.id, name.encode("utf-8", "surrogateescape"), kind, space,
        )  # fmt: skip
        if space.get_simple_extent_type() == h5py.h5s.NULL:
            return
        if _refers(kind):
            value = self._translated(item.attrs[name])
            copy.attrs.modify(name, value) if not isinstance(value, np.ndarray) else made.write(
                value
            )
            return
        value = np.empty(source.shape, source.dtype)
        source.read(value, mtype=kind if not _is_variable(kind) else None)
        made.write(value, mtype=kind if not _is_variable(kind) else None)

    def _translated(self, value: Any) -> Any:
        """Return references to the source's objects as references to their copies."""
        import h5py

        if isinstance(value, h5py.Reference) and not isinstance(value, h5py.RegionReference):
            if not value:
                return value
            path = self.made.get(_key(self.source[value]))
            return value if path is None else self.target[path].ref
        if isinstance(value, np.ndarray) and value.dtype == object:
            out = np.empty_like(value)
            for place, entry in np.ndenumerate(value):
                out[place] = self._translated(entry)
            return out
        return value

    def _attach_scales(self) -> None:
        for item, copy, _ in self._pairs():
            if not hasattr(item, "dims"):
                continue
            if item.attrs.get("CLASS") == b"DIMENSION_SCALE":
                label = item.attrs.get("NAME", b"")
                copy.make_scale(label.decode("utf-8", "replace") if label else "")
                if "NAME" not in item.attrs:
                    del copy.attrs["NAME"]
        for item, copy, _ in self._pairs():
            if "DIMENSION_LIST" not in item.attrs or not hasattr(item, "dims"):
                continue
            plan = self._plan_of(item)
            order = plan.order if plan is not None else tuple(range(item.ndim))
            for axis, old in enumerate(order):
                for scale in item.dims[old].values():
                    there = self.made.get(_key(scale))
                    if there is not None:
                        copy.dims[axis].attach_scale(self.target[there])


def copy_objects(
    source: h5py.File, target: h5py.File, plans: dict[str, DatasetPlan], *, in_place: bool = False
) -> dict[str, h5py.Dataset]:
    """Copy all objects of `source` into `target`, which is empty.

    Parameters
    ----------
    source, target
        Open files.
    plans
        What is rewritten, by path.
    in_place
        Have the room for every chunk of these allocated.

    Returns
    -------
    dict
        The datasets of `plans`, by path: made, and still without elements.

    Notes
    -----
    Kept: groups and the order that they track, hard, soft and external links as such, committed
    types, attributes of every type, object references in attributes, dimension scales, fill values,
    maximal shapes. Datasets that are not rewritten are copied by HDF5, chunks as they are stored;
    virtual and external ones keep pointing to where they pointed.
    """
    copier = _Copier(source, target, plans, in_place=in_place)
    copier.copy_group(source, target)
    copier.copy_attributes()
    return copier.rewritten


def _key(item: Any) -> Key:
    import h5py

    info = h5py.h5o.get_info(item.id)
    return int(info.fileno), int(info.addr)


def tracks_order(group: h5py.Group) -> bool:
    """Tell whether a group keeps its members in the order in which they were made."""
    import h5py

    # Of the root group as a group: of the file as a whole, HDF5 does not remember it.
    how = h5py.h5g.open(group.id, b".").get_create_plist()
    return bool(how.get_link_creation_order() & h5py.h5p.CRT_ORDER_TRACKED)


def _refers(kind: Any) -> bool:
    import h5py

    if isinstance(kind, h5py.h5t.TypeVlenID):
        return _refers(kind.get_super())
    return isinstance(kind, h5py.h5t.TypeReferenceID)


def _is_variable(kind: Any) -> bool:
    import h5py

    if isinstance(kind, h5py.h5t.TypeVlenID):
        return True
    return isinstance(kind, h5py.h5t.TypeStringID) and bool(kind.is_variable_str())
