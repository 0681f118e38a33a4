"""From a name to an object, through soft and external links, and the reason when it fails."""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING

from hyperslab.errors import (
    DamagedFileError,
    HyperslabError,
    MissingObjectError,
    MissingSourceError,
)

if TYPE_CHECKING:
    import h5py

__all__ = ["get_object", "source_path"]

_MOST_LINKS = 16  # HDF5's own limit on links in a row


def get_object(h5: h5py.File, name: str) -> h5py.Dataset | h5py.Group | h5py.Datatype:
    """Return object `name` of the open file `h5`.

    Raises
    ------
    MissingSourceError
        An external link on the way leads to a file that is not there.
    MissingObjectError
        Nothing of that name; the message offers close names.
    DamagedFileError
        It is there, but cannot be opened.
    """
    try:
        return h5[name]
    except (KeyError, OSError, ValueError, RuntimeError) as error:
        raise _reason(h5, name, error, _MOST_LINKS) from error


def _reason(h5: h5py.File, name: str, error: Exception, depth: int) -> HyperslabError:
    import h5py

    path = h5.filename
    parts = [part for part in name.split("/") if part]
    try:
        here: h5py.Group = h5["/"]
    except (KeyError, OSError, ValueError, RuntimeError):
        parts = []  # nothing can be followed from there
    for i, part in enumerate(parts):
        so_far = "/" + "/".join(parts[: i + 1])
        if not isinstance(here, h5py.Group):
            return MissingObjectError(
                f"{path}: no object {name!r}: {here.name} is a dataset, it has no members.",
                file=path,
                dataset=name,
            )
        try:
            link = here.get(part, getlink=True)
        except TypeError:
            return MissingObjectError(
                f"{path}: {so_far} is a user-defined link, which only the program that made it can "
                "follow.",
                file=path,
                dataset=name,
            )
        if isinstance(link, h5py.ExternalLink):
            target = source_path(link.filename, path)
            if not os.path.exists(target):
                return MissingSourceError(
                    f"{path}: {so_far} is an external link to {link.filename}, which is not there "
                    f"(looked for {target}). Put the file back beside this one.",
                    file=target,
                    dataset=name,
                )
        try:
            here = here[part]
        except (KeyError, OSError, ValueError, RuntimeError):
            if isinstance(link, h5py.SoftLink) and not depth:
                return MissingObjectError(
                    f"{path}: {name!r} leads through soft links that go round in a circle.",
                    file=path,
                    dataset=name,
                )
            if isinstance(link, h5py.SoftLink):
                target = link.path
                if not target.startswith("/"):
                    target = f"{here.name.rstrip('/')}/{target}"
                found = _reason(h5, target, error, depth - 1)
                if depth < _MOST_LINKS:
                    return found
                reason = found.message.removeprefix(f"{path}: ")
                return type(found)(
                    f"{path}: {so_far} is a soft link to {link.path}, which leads nowhere: "
                    f"{reason}",
                    **{**found.facts, "dataset": name},
                )
            if isinstance(link, h5py.ExternalLink):
                return MissingObjectError(
                    f"{path}: {so_far} is an external link to {link.path} in {link.filename}, "
                    f"which cannot be opened there: {error}",
                    file=path,
                    dataset=name,
                )
            if part in here:
                break
            return MissingObjectError(_not_found(path, name, here, part), file=path, dataset=name)
    return DamagedFileError(
        f"{path}: {name!r} is there, but the HDF5 library cannot open it: {error}. The file is "
        "damaged or truncated.",
        file=path,
        dataset=name,
    )


def _not_found(path: str, name: str, group: h5py.Group, part: str) -> str:
    names = list(group)
    close = difflib.get_close_matches(part, names, n=3)
    if close:
        hint = f"Did you mean {' or '.join(repr(c) for c in close)}?"
    elif names:
        shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
        hint = f"{group.name} holds {shown}" + ("" if shown.endswith("...") else ".")
    else:
        hint = f"{group.name} is empty."
    return f"{path}: no object {name!r}. {hint}"


def source_path(recorded: str, parent: str, prefix: str | None = None) -> str:
    """Return the absolute path of a file that `parent` refers to as `recorded`.

    HDF5 looks, in this order, for an absolute name as it stands (and if it is not there, for its
    last part as below), then in `prefix`, then in the folder of `parent`, then in the current
    folder (reference manual, H5Pset_elink_prefix and H5Pset_virtual_prefix).

    Parameters
    ----------
    recorded
        As written in the file; "." means `parent` itself.
    parent
        Absolute path of the file that refers to it.
    prefix
        Value of HDF5_VDS_PREFIX or HDF5_EXT_PREFIX, where set.

    Returns
    -------
    str
        The first candidate that exists, else the likeliest one.
    """
    if recorded == ".":
        return parent
    if os.path.isabs(recorded):
        if os.path.exists(recorded):
            return recorded
        candidates = [os.path.join(os.path.dirname(parent), os.path.basename(recorded))]
        fallback = recorded
    else:
        candidates = [os.path.join(os.path.dirname(parent), recorded), os.path.abspath(recorded)]
        if prefix:
            candidates.insert(0, os.path.join(prefix, recorded))
        fallback = candidates[0]
    for candidate in candidates:
        if os.path.exists(candidate):
            return os.path.abspath(candidate)
    return fallback
