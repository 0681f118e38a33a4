"""DICOM series, through pydicom: a file a slice.

Nothing but geometry, modality and the meaning of the numbers is looked at; nothing that says whose
images they are is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.packing.grid import grid_of
from hyperslab.packing.itk import simpleitk
from hyperslab.packing.refusal import NotAnImage, Refused, as_refusal
from hyperslab.packing.volume import Header, Volume, need_package

if TYPE_CHECKING:
    from pydicom import Dataset

__all__ = ["is_dicom", "read", "read_header"]

_TAGS = [
    "BitsAllocated", "Columns", "ImageOrientationPatient", "ImagePositionPatient", "Modality",
    "NumberOfFrames", "PhotometricInterpretation", "PixelRepresentation", "PixelSpacing",
    "RescaleIntercept", "RescaleSlope", "Rows", "SOPClassUID", "SamplesPerPixel",
    "SeriesInstanceUID", "SliceThickness", "SpacingBetweenSlices",
]  # fmt: skip
_UNEVEN = 0.01  # how much distances between slices may differ, by the usual one
# Modalities of what is kept beside images: structures, plans, doses, segmentations, reports.
_BESIDE = {"RTSTRUCT", "RTPLAN", "RTDOSE", "RTRECORD", "SEG", "SR", "PR", "KO", "REG", "DOC"}
_ALIKE = 1e-4  # how much orientations may differ between slices


def is_dicom(path: str) -> bool:
    """Tell by its first bytes whether a file is DICOM (part 10: "DICM" at byte 128)."""
    try:
        with open(path, "rb") as stream:
            return stream.read(132)[128:] == b"DICM"
    except OSError:
        return False


def _pydicom() -> Any:
    try:
        import pydicom
    except ImportError as error:
        raise need_package("pydicom", error) from error
    return pydicom


def read_header(files: Sequence[str]) -> Header:
    """Read the headers of the files of a series.

    Parameters
    ----------
    files
        All files of one folder, in any order.

    Raises
    ------
    NotAnImage
        They are something else.
    Refused
        They are of several series, colour, or of several frames a file; slices are missing,
        unevenly spaced, doubled, or shifted against each other (a tilted gantry).
    MissingExtraError
        pydicom is not installed.

    Notes
    -----
    Opens every file and reads its header. A slice that is missing at either end leaves no trace.
    """
    pydicom = _pydicom()
    headers: list[tuple[str, Dataset]] = []
    for path in files:
        with as_refusal(path):
            headers.append(
                (path, pydicom.dcmread(path, stop_before_pixels=True, specific_tags=_TAGS))
            )
    where = str(Path(files[0]).parent) if len(files) > 1 else files[0]
    with as_refusal(where):
        return _header(where, headers)


def _header(where: str, headers: list[tuple[str, Dataset]]) -> Header:
    first = headers[0][1]
    if first.get("Rows") is None or first.get("Modality") in _BESIDE:
        raise NotAnImage(f"{where} is no image, but {first.get('Modality', 'something else')}")
    _check_alike(where, [header for _, header in headers])
    orientation = np.array(first.ImageOrientationPatient, np.float64)
    along_columns, along_rows = orientation[:3], orientation[3:]  # as column, row indices grow
    normal = np.cross(along_columns, along_rows)
    positions = np.array([h.ImagePositionPatient for _, h in headers], np.float64)
    depths = positions @ normal
    order = np.argsort(depths, kind="stable")
    positions, depths = positions[order], depths[order]
    note = ""
    if len(headers) > 1:
        step = _slice_step(where, positions, depths)
    else:
        thickness = first.get("SpacingBetweenSlices") or first.get("SliceThickness")
        if not thickness:
            raise Refused(f"{where} is one slice, and does not say how thick it is")
        step = normal * float(thickness)
        note = "one slice, as thick as its header says"
    down, across = (float(value) for value in first.PixelSpacing)  # between rows, columns
    matrix = np.stack([along_rows * down, along_columns * across, step], axis=1)
    shape = (int(first.Rows), int(first.Columns), len(headers))
    try:
        grid, turn = grid_of(shape, matrix, positions[0])
    except Refused as error:
        raise Refused(f"{where}: {error}") from error
    dtype = np.dtype(f"{'i' if first.PixelRepresentation else 'u'}{first.BitsAllocated // 8}")
    return Header(
        kind="DICOM",
        grid=grid,
        turn=turn,
        dtype=dtype,
        itemsize=dtype.itemsize if _rescale_is_one([h for _, h in headers]) else 4,
        modality=str(first.get("Modality", "")),
        files=tuple(headers[i][0] for i in order),
        note=note,
    )


def _check_alike(where: str, headers: list[Dataset]) -> None:
    """Raise unless all are slices of one series."""
    n_series = len({str(header.get("SeriesInstanceUID")) for header in headers})
    if n_series > 1:
        raise Refused(
            f"{where} holds {n_series} series; give each a folder of its own, or name its files "
            "by a pattern"
        )
    first = headers[0]
    for header in headers:
        if int(header.get("NumberOfFrames") or 1) > 1:
            raise Refused(
                f"{where} holds files of several frames (enhanced DICOM); convert them, by dcm2niix"
                " for instance"
            )
        if header.get("SamplesPerPixel", 1) != 1 or not str(
            header.get("PhotometricInterpretation", "")
        ).startswith("MONOCHROME2"):
            raise Refused(
                f"{where} holds images that are {header.get('PhotometricInterpretation')}, and not "
                "MONOCHROME2"
            )
        for name in ("ImageOrientationPatient", "ImagePositionPatient", "PixelSpacing"):
            if header.get(name) is None:
                raise Refused(
                    f"{where} holds images without {name}: they do not say where they lie"
                )
        for name in ("Rows", "Columns", "BitsAllocated", "PixelRepresentation", "Modality"):
            if header.get(name) != first.get(name):
                raise Refused(
                    f"{where} holds slices of different kinds: {name} is {first.get(name)} and "
                    f"{header.get(name)}"
                )
        for name in ("ImageOrientationPatient", "PixelSpacing"):
            if not np.allclose(header[name].value, first[name].value, rtol=0, atol=_ALIKE):
                raise Refused(f"{where} holds slices of different {name}, as scouts are")


def _slice_step(
    where: str, positions: NDArray[np.float64], depths: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the step from slice to slice; raise unless it is the same everywhere."""
    distances = np.diff(depths)
    usual = float(np.median(distances))
    if usual <= 0 or (distances < usual * _UNEVEN).any():
        n = int((distances < max(usual, 1e-3) * _UNEVEN).sum())
        raise Refused(
            f"{where} has {n} slices at places where another one is (several time points, echoes "
            "or copies); give each its own folder"
        )
    wide = np.flatnonzero(distances > usual * 1.5)
    if wide.size:
        at = int(wide[0])
        n = int(np.rint(distances[wide] / usual).sum()) - wide.size
        raise Refused(
            f"{where} lacks slices: about {n}, the first between {depths[at]:.2f} and "
            f"{depths[at + 1]:.2f} mm, where others are {usual:.3g} mm apart"
        )
    uneven = float(np.abs(distances - usual).max())
    if uneven > usual * _UNEVEN:
        raise Refused(
            f"{where} has slices that are unevenly spaced, {distances.min():.4g} to "
            f"{distances.max():.4g} mm; resample it first"
        )
    # A shift within the plane, from slice to slice, is a skew that `grid_of` refuses.
    step: NDArray[np.float64] = (positions[-1] - positions[0]) / (len(positions) - 1)
    even = positions[0] + np.arange(len(positions))[:, None] * step
    if float(np.linalg.norm(positions - even, axis=1).max()) > usual * 10 * _UNEVEN:
        raise Refused(f"{where} has slices that are shifted against each other")
    return step


