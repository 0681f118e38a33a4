"""Folders of medical images, written by the libraries of their formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import SimpleITK as sitk
from numpy.typing import NDArray
from pydicom.dataset import FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, MRImageStorage, generate_uid

SPACING, ORIGIN = (1.5, 1.25, 3.0), (-20.5, 11.25, 40.0)
STRAIGHT = np.eye(3)[:, [1, 0, 2]]  # rows along y, columns along x, slices along z

# Every string in it identifies somebody or something.
IDENTITY = {
    "PatientName": "Doe^Jane",
    "PatientID": "ID-4711-SECRET",
    "PatientBirthDate": "19510203",
    "PatientSex": "O",
    "PatientAge": "071Y",
    "StudyDate": "20240711",
    "SeriesDate": "20240712",
    "AcquisitionTime": "112233.445566",
    "AccessionNumber": "ACC-0815",
    "InstitutionName": "Hospital of Nowhere",
    "ReferringPhysicianName": "Who^Doctor",
    "StationName": "SCANNER7",
    "StudyID": "STUDY-99",
    "StudyDescription": "Head of Jane",
    "SeriesDescription": "t1 of Jane",
    "DeviceSerialNumber": "SN-123456",
    "StudyInstanceUID": "1.2.826.0.1.3680043.8.498.111111111",
    "FrameOfReferenceUID": "1.2.826.0.1.3680043.8.498.333333333",
}
SERIES_UID = "1.2.826.0.1.3680043.8.498.222222222"


def as_itk(
    values: NDArray[Any],
    spacing: tuple[float, ...] = SPACING,
    origin: tuple[float, ...] = ORIGIN,
    direction: NDArray[Any] = STRAIGHT,
) -> sitk.Image:
    """An ITK image of (rows, columns, slices), with the grid that `hyperslab.packing` gives it."""
    image = sitk.GetImageFromArray(np.ascontiguousarray(values.transpose(2, 0, 1)))
    image.SetSpacing([spacing[a] for a in (1, 0, 2)])
    image.SetOrigin(origin)
    image.SetDirection(np.asarray(direction)[:, [1, 0, 2]].ravel().tolist())
    return image


def write(path: Path, values: NDArray[Any], **grid: Any) -> Path:
    """Write an image in the format that its suffix says; NIfTI by nibabel, others by SimpleITK."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = as_itk(values, **grid)
    if not path.name.endswith((".nii", ".nii.gz")):
        sitk.WriteImage(image, str(path), useCompression=path.suffix == ".mha")
        return path
    matrix = np.array(image.GetDirection()).reshape(3, 3) * np.array(image.GetSpacing())
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = matrix, image.GetOrigin()
    affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine  # to the right and to anterior
    nibabel.save(nibabel.Nifti1Image(values.transpose(1, 0, 2), affine), path)
    return path


def write_series(
    folder: Path,
    values: NDArray[Any],
    *,
    spacing: tuple[float, ...] = SPACING,
    origin: tuple[float, ...] = ORIGIN,
    modality: str = "CT",
    rescale: tuple[float, float] | list[tuple[float, float]] = (1.0, 0.0),
    **changes: Any,
) -> Path:
    """Write (rows, columns, slices) of stored values as a DICOM series, names in no order.

    `changes` are elements, by keyword; a callable is given the number of the slice.
    """
    folder.mkdir(parents=True, exist_ok=True)
    n = values.shape[2]
    kind = CTImageStorage if modality == "CT" else MRImageStorage
    for k in range(n):
        item = pydicom.Dataset()
        for name, value in IDENTITY.items():
            setattr(item, name, value)
        item.SOPClassUID, item.SOPInstanceUID = kind, generate_uid()
        item.SeriesInstanceUID, item.Modality = SERIES_UID, modality
        item.InstanceNumber = n - k
        item.Rows, item.Columns = values.shape[:2]
        item.PixelSpacing = [spacing[0], spacing[1]]
        item.SliceThickness = spacing[2]
        item.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        item.ImagePositionPatient = [origin[0], origin[1], origin[2] + k * spacing[2]]
        item.SamplesPerPixel, item.PhotometricInterpretation = 1, "MONOCHROME2"
        item.BitsAllocated = item.BitsStored = 8 * values.dtype.itemsize
        item.HighBit = item.BitsStored - 1
        item.PixelRepresentation = int(values.dtype.kind == "i")
        slope, intercept = rescale[k] if isinstance(rescale, list) else rescale
        if (slope, intercept) != (1, 0):
            item.RescaleSlope, item.RescaleIntercept = slope, intercept
        item.PixelData = np.ascontiguousarray(values[:, :, k]).tobytes()
        for name, value in changes.items():
            new = value(k) if callable(value) else value
            if new is None:
                delattr(item, name)
            else:
                setattr(item, name, new)
        item.file_meta = FileMetaDataset()
        item.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        item.save_as(folder / f"{(7 * k) % 11:02d}{k:02d}.dcm", enforce_file_format=True)
    return folder


def draw(shape: tuple[int, int, int] = (20, 24, 7), seed: int = 0) -> dict[str, NDArray[Any]]:
    """An MR, a CT and a mask of (rows, columns, slices), int16, int16 and uint8."""
    dice = np.random.default_rng(seed)
    ramp = np.indices(shape).sum(0)
    return {
        "mr": (ramp * 20 + dice.integers(0, 50, shape)).astype(np.int16),
        "ct": (ramp * 60 - 1000 + dice.integers(-20, 50, shape)).astype(np.int16),
        "mask": (ramp > 15).astype(np.uint8),
    }


def write_case(folder: Path, suffix: str = ".nii.gz", seed: int = 0, **grid: Any) -> Path:
    """Write a case of three images, as SynthRAD has them."""
    for name, values in draw(seed=seed).items():
        write(folder / f"{name}{suffix}", values, **grid)
    return folder


def write_tree(root: Path, n_cases: int = 6, shape: tuple[int, int, int] = (48, 40, 12)) -> Path:
    """Write cases p0, p1 ... of three images each."""
    for seed in range(n_cases):
        for name, values in draw(shape, seed).items():
            write(root / f"p{seed}" / f"{name}.nii.gz", values)
    return root
