"""`FactStore`: facts about datasets, kept on disk for as long as their files stay the same."""

from __future__ import annotations

import binascii
import hashlib
import json
import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from hyperslab.array import Array
from hyperslab.errors import MissingObjectError, PerformanceWarning
from hyperslab.index.container import FileIndex
from hyperslab.index.folder import cache_folder
from hyperslab.index.records import Contiguous, DatasetIndex, Fingerprint, Virtual
from hyperslab.torch.values.facts import DatasetFacts

__all__ = ["FactStore"]

_FORMAT = 1
_LOCK_S = 60.0  # for which another process may be writing
# What an entry raises that we did not write: it is as good as absent.
_MAKES_NO_SENSE = (AttributeError, KeyError, OverflowError, TypeError, ValueError)
_Key = tuple[str, int, int]  # real path of the file, its size, time of its last write


@dataclass(slots=True)
class _Document:
    """One HDF5 file's entries, in the form in which JSON has them, and those not yet on disk."""

    entries: dict[str, Any]
    fresh: dict[str, Any] = field(default_factory=dict)


class FactStore:
    """What `survey` found out, in one JSON file for each HDF5 file.

    An entry belongs to a dataset and a slice axis, and holds only for a file of the size and time
    of the last write (nanoseconds) that it was found in; where the values come from other files
    (virtual datasets, external storage), for those too. Whatever cannot be read or makes no sense
    counts as not known.

    Damage is not kept: a file that is restored from a copy may well have its old size and time.

    Several processes may use one folder: what is written is joined with what is there, under a
    lock, and replaces it in one step. One object is for one thread.

    Parameters
    ----------
    folder
        Made if need be. By default "facts" in the user's cache folder, which the environment
        variable HYPERSLAB_CACHE_DIR moves. All of it may be deleted at any time.

    Warns
    -----
    PerformanceWarning
        Once: the folder cannot be written, so that facts are not kept.

    Notes
    -----
    A file's entries are read in one go, when the first of them is asked for. An entry takes about
    300 bytes and 11 to 22 for each slice.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._real: dict[str, str] = {}
        self._documents: dict[_Key, _Document] = {}
        self._folder: Path | None = None
        try:
            self._folder = cache_folder("facts") if folder is None else Path(folder)
        except OSError as error:
            self._give_up(error)

    def get(self, array: Array, axis: int) -> DatasetFacts | None:
        """Return what is known of `array` with slices along `axis`, or None."""
        index = array.index
        axis %= array.ndim
        found = self._document(index).entries.get(_entry_name(index, axis))
        if found is None:
            return None
        try:
            facts, others = _unpack(found)
        except _MAKES_NO_SENSE:
            return None
        n_slices = (index.shape[axis],)
        if facts.low is None or facts.low.shape != n_slices:
            return None
        if facts.high is None or facts.high.shape != n_slices:
            return None
        return facts if others == _others(array) else None

    def put(self, array: Array, axis: int, facts: DatasetFacts) -> None:
        """Take in what was found out; `flush` writes it. Damage is passed over."""
        if facts.damage is not None or (others := _others(array)) is None:
            return
        document = self._document(array.index)
        name = _entry_name(array.index, axis % array.ndim)
        document.entries[name] = document.fresh[name] = _pack(facts, others)

    def flush(self) -> None:
        """Write what is new; costs about what reading those files' entries costs."""
        todo = {key: document for key, document in self._documents.items() if document.fresh}
        if self._folder is None or not todo:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # One lock for all: a file of its own for each would stay behind.
            with FileLock(self._folder / "facts.lock", timeout=_LOCK_S):
                for key, document in todo.items():
                    path = self._path(self._folder, key)
                    document.entries = _merged(_load(path, key), document.fresh)
                    _save(path, key, document.entries)
                    document.fresh = {}
        except (OSError, NotImplementedError) as error:  # the latter: no locks on this system
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        place = f"in {self._folder}" if self._folder is not None else "in the user's cache folder"
        self._folder = None
        warnings.warn(
            f"What was found out about the datasets cannot be kept {place} ({error}), so every run "
            "reads them anew. Name a folder that can be written: HYPERSLAB_CACHE_DIR in the "
            "environment.",
            PerformanceWarning,
            stacklevel=3,
        )

    def _document(self, index: DatasetIndex) -> _Document:
        real = self._real.get(index.file)
        if real is None:
            real = self._real[index.file] = os.path.realpath(index.file)
        key = (real, index.fingerprint.nbytes, index.fingerprint.mtime_ns)
        document = self._documents.get(key)
        if document is None:
            entries = {} if self._folder is None else _load(self._path(self._folder, key), key)
            document = self._documents[key] = _Document(entries)
        return document

    @staticmethod
    def _path(folder: Path, key: _Key) -> Path:
        digest = hashlib.sha256(os.fsencode(os.path.normcase(key[0]))).hexdigest()
        return folder / f"{digest[:32]}.json"


