"""Decoded chunks, kept under a byte budget and shared by every array of the process.

A chunk is decoded by one thread only: whoever asks for it meanwhile waits for that thread. A thread
waits only while it has nothing of its own unfinished, so that no two can wait for each other.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.limits import limits

__all__ = ["Cached", "Key", "Pending", "abandon", "claim", "clear", "nbytes", "peek", "publish"]

Key = tuple[int, int]  # dataset's number in this process, linear chunk number


@dataclass(frozen=True, slots=True, eq=False)
class Cached:
    """A decoded chunk: its bytes (read-only by agreement), and whether they are byte planes."""

    buffer: NDArray[np.uint8]
    planes: bool


class Pending:
    """A chunk that some thread is decoding."""

    __slots__ = ("done", "result")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.result: Cached | None = None  # still None when done: the decoding failed


_lock = threading.Lock()
_chunks: OrderedDict[Key, Cached] = OrderedDict()
_pending: dict[Key, Pending] = {}
_total_nbytes = 0


def peek(key: Key) -> Cached | None:
    """Return the chunk if it is here; claim nothing."""
    with _lock:
        return _chunks.get(key)


def claim(key: Key) -> Cached | Pending | None:
    """Ask for a chunk.

    Returns
    -------
    Cached
        It is here.
    Pending
        Another thread is at it: wait for `done`, once nothing of your own is unfinished.
    None
        It is yours to decode; end with `publish` or `abandon`.
    """
    with _lock:
        found = _chunks.get(key)
        if found is not None:
            _chunks.move_to_end(key)
            return found
        waiting = _pending.get(key)
        if waiting is None:
            _pending[key] = Pending()
        return waiting


def publish(key: Key, chunk: Cached) -> None:
    """Hand over a claimed chunk: wakes those who wait, and keeps it while the budget allows."""
    global _total_nbytes
    with _lock:
        waiting = _pending.pop(key, None)
        if chunk.buffer.nbytes <= limits.cache_nbytes and key not in _chunks:
            _chunks[key] = chunk
            _total_nbytes += chunk.buffer.nbytes
            while _total_nbytes > limits.cache_nbytes:
                _, oldest = _chunks.popitem(last=False)
                _total_nbytes -= oldest.buffer.nbytes
    if waiting is not None:
        waiting.result = chunk
        waiting.done.set()


def abandon(key: Key) -> None:
    """Give up a claimed chunk: those who wait try for themselves."""
    with _lock:
        waiting = _pending.pop(key, None)
    if waiting is not None:
        waiting.done.set()


def clear() -> None:
    """Forget every decoded chunk."""
    global _total_nbytes
    with _lock:
        _chunks.clear()
        _total_nbytes = 0


def nbytes() -> int:
    """Return how many bytes of decoded chunks are kept."""
    return _total_nbytes


def _after_fork() -> None:
    """Start empty in a child: threads that had claimed a chunk did not come along."""
    global _lock, _total_nbytes
    _lock = threading.Lock()
    _chunks.clear()
    _pending.clear()
    _total_nbytes = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
