"""What was found out about a file: records that say which parts of it are whole."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = [
    "CaseReport",
    "Damage",
    "DatasetReport",
    "Problem",
    "Report",
    "Slices",
    "State",
    "as_dict",
]

State = Literal["intact", "damaged", "unchecked"]

# Ranges of indices, each from its first index up to and without its second; ascending.
Slices = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One part of a dataset that cannot be had.

    Attributes
    ----------
    reason
        What is wrong, in a clause.
    chunk
        Chunk coordinate; None where the dataset is not chunked, or more than a chunk is concerned.
    byte_offset, nbytes
        Where the stored bytes lie in the dataset's file, and how many; None where that is not
        known.
    """

    reason: str
    chunk: tuple[int, ...] | None = None
    byte_offset: int | None = None
    nbytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReport:
    """One dataset.

    Attributes
    ----------
    name
        Path by which it was found. For a source of a virtual dataset, its path in `file`.
    file
        Absolute path of the file that holds it: behind a link or as a source, another one.
    shape
        Extent along each axis; None for a null dataset.
    dtype
        Element type: a NumPy name, or "string", "compound", ...
    storage
        "chunked", "contiguous", "external", "compact", "virtual" or "null".
    chunks
        Chunk shape; None if not chunked.
    n_chunks
        Chunks that the file holds; 0 if not chunked.
    n_bad
        How many parts are damaged: chunks, or pieces where there are no chunks.
    damage
        The first 1000 of them, in the order of the grid.
    intact_slices
        Ranges of indices along the slice axis that no damage touches. None if the dataset has no
        such axis.
    unchecked
        Why its elements could not be checked; "" if they were.
    """

    name: str
    file: str
    shape: tuple[int, ...] | None
    dtype: str
    storage: str
    chunks: tuple[int, ...] | None = None
    n_chunks: int = 0
    n_bad: int = 0
    damage: tuple[Damage, ...] = ()
    intact_slices: Slices | None = None
    unchecked: str = ""

    @property
    def state(self) -> State:
        """Return "damaged", "unchecked" (not known to be damaged), or "intact"."""
        if self.n_bad:
            return "damaged"
        return "unchecked" if self.unchecked else "intact"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseReport:
    """One case of a cohort: the datasets of one name in its groups.

    Attributes
    ----------
    name
        Of the case.
    datasets
        Paths of its datasets.
    bad
        Those of them that are not intact, or cannot even be opened.
    intact_slices
        Slices that are intact in all of them; None where their numbers of slices differ or are not
        known.
    """

    name: str
    datasets: tuple[str, ...]
    bad: tuple[str, ...]
    intact_slices: Slices | None

    @property
    def intact(self) -> bool:
        """True if none of its datasets is damaged."""
        return not self.bad


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something wrong that is not the elements of a dataset.

    Attributes
    ----------
    where
        Path of the object or link; "" for the file as a whole.
    reason
        What is wrong.
    """

    where: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A file, verified.

    Attributes
    ----------
    file
        Absolute path.
    nbytes
        Its size.
    expected_nbytes
        The size that its superblock states; None where that is not known.
    quick
        True if no chunk was decoded.
    axis
        The slice axis that ranges of slices are along, as it was given.
    datasets
        In the order in which they were found.
    cases
        Of a cohort, in natural order; empty for other files.
    problems
        What else is wrong.
    """

    file: str
    nbytes: int
    expected_nbytes: int | None
    quick: bool
    axis: int
    datasets: tuple[DatasetReport, ...] = ()
    cases: tuple[CaseReport, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def truncated(self) -> bool:
        """True if the end of the file is missing."""
        return self.expected_nbytes is not None and self.nbytes < self.expected_nbytes

    @property
    def percent_present(self) -> float | None:
        """Return how much of the file is there, percent of its bytes; None if that is not known."""
        if not self.expected_nbytes:
            return None
        return 100.0 * min(1.0, self.nbytes / self.expected_nbytes)

    @property
    def state(self) -> State:
        """Return "damaged", "unchecked" (no damage found, but not all could be checked), "intact".

        A link or a source that leads nowhere counts as damage.
        """
        states = {dataset.state for dataset in self.datasets}
        if self.truncated or self.problems or "damaged" in states:
            return "damaged"
        return "unchecked" if "unchecked" in states else "intact"

    @property
    def sound(self) -> bool:
        """True if all was checked and nothing is wrong."""
        return self.state == "intact"


def as_dict(report: Report) -> dict[str, Any]:
    """Return a report as JSON can hold it, with what follows from its facts."""
    found = asdict(report)
    for told, dataset in zip(found["datasets"], report.datasets, strict=True):
        told["state"] = dataset.state
    for told, case in zip(found["cases"], report.cases, strict=True):
        told["intact"] = case.intact
    summary = {
        "sound": report.sound,
        "state": report.state,
        "truncated": report.truncated,
        "percent_present": report.percent_present,
    }
    return summary | found
