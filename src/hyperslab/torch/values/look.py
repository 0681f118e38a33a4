"""What only the values of a cohort tell: how to scale, which slices are empty, what is damaged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hyperslab.errors import DamagedFileError, SampleError
from hyperslab.torch.cohorts.cohort import Cohort, Skipped
from hyperslab.torch.cohorts.split import listed
from hyperslab.torch.samples.reader import CaseReader
from hyperslab.torch.scaling import Constants, Scaling
from hyperslab.torch.values.fact_store import FactStore
from hyperslab.torch.values.facts import DatasetFacts, nonempty_slices, survey

__all__ = ["look_at_values"]

Facts = dict[str, list[DatasetFacts]]  # by input, one a case


def look_at_values(
    reader: CaseReader,
    *,
    scaling: Mapping[str, Scaling],
    thresholds: Mapping[str, float],
    policy: Literal["raise", "skip"],
    folder: str | os.PathLike[str] | None,
    progress: bool,
) -> tuple[Cohort, dict[str, list[Constants]], NDArray[np.bool_] | None]:
    """Read every value that is needed, once, unless what it tells is stored.

    Parameters
    ----------
    reader
        Of the cohort.
    scaling
        By input.
    thresholds
        By input: slices without a value above it are left out.
    policy
        Whether damaged cases are an error or are left out.
    folder
        Of the stored facts.
    progress
        Show progress bars.

    Returns
    -------
    Cohort
        Without the cases that were left out.
    dict of list of Constants
        By input that is scaled, one a case.
    numpy.ndarray or None
        bool, per slice of all cases: whether it is kept. None where there are no thresholds.

    Raises
    ------
    DamagedFileError
        A dataset that is needed cannot be read.
    SampleError
        Nothing is left.
    """
    cohort = reader.cohort
    needed = {name for name, how in scaling.items() if how.needs_facts} | set(thresholds)
    if policy == "skip":
        needed |= set(cohort.inputs)
    found: Facts = {}
    store = FactStore(folder) if needed else None
    for name in (name for name in cohort.inputs if name in needed):
        found[name] = survey(
            [(reader.array(name, case), cohort.axis) for case in range(len(cohort.cases))],
            quantiles=scaling[name].quantiles if name in scaling else (),
            store=store,
            progress=progress,
        )
    cohort, found = _without_damaged(cohort, found, policy)
    n_cases = len(cohort.cases)
    constants = {
        name: [how.constants(found[name][i] if name in found else None) for i in range(n_cases)]
        for name, how in scaling.items()
    }
    if not thresholds:
        return cohort, constants, None
    kept: NDArray[np.bool_] = np.logical_and.reduce(
        [
            np.concatenate([nonempty_slices(facts, threshold=threshold) for facts in found[name]])
            for name, threshold in thresholds.items()
        ]
    )
    if not kept.any():
        raise SampleError(
            f"{cohort.where}: no slice is left: `nonempty` ({dict(thresholds)}) leaves out all of "
            "them. Choose lower thresholds.",
            file=cohort.files[0],
            inputs=tuple(thresholds),
        )
    return cohort, constants, kept


def _without_damaged(
    cohort: Cohort, found: Facts, policy: Literal["raise", "skip"]
) -> tuple[Cohort, Facts]:
    damaged: dict[int, str] = {}
    for some in found.values():
        for case, facts in enumerate(some):
            if facts.damage is not None:
                damaged.setdefault(case, facts.damage)
    if not damaged:
        return cohort, found
    skipped = tuple(
        Skipped(case=cohort.cases[case], file=cohort.files[cohort.file_of[case]], reason=why)
        for case, why in damaged.items()
    )
    told = listed(f"{one.case} ({one.reason})" for one in skipped)
    names = tuple(one.case for one in skipped)
    if policy == "raise":
        raise DamagedFileError(
            f"{cohort.where}: {len(damaged)} cases cannot be read: {told}. Repair them, leave them "
            'out (cases=...), or have that done: policy="skip".',
            file=skipped[0].file,
            cases=names,
        )
    left = [case for case in range(len(cohort.cases)) if case not in damaged]
    if not left:
        raise SampleError(
            f"{cohort.where}: every case is damaged: {told}", file=skipped[0].file, cases=names
        )
    kept = {name: [facts[case] for case in left] for name, facts in found.items()}
    return cohort.take(left, skipped), kept
