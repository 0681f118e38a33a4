"""`Image`: datasets of a file seen as one image with axes, levels, physical units and channels."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.node import Cells, Flat, Grid, Node, node_of
from hyperslab.errors import LayoutError
from hyperslab.exports.capacity import Guarded, new_array
from hyperslab.exports.methods import Exports
from hyperslab.exports.progress import fill_with_progress
from hyperslab.exports.text import image_text
from hyperslab.file import open_file
from hyperslab.index.container import FileIndex
from hyperslab.index.session import session
from hyperslab.layouts import ChannelSpec, ImageSpec, LevelSpec, describe, image_names
from hyperslab.layouts.bdv_xml import file_of_xml
from hyperslab.layouts.spec import BESIDE

if TYPE_CHECKING:
    import dask.array as da

__all__ = ["Image", "Level", "list_images", "open_image"]


class Level(Guarded):
    """One resolution level of an image: an array along the image's axes.

    Attributes
    ----------
    number
        0 is the finest.
    """

    def __init__(self, image: Image, number: int) -> None:
        self._image = image
        self.number = number
        self._spec: LevelSpec = image.spec.levels[number]
        self._children: dict[int, Node] = {}
        n_inner = len(self._spec.shape) - image.spec.n_outer
        self._order = image.spec.order or tuple(range(n_inner))
        self._node = Grid(
            shape=self._spec.shape,
            dtype=np.dtype(image.spec.dtype),
            n_outer=image.spec.n_outer,
            child=self._child,
            order=self._order,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _level, (self._image, self.number)

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
            found = _seen_as(found, self.dtype)
            self._children[position] = found
        return found

    def _check(self, name: str, found: Node, *, padded: bool) -> None:
        """Raise unless a dataset holds what the layout said of the first of its kind."""
        shape = self._spec.shape[self._image.spec.n_outer :]
        stored = tuple(found.shape[axis] for axis in self._order if axis < len(found.shape))
        fits = len(found.shape) == len(shape) == len(stored) and (
            all(n >= want for n, want in zip(stored, shape, strict=True))
            if padded
            else stored == shape
        )
        alike = np.can_cast(found.dtype, self.dtype) or _differ_in_sign(found.dtype, self.dtype)
        if not (fits and alike):
            raise LayoutError(
                f"{self._image.file}: {name} has shape {found.shape} and type {found.dtype}, but "
                f"level {self.number} of the image needs {shape} and {self.dtype}.",
                file=self._image.file,
                dataset=name,
            )

    def _facts(self) -> dict[str, Any]:
        return {"file": self._image.file, "dataset": f"level {self.number}"}

    @property
    def image(self) -> Image:
        """The image that this is a level of."""
        return self._image

    @property
    def node(self) -> Grid:
        """The compiled datasets that reads are planned from."""
        return self._node

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent along the image's axes; padding in the file is not part of it."""
        return self._spec.shape

    @property
    def dtype(self) -> np.dtype:
        """Element type, in native byte order."""
        return self._node.dtype

    @property
    def axes(self) -> str:
        """One letter per axis."""
        return self._image.axes

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
            s * a / b for s, a, b in zip(self._image.spec.scale, finest, self.shape, strict=True)
        )

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
        return f"<hyperslab.Level {self.number}, {sizes}, {self.dtype}>"


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


