"""How much of one dataset is damaged, for whoever has met the first damage of it."""

from __future__ import annotations

import numpy as np

from hyperslab.array import Array
from hyperslab.engine.node import Cells
from hyperslab.errors import HyperslabError
from hyperslab.index.build import bad_entries
from hyperslab.soundness.decode import Work, check_work
from hyperslab.soundness.examine import ALL_SKIPPED, past_the_end
from hyperslab.soundness.slices import of_chunks, rest, slice_words

__all__ = ["extent_of_damage"]


def extent_of_damage(array: Array, axis: int) -> str:
    """Say how many chunks of a damaged dataset are damaged, and which slices are whole.

    Parameters
    ----------
    array
        The dataset.
    axis
        The slice axis, not negative.

    Returns
    -------
    str
        A sentence; "" where that cannot be told: of a dataset without chunks, or whose chunks only
        the HDF5 library decodes, or whose file can no longer be read at all.

    Notes
    -----
    Decodes every chunk once, and keeps none.
    """
    try:
        node = array.node
        if not isinstance(node, Cells) or node.table is None or node.pipeline is None:
            return ""
        table, index = node.table, node.index
        bad = bad_entries(index, table.byte_offset, table.nbytes)
        inside = np.flatnonzero(~bad)
        number = np.arange(bad.size) if table.number is None else table.number
        mask = np.array(table.filter_mask)
        if table.unfiltered_edges:
            mask[past_the_end(number, array.shape, node.cell)] = ALL_SKIPPED
        work = Work(
            file=index.file,
            fingerprint=index.fingerprint,
            byte_offset=table.byte_offset[inside],
            nbytes=table.nbytes[inside],
            filter_mask=mask[inside],
            pipeline=node.pipeline,
            decoded_nbytes=node.decoded_nbytes,
        )
        check_work([work])
    except (HyperslabError, OSError):
        return ""  # then there is no more to be told than what was met first
    bad[inside[list(work.bad)]] = True
    if not bad.any():
        return ""
    whole = rest(of_chunks(number[bad], array.shape, node.cell, axis), array.shape[axis])
    return (
        f"{int(bad.sum())} of its {bad.size} chunks cannot be read; slices along axis {axis} that "
        f"are whole: {slice_words(whole)}."
    )
