"""`Cohort`: which cases some files have in all of their inputs, checked before anything is read."""

from __future__ import annotations

import operator
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.errors import HyperslabError, MissingObjectError, SampleError
from hyperslab.index.container import FileIndex
from hyperslab.index.records import Fingerprint
from hyperslab.index.tree import natural_key
from hyperslab.torch.cohorts.discover import FileCases, find_cases
from hyperslab.torch.cohorts.files import file_labels
from hyperslab.torch.cohorts.split import Cases, choose_cases, listed

__all__ = ["Cohort", "Skipped", "build_cohort", "input_templates"]

_RESERVED = ("case", "slice", "sample", "spacing")
_SPACING = ("spacing", "voxel_size", "element_size_um")


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A case that was left out.

    Attributes
    ----------
    case
        Its name; of a file that cannot be opened, the file's label.
    file
        Absolute path.
    reason
        Why, in a sentence.
    """

    case: str
    file: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cohort:
    """Cases that have one 3-D dataset, of one shape, in every input.

    Attributes
    ----------
    files
        Absolute paths.
    fingerprints
        Of the files, when this was found out.
    inputs
        Input name to the path of its datasets, in which ``{case}`` stands for the case's key; in a
        file that is one case, a path without it.
    axis
        The slice axis: 0, 1 or 2.
    cases
        Names, in natural order ("p2" before "p10").
    keys
        Per case: its name within its file.
    file_of
        int32, per case: the number of its file.
    shapes
        int64, (cases, 3): shape of each case's datasets as stored.
    dtypes
        Element types that occur.
    dtype_of
        int16, (inputs, cases): the number of the datasets' element type in `dtypes`.
    spacing
        float64, (cases, 3): distance of neighbouring elements along the stored axes. None where a
        case does not say.
    tolerant
        Whether files may be incomplete.
    skipped
        Cases that were left out.
    """

    files: tuple[str, ...]
    fingerprints: tuple[Fingerprint, ...]
    inputs: dict[str, str]
    axis: int
    cases: tuple[str, ...]
    keys: tuple[str, ...]
    file_of: NDArray[np.int32]
    shapes: NDArray[np.int64]
    dtypes: tuple[np.dtype, ...]
    dtype_of: NDArray[np.int16]
    spacing: NDArray[np.float64] | None
    tolerant: bool = False
    skipped: tuple[Skipped, ...] = ()

    def dataset(self, name: str, case: int) -> str:
        """Return the HDF5 path of case number `case` in input `name`."""
        return self.inputs[name].replace("{case}", self.keys[case])

    def dtype(self, name: str, case: int) -> np.dtype:
        """Return the stored element type, native, of case number `case` in input `name`."""
        return self.dtypes[int(self.dtype_of[list(self.inputs).index(name), case])]

    @property
    def where(self) -> str:
        """What messages call it: the file's path, or how many files there are."""
        return _where(self.files)

    def take(self, numbers: Sequence[int], skipped: tuple[Skipped, ...] = ()) -> Cohort:
        """Return the cohort of these cases alone, `skipped` added to those that were left out."""
        at = np.asarray(numbers, np.int64)
        return replace(
            self,
            cases=tuple(self.cases[i] for i in numbers),
            keys=tuple(self.keys[i] for i in numbers),
            file_of=self.file_of[at],
            shapes=self.shapes[at],
            dtype_of=self.dtype_of[:, at],
            spacing=None if self.spacing is None else self.spacing[at],
            skipped=self.skipped + skipped,
        )


def _where(files: Sequence[str]) -> str:
    return files[0] if len(files) == 1 else f"{len(files)} files ({files[0]}, ...)"


