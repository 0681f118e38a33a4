"""`SliceLoader`: batches of slices, read ahead by threads while the model computes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hyperslab.array import Array
from hyperslab.batch import read_many
from hyperslab.errors import SampleError
from hyperslab.torch.dataset import SliceDataset
from hyperslab.torch.order import (
    BlockOrder,
    Mixing,
    Slabs,
    block_order,
    full_order,
    mixing,
)
from hyperslab.torch.requests import slice_requests
from hyperslab.torch.slabs import slabs_of
from hyperslab.torch.window import Planes, Spare, TakeMemory, Window
from hyperslab.torch.world import place_in_world

__all__ = ["LoaderReport", "SliceLoader"]

Batch = dict[str, Any]
Ints = NDArray[np.int64]

_AHEAD = 2  # parts that are loaded before they enter the window


@dataclass(slots=True, kw_only=True)
class LoaderReport:
    """What an epoch's loading took, so far.

    Attributes
    ----------
    samples, batches
        Handed out.
    seconds
        From the first batch asked for to the last one handed out.
    waiting_s
        Of these, how long the caller waited for the loader. Near 0: the model is the bottleneck;
        near `seconds`: the loader is.
    """

    samples: int = 0
    batches: int = 0
    seconds: float = 0.0
    waiting_s: float = 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples handed out per second."""
        return self.samples / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        share = self.waiting_s / self.seconds if self.seconds else 0.0
        which = "the loader" if share > 0.5 else "the model"
        return (
            f"{self.samples} samples, {self.samples_per_s:.0f} per second, {share:.0%} of the time "
            f"waiting for data: {which} is the bottleneck"
        )


