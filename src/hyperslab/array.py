"""`Array`: one dataset, indexed as NumPy indexes; and views of it that read when they must."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.node import Cells, Node, node_of
from hyperslab.engine.read import read
from hyperslab.errors import OutputError, SelectionError, StaleIndexError
from hyperslab.filters import Filter
from hyperslab.index.container import FileIndex
from hyperslab.index.records import Chunked, DatasetIndex, Null
from hyperslab.selection import Selection, compose, select, select_all

__all__ = ["Array", "LazyIndexer", "Readable", "View", "check_out"]


class View:
    """A part of an array, named but not read. Indexing it names a part of that; no I/O.

    `numpy.asarray(view)` or `view.read()` reads. Pickles as its array and its selection.

    Attributes
    ----------
    shape, dtype, ndim, size, nbytes
        Of the result; dtype in native byte order.
    """

    def __init__(self, base: Readable, selection: Selection) -> None:
        self._base = base
        self._base_shape = base.shape
        self._selection = selection

    @property
    def shape(self) -> tuple[int, ...]:
        return self._selection.shape

    @property
    def dtype(self) -> np.dtype:
        return self._base.dtype

    @property
    def ndim(self) -> int:
        return len(self._selection.shape)

    @property
    def size(self) -> int:
        return self._selection.size

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return _length(self.shape)

    def __getitem__(self, index: Any) -> View:
        return View(self._base, compose(self._selection, index))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return _as_array(self.read(), dtype, copy)

    def read(self, *, out: NDArray[Any] | None = None, threads: int | None = None) -> NDArray[Any]:
        """Read the view; as `Array.read` without a selection.

        Raises
        ------
        StaleIndexError
            Also where the array has changed its shape since the view was made of it.
        """
        return self._base._read(self._fitting(), out, threads)

    def _fitting(self) -> Selection:
        """Return the selection, if the array still has the shape that it was made for."""
        if self._base.shape != self._base_shape:
            raise StaleIndexError(
                f"{self._base!r} had shape {self._base_shape} when this view was made of it. Make "
                "a new one."
            )
        return self._selection

    def __repr__(self) -> str:
        return f"<hyperslab.View {_shape(self.shape)} {self.dtype} of {self._base!r}>"


class LazyIndexer:
    """What `array.lazy` is: indexing it gives a `View`."""

    def __init__(self, base: Readable) -> None:
        self._base = base

    def __getitem__(self, index: Any) -> View:
        return View(self._base, self._base._select(index))


class Readable:
    """What arrays and image levels have in common: NumPy's indexing over a planned read."""

    @property
    def node(self) -> Node:
        """The compiled dataset that reads are planned from."""
        raise TypeError(f"{type(self).__name__} has no node")

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent along each axis."""
        raise TypeError(f"{type(self).__name__} has no shape")

    @property
    def dtype(self) -> np.dtype:
        """Element type, in native byte order."""
        raise TypeError(f"{type(self).__name__} has no dtype")

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that the whole takes in memory."""
        return self.size * self.dtype.itemsize

    @property
    def lazy(self) -> LazyIndexer:
        """Indexing this gives a `View`, which reads nothing until it is asked for its values.

        Examples
        --------
        ``a.lazy[3:9][2]`` is ``a[5]``, not read yet.
        """
        return LazyIndexer(self)

    def __len__(self) -> int:
        return _length(self.shape)

    def __iter__(self) -> Iterator[Any]:
        for i in range(len(self)):
            yield self[i]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return _as_array(self._read(select_all(self.shape), None, None), dtype, copy)

    def __getitem__(self, index: Any) -> Any:
        """Read a part: the result is a new array, or a NumPy scalar where NumPy gives one.

        All of NumPy's rules hold: integers, slices with any step, ellipsis, new axes, boolean
        masks, integer arrays and lists, unsorted and repeated; several together pair up.

        Raises
        ------
        SelectionError
            An index that does not fit; it is an IndexError.
        StaleIndexError, DamagedFileError, ChunkDecodeError, ChecksumError
            The file changed, or is damaged where it was read.
        """
        result = self._read(self._select(index), None, None)
        return result if result.ndim or _wants_array(index) else result[()]

    def read(
        self,
        selection: Any = Ellipsis,
        *,
        out: NDArray[Any] | None = None,
        threads: int | None = None,
    ) -> NDArray[Any]:
        """Read a part, into memory of the caller's if wanted.

        Parameters
        ----------
        selection
            Anything that indexing takes.
        out
            Array of the selection's shape and this dtype, writable, of any strides. Filled and
            returned.
        threads
            Most threads to use, the caller's included; default: the configured number.

        Returns
        -------
        numpy.ndarray
            `out`, or a new array; also where the selection is a single element (0-d).

        Raises
        ------
        OutputError
            `out` does not fit; nothing has been read.
        SelectionError, StaleIndexError, DamagedFileError, ChunkDecodeError, ChecksumError
            As indexing. `out` may then be filled in part.

        Notes
        -----
        Each chunk that the selection touches is fetched and decoded once. Besides `out`, memory for
        one stored and one decoded chunk a thread is used, and the cache.
        """
        return self._read(self._select(selection), out, threads)

    def _facts(self) -> dict[str, Any]:
        """Return what an error should say of this array: `file`, `dataset`."""
        return {}

    def _select(self, index: Any) -> Selection:
        """Normalise an index; an error names the array."""
        try:
            return select(index, self.shape)
        except SelectionError as error:
            facts = self._facts()
            where = ", ".join(facts.values())
            raise SelectionError(
                f"{where}: {error.message}" if where else error.message, **facts
            ) from None

    def _read(
        self, selection: Selection, out: NDArray[Any] | None, threads: int | None
    ) -> NDArray[Any]:
        if out is None:
            out = np.empty(selection.shape, self.dtype)
        else:
            check_out(out, selection.shape, self.dtype, **self._facts())
        read([(self.node, selection, out)], threads=threads)
        return out


