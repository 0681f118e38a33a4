"""Sources of other people are packed, every voxel where it belongs, or refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import nibabel
import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from numpy.typing import NDArray

import hyperslab as hs
from hyperslab.packing import PackReport, restore
from tests.conftest import Corpus

SUFFIXES = (".nii.gz", ".nii", ".mha", ".mhd", ".nrrd", ".nhdr", ".dcm")

# Why a source cannot be packed; all that are not named here can.
REFUSED = {
    "src-dicom2nifti-generic-anatomical-001/IM-": "does not say how thick it is",
    "src-dipy/S0_10slices.nii.gz": "its axes are not at right angles",
    "src-dipy/small_64D.nii": "has 4 axes",
    "src-elastix/2DMRI-T1_brain.mha": "has 2 axes",
    "src-nibabel/example_nifti2.nii.gz": "has 4 axes",
    "src-nibabel/functional.nii": "has 4 axes",
    "src-niivue/pcasl.nii.gz": "has 4 axes",
    "src-panimg/channels/5_1_1_1_invalid.mha": "5 numbers a voxel",
    "src-panimg/image10x11x12x13": "has 4 axes",
    "src-panimg/image128x256RGB.mhd": "3 numbers a voxel",
    "src-panimg/image_min10_max10.mha": "has 2 axes",
    "src-panimg/nrrd/image10x11x12_unsupported_version.nrrd": "cannot be read",
    "src-panimg-dicom-enh/": "several frames",
    "src-pydicom-data/JPEG-LL.dcm": "without ImageOrientationPatient",
    "src-pydicom-data/emri": "several frames",
}


def voxels_of_nifti(path: Path) -> tuple[NDArray[Any], Any]:
    image = nibabel.load(path, mmap=False)
    values = image.get_fdata()
    values = values.reshape(values.shape[:3])
    to_lps = np.array([-1, -1, 1])
    return values, lambda index: (image.affine @ [*index, 1])[:3] * to_lps


def voxels_of_itk(path: Path) -> tuple[NDArray[Any], Any]:
    image = sitk.ReadImage(path)
    values = sitk.GetArrayFromImage(image).transpose(2, 1, 0)
    return values, lambda index: np.array(
        image.TransformIndexToPhysicalPoint([int(i) for i in index])
    )


def voxels_of_dicom(paths: list[Path]) -> tuple[NDArray[Any], Any]:
    """By the formula of DICOM PS3.3 C.7.6.2.1.1, slice by slice, in the order of the names."""
    items = [pydicom.dcmread(path) for path in sorted(paths)]
    if items[0].file_meta.TransferSyntaxUID.name.startswith("JPEG"):
        planes = [sitk.GetArrayFromImage(sitk.ReadImage(path))[0] for path in paths]
    else:
        planes = [
            item.pixel_array * float(item.get("RescaleSlope", 1))
            + float(item.get("RescaleIntercept", 0))
            for item in items
        ]

    def at(index: Any) -> NDArray[Any]:
        row, column, k = index
        item = items[k]
        orientation = np.array(item.ImageOrientationPatient, float)
        down, across = map(float, item.PixelSpacing)
        position = np.array(item.ImagePositionPatient, float)
        return position + orientation[:3] * across * column + orientation[3:] * down * row

    return np.stack(planes, axis=-1), at


def check_voxels(stored: h5py.Dataset, values: NDArray[Any], at: Any) -> None:
    """Look some voxels up by their positions."""
    dice = np.random.default_rng(0)
    step = stored.attrs["direction"] * stored.attrs["spacing"]
    elements = stored[...]
    restored = restore(elements, stored.attrs) if stored.attrs["mapping"] != "none" else elements
    assert sorted(stored.shape) == sorted(values.shape)
    places = [tuple(int(dice.integers(n)) for n in values.shape) for _ in range(50)]
    places += [(0, 0, 0), tuple(n - 1 for n in values.shape)]
    for index in places:
        there = np.linalg.solve(step, at(index) - stored.attrs["origin"])
        assert np.allclose(there, np.rint(there), atol=0.01)
        found = restored[tuple(np.rint(there).astype(int))]
        assert abs(found - values[index]) <= 1e-6 * np.ptp(values)
    assert np.isclose(restored.sum(dtype=float), values.sum(dtype=float), rtol=1e-5, atol=1e-3)


def sources(corpus: Corpus) -> Iterator[Path]:
    for entry in corpus.entries:
        path = corpus.path(entry["name"])
        if entry["kind"].startswith("source-") and path.name.endswith(SUFFIXES):
            yield path


def pack_one(path: Path, target: Path) -> PackReport:
    """Pack a file by itself, values as they are."""
    suffix = next(s for s in SUFFIXES if path.name.endswith(s))
    stem = path.name.removesuffix(suffix)
    report = hs.pack(
        path.parent, target, patterns=[f"X={{case}}{suffix}"], maps={"X": "none"}, codec="none"
    )
    assert report is not None
    if stem not in {case.case for case in report.cases}:
        assert any(case.folder == stem for case in report.refused)
    return report


@pytest.mark.filterwarnings("ignore:The pixel data is:UserWarning")  # pydicom's, of a padded file
def test_every_source_is_packed_or_refused(corpus: Corpus, tmp_path: Path) -> None:
    n_packed = n_refused = 0
    seen: dict[tuple[Path, str], PackReport] = {}
    for path in sources(corpus):
        name = path.relative_to(corpus.root).as_posix()
        suffix = next(s for s in SUFFIXES if path.name.endswith(s))
        stem = path.name.removesuffix(suffix)
        key = (path.parent, suffix)
        if key not in seen:  # a folder's files of one kind at once
            seen[key] = pack_one(path, tmp_path / f"{len(seen)}.h5")
        report = seen[key]
        why = next((reason for start, reason in REFUSED.items() if name.startswith(start)), None)
        refused = {case.folder: case.reason for case in report.refused}
        if why is not None:
            assert why in refused[stem], name
            n_refused += 1
            continue
        assert stem not in refused, f"{name}: {refused[stem]}"
        if suffix == ".dcm":
            values, at = voxels_of_dicom([path])
        else:
            values, at = (voxels_of_nifti if ".nii" in suffix else voxels_of_itk)(path)
        with h5py.File(report.target) as f:
            check_voxels(f[f"X/{stem}"], values, at)
        n_packed += 1
    assert n_packed > 30
    assert n_refused > 30


@pytest.mark.parametrize(
    ("folder", "group", "shape"),
    [
        ("src-torchio-dicom", "CT", (128, 88, 17)),
        ("src-dicom2nifti-generic-anatomical-001", "MR", (256, 4, 256)),
    ],
)
def test_series(
    corpus: Corpus, tmp_path: Path, folder: str, group: str, shape: tuple[int, ...]
) -> None:
    report = hs.pack(corpus.path(folder), tmp_path / "a.h5", maps={group: "percentiles:0:100"})
    assert report is not None
    assert report.refused == ()
    with h5py.File(tmp_path / "a.h5") as f:
        stored = f[group][folder]
        assert stored.shape == shape
        check_voxels(stored, *voxels_of_dicom(sorted(corpus.path(folder).glob("*.dcm"))))
        # What dicom2nifti made of the same series.
        for truth in corpus.path(folder).glob("*.nii.gz"):
            check_voxels(stored, *voxels_of_nifti(truth))


def test_folders_that_hold_several_series(corpus: Corpus, tmp_path: Path) -> None:
    for name in ("src-panimg-dicom-enh", "src-pydicom", "src-pydicom-data"):
        report = hs.pack(corpus.path(name), tmp_path / "a.h5")
        assert report is not None
        assert [case.folder for case in report.refused] == [name]
        assert " series; give each a folder of its own" in report.refused[0].reason
        assert report.target == ""


def test_the_tree_of_synthrads_own_template(corpus: Corpus, tmp_path: Path) -> None:
    """Its volumes are zero throughout: an MR of that kind has no window."""
    how: Any = {"maps": {"MR": "window:0:1"}}
    report = hs.pack(corpus.path("src-synthrad/validation"), tmp_path / "a.h5", **how)
    assert report is not None
    assert [[i.image for i in case.images] for case in report.cases] == [
        ["MR", "MASK"],
        ["CBCT", "MASK"],
    ]
    report = hs.pack(
        corpus.path("src-synthrad/test"), tmp_path / "b.h5", **how,
        patterns=["MR=images/mri/{case}.nii.gz", "MASK=images/body/{case}.nii.gz"],
    )  # fmt: skip
    assert report is not None
    assert [case.case for case in report.cases] == ["1BAxxx"]
