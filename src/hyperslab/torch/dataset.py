"""`SliceDataset`: paired 2-D slices of cohort files, as a map-style PyTorch dataset."""

from __future__ import annotations

import copy
import operator
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, default_collate, get_worker_info

from hyperslab.array import Array
from hyperslab.engine.limits import available_cpus, limits
from hyperslab.errors import (
    DamagedCaseWarning,
    NotHDF5Error,
    SampleError,
    SelectionError,
)
from hyperslab.file import open_file
from hyperslab.torch import foreign
from hyperslab.torch.cohorts.cohort import Cohort, Skipped, input_templates
from hyperslab.torch.cohorts.files import Paths, find_files
from hyperslab.torch.cohorts.kept_index import open_cohort
from hyperslab.torch.cohorts.split import Cases, choose_cases, listed
from hyperslab.torch.decoded.case_cache import CaseCache
from hyperslab.torch.decoded.memory_cache import memory_cache
from hyperslab.torch.decoded.preload import preload
from hyperslab.torch.epoch import Epoch
from hyperslab.torch.samples.assemble import Assembler
from hyperslab.torch.samples.dtypes import DTypes, check_dtype, tensor_dtypes
from hyperslab.torch.samples.options import (
    check_names,
    check_probabilities,
    count_by_input,
    plane_size,
)
from hyperslab.torch.samples.reader import CaseReader
from hyperslab.torch.samples.samples import Samples
from hyperslab.torch.scaling import Constants, Scaling
from hyperslab.torch.transforms import Compose
from hyperslab.torch.transforms.base import Transform
from hyperslab.torch.values.look import look_at_values

__all__ = ["SliceDataset"]

_INPUTS: Mapping[str, str] = MappingProxyType({"A": "MR", "B": "CT", "M": "MASK"})
_CACHE_NBYTES = 32 << 30


