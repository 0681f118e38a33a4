"""MetaImage and NRRD images, through SimpleITK; and images resampled by it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.packing.grid import Grid, grid_of
from hyperslab.packing.refusal import Refused, as_refusal
from hyperslab.packing.volume import Header, Volume, need_package

if TYPE_CHECKING:
    import SimpleITK

__all__ = ["read", "read_header", "resample", "simpleitk"]

_KINDS = {".mha": "MetaImage", ".mhd": "MetaImage", ".nrrd": "NRRD", ".nhdr": "NRRD"}
_DETACHED = re.compile(rb"^(?:ElementDataFile\s*=|data ?file:)\s*(.+?)\s*$", re.I | re.M)
_HEADER_NBYTES = 1 << 16


def simpleitk() -> Any:
    """Return the package, or raise the error that names the extra."""
    try:
        import SimpleITK
    except ImportError as error:
        raise need_package("SimpleITK", error) from error
    return SimpleITK


def read_header(path: str) -> Header:
    """Read the header of a ``.mha``, ``.mhd``, ``.nrrd`` or ``.nhdr`` file.

    Raises
    ------
    Refused
        It cannot be read, is no image of one number a voxel along three axes, or its axes are not
        at right angles.
    MissingExtraError
        SimpleITK is not installed.
    """
    sitk = simpleitk()
    reader = sitk.ImageFileReader()
    reader.SetFileName(path)
    with as_refusal(path):
        reader.ReadImageInformation()
        dtype = _dtype(reader, path)
    return _header(path, reader, dtype)


def _dtype(reader: SimpleITK.ImageFileReader, path: str) -> np.dtype[Any]:
    sitk = simpleitk()
    if reader.GetNumberOfComponents() != 1:
        raise Refused(
            f"{path} has {reader.GetNumberOfComponents()} numbers a voxel (a colour, or a vector), "
            "and not one"
        )
    one = sitk.Image([1, 1, 1], reader.GetPixelID())
    found: np.dtype[Any] = sitk.GetArrayFromImage(one).dtype
    if found.kind not in "iuf":
        raise Refused(f"{path} has {found.name} voxels, and not one number each")
    return found


def _header(path: str, reader: SimpleITK.ImageFileReader, dtype: np.dtype[Any]) -> Header:
    size = tuple(reader.GetSize())
    if len(size) < 3 or set(size[3:]) - {1}:
        raise Refused(f"{path} has {len(size)} axes, {size}; an image has three")
    n = len(size)
    direction = np.array(reader.GetDirection()).reshape(n, n)[:3, :3]
    matrix = direction * np.array(reader.GetSpacing())[:3]
    try:
        grid, turn = grid_of(size[:3], matrix, np.array(reader.GetOrigin())[:3])
    except Refused as error:
        raise Refused(f"{path}: {error}") from error
    return Header(
        kind=_KINDS.get(os.path.splitext(path.lower())[1], "image"),
        grid=grid,
        turn=turn,
        dtype=dtype,
        itemsize=dtype.itemsize,
        modality="",
        files=(path, *_detached(path)),
    )


def _detached(path: str) -> tuple[str, ...]:
    """Return the files that hold the voxels, where the header is a file of its own.

    What a header says in another way than by a name (a list, a pattern) is any file beside it.
    """
    if not path.lower().endswith((".mhd", ".nhdr")):
        return ()
    with open(path, "rb") as stream:
        found = _DETACHED.search(stream.read(_HEADER_NBYTES))
    folder = os.path.dirname(path)
    if found:
        named = os.path.join(folder, os.fsdecode(found[1]))
        if os.path.isfile(named):
            return (named,)
    beside = (os.path.join(folder, name) for name in sorted(os.listdir(folder)))
    return tuple(name for name in beside if os.path.isfile(name) and name != path)


def read(path: str) -> Volume:
    """Read the image at `path`; errors as `read_header`."""
    header = read_header(path)
    sitk = simpleitk()
    with as_refusal(path):
        image = sitk.ReadImage(path)
        values = sitk.GetArrayViewFromImage(image)
    values = values.reshape(values.shape[-3:]).transpose(2, 1, 0)
    return Volume(
        values=header.turn(values), slope=1.0, intercept=0.0, grid=header.grid, owner=image
    )


def resample(volume: Volume, target: Grid, *, nearest: bool, fill: float) -> Volume:
    """Return an image on another grid, by SimpleITK.

    Parameters
    ----------
    volume
        The image.
    target
        The grid.
    nearest
        Take the nearest voxel, for labels; otherwise interpolate linearly.
    fill
        Value outside of the image.

    Returns
    -------
    Volume
        float32, or of the image's own type with `nearest`.
    """
    sitk = simpleitk()
    rows, columns, slices = volume.values.shape
    if nearest and volume.slope == 1 and volume.intercept == 0:
        values = volume.values.transpose(2, 0, 1)
        values = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    else:
        values = np.empty((slices, rows, columns), np.float32)
        for k in range(slices):
            values[k] = volume.real((slice(None), slice(None), slice(k, k + 1)))[:, :, 0]
    image = sitk.GetImageFromArray(values)
    del values
    # ITK's axes are columns, rows, slices.
    image.SetSpacing([volume.grid.spacing[a] for a in (1, 0, 2)])
    image.SetOrigin(volume.grid.origin)
    image.SetDirection(_itk_direction(volume.grid))
    how = sitk.ResampleImageFilter()
    how.SetSize([target.shape[a] for a in (1, 0, 2)])
    how.SetOutputSpacing([target.spacing[a] for a in (1, 0, 2)])
    how.SetOutputOrigin(target.origin)
    how.SetOutputDirection(_itk_direction(target))
    how.SetInterpolator(sitk.sitkNearestNeighbor if nearest else sitk.sitkLinear)
    how.SetDefaultPixelValue(fill)
    made = how.Execute(image)
    found: NDArray[Any] = sitk.GetArrayViewFromImage(made)
    return Volume(
        values=found.transpose(1, 2, 0), slope=1.0, intercept=0.0, grid=target, owner=made
    )


def _itk_direction(grid: Grid) -> list[float]:
    turned: list[float] = np.array(grid.direction)[:, [1, 0, 2]].ravel().tolist()
    return turned
