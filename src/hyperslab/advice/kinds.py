"""Datasets that are stored alike: what is true of one of them is true of all."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hyperslab.index.tree import DatasetFacts, Entry

__all__ = ["Kind", "as_stored", "default_patterns", "find_kinds"]

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
    allocated
        Share of their chunks that the file holds, 0 to 1; 1 where there are no chunks.
    """

    paths: tuple[str, ...]
    example: str
    facts: DatasetFacts
    stored_nbytes: int
    decoded_nbytes: int
    allocated: float = 1.0

    @property
    def ratio(self) -> float:
        """Decoded by stored bytes, of what the file holds."""
        return (
            self.decoded_nbytes * self.allocated / self.stored_nbytes if self.stored_nbytes else 1.0
        )

    @property
    def is_repackable(self) -> bool:
        """Whether `repack` writes it anew by itself; small or foreign data are copied."""
        facts = self.facts
        return (
            len(self.shape) >= 2
            and (facts.decoded_nbytes or 0) >= _LEAST_NBYTES
            and facts.storage not in ("virtual", "external")
            and facts.native
        )

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
        are passed over, unless there are no others.
    """
    return (
        _group(entries, only, least_nbytes=_LEAST_NBYTES, least_ndim=2) if only is None else []
    ) or _group(entries, only, least_nbytes=1, least_ndim=1)


def _group(
    entries: Sequence[Entry], only: str | None, *, least_nbytes: int, least_ndim: int
) -> list[Kind]:
    found: dict[tuple[object, ...], list[Entry]] = {}
    for entry in entries:
        facts = entry.facts
        if facts is None or entry.repeats or entry.problem or not facts.numeric or not facts.shape:
            continue
        if only is not None and not fnmatch.fnmatch(entry.path, only):
            continue
        if len(facts.shape) < least_ndim or (facts.decoded_nbytes or 0) < least_nbytes:
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
    total = sum(e.facts.chunks_total for e in alike if e.facts is not None)
    allocated = sum(e.facts.chunks_allocated for e in alike if e.facts is not None)
    return Kind(
        allocated=allocated / total if total else 1.0,
        paths=tuple(entry.path for entry in alike),
        example=example.path,
        facts=example.facts,
        stored_nbytes=sum(e.facts.stored_nbytes for e in alike if e.facts is not None),
        decoded_nbytes=sum(map(nbytes, alike)),
    )


# Where microscopes' files have the dataset of one time point and channel: Imaris, BigDataViewer.
_VOLUMES = re.compile(r"/TimePoint \d+/Channel \d+/|/t\d{5,}/s\d{2,}/")


def default_patterns(shape: tuple[int, ...], path: str = "") -> list[str]:
    """Return how a dataset is likely to be read: by the slice, by the patch, as a whole.

    Of an image with a dataset for each time point and channel, which `path` tells, planes. The
    slice axis of any other volume is the one whose extent differs from the two others', the
    shortest if all differ, the first if none does. With other numbers of axes, planes are the last
    two.

    Examples
    --------
    >>> default_patterns((256, 256, 60))[0], default_patterns((48, 1024, 1024))[0]
    ('[:, :, k]', '[k, :, :]')
    """
    if len(shape) == 3 and _VOLUMES.search(path):
        return ["[t, c, z]", "patch 96x96x96", "whole"]
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


def as_stored(text: str, ndim: int) -> str:
    """Return an access pattern of an image as that of one of its datasets.

    Microscopes' files have a 3-D dataset for each time point and channel: ``[t, c, z]`` takes one
    ``[z, :, :]`` of it. So axes called t and c at the front are left out where the pattern would
    have too many axes with them, or take a single element.

    Examples
    --------
    >>> as_stored("[t, c, z]", 3), as_stored("[t, c, z, :, :]", 3), as_stored("[t, c, z]", 5)
    ('[z, :, :]', '[z, :, :]', '[t, c, z]')
    """
    found = re.fullmatch(r"\s*\[(.*)\]\s*", text)
    parts = [part.strip() for part in found[1].split(",")] if found else []
    if len(parts) < ndim or not {"t", "c"} & {part.lower() for part in parts}:
        return text
    fits = len(parts) == ndim
    if fits and not all(re.fullmatch("[a-zA-Z]", part) for part in parts):
        return text
    while (fits or len(parts) > ndim) and len(parts) > 1 and parts[0].lower() in ("t", "c"):
        del parts[0]
    return f"[{', '.join([*parts, *[':'] * (ndim - len(parts))])}]"
