"""The methods by which an image is handed on; `hyperslab.image.Image` has them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.array import View
from hyperslab.errors import OutputError
from hyperslab.exports import labelled
from hyperslab.exports.capacity import Guarded
from hyperslab.exports.contrast import contrast_limits
from hyperslab.exports.html import image_html
from hyperslab.exports.png import encode_png
from hyperslab.exports.thumbnail import draw_thumbnail
from hyperslab.layouts.spec import ImageSpec

if TYPE_CHECKING:
    import dask.array as da
    import xarray as xr

    from hyperslab.level import Level, StoredLevel

__all__ = ["Exports"]


class Exports(Guarded):
    """What can be made of an image that has a description and levels."""

    _spec: ImageSpec
    _levels: tuple[Level, ...]
    _stored: tuple[StoredLevel, ...]
    # Measured limits, by channel; whoever gives the image another spec empties it.
    _measured: dict[int, tuple[float, float]]

    @property
    def spec(self) -> ImageSpec:
        """Everything that the layout says."""
        return self._spec

    @property
    def levels(self) -> Sequence[Level]:
        """Resolution levels, finest first: the file's, then computed ones if it needs any."""
        return self._levels

    def isel(self, *, level: int = 0, **indexers: Any) -> View:
        """Select by the axes' letters; nothing is read.

        Parameters
        ----------
        level
            0 is the finest.
        **indexers
            For any axis, by its letter in either case: a number, a slice, a list or a mask. For C
            also a channel's name, or a list of names. Lists along several axes select their
            product.

        Returns
        -------
        View
            Axes that got a number are gone. `numpy.asarray(view)` reads.

        Raises
        ------
        SelectionError
            No such axis or channel, or an index out of bounds; it is an IndexError.

        Examples
        --------
        ``img.isel(T=0, C="GFP", Z=slice(3, 9))``
        """
        return labelled.isel(self.levels[level], indexers)

    def coordinates(self, axis: str, *, level: int = 0) -> NDArray[np.float64]:
        """Return the position of each pixel's centre along an axis, in `units`.

        Parameters
        ----------
        axis
            Its letter, in either case.
        level
            Whose pixels; 0 is the finest.

        Returns
        -------
        numpy.ndarray
            float64, a position per index: ``translation + i * scale``.

        Raises
        ------
        SelectionError
            The image has no such axis.
        """
        return labelled.coordinates(self.levels[level], axis)

    def contrast_limits(self, channel: int | str = 0) -> tuple[float, float]:
        """Return the lowest and the highest value to display of a channel.

        Parameters
        ----------
        channel
            Number or name.

        Returns
        -------
        tuple of float
            The file's, if they are finite, in order and within the range of the dtype. Otherwise
            the 0.1st and 99.9th percentile of the middle plane of the file's coarsest level at the
            first time point, or of its middle 2048 x 2048 pixels where it is larger. The same on
            every call.

        Raises
        ------
        SelectionError
            No such channel.

        Notes
        -----
        Decodes nothing where the file's make sense, otherwise the chunks of one plane, once.
        """
        number = labelled.channel_number(self.spec, channel)
        found = self._measured.get(number)
        if found is None:
            given = self.spec.channels[number].contrast_limits
            found = self._measured[number] = contrast_limits(given, self._stored, number)
        return found

    def to_dask(self, level: int = 0) -> da.Array:
        """Return a level as a dask array; see `Level.to_dask`."""
        return self.levels[level].to_dask()

    def to_xarray(self, level: int = 0) -> xr.DataArray:
        """Return a level as an xarray DataArray over its dask array; nothing is read.

        Parameters
        ----------
        level
            0 is the finest.

        Returns
        -------
        xarray.DataArray
            Its dimensions are the axes' letters. Its coordinates: along C the names of the
            channels, along T the times where the file has them, along Z, Y and X the positions of
            the pixels' centres, each with its unit as the attribute `units`. Its attributes: name,
            layout, file, level.

        Raises
        ------
        MissingExtraError
            xarray or dask is not installed; both come with the extra `dask`.

        Notes
        -----
        ``xarray.open_dataset(path, engine="hyperslab")`` gives the same without dask.
        """
        return labelled.to_xarray(self.levels[level])

    def save_thumbnail(self, path: str | os.PathLike[str], size: int = 256) -> None:
        """Save a small picture of the image as PNG.

        Parameters
        ----------
        path
            File to write, ending in ".png"; one that exists is replaced.
        size
            Pixels along the longer side; fewer for an image that has fewer.

        Raises
        ------
        OutputError
            Another ending, or a size below 1.
        LayoutError
            The image has no pixels.

        Notes
        -----
        Shows the first time point, every channel in its colour at its contrast limits, one added
        to the other, at the physical proportions; along Z, the brightest of the planes that share
        chunks with the middle one. Reads the file's coarsest level that has `size` pixels, one
        plane's chunks a channel. What a program may have stored as a preview is not used, for it
        may be of other settings.
        """
        target = os.fspath(path)
        if os.path.splitext(target)[1].lower() != ".png":
            raise OutputError(f"{target}: thumbnails are PNG pictures. Give a name ending in .png.")
        if size < 1:
            raise OutputError(f"{target}: a thumbnail cannot have {size} pixels. Give 1 or more.")
        limits = [self.contrast_limits(i) for i in range(len(self.spec.channels))]
        picture = draw_thumbnail(self.spec, self._stored, limits, size=size)
        with open(target, "wb") as stream:
            stream.write(encode_png(picture))

    def _repr_html_(self) -> str:
        """Return what a notebook shows of the image; reads nothing."""
        return image_html(self.spec, self._levels)
