"""NIfTI images, through nibabel."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hyperslab.packing.grid import grid_of
from hyperslab.packing.refusal import Refused, as_refusal
from hyperslab.packing.volume import Header, Volume, need_package

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

__all__ = ["read", "read_header"]

_MM = {"mm": 1.0, "unknown": 1.0, "meter": 1000.0, "micron": 0.001}
_TO_LPS = np.array([-1.0, -1.0, 1.0])  # NIfTI's x and y run to the right and to anterior
_REST_NBYTES = 1 << 20


def read_header(path: str) -> Header:
    """Read the header of a ``.nii`` or ``.nii.gz`` file.

    Raises
    ------
    Refused
        It cannot be read, is no image of one number a voxel along three axes, or its axes are not
        at right angles.
    MissingExtraError
        nibabel is not installed.
    """
    return _header(path, _open(path))


def _open(path: str) -> Nifti1Image:
    try:
        import nibabel
        from nibabel.nifti1 import Nifti1Image
    except ImportError as error:
        raise need_package("nibabel", error) from error
    with as_refusal(path):
        image = nibabel.load(path, mmap=False)
    if not isinstance(image, Nifti1Image):  # NIfTI 2 is one too
        raise Refused(f"{path} is not NIfTI, but {type(image).__name__}")
    return image


def _header(path: str, image: Nifti1Image) -> Header:
    dtype = cast("np.dtype[Any]", image.get_data_dtype())
    if dtype.names or dtype.kind not in "iuf":
        raise Refused(f"{path} has {_type_name(dtype)} voxels, and not one number each")
    with as_refusal(path):
        affine = np.asarray(image.affine, np.float64)
        unit = image.header.get_xyzt_units()[0]
    scale = _MM.get(unit, 1.0)
    shape = tuple(image.shape)
    if set(shape[3:]) - {1}:
        raise Refused(f"{path} has {len(shape)} axes, {shape}; an image has three")
    note = ""
    if not (int(image.header["sform_code"]) > 0 or int(image.header["qform_code"]) > 0):
        note = "it does not say where the patient's left is; taken as nibabel does"
    matrix = affine[:3, :3] * _TO_LPS[:, None] * scale
    try:
        grid, turn = grid_of(shape[:3], matrix, affine[:3, 3] * _TO_LPS * scale)
    except Refused as error:
        raise Refused(f"{path}: {error}") from error
    return Header(
        kind="NIfTI",
        grid=grid,
        turn=turn,
        dtype=dtype,
        itemsize=dtype.itemsize,
        modality="",
        files=(path,),
        note=note,
    )


def _type_name(dtype: np.dtype[Any]) -> str:
    return "colour" if dtype.names else dtype.name


def read(path: str) -> Volume:
    """Read a ``.nii`` or ``.nii.gz`` file; errors as `read_header`.

    Notes
    -----
    Of a file that is compressed, also the checksum at its end is checked, which nibabel by itself
    does not get to.
    """
    image = _open(path)
    header = _header(path, image)
    with as_refusal(path):
        if path.lower().endswith(".gz"):
            with gzip.open(path) as stream:
                image = type(image).from_stream(stream)
                values = _values(image)
                while stream.read(_REST_NBYTES):
                    pass
        else:
            values = _values(image)
        slope, intercept = (float(value) for value in (image.dataobj.slope, image.dataobj.inter))
    return Volume(
        values=header.turn(values.reshape(values.shape[:3])),
        slope=slope,
        intercept=intercept,
        grid=header.grid,
    )


def _values(image: Nifti1Image) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = image.dataobj.get_unscaled()
    return found
