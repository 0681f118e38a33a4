"""`Epoch`: a number that the processes of a training set share."""

from __future__ import annotations

import operator
from typing import Any

import torch

__all__ = ["Epoch"]


class Epoch:
    """The epoch, in memory that forked and spawned processes share: setting it reaches all of them.

    A copy by plain pickle or `copy.deepcopy` has an epoch of its own.
    """

    def __init__(self) -> None:
        self._value = torch.zeros((), dtype=torch.int64)
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._share()

    def _share(self) -> None:
        self._value.share_memory_()  # type: ignore[no-untyped-call]

    def __int__(self) -> int:
        return int(self._value)

    def set(self, epoch: int) -> None:
        """Set it: 0 to 2**32 - 1.

        Raises
        ------
        ValueError
            It is out of that range.
        """
        if not 0 <= operator.index(epoch) < 1 << 32:
            raise ValueError(f"epoch is {epoch}; it may be 0 to 2**32 - 1")
        self._value.fill_(epoch)
