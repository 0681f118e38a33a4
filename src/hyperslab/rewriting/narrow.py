"""Smaller element types that hold every value of a dataset exactly: looked for in all of them."""

from __future__ import annotations

import math
import posixpath
import re
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.array import Array
from hyperslab.file import File
from hyperslab.index.session import session
from hyperslab.layouts import recognise
from hyperslab.rewriting.encode import Cancelled
from hyperslab.rewriting.plan import Narrowing, Wish
from hyperslab.rewriting.regions import region_shape, regions_of
from hyperslab.rewriting.sources import DatasetSource

if TYPE_CHECKING:
    import h5py

__all__ = ["Found", "narrower_types"]

_REGION_SHARE = 0.5
_PIECE = 1 << 18  # elements that a thread looks at: this fits its cache

# Layouts that give the type a meaning of its own.
_MEANINGFUL = {
    "bdv": "BigDataViewer takes int16 for uint16",
    "luxendo": "Luxendo's programs expect uint16",
    "matlab": "MATLAB's type is an attribute of its own",
    "minc2": "MINC maps the range of the type to the real values",
}
_IMARIS = ("|u1", "<u2", "<u4", "<f4")  # the types that Imaris knows
# Attributes that netCDF wants to have the type of the dataset.
_OF_THE_TYPE = ("_FillValue", "missing_value", "valid_min", "valid_max", "valid_range")

_INTEGERS = {"u": ("|u1", "<u2", "<u4"), "i": ("|i1", "<i2", "<i4")}


@dataclass(slots=True)
class Found:
    """What has been seen of values: whether they are exact as float32, whole, and their ends."""

    single: bool
    whole: bool
    low: int | None = None
    high: int | None = None
    problem: str = ""

    def add(self, values: NDArray[Any]) -> None:
        """Look at more values, 1-D, in native byte order."""
        if values.dtype.kind in "iu":
            self._range(int(values.min()), int(values.max()))
            return
        if self.single:
            with np.errstate(over="ignore", invalid="ignore"):
                back = values.astype(np.float32).astype(values.dtype)
            # By their bits: -0.0 is not 0.0, and there are many that are not a number.
            differs = _bits(back) != _bits(values)
            if differs.any():
                self.single = False
                self.problem = f"float32 has no {values[differs][0].item()!r}"
        if self.whole:
            with np.errstate(invalid="ignore"):
                whole = np.isfinite(values) & (np.floor(values) == values)
            whole &= (values != 0) | ~np.signbit(values)
            if whole.all():
                self._range(int(values.min()), int(values.max()))
            else:
                self.whole = False
                if not self.problem:
                    self.problem = f"{values[~whole][0].item()!r} is no whole number"

    def _range(self, low: int, high: int) -> None:
        self.low = low if self.low is None else min(low, self.low)
        self.high = high if self.high is None else max(high, self.high)

    def merge(self, other: Found) -> None:
        """Take over what another one has seen."""
        self.single &= other.single
        self.whole &= other.whole
        self.problem = self.problem or other.problem
        if other.low is not None and other.high is not None:
            self._range(other.low, other.high)

    def narrowest(self, dtype: np.dtype, allowed: Iterable[str] = ()) -> str:
        """Return the smallest type that holds all values; "" if none is smaller than `dtype`.

        Parameters
        ----------
        dtype
            What they have. Whole numbers keep their sign; floats become unsigned where none of
            their values is negative, and float32 rather than a whole number of the same size.
        allowed
            The only types that come into question, if any are given.
        """
        names: list[str] = []
        if dtype.kind == "f":
            if self.single:
                names.append("<f4")
            if self.whole and self.low is not None:
                names += _INTEGERS["u" if self.low >= 0 else "i"]
        else:
            names += _INTEGERS[dtype.kind]
        names = [name for name in names if not allowed or name in allowed]
        for name in sorted(names, key=lambda name: np.dtype(name).itemsize):
            new = np.dtype(name)
            if new.itemsize < dtype.itemsize and (new.kind == "f" or self._fits(new)):
                return name
        return ""

    def _fits(self, new: np.dtype) -> bool:
        ends = np.iinfo(new)
        return (
            self.low is not None
            and self.high is not None
            and int(ends.min) <= self.low
            and self.high <= int(ends.max)
        )


