"""How fast the disk is, told apart from the memory that the system keeps files in."""

from __future__ import annotations

import os
import random
import time

from hyperslab.engine.source import close_idle

__all__ = ["disk_rate"]

_N_STRETCHES, _STRETCH_NBYTES = 6, 4 << 20
# Linux keeps pages in groups of up to 2 MiB, and forgets a group as a whole.
_GROUP_NBYTES = 2 << 20


def disk_rate(path: str, *, dice: random.Random) -> tuple[float, bool | None]:
    """Read stretches of a file, after asking the system to forget them.

    Parameters
    ----------
    path
        Of the file.
    dice
        Chooses the stretches: six of 4 MiB, or all of a small file.

    Returns
    -------
    rate
        Bytes a second.
    cold
        True if the stretches were seen not to be in this system's memory; False if they were; None
        where the system does not tell. Only with True is the rate that of the disk, or of whatever
        is between it and this system.

    Notes
    -----
    Linux forgets pages on request (posix_fadvise) unless a process has mapped them, and says
    whether a read would have to wait (preadv with RWF_NOWAIT). The stretches are in the page cache
    again afterwards.
    """
    close_idle()  # our own map of the file would keep its pages
    n_bytes = os.path.getsize(path)
    last = max(0, n_bytes - _STRETCH_NBYTES)
    offsets = sorted({dice.randint(0, last) & -_GROUP_NBYTES for _ in range(_N_STRETCHES)})
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    seconds: dict[bool | None, float] = {}
    done: dict[bool | None, int] = {}
    try:
        _forget(descriptor, offsets)
        end = 0
        for wanted in offsets:
            offset = max(wanted, end)  # what was read just now is no longer cold
            end = min(wanted + _STRETCH_NBYTES, n_bytes)
            if offset >= end:
                continue
            cold = _is_cold(descriptor, (offset, (offset + end) // 2 & ~4095))
            start = time.perf_counter()
            got = _read(descriptor, offset, end - offset)
            seconds[cold] = seconds.get(cold, 0.0) + time.perf_counter() - start
            done[cold] = done.get(cold, 0) + got
    finally:
        os.close(descriptor)
    for cold in (True, None, False):
        if done.get(cold):
            return done[cold] / max(seconds[cold], 1e-9), cold
    return 0.0, None


def _forget(descriptor: int, offsets: list[int]) -> None:
    if not hasattr(os, "posix_fadvise"):
        return  # macOS, Windows
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)  # what is not on the disk yet cannot be dropped
    for offset in offsets:
        first = max(0, offset - _GROUP_NBYTES)
        end = offset + _STRETCH_NBYTES + _GROUP_NBYTES
        os.posix_fadvise(descriptor, first, end - first, os.POSIX_FADV_DONTNEED)


def _is_cold(descriptor: int, offsets: tuple[int, ...]) -> bool | None:
    """Tell whether reading at these offsets has to wait for the disk; None if nobody knows."""
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    for offset in offsets:
        try:
            os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            continue
        except OSError:
            return None  # not on this file system
        return False
    return True


def _read(descriptor: int, offset: int, nbytes: int) -> int:
    """Read a stretch and throw it away; return how much of it there was."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    done = 0
    while done < nbytes:
        data = os.read(descriptor, min(1 << 20, nbytes - done))
        if not data:
            break
        done += len(data)
    return done
