"""Read files through h5py to the end, and say what cannot be read: a JSON line each.

A program of its own, since a damaged file may kill the HDF5 library. Lines are lists: ["file",
path], then ["trouble", where, error] for each object, link or attribute that h5py cannot read, and
["end", path].
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import h5py
import hdf5plugin

_MOST_NBYTES = 1 << 29


def say(*line: Any) -> None:
    os.write(1, (json.dumps(line) + "\n").encode())


def attempt(where: str, step: Any) -> Any:
    try:
        return step()
    except Exception as error:  # noqa: BLE001 - whatever h5py comes up with is a result here
        say("trouble", where, f"{type(error).__name__}: {error}")
        return None


def look(item: Any, where: str, seen: set[Any]) -> None:
    # h5py's own way to say that it has no word for a type is no trouble with an attribute.
    for name in attempt(f"{where}@", lambda: list(item.attrs)) or ():
        attempt(f"{where}@{name}", lambda name=name: attribute(item, name))
    if isinstance(item, h5py.Group):
        for key in attempt(where, lambda: list(item)) or ():
            path = f"{where.rstrip('/')}/{key}"
            member = attempt(path, lambda key=key: item[key])
            if member is None:
                continue
            identity = attempt(path, lambda member=member: identify(member))
            if identity is not None and identity not in seen:
                seen.add(identity)
                look(member, path, seen)
    elif isinstance(item, h5py.Dataset) and attempt(where, lambda: item.dtype) is not None:
        attempt(where, lambda: read(item))


def attribute(item: Any, name: str) -> None:
    try:
        item.attrs[name]
    except TypeError as error:
        if "No NumPy equivalent" not in str(error) and "reference type" not in str(error):
            raise


def identify(item: Any) -> tuple[str, int]:
    return item.file.filename, h5py.h5o.get_info(item.id).addr


def read(dataset: h5py.Dataset) -> None:
    if dataset.shape is not None and dataset.nbytes <= _MOST_NBYTES:
        dataset[()]


def look_through(path: str) -> None:
    with h5py.File(path, "r") as h5:
        look(h5["/"], "/", {identify(h5["/"])})


def main(paths: list[str]) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
    if not hdf5plugin.FILTERS:
        raise SystemExit("hdf5plugin has no filters")
    for path in paths:
        say("file", path)
        os.chdir(os.path.dirname(path))  # where HDF5 looks for raw files
        attempt("", lambda path=path: look_through(path))
        say("end", path)


if __name__ == "__main__":
    main(sys.argv[1:])
