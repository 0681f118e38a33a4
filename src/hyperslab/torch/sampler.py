"""`BlockShuffle`: an order of samples that goes with the chunks, for any DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from torch.utils.data import Sampler

from hyperslab.torch.dataset import SliceDataset
from hyperslab.torch.order.order import Mixing, block_order, mixing
from hyperslab.torch.order.slabs import slabs_of
from hyperslab.torch.order.world import place_in_world

__all__ = ["BlockShuffle"]


class BlockShuffle(Sampler[int]):
    """Block-shuffled order of a `SliceDataset`'s samples, as a sampler for DataLoader.

    The slices that come out of the same chunks (a slab) are visited close together: slabs are
    shuffled over all cases, a window of as many as `memory_nbytes` hold is kept, and samples are
    drawn from it at random, each once. Two slabs at least are in the window.

    Parameters
    ----------
    dataset
        Whose samples are ordered.
    seed
        With the epoch, all that the order depends on.
    memory_nbytes
        What the window's slabs would take decoded.
    rank, world_size
        Which share of every epoch to visit; default: torch.distributed's, or all of it.
    uneven
        Where the samples do not divide by `world_size`: "pad" visits a few twice, "drop" leaves a
        few out. All ranks visit equally many.

    Notes
    -----
    In a DataLoader, every worker process keeps decoded chunks of its own: with several workers a
    chunk is decoded once in each of them that needs it, and `memory_nbytes` should not exceed the
    cache budget (`hyperslab.configure`). `SliceLoader` has one window for all of its threads.

    Examples
    --------
    ``DataLoader(ds, batch_size=32, sampler=BlockShuffle(ds, seed=0))``; call ``set_epoch`` before
    each epoch, as with DistributedSampler.
    """

    def __init__(
        self,
        dataset: SliceDataset,
        *,
        seed: int = 0,
        memory_nbytes: int = 256 << 20,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Literal["pad", "drop"] = "pad",
    ) -> None:
        self.dataset = dataset
        self.seed = seed
        self.memory_nbytes = memory_nbytes
        self.rank, self.world_size = place_in_world(rank, world_size)
        self.uneven = uneven
        self.epoch = 0
        self._slabs = slabs_of(dataset, memory_nbytes)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration gives."""
        self.epoch = epoch

    def __len__(self) -> int:
        n = len(self.dataset)
        return n // self.world_size if self.uneven == "drop" else -(-n // self.world_size)

    def __iter__(self) -> Iterator[int]:
        order = block_order(
            self._slabs,
            seed=self.seed,
            epoch=self.epoch,
            window_nbytes=self.memory_nbytes,
            rank=self.rank,
            world_size=self.world_size,
            drop=self.uneven == "drop",
        )
        return iter(order.samples.tolist())

    def mixing(self, batch_size: int) -> Mixing:
        """Measure how well this epoch's order mixes in batches of `batch_size`."""
        return mixing(np.fromiter(self, np.int64), self._slabs, batch_size)
