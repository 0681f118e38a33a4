"""Decoded slabs in memory, loaded ahead of whoever takes slices out of them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Planes", "Spare", "Window"]

# Per input: (slices, H, W) in the stored dtype, and which slice the first one is.
Planes = dict[str, tuple[NDArray[Any], int]]


class Spare:
    """Memory that is free for the next part, whatever its shape.

    Fresh memory would cost a page fault for every 4 KiB. One window at a time may use it.

    Parameters
    ----------
    most_nbytes
        What is given back beyond this is let go.
    """

    def __init__(self, most_nbytes: int) -> None:
        self._most_nbytes = most_nbytes
        self._free: list[NDArray[np.uint8]] = []
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> NDArray[Any]:
        """Return memory of that shape, with any content: free one that fits well, or new."""
        nbytes = math.prod(shape) * dtype.itemsize
        with self._lock:
            fitting = [m for m in self._free if nbytes <= m.size <= 2 * nbytes]
            memory = min(fitting, key=lambda m: m.size, default=None)
            if memory is not None:
                self._free = [m for m in self._free if m is not memory]
        if memory is None:
            memory = np.empty(nbytes, np.uint8)
        return memory[:nbytes].view(dtype).reshape(shape)

    def give(self, array: NDArray[Any]) -> None:
        """Take back what `take` returned; nobody may refer to it any more."""
        memory = array.base
        if not isinstance(memory, np.ndarray):
            return  # of no bytes
        with self._lock:
            if sum(m.size for m in self._free) + memory.size <= self._most_nbytes:
                self._free.append(memory)


class Window:
    """Loads parts 0, 1, 2 ... in a thread of its own, as the reader's progress permits.

    Parameters
    ----------
    permits
        Per part: how many samples must have been taken before it may be loaded.
    load
        Loads part `i`, into memory of `spare`.
    spare
        Gets the memory of parts that are done with.

    Notes
    -----
    `get`, `release` and `advance` belong to one reading thread.
    """

    def __init__(self, permits: Sequence[int], load: Callable[[int], Planes], spare: Spare) -> None:
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
                planes = self._load(i)
                with self._changed:
                    self._parts[i] = planes
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised by `get`, where somebody sees it
            with self._changed:
                self._failure = error
                self._changed.notify_all()

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
            planes = self._parts.pop(part)
        for array, _ in planes.values():
            self._spare.give(array)

    def close(self) -> None:
        """Stop loading, wait for the thread to end, and leave the memory to the next window."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        self._thread.join()
        for part in list(self._parts):
            self.release(part)
