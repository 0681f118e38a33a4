"""`verify`: is a file whole, and if not, what of it is?"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hyperslab.engine.limits import limits, memory_at_hand
from hyperslab.errors import NotHDF5Error
from hyperslab.index.container import stale
from hyperslab.index.records import fingerprint
from hyperslab.index.session import check_signature
from hyperslab.index.superblock import stated_nbytes
from hyperslab.soundness.cases import find_cases
from hyperslab.soundness.decode import check_work
from hyperslab.soundness.examine import Examined, conclude, examine
from hyperslab.soundness.overlaps import find_overlaps
from hyperslab.soundness.process import LibraryProcess, Survey
from hyperslab.soundness.report import Problem, Report
from hyperslab.soundness.stored import plan_work, take_results

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["verify", "verify_with"]

_NONSENSE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def verify(
    path: str | os.PathLike[str],
    *,
    quick: bool = False,
    axis: int = -1,
    threads: int | None = None,
    timeout_s: float = 60.0,
    progress: bool = False,
) -> Report:
    """Check that an HDF5 file is whole, and say which parts of it are if it is not.

    Parameters
    ----------
    path
        Of the file. It is only read, and not locked.
    quick
        Decode nothing: only see that all is where the file says it is.
    axis
        The slice axis: ranges of slices in the report are along it. -1 for (H, W, slices).
    threads
        Most threads to decode with; by default the configured number.
    timeout_s
        How long the HDF5 library may take for one step without a word, seconds.
    progress
        Show progress bars on the terminal (on stderr).

    Returns
    -------
    Report
        `Report.sound` is the short answer. Whatever is wrong with the file is in the report, and
        is no error.

    Raises
    ------
    MissingFileError
        There is no such file, or it is a folder.
    NotHDF5Error
        It is a device or a pipe.
    StaleIndexError
        The file, or one that it refers to, changed meanwhile.

    Notes
    -----
    Checked are: the superblock, and whether the file is as long as that says; that every group,
    link, attribute and dataset can be opened; that every chunk and contiguous dataset lies inside
    its file, no two on the same bytes; that raw files and sources of virtual datasets are there;
    and, unless `quick`, that all stored bytes can be read, and every chunk decodes to its size,
    with its checksum if it has one. What has no checksum may be wrong and still decode. Datasets in
    other files that external links or virtual datasets lead to are checked too.

    Only a process of its own asks the HDF5 library, so a file that kills the library, or holds it
    up, costs that process and is reported. It takes half of the free memory at most, and no more
    than 8 GiB.

    Cost: every stored byte is read once and every chunk decoded once, outside of the HDF5 library,
    by all cores. What only the library decodes is read by its process, on one core. Memory: 28
    bytes a chunk of the file, and one stored and one decoded chunk a thread; nothing goes to the
    cache.

    Examples
    --------
    >>> import hyperslab as hs
    >>> from hyperslab.testing import make_cohort
    >>> _ = make_cohort("cohort.h5", n_cases=2, shape=(32, 32, 6))
    >>> report = hs.verify("cohort.h5")
    >>> report.sound, len(report.datasets), len(report.cases)
    (True, 6, 2)
    """
    with LibraryProcess(timeout_s=timeout_s) as library:
        return verify_with(
            library, path, quick=quick, axis=axis, threads=threads, progress=progress
        )


def verify_with(
    library: LibraryProcess,
    path: str | os.PathLike[str],
    *,
    quick: bool = False,
    axis: int = -1,
    threads: int | None = None,
    progress: bool = False,
) -> Report:
    """As `verify`, with a process that may serve for several files in turn."""
    path = os.path.abspath(os.fspath(path))
    try:
        base = check_signature(path)
    except NotHDF5Error as error:
        if not os.path.isfile(path):
            raise
        told = Problem(where="", reason=error.message.removeprefix(f"{path}: "))
        nbytes = os.path.getsize(path)
        return Report(
            file=path, nbytes=nbytes, expected_nbytes=None, quick=quick, axis=axis, problems=(told,)
        )
    print_ = fingerprint(path)
    with _bars(progress) as bars:
        survey = _ask(library, path, base, axis, quick, bars)
        some, problems = _examine(survey, axis)
        find_overlaps([mine for mine in some if mine is not None])
        if not quick:
            _decode([mine for mine in some if mine is not None], threads, bars)
    _check_sources(some, survey)
    if fingerprint(path) != print_:
        raise stale(path)
    datasets = tuple(conclude(mine) for mine in some if mine is not None)
    return Report(
        file=path,
        nbytes=print_.nbytes,
        expected_nbytes=stated_nbytes(path, base) or None,
        quick=quick,
        axis=axis,
        datasets=datasets,
        cases=find_cases(datasets, problems, file=path, axis=axis),
        problems=tuple(problems),
    )


def _ask(
    library: LibraryProcess, path: str, base: int, axis: int, quick: bool, bars: Progress | None
) -> Survey:
    heard: Callable[[str], None] = lambda where: None  # noqa: E731 - the other one is a closure
    if bars is not None:
        task = bars.add_task("listing objects", total=None)

        def heard(where: str) -> None:
            bars.update(task, description=f"looking at {where}")

    found = library.survey(path, base=base, axis=axis, elements=not quick, heard=heard)
    if bars is not None:
        bars.remove_task(task)
    return found


def _examine(survey: Survey, axis: int) -> tuple[list[Examined | None], list[Problem]]:
    """Return the datasets, None for one that makes no sense, which is among the problems."""
    problems = list(survey.problems)
    some: list[Examined | None] = []
    for found in survey.datasets:
        try:
            some.append(examine(found, axis=axis))
        except _NONSENSE as error:
            some.append(None)
            where = str(found.facts.get("name", ""))
            told = f"what the file says of it makes no sense: {error}"
            problems.append(Problem(where=where, reason=told))
    return some, problems


def _decode(some: list[Examined], threads: int | None, bars: Progress | None) -> None:
    most_nbytes = memory_at_hand() // 2 // (threads or limits.threads)
    for mine in some:
        plan_work(mine, most_nbytes=most_nbytes)
    works = [work for mine in some for work in mine.works]
    advance: Callable[[int], None] = lambda nbytes: None  # noqa: E731 - as above
    if bars is not None:
        task = bars.add_task("decoding", total=sum(int(work.nbytes.sum()) for work in works))

        def advance(nbytes: int) -> None:
            bars.advance(task, nbytes)

    check_work(works, threads=threads, advance=advance)
    for mine in some:
        take_results(mine)


def _check_sources(some: list[Examined | None], survey: Survey) -> None:
    """Note in every virtual dataset which of its sources are missing or damaged."""
    done: set[int] = set()

    def check(mine: Examined) -> None:
        if id(mine) in done:
            return
        done.add(id(mine))  # before its sources, which may lead back to it
        for file, name, slices in mine.sources:
            reason = ""
            source = survey.sources.get((file, name or ""))
            if not os.path.exists(file):
                reason = f"it needs {file}, which is not there"
            elif isinstance(source, str):
                reason = f"its source {name} in {file} cannot be had: {source}"
            elif source is not None:
                theirs = some[source] if 0 <= source < len(some) else None
                if theirs is not None:
                    check(theirs)
                if theirs is None or theirs.is_bad:
                    reason = f"its source {name} in {file} is damaged"
                elif theirs.unchecked:
                    mine.unchecked = f"of its source {name} in {file}: {theirs.unchecked}"
            if reason:
                mine.fail(reason, None if slices is None else (slices,))

    for mine in some:
        if mine is not None:
            check(mine)


@contextlib.contextmanager
def _bars(shown: bool) -> Iterator[Progress | None]:
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        yield bars
