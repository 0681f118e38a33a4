"""`SliceLoader`: batches of slices, read ahead by threads while the model computes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hyperslab.errors import SampleError
from hyperslab.torch.dataset import SliceDataset
from hyperslab.torch.loading.buffers import Buffers
from hyperslab.torch.loading.fetch import Planned, Windowed, is_flat
from hyperslab.torch.loading.producer import Batch, Fetch, Producer
from hyperslab.torch.loading.report import LoaderReport
from hyperslab.torch.loading.window import Spare
from hyperslab.torch.order.batches import assign_batches, count_batches
from hyperslab.torch.order.order import (
    BlockOrder,
    Mixing,
    Slabs,
    block_order,
    block_samples,
    full_order,
    mixing,
)
from hyperslab.torch.order.slabs import slabs_of
from hyperslab.torch.order.world import place_in_world
from hyperslab.torch.transforms import Compose
from hyperslab.torch.transforms.base import Exact

__all__ = ["SliceLoader"]

Ints = NDArray[np.int64]


class SliceLoader:
    """Batches of a `SliceDataset`, made by threads of this process.

    A batch is a dict: each input (N, 1, H, W); ``"case"``: list of str; ``"slice"`` and
    ``"sample"``: int64 tensors (N,), the slice and the sample's number in the dataset; and what
    `transforms` make of them.

    Parameters
    ----------
    dataset
        Whose planes all have one shape, unless `buckets` are wanted.
    batch_size
        Samples in a batch.
    shuffle
        "block": slabs of neighbouring slices are decoded once and mixed in a window, see
        `hyperslab.torch.BlockShuffle`. "full": fully random, each batch read by one plan. False: in
        order.
    seed
        With the epoch, what the order (and the transforms' randomness) depends on.
    transforms
        Called with each batch in a loader's thread; one with `set_epoch` gets told the epoch. With
        a `device`, called with the batch there.
    memory_nbytes
        What the window of decoded slabs may take.
    drop_last
        Leave out a last batch that is not full.
    rank, world_size
        Which share of every epoch to load; default: torch.distributed's, or all of it.
    uneven
        Where the samples do not divide by `world_size`: "pad" repeats a few, "drop" leaves a few
        out. All ranks get equally many.
    buckets
        Make batches of samples of like H and W, for cases of different size. Batches that are not
        full, one for each size, come last. As ranks may have different numbers of them, "pad"
        repeats a rank's last batch, and "drop" leaves some out.
    prefetch
        Batches that wait ready.
    device
        Where batches are to be. For a CUDA device they are made in pinned memory, sent while the
        model computes, and transformed there.
    pin_memory
        Have the batches in pinned memory, for ``tensor.to(device, non_blocking=True)`` of your own.
    threads
        Threads that decode; default: the configured number.

    Raises
    ------
    SampleError
        The planes differ in shape, so that they make no batch.

    Notes
    -----
    Iterating again gives the next epoch only after `set_epoch`, as with DistributedSampler.
    Memory: the window, two slabs being read ahead, and `prefetch` batches. The memory of a batch is
    used again once no tensor refers to it any more; a batch may be kept as long as one likes.
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
        buckets: bool = False,
        prefetch: int = 2,
        device: torch.device | str | None = None,
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
        self.buckets = _buckets(dataset, buckets)
        self.prefetch = max(1, prefetch)
        self.device = None if device is None else torch.device(device)
        self._on_device = self.device is not None and self.device.type != "cpu"
        self.pin_memory = pin_memory
        self.threads = threads
        self.epoch = 0
        self._start = 0  # batches of the epoch that are left out, after a resumption
        self._done = 0
        self.report = LoaderReport()
        self._slabs: Slabs | None = None
        self._spare = Spare(memory_nbytes)
        pinned = self.device is not None and self.device.type == "cuda"
        self._buffers = Buffers(pinned=pinned)
        self._results: dict[Any, dict[str, tuple[tuple[int, ...], np.dtype]]] = {}
        dataset.check_loadable()

    @property
    def slabs(self) -> Slabs:
        """The dataset's slabs; found out once, which indexes every dataset's chunks."""
        if self._slabs is None:
            self._slabs = slabs_of(self.dataset, self.memory_nbytes)
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
        """Return the number of batches; with `buckets` it may change from epoch to epoch."""
        n = len(self.dataset)
        mine = n // self.world_size if self.uneven == "drop" else -(-n // self.world_size)
        if self.buckets is None:
            return mine // self.batch_size if self.drop_last else -(-mine // self.batch_size)
        counts = [self._count(rank) for rank in range(self.world_size)]
        return min(counts) if self.uneven == "drop" else max(counts)

    def _count(self, rank: int) -> int:
        """Return how many batches like to like give `rank`."""
        drop = self.uneven == "drop"
        if self.shuffle == "block":
            samples = block_samples(
                self.slabs,
                seed=self.seed,
                epoch=self.epoch,
                rank=rank,
                world_size=self.world_size,
                drop=drop,
            )
        else:
            samples = full_order(
                len(self.dataset),
                seed=self.seed,
                epoch=self.epoch,
                shuffle=self.shuffle == "full",
                rank=rank,
                world_size=self.world_size,
                drop=drop,
            )
        return count_batches(self._kinds(samples), self.batch_size, drop_last=self.drop_last)

    def _kinds(self, samples: Ints) -> Ints:
        """Return per sample what it has to agree in with the others of its batch."""
        if self.buckets is None:
            return np.zeros(samples.size, np.int64)
        return self.buckets[self.dataset.case_numbers[samples]]

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
        self.dataset.set_epoch(self.epoch)
        set_epoch = getattr(self.transforms, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        start, self._start = self._start, 0
        self._done = start
        self.report = LoaderReport()
        n_batches = len(self)
        producer = self._produce(start, n_batches)
        report = self.report
        began = time.perf_counter()
        batch: Batch | None = None
        in_flight: deque[tuple[Any, Batch]] = deque()
        try:
            while self._done < n_batches:
                asked = time.perf_counter()
                # Ranks whose buckets make fewer batches than another's repeat their last one.
                batch = producer.next() or batch
                now = time.perf_counter()
                if batch is None:
                    return
                self._done += 1
                report.batches += 1
                report.samples += len(batch["case"])
                report.waiting_s += now - asked
                report.seconds = now - began
                yield self._deliver(batch, in_flight)
        finally:
            producer.close()

    def _produce(self, start: int, n_batches: int) -> Producer:
        """Start making the batches from number `start` on."""
        order = self._order()
        samples = order.samples if isinstance(order, BlockOrder) else order
        batch = assign_batches(self._kinds(samples), self.batch_size, drop_last=self.drop_last)
        if n_batches and start > batch.max(initial=-1) >= 0:
            start = int(batch.max())  # the one that is repeated
        visits = np.flatnonzero((batch >= start) & (batch < n_batches))
        take_memory = self._buffers.take
        fetch: Fetch
        if isinstance(order, BlockOrder) and not is_flat(self.slabs):
            fetch = Windowed(
                self.dataset,
                self.slabs,
                order,
                visits,
                spare=self._spare,
                take_memory=take_memory,
                threads=self.threads,
            )
        else:
            fetch = Planned(
                self.dataset, samples[visits], take_memory=take_memory, threads=self.threads
            )
        return Producer(
            self.dataset,
            samples[visits],
            batch[visits],
            fetch,
            finish=self._finish,
            prefetch=self.prefetch,
        )

    def _finish(self, batch: Batch) -> Batch:
        """Transform a batch, in the producer's thread, unless a device is to do that."""
        if self.transforms is not None and not self._on_device:
            batch = self._transform(batch)
        if self.pin_memory:
            # PyTorch's own pinned memory: it knows until when a copy to a device reads from it.
            batch = _each_tensor(batch, torch.Tensor.pin_memory)
        return batch

    def _transform(self, batch: Batch) -> Batch:
        """Transform a batch, into memory of an earlier one where that is possible."""
        transforms = self.transforms
        if not isinstance(transforms, Compose):
            return batch if transforms is None else transforms(batch)
        if not transforms.transforms or not isinstance(transforms.transforms[-1], Exact):
            return transforms(batch)
        names = list(self.dataset.inputs)
        key = tuple(tuple(batch[name].shape[1:]) for name in names)
        n = len(batch["case"])
        known = self._results.get(key, {})
        out = {
            name: torch.from_numpy(self._buffers.take((n, *shape), dtype))
            for name, (shape, dtype) in known.items()
        }
        done = transforms(batch, out=out)
        self._results[key] = {
            name: (tuple(done[name].shape[1:]), done[name].numpy().dtype)
            for name in names
            if done[name].shape[1:] != batch[name].shape[1:]  # so it is new memory in any case
        }
        return done

    def _deliver(self, batch: Batch, in_flight: deque[tuple[Any, Batch]]) -> Batch:
        """Send a batch to the device, if there is one; keep its memory until it has arrived."""
        if not self._on_device:
            return batch
        sent = _each_tensor(batch, lambda t: t.to(self.device, non_blocking=True))
        if self.device is not None and self.device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            in_flight.append((event, batch))
            while in_flight and in_flight[0][0].query():
                in_flight.popleft()
        return sent if self.transforms is None else self.transforms(sent)

    def __repr__(self) -> str:
        return (
            f"<SliceLoader of {self.dataset!r}, batches of {self.batch_size}, "
            f"shuffle={self.shuffle!r}>"
        )


def _each_tensor(batch: Batch, function: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    return {k: function(v) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}


def _buckets(dataset: SliceDataset, wanted: bool) -> Ints | None:
    """Return per case the number of its plane's shape, if batches are to be of like shapes.

    Raises
    ------
    SampleError
        They are not, and the shapes differ.
    """
    shapes, kinds = np.unique(dataset.plane_shapes, axis=0, return_inverse=True)
    if wanted:
        return kinds.reshape(-1).astype(np.int64)
    if len(shapes) != 1:
        shown = ", ".join(str(tuple(shape)) for shape in shapes[:4].tolist())
        raise SampleError(
            f"{dataset.path}: planes of different shapes ({shown}) make no batch. Crop or pad them "
            "(SliceDataset(crop_or_pad=...)), or put like to like (SliceLoader(buckets=True)).",
            file=dataset.files[0],
        )
    return None
