"""`SliceDataset`: paired 2-D slices of a cohort file, as a map-style PyTorch dataset."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, get_worker_info

from hyperslab.array import Array
from hyperslab.batch import read_many
from hyperslab.engine.limits import available_cpus, limits
from hyperslab.errors import DamagedFileError, SampleError, SelectionError, StaleIndexError
from hyperslab.file import open_file
from hyperslab.index.container import FileIndex
from hyperslab.torch.cohort import build_cohort
from hyperslab.torch.dtypes import DTypes, check_dtype, convert, tensor_dtypes
from hyperslab.torch.requests import slice_requests

__all__ = ["SliceDataset"]

_INPUTS: Mapping[str, str] = MappingProxyType({"A": "MR", "B": "CT", "M": "MASK"})


class SliceDataset(Dataset[dict[str, Any]]):
    """Paired slices of one file: sample `i` is one slice of one case, out of every input.

    A case is one patient: a 3-D dataset of the same name and shape in the group of each input.
    A sample is a dict:

    - each input's name: torch.Tensor of shape (1, H, W), float32 unless `dtype` says otherwise; H
      and W are the case's other two axes, in stored order;
    - ``"case"``: str, the case's name;
    - ``"slice"``: int, position along `axis`;
    - ``"sample"``: int, the sample's number, which transforms key their randomness by.

    Samples are in order of case (natural order: "p2" before "p10"), then slice. Masks come as
    float32 too, and since nothing is interpolated they keep their labels exactly (up to 2**24);
    ``dtype={"M": "int64"}`` gives class indices.

    Parameters
    ----------
    path
        HDF5 file. It is read in place and never locked.
    inputs
        Input name to the group that holds its datasets, by default A = MR (source), B = CT
        (target), M = MASK. A group alone, or a list of groups, is its own name.
    axis
        Slice axis of the stored datasets: -1 for (H, W, slices), 0 for (slices, H, W).
    cases
        Names of the cases to take, in any order, e.g. those of a training split. Default: all.
    dtype
        NumPy or torch dtype of the tensors, or None for the stored one; or a mapping from input to
        that, where inputs left out are float32. A float dtype rounds; an integer one has to hold
        the values exactly; bool is True where the value is not zero.

    Raises
    ------
    SampleError
        The inputs do not pair up: a group or a case is missing, shapes differ or are not 3-D, or a
        stored dtype does not convert to `dtype`. The message lists file, groups and cases; the
        attributes are `file`, `cases` and `inputs`. It is a ValueError.
    MissingFileError, NotHDF5Error, UnsupportedDtypeError, MissingSourceError
        What opening the file and its datasets raises.

    Warns
    -----
    FileInUseWarning
        Another process has the file open for writing.

    Notes
    -----
    *Workers.* Holds no HDF5 handle and no lock between calls, and pickles as the list of its cases:
    tens of bytes a case. In a worker process it indexes what it reads, and uses that worker's share
    of the CPUs (available CPUs / workers, and no more than the configured threads). Every process
    keeps decoded chunks of its own; `hyperslab.configure`, or HYPERSLAB_CACHE_MB in the
    environment, says how many bytes.

    *Subclasses* that override `__getitem__` get it called for batches as well, sample by sample.
    Overriding `__getitems__` too keeps reading a batch by one plan.

    *Ragged cases.* H and W may differ between cases. Each sample is right by itself; stacking
    them, as DataLoader's default collation does, needs a crop or pad first.

    *Cost.* Construction indexes every dataset, a few tenths of a millisecond each, and keeps 8
    bytes a sample; chunk tables are read when a case is first read.

    Examples
    --------
    >>> from hyperslab.testing import make_cohort
    >>> _ = make_cohort("cohort.h5", n_cases=2, shape=(32, 32, 5))
    >>> ds = SliceDataset("cohort.h5", inputs={"A": "MR", "B": "CT"})
    >>> len(ds), ds.sample(-1)
    (10, ('1PB002', 4))
    >>> ds[7]["A"].shape, ds[7]["case"], ds[7]["slice"]
    (torch.Size([1, 32, 32]), '1PB002', 2)
    >>> loader = torch.utils.data.DataLoader(ds, batch_size=4, shuffle=True)
    >>> next(iter(loader))["B"].shape
    torch.Size([4, 1, 32, 32])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        inputs: Mapping[str, str] | Sequence[str] | str = _INPUTS,
        axis: int = -1,
        cases: Iterable[str] | str | None = None,
        dtype: DTypes = "float32",
    ) -> None:
        # Through the File once, for its warning that somebody is writing.
        container = FileIndex(open_file(path).path)
        self._cohort = build_cohort(container, inputs=inputs, axis=axis, cases=cases)
        self._dtypes = tensor_dtypes(tuple(self._cohort.inputs), dtype)
        for name, wanted in self._dtypes.items():
            for i in range(len(self._cohort.cases)):
                dataset = self._cohort.dataset(name, i)
                stored = container.dataset(dataset).dtype
                check_dtype(stored, wanted, path=container.path, dataset=dataset)
        self._begin(container)

    def _begin(self, container: FileIndex | None) -> None:
        """Set what a pickle leaves out."""
        self._container = container
        self._arrays: dict[tuple[str, int], Array] = {}
        n_slices = self._cohort.shapes[:, self._cohort.axis]
        first = np.cumsum(n_slices) - n_slices
        # Per sample: the number of its case, and its slice.
        self._case = np.repeat(np.arange(n_slices.size, dtype=np.int32), n_slices)
        self._slice = (np.arange(self._case.size) - first[self._case]).astype(np.int32)

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_container", "_arrays", "_case", "_slice")
        return {key: value for key, value in self.__dict__.items() if key not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin(None)

    @property
    def path(self) -> str:
        """Absolute path of the file."""
        return self._cohort.path

    @property
    def inputs(self) -> dict[str, str]:
        """Input name to group, an absolute HDF5 path; a copy."""
        return dict(self._cohort.inputs)

    @property
    def axis(self) -> int:
        """The slice axis: 0, 1 or 2."""
        return self._cohort.axis

    @property
    def cases(self) -> tuple[str, ...]:
        """Names of the cases, in the order of their samples."""
        return self._cohort.cases

    def sample(self, index: int) -> tuple[str, int]:
        """Return case and slice of sample `index`, without reading it."""
        i = self._position(index)
        return self._cohort.cases[self._case[i]], int(self._slice[i])

    @property
    def case_numbers(self) -> NDArray[np.int32]:
        """Per sample: the number of its case in `cases`. Not to be written to."""
        return self._case

    @property
    def slice_numbers(self) -> NDArray[np.int32]:
        """Per sample: its slice, along `axis`. Not to be written to."""
        return self._slice

    @property
    def case_shapes(self) -> NDArray[np.int64]:
        """Per case: shape of its datasets as stored, (cases, 3). Not to be written to."""
        return self._cohort.shapes

    def array(self, name: str, case: int) -> Array:
        """Return the dataset of case number `case` in input `name`."""
        self._touch([(name, case)])
        return self._arrays[name, case]

    def tensor(self, name: str, planes: NDArray[Any], positions: Sequence[int]) -> torch.Tensor:
        """Return stored planes of input `name` as a tensor of the dtype that the dataset gives.

        Parameters
        ----------
        name
            The input.
        planes
            (N, H, W), in the stored dtype. Where that is the tensor's dtype, it shares the memory.
        positions
            The samples that the planes belong to, for messages.

        Returns
        -------
        torch.Tensor
            (N, 1, H, W).

        Raises
        ------
        SampleError
            A value does not fit an integer dtype.
        """
        converted, bad = convert(planes, self._dtypes[name])
        if bad is not None:
            case, number = self.sample(positions[bad[0]])
            raise self._inexact(name, case, number, planes[bad])
        return torch.from_numpy(converted).unsqueeze(1)

    def __len__(self) -> int:
        return self._case.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Read one sample.

        Returns
        -------
        dict
            As the class says. The tensors own their memory; nothing else refers to it.

        Raises
        ------
        SelectionError
            There is no sample `index`; it is an IndexError.
        StaleIndexError
            The file is not the one that the dataset was made from.
        SampleError
            A value does not fit an integer `dtype`.
        DamagedFileError, ChunkDecodeError, ChecksumError
            With the cases and slices concerned in the message, and as attribute `samples`.
        """
        return self._read([self._position(index)])[0]

    def __getitems__(self, indices: Iterable[int]) -> list[dict[str, Any]]:
        """Read many samples by one plan, as DataLoader does for a batch; raises as one sample.

        Parameters
        ----------
        indices
            In any order; repeated ones are allowed.

        Returns
        -------
        list of dict
            A sample for each index. The tensors of one input are views of one (N, 1, H, W) array
            (one for each H, W and stored dtype), so a single sample that is kept keeps its batch
            alive; ``tensor.clone()`` frees it from that.

        Notes
        -----
        A chunk that several samples need, in whichever input, is fetched and decoded once
        (`hyperslab.last_stats` counts). About 30 microseconds for each sample and input on top of
        the decoding. Peak memory beside the result: an input's batch in its stored dtype, where
        that is not the tensors' dtype.
        """
        if type(self).__getitem__ is not SliceDataset.__getitem__:
            return [self[index] for index in indices]
        return self._read([self._position(index) for index in indices])

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name}={group}" for name, group in self._cohort.inputs.items())
        return (
            f"<{type(self).__name__} {self.path!r}: {len(self)} slices (axis {self.axis}) of "
            f"{len(self.cases)} cases, {inputs}>"
        )

    def _position(self, index: int) -> int:
        try:
            i = operator.index(index)
        except TypeError:
            raise TypeError(
                f"a sample is named by an integer, not {type(index).__name__}; for several use "
                "__getitems__ or torch.utils.data.Subset"
            ) from None
        n = len(self)
        if not -n <= i < n:
            raise SelectionError(
                f"{self.path}: there is no sample {i}; the dataset has {n}", file=self.path
            )
        return i % n

    def _read(self, positions: list[int]) -> list[dict[str, Any]]:
        cohort = self._cohort
        cases: list[int] = self._case[positions].tolist()
        slices: list[int] = self._slice[positions].tolist()
        self._touch([(name, case) for name in cohort.inputs for case in cases])
        requests: list[tuple[Array, Any]] = []
        places: list[NDArray[Any]] = []
        parts: list[tuple[str, list[int], NDArray[Any]]] = []
        for name in cohort.inputs:
            arrays = [self._arrays[name, case] for case in cases]
            alike: dict[tuple[tuple[int, ...], np.dtype], list[int]] = {}
            for at, array in enumerate(arrays):
                plane = array.shape[: cohort.axis] + array.shape[cohort.axis + 1 :]
                alike.setdefault((plane, array.dtype), []).append(at)
            for (plane, dtype), where in alike.items():
                part = np.empty((len(where), *plane), dtype)
                parts.append((name, where, part))
                wanted, into = slice_requests(
                    [arrays[at] for at in where], [slices[at] for at in where], cohort.axis, part
                )
                requests += wanted
                places += into
        with self.naming_samples(positions):
            read_many(requests, out=places, threads=_threads())
        samples: list[dict[str, Any]] = [{} for _ in positions]
        for name, where, part in parts:
            converted, bad = convert(part, self._dtypes[name])
            if bad is not None:
                at = where[bad[0]]
                raise self._inexact(name, cohort.cases[cases[at]], slices[at], part[bad])
            tensors = torch.from_numpy(converted).unsqueeze(1).unbind(0)
            for at, tensor in zip(where, tensors, strict=True):
                samples[at][name] = tensor
        for sample, case, number in zip(samples, cases, slices, strict=True):
            sample["case"], sample["slice"] = cohort.cases[case], number
        for sample, position in zip(samples, positions, strict=True):
            sample["sample"] = position
        return samples

    def _touch(self, wanted: list[tuple[str, int]]) -> None:
        """Have an array for each (input, case) of `wanted`; all new ones cost one visit."""
        new = [key for key in dict.fromkeys(wanted) if key not in self._arrays]
        if not new:
            return
        container = self._container
        if container is None:  # a copy that was unpickled, in a worker say
            container = FileIndex(self.path)
            found, made = container.fingerprint, self._cohort.fingerprint
            if (found.nbytes, found.mtime_ns) != (made.nbytes, made.mtime_ns):
                raise StaleIndexError(
                    f"{self.path}: the file has changed since this dataset was made of it. Make a "
                    "new SliceDataset.",
                    file=self.path,
                )
            self._container = container
        names = [self._cohort.dataset(*key) for key in new]
        container.load(names, tables=True)
        self._arrays.update(
            (key, Array(container, name)) for key, name in zip(new, names, strict=True)
        )

    @contextmanager
    def naming_samples(self, positions: Sequence[int]) -> Iterator[None]:
        """Let damage that is met say which samples it concerns; `positions` are those read."""
        try:
            yield
        except DamagedFileError as error:
            at = list(positions)
            cases, slices = self._case[at].tolist(), self._slice[at].tolist()
            raise self._with_samples(error, cases, slices) from error

    def _with_samples(
        self, error: DamagedFileError, cases: list[int], slices: list[int]
    ) -> DamagedFileError:
        """Return `error` with what it means for training: the samples that cannot be read."""
        cohort, axis = self._cohort, self._cohort.axis
        spans: dict[int, range] = {}
        for (_, case), array in list(self._arrays.items()):
            if (array.index.file, array.index.name) != (error.file, error.dataset):
                continue
            spans[case] = range(array.shape[axis])
            if error.chunk is not None and array.chunks is not None:
                first = error.chunk[axis] * array.chunks[axis]
                spans[case] = spans[case][first : first + array.chunks[axis]]
        if spans:
            samples = [(cohort.cases[case], k) for case, span in spans.items() for k in span]
            told = "; ".join(
                f"slices {span.start} to {span.stop - 1} of case {cohort.cases[case]!r}"
                for case, span in spans.items()
            )
        else:  # the damage is in a file that this one refers to
            samples = [(cohort.cases[case], k) for case, k in zip(cases, slices, strict=True)]
            told = "one or more of " + ", ".join(f"slice {k} of case {c!r}" for c, k in samples)
        return type(error)(
            f"{error.message} Samples concerned: {told}.",
            **{**error.facts, "samples": tuple(samples)},
        )

    def _inexact(self, name: str, case: str, number: int, value: Any) -> SampleError:
        return SampleError(
            f"{self.path}: input {name!r}, case {case!r}, slice {number} holds the value {value}, "
            f"which {self._dtypes[name]} does not. Choose another dtype for {name!r}; None keeps "
            "the stored one.",
            file=self.path,
            cases=(case,),
            inputs=(name,),
        )


def _threads() -> int | None:
    """Return how many threads a read may use: in a DataLoader worker, its share of the CPUs."""
    worker = get_worker_info()
    if worker is None:
        return None
    return min(limits.threads, max(1, available_cpus() // worker.num_workers))
