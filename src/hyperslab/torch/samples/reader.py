"""`CaseReader`: the datasets of a cohort's cases, or their decoded copies, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from numpy.typing import NDArray

from hyperslab.array import Array
from hyperslab.batch import read_many
from hyperslab.errors import DamagedFileError, MissingFileError, StaleIndexError
from hyperslab.index.container import FileIndex
from hyperslab.index.sidecar import SavedIndex, load_index
from hyperslab.torch.cohorts.cohort import Cohort
from hyperslab.torch.cohorts.kept_index import reopen
from hyperslab.torch.decoded.case_cache import CaseCache
from hyperslab.torch.samples.planes import Source

__all__ = ["CaseReader", "Plan"]

# What to read and where to: requests and places, as `read_many` takes them.
Plan = Callable[[], tuple[list[tuple[Any, Any]], list[NDArray[Any]]]]


class CaseReader:
    """Reads the cases of a cohort; pickles as what it needs to find the files again.

    Parameters
    ----------
    cohort
        Whose cases.
    containers
        Index of each file, where there is one yet.
    saved_as
        Path of the kept index, if there is one.
    cache
        Of decoded cases, if there is one.
    """

    def __init__(
        self,
        cohort: Cohort,
        containers: list[FileIndex | None],
        *,
        saved_as: str | None,
        cache: CaseCache | None,
    ) -> None:
        self.cohort = cohort
        self.cache = cache
        self._saved_as = saved_as
        self._saved: SavedIndex | None = None
        self._containers = containers
        self._arrays: dict[tuple[str, int], Array] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _renewed, (self.cohort, self._saved_as, self.cache)

    def of(self, cohort: Cohort) -> CaseReader:
        """Return a reader of other cases of the same files."""
        return CaseReader(cohort, self._containers, saved_as=self._saved_as, cache=self.cache)

    def touch(self, wanted: Iterable[tuple[str, int]]) -> None:
        """Have an array for each (input, case); all new ones of a file cost one visit to it."""
        by_file: dict[int, list[tuple[str, int]]] = {}
        for key in dict.fromkeys(wanted):
            if key not in self._arrays:
                by_file.setdefault(int(self.cohort.file_of[key[1]]), []).append(key)
        for number, keys in by_file.items():
            container = self._container(number)
            names = [self.cohort.dataset(*key) for key in keys]
            container.load(names, tables=True)
            self._arrays.update(
                (key, Array(container, name)) for key, name in zip(keys, names, strict=True)
            )

    def _container(self, number: int) -> FileIndex:
        container = self._containers[number]
        if container is None:
            if self._saved is None and self._saved_as is not None:
                self._saved = load_index(self._saved_as)
            container = self._containers[number] = reopen(self.cohort, number, self._saved)
        return container

    def array(self, name: str, case: int) -> Array:
        """Return the dataset of case number `case` in input `name`."""
        if (name, case) not in self._arrays:
            self.touch([(name, case)])
        return self._arrays[name, case]

    def source(self, name: str, case: int, *, threads: int | None) -> Source:
        """Return what to read case number `case` of input `name` from, and its slice axis.

        It is the decoded copy in the cache, put there now (with so many threads) if there is room,
        or else the dataset.
        """
        array, axis = self.array(name, case), self.cohort.axis
        if self.cache is not None:
            kept = self.cache.get(array, axis)
            if kept is None:
                kept = self.cache.fill(array, axis, threads=threads)
            if kept is not None:
                return kept, 0
        return array, axis

    def read(self, plan: Plan, *, threads: int | None) -> None:
        """Read what `plan` asks for; where a decoded copy has gone meanwhile, it is asked again."""
        while True:
            requests, places = plan()
            try:
                read_many(requests, out=places, threads=threads)
                return
            except (MissingFileError, StaleIndexError) as error:
                if self.cache is None or not self.cache.forget(error.file):
                    raise

    def spoilt(self, error: DamagedFileError) -> dict[int, range]:
        """Return by case the slices that `error` makes unreadable, as far as it names a dataset."""
        axis = self.cohort.axis
        spans: dict[int, range] = {}
        for (_, case), array in list(self._arrays.items()):
            if (array.index.file, array.index.name) != (error.file, error.dataset):
                continue
            spans[case] = range(array.shape[axis])
            if error.chunk is not None and array.chunks is not None:
                first = error.chunk[axis] * array.chunks[axis]
                spans[case] = spans[case][first : first + array.chunks[axis]]
        return spans


def _renewed(cohort: Cohort, saved_as: str | None, cache: CaseCache | None) -> CaseReader:
    return CaseReader(cohort, [None] * len(cohort.files), saved_as=saved_as, cache=cache)