def _rescale(header: Dataset) -> tuple[float, float]:
    slope, intercept = header.get("RescaleSlope"), header.get("RescaleIntercept")
    return (1.0 if slope is None else float(slope)), (
        0.0 if intercept is None else float(intercept)
    )


def _rescale_is_one(headers: Sequence[Dataset]) -> bool:
    return len({_rescale(header) for header in headers}) == 1


def read(header: Header) -> Volume:
    """Read a series whose headers have been read; errors as `read_header`.

    Notes
    -----
    RescaleSlope and RescaleIntercept are applied. Where they differ between slices, the result is
    float32; otherwise it is what is stored, and the two are those of the volume.
    """
    pydicom = _pydicom()
    grid, turn, files = header.grid, header.turn, header.files
    shape = [0, 0, 0]
    for axis, n in zip(turn.order, grid.shape, strict=True):
        shape[axis] = n
    same = header.itemsize == header.dtype.itemsize
    values = np.empty((shape[2], shape[0], shape[1]), header.dtype if same else np.float32)
    rescale = (1.0, 0.0)
    for k, path in enumerate(files):
        with as_refusal(path):
            item = pydicom.dcmread(path)
            plane = _plane(path, item)
            rescale = _rescale(item)
            values[k] = plane if same else plane * rescale[0] + rescale[1]
    slope, intercept = rescale if same else (1.0, 0.0)
    return Volume(
        values=turn(values.transpose(1, 2, 0)), slope=slope, intercept=intercept, grid=grid
    )


def _plane(path: str, item: Dataset) -> NDArray[Any]:
    """Return the pixels of a slice, as they are stored."""
    from pydicom.pixels import get_decoder

    syntax = item.file_meta.TransferSyntaxUID
    if not syntax.is_compressed or get_decoder(syntax).is_available:
        plane: NDArray[Any] = item.pixel_array
        return plane
    # pydicom has no decoder for it. ITK has, but it applies the rescale to some kinds of images and
    # not to others: only where there is none do both mean the same.
    if _rescale(item) != (1.0, 0.0):
        raise Refused(
            f"{os.path.basename(path)} is compressed ({syntax.name}), and pydicom finds no decoder "
            "for that; install pylibjpeg with its plugins, or decompress it"
        )
    sitk = simpleitk()
    found: NDArray[Any] = sitk.GetArrayFromImage(sitk.ReadImage(path))
    return found.reshape(found.shape[-2:])
