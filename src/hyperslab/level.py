"""`Level`: one resolution of an image, read from the file's datasets."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperslab.engine.node import Cells, Flat, Grid, Node, node_of
from hyperslab.errors import LayoutError
from hyperslab.exports.capacity import Guarded
from hyperslab.index.container import FileIndex
from hyperslab.layouts.spec import BESIDE, LevelSpec
from hyperslab.physical import physical_node

if TYPE_CHECKING:
    import dask.array as da

    from hyperslab.image import Image

__all__ = ["Level", "StoredLevel"]


class Level(Guarded):
    """One resolution level of an image: an array along the image's axes.

    Attributes
    ----------
    number
        0 is the finest.
    computed
        True for a level that is made of a finer one when it is read; the file does not hold it.
    """

    computed = False

    def __init__(self, image: Image, number: int, shape: tuple[int, ...]) -> None:
        self._image = image
        self.number = number
        self._shape = shape

    def __reduce__(self) -> tuple[Any, ...]:
        return _level, (self._image, self.number)

    def _facts(self) -> dict[str, Any]:
        return {"file": self._image.file, "dataset": f"level {self.number}"}

    @property
    def image(self) -> Image:
        """The image that this is a level of."""
        return self._image

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent along the image's axes; padding in the file is not part of it."""
        return self._shape

    @property
    def axes(self) -> str:
        """One letter per axis."""
        return self._image.axes

    @property
    def chunks(self) -> tuple[int, ...]:
        """What is fetched, or computed, together; 1 along axes that run over datasets."""
        raise TypeError(f"{type(self).__name__} has no chunks")

    @property
    def scale(self) -> tuple[float, ...]:
        """Size of a pixel of this level along each axis, in the image's units."""
        raise TypeError(f"{type(self).__name__} has no scale")

    @property
    def translation(self) -> tuple[float, ...]:
        """Position of the centre of the first pixel of this level, in the image's units.

        Levels share their outer border, so a coarser level's first pixel has its centre further in.
        """
        return tuple(
            t + (mine - finest) / 2
            for t, mine, finest in zip(
                self._image.spec.translation, self.scale, self._image.spec.scale, strict=True
            )
        )

    def to_dask(self) -> da.Array:
        """Return this level as a dask array; nothing is read.

        Returns
        -------
        dask.array.Array
            Its blocks are whole multiples of chunks, 32 to 64 MiB where the datasets are that
            large, and 1 along axes over datasets. It takes no lock, and computes under threads,
            processes and dask.distributed alike: each process opens the file by its path, once.

        Raises
        ------
        MissingExtraError
            dask is not installed; it comes with the extra `dask`.

        Notes
        -----
        The graph holds the level once, a few hundred bytes, whatever the number of blocks. Where
        the array is indexed first of all, ``a[0, 1, 5, :512, :512]``, only that is read of a block.
        If the file changes before the array is computed, that raises `StaleIndexError`.
        """
        from hyperslab.exports.blocks import to_dask

        return to_dask(self)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{a}={n}" for a, n in zip(self.axes, self.shape, strict=True))
        computed = ", computed" if self.computed else ""
        return f"<hyperslab.Level {self.number}, {sizes}, {self.dtype}{computed}>"