class SliceLoader:
    """Batches of a `SliceDataset`, made by threads of this process.

    A batch is a dict: each input (N, 1, H, W); ``"case"``: list of str; ``"slice"`` and
    ``"sample"``: int64 tensors (N,), the slice and the sample's number in the dataset; and what
    `transforms` make of them.

    Parameters
    ----------
    dataset
        Whose planes all have one shape.
    batch_size
        Samples in a batch.
    shuffle
        "block": slabs of neighbouring slices are decoded once and mixed in a window, see
        `hyperslab.torch.BlockShuffle`. "full": fully random, each batch read by one plan. False: in
        order.
    seed
        With the epoch, what the order (and the transforms' randomness) depends on.
    transforms
        Called with each batch in a loader's thread; one with `set_epoch` gets told the epoch.
    memory_nbytes
        What the window of decoded slabs may take.
    drop_last
        Leave out a last batch that is not full.
    rank, world_size
        Which share of every epoch to load; default: torch.distributed's, or all of it.
    uneven
        Where the samples do not divide by `world_size`: "pad" repeats a few, "drop" leaves a few
        out. All ranks get equally many.
    prefetch
        Batches that wait ready.
    pin_memory
        Have the batches in pinned memory, for ``tensor.to(device, non_blocking=True)``.
    threads
        Threads that decode; default: the configured number.

    Raises
    ------
    SampleError
        The planes differ in shape, so that they make no batch.

    Notes
    -----
    Iterating again gives the next epoch only after `set_epoch`, as with DistributedSampler.
    Memory: the window, two slabs being read ahead, and `prefetch` batches.
    """

    def __init__(
        self,
        dataset: SliceDataset,
        *,
        batch_size: int = 32,
        shuffle: Literal["block", "full", False] = "block",
        seed: int = 0,
        transforms: Callable[[Batch], Batch] | None = None,
        memory_nbytes: int = 1 << 30,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Literal["pad", "drop"] = "pad",
        prefetch: int = 2,
        pin_memory: bool = False,
        threads: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        if shuffle not in ("block", "full", False):
            raise ValueError(f"shuffle must be 'block', 'full' or False, not {shuffle!r}")
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.transforms = transforms
        self.memory_nbytes = memory_nbytes
        self.drop_last = drop_last
        self.rank, self.world_size = place_in_world(rank, world_size)
        self.uneven = uneven
        self.prefetch = max(1, prefetch)
        self.pin_memory = pin_memory
        self.threads = threads
        self.epoch = 0
        self._start = 0  # batches of the epoch that are left out, after a resumption
        self._done = 0
        self.report = LoaderReport()
        self._plane = _one_plane(dataset)
        self._slabs: Slabs | None = None
        self._spare: Spare = {}

    @property
    def slabs(self) -> Slabs:
        """The dataset's slabs; found out once, which indexes every dataset's chunks."""
        if self._slabs is None:
            self._slabs = slabs_of(self.dataset)
        return self._slabs

    def _order(self) -> Ints | BlockOrder:
        drop = self.uneven == "drop"
        if self.shuffle == "block":
            return block_order(
                self.slabs,
                seed=self.seed,
                epoch=self.epoch,
                window_nbytes=self.memory_nbytes,
                rank=self.rank,
                world_size=self.world_size,
                drop=drop,
            )
        return full_order(
            len(self.dataset),
            seed=self.seed,
            epoch=self.epoch,
            shuffle=self.shuffle == "full",
            rank=self.rank,
            world_size=self.world_size,
            drop=drop,
        )

    def __len__(self) -> int:
        n = len(self.dataset)
        mine = n // self.world_size if self.uneven == "drop" else -(-n // self.world_size)
        return mine // self.batch_size if self.drop_last else -(-mine // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration gives; it begins at its first batch."""
        self.epoch = epoch
        self._start = self._done = 0

    def state_dict(self) -> dict[str, int]:
        """Return where in which epoch the loader is: what `load_state_dict` goes on from."""
        return {"seed": self.seed, "epoch": self.epoch, "batches": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where `state_dict` was taken: the next iteration begins with the next batch."""
        self.seed, self.epoch = state["seed"], state["epoch"]
        self._start = self._done = state["batches"]

    def mixing(self) -> Mixing:
        """Measure how well this epoch's order mixes; see `Mixing`."""
        order = self._order()
        samples = order.samples if isinstance(order, BlockOrder) else order
        return mixing(samples, self.slabs, self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        set_epoch = getattr(self.transforms, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        start, self._start = self._start, 0
        self._done = start
        self.report = LoaderReport()
        producer = _Producer(self, self._order(), start)
        began = time.perf_counter()
        try:
            while True:
                asked = time.perf_counter()
                batch = producer.next()
                now = time.perf_counter()
                if batch is None:
                    return
                self._done += 1
                report = self.report
                report.batches += 1
                report.samples += len(batch["case"])
                report.waiting_s += now - asked
                report.seconds = now - began
                yield batch
        finally:
            producer.close()

    def __repr__(self) -> str:
        return (
            f"<SliceLoader of {self.dataset!r}, batches of {self.batch_size}, "
            f"shuffle={self.shuffle!r}>"
        )


def _one_plane(dataset: SliceDataset) -> tuple[int, int]:
    planes = np.delete(dataset.case_shapes, dataset.axis, axis=1)
    kinds = np.unique(planes, axis=0)
    if len(kinds) != 1:
        shown = ", ".join(str(tuple(kind)) for kind in kinds[:4].tolist())
        raise SampleError(
            f"{dataset.path}: planes of different shapes ({shown}) make no batch. Take cases of "
            "one shape, or use a DataLoader with a collate_fn that crops or pads.",
            file=dataset.path,
        )
    height, width = kinds[0].tolist()
    return height, width


_END = object()


class _Producer:
    """A thread that makes the batches of one epoch, a few ahead of whoever takes them."""

    def __init__(self, loader: SliceLoader, order: Ints | BlockOrder, start: int) -> None:
        self._loader = loader
        self._ready: queue.Queue[Any] = queue.Queue(loader.prefetch)
        self._stop = threading.Event()
        samples = order.samples if isinstance(order, BlockOrder) else order
        n = len(loader) * loader.batch_size
        edges = range(start * loader.batch_size, min(n, samples.size), loader.batch_size)
        self._batches = [(i, min(i + loader.batch_size, samples.size)) for i in edges]
        self._samples = samples
        if isinstance(order, BlockOrder) and not _is_flat(loader.slabs):
            self._fetch: Callable[[int, int], dict[str, NDArray[Any]]] = _Windowed(
                loader, order, start * loader.batch_size
            )
        else:
            self._fetch = _Planned(loader, samples)
        self._thread = threading.Thread(target=self._run, name="hyperslab-loader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for a, b in self._batches:
                if self._stop.is_set():
                    return
                self._put(self._make(a, b))
            self._put(_END)
        except BaseException as error:  # noqa: BLE001 - raised by `next`, where somebody sees it
            self._put(error)

    def _make(self, a: int, b: int) -> Batch:
        loader = self._loader
        dataset = loader.dataset
        positions = self._samples[a:b]
        batch: Batch = {
            name: dataset.tensor(name, planes, positions.tolist())
            for name, planes in self._fetch(a, b).items()
        }
        cases = dataset.case_numbers[positions].tolist()
        batch["case"] = [dataset.cases[case] for case in cases]
        batch["slice"] = torch.from_numpy(dataset.slice_numbers[positions].astype(np.int64))
        batch["sample"] = torch.from_numpy(positions.astype(np.int64))
        if loader.transforms is not None:
            batch = loader.transforms(batch)
        if loader.pin_memory:
            batch = {
                k: v.pin_memory() if isinstance(v, torch.Tensor) else v for k, v in batch.items()
            }
        return batch

    def _put(self, item: Any) -> None:
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def next(self) -> Batch | None:
        """Return the next batch, None after the last; raise what making it failed with."""
        item = self._ready.get()
        if item is _END:
            return None
        if isinstance(item, BaseException):
            raise item
        batch: Batch = item
        return batch

    def close(self) -> None:
        """Stop, and wait for the threads to end."""
        self._stop.set()
        if isinstance(self._fetch, _Windowed):
            self._fetch.close()
        self._thread.join()


def _is_flat(slabs: Slabs) -> bool:
    """Tell whether every slab is one slice: then a window would save nothing."""
    return bool((np.diff(slabs.first) <= 1).all())


class _Planned:
    """Fetches a batch by one plan, straight into the batch's memory."""

    def __init__(self, loader: SliceLoader, samples: Ints) -> None:
        self._loader = loader
        self._samples = samples

    def __call__(self, a: int, b: int) -> dict[str, NDArray[Any]]:
        loader = self._loader
        dataset = loader.dataset
        positions = self._samples[a:b]
        cases = dataset.case_numbers[positions].tolist()
        slices = dataset.slice_numbers[positions].tolist()
        found: dict[str, NDArray[Any]] = {}
        requests: list[tuple[Array, Any]] = []
        places: list[NDArray[Any]] = []
        for name in dataset.inputs:
            arrays = [dataset.array(name, case) for case in cases]
            dtype = np.result_type(*{array.dtype for array in arrays})
            found[name] = np.empty((b - a, *loader._plane), dtype)
            if all(array.dtype == dtype for array in arrays):
                wanted, into = slice_requests(arrays, slices, dataset.axis, found[name])
                requests += wanted
                places += into
                continue
            lead = (slice(None),) * dataset.axis
            for i, (array, k) in enumerate(zip(arrays, slices, strict=True)):
                found[name][i] = array[(*lead, k)]
        with dataset.naming_samples(positions.tolist()):
            read_many(requests, out=places, threads=loader.threads)
        return found


class _Windowed:
    """Fetches a batch out of a window of decoded slabs."""

    def __init__(self, loader: SliceLoader, order: BlockOrder, start: int) -> None:
        self._loader = loader
        self._order = order
        dataset, slabs = loader.dataset, loader.slabs
        # After a resumption: parts that nothing is left of are not loaded again.
        self._left = np.bincount(order.part[start:], minlength=order.slab.size)
        self._parts = np.flatnonzero(self._left)
        permits = np.maximum(order.entered - start, 0)[self._parts]
        permits = np.concatenate([np.zeros(min(_AHEAD, permits.size), np.int64), permits[:-_AHEAD]])
        self._at = {part: i for i, part in enumerate(self._parts.tolist())}
        self._case = slabs.case[order.slab]
        first = slabs.first[order.slab]
        self._begin = dataset.slice_numbers[first].astype(np.int64)
        self._end = self._begin + np.diff(slabs.first)[order.slab]
        self._depth = int(np.diff(slabs.first).max())
        self._start = start
        self._window = Window(permits.tolist(), self._load, loader._spare)

    def _load(self, i: int, take_memory: TakeMemory) -> Planes:
        """Read one slab of every input, each slice contiguous, by one plan."""
        part = int(self._parts[i])
        loader = self._loader
        dataset = loader.dataset
        axis = dataset.axis
        case, a, b = int(self._case[part]), int(self._begin[part]), int(self._end[part])
        planes: Planes = {}
        requests: list[tuple[Array, Any]] = []
        places: list[NDArray[Any]] = []
        for name in dataset.inputs:
            array = dataset.array(name, case)
            memory = take_memory((self._depth, *loader._plane), array.dtype)
            planes[name] = memory
            requests.append((array, (*(slice(None),) * axis, slice(a, b))))
            places.append(np.moveaxis(memory[: b - a], 0, axis))
        first = int(loader.slabs.first[self._order.slab[part]])
        with dataset.naming_samples(range(first, first + b - a)):
            read_many(requests, out=places, threads=loader.threads)
        return planes

    def __call__(self, a: int, b: int) -> dict[str, NDArray[Any]]:
        dataset, order = self._loader.dataset, self._order
        parts = order.part[a:b]
        inside = dataset.slice_numbers[order.samples[a:b]] - self._begin[parts]
        found: dict[str, NDArray[Any]] = {}
        for j, (part, k) in enumerate(zip(parts.tolist(), inside.tolist(), strict=True)):
            planes = self._window.get(self._at[part])
            for name, stored in planes.items():
                if name not in found:
                    found[name] = np.empty((b - a, *stored.shape[1:]), stored.dtype)
                found[name][j] = stored[k]
            self._left[part] -= 1
            if not self._left[part]:
                self._window.release(self._at[part])
            self._window.advance(a + j + 1 - self._start)
        return found

    def close(self) -> None:
        """End the window's thread."""
        self._window.close()
