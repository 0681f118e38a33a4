"""The verdict: two sentences and a command."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from hyperslab.advice.records import KindAdvice, Machine, PatternAdvice, RepackOption
from hyperslab.exports.text import human_nbytes

__all__ = ["Verdict", "duration", "verdict"]

_WORTH, _WORTH_S = 2.0, 50e-6  # how much faster a repack has to make requests: times, and seconds
_ABOUT = 1.5  # times as long, and still about as fast
_AMPLIFIED = 1.5
_LARGER = 1.5  # times the disk space: what is faster for that alone is a choice, and no mend


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """See `Advice`, whose attributes of the same names these are; `words` is its verdict."""

    words: str
    action: str
    command: str
    slow: bool


def verdict(
    path: str, kinds: Sequence[KindAdvice], machine: Machine, *, datasets: str | None = None
) -> Verdict:
    """Say what is the matter with a file, and what to do.

    A kind of datasets is slow if requests of its first pattern, at random places, would be at least
    twice as fast after a repack; where its chunks suit them already, for about the same disk space.
    The verdict is on the largest kind that is, or the largest. What does not fit into memory comes
    from the disk, before as after. `datasets` is the glob that the advice was limited to; so the
    repack is.
    """
    slow = [kind for kind in kinds if _is_slow(kind, machine)]
    kind = (slow or kinds)[0]
    main, best = kind.patterns[0], best_option(kind, machine)
    what = _what(main, machine)
    if not slow or best is None:
        rest = "There is nothing to gain by storing it otherwise."
        if any(finding.key == "damaged" for finding in kind.findings):
            rest = "What a repack would bring could not be tried."
        elif kind.storage in ("virtual", "external"):
            rest = "Its elements are in other files: ask about those."
        elif best is not None and _gains(kind, best, machine):
            rest = (
                f"Its chunks suit that. With codec {best.codec} a request would take "
                f"{duration(_after_s(best, kind, machine))} instead of "
                f"{duration(_now_s(kind, machine))}, for {_disk(best, kind):.1f} times the disk "
                "space."
            )
        return Verdict(
            words=f"{what} {rest}",
            action="nothing",
            command="",
            slow=False,
        )
    now, after = duration(_now_s(kind, machine)), duration(_after_s(best, kind, machine))
    h5py = ""
    if main.predicted_s["h5py"] is not None and best.predicted_s["h5py"] is not None:
        h5py = (
            f" (with h5py, {duration(best.predicted_s['h5py'])} instead of "
            f"{duration(main.predicted_s['h5py'])})"
        )
    plugin = ", which h5py needs hdf5plugin for" if best.needs_plugin else ""
    cost = (
        f"{_disk(best, kind):.1f} times the disk space and some {duration(best.repack_s)} of work"
    )
    stored = f"chunks {best.chunks} with codec {best.codec}{plugin}"
    in_order = duration(main.in_order_s)
    loader = _loader(path, kinds, kind)
    if loader and main.in_order_s <= _ABOUT * best.ours_s:
        words = (
            f"Block shuffle is enough: it serves each slab once, and a request takes {in_order} "
            f"instead of {now}; a repack to {stored} would bring {after} at random places{h5py}, "
            f"for {cost}."
        )
        return Verdict(words=f"{what} {words}", action="block-shuffle", command=loader, slow=True)
    words = f"Repacked to {stored}, a request takes {after} instead of {now}{h5py}, for {cost}"
    if main.requests_per_slab > 1 and 2 * main.in_order_s < main.ours_s:
        how = " (SliceLoader's block shuffle)" if loader else ""
        words += f"; as it is, an order that serves each slab once{how} brings it to {in_order}"
    command = _repack(path, main, best)
    if datasets is not None:
        command += f" --dataset {shlex.quote(datasets)}"
    return Verdict(words=f"{what} {words}.", action="repack", command=command, slow=True)


def best_option(kind: KindAdvice, machine: Machine) -> RepackOption | None:
    """Return the smallest of the repacks that are about as fast as the fastest.

    One that needs a plugin only where it takes less than half of what the others do.
    """
    if not kind.options:
        return None
    fastest = min(_after_s(option, kind, machine) for option in kind.options)
    limit = _ABOUT * fastest + _WORTH_S
    good = [o for o in kind.options if _after_s(o, kind, machine) <= limit]
    return min(good, key=lambda o: o.stored_nbytes * (2 if o.needs_plugin else 1))


def _is_slow(kind: KindAdvice, machine: Machine) -> bool:
    """Tell whether a repack mends something: chunks that do not suit, or a codec for free."""
    best = best_option(kind, machine)
    if best is None or not _gains(kind, best, machine):
        return False
    main = kind.patterns[0]
    suits = main.chunks_touched > 0 and main.amplification < _AMPLIFIED
    return not suits or _disk(best, kind) < _LARGER


def _gains(kind: KindAdvice, best: RepackOption, machine: Machine) -> bool:
    now, after = _now_s(kind, machine), _after_s(best, kind, machine)
    return now >= _WORTH * after and now - after >= _WORTH_S


def _disk(option: RepackOption, kind: KindAdvice) -> float:
    """Return how many times the disk space a repack takes."""
    return option.stored_nbytes / max(1, kind.stored_nbytes)


def _now_s(kind: KindAdvice, machine: Machine) -> float:
    main = kind.patterns[0]
    from_disk = kind.stored_nbytes > machine.memory_nbytes
    return main.ours_s + ((main.disk_s or 0.0) if from_disk else 0.0)


def _after_s(option: RepackOption, kind: KindAdvice, machine: Machine) -> float:
    from_disk = max(option.stored_nbytes, kind.stored_nbytes) > machine.memory_nbytes
    return option.ours_s + ((option.disk_s or 0.0) if from_disk else 0.0)


def _repack(path: str, main: PatternAdvice, best: RepackOption) -> str:
    stem, extension = os.path.splitext(path)
    return (
        f"hyperslab repack {shlex.quote(path)} {shlex.quote(f'{stem}-fast{extension}')} "
        f"--access {shlex.quote(main.as_stored)} --codec {best.codec}"
    )


def _loader(path: str, kinds: Sequence[KindAdvice], kind: KindAdvice) -> str:
    """Return the Python that reads slices in block shuffle; "" if the file is no cohort of them."""
    main = kind.patterns[0]
    singles = [a for a, (r, n) in enumerate(zip(main.region, kind.shape, strict=True)) if r < n]
    if len(kind.shape) != 3 or len(singles) != 1 or main.region[singles[0]] != 1:
        return ""
    cases = [re.fullmatch("/([^/]+)/[^/]+", path) for k in kinds for path in k.datasets]
    if not all(cases):
        return ""
    groups = list(dict.fromkeys(case[1] for case in cases if case))
    axis = singles[0] - 3 if singles[0] == 2 else singles[0]
    return (
        f"SliceLoader(SliceDataset({path!r}, inputs={groups!r}, axis={axis}), batch_size=32, "
        "shuffle='block')"
    )


def _what(main: PatternAdvice, machine: Machine) -> str:
    used = human_nbytes(main.used_nbytes)
    if not main.chunks_touched:
        if main.read_amplification < _AMPLIFIED:
            return f"A request {main.access} takes {used} from where they lie; nothing is decoded."
        return (
            f"A request {main.access} takes {used} out of {human_nbytes(int(main.read_nbytes))} of "
            "the file; nothing is decoded, but a disk has to read all that."
        )
    n = f"{main.chunks_touched:,.0f}"
    chunks = f"{n} chunk{'s' if n != '1' else ''}"
    decoded = human_nbytes(int(main.decoded_nbytes))
    if main.amplification < _AMPLIFIED:
        return f"A request {main.access} uses nearly all of the {chunks} ({decoded}) it decodes."
    return (
        f"A request {main.access} decodes {chunks}, {decoded}, for {used}, "
        f"{main.amplification:.0f} times what it uses{cache_words(main, machine)}."
    )


def cache_words(main: PatternAdvice, machine: Machine) -> str:
    """Return what h5py's cache does for requests in order, "" where one takes whole slabs."""
    if main.requests_per_slab < _AMPLIFIED:
        return ""
    cache = f"the {machine.h5py_cache_nbytes >> 20} MiB cache of HDF5 {machine.hdf5}"
    slab = f"its slab of {human_nbytes(main.slab_nbytes)} serves {main.requests_per_slab:.0f}"
    if main.fits_h5py_cache:
        return f"; {slab}, and fits {cache} where these come in order"
    return f"; {slab}, but does not fit {cache}, so h5py decodes it for each"


def duration(seconds: float) -> str:
    """Return a time for people.

    Examples
    --------
    >>> duration(0.00042), duration(0.123), duration(5), duration(250), duration(9000)
    ('0.42 ms', '123 ms', '5 s', '4.2 min', '2.5 h')
    """
    for unit, size, limit in (("ms", 1e-3, 0.9995), ("s", 1, 99.5), ("min", 60, 5970)):
        if seconds < limit:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds / 3600)} h"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.2g}"
