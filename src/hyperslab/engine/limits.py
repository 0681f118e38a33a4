"""How much of the machine hyperslab may use: threads, cache bytes, open files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

__all__ = ["Limits", "available_cpus", "available_nbytes", "configure", "limits"]

_MEBI = 1 << 20


@cache
def available_cpus() -> int:
    """Return how many CPUs this process may use: its affinity, and a cgroup's quota if lower."""
    if hasattr(os, "sched_getaffinity"):
        n = len(os.sched_getaffinity(0))
    else:
        n = os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as stream:
            quota, period = stream.read().split()
        if quota != "max":
            n = min(n, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass  # no cgroup v2, or not Linux: the affinity stands
    return n


@cache
def available_nbytes() -> int:
    """Return how much memory this process may use, bytes: the machine's, or a cgroup's if less."""
    total = 8 << 30  # where nothing tells
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as stream:
            text = stream.read().strip()
        if text != "max":
            total = min(total, int(text))
    except (OSError, ValueError):
        pass  # no cgroup v2, or not Linux: the machine's memory stands
    return total


@dataclass(slots=True)
class Limits:
    """Attributes: `threads` a read may use; `cache_nbytes` of decoded chunks; `open_files`."""

    threads: int
    cache_nbytes: int
    open_files: int


def _open_files() -> int:
    """A quarter of what the process may open, since a mapped file takes two descriptors."""
    try:
        import resource
    except ImportError:
        return 32
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 64 if soft == resource.RLIM_INFINITY else max(4, min(64, soft // 4))


def _number(variable: str, default: int, least: int = 0) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() and int(text) >= least else default


def _cache_mebi() -> int:
    """A twentieth of the memory that this process may use, between 256 MiB and 1 GiB."""
    return min(1024, max(256, available_nbytes() // 20 // _MEBI))


limits = Limits(
    threads=_number("HYPERSLAB_THREADS", available_cpus(), least=1),
    cache_nbytes=_number("HYPERSLAB_CACHE_MB", _cache_mebi()) * _MEBI,
    open_files=_open_files(),
)


def configure(*, threads: int | None = None, cache_nbytes: int | None = None) -> None:
    """Set the limits of this process; child processes start from the environment again.

    Parameters
    ----------
    threads
        Threads that one read may use, the caller's included; default: the available CPUs, or the
        environment variable HYPERSLAB_THREADS.
    cache_nbytes
        Budget of the decoded-chunk cache, bytes; 0 turns it off. Default: a twentieth of the
        memory, between 256 MiB and 1 GiB, or HYPERSLAB_CACHE_MB mebibytes.

    Raises
    ------
    ValueError
        `threads` below 1 or `cache_nbytes` below 0.
    """
    if threads is not None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        limits.threads = threads
    if cache_nbytes is not None:
        if cache_nbytes < 0:
            raise ValueError(f"cache_nbytes must be at least 0, not {cache_nbytes}")
        limits.cache_nbytes = cache_nbytes
