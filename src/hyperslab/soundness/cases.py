"""Cases of a cohort: datasets that pair up by their names."""

from __future__ import annotations

from collections.abc import Sequence

from hyperslab.index.tree import natural_key
from hyperslab.soundness.report import CaseReport, DatasetReport, Problem, Slices
from hyperslab.soundness.slices import common

__all__ = ["find_cases"]

# What the inputs of a cohort are called.
_INPUTS = {"mr", "mri", "ct", "cbct", "pet", "us", "mask", "masks", "seg", "label", "labels"}


def find_cases(
    datasets: Sequence[DatasetReport], problems: Sequence[Problem], *, file: str, axis: int
) -> tuple[CaseReport, ...]:
    """Return the cases of a file that is a cohort; none for another one.

    Parameters
    ----------
    datasets, problems
        Of the file. What cannot be opened counts by its name.
    file
        Its absolute path.
    axis
        The slice axis.

    Returns
    -------
    tuple of CaseReport
        In natural order. A file is a cohort if it has 3-D datasets two levels deep, and at least
        two names on either level, most of which pair up: ``MR/p001`` and ``CT/p001``, or
        ``p001/MR`` and ``p001/CT``. The level on which there is a MR, a CT, a mask or the like is
        that of the inputs; if that does not tell, the level with fewer names.
    """
    found = {d.name: d for d in datasets if d.file == file and len(d.shape or ()) == 3}
    members: dict[tuple[str, str], DatasetReport | None] = {
        (first, second): dataset for name, dataset in found.items() for first, second in _two(name)
    }
    groups = {first for first, _ in members}
    others = {d.name for d in datasets}
    for problem in problems:
        for first, second in _two(problem.where):
            if first in groups and problem.where not in others:
                members.setdefault((first, second), None)
    seconds = {second for _, second in members}
    if len(groups) < 2 or len(seconds) < 2 or 2 * len(members) <= len(groups) * len(seconds):
        return ()
    known = _n_inputs(groups), _n_inputs(seconds)
    by_group = known[1] > known[0] or (known[0] == known[1] and len(groups) > len(seconds))
    cases = groups if by_group else seconds
    return tuple(
        _case(
            case,
            {f"/{a}/{b}": d for (a, b), d in members.items() if case == (a if by_group else b)},
            axis,
        )
        for case in sorted(cases, key=natural_key)
    )


def _n_inputs(names: set[str]) -> int:
    return sum(name.lower() in _INPUTS for name in names)


def _two(path: str) -> list[tuple[str, str]]:
    parts = path.strip("/").split("/")
    return [(parts[0], parts[1])] if len(parts) == 2 else []


def _case(name: str, datasets: dict[str, DatasetReport | None], axis: int) -> CaseReport:
    bad = tuple(path for path, d in datasets.items() if d is None or d.state == "damaged")
    slices: list[Slices] = []
    sizes: set[int] = set()
    for dataset in datasets.values():
        if dataset is not None and dataset.shape and dataset.intact_slices is not None:
            slices.append(dataset.intact_slices)
            sizes.add(dataset.shape[axis])
    known = len(slices) == len(datasets) and len(sizes) == 1
    return CaseReport(
        name=name,
        datasets=tuple(datasets),
        bad=bad,
        intact_slices=common(slices, sizes.pop()) if known else None,
    )
