"""`Image`: datasets of a file seen as one image with axes, levels, physical units and channels."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.node import Cells, Grid
from hyperslab.errors import SelectionError
from hyperslab.exports.capacity import new_array
from hyperslab.exports.methods import Exports
from hyperslab.exports.progress import fill_with_progress
from hyperslab.exports.text import image_text
from hyperslab.file import open_file
from hyperslab.index.container import FileIndex
from hyperslab.index.records import Fingerprint
from hyperslab.index.session import session
from hyperslab.layouts import ChannelSpec, describe, image_names
from hyperslab.layouts.bdv_xml import file_of_xml
from hyperslab.layouts.spec import IntensitySpec
from hyperslab.level import Level, StoredLevel
from hyperslab.pyramid.level import ComputedLevel, computed_levels
from hyperslab.pyramid.saved import delete_levels, save_levels

__all__ = ["Image", "Level", "list_images", "open_image"]

_numbers = itertools.count()


class Image(Exports):
    """An image: axes, levels, physical scale, channels; indexing reads from the finest level.

    Made by `open_image`. Thread-safe, holds no handle, pickles as its path and layout.

    Attributes
    ----------
    key
        Tells what is computed for this image from what is computed for another of this process.
    sources
        Files that computed values were made of, as they were then.
    """

    def __init__(
        self,
        container: FileIndex,
        layout: str,
        axes: str | None,
        image: str | int | None = None,
        physical: bool = True,
    ) -> None:
        self._container = container
        self._request = (layout, axes, image, physical)
        self._describe()

    def _describe(self) -> None:
        layout, axes, image, _ = self._request
        with session(self._container.path) as h5:
            self._spec = describe(h5, self._container.path, layout, axes=axes, image=image)
        self.key = f"image {next(_numbers)}"
        self.sources: dict[str, Fingerprint] = {}
        self._stored = tuple(StoredLevel(self, i) for i in range(len(self._spec.levels)))
        self._levels = (*self._stored, *computed_levels(self, self._stored[-1]))
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
    def node(self) -> Grid | Cells:
        """The compiled datasets of the finest level."""
        return self._stored[0].node

    @property
    def request(self) -> tuple[str, str | None, str | int | None, bool]:
        """What was asked of `open_image`: layout, axes, image, physical."""
        return self._request

    @property
    def intensity(self) -> IntensitySpec | None:
        """How stored numbers become the values that are read; None where they are those."""
        _, _, _, physical = self._request
        return self._spec.intensity if physical and not self._spec.labels else None

    @property
    def file(self) -> str:
        """Absolute path of the file."""
        return self._container.path

    @property
    def name(self) -> str:
        """The image's own name, "" if it has none."""
        return self._spec.name

    @property
    def series(self) -> tuple[str, ...]:
        """Names of all the images of the file, this one among them: ``open_image(image=name)``.

        Looks the file's objects up again, each time.
        """
        layout, axes, _, _ = self._request
        if axes is not None:
            return (self._spec.name,)  # a template, or a dataset
        with session(self._container.path) as h5:
            return image_names(h5, self._container.path, layout)

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
        """Element type, in native byte order; float64 where the file gives an intensity scale."""
        return self._stored[0].dtype

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
        self._describe()

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

    def save_levels(
        self, levels: Sequence[int] | None = None, *, progress: bool = False
    ) -> Path | None:
        """Compute the levels that the file does not hold, and keep them on disk.

        From then on they are read from there, in this process and in later ones, for as long as
        the file does not change.

        Parameters
        ----------
        levels
            Numbers of computed levels; default: all of them.
        progress
            Show a progress bar on the terminal (on stderr).

        Returns
        -------
        pathlib.Path or None
            The folder they are in, below hyperslab's cache folder (HYPERSLAB_CACHE_DIR), as
            ``.npy`` files; it may be deleted at any time. None if there is nothing to compute.

        Raises
        ------
        SelectionError
            A number that is not a computed level's.
        CapacityError
            The disk has no room for them; nothing has been written.
        OSError
            The folder cannot be written to.

        Notes
        -----
        Reads the coarsest level of the file once. They are stored as they are, without compression:
        where each halves Y and X, all take a third of that level's size in memory.
        """
        computed = {lv.number: lv for lv in self._levels if isinstance(lv, ComputedLevel)}
        numbers = sorted(computed if levels is None else set(levels))
        for number in numbers:
            if number not in computed:
                known = ", ".join(map(str, computed)) or "none"
                raise SelectionError(
                    f"{self.file}: level {number} is not computed. Computed levels: {known}.",
                    file=self.file,
                )
        if not numbers:
            return None
        return save_levels(self, [computed[number] for number in numbers], progress=progress)

    def delete_levels(self) -> None:
        """Delete the levels that `save_levels` kept of this image, if any."""
        delete_levels(self)
        for level in self._levels:
            if isinstance(level, ComputedLevel):
                level.forget_saved()

    def __repr__(self) -> str:
        return image_text(self.spec, self._levels)


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
    physical: bool = True,
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
        Name or number of an image, where the file has several; see `list_images`. None takes the
        one that the file itself says to show (NeXus `default`), if it says so.
    physical
        Where the file says how stored numbers become physical values (MINC 2 does), read those, as
        float64. False reads the stored numbers.

    Returns
    -------
    Image
        Its levels are the file's. Where those are none but large ones, coarser levels follow that
        are computed when they are read: means of pairs, along the finest axes in space.

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
    return Image(_container(path), layout, axes, image, physical)
