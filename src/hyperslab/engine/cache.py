"""Decoded chunks, kept under a byte budget and shared by every array of the process.

A chunk is decoded by one thread only: whoever asks for it meanwhile waits for that thread. A thread
waits only while it has nothing of its own unfinished, so that no two can wait for each other.

The memory of a chunk that had to go is used for the next one of its size, once nobody reads from it
any more: fresh memory costs page faults, which can take as long as the decoding.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.limits import limits

__all__ = [
    "Cached",
    "Key",
    "Pending",
    "abandon",
    "claim",
    "clear",
    "done_with",
    "forget",
    "nbytes",
    "publish",
    "room",
]

Key = tuple[int, int]  # dataset's number in this process, linear chunk number


class Cached:
    """A decoded chunk.

    Attributes
    ----------
    buffer
        Its bytes, read-only by agreement.
    planes
        True if they are byte planes, see `Pipeline.decode`.
    users
        How many readers hold it; `done_with` takes one away.
    """

    __slots__ = ("buffer", "planes", "users")

    def __init__(self, buffer: NDArray[np.uint8], planes: bool) -> None:
        self.buffer = buffer
        self.planes = planes
        self.users = 0


class Pending:
    """A chunk that some thread is decoding, and how many others wait for it."""

    __slots__ = ("done", "result", "waiting")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.waiting = 0
        self.result: Cached | None = None  # still None when done: the decoding failed


_lock = threading.Lock()
_chunks: OrderedDict[Key, Cached] = OrderedDict()
_pending: dict[Key, Pending] = {}
_spare: dict[int, list[NDArray[np.uint8]]] = {}
_kept_nbytes = 0
_spare_nbytes = 0


def claim(key: Key, *, decode: bool = True) -> Cached | Pending | None:
    """Ask for a chunk.

    Parameters
    ----------
    key
        Which one.
    decode
        False: say only whether it is here, claim nothing.

    Returns
    -------
    Cached
        It is here; call `done_with` when you have read it.
    Pending
        Another thread is at it: wait for `done`, once nothing of your own is unfinished, and call
        `done_with` for its result.
    None
        It is yours to decode; end with `publish` or `abandon`.
    """
    with _lock:
        found = _chunks.get(key)
        if found is not None:
            _chunks.move_to_end(key)
            found.users += 1
            return found
        if not decode:
            return None
        waiting = _pending.get(key)
        if waiting is None:
            _pending[key] = Pending()
        else:
            waiting.waiting += 1
        return waiting


def done_with(chunk: Cached) -> None:
    """Say that this reader has taken what it wanted from `chunk`."""
    with _lock:
        chunk.users -= 1


def room(nbytes: int) -> NDArray[np.uint8]:
    """Return memory for a chunk that is going to be published: uint8, (nbytes,), any content."""
    global _spare_nbytes
    with _lock:
        spare = _spare.get(nbytes)
        if spare:
            _spare_nbytes -= nbytes
            return spare.pop()
        while _spare_nbytes and _kept_nbytes + _spare_nbytes + nbytes > limits.cache_nbytes:
            size = next(iter(_spare))
            if _spare[size]:
                _spare[size].pop()
                _spare_nbytes -= size
            else:
                del _spare[size]
    return np.empty(nbytes, np.uint8)


def publish(key: Key, chunk: Cached) -> None:
    """Hand over a claimed chunk: wakes those who wait, and keeps it while the budget allows."""
    global _kept_nbytes
    with _lock:
        waiting = _pending.pop(key, None)
        if waiting is not None:
            chunk.users += waiting.waiting
        if chunk.buffer.nbytes <= limits.cache_nbytes and key not in _chunks:
            _chunks[key] = chunk
            _kept_nbytes += chunk.buffer.nbytes
            while _kept_nbytes > limits.cache_nbytes:
                _drop_oldest()
    if waiting is not None:
        waiting.result = chunk
        waiting.done.set()


def _drop_oldest() -> None:
    global _kept_nbytes, _spare_nbytes
    _, oldest = _chunks.popitem(last=False)
    size = oldest.buffer.nbytes
    _kept_nbytes -= size
    if not oldest.users:
        _spare.setdefault(size, []).append(oldest.buffer)
        _spare_nbytes += size


def abandon(key: Key) -> None:
    """Give up a claimed chunk: those who wait try for themselves."""
    with _lock:
        waiting = _pending.pop(key, None)
    if waiting is not None:
        waiting.done.set()


def forget() -> None:
    """Forget every decoded chunk, but keep the memory for the next ones."""
    with _lock:
        while _chunks:
            _drop_oldest()


def clear() -> None:
    """Forget every decoded chunk, and give the memory back."""
    global _spare_nbytes
    forget()
    with _lock:
        _spare.clear()
        _spare_nbytes = 0


def nbytes() -> int:
    """Return how many bytes of decoded chunks are kept."""
    return _kept_nbytes


def _after_fork() -> None:
    """Start empty in a child: threads that had claimed a chunk did not come along."""
    global _lock, _kept_nbytes, _spare_nbytes
    _lock = threading.Lock()
    _chunks.clear()
    _pending.clear()
    _spare.clear()
    _kept_nbytes = _spare_nbytes = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
