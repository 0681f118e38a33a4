"""Which files a training set is made of, and what each of them is called."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from hyperslab.errors import MissingFileError
from hyperslab.index.tree import natural_key

__all__ = ["Paths", "file_labels", "find_files"]

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def find_files(paths: Paths) -> tuple[str, ...]:
    """Return absolute paths, in natural order, each once.

    Parameters
    ----------
    paths
        A path, a pattern as for `glob.glob` (``"data/**/*.h5"``), or several of either. A file
        whose name looks like a pattern is taken as that file.

    Raises
    ------
    MissingFileError
        A pattern fits no file, or there are no paths. Whether a plain path exists is found out
        when it is opened.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given:
        raise MissingFileError("there are no files: `path` is empty")
    found: dict[str, None] = {}
    for path in (os.fspath(item) for item in given):
        if not glob.has_magic(path) or os.path.exists(path):
            found[os.path.abspath(path)] = None
            continue
        fitting = [name for name in glob.glob(path, recursive=True) if not os.path.isdir(name)]
        if not fitting:
            raise MissingFileError(
                f"{path}: no file fits this pattern (the current folder is {os.getcwd()})",
                file=path,
            )
        found.update(dict.fromkeys(map(os.path.abspath, fitting)))
    return tuple(sorted(found, key=natural_key))


def file_labels(files: Sequence[str]) -> tuple[str, ...]:
    """Return a short name for each file, no two alike.

    It is the path below the folder that all share, without the suffix (``"site1/p001"``); a file
    name that all have in folders of their own is left out (``p001/data.h5`` is ``"p001"``).
    """
    if len(files) == 1:
        return (PurePath(files[0]).stem,)
    folder = os.path.commonpath([os.path.dirname(path) for path in files])
    parts = [PurePath(os.path.relpath(path, folder)).with_suffix("").parts for path in files]
    if len({part[-1] for part in parts}) == 1 and all(len(part) > 1 for part in parts):
        parts = [part[:-1] for part in parts]
    labels = tuple("/".join(part) for part in parts)
    if len(set(labels)) == len(labels):
        return labels
    # Names that differ in their suffix only.
    return tuple(PurePath(os.path.relpath(path, folder)).as_posix() for path in files)