def narrower_types(
    file: File,
    paths: Sequence[str],
    images: Sequence[Iterable[str]],
    wish: Wish,
    *,
    threads: int,
    tell: Callable[[int, int], None],
    stop: threading.Event,
) -> tuple[Narrowing, ...]:
    """Look for smaller types, at every value.

    Parameters
    ----------
    file
        The source.
    paths
        Of the datasets that are to be rewritten.
    images
        Paths of the datasets of each image.
    wish
        What was asked: `narrow`, and the memory ceiling.
    threads
        To decode and look with.
    tell
        Is told how many bytes of how many have been looked at.
    stop
        Set by whoever wants it to stop.

    Returns
    -------
    tuple of Narrowing
        One for each of `paths` whose type there are smaller ones of.

    Raises
    ------
    Cancelled
        Somebody wants it to stop.

    Notes
    -----
    Datasets that programs put together get one type: those of an image; of one type in one group;
    and of one type whose paths differ in numbers only. Reading ends for all of them when one of
    them has no smaller type. The fill value counts as a value.
    """
    arrays = {
        path: found
        for path in paths
        if isinstance(found := file[path], Array) and _may_shrink(found.dtype, wish.narrow)
    }
    with session(file.path) as h5:
        layouts = recognise(h5)
        refusals = {path: _refusal(h5[path], array, layouts) for path, array in arrays.items()}
    allowed = _IMARIS if "imaris" in layouts else ()
    total = sum(array.nbytes for array in arrays.values())
    done = 0
    result: dict[str, Narrowing] = {}
    for group in _groups(arrays, images):
        dtype = arrays[group[0]].dtype
        new, why = "", next(filter(None, map(refusals.__getitem__, group)), "")
        if len({arrays[path].dtype for path in group}) > 1:
            why = why or "the datasets of its image differ in type"
        if not why:
            seen = Found(
                single=dtype == np.float64, whole=dtype.kind in "iu" or wish.narrow == "integers"
            )
            at = done
            for path in group:
                for nbytes in _look(arrays[path], seen, wish, threads, stop):
                    new, at = seen.narrowest(dtype, allowed), at + nbytes
                    tell(at, total)
                    if not new:
                        break
                if not new:
                    why = _reason(path, seen, allowed)
                    break
        done += sum(arrays[path].nbytes for path in group)
        tell(done, total)
        for path in group:
            old = arrays[path].dtype.name
            name = np.dtype(new).name if new else ""
            result[path] = Narrowing(path=path, old=old, new=name, why=why)
    return tuple(result[path] for path in paths if path in result)


def _may_shrink(dtype: np.dtype, narrow: str) -> bool:
    if dtype.kind in "iu":
        return dtype.itemsize > 1
    return dtype.kind == "f" and (dtype == np.float64 or narrow == "integers")


def _refusal(dataset: h5py.Dataset, array: Array, layouts: Sequence[str]) -> str:
    """Return why a dataset's type has to stay, whatever its values are."""
    for layout in layouts:
        if layout in _MEANINGFUL:
            return _MEANINGFUL[layout]
    import h5py

    if h5py.check_enum_dtype(dataset.dtype) is not None:
        return "its type is an enumeration, which names its values"
    if dataset.id.get_type().committed():
        return "its type is a named one of the file"
    if not array.index.direct:
        return "its type has bits of its own, that only the HDF5 library knows"
    tied = [name for name in _OF_THE_TYPE if name in dataset.attrs]
    return f"its attribute {tied[0]} has that type as well" if tied else ""


def _groups(arrays: Mapping[str, Array], images: Sequence[Iterable[str]]) -> list[list[str]]:
    """Put paths together that are to have one type; each in one group, in their order."""
    keys: dict[Hashable, str] = {}  # what is alike, and the first path that is
    parent = {path: path for path in arrays}

    def first(path: str) -> str:
        while parent[path] != path:
            path = parent[path]
        return path

    def join(path: str, key: Hashable) -> None:
        parent[first(path)] = first(keys.setdefault(key, path))

    for path, array in arrays.items():
        join(path, ("beside", posixpath.dirname(path), array.dtype.str))
        join(path, ("numbered", re.sub("[0-9]+", "0", path), array.dtype.str))
    for number, image in enumerate(images):
        for path in image:
            if path in arrays:
                join(path, ("image", number))
    found: dict[str, list[str]] = {}
    for path in arrays:
        found.setdefault(first(path), []).append(path)
    return list(found.values())


def _look(
    array: Array, seen: Found, wish: Wish, threads: int, stop: threading.Event
) -> Iterator[int]:
    """Look at all values of a dataset, region by region; yield the bytes of each."""
    source = DatasetSource(array)
    seen.add(np.atleast_1d(array.index.fill))
    shape, itemsize = array.shape, array.dtype.itemsize
    most = int(wish.memory * _REGION_SHARE)
    least = (1,) * len(shape)
    step = region_shape(shape, least, array.chunks or least, itemsize, most, array.name)
    buffer = np.empty(0, array.dtype)
    with ThreadPoolExecutor(threads, thread_name_prefix="hyperslab-look") as pool:
        for region in regions_of(shape, step):
            if stop.is_set():
                raise Cancelled
            extent = [part.stop - part.start for part in region]
            size = math.prod(extent)
            if buffer.size < size:
                buffer = np.empty(size, array.dtype)
            source.read(region, buffer[:size].reshape(extent), threads=threads)
            parts = [buffer[at : min(at + _PIECE, size)] for at in range(0, size, _PIECE)]
            for found in pool.map(partial(_seen, seen.single, seen.whole), parts):
                seen.merge(found)
            yield size * itemsize


def _seen(single: bool, whole: bool, values: NDArray[Any]) -> Found:
    found = Found(single=single, whole=whole)
    found.add(values)
    return found


def _reason(path: str, seen: Found, allowed: Iterable[str]) -> str:
    if seen.problem:
        return f"{path}: {seen.problem}"
    types = " that Imaris knows" if allowed else ""
    return f"{path}: from {seen.low} to {seen.high}, no smaller type{types} holds that"


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    return values.view(f"u{values.dtype.itemsize}")
