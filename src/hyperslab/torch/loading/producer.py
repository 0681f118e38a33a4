"""`Producer`: the thread that makes an epoch's batches, a few ahead of whoever takes them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hyperslab.torch.dataset import SliceDataset
from hyperslab.torch.samples.planes import Parts

__all__ = ["Batch", "Fetch", "Producer"]

Batch = dict[str, Any]
Ints = NDArray[np.int64]

_END = object()


class Fetch(Protocol):
    """Gives the stored planes of visits, each once and in their order."""

    def __call__(self, a: int, b: int) -> Parts:
        """Return those of visits `a` to `b`."""

    def close(self) -> None:
        """Let go of threads."""


class Producer:
    """Makes batches in a thread of its own.

    Parameters
    ----------
    dataset
        Of the samples.
    samples
        In the order in which they are visited.
    batch
        Per visit: the number of its batch, the first one's being the lowest.
    fetch
        Gives their planes.
    finish
        What is done to a batch before it is handed out.
    prefetch
        Batches that wait ready.
    """

    def __init__(
        self,
        dataset: SliceDataset,
        samples: Ints,
        batch: Ints,
        fetch: Fetch,
        *,
        finish: Callable[[Batch], Batch],
        prefetch: int,
    ) -> None:
        self._dataset = dataset
        self._samples = samples
        self._batch = batch
        self._fetch = fetch
        self._finish = finish
        self._ready: queue.Queue[Any] = queue.Queue(prefetch)
        self._stop = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="hyperslab-loader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for members, columns in self._columns():
                if self._stop.is_set():
                    return
                self._put(self._finish(self._make(members, columns)))
            self._put(_END)
        except BaseException as error:  # noqa: BLE001 - raised by `next`, where somebody sees it
            self._put(error)

    def _columns(self) -> Any:
        """Yield for each batch its samples and, by input, their tensors, stacked or one by one."""
        numbers, from_end = np.unique(self._batch[::-1], return_index=True)
        last = dict(zip(numbers.tolist(), (self._batch.size - 1 - from_end).tolist(), strict=True))
        waiting: dict[int, list[tuple[int, dict[str, torch.Tensor]]]] = {}
        done = 0
        for number, end in last.items():
            if end >= done:
                a, done = done, end + 1
                owners = self._batch[a:done]
                positions = self._samples[a:done]
                columns = {
                    name: self._dataset.assembler.finish(name, parts, positions)
                    for name, parts in self._fetch(a, done).items()
                }
                if number not in waiting and (owners == number).all():
                    yield positions, columns
                    continue
                for j, owner in enumerate(owners.tolist()):
                    row = {name: tensors[j] for name, tensors in columns.items()}
                    waiting.setdefault(owner, []).append((int(positions[j]), row))
            rows = waiting.pop(number)
            members = np.array([position for position, _ in rows], np.int64)
            yield members, {name: [row[name] for _, row in rows] for name in rows[0][1]}

    def _make(
        self, members: Ints, columns: dict[str, torch.Tensor | Sequence[torch.Tensor]]
    ) -> Batch:
        batch: Batch = {
            name: tensors if isinstance(tensors, torch.Tensor) else torch.stack(list(tensors))
            for name, tensors in columns.items()
        }
        for name, values in self._dataset.assembler.samples.describe(members).items():
            if isinstance(values[0], torch.Tensor):
                batch[name] = torch.stack(values)
            else:
                batch[name] = torch.tensor(values) if isinstance(values[0], int) else values
        return self._dataset.transform_batch(batch)

    def _put(self, item: Any) -> None:
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def next(self) -> Batch | None:
        """Return the next batch, None after the last; raise what making it failed with."""
        if self._ended:
            return None
        item = self._ready.get()
        if item is _END:
            self._ended = True
            return None
        if isinstance(item, BaseException):
            raise item
        batch: Batch = item
        return batch

    def close(self) -> None:
        """Stop, and wait for the threads to end."""
        self._stop.set()
        self._fetch.close()
        self._thread.join()