def input_templates(inputs: Mapping[str, str] | Sequence[str] | str) -> dict[str, str]:
    """Return input name to absolute HDF5 path, as given; raise where that makes no sense.

    Raises
    ------
    ValueError, TypeError
    """
    if isinstance(inputs, str):
        inputs = [inputs]
    if not isinstance(inputs, Mapping):
        names = list(inputs)
        inputs = {name: name for name in names}
        if len(inputs) < len(names):
            raise ValueError(f"inputs names a group twice: {names}. Give a dict to do that.")
    given: dict[Any, Any] = dict(inputs)
    for name, path in given.items():
        if not isinstance(name, str) or not isinstance(path, str):
            raise TypeError(f"inputs maps names to groups, both str, not {name!r} to {path!r}")
        if name in _RESERVED:
            raise ValueError(f"an input cannot be called {name!r}: a sample has that key already")
        if "{case}" in path and path.strip("/").split("/").count("{case}") != 1:
            raise ValueError(f"{path!r}: {{case}} stands for one whole name between slashes")
    if not given:
        raise ValueError("inputs is empty; name at least one group, e.g. inputs={'A': 'MR'}")
    return {name: "/" + path.strip("/") for name, path in given.items()}


def build_cohort(
    files: Sequence[str],
    *,
    inputs: Mapping[str, str],
    axis: int,
    cases: Cases,
    skip: bool = False,
) -> tuple[Cohort, list[FileIndex | None]]:
    """Find the cases of `inputs` in files, and check that they pair up.

    Parameters
    ----------
    files
        Absolute paths.
    inputs
        Input name to an absolute HDF5 path: a group with one dataset a case, a path with ``{case}``
        in it, or a dataset, where each file is one case.
    axis
        The slice axis, -3 to 2.
    cases
        Which to take; see `choose_cases`.
    skip
        Leave out cases (and files) that cannot be used, and say so in `Cohort.skipped`.

    Returns
    -------
    Cohort
    list of FileIndex
        One a file, in which the cases' datasets are indexed, without their chunk tables. None for a
        file that was left out.

    Raises
    ------
    SampleError
        An input's path is absent; there are no cases; a case is absent from an input; a dataset is
        not 3-D, is empty, or its shape differs from that in another input. Attributes: `file`,
        `cases` (names concerned, where there are any), `inputs` (names concerned).
    MissingFileError, NotHDF5Error
        A file cannot be opened.
    UnsupportedDtypeError, MissingSourceError, MissingObjectError
        A dataset that cannot be indexed.
    ValueError
        `axis` makes no sense.

    Notes
    -----
    Each file is opened once. A few tenths of a millisecond a dataset, nearly all of it in the HDF5
    library.
    """
    axis = operator.index(axis)
    if not -3 <= axis < 3:
        raise ValueError(f"axis is {axis}; the datasets are 3-D, so it may be -3 to 2")
    skipped: list[Skipped] = []
    containers: list[FileIndex | None] = []
    found: list[FileCases | None] = []
    labels = file_labels(files)
    for path, label in zip(files, labels, strict=True):
        try:
            container = FileIndex(path, incomplete=skip)
            with container.visit():  # so that the visits inside need not open the file again
                found.append(find_cases(container, inputs))
            containers.append(container)
        except HyperslabError as error:
            if not skip:
                raise
            skipped.append(Skipped(case=label, file=path, reason=str(error)))
            containers.append(None)
            found.append(None)
    templates = _one_kind(files, found)
    places, held = _name(files, labels, found)
    if not places and not skipped:
        _raise_no_cases(files, templates, "no dataset in " + listed(templates.values()))
    facts = {"file": files[0], "inputs": tuple(inputs)}
    chosen = choose_cases(places, cases, where=_where(files), **facts)
    if not chosen:
        reason = "`cases` is empty" if places else "every file was left out"
        _raise_no_cases(files, templates, reason)
    lacking = _lacking(chosen, held)
    if lacking and not skip:
        _raise_lacking(files, templates, lacking, len(chosen))
    for case in set[str]().union(*lacking.values()):
        names = [name for name, cases_ in lacking.items() if case in cases_]
        path = files[places[case][0]]
        skipped.append(Skipped(case=case, file=path, reason=f"it is not in input {listed(names)}"))
    chosen = [case for case in chosen if not any(case in some for some in lacking.values())]
    loaded = _load(containers, templates, [(c, *places[c]) for c in chosen], axis, skip, skipped)
    if not loaded:
        reasons = "; ".join(f"{s.case}: {s.reason}" for s in skipped[:3])
        _raise_no_cases(files, templates, f"all were left out ({reasons})")
    cohort = _cohort(files, containers, templates, axis % 3, loaded, skipped)
    skipped.sort(key=lambda one: natural_key(one.case))
    return replace(cohort, tolerant=skip, skipped=tuple(skipped)), containers