class Image(Exports):
    """An image: axes, levels, physical scale, channels; indexing reads from the finest level.

    Made by `open_image`. Thread-safe, holds no handle, pickles as its path and layout.
    """

    def __init__(
        self, container: FileIndex, layout: str, axes: str | None, image: str | int | None = None
    ) -> None:
        self._container = container
        self._request = (layout, axes, image)
        self._spec = _describe(container, layout, axes, image)
        self._levels = tuple(Level(self, i) for i in range(len(self._spec.levels)))
        self._measured = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Image, (self._container, *self._request)

    def _facts(self) -> dict[str, Any]:
        return {"file": self.file}

    @property
    def container(self) -> FileIndex:
        """The index of the file."""
        return self._container

    @property
    def node(self) -> Grid:
        """The compiled datasets of the finest level."""
        return self._levels[0].node

    @property
    def file(self) -> str:
        """Absolute path of the file."""
        return self._container.path

    @property
    def name(self) -> str:
        """The image's own name, "" if it has none."""
        return self._spec.name

    @property
    def layout(self) -> str:
        """Name of the layout that was recognised or asked for."""
        return self._spec.layout

    @property
    def axes(self) -> str:
        """One letter per axis, e.g. "TCZYX"."""
        return self._spec.axes

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of the finest level along each axis."""
        return self._spec.levels[0].shape

    @property
    def dtype(self) -> np.dtype:
        """Element type, in native byte order."""
        return np.dtype(self._spec.dtype)

    @property
    def chunks(self) -> tuple[int, ...]:
        """As `Level.chunks` of the finest level."""
        return self._levels[0].chunks

    @property
    def scale(self) -> tuple[float, ...]:
        """Size of a pixel of the finest level along each axis, in `units`."""
        return self._spec.scale

    @property
    def translation(self) -> tuple[float, ...]:
        """Position of the centre of the first pixel along each axis, in `units`."""
        return self._spec.translation

    @property
    def origin(self) -> tuple[float, ...]:
        """Position of the border where the first pixel begins, in `units`.

        Half a pixel before `translation`; for Imaris files the recorded ExtMin.
        """
        return self._spec.origin

    @property
    def units(self) -> tuple[str, ...]:
        """Unit of `scale` and `translation` along each axis, "" where there is none."""
        return self._spec.units

    @property
    def channels(self) -> tuple[ChannelSpec, ...]:
        """Name, color, contrast limits and more, one per channel."""
        return self._spec.channels

    @property
    def timestamps(self) -> tuple[datetime, ...] | None:
        """Time of each time point, or None where the file says nothing."""
        return self._spec.timestamps

    def refresh(self) -> None:
        """Forget what was indexed, and take the file as it is now."""
        self._container.refresh()
        self._spec = _describe(self._container, *self._request)
        self._levels = tuple(Level(self, i) for i in range(len(self._spec.levels)))
        self._measured = {}

    def read(
        self,
        selection: Any = Ellipsis,
        *,
        level: int = 0,
        out: NDArray[Any] | None = None,
        threads: int | None = None,
        progress: bool = False,
    ) -> NDArray[Any]:
        """Read a level, or a part of it, with all cores.

        Parameters
        ----------
        selection
            Anything that indexing takes, in pixels of that level; default: all.
        level
            0 is the finest.
        out
            Array to fill, of the selection's shape and the image's dtype.
        threads
            Most threads to use; default: the configured number.
        progress
            Show a progress bar on the terminal (on stderr).

        Returns
        -------
        numpy.ndarray
            `out`, or a new array. Peak memory is that array, and a few chunks a thread.

        Raises
        ------
        IndexError
            No such level.
        CapacityError
            The result does not fit into the memory that is free; nothing has been read.
        OutputError, SelectionError, StaleIndexError, DamagedFileError, ChunkDecodeError
            As `Readable.read`.
        """
        if not progress:
            return self._levels[level].read(selection, out=out, threads=threads)
        view = self._levels[level].lazy[selection]
        if out is None:
            out = new_array(view.shape, view.dtype, **self._levels[level]._facts())
        return fill_with_progress(view, out, threads=threads, title=self.name or "reading")

    def __repr__(self) -> str:
        return image_text(self.spec)


def _describe(
    container: FileIndex, layout: str, axes: str | None, image: str | int | None
) -> ImageSpec:
    with session(container.path) as h5:
        return describe(h5, container.path, layout, axes=axes, image=image)


def _container(path: str | os.PathLike[str]) -> FileIndex:
    """Return the index of the file at `path`, or of the file that an xml there is about."""
    text = os.fspath(path)
    named = file_of_xml(text) if text.endswith(".xml") else None
    return open_file(named or text)._container


def list_images(path: str | os.PathLike[str], layout: str = "auto") -> tuple[str, ...]:
    """Return the names of the images in the HDF5 file at `path`; see `open_image`.

    Raises
    ------
    MissingFileError, NotHDF5Error
        As `hyperslab.open`.
    LayoutError
        No layout fits, or several do.
    """
    container = _container(path)
    with session(container.path) as h5:
        return image_names(h5, container.path, layout)


def open_image(
    path: str | os.PathLike[str],
    layout: str = "auto",
    *,
    axes: str | None = None,
    image: str | int | None = None,
) -> Image:
    """Open the image in the HDF5 file at `path`.

    Parameters
    ----------
    path
        Of the file; or of the xml file of BigDataViewer that names it.
    layout
        "auto" recognises the layout; or a layout's name; or a template of the
        datasets' paths with a field for every number in it, such as ``"t{t}/c{c}/data"``; or the
        path of one dataset.
    axes
        With a template or a path: letters of the datasets' own axes, e.g. "ZYX".
    image
        Name or number of an image, where the file has several; see `list_images`.

    Returns
    -------
    Image

    Raises
    ------
    MissingFileError, NotHDF5Error
        As `hyperslab.open`.
    LayoutError
        No layout fits, or several do, or the file holds several images; the message lists the
        choices.

    Warns
    -----
    MetadataWarning
        Where metadata are missing or make no sense; the default used is stated.

    Notes
    -----
    Reads metadata only. Datasets are indexed when they are first read.
    """
    return Image(_container(path), layout, axes, image)
