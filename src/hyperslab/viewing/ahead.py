"""Read-ahead: chunks that scrolling is about to need, decoded before they are needed.

One thread does it, in small pieces, and begins none while anybody reads; it ends when it has had
nothing to do for a while. What it decodes goes into the engine's cache, where readers find it. A
chunk that it is decoding is waited for, not decoded twice.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from hyperslab.engine.planner import plan_read
from hyperslab.engine.read import execute
from hyperslab.engine.stats import last_stats
from hyperslab.errors import HyperslabError
from hyperslab.selection import Axis, Selection
from hyperslab.viewing.stats import ReadAheadStats
from hyperslab.viewing.track import Track

__all__ = ["read_ahead_stats", "reading", "stop_read_ahead"]

_IDLE_S = 5.0
_LOOK_AGAIN_S = 0.002  # while others read
# A view counts as being scrolled if one of so many last requests, to whatever view, was to it.
_LATELY = 32


class _State:
    """What the thread and the readers share, all of it under the lock of `changed`."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.Lock())
        self.thread: threading.Thread | None = None
        self.stopping = False
        self.n_reading = 0
        self.at_work = 0
        self.queue: deque[weakref.ref[Track]] = deque()
        self.lately: deque[weakref.ref[Track]] = deque(maxlen=_LATELY)
        self.stats = ReadAheadStats()


_state = _State()


@contextmanager
def reading(track: Track, axes: tuple[Axis, ...]) -> Iterator[bool]:
    """Take note of a request, which is read inside of this; have decoded what will come next.

    No piece of read-ahead begins inside of this, unless the read is a copy. Never raises by itself.

    Parameters
    ----------
    track
        Of the view that is read from. Once nobody holds it, nothing more is decoded for it.
    axes
        What is read, per axis of the level.

    Yields
    ------
    bool
        Whether the read is a copy: all chunks are in the cache, from reading the plane before. One
        thread does that as fast as many, and leaves the cores to read-ahead.
    """
    state = _state
    with state.changed:
        copied = track.holds(axes)
        state.n_reading += not copied
        _follow(state, track, axes)
    try:
        yield copied
        if copied and last_stats().chunks_decoded:
            track.lost()
    finally:
        with state.changed:
            # The thread looks for itself: waking it would take as long as many a read.
            state.n_reading -= not copied


def _follow(state: _State, track: Track, axes: tuple[Axis, ...]) -> None:
    try:
        found = track.follow(axes, state.stats, lambda: _others_nbytes(state, track))
    except (HyperslabError, OSError):
        found = False  # what is wrong with the file is told when that part of it is read
        state.stats.n_failed += 1
    state.lately.append(weakref.ref(track))
    if not found:
        return
    if all(queued() is not track for queued in state.queue):
        state.queue.append(weakref.ref(track))
    state.changed.notify()
    if state.thread is None:
        thread = threading.Thread(target=_run, args=(state,), name="hyperslab-ahead", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            state.queue.clear()  # no threads to be had, as at the end of the interpreter
        else:
            state.thread = thread


def _others_nbytes(state: _State, track: Track) -> int:
    """Return what the slabs of the other views take that are being scrolled."""
    lately = {found for seen in state.lately if (found := seen()) is not None}
    return sum(other.slab_nbytes for other in lately - {track})


def _run(state: _State) -> None:
    """Decode piece after piece; the body of the thread."""
    while True:
        with state.changed:
            woken = True
            while (task := _next_task(state)) is None:
                if state.stopping or not (woken or state.queue):
                    state.thread = None
                    return
                woken = state.changed.wait(_LOOK_AGAIN_S if state.queue else _IDLE_S)
            track, slab, piece = task
            state.at_work = 1
        n_decoded, failed = 0, False
        try:
            n_decoded = _decode(track, piece)
        except Exception:  # noqa: BLE001 - whoever reads this piece gets the error
            failed = True
        with state.changed:
            state.at_work = 0
            state.stats.n_failed += failed
            track.done(slab, n_decoded, state.stats)
        del task, track  # or the view would be held until there is something to do again


def _next_task(state: _State) -> tuple[Track, int, Selection] | None:
    """Return the next piece of the view whose turn it is; None if there is none for now."""
    while state.queue and not (state.n_reading or state.stopping):
        queued = state.queue.popleft()
        track = queued()
        piece = None if track is None else track.next_piece()
        if track is not None and piece is not None:
            state.queue.append(queued)
            return (track, *piece)
    return None


def _decode(track: Track, piece: Selection) -> int:
    """Have the chunks of a piece decoded into the cache; return how many were not there yet."""
    level = track.level
    # What is read is of no use; planes are the least that can be read of the chunks.
    dest = np.empty(piece.shape, level.dtype)
    plan = plan_read([(level.node, piece, dest)], keep=True)
    if all(target.node.raw for target in plan.targets):
        return 0  # nothing is decoded, so nothing would be kept
    return execute(plan, threads=1).chunks_decoded


def read_ahead_stats() -> ReadAheadStats:
    """Return what read-ahead has done in this process so far; a copy.

    Examples
    --------
    >>> from hyperslab.viewing import read_ahead_stats
    >>> read_ahead_stats().chunks_decoded >= 0
    True
    """
    state = _state
    with state.changed:
        tracks = [queued() for queued in state.queue]
        waiting = sum(track.n_waiting for track in tracks if track is not None)
        return replace(state.stats, slabs_waiting=max(waiting, state.at_work))


def stop_read_ahead() -> None:
    """Give up what is not decoded yet, and end the thread; returns once it has ended.

    The thread also ends by itself, after 5 seconds without work. Scrolling on starts it again. To
    have no read-ahead at all, turn the cache off: ``hyperslab.configure(cache_nbytes=0)``.
    """
    state = _state
    with state.changed:
        for queued in state.queue:
            track = queued()
            if track is not None:
                track.forget(state.stats)
        state.queue.clear()
        thread = state.thread
        if thread is None:
            return
        state.stopping = True
        state.changed.notify_all()
    thread.join()
    with state.changed:
        state.stopping = False


def _after_fork() -> None:
    """A child has none of its parent's threads, and starts its own when it scrolls."""
    global _state
    _state = _State()


atexit.register(stop_read_ahead)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
