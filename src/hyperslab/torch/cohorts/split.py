"""Which cases: named, by pattern, or split into training and validation, whole patients only."""

from __future__ import annotations

import difflib
import fnmatch
import glob
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hyperslab.errors import SampleError
from hyperslab.index.tree import natural_key

__all__ = ["Cases", "choose_cases", "k_folds", "listed", "split_cases"]

Cases = str | re.Pattern[str] | Iterable[str | re.Pattern[str]] | None
Patient = Callable[[str], str] | str | None

_MOST_NAMED = 8  # names that a message lists before it only counts


def listed(names: Iterable[str]) -> str:
    """Return the first few names, and how many more there are."""
    every = list(names)
    more = len(every) - _MOST_NAMED
    return ", ".join(every[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def choose_cases(there: Iterable[str], cases: Cases, *, where: str, **facts: Any) -> list[str]:
    """Return the cases of `there` that are wanted, in natural order.

    Parameters
    ----------
    there
        Names.
    cases
        Names, shell patterns ("1PA*") or compiled regular expressions (which have to match the
        whole name); None takes all.
    where
        What messages call the training set.
    **facts
        Attributes of the errors.

    Raises
    ------
    SampleError
        A name is not there or is given twice, or a pattern fits nothing. Attribute `cases`.
    """
    names = set(there)
    if cases is None:
        return sorted(names, key=natural_key)
    given = [cases] if isinstance(cases, (str, re.Pattern)) else list(cases)
    chosen: set[str] = set()
    plain: list[str] = []
    for item in given:
        if isinstance(item, re.Pattern):
            found = {name for name in names if item.fullmatch(name)}
            what = f"the expression {item.pattern!r}"
        elif not isinstance(item, str):
            raise TypeError(f"cases are named by str, not {type(item).__name__} ({item!r})")
        elif item in names or not glob.has_magic(item):
            plain.append(item)
            continue
        else:
            found = {name for name in names if fnmatch.fnmatchcase(name, item)}
            what = f"the pattern {item!r}"
        if not found:
            raise SampleError(
                f"{where}: {what} fits no case. There are "
                f"{listed(sorted(names, key=natural_key))}.",
                cases=(),
                **facts,
            )
        chosen |= found
    _check_names(plain, names, where, facts)
    return sorted(chosen.union(plain), key=natural_key)


def _check_names(plain: list[str], there: set[str], where: str, facts: dict[str, Any]) -> None:
    repeated = sorted({name for name in plain if plain.count(name) > 1}, key=natural_key)
    if repeated:
        raise SampleError(f"cases names {listed(repeated)} more than once", cases=tuple(repeated))
    unknown = sorted(set(plain) - there, key=natural_key)
    if unknown and there:
        close = difflib.get_close_matches(unknown[0], there, n=3)
        offered = (
            f"Close to the first: {listed(close)}"
            if close
            else f"There are {listed(sorted(there, key=natural_key))}"
        )
        raise SampleError(
            f"{where}: cases that no input has: {listed(unknown)}. {offered}.",
            cases=tuple(unknown),
            **facts,
        )


def split_cases(
    cases: Sequence[str],
    fractions: Sequence[float] | float,
    *,
    seed: int = 0,
    patient: Patient = None,
) -> list[list[str]]:
    """Split cases at random into parts, such that no patient is in two of them.

    Parameters
    ----------
    cases
        Names, such as ``ds.cases``.
    fractions
        Share of the patients for each part, summing to 1; or that of the first of two parts.
        Every part gets one patient at least.
    seed
        With a patient's name, all that its place in the shuffled order depends on: the split is the
        same in every process, whatever the order of `cases`.
    patient
        Where one patient has several cases: a function from case to patient, or a regular
        expression whose first group is the patient ("(P[0-9]+)_"). By default a case is a patient.

    Returns
    -------
    list of list of str
        The cases of each part, in natural order.

    Raises
    ------
    ValueError
        The fractions make no sense, or there are fewer patients than parts.
    SampleError
        The expression does not match a case.

    Examples
    --------
    >>> train, val = split_cases([f"p{i}" for i in range(10)], 0.8, seed=1)
    >>> len(train), len(val), set(train) & set(val)
    (8, 2, set())
    """
    shares = [fractions, 1 - fractions] if isinstance(fractions, (int, float)) else list(fractions)
    if not shares or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"fractions are positive and sum to 1, not {fractions}")
    groups = _patients(cases, patient)
    order = _shuffled(groups, seed)
    n = len(order)
    if n < len(shares):
        raise ValueError(f"{n} patients do not make {len(shares)} parts")
    edges = [0]
    for i in range(1, len(shares)):
        edge = round(n * sum(shares[:i]))
        edges.append(min(max(edge, edges[-1] + 1), n - (len(shares) - i)))
    edges.append(n)
    return [
        sorted((c for p in order[a:b] for c in groups[p]), key=natural_key)
        for a, b in itertools.pairwise(edges)
    ]


def k_folds(
    cases: Sequence[str], k: int, *, seed: int = 0, patient: Patient = None
) -> list[tuple[list[str], list[str]]]:
    """Return `k` pairs (training, validation) of cases: each case is validated on once.

    As `split_cases` otherwise: patients stay whole, and the folds differ by one patient at most.

    Examples
    --------
    >>> folds = k_folds([f"p{i}" for i in range(5)], 5)
    >>> sorted(val[0] for _, val in folds)
    ['p0', 'p1', 'p2', 'p3', 'p4']
    """
    groups = _patients(cases, patient)
    order = _shuffled(groups, seed)
    if not 2 <= k <= len(order):
        raise ValueError(f"k is {k}; with {len(order)} patients it may be 2 to {len(order)}")
    parts = [[case for p in order[i::k] for case in groups[p]] for i in range(k)]
    return [
        (
            sorted((c for j, part in enumerate(parts) if j != i for c in part), key=natural_key),
            sorted(parts[i], key=natural_key),
        )
        for i in range(k)
    ]


def _patients(cases: Sequence[str], patient: Patient) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for case in cases:
        if patient is None:
            name = case
        elif callable(patient):
            name = patient(case)
        else:
            found = re.search(patient, case)
            if found is None or not found.groups():
                raise SampleError(
                    f"the expression {patient!r} finds no patient in the case {case!r}; its first "
                    "group has to be the patient",
                    cases=(case,),
                )
            name = found.group(1)
        groups.setdefault(name, []).append(case)
    return groups


def _shuffled(groups: dict[str, list[str]], seed: int) -> list[str]:
    """Order patients by a hash of seed and name: adding one leaves the others in their order."""

    def place(name: str) -> bytes:
        return hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest()

    return sorted(groups, key=place)
