"""`Cohort`: which cases a file has in all of its inputs, checked once, before anything is read."""

from __future__ import annotations

import difflib
import operator
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.errors import MissingObjectError, SampleError
from hyperslab.index.container import FileIndex
from hyperslab.index.records import Fingerprint
from hyperslab.index.tree import natural_key

__all__ = ["Cohort", "build_cohort"]

_MOST_NAMED = 8  # names that a message lists before it only counts
_RESERVED = ("case", "slice", "sample")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cohort:
    """Cases that have one 3-D dataset, of one shape, in every input.

    Attributes
    ----------
    path
        Absolute path of the file.
    fingerprint
        Of the file, when this was found out.
    inputs
        Input name to the group that holds its datasets, an absolute HDF5 path.
    axis
        The slice axis: 0, 1 or 2.
    cases
        Names, in natural order ("p2" before "p10").
    shapes
        int64, (cases, 3): shape of each case's datasets as stored.
    """

    path: str
    fingerprint: Fingerprint
    inputs: dict[str, str]
    axis: int
    cases: tuple[str, ...]
    shapes: NDArray[np.int64]

    def dataset(self, name: str, case: int) -> str:
        """Return the HDF5 path of case number `case` in input `name`."""
        return _path(self.inputs[name], self.cases[case])


def build_cohort(
    container: FileIndex,
    *,
    inputs: Mapping[str, str] | Sequence[str] | str,
    axis: int,
    cases: Iterable[str] | str | None,
) -> Cohort:
    """Find the cases of `inputs` in a file, and check that they pair up.

    Parameters
    ----------
    container
        Index of the file. The datasets of all cases are indexed in it, without their chunk tables.
    inputs
        Input name to group; or the groups alone, which are then the names too.
    axis
        The slice axis, -3 to 2.
    cases
        Names to take; None takes all that any input has.

    Returns
    -------
    Cohort

    Raises
    ------
    SampleError
        An input group is absent; there are no cases; a case is absent from an input; a dataset is
        not 3-D, is empty, or its shape differs from that in another input. Attributes: `file`,
        `cases` (names concerned, where there are any), `inputs` (names concerned).
    UnsupportedDtypeError, MissingSourceError, MissingObjectError
        A dataset that cannot be indexed.
    ValueError, TypeError
        `inputs` or `axis` make no sense.

    Notes
    -----
    Visits the file once for each input and once for all datasets: a few tenths of a millisecond a
    dataset, nearly all of it in the HDF5 library.
    """
    groups = _groups(inputs)
    axis = operator.index(axis)
    if not -3 <= axis < 3:
        raise ValueError(f"axis is {axis}; the datasets are 3-D, so it may be -3 to 2")
    held = {name: _members(container, name, group) for name, group in groups.items()}
    chosen = _choose(container, groups, held, cases)
    container.load([_path(group, case) for group in groups.values() for case in chosen])
    return Cohort(
        path=container.path,
        fingerprint=container.fingerprint,
        inputs=groups,
        axis=axis % 3,
        cases=tuple(chosen),
        shapes=_shapes(container, groups, chosen),
    )


def _path(group: str, case: str) -> str:
    return posixpath.join(group, case)


def _groups(inputs: Mapping[str, str] | Sequence[str] | str) -> dict[str, str]:
    if isinstance(inputs, str):
        inputs = [inputs]
    if not isinstance(inputs, Mapping):
        names = list(inputs)
        inputs = {name: name for name in names}
        if len(inputs) < len(names):
            raise ValueError(f"inputs names a group twice: {names}. Give a dict to do that.")
    given: dict[Any, Any] = dict(inputs)
    for name, group in given.items():
        if not isinstance(name, str) or not isinstance(group, str):
            raise TypeError(f"inputs maps names to groups, both str, not {name!r} to {group!r}")
        if name in _RESERVED:
            raise ValueError(f"an input cannot be called {name!r}: a sample has that key already")
    if not given:
        raise ValueError("inputs is empty; name at least one group, e.g. inputs={'A': 'MR'}")
    return {name: "/" + group.strip("/") for name, group in given.items()}