class Array(Readable):
    """One dataset of a file, read in place.

    Made by `File` (``f["MR/p001"]``). Thread-safe; holds no HDF5 handle and no descriptor; pickles
    as the file's path and its own name.
    """

    def __init__(self, container: FileIndex, name: str) -> None:
        self._container = container
        self._name = name
        self._generation = container.generation
        self._index = container.dataset(name)
        self._node: Node | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Array, (self._container, self._name)

    def _facts(self) -> dict[str, Any]:
        return {"file": self.file, "dataset": self.name}

    @property
    def node(self) -> Node:
        """The compiled dataset that reads are planned from; made when first needed."""
        self._follow()
        if self._node is None:
            self._node = node_of(self._container, self._name)
        return self._node

    @property
    def index(self) -> DatasetIndex:
        """What the file says of the dataset: storage, filters, fill value."""
        self._follow()
        return self._index

    def _follow(self) -> None:
        """Take the dataset as it is now, if the file was refreshed since."""
        if self._generation != (generation := self._container.generation):
            self._index, self._node = self._container.dataset(self._name), None
            self._generation = generation

    @property
    def name(self) -> str:
        """Path in the file, as it was asked for."""
        return "/" + self._name.strip("/")

    @property
    def file(self) -> str:
        """Absolute path of the file that was opened."""
        return self._container.path

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent along each axis; ``(0,)`` for a null dataset, which holds nothing."""
        return self.index.shape

    @property
    def dtype(self) -> np.dtype:
        """Element type in native byte order, whatever the file's is."""
        return self.index.dtype

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Chunk shape; None if the dataset is not chunked."""
        storage = self.index.storage
        return storage.chunks if isinstance(storage, Chunked) else None

    @property
    def filters(self) -> tuple[Filter, ...]:
        """Filter pipeline, in the order in which it was applied on writing."""
        return self.index.filters

    @property
    def fill_value(self) -> Any:
        """Value of elements that were never written, a NumPy scalar."""
        return self.index.fill[()]

    @property
    def stored_nbytes(self) -> int:
        """Bytes that the dataset takes in the file."""
        return self.index.stored_nbytes

    @property
    def is_null(self) -> bool:
        """True for a dataset without a dataspace (h5py's Empty)."""
        return isinstance(self.index.storage, Null)

    @property
    def n_chunks(self) -> tuple[int, int]:
        """How many chunks the file holds, and how many the grid has; (0, 0) if not chunked."""
        node = self.node
        if not isinstance(node, Cells) or node.table is None:
            return 0, 0
        return node.table.nbytes.size, math.prod(node.grid)

    @property
    def attrs(self) -> dict[str, Any]:
        """Attributes, as plain Python and NumPy values; a copy."""
        return dict(self._container.attributes(self._name))

    def __repr__(self) -> str:
        parts = [f"<hyperslab.Array {self.name!r}"]
        if self.is_null:
            return f"{parts[0]} null, {self.dtype}>"
        parts.append(f"{_shape(self.shape)} {self.dtype}")
        if self.chunks is not None:
            parts.append(f"chunks {_shape(self.chunks)}")
        if self.filters:
            parts.append("+".join(entry.name for entry in self.filters))
        return ", ".join(parts) + ">"


def check_out(out: Any, shape: tuple[int, ...], dtype: np.dtype, **facts: str) -> None:
    """Raise `OutputError` unless `out` can be filled with a result of `shape` and `dtype`.

    `facts` name what was to be read: `file`, `dataset`.
    """
    where = ", ".join(facts.values())
    where = f"{where}: " if where else ""
    if not isinstance(out, np.ndarray):
        kind = type(out).__name__
        raise OutputError(f"{where}out must be a numpy.ndarray, not {kind}", **facts)
    if out.shape != shape:
        raise OutputError(
            f"{where}out has shape {out.shape}, but the selection has {shape}", **facts
        )
    if out.dtype != dtype:
        raise OutputError(
            f"{where}out has dtype {out.dtype}, but the data are {dtype}. Give "
            f"numpy.empty({shape}, {dtype.name!r}), and convert afterwards.",
            **facts,
        )
    if not out.flags.writeable:
        raise OutputError(f"{where}out is read-only", **facts)


def _wants_array(index: Any) -> bool:
    """True where NumPy returns a 0-d array, not a scalar: an ellipsis in the index."""
    return index is Ellipsis or (isinstance(index, tuple) and any(i is Ellipsis for i in index))


def _as_array(result: NDArray[Any], dtype: Any, copy: bool | None) -> NDArray[Any]:
    if copy is False:
        raise ValueError("reading from a file always makes a copy; leave copy=False out")
    return result if dtype is None else result.astype(dtype, copy=False)


def _length(shape: tuple[int, ...]) -> int:
    if not shape:
        raise TypeError("a 0-d array has no length")
    return shape[0]


def _shape(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + (",)" if len(shape) == 1 else ")")