class StoredLevel(Level):
    """A level that the file holds: a grid of datasets."""

    def __init__(self, image: Image, number: int) -> None:
        self._spec: LevelSpec = image.spec.levels[number]
        super().__init__(image, number, self._spec.shape)
        self._children: dict[int, Node] = {}
        n_inner = len(self._spec.shape) - image.spec.n_outer
        self._order = image.spec.order or tuple(range(n_inner))
        self._stored = Grid(
            shape=self._spec.shape,
            dtype=np.dtype(image.spec.dtype),
            n_outer=image.spec.n_outer,
            child=self._child,
            order=self._order,
        )
        self._physical: Cells | None = None

    def _child(self, position: int) -> Node | None:
        """Return the dataset at a row-major position of the outer axes; None if it is missing."""
        found = self._children.get(position)
        if found is None:
            name = self._spec.datasets[position]
            if name is None:
                return None
            beside, separator, inside = name.partition(BESIDE)
            if separator and not name.startswith("/"):
                folder = os.path.dirname(self._image.file)
                found = node_of(FileIndex(os.path.join(folder, beside)), inside)
                padded = False
            else:
                found, padded = node_of(self._image.container, name), True
            self._check(name, found, padded=padded)
            found = _seen_as(found, self._stored.dtype)
            self._children[position] = found
        return found

    def _check(self, name: str, found: Node, *, padded: bool) -> None:
        """Raise unless a dataset holds what the layout said of the first of its kind."""
        dtype = self._stored.dtype
        shape = self._spec.shape[self._image.spec.n_outer :]
        stored = tuple(found.shape[axis] for axis in self._order if axis < len(found.shape))
        fits = len(found.shape) == len(shape) == len(stored) and (
            all(n >= want for n, want in zip(stored, shape, strict=True))
            if padded
            else stored == shape
        )
        alike = np.can_cast(found.dtype, dtype) or _differ_in_sign(found.dtype, dtype)
        if not (fits and alike):
            raise LayoutError(
                f"{self._image.file}: {name} has shape {found.shape} and type {found.dtype}, but "
                f"level {self.number} of the image needs {shape} and {dtype}.",
                file=self._image.file,
                dataset=name,
            )

    @property
    def node(self) -> Grid | Cells:
        """The compiled datasets that reads are planned from."""
        intensity = self._image.intensity
        if intensity is None:
            return self._stored
        if self._physical is None:
            self._physical = physical_node(
                self._stored,
                intensity,
                file=self._image.file,
                fingerprint=self._image.container.fingerprint,
                sources=self._image.sources,
                name=f"{self._image.key}, level {self.number}",
                cell=self.chunks,
            )
        return self._physical

    @property
    def dtype(self) -> np.dtype:
        """Element type, in native byte order."""
        return np.dtype(np.float64) if self._image.intensity else self._stored.dtype

    @property
    def chunks(self) -> tuple[int, ...]:
        """What is fetched together: the datasets' chunk shape, 1 along axes over datasets.

        Where a dataset is not chunked, one plane. Indexes the image's first dataset.
        """
        n = self._image.spec.n_outer
        inner = self.shape[n:]
        first = next((i for i, name in enumerate(self._spec.datasets) if name is not None), None)
        node = None if first is None else self._child(first)
        cell = (1,) * (len(inner) - 2) + inner[-2:]
        if isinstance(node, Cells):
            cell = tuple(node.cell[axis] for axis in self._order)
        return (1,) * n + tuple(min(c, e) for c, e in zip(cell, inner, strict=True))

    @property
    def scale(self) -> tuple[float, ...]:
        """Size of a pixel of this level along each axis, in the image's units."""
        finest = self._image.spec.levels[0].shape
        return tuple(
            s * a / b if b else s
            for s, a, b in zip(self._image.spec.scale, finest, self.shape, strict=True)
        )


def _differ_in_sign(one: np.dtype, other: np.dtype) -> bool:
    return {one.kind, other.kind} == {"i", "u"} and one.itemsize == other.itemsize


def _seen_as(node: Node, dtype: np.dtype) -> Node:
    """Return `node` with integers of the other sign, where `dtype` differs in that alone.

    A file may store unsigned numbers as signed ones of the same size: the bytes are the same.
    """
    if not _differ_in_sign(node.dtype, dtype):
        return node
    if not isinstance(node, Cells | Flat):
        return node  # its elements are converted as they are put into place, which wraps them
    index = replace(
        node.index,
        dtype=dtype,
        file_dtype=dtype.newbyteorder(node.index.file_dtype.byteorder),
        fill=node.index.fill.view(dtype),
    )
    return replace(node, index=index)


def _level(image: Image, number: int) -> Level:
    return image.levels[number]
