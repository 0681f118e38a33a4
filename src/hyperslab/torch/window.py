"""Decoded slabs in memory, loaded ahead of whoever takes slices out of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Planes", "Spare", "TakeMemory", "Window"]

Planes = dict[str, NDArray[Any]]
Spare = dict[tuple[tuple[int, ...], str], list[NDArray[Any]]]
TakeMemory = Callable[[tuple[int, ...], np.dtype], NDArray[Any]]


class Window:
    """Loads parts 0, 1, 2 ... in a thread of its own, as the reader's progress permits.

    Parameters
    ----------
    permits
        Per part: how many samples must have been taken before it may be loaded.
    load
        Loads part `i`: ``load(i, take_memory)`` gives, per input, (slices, H, W) in the stored
        dtype. ``take_memory(shape, dtype)`` gives memory that an earlier part has left, or new.
    spare
        Memory that is free, by shape and dtype: taken from, and added to. One window at a time.

    Notes
    -----
    `get`, `release` and `advance` belong to one reading thread. Memory is used again from part to
    part: fresh memory would cost a page fault for every 4 KiB.
    """

    def __init__(
        self, permits: Sequence[int], load: Callable[[int, TakeMemory], Planes], spare: Spare
    ) -> None:
        self._permits = list(permits)
        self._load = load
        self._changed = threading.Condition()
        self._taken = 0
        self._parts: dict[int, Planes] = {}
        self._spare = spare
        self._stop = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="hyperslab-window", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for i, permit in enumerate(self._permits):
                with self._changed:
                    while not self._stop and self._taken < permit:
                        self._changed.wait()
                    if self._stop:
                        return
                planes = self._load(i, self._take_memory)
                with self._changed:
                    self._parts[i] = planes
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised by `get`, where somebody sees it
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _take_memory(self, shape: tuple[int, ...], dtype: np.dtype) -> NDArray[Any]:
        with self._changed:
            spare = self._spare.get((shape, dtype.str))
            if spare:
                return spare.pop()
        return np.empty(shape, dtype)

    def get(self, part: int) -> Planes:
        """Return a part, waiting for it if need be.

        Raises
        ------
        BaseException
            What loading failed with.
        """
        with self._changed:
            while part not in self._parts:
                if self._failure is not None:
                    raise self._failure
                if self._stop:
                    raise RuntimeError("the window was closed while a part was waited for")
                self._changed.wait()
            return self._parts[part]

    def advance(self, taken: int) -> None:
        """Say that `taken` samples have been taken in all, which may permit further loading."""
        with self._changed:
            self._taken = taken
            self._changed.notify_all()

    def release(self, part: int) -> None:
        """Say that nobody will ask for this part again; its memory serves the next ones."""
        with self._changed:
            for planes in self._parts.pop(part).values():
                self._spare.setdefault((planes.shape, planes.dtype.str), []).append(planes)

    def close(self) -> None:
        """Stop loading, wait for the thread to end, and leave the memory to the next window."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        self._thread.join()
        for part in list(self._parts):
            self.release(part)
