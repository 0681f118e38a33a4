"""What is found out of a dataset by looking at every value once: extremes, moments, damage."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.array import Array
from hyperslab.engine.node import Cells
from hyperslab.errors import DamagedFileError, MissingObjectError, SampleError, StaleIndexError
from hyperslab.soundness.dataset import extent_of_damage
from hyperslab.torch.values.tally import Tally, add_values, cut_parts, quantiles_of

if TYPE_CHECKING:
    from hyperslab.torch.values.fact_store import FactStore

__all__ = ["DatasetFacts", "nonempty_slices", "survey", "survey_dataset"]

_PART_NBYTES = 64 << 20  # read at a time
_KEEP_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DatasetFacts:
    """What the values of one dataset are like, or why they cannot be read.

    All numbers are float64, and exact for what float64 holds (integers up to 2**53). NaN and
    infinities in the data are left out of every one of them.

    Attributes
    ----------
    damage
        Why the dataset cannot be read, with file and dataset, how many chunks are damaged and which
        slices are not; then all else is absent. None where every value could be read.
    low, high
        float64, (slices,): smallest and largest value of each slice; NaN for a slice without any.
    mean, std
        Of the whole volume; `std` is the population's (divided by the number of values). NaN where
        there are no values, infinite or NaN where their sums leave float64.
    quantiles
        Percent to value, as `numpy.percentile` defines it with linear interpolation.
    """

    damage: str | None = None
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None
    mean: float | None = None
    std: float | None = None
    quantiles: dict[float, float] = field(default_factory=dict)

    def has(self, quantiles: Sequence[float]) -> bool:
        """Tell whether the dataset was found sound and all of `quantiles` are known."""
        return self.damage is None and all(q in self.quantiles for q in quantiles)


def nonempty_slices(facts: DatasetFacts, *, threshold: float) -> NDArray[np.bool_]:
    """Tell which slices have a value above `threshold`; for a mask, 0.

    Returns
    -------
    numpy.ndarray
        bool, (slices,). A slice without finite values counts as empty.

    Raises
    ------
    SampleError
        The dataset is damaged.
    """
    if facts.high is None:
        raise SampleError(
            f"which slices are empty is not known, since the dataset cannot be read: {facts.damage}"
        )
    return facts.high > threshold


def survey_dataset(
    array: Array,
    axis: int,
    *,
    quantiles: Sequence[float] = (),
    known: DatasetFacts | None = None,
) -> DatasetFacts:
    """Look at every value of `array` once.

    Parameters
    ----------
    array
        Of booleans, integers or real numbers.
    axis
        The slice axis.
    quantiles
        In percent, 0 to 100.
    known
        What is known of the dataset already; where nothing is lacking, it is returned, and nothing
        is read. Known damage is looked at again, for it may have been repaired.

    Returns
    -------
    DatasetFacts
        Those of `quantiles` and of `known` together. Damage, a missing source or another failure of
        the operating system to read is its `damage`, not an error.

    Raises
    ------
    SampleError
        Complex values, which have no order.
    StaleIndexError
        The file has changed since it was indexed.
    MissingCodecError
        A filter that nothing installed here decodes.
    ValueError
        There is no such axis or quantile.

    Notes
    -----
    Every chunk is fetched and decoded once, with the engine's threads, and none goes to the cache.
    A virtual dataset of more than 64 MiB may have its sources' chunks decoded more often.

    Peak memory: 64 MiB (or one chunk, if that is more) and 2 MiB to compute in. For quantiles the
    whole volume in its stored dtype takes the place of the 64 MiB.
    """
    return _survey(array, _check(array, axis, quantiles), quantiles, known, _Room())


def survey(
    wanted: Sequence[tuple[Array, int]],
    *,
    quantiles: Sequence[float] = (),
    store: FactStore | None = None,
    progress: bool = False,
) -> list[DatasetFacts]:
    """Look at every value of many datasets once, and never again.

    Parameters
    ----------
    wanted
        Pairs of a dataset and its slice axis.
    quantiles
        As in `survey_dataset`, for all of them.
    store
        What it has is taken from it; what is new goes there, now and then and at the end, so that
        an interrupted survey goes on where it was. None: nothing is kept.
    progress
        Show a progress bar on the terminal (on stderr).

    Returns
    -------
    list of DatasetFacts
        In the order of `wanted`.

    Raises
    ------
    SampleError, StaleIndexError, MissingCodecError, ValueError
        As `survey_dataset`.

    Warns
    -----
    PerformanceWarning
        The facts cannot be stored.
    """
    wanted = [(array, _check(array, axis, quantiles)) for array, axis in wanted]
    found = [None if store is None else store.get(array, axis) for array, axis in wanted]
    todo = [i for i, known in enumerate(found) if known is None or not known.has(quantiles)]
    room = _Room()
    try:
        with _bar(progress and bool(todo), sum(wanted[i][0].nbytes for i in todo)) as advance:
            began, pause = time.monotonic(), _KEEP_EVERY_S
            for i in todo:
                array, axis = wanted[i]
                found[i] = facts = _survey(array, axis, quantiles, found[i], room)
                advance(array.nbytes)
                if store is None:
                    continue
                store.put(array, axis, facts)
                if (now := time.monotonic()) - began > pause:
                    store.flush()
                    began = time.monotonic()
                    pause = max(_KEEP_EVERY_S, 20 * (began - now))  # at most 5 % of the time
    finally:
        if store is not None:
            store.flush()
    return [facts for facts in found if facts is not None]  # none is missing by now


class _Room:
    """Memory that is used again and again: fresh memory costs page faults."""

    __slots__ = ("_memory",)

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def array(self, shape: Sequence[int], dtype: np.dtype) -> NDArray[Any]:
        """Return room for an array, in the memory of the one before."""
        nbytes = math.prod(shape) * dtype.itemsize
        if self._memory.nbytes < nbytes:
            self._memory = np.empty(0, np.uint8)  # not both at once
            self._memory = np.empty(nbytes, np.uint8)
        return self._memory[:nbytes].view(dtype).reshape(shape)


def _check(array: Array, axis: int, quantiles: Sequence[float]) -> int:
    """Return the axis, not negative; raise where a survey makes no sense."""
    if array.dtype.kind == "c":
        raise SampleError(
            f"{array.file}: {array.name} holds {array.dtype}. Complex values have no order, so "
            "they have no extremes and no quantiles: scale them in a transform of your own.",
            file=array.file,
            dataset=array.name,
        )
    if not -array.ndim <= operator.index(axis) < array.ndim:
        raise ValueError(f"axis is {axis}, but {array.name} has {array.ndim} axes")
    if bad := [q for q in quantiles if not 0 <= q <= 100]:
        raise ValueError(f"quantiles are in percent, 0 to 100, not {bad}")
    return operator.index(axis) % array.ndim


def _survey(
    array: Array,
    axis: int,
    quantiles: Sequence[float],
    known: DatasetFacts | None,
    room: _Room,
) -> DatasetFacts:
    if known is not None and known.has(quantiles):
        return known
    try:
        return _look(array, axis, quantiles, known, room)
    except StaleIndexError:
        raise
    except (OSError, MissingObjectError) as error:
        told, index = str(error), array.index
        named = getattr(error, "file", None), getattr(error, "dataset", None)
        if named != (index.file, index.name):
            told = f"{array.file}: {array.name} cannot be read: {told}"
        if isinstance(error, DamagedFileError) and (extent := extent_of_damage(array, axis)):
            told = f"{told} In all, {extent}"
        return DatasetFacts(damage=told)


def _look(
    array: Array,
    axis: int,
    quantiles: Sequence[float],
    known: DatasetFacts | None,
    room: _Room,
) -> DatasetFacts:
    shape, dtype, node = array.shape, array.dtype, array.node
    if quantiles:
        cell, most = shape, array.size
    else:
        cell = node.cell if isinstance(node, Cells) else (1,) * array.ndim
        most = _PART_NBYTES // dtype.itemsize
    tally = Tally(np.full(shape[axis], np.inf), np.full(shape[axis], -np.inf))
    values = np.empty(0, dtype)
    for part in cut_parts(shape, cell, most):
        values = room.array([cut.stop - cut.start for cut in part], dtype)
        array.read(part, out=values)
        add_values(tally, values, axis, part[axis].start)
    known_quantiles = {} if known is None else known.quantiles
    low, high = tally.low.min(initial=np.inf), tally.high.max(initial=-np.inf)
    if low == high:  # all values are one: sums would round
        tally.mean, tally.squares = float(low), 0.0
    tally.low[np.isinf(tally.low)] = np.nan
    tally.high[np.isinf(tally.high)] = np.nan
    return DatasetFacts(
        low=tally.low,
        high=tally.high,
        mean=tally.mean if tally.n else math.nan,
        std=math.sqrt(tally.squares / tally.n) if tally.n else math.nan,
        quantiles={**known_quantiles, **quantiles_of(values, quantiles, tally)},
    )


@contextmanager
def _bar(shown: bool, nbytes: int) -> Iterator[Callable[[int], None]]:
    """Yield what is called with the bytes done; it moves a progress bar where one is wanted."""
    if not shown:
        yield lambda nbytes: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("looking at values", total=nbytes)
        yield lambda nbytes: bar.advance(task, nbytes)
