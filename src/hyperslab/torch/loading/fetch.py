"""Where a batch's planes come from: one plan a batch, or a window of decoded slabs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.torch.dataset import SliceDataset
from hyperslab.torch.loading.window import Planes, Spare, Window
from hyperslab.torch.order.order import BlockOrder, Slabs
from hyperslab.torch.samples.planes import Parts, TakeMemory

__all__ = ["Planned", "Windowed", "is_flat"]

Ints = NDArray[np.int64]

_AHEAD = 2  # parts that are loaded before they enter the window


def is_flat(slabs: Slabs) -> bool:
    """Tell whether every slab is one slice: then a window would save nothing."""
    return bool((np.diff(slabs.first) <= 1).all())


class Planned:
    """Fetches samples by one plan, straight into the batch's memory.

    Parameters
    ----------
    dataset
        Of the samples.
    samples
        In the order in which they are visited.
    take_memory
        Gives the batch's memory.
    threads
        Of a read.
    """

    def __init__(
        self,
        dataset: SliceDataset,
        samples: Ints,
        *,
        take_memory: TakeMemory,
        threads: int | None,
    ) -> None:
        self._dataset = dataset
        self._samples = samples
        self._take_memory = take_memory
        self._threads = threads

    def __call__(self, a: int, b: int) -> Parts:
        """Return the stored planes of visits `a` to `b`."""
        return self._dataset.assembler.fetch(
            self._samples[a:b], threads=self._threads, take_memory=self._take_memory
        )

    def close(self) -> None:
        """Do nothing: no thread was started."""


class Windowed:
    """Fetches samples out of a window of decoded slabs.

    Parameters
    ----------
    dataset, slabs
        What is visited.
    order
        Of the epoch.
    visits
        Which positions of the order are visited, increasing: after a resumption not all of them.
    spare
        The window's memory.
    take_memory
        Gives the batch's memory.
    threads
        Of a read.
    """

    def __init__(
        self,
        dataset: SliceDataset,
        slabs: Slabs,
        order: BlockOrder,
        visits: Ints,
        *,
        spare: Spare,
        take_memory: TakeMemory,
        threads: int | None,
    ) -> None:
        self._dataset = dataset
        self._slabs = slabs
        self._slab = order.slab
        self._spare = spare
        self._take_memory = take_memory
        self._threads = threads
        self._samples = order.samples[visits]
        self._part = order.part[visits]
        # Parts that nothing is left of are not loaded.
        self._left = np.bincount(self._part, minlength=order.slab.size)
        self._parts = np.flatnonzero(self._left)
        permits = np.searchsorted(visits, order.entered[self._parts])
        permits = np.concatenate([np.zeros(min(_AHEAD, permits.size), np.int64), permits[:-_AHEAD]])
        self._at = {part: i for i, part in enumerate(self._parts.tolist())}
        self._window = Window(permits.tolist(), self._load, spare)

    def _load(self, i: int) -> Planes:
        """Read one slab of every input, each slice contiguous, by one plan."""
        dataset = self._dataset
        assembler = dataset.assembler
        slab = int(self._slab[self._parts[i]])
        case = int(self._slabs.case[slab])
        shape = dataset.case_shapes[case].tolist()
        n = shape.pop(dataset.axis)
        planes: Planes = {}
        for name in dataset.inputs:
            before, after = assembler.samples.halo(name)
            a = max(0, int(self._slabs.begin[slab]) - before)
            b = min(n, int(self._slabs.end[slab]) + after)
            dtype = dataset.array(name, case).dtype
            planes[name] = self._spare.take((b - a, *shape), dtype), a

        def plan() -> tuple[list[tuple[Any, Any]], list[NDArray[Any]]]:
            requests, places = [], []
            for name, (memory, a) in planes.items():
                source, axis = assembler.reader.source(name, case, threads=self._threads)
                requests.append((source, (*(slice(None),) * axis, slice(a, a + len(memory)))))
                places.append(np.moveaxis(memory, 0, axis))
            return requests, places

        first, last = int(self._slabs.first[slab]), int(self._slabs.first[slab + 1])
        with assembler.naming_samples(range(first, last)):
            assembler.reader.read(plan, threads=self._threads)
        return planes

    def __call__(self, a: int, b: int) -> Parts:
        """Return the stored planes of visits `a` to `b`."""
        assembler = self._dataset.assembler
        positions = self._samples[a:b]
        parts = assembler.empty_parts(positions, self._take_memory)
        # Per sample: where its planes go, and which slices they are, input by input.
        places: list[list[tuple[str, NDArray[Any], list[int]]]] = [[] for _ in range(b - a)]
        for name, some in parts.items():
            slices = assembler.channels(name, positions).tolist()
            for part in some:
                for row, place in zip(part.rows, part.planes, strict=True):
                    places[row].append((name, place, slices[row]))
        for j, number in enumerate(self._part[a:b].tolist()):
            planes = self._window.get(self._at[number])
            for name, place, slices in places[j]:
                stored, first = planes[name]
                for channel, k in enumerate(slices):
                    place[channel] = stored[k - first]
            self._left[number] -= 1
            if not self._left[number]:
                self._window.release(self._at[number])
            self._window.advance(a + j + 1)
        return parts

    def close(self) -> None:
        """End the window's thread."""
        self._window.close()
