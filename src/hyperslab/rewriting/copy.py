"""A file's objects, copied: groups, links, attributes, and the datasets that stay as they are."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperslab import filters
from hyperslab.codecs.encode import Codec
from hyperslab.errors import CapacityError, DamagedFileError, HyperslabError
from hyperslab.rewriting.attributes import References, copy_attributes, copy_references, key_of
from hyperslab.rewriting.placing import finish
from hyperslab.rewriting.plan import DatasetPlan, RepackPlan

if TYPE_CHECKING:
    import h5py

__all__ = ["AXES_ATTRIBUTE", "copy_objects", "create_like", "disk_full", "says_full", "set_filters"]

# What h5py raises where a file is damaged, or a disk full.
_TROUBLE = (KeyError, OSError, RuntimeError, ValueError)

AXES_ATTRIBUTE = "hyperslab_axis_order"


class _Copier:
    """Copies one file's objects. Works on HDF5's own handles, since names may be no text at all."""

    def __init__(
        self,
        source: h5py.File,
        target: h5py.File,
        plan: RepackPlan,
    ) -> None:
        self.in_place = plan.in_place
        self.source = source
        self.target = target
        self.plans = plans = {item.path: item for item in plan.rewritten if item.level is None}
        # By the objects themselves: a dataset may have several paths.
        self.planned = {key_of(source[path].id): path for path in plans}
        self.references = References(source, target)
        self.rewritten: dict[str, h5py.Dataset] = {}
        self.left_out: list[str] = []

    def copy_group(self, source: Any, target: Any, path: str) -> None:
        import h5py

        self.references.note(source, target)
        for name in source:
            there = f"{path}/{name.decode('utf-8', 'backslashreplace')}"
            try:
                info = source.links.get_info(name)
                if info.type == h5py.h5l.TYPE_HARD:
                    self.copy_object(source, target, name, info, there)
                elif info.type == h5py.h5l.TYPE_SOFT:
                    target.links.create_soft(name, source.links.get_val(name), _lcpl(info))
                elif info.type == h5py.h5l.TYPE_EXTERNAL:
                    file, inside = source.links.get_val(name)
                    target.links.create_external(name, file, inside, _lcpl(info))
                else:
                    self.left_out.append(f"{there} (a link of a kind that HDF5 does not know)")
            except _TROUBLE as error:
                raise _reason(error, self.source.filename, self.target.filename, there) from error

    def copy_object(self, source: Any, target: Any, name: bytes, info: Any, path: str) -> None:
        import h5py

        item = h5py.h5o.open(source, name)
        known = self.references.made(key_of(item))
        if known is not None:
            h5py.h5o.link(known, target, name, lcpl=_lcpl(info))  # one object, another name
            return
        planned = self.planned.get(key_of(item))
        if isinstance(item, h5py.h5g.GroupID):
            # Not with the old list of properties as it is: HDF5 2 then makes groups that it cannot
            # open, where the two files are of different versions.
            old, how = item.get_create_plist(), h5py.h5p.create(h5py.h5p.GROUP_CREATE)
            how.set_link_creation_order(old.get_link_creation_order())
            how.set_attr_creation_order(old.get_attr_creation_order())
            made = h5py.h5g.create(target, name, _lcpl(info), how)
            self.copy_group(item, made, path)
            return
        if planned is not None:
            plan = self.plans[planned]
            made = create_like(item, target, name, plan, _lcpl(info), in_place=self.in_place)
            self.rewritten[planned] = h5py.Dataset(made)
            if plan.order != tuple(range(len(plan.order))):
                self.references.note_order(item, plan.order)
        else:
            copying = h5py.h5p.create(h5py.h5p.OBJECT_COPY)
            copying.set_copy_object(h5py.h5o.COPY_WITHOUT_ATTR_FLAG)
            h5py.h5o.copy(source, name, target, name, copying, _lcpl(info))
            made = h5py.h5o.open(target, name)
        self.references.note(item, made)

    def make_levels(self, levels: Sequence[DatasetPlan]) -> None:
        """Make the datasets of coarser levels, with the type and the fill value of their origin."""
        import h5py

        intermediate = h5py.h5p.create(h5py.h5p.LINK_CREATE)
        intermediate.set_create_intermediate_group(True)
        intermediate.set_char_encoding(h5py.h5t.CSET_UTF8)
        for plan in levels:
            if plan.level is None:
                continue
            if plan.path in self.target:  # one that did not fit, and was no level of the source
                del self.target[plan.path]
            origin = h5py.h5d.open(self.source.id, plan.level.origin.encode())
            name = plan.path.encode()
            made = create_like(
                origin, self.target.id, name, plan, intermediate, in_place=self.in_place
            )
            self.rewritten[plan.path] = h5py.Dataset(made)

    def fill(self) -> None:
        """Copy attributes and references, now that what they may refer to is there."""
        import h5py

        for item, made in self.references.pairs():
            plan = self.plans.get(self.planned.get(key_of(item), ""))
            order = None if plan is None else plan.order
            self.left_out += copy_attributes(item, made, self.references, order=order)
            if order is not None and order != tuple(range(len(order))):
                h5py.Dataset(made).attrs[AXES_ATTRIBUTE] = np.array(order, np.int64)
            if plan is None and isinstance(item, h5py.h5d.DatasetID):
                try:
                    copy_references(item, made, self.references)
                except TypeError as error:
                    name = (h5py.h5i.get_name(item) or b"?").decode("utf-8", "backslashreplace")
                    self.left_out.append(f"the references in {name} ({error})")


def create_like(
    item: Any, target: Any, name: bytes, plan: DatasetPlan, lcpl: Any = None, *, in_place: bool
) -> Any:
    """Make an empty dataset with the plan's chunks and filters, and the type and fill of `item`.

    Parameters
    ----------
    item, target, name
        HDF5's handles of the dataset that it takes after, and of the group that it is made in.
    plan
        Its shape, chunks and filters, and its type where that is narrower.
    lcpl
        How the link is made.
    in_place
        Have the room for every chunk allocated.
    """
    import h5py

    how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    how.set_chunk(plan.chunks)
    old = item.get_create_plist()
    how.set_attr_creation_order(old.get_attr_creation_order())
    how.set_attr_phase_change(*old.get_attr_phase_change())
    how.set_obj_track_times(old.get_obj_track_times())
    has_fill = old.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    if has_fill:
        value = np.zeros((), item.dtype)
        old.get_fill_value(value)
        how.set_fill_value(value)  # HDF5 converts it, where the type is narrower: exactly, then
    if in_place:
        how.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    set_filters(how, plan.codec, plan.itemsize)
    shape = maximum = plan.extent or plan.shape
    if plan.level is None:
        extents = item.get_space().get_simple_extent_dims(True)
        maximum = tuple(extents[axis] for axis in plan.order)
    if in_place and maximum == shape and not has_fill:
        # Every chunk there will ever be is going to be written: zeros need not be, before.
        how.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple(shape, maximum)
    kind = h5py.h5t.py_create(np.dtype(plan.dtype)) if plan.dtype else item.get_type()
    return h5py.h5d.create(target, name, kind, space, how, lcpl)


def set_filters(how: Any, codec: Codec, itemsize: int) -> None:
    """Have datasets that are made with the property list `how` be stored with a codec."""
    import h5py

    for entry in codec.pipeline(itemsize):
        if entry.code == filters.SHUFFLE:
            how.set_shuffle()
        elif entry.code == filters.GZIP:
            how.set_deflate(entry.values[0])
        else:
            # Without its plugin, HDF5 knows a filter by number alone if it is optional.
            how.set_filter(entry.code, h5py.h5z.FLAG_OPTIONAL, entry.values)


def _reason(error: Exception, source: str, target: str, where: str) -> HyperslabError:
    """Return our own error for one of h5py's: was it writing that failed, or the source?"""
    if isinstance(error, HyperslabError):
        return error
    if says_full(error):
        return disk_full(target)
    return DamagedFileError(
        f"{source}: {where or 'the file'} cannot be copied: {error}. `hyperslab verify` says what "
        "is sound of a damaged file.",
        file=source,
        dataset=where,
    )


