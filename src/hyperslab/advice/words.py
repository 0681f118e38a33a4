"""The verdict: two sentences and a command."""

from __future__ import annotations

import os
import shlex

from hyperslab.advice.records import KindAdvice, PatternAdvice, RepackOption
from hyperslab.exports.text import human_nbytes

__all__ = ["duration", "verdict"]

_WORTH = 2.0  # times faster that a repack has to make h5py or us
_AMPLIFIED = 1.5


def verdict(path: str, kind: KindAdvice) -> tuple[str, str, bool]:
    """Return the verdict on a file by its largest kind: sentences, command, and whether it is slow.

    A repack is advised where it makes a request at a random place at least twice as fast for us;
    block shuffle where that serves each slab once and is about as fast as a repack.
    """
    main = kind.patterns[0]
    now = main.predicted_s["hyperslab"]
    best = _best(kind)
    what = _what(main)
    if best is None or now < _WORTH * best.predicted_s["hyperslab"]:
        return f"{what} There is nothing to gain by storing it otherwise.", "", False
    after = best.predicted_s["hyperslab"]
    disk = best.stored_nbytes / max(1, kind.stored_nbytes)
    gain = (
        f"Repacked to chunks {best.chunks} with codec {best.codec}, a request takes "
        f"{duration(after)} instead of {duration(now)} (with h5py, "
        f"{duration(best.predicted_s['h5py'])} instead of {duration(main.predicted_s['h5py'])}), "
        f"for {disk:.1f} times the disk space and some {duration(best.repack_s)} of work."
    )
    in_order = main.predicted_s["hyperslab_in_order"]
    if in_order < _WORTH * after:
        gain += (
            " Without that, an order that serves each slab once (SliceLoader's block shuffle, "
            f"scrolling) already brings it to {duration(in_order)}."
        )
    stem, extension = os.path.splitext(path)
    out = f"{stem}-fast{extension}"
    command = (
        f"hyperslab repack {shlex.quote(path)} {shlex.quote(out)} "
        f"--access {shlex.quote(main.access)} --codec {best.codec}"
    )
    return f"{what} {gain}", command, True


def _best(kind: KindAdvice) -> RepackOption | None:
    """Return the smallest of the options that are about as fast as the fastest."""
    if not kind.options:
        return None
    fastest = min(option.predicted_s["hyperslab"] for option in kind.options)
    good = [o for o in kind.options if o.predicted_s["hyperslab"] <= 1.5 * fastest + 50e-6]
    return min(good, key=lambda option: option.stored_nbytes)


def _what(main: PatternAdvice) -> str:
    used = human_nbytes(main.used_nbytes)
    if not main.chunks_touched:
        return f"A request {main.access} takes {used} from where they lie; nothing is decoded."
    n = f"{main.chunks_touched:,.0f}"
    chunks = f"{n} chunk{'s' if n != '1' else ''}"
    decoded = human_nbytes(int(main.decoded_nbytes))
    if main.amplification < _AMPLIFIED:
        return f"A request {main.access} uses nearly all of the {chunks} ({decoded}) it decodes."
    return (
        f"A request {main.access} decodes {chunks}, {decoded}, for {used}: "
        f"{main.amplification:.0f} times what it uses."
    )


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
