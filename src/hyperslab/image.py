"""`Image`: datasets of a file seen as one image with axes, levels, physical units and channels."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.array import Readable, View, check_out
from hyperslab.engine.node import Cells, Grid, Node, node_of
from hyperslab.errors import LayoutError
from hyperslab.file import open_file
from hyperslab.index.container import FileIndex
from hyperslab.index.session import session
from hyperslab.layouts import ChannelSpec, ImageSpec, LevelSpec, describe, image_names

__all__ = ["Image", "Level", "list_images", "open_image"]

_PROGRESS_PARTS = 20  # steps of the progress bar, at least, where the shape has them


class Level(Readable):
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
            found = node_of(self._image.container, name)
            inner = self._spec.shape[self._image.spec.n_outer :]
            if len(found.shape) != len(inner) or any(
                found.shape[axis] < want for axis, want in zip(self._order, inner, strict=True)
            ):
                raise LayoutError(
                    f"{self._image.file}: {name} has shape {found.shape}, but level {self.number} "
                    f"of the image needs {inner}.",
                    file=self._image.file,
                    dataset=name,
                )
            self._children[position] = found
        return found

    def _facts(self) -> dict[str, Any]:
        return {"file": self._image.file, "dataset": f"level {self.number}"}

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

    def __repr__(self) -> str:
        sizes = ", ".join(f"{a}={n}" for a, n in zip(self.axes, self.shape, strict=True))
        return f"<hyperslab.Level {self.number}, {sizes}, {self.dtype}>"


def _level(image: Image, number: int) -> Level:
    return image.levels[number]


class Image(Readable):
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

    def __reduce__(self) -> tuple[Any, ...]:
        return Image, (self._container, *self._request)

    def _facts(self) -> dict[str, Any]:
        return {"file": self.file}

    @property
    def container(self) -> FileIndex:
        """The index of the file."""
        return self._container

    @property
    def spec(self) -> ImageSpec:
        """Everything that the layout says."""
        return self._spec

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
    def levels(self) -> Sequence[Level]:
        """Resolution levels, finest first."""
        return self._levels

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
        OutputError, SelectionError, StaleIndexError, DamagedFileError, ChunkDecodeError
            As `Readable.read`.
        """
        if not progress:
            return self._levels[level].read(selection, out=out, threads=threads)
        view = self._levels[level].lazy[selection]
        if out is None:
            out = np.empty(view.shape, view.dtype)
        return _fill_with_progress(view, out, threads=threads, title=self.name or "reading")

    def __repr__(self) -> str:
        sizes = ", ".join(f"{a}={n}" for a, n in zip(self.axes, self.shape, strict=True))
        lines = [f"<hyperslab.Image {self.name or os.path.basename(self.file)!r} ({self.layout})"]
        levels = f"{len(self.levels)} level" + ("s" if len(self.levels) != 1 else "")
        lines.append(f"  {sizes}, {self.dtype}, {_human(self.nbytes)}, {levels}")
        pixel = " x ".join(
            f"{s:g} {u}".strip()
            for a, s, u in zip(self.axes, self.scale, self.units, strict=True)
            if a in "ZYX"
        )
        if pixel:
            lines.append(f"  pixel {pixel}")
        if "C" in self.axes:
            lines.append("  channels " + ", ".join(channel.name for channel in self.channels))
        return "\n".join(lines) + ">"


def _fill_with_progress(
    view: View, out: NDArray[Any], *, threads: int | None, title: str
) -> NDArray[Any]:
    """Read `view` into `out` part by part along its first long axes, under a progress bar."""
    from rich.console import Console
    from rich.progress import Progress

    check_out(out, view.shape, view.dtype)
    # Parts of a time point, a channel ...: large enough to keep all threads busy.
    depth = 0
    while depth < view.ndim - 2 and math.prod(view.shape[:depth]) < _PROGRESS_PARTS:
        depth += 1
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=view.nbytes)
        for position in np.ndindex(*view.shape[:depth]):
            part = out[(*position, ...)]
            view[position].read(out=part, threads=threads)
            bar.advance(task, part.nbytes)
    return out


def _describe(
    container: FileIndex, layout: str, axes: str | None, image: str | int | None
) -> ImageSpec:
    with session(container.path) as h5:
        return describe(h5, container.path, layout, axes=axes, image=image)


def _human(nbytes: int) -> str:
    exponent = min(4, int(math.log(max(1, nbytes), 1000)))
    return f"{nbytes / 1000**exponent:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[exponent]}"


def list_images(path: str | os.PathLike[str], layout: str = "auto") -> tuple[str, ...]:
    """Return the names of the images in the HDF5 file at `path`; see `open_image`.

    Raises
    ------
    MissingFileError, NotHDF5Error
        As `hyperslab.open`.
    LayoutError
        No layout fits, or several do.
    """
    container = open_file(path)._container
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
        Of the file.
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
    return Image(open_file(path)._container, layout, axes, image)