def says_full(error: Exception) -> bool:
    """Tell whether an error, of Python or of HDF5, is that of a full disk."""
    return getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)


def disk_full(path: str) -> CapacityError:
    """Return the error for a disk that has no more room for the file `path`."""
    return CapacityError(
        f"{path}: no space is left on the disk. Make room and go on with --resume (resume=True), "
        "or choose a codec that compresses.",
        file=path,
    )


def _lcpl(info: Any) -> Any:
    """Return how to make a link whose name is in the same encoding."""
    import h5py

    how = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    how.set_char_encoding(info.cset)
    return how


def copy_objects(
    source: h5py.File, path: Path, plan: RepackPlan
) -> tuple[h5py.File, dict[str, h5py.Dataset], tuple[str, ...]]:
    """Make a file with copies of all objects of `source`.

    Parameters
    ----------
    source
        Open file.
    path
        Of the new one.
    plan
        What is rewritten. Where chunks go right to their places, the room for all is allocated.

    Returns
    -------
    file
        Open for writing; the caller closes it.
    rewritten
        The datasets that are rewritten, by path: made, and still without elements.
    left_out
        What could not be copied, in words.

    Raises
    ------
    DamagedFileError
        An object of the source cannot be opened or copied.

    Notes
    -----
    Kept: the user block, groups and the order that they track, hard, soft and external links as
    such, committed types, attributes of every type byte by byte and in their order, references to
    objects and regions in attributes and in datasets, dimension scales, fill values, maximal
    shapes. Datasets that are not rewritten are copied by HDF5, chunks as they are stored; virtual
    and external ones keep pointing to where they pointed.
    """
    target = None
    try:
        target = _create_file(source, path)
        copier = _Copier(source, target, plan)
        copier.copy_group(source["/"].id, target["/"].id, "")
        copier.fill()
        copier.make_levels(plan.levels)
        finish(target, plan)
        target.flush()
    except BaseException as error:
        if target is not None:
            with contextlib.suppress(OSError, RuntimeError):  # of a disk that is full, once more
                target.close()
        if isinstance(error, _TROUBLE):
            raise _reason(error, source.filename, str(path), "") from error
        raise
    return target, copier.rewritten, tuple(copier.left_out)


