"""The engine "hyperslab" of `xarray.open_dataset`. Needs xarray, of the extra `dask`.

xarray finds it through the entry point group "xarray.backends".
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hyperslab.errors import HyperslabError, MissingExtraError
from hyperslab.exports.blocks import block_shape
from hyperslab.exports.labelled import attributes, labels
from hyperslab.exports.portable import Portable
from hyperslab.image import list_images, open_image

try:
    import xarray as xr
    from xarray.backends import BackendArray, BackendEntrypoint
    from xarray.core import indexing
except ModuleNotFoundError as error:
    if error.name != "xarray":
        raise  # xarray is there, and something that it needs is not
    raise MissingExtraError(
        "hyperslab.xarray needs xarray, which is not installed here. Install it with: "
        "pip install 'hyperslab[dask]' (in a clone of it: pip install '.[dask]')",
        package="xarray",
        extra="dask",
    ) from error

if TYPE_CHECKING:
    from hyperslab.level import Level

__all__ = ["HyperslabBackend"]

_ENDINGS = (".ims", ".h5", ".hdf5", ".hdf", ".he5", ".mat", ".nxs", ".emd", ".mnc", ".ilp")


class HyperslabBackend(BackendEntrypoint):
    """Opens the image of an HDF5 file as a dataset with one variable, "image"."""

    description = "Microscopy and other images in HDF5 files, read in parallel with hyperslab"
    open_dataset_parameters: ClassVar = (
        "filename_or_obj", "drop_variables", "level", "layout", "axes", "image",
    )  # fmt: skip

    def open_dataset(  # type: ignore[override]
        self,
        filename_or_obj: str | os.PathLike[str],
        *,
        drop_variables: str | Iterable[str] | None = None,
        level: int = 0,
        layout: str = "auto",
        axes: str | None = None,
        image: str | int | None = None,
    ) -> xr.Dataset:
        """Open a level of an image; nothing is read.

        Parameters
        ----------
        filename_or_obj
            Path of the file.
        drop_variables
            Names to leave out: "image", or coordinates.
        level
            0 is the finest.
        layout, axes, image
            As `hyperslab.open_image` takes them.

        Returns
        -------
        xarray.Dataset
            Variable "image" and the coordinates of `Image.to_xarray`. Not chunked by dask unless
            `chunks=` asks for it; ``chunks={}`` gives blocks of whole chunks.
        """
        if not isinstance(filename_or_obj, (str, os.PathLike)):
            raise TypeError(
                f"the engine hyperslab opens a path, not a {type(filename_or_obj).__name__}"
            )
        found = open_image(filename_or_obj, layout, axes=axes, image=image).levels[level]
        dropped = {drop_variables} if isinstance(drop_variables, str) else set(drop_variables or ())
        variable = xr.Variable(
            tuple(found.axes),
            indexing.LazilyIndexedArray(_LevelArray(found)),
            encoding={"preferred_chunks": _preferred_chunks(found)},
        )
        coords = {name: item for name, item in labels(found).items() if name not in dropped}
        return xr.Dataset(
            {} if "image" in dropped else {"image": variable},
            coords=coords,
            attrs=attributes(found),
        )

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Tell whether a path is that of an HDF5 file whose layout is known."""
        if not isinstance(filename_or_obj, (str, os.PathLike)):
            return False
        path = os.fspath(filename_or_obj)
        if not path.lower().endswith(_ENDINGS) or not os.path.isfile(path):
            return False
        try:
            return len(list_images(path)) > 0
        except HyperslabError:
            return False


def _preferred_chunks(level: Level) -> dict[str, int]:
    block = block_shape(
        level.shape,
        level.chunks,
        itemsize=level.dtype.itemsize,
        n_outer=level.image.spec.n_outer,
    )
    return dict(zip(level.axes, block, strict=True))


class _LevelArray(BackendArray):
    """A level, as xarray wants lazy arrays to be indexed."""

    def __init__(self, level: Level) -> None:
        self._source = Portable(level)
        self.shape = level.shape
        self.dtype = level.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> NDArray[Any]:
        found: NDArray[Any] = indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.OUTER, self._read
        )
        return found

    def _read(self, key: tuple[Any, ...]) -> NDArray[Any]:
        """Read the product of what is wanted along each axis."""
        view = self._source.level.lazy[...]
        for axis in reversed(range(len(key))):  # so that numbers do not renumber what is to come
            view = view[(slice(None),) * axis + (key[axis],)]
        return np.asarray(view)