def _entry_name(index: DatasetIndex, axis: int) -> str:
    return f"{axis}:{index.name}"


def _others(array: Array) -> str | None:
    """Return a digest of the other files that the values come from.

    It is "" where they all lie in the dataset's own file, and None where one of the others is not
    there.
    """
    index = array.index
    if not isinstance(index.storage, Virtual | Contiguous):
        return ""
    files: dict[str, Fingerprint] = {}
    try:
        _collect(array._container, index, files, set())
    except (OSError, MissingObjectError):
        return None
    if not files:
        return ""
    told = [(path, print_.nbytes, print_.mtime_ns) for path, print_ in sorted(files.items())]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


def _collect(
    container: FileIndex,
    index: DatasetIndex,
    files: dict[str, Fingerprint],
    seen: set[tuple[str, str]],
) -> None:
    """Add to `files` what the values of a dataset come from, besides the file that has it."""
    if isinstance(index.storage, Contiguous):
        for segment in index.storage.segments:
            if segment.file != index.file:
                files[segment.file] = container.fingerprint_of(segment.file, index)
    elif isinstance(index.storage, Virtual):
        for mapping in index.storage.mappings:
            if (mapping.file, mapping.dataset) in seen:
                continue
            seen.add((mapping.file, mapping.dataset))
            source = container.source(mapping.file, index)
            if mapping.file != index.file:
                files[mapping.file] = source.fingerprint
            _collect(source, source.dataset(mapping.dataset), files, seen)


def _pack(facts: DatasetFacts, others: str) -> dict[str, Any]:
    """Return facts as JSON has them. Python writes floats so that they read back to the bit."""
    packed: dict[str, Any] = {
        "low": _pack_column(facts.low),
        "high": _pack_column(facts.high),
        "mean": facts.mean,
        "std": facts.std,
        "quantiles": _pack_quantiles(facts),
    }
    if others:
        packed["others"] = others
    return packed


def _pack_quantiles(facts: DatasetFacts) -> dict[str, float]:
    return {repr(q): value for q, value in facts.quantiles.items()}


def _unpack(entry: Any) -> tuple[DatasetFacts, str]:
    """Return the facts of an entry, and the digest of its other files."""
    facts = DatasetFacts(
        low=_unpack_column(entry["low"]),
        high=_unpack_column(entry["high"]),
        mean=float(entry["mean"]),
        std=float(entry["std"]),
        quantiles={float(q): float(value) for q, value in entry["quantiles"].items()},
    )
    return facts, entry.get("others", "")


def _pack_column(column: NDArray[np.float64] | None) -> str:
    """Return a column as text: its bytes, little-endian, as float32 where that is exact."""
    if column is None:
        raise ValueError("facts without damage have extremes for every slice")
    with np.errstate(over="ignore"):
        short = column.astype("<f4")
    exact = np.array_equal(short, column, equal_nan=True)
    data = short if exact else column.astype("<f8")
    return f"{data.dtype.str}:{binascii.b2a_base64(data.tobytes(), newline=False).decode()}"


def _unpack_column(text: str) -> NDArray[np.float64]:
    dtype, _, data = text.partition(":")
    if dtype not in ("<f4", "<f8"):
        raise ValueError(f"a column of {dtype!r}")
    return np.frombuffer(binascii.a2b_base64(data), dtype).astype(np.float64)


def _load(path: Path, key: _Key) -> dict[str, Any]:
    """Return the entries in `path`, if it is about the file that `key` describes."""
    try:
        found = json.loads(path.read_bytes())
        about = (found["file"], *found["guard"])
        entries = found["datasets"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}  # absent, or nothing that we wrote: as good as absent
    if found.get("format") != _FORMAT or about != key or not isinstance(entries, dict):
        return {}
    return entries


def _merged(there: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of both; of an entry in both, the fresh one with the quantiles of both."""
    merged = there | fresh
    for name in there.keys() & fresh.keys():
        try:
            old, others = _unpack(there[name])
        except _MAKES_NO_SENSE:
            continue
        new = fresh[name]
        if others == new.get("others", ""):
            merged[name] = {**new, "quantiles": _pack_quantiles(old) | new["quantiles"]}
    return merged


def _save(path: Path, key: _Key, entries: dict[str, Any]) -> None:
    document = {"format": _FORMAT, "file": key[0], "guard": key[1:], "datasets": entries}
    part = path.with_suffix(".part")  # only who has the lock writes it
    part.write_text(json.dumps(document, separators=(",", ":")), encoding="ascii")
    os.replace(part, path)