def _create_file(source: h5py.File, path: Path) -> h5py.File:
    """Make an empty file with the user block and the root group's properties of `source`."""
    import h5py

    fcpl = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    old = source.id.get_create_plist()
    # Of the root group as a group: of the file as a whole, HDF5 does not remember these.
    root = h5py.h5g.open(source.id, b".").get_create_plist()
    fcpl.set_link_creation_order(root.get_link_creation_order())
    fcpl.set_attr_creation_order(root.get_attr_creation_order())
    fcpl.set_userblock(old.get_userblock())
    fapl = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    fapl.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    # Large attributes need what HDF5 1.8 brought; what older libraries read stays readable to them.
    least = h5py.h5f.LIBVER_V18 if old.get_version()[0] >= 2 else h5py.h5f.LIBVER_EARLIEST
    fapl.set_libver_bounds(least, h5py.h5f.LIBVER_LATEST)
    made = h5py.h5f.create(str(path).encode(), h5py.h5f.ACC_EXCL, fcpl, fapl)
    if nbytes := old.get_userblock():
        made.close()
        with open(source.filename, "rb") as stream, open(path, "r+b") as out:
            out.write(stream.read(nbytes))
        made = h5py.h5f.open(str(path).encode(), h5py.h5f.ACC_RDWR, fapl)
    return h5py.File(made)
