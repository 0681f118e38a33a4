"""A cohort's index, kept in a file, so that opening the cohort again asks the HDF5 library nothing.

The file holds what `build_cohort` found out and the chunk tables of all its datasets; see
`hyperslab.index.sidecar`. It is used only while every file has the size and the time of the last
write that it had.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hyperslab.errors import PerformanceWarning, StaleIndexError
from hyperslab.index.container import FileIndex
from hyperslab.index.folder import cache_folder
from hyperslab.index.records import Fingerprint
from hyperslab.index.sidecar import SavedIndex, load_index, save_index
from hyperslab.torch.cohorts.cohort import Cohort, Skipped, build_cohort
from hyperslab.torch.cohorts.split import Cases

__all__ = ["Keep", "open_cohort", "reopen"]

Keep = Literal["auto", "beside", False] | str | os.PathLike[str]

_WORTH_KEEPING = 500  # datasets
_SUFFIX = ".hyperslab-index"


def open_cohort(
    files: Sequence[str],
    *,
    inputs: Mapping[str, str],
    axis: int,
    cases: Cases,
    skip: bool,
    keep: Keep,
) -> tuple[Cohort, list[FileIndex | None], str | None]:
    """Return what `build_cohort` returns, from a kept index where there is a good one.

    Parameters
    ----------
    files, inputs, axis, cases, skip
        As for `build_cohort`.
    keep
        As `SliceDataset` says.

    Returns
    -------
    Cohort
    list of FileIndex
        One a file.
    str or None
        Path of the kept index, where there is one.

    Warns
    -----
    PerformanceWarning
        The index cannot be written where it was asked to be.
    """
    request = _request(files, inputs, axis, cases, skip)
    path = _path(files, request, keep)
    if path is not None and (saved := load_index(path)) is not None:
        cohort = _cohort_of(saved, request)
        if cohort is not None and saved.is_fresh():
            containers: list[FileIndex | None] = [None] * len(cohort.files)
            return cohort, containers, path
    cohort, containers = build_cohort(files, inputs=inputs, axis=axis, cases=cases, skip=skip)
    n_datasets = len(cohort.cases) * len(cohort.inputs)
    if path is None or (keep == "auto" and n_datasets < _WORTH_KEEPING):
        return cohort, containers, None
    return cohort, containers, _keep(path, cohort, containers, request, asked=keep != "auto")


def reopen(cohort: Cohort, number: int, saved: SavedIndex | None) -> FileIndex:
    """Return an index of file `number` of `cohort`, as a copy of a dataset needs it.

    Raises
    ------
    StaleIndexError
        The file has changed since the cohort was made of it.
    """
    path, made = cohort.files[number], cohort.fingerprints[number]
    container = FileIndex(
        path,
        saved=None if saved is None else saved.of_file(path),
        incomplete=cohort.tolerant,
    )
    found = container.fingerprint
    if (found.nbytes, found.mtime_ns) != (made.nbytes, made.mtime_ns):
        raise StaleIndexError(
            f"{path}: the file has changed since this dataset was made of it. Make a new "
            "SliceDataset.",
            file=path,
        )
    return container


def _request(
    files: Sequence[str], inputs: Mapping[str, str], axis: int, cases: Cases, skip: bool
) -> str:
    """Return what the cohort depends on, as text."""
    if cases is None:
        wanted = None
    else:
        given = [cases] if isinstance(cases, (str, re.Pattern)) else list(cases)
        wanted = sorted(
            f"re:{c.flags}:{c.pattern}" if isinstance(c, re.Pattern) else f"name:{c}" for c in given
        )
    return json.dumps([list(files), dict(inputs), axis, wanted, skip])


def _path(files: Sequence[str], request: str, keep: Keep) -> str | None:
    if keep is False:
        return None
    key = hashlib.blake2b(request.encode(), digest_size=12).hexdigest()
    if keep == "beside":
        folder = Path(os.path.commonpath([os.path.dirname(file) for file in files]))
        stem = Path(files[0]).name if len(files) == 1 else "cohort"
        return str(folder / f"{stem}.{key}{_SUFFIX}")
    try:
        folder = cache_folder("index") if keep == "auto" else Path(keep)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _warn(str(keep), error, asked=keep != "auto")
        return None
    return str(folder / f"{key}{_SUFFIX}")


def _keep(
    path: str, cohort: Cohort, containers: Sequence[FileIndex | None], request: str, *, asked: bool
) -> str | None:
    """Write the index of `cohort` to `path`; return the path, or None if that was not possible."""
    by_file: dict[int, list[str]] = {}
    for case, number in enumerate(cohort.file_of.tolist()):
        names = by_file.setdefault(number, [])
        names += [cohort.dataset(name, case) for name in cohort.inputs]
    used = [container for container in containers if container is not None]
    for number, names in by_file.items():
        container = containers[number]
        if container is not None:
            container.load(names, tables=True)
    facts: dict[str, Any] = {
        "request": request,
        "inputs": cohort.inputs,
        "axis": cohort.axis,
        "cases": "\0".join(cohort.cases),
        "keys": "\0".join(cohort.keys),
        "files": list(cohort.files),
        "dtypes": [dtype.str for dtype in cohort.dtypes],
        "tolerant": cohort.tolerant,
        "skipped": [[one.case, one.file, one.reason] for one in cohort.skipped],
        # Files that nothing is known of, since they were left out: looked at again if they change.
        "unknown": {
            path: _state(path)
            for path, container in zip(cohort.files, containers, strict=True)
            if container is None
        },
    }
    arrays: dict[str, NDArray[Any]] = {
        "file_of": cohort.file_of,
        "shapes": cohort.shapes,
        "dtype_of": cohort.dtype_of,
    }
    if cohort.spacing is not None:
        arrays["spacing"] = cohort.spacing
    try:
        save_index(path, used, facts=facts, arrays=arrays)
    except OSError as error:
        _warn(path, error, asked=asked)
        return None
    return path


def _state(path: str) -> tuple[int, int]:
    """Return size and time of the last write of a file; -1 where it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


def _warn(path: str, error: OSError, *, asked: bool) -> None:
    """Say that an index is not kept, to those who asked for it."""
    if asked:
        warnings.warn(
            f"{path}: the index cannot be kept there: {error}. It will be made again the next "
            "time.",
            PerformanceWarning,
            stacklevel=4,
        )


def _cohort_of(saved: SavedIndex, request: str) -> Cohort | None:
    """Return the cohort that a kept index is of; None if it is another one's."""
    facts, arrays = saved.facts, saved.arrays
    if facts.get("request") != request:
        return None
    known = dict(zip(saved.files, saved.fingerprints, strict=True))
    files = tuple(facts["files"])
    unknown = {file: tuple(state) for file, state in facts["unknown"].items()}
    for file in files:
        if file not in known and unknown.get(file) != _state(file):
            return None
    return Cohort(
        files=files,
        fingerprints=tuple(Fingerprint(0, 0, *known.get(file, (-1, -1))) for file in files),
        inputs=facts["inputs"],
        axis=facts["axis"],
        cases=tuple(facts["cases"].split("\0")),
        keys=tuple(facts["keys"].split("\0")),
        file_of=np.array(arrays["file_of"]),
        shapes=np.array(arrays["shapes"]),
        dtypes=tuple(np.dtype(dtype) for dtype in facts["dtypes"]),
        dtype_of=np.array(arrays["dtype_of"]),
        spacing=np.array(arrays["spacing"]) if "spacing" in arrays else None,
        tolerant=facts["tolerant"],
        skipped=tuple(Skipped(case=c, file=f, reason=r) for c, f, r in facts["skipped"]),
    )