def _one_kind(files: Sequence[str], found: Sequence[FileCases | None]) -> dict[str, str]:
    """Return the inputs' templates, which have to be the same in all files."""
    first: FileCases | None = None
    for path, file in zip(files, found, strict=True):
        if file is None:
            continue
        first = first or file
        if file.templates != first.templates:
            raise SampleError(
                f"{path}: what is a group of cases in one file is a dataset in another: "
                f"{listed(file.templates.values())}, where {files[0]} has "
                f"{listed(first.templates.values())}. Take the two kinds of files apart.",
                file=path,
                inputs=tuple(file.templates),
            )
    return dict(first.templates) if first is not None else {}


def _name(
    files: Sequence[str], labels: Sequence[str], found: Sequence[FileCases | None]
) -> tuple[dict[str, tuple[int, str]], dict[str, set[str]]]:
    """Name every case; return its file's number and key by name, and per input the names there."""
    places: dict[str, tuple[int, str]] = {}
    held: dict[str, set[str]] = {}
    for number, file in enumerate(found):
        if file is None:
            continue
        for name, keys in file.keys.items():
            there = held.setdefault(name, set())
            for key in keys:
                if not key:
                    case = labels[number]
                else:
                    case = key if len(files) == 1 else f"{labels[number]}/{key}"
                places[case] = (number, key)
                there.add(case)
    return places, held


def _lacking(chosen: Iterable[str], held: Mapping[str, set[str]]) -> dict[str, list[str]]:
    lacks = {name: [case for case in chosen if case not in names] for name, names in held.items()}
    return {name: missing for name, missing in lacks.items() if missing}


def _raise_lacking(
    files: Sequence[str], templates: Mapping[str, str], lacks: Mapping[str, list[str]], n: int
) -> None:
    told = "; ".join(
        f"input {name!r} ({_group(templates[name])}) lacks {listed(missing)}"
        for name, missing in lacks.items()
    )
    concerned = sorted(set[str]().union(*lacks.values()), key=natural_key)
    raise SampleError(
        f"{_where(files)}: {len(concerned)} of {n} cases are not in every input: {told}. "
        "Complete them, or name the cases to take: cases=[...].",
        file=files[0],
        cases=tuple(concerned),
        inputs=tuple(lacks),
    )


def _raise_no_cases(files: Sequence[str], templates: Mapping[str, str], reason: str) -> None:
    raise SampleError(
        f"{_where(files)}: there are no cases: {reason}. An input is a group with one 3-D dataset "
        "for each case, directly in it; a path with {case} in it; or a dataset, where each file is "
        "one case.",
        file=files[0],
        cases=(),
        inputs=tuple(templates),
    )


def _group(template: str) -> str:
    """Return a template as it was given, where that was a group."""
    return template.removesuffix("/{case}") or "/"


