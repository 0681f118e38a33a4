"""`advise`: look at a file, measure a little, predict, and say what to do."""

from __future__ import annotations

import fnmatch
import os
import random
from collections.abc import Sequence

from hyperslab.access import Access, parse_access
from hyperslab.advice import probe
from hyperslab.advice.cost import h5py_cache_nbytes
from hyperslab.advice.disk import disk_rate
from hyperslab.advice.findings import file_system, find
from hyperslab.advice.kinds import Kind, as_stored, default_patterns, find_kinds
from hyperslab.advice.options import repack_options
from hyperslab.advice.patterns import Requests, advise_pattern
from hyperslab.advice.records import Advice, Finding, KindAdvice, Machine, PatternAdvice
from hyperslab.advice.sample import decode_rates, take_sample
from hyperslab.advice.words import verdict
from hyperslab.array import Array
from hyperslab.engine.limits import limits, memory_at_hand
from hyperslab.errors import (
    HyperslabError,
    MissingCodecError,
    MissingObjectError,
    SelectionError,
    StaleIndexError,
)
from hyperslab.file import open_file
from hyperslab.index.library import require_filters
from hyperslab.index.session import session
from hyperslab.index.tree import Entry, walk_file

__all__ = ["advise"]

_MOST_KINDS = 8  # that are measured
_MOST_PROBLEMS = 3  # that are listed


def advise(
    path: str | os.PathLike[str],
    *,
    access: str | Sequence[str] | None = None,
    datasets: str | None = None,
    measure: bool = True,
    seed: int = 0,
) -> Advice:
    """Say in numbers how fast a file can be read, and what would make it faster.

    Parameters
    ----------
    path
        Of the HDF5 file.
    access
        How it is going to be read, see `hyperslab.access.parse_access`; the first pattern that fits
        decides the verdict. Default: by the slice, by the patch, and whole, as suits the shapes.
    datasets
        Glob of the paths to look at, such as "/MR/*". Default: all that hold numbers along two
        axes or more, 64 KiB at the least, or all numbers where there are no such.
    measure
        Time requests as well as predicting them. What predictions are made from is measured in
        any case.
    seed
        Chooses the places that are looked at.

    Returns
    -------
    Advice

    Raises
    ------
    MissingFileError, NotHDF5Error
        As `hyperslab.open`.
    MissingObjectError
        No dataset matches.
    SelectionError
        No dataset has the axes that a pattern asks for, or the pattern makes no sense.
    DamagedFileError
        None of the places that were looked at can be read.

    Notes
    -----
    Takes a few seconds for each kind of datasets, whatever the size of the file, and reads some
    hundreds of MiB at most; what a repack brings is tried on a sample, in the folder for temporary
    files. Times are of this machine, as busy as it is, with what was read in the page cache. Our
    cache of decoded chunks is emptied. How predictions are made: docs/explanation/cost.md.
    """
    file = open_file(path)
    with session(file.path) as h5:
        entries = list(walk_file(h5))
    kinds = find_kinds(entries, only=datasets)
    if not kinds:
        raise MissingObjectError(
            f"{file.path}: no dataset of numbers"
            + (f" matches {datasets!r}" if datasets else "")
            + ". `hyperslab info` lists what there is.",
            file=file.path,
        )
    texts = [access] if isinstance(access, str) else list(access or [])
    dice = random.Random(seed)
    planned = _plan(kinds, texts)
    machine = _machine(file.path, dice)
    found: list[KindAdvice] = []
    left_out = _unreadable(entries, datasets)
    trouble: HyperslabError | None = None
    for kind, patterns in planned[:_MOST_KINDS]:
        try:
            found.append(
                _advise_kind(file.path, kind, patterns, machine, dice=dice, measure=measure)
            )
        except StaleIndexError:
            raise
        except HyperslabError as error:
            trouble = trouble or error
            left_out.append(f"{kind.example} cannot be read: {error}")
    if trouble is not None and not found:
        raise trouble
    if (n_more := len(planned) - _MOST_KINDS) > 0:
        left_out.append(
            f"{n_more} more kinds of datasets, smaller ones, were not looked at; `datasets` "
            "(--dataset) chooses."
        )
    said = verdict(file.path, found, machine, datasets=datasets)
    return Advice(
        file=file.path,
        nbytes=os.path.getsize(file.path),
        machine=machine,
        kinds=tuple(found),
        verdict=said.words,
        action=said.action,
        command=said.command,
        slow=said.slow,
        left_out=tuple(left_out),
    )