def _members(container: FileIndex, name: str, group: str) -> set[str]:
    """Return the names in `group` that are datasets, or links that may once have led to one."""
    try:
        members = container.members(group)
    except MissingObjectError as error:
        raise SampleError(
            f"{container.path}: there is no group {group} for input {name!r}. "
            f"{_what_is_there(container, group)} Name groups that hold one dataset per case, "
            "e.g. inputs={'A': 'MR', 'B': 'CT'}.",
            file=container.path,
            dataset=group,
            inputs=(name,),
        ) from error
    return {member for member, kind in members.items() if kind in ("dataset", "broken")}


def _what_is_there(container: FileIndex, group: str) -> str:
    """Say what lies at the deepest part of the path `group` that is there."""
    while True:
        group = posixpath.dirname(group)
        try:
            members = container.members(group)
        except MissingObjectError:
            continue  # ends at "/", which every file has
        if not members:
            return f"{group} is empty."
        return f"{group} holds {_listed(f'{m} ({k})' for m, k in members.items())}."


def _choose(
    container: FileIndex,
    groups: dict[str, str],
    held: dict[str, set[str]],
    cases: Iterable[str] | str | None,
) -> list[str]:
    path = container.path
    there = set[str]().union(*held.values())
    wanted = there if cases is None else _wanted(cases)
    unknown = sorted(wanted - there, key=natural_key)
    if unknown and there:
        close = difflib.get_close_matches(unknown[0], there, n=3)
        offered = (
            f"Close to the first: {_listed(close)}"
            if close
            else f"There are {_listed(sorted(there, key=natural_key))}"
        )
        raise SampleError(
            f"{path}: cases that no input has: {_listed(unknown)}. {offered}.",
            file=path,
            cases=tuple(unknown),
            inputs=tuple(groups),
        )
    if not there or not wanted:
        found = "`cases` is empty" if there else f"no dataset in {_listed(groups.values())}"
        raise SampleError(
            f"{path}: there are no cases: {found}. An input is a group with one 3-D dataset for "
            "each case, directly in it.",
            file=path,
            cases=(),
            inputs=tuple(groups),
        )
    lacks = {name: sorted(wanted - names, key=natural_key) for name, names in held.items()}
    lacks = {name: missing for name, missing in lacks.items() if missing}
    if lacks:
        told = "; ".join(
            f"input {name!r} ({groups[name]}) lacks {_listed(missing)}"
            for name, missing in lacks.items()
        )
        concerned = set[str]().union(*lacks.values())
        raise SampleError(
            f"{path}: {len(concerned)} of {len(wanted)} cases are not in every input: {told}. "
            "Complete them, or name the cases to take: cases=[...].",
            file=path,
            cases=tuple(sorted(concerned, key=natural_key)),
            inputs=tuple(lacks),
        )
    return sorted(wanted, key=natural_key)


def _wanted(cases: Iterable[str] | str) -> set[str]:
    names = [cases] if isinstance(cases, str) else list(cases)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"cases are named by str, not {type(name).__name__} ({name!r})")
    wanted = set(names)
    if len(wanted) < len(names):
        repeated = sorted({name for name in names if names.count(name) > 1}, key=natural_key)
        raise SampleError(f"cases names {_listed(repeated)} more than once", cases=tuple(repeated))
    return wanted


def _shapes(container: FileIndex, groups: dict[str, str], cases: list[str]) -> NDArray[np.int64]:
    """Return the shape of each case, or raise where its datasets do not fit each other."""
    found: list[tuple[int, ...]] = []
    bad: dict[str, str] = {}
    for case in cases:
        shapes = {
            name: container.dataset(_path(group, case)).shape for name, group in groups.items()
        }
        told = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        if any(len(shape) != 3 or 0 in shape for shape in shapes.values()):
            bad[case] = f"{told} (not 3-D, or empty)"
        elif len(set(shapes.values())) > 1:
            bad[case] = f"{told} (they differ)"
        else:
            found.append(next(iter(shapes.values())))
    if bad:
        raise SampleError(
            f"{container.path}: a case needs 3-D datasets of one shape in every input, but "
            f"{len(bad)} of {len(cases)} cases have others: "
            f"{_listed(f'{case}: {told}' for case, told in bad.items())}. Correct them, or leave "
            "them out: cases=[...].",
            file=container.path,
            cases=tuple(bad),
            inputs=tuple(groups),
        )
    return np.array(found, np.int64)


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = len(every) - _MOST_NAMED
    return ", ".join(every[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