def _load(
    containers: Sequence[FileIndex | None],
    templates: Mapping[str, str],
    chosen: Sequence[tuple[str, int, str]],
    axis: int,
    skip: bool,
    skipped: list[Skipped],
) -> list[tuple[str, int, str, NDArray[np.float64]]]:
    """Index the datasets of the chosen (case, file number, key); return those with their spacing.

    Raises where one cannot be used, or with `skip` adds it to `skipped`.
    """
    good: list[tuple[str, int, str, NDArray[np.float64]]] = []
    bad: dict[str, str] = {}
    by_file: dict[int, list[tuple[str, int, str]]] = {}
    for place in chosen:
        by_file.setdefault(place[1], []).append(place)
    for number, cases in by_file.items():
        container = containers[number]
        if container is None:
            continue
        with container.visit():
            if not skip:
                container.load(
                    [t.replace("{case}", k) for t in templates.values() for *_, k in cases]
                )
            for case, _, key in cases:
                paths = [template.replace("{case}", key) for template in templates.values()]
                try:
                    container.load(paths)
                    problem = _mismatch(container, dict(zip(templates, paths, strict=True)))
                    spacing = _spacing(container, paths[0], key)
                except HyperslabError as error:
                    if not skip:
                        raise
                    problem = str(error)
                if not problem:
                    good.append((case, number, key, spacing))
                elif skip:
                    skipped.append(Skipped(case=case, file=container.path, reason=problem))
                else:
                    bad[case] = problem
    if bad:
        paths = [c.path for c in containers if c is not None]
        raise SampleError(
            f"{_where(paths)}: a case needs 3-D datasets of one shape in every input, but "
            f"{len(bad)} of {len(chosen)} cases have others: "
            f"{listed(f'{case}: {told}' for case, told in bad.items())}. Correct them, or leave "
            "them out: cases=[...].",
            file=paths[0],
            cases=tuple(bad),
            inputs=tuple(templates),
        )
    order = {case: i for i, (case, *_) in enumerate(chosen)}
    return sorted(good, key=lambda entry: order[entry[0]])


def _mismatch(container: FileIndex, paths: Mapping[str, str]) -> str:
    """Say why the datasets of a case do not fit each other; "" where they do."""
    shapes = {name: container.dataset(path).shape for name, path in paths.items()}
    told = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    if any(len(shape) != 3 or 0 in shape for shape in shapes.values()):
        return f"{told} (not 3-D, or empty)"
    return f"{told} (they differ)" if len(set(shapes.values())) > 1 else ""


def _spacing(container: FileIndex, path: str, key: str) -> NDArray[np.float64]:
    """Return what the dataset, or else the case's group or the file, says of its spacing.

    An attribute "spacing", "voxel_size" or "element_size_um": three positive numbers, along the
    stored axes.
    """
    holders = [path]
    if key and posixpath.basename(posixpath.dirname(path)) == key:
        holders.append(posixpath.dirname(path))
    if not key:
        holders.append("/")
    for holder in holders:
        try:
            attributes = container.attributes(holder)
        except MissingObjectError:
            continue
        for name in _SPACING:
            value = attributes.get(name)
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
                continue
            if value.size == 3 and bool((np.isfinite(value) & (value > 0)).all()):
                return value.reshape(3).astype(np.float64)
    return np.full(3, np.nan)


def _cohort(
    files: Sequence[str],
    containers: Sequence[FileIndex | None],
    templates: dict[str, str],
    axis: int,
    loaded: Sequence[tuple[str, int, str, NDArray[np.float64]]],
    skipped: Sequence[Skipped],
) -> Cohort:
    dtypes: dict[np.dtype, int] = {}
    dtype_of = np.zeros((len(templates), len(loaded)), np.int16)
    shapes = []
    for i, (_, number, key, _) in enumerate(loaded):
        container = containers[number]
        if container is None:
            continue  # no case is loaded from a file that was left out
        for j, template in enumerate(templates.values()):
            index = container.dataset(template.replace("{case}", key))
            dtype_of[j, i] = dtypes.setdefault(index.dtype, len(dtypes))
        shapes.append(index.shape)
    none = Fingerprint(0, 0, -1, -1)
    spacing = np.array([spacing for *_, spacing in loaded])
    return Cohort(
        files=tuple(files),
        fingerprints=tuple(none if c is None else c.fingerprint for c in containers),
        inputs=templates,
        axis=axis,
        cases=tuple(case for case, *_ in loaded),
        keys=tuple(key for _, _, key, _ in loaded),
        file_of=np.array([number for _, number, _, _ in loaded], np.int32),
        shapes=np.array(shapes, np.int64),
        dtypes=tuple(dtypes),
        dtype_of=dtype_of,
        spacing=None if np.isnan(spacing).any() else spacing,
        skipped=tuple(skipped),
    )
