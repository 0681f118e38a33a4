"""Which of how many processes this one is."""

from __future__ import annotations

import torch

__all__ = ["place_in_world"]


def place_in_world(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size: as given, else torch.distributed's, else of a single process.

    Raises
    ------
    ValueError
        Only one of the two is given, or they do not fit.
    """
    if rank is None and world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise ValueError(f"give rank and world_size together, 0 <= rank < world_size, not {rank} "
                         f"and {world_size}")  # fmt: skip
    return rank, world_size
