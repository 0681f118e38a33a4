"""Reading through the HDF5 library, for what nothing else here can decode."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.errors import DamagedFileError, MissingCodecError
from hyperslab.filters import filter_package
from hyperslab.index.records import DatasetIndex

if TYPE_CHECKING:
    import h5py

__all__ = ["read_cell", "require_filters"]


def require_filters(index: DatasetIndex) -> None:
    """Raise `MissingCodecError` unless the HDF5 library has every filter of the dataset.

    Loads hdf5plugin, which registers its filters, if a filter is missing and it is installed.
    """
    import h5py

    for entry in index.filters:
        if h5py.h5z.filter_avail(entry.code):
            continue
        if importlib.util.find_spec("hdf5plugin") is not None:
            importlib.import_module("hdf5plugin")
            if h5py.h5z.filter_avail(entry.code):
                continue
        package = filter_package(entry.code)
        advice = (
            f"`pip install {package}` brings it."
            if package and importlib.util.find_spec(package) is None
            else "Install the plugin of that filter's maker for the HDF5 library (and set "
            "HDF5_PLUGIN_PATH to its folder)."
        )
        raise MissingCodecError(
            f"{index.file}: {index.name} is compressed with {entry.name} (filter {entry.code}), "
            f"which nothing installed here decodes. {advice}",
            file=index.file,
            dataset=index.name,
            codec=entry.name,
            filter_id=entry.code,
            package=package,
        )


def read_cell(
    dataset: h5py.Dataset,
    index: DatasetIndex,
    origin: tuple[int, ...],
    cell: tuple[int, ...],
) -> NDArray[Any]:
    """Read one cell (chunk, or run of rows) of an open h5py `dataset`.

    Returns
    -------
    numpy.ndarray
        Of shape `cell` and the native dtype, owned by the caller; what lies past the end of the
        dataset is unspecified.

    Raises
    ------
    DamagedFileError
        With the HDF5 library's reason, the dataset and the cell.
    """
    stops = [min(o + c, n) for o, c, n in zip(origin, cell, index.shape, strict=True)]
    part = tuple(slice(o, stop) for o, stop in zip(origin, stops, strict=True))
    target = tuple(slice(0, stop - o) for o, stop in zip(origin, stops, strict=True))
    buffer = np.zeros(cell, index.dtype)
    try:
        buffer[target] = dataset[part]
    except OSError as error:
        chunk = tuple(o // c for o, c in zip(origin, cell, strict=True))
        raise DamagedFileError(
            f"{index.file}: {index.name}, chunk {chunk}: the HDF5 library cannot read it: {error}",
            file=index.file,
            dataset=index.name,
            chunk=chunk,
        ) from error
    return buffer
