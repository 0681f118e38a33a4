"""The same work done by h5py and by hyperslab in turn: checked to be equal, then timed."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

import hyperslab
from hyperslab.cli.terminal import times
from hyperslab.engine import cache
from hyperslab.engine.limits import available_cpus, limits
from hyperslab.errors import HyperslabError

__all__ = ["Comparison", "Work", "compare", "machine_facts", "machine_line", "table"]

_FEWEST_PAIRS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Something to read, and how either library reads it.

    Attributes
    ----------
    key
        Name for programs.
    title
        For people.
    nbytes
        Size of what is read.
    draw
        Chooses what to read next; both libraries are given the same choice.
    by_h5py, by_hyperslab
        Read what was drawn: an array, or a sequence or mapping of arrays.
    prepare
        Called with what was drawn, untimed, before h5py reads it: opens what may be open already.
    """

    key: str
    title: str
    nbytes: int
    draw: Callable[[], Any]
    by_h5py: Callable[[Any], Any]
    by_hyperslab: Callable[[Any], Any]
    prepare: Callable[[Any], object] = lambda what: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was measured for one work.

    Attributes
    ----------
    work
        What was read.
    h5py_s, hyperslab_s
        Seconds, one per pair of reads.
    """

    work: Work
    h5py_s: tuple[float, ...]
    hyperslab_s: tuple[float, ...]

    @property
    def times_faster(self) -> float:
        """Median over the pairs of h5py's time by hyperslab's."""
        pairs = zip(self.h5py_s, self.hyperslab_s, strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON: seconds and bytes per second are medians."""
        h5py_s, hyperslab_s = statistics.median(self.h5py_s), statistics.median(self.hyperslab_s)
        return {
            "work": self.work.key,
            "title": self.work.title,
            "nbytes": self.work.nbytes,
            "pairs": len(self.h5py_s),
            "h5py_s": h5py_s,
            "hyperslab_s": hyperslab_s,
            "times_faster": self.times_faster,
            "h5py_bytes_per_s": self.work.nbytes / h5py_s,
            "hyperslab_bytes_per_s": self.work.nbytes / hyperslab_s,
        }


def compare(work: Work, *, repeat: int, seconds: float) -> Comparison:
    """Do `work` by h5py and by hyperslab in turn.

    Parameters
    ----------
    work
        What to do.
    repeat
        Most pairs of reads.
    seconds
        No new pair is begun after this time, though there are three pairs at least (or `repeat`).

    Raises
    ------
    HyperslabError
        The two results differ.

    Notes
    -----
    What is drawn is first read by hyperslab, untimed, so that it is in the page cache for both.
    What the decoded-chunk cache holds is forgotten before each read by hyperslab (its memory is
    kept, as in a process that runs for long); emptying h5py's is up to the work.
    """
    what = work.draw()
    ours = work.by_hyperslab(what)
    work.prepare(what)
    if not _same(ours, work.by_h5py(what)):
        raise HyperslabError(
            f"{work.title}: h5py and hyperslab read different values, so nothing was timed. "
            "That must not happen: please report it, with this file if you can."
        )
    start = time.perf_counter()
    h5py_s: list[float] = []
    hyperslab_s: list[float] = []
    while len(h5py_s) < repeat:
        if len(h5py_s) >= _FEWEST_PAIRS and time.perf_counter() - start > seconds:
            break
        what = work.draw()
        cache.forget()
        work.by_hyperslab(what)
        work.prepare(what)
        h5py_s.append(_time(work.by_h5py, what))
        cache.forget()
        hyperslab_s.append(_time(work.by_hyperslab, what))
    cache.clear()
    return Comparison(work=work, h5py_s=tuple(h5py_s), hyperslab_s=tuple(hyperslab_s))


def _time(function: Callable[[Any], Any], what: Any) -> float:
    start = time.perf_counter()
    function(what)
    return time.perf_counter() - start


def _same(a: Any, b: Any) -> bool:
    """Tell whether two results are equal bit for bit."""
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, Sequence) and not isinstance(a, str):
        return len(a) == len(b) and all(map(_same, a, b))
    x, y = np.asarray(a), np.asarray(b)
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    x, y = (np.ascontiguousarray(z).reshape(-1).view(np.uint8) for z in (x, y))
    return bool(np.array_equal(x, y))


def machine_facts(hdf5: str) -> dict[str, Any]:
    """Return what the figures depend on; `hdf5` is the version of h5py's HDF5 library."""
    return {
        "cpus": available_cpus(),
        "threads": limits.threads,
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "h5py": version("h5py"),
        "hdf5": hdf5,
        "hyperslab": hyperslab.__version__,
    }


def machine_line(facts: Mapping[str, Any]) -> str:
    """Return those facts in a line."""
    cpus = "1 CPU" if facts["cpus"] == 1 else f"{facts['cpus']} CPUs"
    return (
        f"{cpus}, {facts['system']} {facts['machine']}, Python {facts['python']}; "
        f"h5py {facts['h5py']} with HDF5 {facts['hdf5']}; hyperslab {facts['hyperslab']} with "
        f"{facts['threads']} thread" + ("s" if facts["threads"] != 1 else "")
    )


def table(sections: Mapping[str, Sequence[Comparison]]) -> Table:
    """Return the figures side by side, under the title of each section ("" for none).

    MB/s is what hyperslab returned: the size of what was asked for, by its time.
    """
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    found.add_column("work")
    for name in ("h5py", "hyperslab", "times faster", "MB/s"):
        found.add_column(name, justify="right", no_wrap=True)
    for i, (title, comparisons) in enumerate(sections.items()):
        if title:
            if i:
                found.add_row()
            found.add_row(Text(title, "bold"))
        for comparison in comparisons:
            found.add_row(*_cells(comparison))
    return found


def _cells(comparison: Comparison) -> list[Text]:
    figures = comparison.as_dict()
    ratio = figures["times_faster"]
    style = "bold green" if ratio >= 1.05 else "bold yellow" if ratio < 0.95 else "bold"
    return [
        Text(comparison.work.title),
        Text(_milliseconds(figures["h5py_s"])),
        Text(_milliseconds(figures["hyperslab_s"])),
        Text(times(ratio), style),
        Text(f"{figures['hyperslab_bytes_per_s'] / 1e6:,.0f}"),
    ]


def _milliseconds(seconds: float) -> str:
    digits = 0 if seconds >= 0.1 else 1 if seconds >= 0.01 else 2
    return f"{1000 * seconds:,.{digits}f} ms"
