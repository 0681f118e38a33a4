"""Repacks worth having: chunks for the access pattern, by every codec."""

from __future__ import annotations

import math
import random
from typing import Any

from numpy.typing import NDArray

from hyperslab.access import Access, chunk_shape_for
from hyperslab.advice.cost import request_cost
from hyperslab.advice.kinds import Kind
from hyperslab.advice.records import Machine, RepackOption
from hyperslab.advice.trial import try_repacks
from hyperslab.codecs.encode import CODECS

__all__ = ["repack_options"]


def repack_options(
    kind: Kind,
    pattern: Access,
    sample: NDArray[Any] | None,
    rates: dict[str, float],
    machine: Machine,
    *,
    dice: random.Random,
) -> list[RepackOption]:
    """Predict what requests would cost after a repack by every codec, quickest for us first.

    Parameters
    ----------
    kind, pattern
        What is repacked, and for which requests.
    sample
        Some of it; None, or elements that are no plain numbers, give no options. Neither does a
        kind that a repack would copy as it is.
    rates
        Of decoding it as it is, see `decode_rates`.
    machine
        Whose threads and disk count.
    dice
        Chooses places.
    """
    if (
        not kind.is_repackable
        or sample is None
        or not sample.size
        or sample.dtype.kind not in "biufc"
    ):
        return []
    shape, itemsize = kind.shape, sample.dtype.itemsize
    chunks = chunk_shape_for(pattern, shape, itemsize)
    cost = request_cost(pattern, shape, chunks, itemsize=itemsize)
    threads = max(1.0, min(machine.threads, kind.decoded_nbytes / math.prod(chunks) / itemsize))
    cold = machine.disk_cold and machine.disk_bytes_per_s
    found = []
    for trial in try_repacks(sample, pattern, shape, chunks, dice=dice):
        codec = trial.codec
        # A byte is decoded, encoded, written (to memory, at first), and read back.
        a_byte_s = (
            1 / rates["all_threads"]
            + (1 / codec.encode_bytes_per_s + 1 / codec.decode_bytes_per_s) / threads
            + 1 / (trial.write_bytes_per_s * codec.ratio)
        )
        found.append(
            RepackOption(
                codec=codec.codec,
                chunks=chunks,
                ratio=codec.ratio,
                stored_nbytes=int(kind.decoded_nbytes * kind.allocated / codec.ratio),
                repack_s=kind.decoded_nbytes * kind.allocated * a_byte_s,
                predicted_s={
                    "h5py": trial.h5py_s,
                    "hyperslab": trial.hyperslab_s,
                    "h5py_in_order": trial.h5py_s,
                    "hyperslab_in_order": trial.hyperslab_s,
                },
                disk_s=(
                    cost.decoded_nbytes / codec.ratio / machine.disk_bytes_per_s if cold else None
                ),
                needs_plugin=CODECS[codec.codec].needs_plugin,
            )
        )
    return sorted(found, key=lambda option: option.ours_s)
