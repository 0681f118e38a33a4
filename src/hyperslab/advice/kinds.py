"""Datasets that are stored alike: what is true of one of them is true of all."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hyperslab.index.tree import DatasetFacts, Entry

__all__ = ["Kind", "default_patterns", "find_kinds"]

_LEAST_NBYTES = 64 << 10  # smaller ones are read in no time, however they are stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Datasets that are stored alike.

    Attributes
    ----------
    paths
        Of all of them.
    example
        Path of the largest.
    facts
        Of that one.
    stored_nbytes, decoded_nbytes
        Of all together.
    """

    paths: tuple[str, ...]
    example: str
    facts: DatasetFacts
    stored_nbytes: int
    decoded_nbytes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the example."""
        return self.facts.shape or ()

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        size = math.prod(self.shape)
        return (self.facts.decoded_nbytes or 0) // size if size else 1


def find_kinds(entries: Sequence[Entry], *, only: str | None = None) -> list[Kind]:
    """Group the file's datasets of numbers, largest kind first.

    Parameters
    ----------
    entries
        Of the whole file.
    only
        Glob that paths must match. Without it, datasets below 64 KiB or with fewer than two axes
        are passed over.
    """
    found: dict[tuple[object, ...], list[Entry]] = {}
    for entry in entries:
        facts = entry.facts
        if facts is None or entry.repeats or entry.problem or not facts.numeric or not facts.shape:
            continue
        if only is not None:
            if not fnmatch.fnmatch(entry.path, only):
                continue
        elif len(facts.shape) < 2 or (facts.decoded_nbytes or 0) < _LEAST_NBYTES:
            continue
        codes = tuple(f.code for f in facts.filters)
        # MR and CT are kinds of their own, cases and time points are not.
        top = re.sub("[0-9]+", "#", entry.path.rsplit("/", 1)[0])
        key = (top, facts.dtype, len(facts.shape), facts.storage, codes)
        found.setdefault(key, []).append(entry)
    kinds = [_kind(alike) for alike in found.values()]
    return sorted(kinds, key=lambda kind: -kind.decoded_nbytes)


def _kind(alike: list[Entry]) -> Kind:
    def nbytes(entry: Entry) -> int:
        return (entry.facts.decoded_nbytes or 0) if entry.facts is not None else 0

    # The largest: of an image's levels, the one that takes the time.
    example = max(alike, key=nbytes)
    if example.facts is None:
        raise TypeError(f"{example.path} is no dataset")
    return Kind(
        paths=tuple(entry.path for entry in alike),
        example=example.path,
        facts=example.facts,
        stored_nbytes=sum(e.facts.stored_nbytes for e in alike if e.facts is not None),
        decoded_nbytes=sum(map(nbytes, alike)),
    )


def default_patterns(shape: tuple[int, ...]) -> list[str]:
    """Return how a dataset is likely to be read: by the slice, by the patch, as a whole.

    The slice axis of a volume is the one whose extent differs from the two others', the shortest if
    all differ, the first if none does. With other numbers of axes, planes are the last two.

    Examples
    --------
    >>> default_patterns((256, 256, 60))[0], default_patterns((48, 1024, 1024))[0]
    ('[:, :, k]', '[k, :, :]')
    """
    if len(shape) == 3:
        a, b, c = shape
        if a == b != c:
            axis = 2
        elif b == c != a:
            axis = 0
        else:
            axis = min(range(3), key=shape.__getitem__)
        slices = ", ".join("k" if i == axis else ":" for i in range(3))
        return [f"[{slices}]", "patch 96x96x96", "whole"]
    if len(shape) == 2:
        return ["tile 512x512", "whole"]
    if len(shape) < 2:
        return ["whole"]
    letters = {4: "tz", 5: "tcz"}.get(len(shape), "k" * (len(shape) - 2))
    return ["[" + ", ".join([*letters, ":", ":"]) + "]", "whole"]
