"""Slices of a cohort file for PyTorch. Needs the extra: ``pip install '.[torch]'`` in a clone.

`SliceDataset` is a map-style dataset of paired 2-D slices, read in place out of one HDF5 file; it
goes into `torch.utils.data.DataLoader` under every start method. `SliceLoader` makes batches of it
in threads, `BlockShuffle` orders samples with the chunks, `transforms` augment whole batches.
"""

from __future__ import annotations

from hyperslab.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise  # PyTorch is there, and something that it needs is not
    raise MissingExtraError(
        "hyperslab.torch needs PyTorch, which is not installed here. Install it with: "
        "pip install 'hyperslab[torch]' (in a clone of it: pip install '.[torch]')",
        package="torch",
        extra="torch",
    ) from error

from hyperslab.torch import scaling, transforms
from hyperslab.torch.cohorts.split import k_folds, split_cases
from hyperslab.torch.dataset import SliceDataset
from hyperslab.torch.loader import SliceLoader
from hyperslab.torch.sampler import BlockShuffle

__all__ = [
    "BlockShuffle",
    "SliceDataset",
    "SliceLoader",
    "k_folds",
    "scaling",
    "split_cases",
    "transforms",
]
