"""Threads that help a read along.

The caller's thread does the work; helpers join it when they are free. So a read never waits for a
thread to become free, a read inside a helper cannot block the pool, and a small read pays nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from hyperslab.engine.limits import available_cpus
from hyperslab.index.session import library_lock

__all__ = ["run_together"]

_MOST_HELPERS = max(32, 4 * available_cpus())

_lock = threading.Lock()
_executor: ThreadPoolExecutor | None = None


def _helpers() -> ThreadPoolExecutor:
    global _executor
    if _executor is None:
        with _lock:
            if _executor is None:
                _executor = ThreadPoolExecutor(_MOST_HELPERS, thread_name_prefix="hyperslab-read")
    return _executor


def run_together(work: Callable[[], None], n_threads: int, stop: threading.Event) -> None:
    """Run `work` in the calling thread and in up to ``n_threads - 1`` helpers, until all are done.

    Parameters
    ----------
    work
        Draws its tasks from something shared and returns when none is left or `stop` is set.
        Called once per thread.
    n_threads
        Threads in all. Where the calling thread holds the HDF5 library's lock, it works alone.
    stop
        Set here as soon as one thread fails, so that the others come back early.

    Raises
    ------
    BaseException
        The first failure, once no thread touches the task any more.
    """
    # A helper may need the lock of the HDF5 library: to read what only that can, or because one of
    # h5py's objects is garbage that happens to be collected there. It must not be the caller's.
    if n_threads <= 1 or library_lock.is_mine:
        work()
        return

    def guarded() -> None:
        try:
            work()
        except BaseException:
            stop.set()
            raise

    futures: list[Future[None]] = []
    try:
        executor = _helpers()
        futures += (executor.submit(guarded) for _ in range(n_threads - 1))
    except RuntimeError:
        pass  # the interpreter is about to end and starts no more threads: those there are will do
    failure: BaseException | None = None
    try:
        guarded()
    except BaseException as error:  # noqa: BLE001 - raised below, once all threads are back
        failure = error
    for future in futures:
        # One that has not begun would find nothing left to do.
        while not future.cancel():
            try:
                theirs = future.exception()  # waits, whatever has failed already
                failure = failure or theirs
                break
            except KeyboardInterrupt as error:
                # Helpers still write into the caller's memory: tell them, and go on waiting.
                stop.set()
                failure = error
    if failure is not None:
        raise failure


def _after_fork() -> None:
    """A child has none of its parent's threads: it makes its own when it needs them."""
    global _lock, _executor
    _lock = threading.Lock()
    _executor = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