class SliceDataset(Dataset[dict[str, Any]]):
    """Paired slices: sample `i` is one slice of one case, out of every input.

    A case is one patient: a 3-D dataset of the same shape in each input. A sample is a dict:

    - each input's name: torch.Tensor of shape (C, H, W), float32 unless `dtype` says otherwise; H
      and W are the case's other two axes, in stored order; C is 1, or with `context` more;
    - ``"case"``: str, the case's name;
    - ``"slice"``: int, position along `axis`;
    - ``"sample"``: int, the sample's number, which transforms key their randomness by;
    - ``"spacing"``: float64 tensor (3,), along H, W and the slice axis, in the file's unit; only
      where every case has an attribute "spacing", "voxel_size" or "element_size_um".

    Samples are in order of case (natural order: "p2" before "p10"), then slice. Masks come as
    float32 too, and since nothing is interpolated they keep their labels exactly (up to 2**24);
    ``dtype={"M": "int64"}`` gives class indices.

    Parameters
    ----------
    path
        HDF5 file, a pattern such as ``"data/*.h5"``, or a list of either. Files are read in place
        and never locked. In a single file a case is called as its dataset. Of several files that
        hold several cases each, a case is called "file/case", and of files that are one case each,
        as the file; see `hyperslab.torch.cohorts.files.file_labels`.
    inputs
        Input name to where its datasets are, by default A = MR (source), B = CT (target), M = MASK:

        - a group with one dataset a case (``"MR"``),
        - a path with ``{case}`` in it (``"{case}/MR"``), or
        - a dataset (``"MR"`` again), where each file is one case.

        A path alone, or a list of them, is its own name.
    axis
        Slice axis of the stored datasets: -1 for (H, W, slices), 0 for (slices, H, W).
    cases
        Which cases to take: names in any order, shell patterns ("1PA*"), compiled regular
        expressions. Default: all. `hyperslab.torch.split_cases` makes splits.
    dtype
        NumPy or torch dtype of the tensors, or None for the stored one; or a mapping from input to
        that, where inputs left out are float32. A float dtype rounds; an integer one has to hold
        the values exactly; bool is True where the value is not zero.
    context
        So many neighbouring slices on each side become channels, C = 2 * context + 1; beyond the
        first and last slice of the case, that slice is repeated. A number for all inputs, or by
        input.
    neighbour
        Probability that a sample takes the next slice, k + 1, of input B (or by input); the last
        slice of a case stays itself. The draw depends on `seed`, epoch and sample alone.
    scaling
        Input name to `hyperslab.torch.scaling.Window`, `Percentiles` or `ZScore`. Constants are
        those of the whole case, computed once and stored (see `facts`). Not for masks.
    nonempty
        Leave out slices that hold nothing: the name of a mask (slices without a value above 0), or
        input name to a threshold (slices without a stored value above it; with several inputs, a
        slice has to pass all).
    crop_or_pad
        (height, width) that all planes are cropped or padded to about their middle, for cases of
        different size.
    pad_value
        What padding holds, after scaling: by input. Default: 0 for `masks`, -1 for the others.
    masks
        Names of inputs that hold labels.
    transform
        Called with each sample's dict: `hyperslab.torch.transforms`, a dictionary transform of
        MONAI or TorchIO, or any function. Its random numbers depend on `seed`, epoch and sample
        alone; see `hyperslab.torch.foreign`. To transform whole batches, which is much faster, give
        `hyperslab.torch.transforms` to `SliceLoader` instead.
    seed
        Of `neighbour` and `transform`.
    policy
        "raise": a case that cannot be read is an error. "skip": every dataset is read once to find
        those that are damaged (stored, see `facts`), and their cases are left out, with a warning;
        `skipped` says which and why.
    cache
        Keep decoded cases: a folder on a fast local disk, or "memory" for shared memory. Filled
        while training, or by `preload`; shared by all processes of the machine.
    cache_nbytes
        Most bytes that it may take, all processes together; 32 GiB by default.
    keep_index
        Keep the file's index (where the chunks lie), so that the next time nothing has to be looked
        up: "auto" does that in the user's cache folder for 500 datasets or more, "beside" next to
        the files; a folder; or False.
    facts
        Folder for what `scaling`, `nonempty` and ``policy="skip"`` found out by reading every
        value; default: the user's cache folder.
    progress
        Show progress bars while every value is read.

    Raises
    ------
    SampleError
        The inputs do not pair up: a group or a case is missing, shapes differ or are not 3-D, or a
        stored dtype does not convert to `dtype`. The message lists file, groups and cases; the
        attributes are `file`, `cases` and `inputs`. It is a ValueError.
    MissingFileError, NotHDF5Error, UnsupportedDtypeError, MissingSourceError
        What opening the files and their datasets raises.
    DamagedFileError
        A dataset whose values are needed (`scaling`, `nonempty`) cannot be read.

    Warns
    -----
    FileInUseWarning
        Another process has the file open for writing.
    DamagedCaseWarning
        Cases were left out.

    Notes
    -----
    *Workers.* Holds no HDF5 handle and no lock between calls, and pickles as the list of its cases:
    tens of bytes a case. In a worker process it indexes what it reads, and uses that worker's share
    of the CPUs (available CPUs / workers, and no more than the configured threads). Every process
    keeps decoded chunks of its own; `hyperslab.configure`, or HYPERSLAB_CACHE_MB in the
    environment, says how many bytes. `cache` is shared.

    *Subclasses* that override `__getitem__` get it called for batches as well, sample by sample.
    Overriding `__getitems__` too keeps reading a batch by one plan.

    *Ragged cases.* H and W may differ between cases. Each sample is right by itself; stacking
    them, as DataLoader's default collation does, needs `crop_or_pad`, or a loader that puts like to
    like (``SliceLoader(buckets=True)``).

    *Order.* Read, convert, scale, crop or pad, then `transform`.

    *Cost.* Construction indexes every dataset, a few tenths of a millisecond each, unless the index
    was kept, and keeps 8 bytes a sample; chunk tables are read when a case is first read. Scaling
    by percentiles or z-score, `nonempty` and ``policy="skip"`` read the datasets concerned once.

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
        path: Paths,
        *,
        inputs: Mapping[str, str] | Sequence[str] | str = _INPUTS,
        axis: int = -1,
        cases: Cases = None,
        dtype: DTypes = torch.float32,
        context: int | Mapping[str, int] = 0,
        neighbour: float | Mapping[str, float] = 0.0,
        scaling: Mapping[str, Scaling] | None = None,
        nonempty: str | Mapping[str, float] | None = None,
        crop_or_pad: int | Sequence[int] | None = None,
        pad_value: Mapping[str, float] | None = None,
        masks: Sequence[str] = ("M",),
        transform: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        seed: int = 0,
        policy: Literal["raise", "skip"] = "raise",
        cache: CaseCache | Literal["memory"] | str | os.PathLike[str] | None = None,
        cache_nbytes: int = _CACHE_NBYTES,
        keep_index: Literal["auto", "beside", False] | os.PathLike[str] = "auto",
        facts: str | os.PathLike[str] | None = None,
        progress: bool = False,
    ) -> None:
        if policy not in ("raise", "skip"):
            raise ValueError(f"policy is 'raise' or 'skip', not {policy!r}")
        templates = input_templates(inputs)
        names = tuple(templates)
        dtypes = tensor_dtypes(names, dtype)
        around = count_by_input("context", context, names)
        nexts = check_probabilities("neighbour", neighbour, names, "B")
        if isinstance(nonempty, str):
            nonempty = {nonempty: 0.0}
        thresholds = check_names("nonempty", nonempty or {}, names)
        self._masks = frozenset((masks,) if isinstance(masks, str) else masks)
        pads = {name: 0.0 if name in self._masks else -1.0 for name in names}
        scales = check_names("scaling", scaling or {}, names)
        for name in scales:
            _check_scaled(name, dtypes[name], self._masks)
        self._transform = transform
        self._seed = seed
        keyed = bool(nexts) or transform is not None
        self._epoch = Epoch() if keyed else None  # what no process asks for need not be shared
        files = find_files(path)
        if policy == "raise":
            for file in files:
                open_file(file)  # warns of a writer
        try:
            cohort, containers, saved_as = open_cohort(
                files,
                inputs=templates,
                axis=axis,
                cases=cases,
                skip=policy == "skip",
                keep=keep_index,
            )
        except NotHDF5Error as error:
            if policy == "skip":
                raise
            told = (
                f'{error.message} policy="skip" takes the cases that are whole, and `hyperslab '
                "verify` says which these are."
            )
            raise NotHDF5Error(told, **error.facts) from error
        _check_dtypes(cohort, dtypes)
        reader = CaseReader(
            cohort, containers, saved_as=saved_as, cache=_open_cache(cache, cache_nbytes)
        )
        cohort, constants, kept = look_at_values(
            reader,
            scaling=scales,
            thresholds=thresholds,
            policy=policy,
            folder=facts,
            progress=progress,
        )
        self._assembler = Assembler(
            reader.of(cohort),
            Samples(cohort, kept, context=around, neighbour=nexts, seed=seed),
            dtypes=dtypes,
            constants=constants,
            size=plane_size("crop_or_pad", crop_or_pad),
            pads=pads | check_names("pad_value", pad_value or {}, names),
            epoch=self._epoch,
        )
        if cohort.skipped:
            told = listed(f"{one.case} ({one.reason})" for one in cohort.skipped)
            warnings.warn(
                f"{cohort.where}: {len(cohort.skipped)} left out: {told}",
                DamagedCaseWarning,
                stacklevel=2,
            )

    @property
    def _cohort(self) -> Cohort:
        return self._assembler.reader.cohort

    @property
    def path(self) -> str:
        """Absolute path of the file; of several, the first one and their number."""
        return self._cohort.where

    @property
    def files(self) -> tuple[str, ...]:
        """Absolute paths."""
        return self._cohort.files

    @property
    def inputs(self) -> dict[str, str]:
        """Input name to the HDF5 path of its datasets, as given; a copy."""
        return {k: v.removesuffix("/{case}") or "/" for k, v in self._cohort.inputs.items()}

    @property
    def axis(self) -> int:
        """The slice axis: 0, 1 or 2."""
        return self._cohort.axis

    @property
    def cases(self) -> tuple[str, ...]:
        """Names of the cases, in the order of their samples."""
        return self._cohort.cases

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Cases that ``policy="skip"`` left out: `case`, `file` and `reason` of each."""
        return self._cohort.skipped

    @property
    def masks(self) -> frozenset[str]:
        """Names of inputs that hold labels."""
        return self._masks

    @property
    def transform(self) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
        """What is done to each sample."""
        return self._transform

    def sample(self, index: int) -> tuple[str, int]:
        """Return case and slice of sample `index`, without reading it."""
        i = self._position(index)
        return self._cohort.cases[self._assembler.samples.case[i]], int(
            self._assembler.samples.number[i]
        )

    @property
    def case_numbers(self) -> NDArray[np.int32]:
        """Per sample: the number of its case in `cases`. Not to be written to."""
        return self._assembler.samples.case

    @property
    def slice_numbers(self) -> NDArray[np.int32]:
        """Per sample: its slice, along `axis`. Not to be written to."""
        return self._assembler.samples.number

    @property
    def case_shapes(self) -> NDArray[np.int64]:
        """Per case: shape of its datasets as stored, (cases, 3). Not to be written to."""
        return self._cohort.shapes

    @property
    def plane_shapes(self) -> NDArray[np.int64]:
        """Per case: (H, W) of its samples, (cases, 2)."""
        if self._assembler.size is not None:
            return np.tile(np.array(self._assembler.size, np.int64), (len(self.cases), 1))
        return np.delete(self._cohort.shapes, self._cohort.axis, axis=1)

    def constants(self, name: str) -> dict[str, Constants]:
        """Return by case how input `name` is scaled; see `hyperslab.torch.scaling.invert`."""
        if name not in self._assembler.constants:
            raise ValueError(f"input {name!r} is not scaled")
        return dict(zip(self.cases, self._assembler.constants[name], strict=True))

    @property
    def epoch(self) -> int:
        """The epoch that `neighbour` and `transform` draw for."""
        return 0 if self._epoch is None else int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, 0 to 2**32 - 1, here and in worker processes that have this dataset."""
        if self._epoch is not None:
            self._epoch.set(epoch)
        if isinstance(self._transform, Compose):
            self._transform.set_epoch(epoch)

    def with_cases(self, cases: Cases) -> SliceDataset:
        """Return the dataset of these cases alone, e.g. one part of a split. Nothing is looked up.

        Parameters
        ----------
        cases
            As for the class.
        """
        chosen = set(choose_cases(self.cases, cases, where=self.path, file=self.files[0]))
        if not chosen:
            raise SampleError(f"{self.path}: there are no cases: `cases` is empty", cases=())
        numbers = [i for i, case in enumerate(self.cases) if case in chosen]
        part = copy.copy(self)
        # An epoch of its own: validating in the middle of an epoch leaves the training set's alone.
        part._epoch = copy.deepcopy(self._epoch)
        if isinstance(self._transform, Compose):
            part._transform = copy.deepcopy(self._transform)
        part._assembler = self._assembler.of(np.array(numbers, np.int64), part._epoch)
        return part

    @property
    def cache(self) -> CaseCache | None:
        """The cache of decoded cases, if there is one."""
        return self._assembler.reader.cache

    def preload(self, *, progress: bool = True) -> None:
        """Decode every case into the cache, so that no epoch has to.

        Says beforehand what that takes; several processes may share the work.

        Raises
        ------
        CapacityError
            It does not fit: the message has the figures. Nothing was written.
        ValueError
            The dataset has no `cache`.
        """
        if self.cache is None:
            raise ValueError("there is no cache to preload: SliceDataset(..., cache=FOLDER)")
        cases = range(len(self.cases))
        wanted = [(self.array(name, case), self.axis) for case in cases for name in self.inputs]
        preload(self.cache, wanted, progress=progress)

    def array(self, name: str, case: int) -> Array:
        """Return the dataset of case number `case` in input `name`."""
        return self._assembler.reader.array(name, case)

    @property
    def assembler(self) -> Assembler:
        """What makes samples of the stored planes; see `Assembler`."""
        return self._assembler

    def transform_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the sample as `transform` makes it."""
        if self._transform is None:
            return sample
        return foreign.apply(
            self._transform,
            sample,
            seed=self._seed,
            epoch=self.epoch,
            masks=sorted(self._masks),
        )

    def transform_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch as `transform` makes it, sample by sample unless it is one of ours."""
        transform = self._transform
        if transform is None:
            return batch
        if isinstance(transform, (Compose, Transform)):  # which take batches as well
            return self.transform_sample(batch)
        rows = []
        for i in range(len(batch["case"])):
            sample = {name: values[i] for name, values in batch.items()}
            sample |= {name: int(sample[name]) for name in ("slice", "sample")}
            rows.append(self.transform_sample(sample))
        collated: dict[str, Any] = default_collate(rows)
        return collated

    def check_loadable(self) -> None:
        """Raise if a loader's threads cannot make this dataset's samples.

        Raises
        ------
        ValueError
            `transform` draws from generators that the whole process shares; or a subclass overrides
            `__getitem__`, which batches are not made by.
        """
        if type(self).__getitem__ is not SliceDataset.__getitem__:
            raise ValueError(
                f"{type(self).__name__} overrides __getitem__, which SliceLoader does not call. "
                "Use torch.utils.data.DataLoader, or do it in SliceDataset(transform=...) or "
                "SliceLoader(transforms=...)."
            )
        if self._transform is not None and not foreign.is_self_contained(self._transform):
            raise ValueError(
                f"{self._transform!r} may draw from random generators that the model's thread uses "
                "too. Use torch.utils.data.DataLoader with this dataset, or transforms of "
                "hyperslab or MONAI, which carry their own."
            )

    def __len__(self) -> int:
        return len(self._assembler.samples)

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
            A sample for each index. The tensors of one input are views of one (N, C, H, W) array
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
        inputs = ", ".join(f"{name}={path}" for name, path in self.inputs.items())
        skipped = f", {len(self.skipped)} left out" if self.skipped else ""
        return (
            f"<{type(self).__name__} {self.path!r}: {len(self)} slices (axis {self.axis}) of "
            f"{len(self.cases)} cases{skipped}, {inputs}>"
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

    def _read(self, indices: list[int]) -> list[dict[str, Any]]:
        positions = np.array(indices, np.int64)
        columns: dict[str, Sequence[Any]] = {}
        assembler = self._assembler
        for name, parts in assembler.fetch(positions, threads=_threads()).items():
            tensors = assembler.finish(name, parts, positions)
            columns[name] = tensors if isinstance(tensors, list) else tensors.unbind(0)
        columns |= assembler.samples.describe(positions)
        return [
            self.transform_sample(dict(zip(columns, values, strict=True)))
            for values in zip(*columns.values(), strict=True)
        ]


def _check_scaled(name: str, dtype: np.dtype | None, masks: frozenset[str]) -> None:
    if name in masks or dtype is None or dtype.kind != "f":
        what = "a mask" if name in masks else f"of dtype {dtype}"
        raise ValueError(f"scaling makes new values, and input {name!r} is {what}")


def _check_dtypes(cohort: Cohort, dtypes: Mapping[str, np.dtype | None]) -> None:
    for name, codes in zip(cohort.inputs, cohort.dtype_of, strict=True):
        for code in np.unique(codes).tolist():
            case = int(np.argmax(codes == code))
            check_dtype(
                cohort.dtypes[code],
                dtypes[name],
                path=cohort.files[cohort.file_of[case]],
                dataset=cohort.dataset(name, case),
            )


def _open_cache(cache: CaseCache | str | os.PathLike[str] | None, nbytes: int) -> CaseCache | None:
    if cache is None or isinstance(cache, CaseCache):
        return cache
    return memory_cache(nbytes) if cache == "memory" else CaseCache(cache, nbytes=nbytes)


def _threads() -> int | None:
    """Return how many threads a read may use: in a DataLoader worker, its share of the CPUs."""
    worker = get_worker_info()
    if worker is None:
        return None
    return min(limits.threads, max(1, available_cpus() // worker.num_workers))
