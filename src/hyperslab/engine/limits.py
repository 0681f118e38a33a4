"""How much of the machine hyperslab may use: threads, cache bytes, open files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

__all__ = [
    "Limits",
    "available_cpus",
    "available_nbytes",
    "configure",
    "default_cache_nbytes",
    "limits",
    "memory_at_hand",
    "memory_limit",
]

_MEBI = 1 << 20
_GROUPS = "/sys/fs/cgroup"


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
    return min(total, *(limit for limit, _ in _memory_groups()), total)


def memory_at_hand() -> int:
    """Return how much memory can still be taken now, bytes: the machine's, or a cgroup's if less.

    Notes
    -----
    The machine's is what Linux calls available. A cgroup's is its limit without what its processes
    hold; file pages that they have not used of late count as free, since they can be dropped. Where
    nothing tells, `available_nbytes`. A tenth of a millisecond.
    """
    at_hand = available_nbytes()
    try:
        with open("/proc/meminfo", encoding="ascii") as stream:
            kibi = next(line.split()[1] for line in stream if line.startswith("MemAvailable:"))
        at_hand = min(at_hand, int(kibi) << 10)
    except (OSError, ValueError, StopIteration):
        pass  # not Linux: the whole of the memory stands
    for limit, held in _memory_groups():
        at_hand = min(at_hand, limit - held)
    return max(0, at_hand)


def memory_limit() -> int | None:
    """Return the least memory limit of the cgroups that this process is in, bytes; None: none."""
    limit = min((limit for limit, _ in _memory_groups()), default=None)
    # Version 1 says "no limit" by a number that no machine reaches.
    return limit if limit is not None and limit < 1 << 60 else None


# Of either version of cgroups, in a group's folder: its limit, what it holds, and in memory.stat
# its file pages that can be dropped.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _memory_groups() -> Iterator[tuple[int, int]]:
    """Yield limit and held bytes of each cgroup above this process that has a limit."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as stream:
            lines = [line.rstrip("\n").split(":", 2) for line in stream]
    except OSError:
        return  # not Linux
    for number, controllers, path in (line for line in lines if len(line) == 3):
        if number == "0" and not controllers:
            root, files = _GROUPS, _V2
        elif "memory" in controllers.split(","):
            root, files = os.path.join(_GROUPS, "memory"), _V1
        else:
            continue
        names = [name for name in path.split("/") if name]
        for depth in range(len(names), -1, -1):
            folder = os.path.join(root, *names[:depth])
            try:
                limit, held = (int(_text(folder, name)) for name in files[:2])
                fields = dict(line.split() for line in _text(folder, "memory.stat").splitlines())
            except (OSError, ValueError):
                continue  # without a limit ("max"), or not to be seen from inside a container
            yield limit, held - int(fields.get(files[2], 0))


def _text(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as stream:
        return stream.read().strip()


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


def default_cache_nbytes() -> int:
    """Return a twentieth of the memory that this process may use, between 256 MiB and 1 GiB."""
    return min(1024, max(256, available_nbytes() // 20 // _MEBI)) * _MEBI


limits = Limits(
    threads=_number("HYPERSLAB_THREADS", available_cpus(), least=1),
    cache_nbytes=_number("HYPERSLAB_CACHE_MB", default_cache_nbytes() // _MEBI) * _MEBI,
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