def _unreadable(entries: Sequence[Entry], datasets: str | None) -> list[str]:
    """Say what cannot be read at all, the first of it."""
    bad = [
        entry
        for entry in entries
        if entry.problem and (datasets is None or fnmatch.fnmatch(entry.path, datasets))
    ]
    found = [f"{entry.path} cannot be read: {entry.problem}" for entry in bad[:_MOST_PROBLEMS]]
    if len(bad) > _MOST_PROBLEMS:
        found.append(f"{len(bad) - _MOST_PROBLEMS} more cannot; `hyperslab info` lists them.")
    return found


def _plan(
    kinds: Sequence[Kind], texts: Sequence[str]
) -> list[tuple[Kind, list[tuple[Access, str, bool]]]]:
    """Return the patterns of each kind that has any: parsed, as given, and whether guessed."""
    planned = []
    trouble: SelectionError | None = None
    unused = set(texts)
    for kind in kinds:
        ndim = len(kind.shape)
        patterns: list[tuple[Access, str, bool]] = []
        for text in texts or default_patterns(kind.shape, kind.example):
            try:
                patterns.append((parse_access(as_stored(text, ndim), ndim), text, not texts))
                unused.discard(text)
            except SelectionError as error:  # for volumes, say, and this is a table
                trouble = trouble or error
        if patterns:
            planned.append((kind, patterns))
    if trouble is not None and (unused or not planned):
        raise trouble
    return planned


def _machine(path: str, dice: random.Random) -> Machine:
    rate, cold = disk_rate(path, dice=dice)
    version = probe.hdf5_version()
    return Machine(
        hdf5=".".join(map(str, version)),
        h5py_cache_nbytes=h5py_cache_nbytes(version),
        cache_nbytes=limits.cache_nbytes,
        threads=limits.threads,
        memory_nbytes=memory_at_hand(),
        disk_bytes_per_s=rate,
        disk_cold=cold,
        file_system=file_system(path),
    )


def _advise_kind(
    path: str,
    kind: Kind,
    patterns: Sequence[tuple[Access, str, bool]],
    machine: Machine,
    *,
    dice: random.Random,
    measure: bool,
) -> KindAdvice:
    array = open_file(path)[kind.example]
    if not isinstance(array, Array):
        raise TypeError(f"{kind.example} is no dataset")
    try:
        require_filters(array.index)
        by_h5py = True
    except MissingCodecError:
        by_h5py = False
    requests = Requests(path=path, array=array, kind=kind, machine=machine, by_h5py=by_h5py)
    rates = decode_rates(array, kind, dice)
    advice: list[PatternAdvice] = []
    kept: list[Access] = []
    trouble: OSError | None = None
    for pattern, text, guessed in patterns:
        try:
            advice.append(
                advise_pattern(requests, pattern, text, guessed, dice=dice, measure=measure)
            )
            kept.append(pattern)
        except StaleIndexError:
            raise
        except OSError as error:  # requests so large that each of them meets what is damaged
            trouble = error
    if trouble is not None and not advice:
        raise trouble
    main = kept[0]
    sample = take_sample(array, main)
    findings = find(kind, sample, system=machine.file_system, fill=array.fill_value)
    if sample is None or trouble is not None:
        findings.append(
            Finding(
                key="damaged",
                text="Some of it cannot be read: `hyperslab verify` says what.",
                costs=True,
            )
        )
    return KindAdvice(
        datasets=kind.paths,
        example=kind.example,
        shape=array.shape,
        dtype=kind.facts.dtype,
        storage=kind.facts.storage,
        chunks=kind.facts.chunks,
        filters=tuple(entry.name for entry in kind.facts.filters),
        stored_nbytes=kind.stored_nbytes,
        decoded_nbytes=kind.decoded_nbytes,
        patterns=tuple(advice),
        options=tuple(repack_options(kind, main, sample, rates, machine, dice=dice)),
        findings=tuple(findings),
        decode_bytes_per_s=rates,
    )
