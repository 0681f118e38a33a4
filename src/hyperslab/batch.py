"""`read_many`: many parts of many arrays by one plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.array import Readable, View, check_out
from hyperslab.engine.read import read
from hyperslab.errors import OutputError
from hyperslab.selection import Selection, compose

__all__ = ["read_many"]


def read_many(
    requests: Iterable[tuple[Readable, Any]],
    *,
    out: NDArray[Any] | Sequence[NDArray[Any]] | None = None,
    threads: int | None = None,
) -> NDArray[Any] | list[NDArray[Any]]:
    """Read many parts of many arrays by one plan: a chunk that several need is decoded once.

    Parameters
    ----------
    requests
        Pairs of an array (or view) and a selection of it, e.g. ``[(a, np.s_[..., 5]), ...]``.
    out
        One array whose first axis runs over the requests, or one array for each request; writable,
        of the right shapes and dtypes. Filled and returned.
    threads
        Most threads to use; default: the configured number.

    Returns
    -------
    numpy.ndarray or list of numpy.ndarray
        `out` if given; else one new array with the requests along its first axis if all have one
        shape and dtype, or a list.

    Raises
    ------
    OutputError
        `out` does not fit; nothing has been read.
    SelectionError, StaleIndexError, DamagedFileError, ChunkDecodeError, ChecksumError
        As reading one by one. `out` may then be filled in part.

    Examples
    --------
    ``hs.read_many([(a, np.s_[..., 5]), (b, np.s_[..., 9])], out=batch)``
    """
    arrays: list[Readable] = []
    selections: list[Selection] = []
    for request in requests:
        try:
            array, index = request
        except (TypeError, ValueError):
            raise TypeError(
                f"read_many takes pairs of an array and a selection, such as (a, np.s_[..., 5]), "
                f"not {type(request).__name__}"
            ) from None
        if isinstance(array, View):
            arrays.append(array._base)
            selections.append(compose(array._fitting(), index))
        elif isinstance(array, Readable):
            arrays.append(array)
            selections.append(array._select(index))
        else:
            raise TypeError(
                f"read_many takes pairs of a hyperslab array and a selection, not "
                f"{type(array).__name__}. A group has no elements: name a dataset in it."
            )
    if out is None:
        out = _room(arrays, selections)
    elif len(out) != len(arrays):
        raise OutputError(
            f"out has room for {len(out)} results, but {len(arrays)} parts were asked for"
        )
    if isinstance(out, np.ndarray):
        places = [out[i, ...] for i in range(len(out))]
        # All the same: what holds for one row holds for the next.
        kinds = {(s.shape, a.dtype): a for a, s in zip(arrays, selections, strict=True)}
        for (shape, dtype), array in kinds.items():
            check_out(places[0], shape, dtype, **array._facts())
    else:
        places = list(out)
        for place, array, selection in zip(places, arrays, selections, strict=True):
            check_out(place, selection.shape, array.dtype, **array._facts())
    read(
        [(a.node, s, p) for a, s, p in zip(arrays, selections, places, strict=True)],
        threads=threads,
    )
    return out if isinstance(out, np.ndarray) else places


def _room(arrays: list[Readable], selections: list[Selection]) -> NDArray[Any] | list[NDArray[Any]]:
    """Return new memory: one array where all results are alike."""
    kinds = {(s.shape, a.dtype) for a, s in zip(arrays, selections, strict=True)}
    if len(kinds) == 1:
        shape, dtype = kinds.pop()
        return np.empty((len(arrays), *shape), dtype)
    return [np.empty(s.shape, a.dtype) for a, s in zip(arrays, selections, strict=True)]
