"""The two jobs of the demo, each as works that h5py and hyperslab do in turn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.array import Array
from hyperslab.batch import read_many
from hyperslab.cli.timing import Work
from hyperslab.errors import MissingExtraError
from hyperslab.file import open_file
from hyperslab.image import open_image

if TYPE_CHECKING:
    import h5py

__all__ = ["INPUTS", "training_works", "viewing_works"]

INPUTS = {"A": "MR", "B": "CT", "M": "MASK"}
_BATCH = 32

Sample = dict[str, Any]
Reader = Callable[[list[int]], list[Sample]]


class _Handles:
    """h5py's handles of datasets, closed and opened anew so that no chunk is in HDF5's cache."""

    def __init__(self, h5: h5py.File) -> None:
        self._h5 = h5
        self._open: dict[str, h5py.Dataset] = {}

    def renew(self, names: Iterable[str]) -> None:
        self._open.clear()
        self._open.update((name, self._h5[name]) for name in names)

    def __getitem__(self, name: str) -> h5py.Dataset:
        return self._open[name]


def training_works(path: str, h5: h5py.File) -> tuple[list[Work], str]:
    """Return what a training loop reads from the cohort at `path`, and a sentence on how.

    Samples are dicts with an array of shape (1, H, W), float32, for each input, its case and its
    slice. With PyTorch they come from `hyperslab.torch.SliceDataset`, else from `read_many`.

    Parameters
    ----------
    path
        Of a file with the groups MR, CT and MASK.
    h5
        The same file, open; it has to stay so while the works are done.
    """
    cases = sorted(open_file(path)["MR"])
    height, width, depth = h5[f"MR/{cases[0]}"].shape
    samples = [(case, k) for case in cases for k in range(depth)]
    handles = _Handles(h5)
    dice = random.Random(0)
    sample_nbytes = len(INPUTS) * height * width * 4

    def by_h5py(indices: list[int]) -> list[Sample]:
        found: list[Sample] = []
        for i in indices:
            case, k = samples[i]
            sample: Sample = {
                name: handles[f"{group}/{case}"][:, :, k].astype(np.float32)[None]
                for name, group in INPUTS.items()
            }
            found.append(sample | {"case": case, "slice": k, "sample": i})
        return found

    def prepare(indices: list[int]) -> None:
        names = {samples[i][0] for i in indices}
        handles.renew(f"{group}/{case}" for group in INPUTS.values() for case in names)

    by_hyperslab, how = _sample_reader(path, samples)
    n = min(_BATCH, depth)

    def draw_at_random() -> list[int]:
        return [dice.randrange(len(samples)) for _ in range(_BATCH)]

    def draw_in_order() -> list[int]:
        first = dice.randrange(len(cases)) * depth + dice.randrange(depth - n + 1)
        return list(range(first, first + n))

    works = [
        Work(
            key="batch_random",
            title=f"{_BATCH} random slices of MR, CT and MASK",
            nbytes=_BATCH * sample_nbytes,
            draw=draw_at_random,
            by_h5py=by_h5py,
            by_hyperslab=by_hyperslab,
            prepare=prepare,
        ),
        Work(
            key="batch_in_order",
            title=f"{n} slices in order",
            nbytes=n * sample_nbytes,
            draw=draw_in_order,
            by_h5py=by_h5py,
            by_hyperslab=by_hyperslab,
            prepare=prepare,
        ),
        _patient_work(path, handles, cases, dice),
    ]
    return works, how


def _sample_reader(path: str, samples: list[tuple[str, int]]) -> tuple[Reader, str]:
    try:
        from hyperslab.torch import SliceDataset
    except MissingExtraError:
        return _reader_without_torch(path, samples), (
            "Batches by hyperslab.read_many, since PyTorch is not installed."
        )
    return SliceDataset(path, inputs=INPUTS).__getitems__, (
        "Batches by hyperslab.torch.SliceDataset, as a DataLoader gets them."
    )


def _reader_without_torch(path: str, samples: list[tuple[str, int]]) -> Reader:
    opened = open_file(path)

    def read(indices: list[int]) -> list[Sample]:
        chosen = [samples[i] for i in indices]
        wanted = [
            (_array(opened[f"{group}/{case}"]), np.s_[:, :, k])
            for case, k in chosen
            for group in INPUTS.values()
        ]
        places = [np.empty(array.shape[:2], array.dtype) for array, _ in wanted]
        planes = iter(read_many(wanted, out=places))
        return [
            {name: next(planes).astype(np.float32)[None] for name in INPUTS}
            | {"case": case, "slice": k, "sample": i}
            for i, (case, k) in zip(indices, chosen, strict=True)
        ]

    return read


def _array(found: object) -> Array:
    if not isinstance(found, Array):
        raise TypeError(f"{found!r} is no array")
    return found


def _patient_work(path: str, handles: _Handles, cases: list[str], dice: random.Random) -> Work:
    opened = open_file(path)
    first = _array(opened[f"MR/{cases[0]}"])
    theirs = [np.empty(first.shape, first.dtype) for _ in range(2)]
    ours = [np.empty_like(volume) for volume in theirs]

    def by_h5py(case: str) -> list[NDArray[Any]]:
        for group, place in zip(("MR", "CT"), theirs, strict=True):
            handles[f"{group}/{case}"].read_direct(place)
        return theirs

    def by_hyperslab(case: str) -> list[NDArray[Any]]:
        read_many([(_array(opened[f"{g}/{case}"]), ...) for g in ("MR", "CT")], out=ours)
        return ours

    return Work(
        key="patient",
        title="one patient's MR and CT, whole",
        nbytes=2 * first.nbytes,
        draw=lambda: dice.choice(cases),
        by_h5py=by_h5py,
        by_hyperslab=by_hyperslab,
        prepare=lambda case: handles.renew([f"MR/{case}", f"CT/{case}"]),
    )


def viewing_works(path: str, open_h5: Callable[[], h5py.File], h5: h5py.File) -> list[Work]:
    """Return what a viewer reads from the Imaris image at `path`.

    Parameters
    ----------
    path
        Of the file.
    open_h5
        Opens the same file through h5py.
    h5
        The same file, open; it has to stay so while the works are done.
    """
    image = open_image(path)
    n_t, n_c, *size = image.shape
    height, width = size[1:]
    coarsest = len(image.levels) - 1
    plane_nbytes = height * width * image.dtype.itemsize
    handles = _Handles(h5)
    dice = random.Random(0)

    def draw() -> tuple[int, int, int]:
        return dice.randrange(n_t), dice.randrange(n_c), dice.randrange(size[0])

    def open_by_h5py(at: tuple[int, int, int]) -> NDArray[Any]:
        t, c, z = at
        with open_h5() as opened:
            channel = opened[f"DataSet/ResolutionLevel 0/TimePoint {t}/Channel {c}"]
            y, x = (int(b"".join(channel.attrs[f"ImageSize{axis}"])) for axis in "YX")
            plane: NDArray[Any] = channel["Data"][z, :y, :x]
            return plane

    def scroll_by_h5py(at: tuple[int, int, int]) -> list[NDArray[Any]]:
        data = handles[_dataset(0, *at[:2])]
        return [data[z, :height, :width] for z in range(size[0])]

    whole = np.empty((n_c, *size), image.dtype)
    ours = np.empty_like(whole)

    def fill_by_h5py(t: int) -> NDArray[Any]:
        part = tuple(slice(0, n) for n in size)
        for c in range(n_c):
            handles[_dataset(0, t, c)].read_direct(whole[c], source_sel=part)
        return whole

    small = image.levels[coarsest].shape
    overview = np.empty((n_t, *small[2:]), image.dtype)

    def overview_by_h5py(c: int) -> NDArray[Any]:
        part = tuple(slice(0, n) for n in small[2:])
        for t in range(n_t):
            handles[_dataset(coarsest, t, c)].read_direct(overview[t], source_sel=part)
        return overview

    return [
        Work(
            key="open",
            title="open, index, show a first plane",
            nbytes=plane_nbytes,
            draw=draw,
            by_h5py=open_by_h5py,
            by_hyperslab=lambda at: open_image(path)[at],
        ),
        Work(
            key="scroll",
            title=f"scroll through {size[0]} planes, one by one",
            nbytes=size[0] * plane_nbytes,
            draw=draw,
            by_h5py=scroll_by_h5py,
            by_hyperslab=lambda at: [image[*at[:2], z] for z in range(size[0])],
            prepare=lambda at: handles.renew([_dataset(0, *at[:2])]),
        ),
        Work(
            key="time_point",
            title=f"one time point, {n_c} channels, whole",
            nbytes=whole.nbytes,
            draw=lambda: dice.randrange(n_t),
            by_h5py=fill_by_h5py,
            by_hyperslab=lambda t: image.read(np.s_[t], out=ours),
            prepare=lambda t: handles.renew(_dataset(0, t, c) for c in range(n_c)),
        ),
        Work(
            key="overview",
            title=f"all time points at level {coarsest}, a channel",
            nbytes=overview.nbytes,
            draw=lambda: dice.randrange(n_c),
            by_h5py=overview_by_h5py,
            by_hyperslab=lambda c: image.read(np.s_[:, c], level=coarsest),
            prepare=lambda c: handles.renew(_dataset(coarsest, t, c) for t in range(n_t)),
        ),
    ]


def _dataset(level: int, t: int, c: int) -> str:
    return f"DataSet/ResolutionLevel {level}/TimePoint {t}/Channel {c}/Data"
