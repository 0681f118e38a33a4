"""`pack`: folders of images become a file that trains; what cannot is refused, and why is said."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import h5py
import nibabel
import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from typer.testing import CliRunner

import hyperslab as hs
from hyperslab.cli.app import app
from hyperslab.errors import LayoutError, MissingExtraError, MissingFileError, OutputError
from hyperslab.packing import PackReport, restore
from tests.trees import (
    IDENTITY,
    ORIGIN,
    SERIES_UID,
    SPACING,
    STRAIGHT,
    as_itk,
    draw,
    write,
    write_case,
    write_series,
)

SHAPE = (20, 24, 7)


def packed(folder: Path, target: Path, **how: Any) -> PackReport:
    report = hs.pack(folder, target, **how)
    assert report is not None
    return report


def refusals(report: PackReport) -> dict[str, str]:
    return {case.folder: case.reason for case in report.refused}


def test_a_tree_of_synthrad(tmp_path: Path) -> None:
    folders = ["Task1/brain/1BA001", "Task1/pelvis/1PA002", "Task1/brain/1BA010"]
    for seed, folder in enumerate(folders):
        write_case(tmp_path / "tree" / folder, seed=seed)
    (tmp_path / "tree" / "Task1" / "brain" / "overview").mkdir()
    report = packed(tmp_path / "tree", tmp_path / "a.h5")
    assert [case.case for case in report.cases] == ["1BA001", "1BA010", "1PA002"]
    assert (report.refused, report.ignored, report.verified) == ((), (), True)
    assert report.target_nbytes == (tmp_path / "a.h5").stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5", "tree"]
    with h5py.File(tmp_path / "a.h5") as f:
        assert sorted(f) == ["CT", "MASK", "MR"]
        for seed, folder in enumerate(folders):
            drawn, name = draw(seed=seed), Path(folder).name
            ct, mr, mask = (f[group][name] for group in ("CT", "MR", "MASK"))
            assert [d.shape for d in (ct, mr, mask)] == [SHAPE] * 3
            assert [d.chunks for d in (ct, mr, mask)] == [(20, 24, 1)] * 3
            assert [d.dtype.name for d in (ct, mr, mask)] == ["float32", "float32", "uint8"]
            assert np.array_equal(mask, drawn["mask"])
            expected = (drawn["ct"].astype(float) + 1024) / 4024 * 2 - 1
            assert np.allclose(ct, expected, atol=1e-7)
            assert np.array_equal(restore(ct, ct.attrs).round(), drawn["ct"])
            low, high = np.percentile(drawn["mr"].astype(float), [0.5, 99.5])
            assert np.allclose(
                restore(mr, mr.attrs), np.clip(drawn["mr"], low, high), atol=(high - low) * 1e-6
            )
            outside = np.mean((drawn["mr"] < low) | (drawn["mr"] > high))
            assert mr.attrs["clipped_fraction"] == outside > 0
            assert mr.attrs["window"].tolist() == [low, high]
            for each in (ct, mr, mask):
                assert each.attrs["spacing"].tolist() == list(SPACING)
                assert each.attrs["origin"].tolist() == list(ORIGIN)
                assert np.array_equal(each.attrs["direction"], STRAIGHT)
                assert each.attrs["case_folder"] == folder
                assert (each.attrs["frame"], each.attrs["units"]) == ("LPS", "mm")
            assert ct.attrs["source_units"] == "HU"
            assert ct.attrs["source_range"].tolist() == [drawn["ct"].min(), drawn["ct"].max()]
            one = next(case for case in report.cases if case.case == name)
            assert [image.image for image in one.images] == ["MR", "CT", "MASK"]
            assert one.images[1].window == (-1024.0, 3000.0)
            assert one.images[1].stored_range == (ct[...].min(), ct[...].max())
            assert one.images[0].clipped == outside


@pytest.mark.parametrize("suffix", [".nii", ".mha", ".mhd", ".nrrd", ".nhdr"])
def test_every_format_gives_the_same(tmp_path: Path, suffix: str) -> None:
    turned = STRAIGHT @ np.array([[0.8, -0.6, 0], [0.6, 0.8, 0], [0, 0, 1]])
    write_case(tmp_path / "a" / "p", ".nii.gz", direction=turned)
    write_case(tmp_path / "b" / "p", suffix, direction=turned)
    packed(tmp_path / "a", tmp_path / "a.h5")
    packed(tmp_path / "b", tmp_path / "b.h5")
    with h5py.File(tmp_path / "a.h5") as a, h5py.File(tmp_path / "b.h5") as b:
        for group in ("MR", "CT", "MASK"):
            one, other = a[group]["p"], b[group]["p"]
            assert np.array_equal(one, other)
            for name in ("spacing", "origin", "direction", "slope", "intercept"):
                assert np.allclose(one.attrs[name], other.attrs[name], atol=1e-5)


@pytest.mark.parametrize("code", ["LPS", "RAS", "PIR", "SAL", "ASR"])
def test_axes_as_simpleitk_turns_them(tmp_path: Path, code: str) -> None:
    straight = as_itk(draw()["ct"])
    sitk.WriteImage(sitk.DICOMOrient(straight, code), str(tmp_path / "ct.mha"))
    (tmp_path / "d" / "p").mkdir(parents=True)
    shutil.move(tmp_path / "ct.mha", tmp_path / "d" / "p" / "ct.mha")
    packed(tmp_path / "d", tmp_path / "a.h5", maps={"CT": "none"})
    with h5py.File(tmp_path / "a.h5") as f:
        stored = f["CT/p"]
        assert np.array_equal(stored, draw()["ct"])
        assert stored.dtype == np.int16
        assert np.allclose(stored.attrs["origin"], ORIGIN)


def test_the_geometry_is_itks(tmp_path: Path) -> None:
    """A position that ITK gives a voxel is the one that the attributes give."""
    angle = 0.4
    turn = np.array(
        [[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]]
    )
    image = as_itk(draw()["ct"], direction=turn @ STRAIGHT)
    image = sitk.DICOMOrient(image, "RAS")
    (tmp_path / "p").mkdir()
    sitk.WriteImage(image, str(tmp_path / "p" / "ct.nrrd"))
    packed(tmp_path, tmp_path / "a.h5", maps={"CT": "none"})
    values = sitk.GetArrayFromImage(image)
    with h5py.File(tmp_path / "a.h5") as f:
        stored = f["CT/p"]
        step = stored.attrs["direction"] * stored.attrs["spacing"]
        for index in [(0, 0, 0), (3, 5, 2), (19, 23, 6)]:
            there = stored.attrs["origin"] + step @ np.array(index)
            at = image.TransformPhysicalPointToIndex(there.tolist())
            assert stored[index] == values[at[::-1]]
            assert np.allclose(image.TransformIndexToPhysicalPoint(at), there, atol=1e-4)


@pytest.mark.parametrize(("unit", "size"), [("meter", 1000), ("micron", 0.001), ("mm", 1)])
def test_units_of_nifti(tmp_path: Path, unit: str, size: float) -> None:
    affine = np.diag([-2.0, -3.0, 4.0, 1.0])
    affine[:3, 3] = [5, 6, 7]
    image = nibabel.Nifti1Image(draw()["ct"], affine)
    image.header.set_xyzt_units(unit)
    (tmp_path / "p").mkdir()
    nibabel.save(image, tmp_path / "p" / "ct.nii")
    packed(tmp_path, tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as f:
        assert np.allclose(f["CT/p"].attrs["spacing"], np.array([3, 2, 4]) * size)
        assert np.allclose(f["CT/p"].attrs["origin"], np.array([-5, -6, 7]) * size)


# --- DICOM


def test_a_series(tmp_path: Path) -> None:
    drawn = draw()
    write_series(tmp_path / "d" / "p" / "s1", drawn["mr"].astype("u2"), modality="MR")
    stored = ((drawn["ct"] + 1000) // 2).astype("i2")
    write_series(tmp_path / "d" / "p" / "s2", stored, rescale=(2.0, -1000.0))
    write(tmp_path / "d" / "p" / "mask.mha", drawn["mask"])
    report = packed(tmp_path / "d", tmp_path / "a.h5", maps={"MR": "none"})
    assert refusals(report) == {}
    assert [image.format for image in report.cases[0].images] == ["DICOM", "DICOM", "MetaImage"]
    with h5py.File(tmp_path / "a.h5") as f:
        assert np.array_equal(f["MR/p"], drawn["mr"])
        assert f["MR/p"].dtype == np.uint16
        back = restore(f["CT/p"], f["CT/p"].attrs).round()
        assert np.array_equal(back, stored * 2.0 - 1000)
        assert f["CT/p"].attrs["spacing"].tolist() == list(SPACING)
        assert f["CT/p"].attrs["origin"].tolist() == list(ORIGIN)


def test_a_series_reads_as_simpleitk_reads_it(tmp_path: Path) -> None:
    """Also on a slant, and with slices that are in the other order."""
    orientation = [0, 0.8, -0.6, 0, 0.6, 0.8]
    normal = np.cross(orientation[:3], orientation[3:])
    folder = write_series(
        tmp_path / "p" / "ct",
        draw()["ct"],
        ImageOrientationPatient=orientation,
        ImagePositionPatient=lambda k: (np.array(ORIGIN) - 3 * k * normal).round(9).tolist(),
    )
    packed(tmp_path, tmp_path / "a.h5", maps={"CT": "none"})
    names = sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(folder))
    image = sitk.ReadImage(names)
    values = sitk.GetArrayFromImage(image)
    with h5py.File(tmp_path / "a.h5") as f:
        stored = f["CT/p"]
        step = stored.attrs["direction"] * stored.attrs["spacing"]
        for index in np.ndindex(*stored.shape):
            there = stored.attrs["origin"] + step @ np.array(index)
            at = image.TransformPhysicalPointToIndex(there.tolist())
            assert stored[index] == values[at[::-1]]


def test_a_rescale_for_each_slice(tmp_path: Path) -> None:
    stored = draw()["mr"]
    rescale = [(1 + k / 8, k / 2) for k in range(SHAPE[2])]
    write_series(tmp_path / "p" / "pt", stored, modality="PT", rescale=rescale)
    packed(tmp_path, tmp_path / "a.h5", maps={"PT": "none"})
    with h5py.File(tmp_path / "a.h5") as f:
        expected = stored * np.array([a for a, _ in rescale]) + np.array([b for _, b in rescale])
        assert f["PT/p"].dtype == np.float32
        assert np.array_equal(f["PT/p"], expected.astype("f4"))


def test_nothing_says_whose_images_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "d" / "p0815"
    write_series(folder / "ct", draw()["ct"])
    write_series(folder / "mr", draw()["mr"], modality="MR")
    words = [*(word for value in IDENTITY.values() for word in value.split("^")), SERIES_UID]
    words += [str(pydicom.dcmread(path).SOPInstanceUID) for path in folder.rglob("*.dcm")]
    assert all(word.encode() in b"".join(p.read_bytes() for p in folder.rglob("*.dcm"))
               for word in words)  # fmt: skip
    # Of one or two letters, any file may hold some by chance.
    words = [word for word in words if len(word) > 2]
    for how in ({}, {"rename": True}):
        target = tmp_path / "a.h5"
        packed(tmp_path / "d", target, **how)
        content = target.read_bytes()
        assert [word for word in words if word.encode() in content] == []
        assert (b"p0815" in content) == (not how)
        target.unlink()


def test_renamed_cases(tmp_path: Path) -> None:
    for seed, name in enumerate(["jane10", "jane9", "broken"]):
        write_case(tmp_path / "d" / name, seed=seed)
    (tmp_path / "d" / "broken" / "ct.nii.gz").write_bytes(b"")
    report = packed(tmp_path / "d", tmp_path / "a.h5", rename=True)
    assert [(case.case, case.folder) for case in report.cases] == [
        ("case0001", "jane9"),
        ("case0002", "jane10"),
    ]
    with h5py.File(tmp_path / "a.h5") as f:
        assert list(f["CT"]) == ["case0001", "case0002"]
        assert np.array_equal(f["MASK/case0001"], draw(seed=1)["mask"])
        assert "case_folder" not in f["CT/case0001"].attrs
    assert b"jane" not in (tmp_path / "a.h5").read_bytes()


def shifted(k: int) -> list[float]:
    return [ORIGIN[0] + 0.3 * k, ORIGIN[1], ORIGIN[2] + 3 * k]


def at(*depths: float) -> Any:
    return lambda k: [*ORIGIN[:2], depths[k]]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"ImagePositionPatient": at(0, 3, 6, 12, 15, 18, 21)},
         "lacks slices: about 1, the first between 6.00 and 12.00 mm"),
        ({"ImagePositionPatient": at(0, 3, 6, 9, 12, 15, 18.5)}, "unevenly spaced, 3 to 3.5 mm"),
        ({"ImagePositionPatient": at(0, 3, 6, 6, 9, 12, 15)}, "1 slices at places where another"),
        ({"ImagePositionPatient": at(*[4] * 7)}, "slices at places where another one is"),
        ({"ImagePositionPatient": shifted}, "not at right angles"),
        ({"ImagePositionPatient": lambda k: [ORIGIN[0] + k % 2, ORIGIN[1], 3 * k]},
         "not at right angles|shifted against each other"),
        ({"SeriesInstanceUID": lambda k: f"1.2.{k // 4}"}, "holds 2 series"),
        ({"ImageOrientationPatient": lambda k: [1, 0, 0, 0, 1, 0] if k else [0, 1, 0, 0, 0, 1]},
         "different ImageOrientationPatient, as scouts are"),
        ({"PixelSpacing": lambda k: [1, 1 + k]}, "different PixelSpacing"),
        ({"Modality": lambda k: "CT" if k else "MR"}, "Modality is (MR and CT|CT and MR)"),
        ({"ImagePositionPatient": lambda k: None}, "images without ImagePositionPatient"),
        ({"NumberOfFrames": 2}, "several frames"),
        ({"PhotometricInterpretation": "MONOCHROME1"}, "are MONOCHROME1, and not MONOCHROME2"),
        ({"PixelData": b"\0" * 10}, "cannot be read: The number of bytes"),
    ],
)  # fmt: skip
def test_series_that_are_refused(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    write_series(tmp_path / "d" / "bad" / "ct", draw()["ct"], **changes)
    write_case(tmp_path / "d" / "good")
    report = packed(tmp_path / "d", tmp_path / "a.h5")
    assert [case.case for case in report.cases] == ["good"]
    assert list(refusals(report)) == ["bad"]
    assert re.search(match, refusals(report)["bad"])
    with h5py.File(tmp_path / "a.h5") as f:
        assert list(f["CT"]) == ["good"]


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "d" / "p" / "ct", draw()["ct"])
    path = sorted(folder.iterdir())[2]
    path.write_bytes(path.read_bytes()[:-100])
    report = packed(tmp_path / "d", tmp_path / "a.h5")
    assert "cannot be read" in refusals(report)["p"]
    assert report.target == ""
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_slices_that_only_itk_decodes(tmp_path: Path) -> None:
    """JPEG lossless, without a decoder of pydicom's; whether ITK rescales depends on the kind."""
    from pydicom.pixels import get_decoder

    plain = write_series(tmp_path / "plain", draw()["mr"].astype("u2"), modality="MR")
    for name, slope in (("same", 1), ("rescaled", 2)):
        folder = tmp_path / "d" / name / "mr"
        folder.mkdir(parents=True)
        for path in plain.iterdir():
            writer = sitk.ImageFileWriter()
            writer.SetFileName(str(folder / path.name))
            writer.SetImageIO("GDCMImageIO")
            writer.UseCompressionOn()
            writer.SetCompressor("JPEG")
            writer.KeepOriginalImageUIDOn()
            writer.Execute(sitk.ReadImage(str(path)))
            item, before = pydicom.dcmread(folder / path.name), pydicom.dcmread(path)
            assert item.file_meta.TransferSyntaxUID.is_compressed
            if get_decoder(item.file_meta.TransferSyntaxUID).is_available:
                pytest.skip("pydicom has a decoder for JPEG lossless")
            for tag in ("ImagePositionPatient", "PixelSpacing", "SOPClassUID", "Modality",
                        "SeriesInstanceUID", "ImageOrientationPatient"):  # fmt: skip
                setattr(item, tag, getattr(before, tag))
            item.RescaleSlope, item.RescaleIntercept = slope, 0
            item.save_as(folder / path.name)
    report = packed(tmp_path / "d", tmp_path / "a.h5", maps={"MR": "none"})
    assert "pydicom finds no decoder" in refusals(report)["rescaled"]
    with h5py.File(tmp_path / "a.h5") as f:
        assert list(f["MR"]) == ["same"]
        assert np.array_equal(f["MR/same"], draw()["mr"])


def test_structures_beside_images(tmp_path: Path) -> None:
    write_series(tmp_path / "d" / "p" / "ct", draw()["ct"])
    write_series(tmp_path / "d" / "p" / "1.2.3", draw()["ct"][..., :1], Modality="RTSTRUCT")
    write_series(tmp_path / "d" / "q" / "1.2.3", draw()["ct"][..., :1], Modality="SR")
    report = packed(tmp_path / "d", tmp_path / "a.h5")
    assert [[i.image for i in case.images] for case in report.cases] == [["CT"]]
    assert report.ignored == ("p/1.2.3", "q/1.2.3")
    assert refusals(report) == {"q": "it holds DICOM files, but no images"}


# --- refusals


def other_grid(**changes: Any) -> Any:
    def change(case: Path) -> None:
        values = draw()["mr"]
        if "shape" in changes:
            values = np.zeros(changes["shape"], "i2")
            values[0] = 1
        write(case / "mr.nii.gz", values, **{k: v for k, v in changes.items() if k != "shape"})

    return change


def nan(case: Path) -> None:
    values = draw()["mr"].astype("f4")
    values[3, 4, 5] = np.nan
    write(case / "mr.nii.gz", values)


def flipped_bit(case: Path) -> None:
    content = bytearray((case / "mr.nii.gz").read_bytes())
    content[-6] ^= 1  # of the checksum
    (case / "mr.nii.gz").write_bytes(content)


def four_axes(case: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 4, 2), "i2"), np.eye(4)), case / "mr.nii.gz")


def colour(case: Path) -> None:
    dtype = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 4), dtype), np.eye(4)), case / "mr.nii.gz")


def doubled(case: Path) -> None:
    write(case / "mr.mha", draw()["mr"])


def mask_of_halves(case: Path) -> None:
    write(case / "mask.nii.gz", draw()["mask"] * 0.5)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (other_grid(shape=(20, 24, 8)), "CT has shape (20, 24, 7), not (20, 24, 8) as MR"),
        (other_grid(shape=(20, 24, 8)), "bring them together with --resample CT"),
        (other_grid(spacing=(1.5, 1.25, 2.9)), "CT has spacing 1.5 x 1.25 x 3 mm, not"),
        (other_grid(origin=(-20.5, 11.25, 41.0)), "CT has origin"),
        (other_grid(direction=STRAIGHT @ np.diag([1, 1, -1])), "CT has origin"),
        (nan, "mr.nii.gz: 1 voxels are no finite numbers"),
        (flipped_bit, "CRC check failed"),
        (four_axes, "has 4 axes, (4, 4, 4, 2)"),
        (colour, "has colour voxels"),
        (doubled, "there are two images for MR"),
        (mask_of_halves, "a mask has values that are no whole numbers"),
        (lambda case: (case / "ct.nii.gz").write_bytes(b"no image"), "ct.nii.gz cannot be read"),
        (lambda case: (case / "ct.nii.gz").write_bytes(gzip.compress(b"\0" * 400)),
         "ct.nii.gz cannot be read"),
        (lambda case: (case / "ct.mha").write_bytes(b"NDims = 3\n"), "ct.mha cannot be read: it "),
        (lambda case: write(case / "mr.nii.gz", np.full(SHAPE, 7, "i2")), "finds no window"),
    ],
)  # fmt: skip
def test_cases_that_are_refused(tmp_path: Path, change: Any, match: str) -> None:
    change(write_case(tmp_path / "d" / "x" / "bad"))
    write_case(tmp_path / "d" / "x" / "good")
    report = packed(tmp_path / "d", tmp_path / "a.h5")
    assert list(refusals(report)) == ["x/bad"]
    assert match in refusals(report)["x/bad"]
    with h5py.File(tmp_path / "a.h5") as f:
        assert [list(f[group]) for group in ("CT", "MASK", "MR")] == [["good"]] * 3


def test_what_every_case_must_have(tmp_path: Path) -> None:
    write_case(tmp_path / "d" / "p")
    (write_case(tmp_path / "d" / "q") / "ct.nii.gz").unlink()
    assert len(packed(tmp_path / "d", tmp_path / "a.h5").cases) == 2
    report = packed(tmp_path / "d", tmp_path / "b.h5", require=["MR", "CT"])
    assert refusals(report) == {"q": "it has no CT, but MR, MASK"}


def test_a_case_that_takes_too_much_memory(tmp_path: Path) -> None:
    write_case(tmp_path / "d" / "p")
    write(tmp_path / "d" / "small" / "ct.nii", draw((4, 4, 4))["ct"])
    report = packed(tmp_path / "d", tmp_path / "a.h5", memory=10_000)
    assert "of memory to pack, and 10 kB may be used (--memory)" in refusals(report)["p"]
    assert [case.case for case in report.cases] == ["small"]


def test_an_image_that_changes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hyperslab.packing import nifti

    write_case(tmp_path / "d" / "p")
    original = nifti.read

    def read(path: str) -> Any:
        found = original(path)
        write(Path(path), draw(seed=5)["mr"])
        return found

    monkeypatch.setattr(nifti, "read", read)
    report = packed(tmp_path / "d", tmp_path / "a.h5")
    assert "changed while it was read" in refusals(report)["p"]


# --- resampling


def test_onto_the_grid_of_another(tmp_path: Path) -> None:
    drawn = draw((30, 30, 12))
    coarse = {"spacing": (3.0, 2.5, 3.0), "origin": (-22.0, 9.0, 38.5)}
    write(tmp_path / "d" / "p" / "ct.nii.gz", draw()["ct"])
    write(tmp_path / "d" / "p" / "mr.mha", drawn["mr"], **coarse)
    write(tmp_path / "d" / "p" / "mask.nrrd", drawn["mask"] * 3, **coarse)
    assert "bring them together" in refusals(packed(tmp_path / "d", tmp_path / "0.h5"))["p"]
    report = packed(tmp_path / "d", tmp_path / "a.h5", resample="CT", maps={"MR": "none"})
    assert [image.resampled for image in report.cases[0].images] == [True, False, True]
    reference = as_itk(draw()["ct"])
    expected = sitk.Resample(
        sitk.Cast(as_itk(drawn["mr"], **coarse), sitk.sitkFloat32), reference,
        sitk.Transform(), sitk.sitkLinear, float(drawn["mr"].min()),
    )  # fmt: skip
    labels = sitk.Resample(
        as_itk(drawn["mask"] * 3, **coarse), reference, sitk.Transform(), sitk.sitkNearestNeighbor
    )
    with h5py.File(tmp_path / "a.h5") as f:
        assert np.array_equal(f["CT/p"].attrs["origin"], f["MR/p"].attrs["origin"])
        assert f["MR/p"].attrs["resampled"]
        assert not f["CT/p"].attrs["resampled"]
        assert np.array_equal(f["MR/p"], sitk.GetArrayFromImage(expected).transpose(1, 2, 0))
        assert np.array_equal(f["MASK/p"], sitk.GetArrayFromImage(labels).transpose(1, 2, 0))
        assert np.unique(f["MASK/p"]).tolist() == [0, 3]


def test_outside_of_a_ct_is_air(tmp_path: Path) -> None:
    write(tmp_path / "d" / "p" / "mr.mha", draw()["mr"])
    write(tmp_path / "d" / "p" / "ct.mha", draw()["ct"] * 0 + 40, origin=(-20.5, 11.25, 52.0))
    packed(tmp_path / "d", tmp_path / "a.h5", resample="MR")
    with h5py.File(tmp_path / "a.h5") as f:
        values = restore(f["CT/p"], f["CT/p"].attrs).round()
        assert np.all(values[:, :, :3] == -1024)
        assert np.all(values[:, :, 4:] == 40)


def test_no_reference(tmp_path: Path) -> None:
    write(tmp_path / "d" / "p" / "mr.mha", draw()["mr"])
    report = packed(tmp_path / "d", tmp_path / "a.h5", resample="CT")
    assert "it has no CT, onto whose grid" in refusals(report)["p"]


# --- how it is stored


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd", "blosc"])
def test_codecs_and_chunks(tmp_path: Path, codec: str) -> None:
    pytest.importorskip("hdf5plugin", reason="h5py reads lz4 and zstd with hdf5plugin")
    write_case(tmp_path / "d" / "p")
    report = packed(tmp_path / "d", tmp_path / "a.h5", codec=codec, chunks=(16, 32, 3))
    assert {name for name, _ in report.codecs.values()} == {codec}
    with h5py.File(tmp_path / "a.h5") as f:
        assert f["CT/p"].chunks == (16, 24, 3)
        assert np.array_equal(f["MASK/p"], draw()["mask"])
        assert np.array_equal(restore(f["CT/p"], f["CT/p"].attrs).round(), draw()["ct"])
    names = [f.name for f in hs.open(tmp_path / "a.h5")["CT/p"].filters]
    assert ("gzip" in names) == (codec == "gzip")


def test_slices_of_zeros_take_no_room(tmp_path: Path) -> None:
    mask = draw()["mask"]
    mask[:, :, 2:5] = 0
    write(tmp_path / "d" / "p" / "mask.nii", mask)
    report = packed(tmp_path / "d", tmp_path / "a.h5", codec="none")
    assert report.cases[0].images[0].stored_nbytes == 4 * 20 * 24
    with h5py.File(tmp_path / "a.h5") as f:
        assert f["MASK/p"].id.get_num_chunks() == 4
        assert np.array_equal(f["MASK/p"], mask)


def test_the_codec_is_chosen_for_each_group(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(-1000, 3000, (64, 64, 9)).astype("i2")
    write(tmp_path / "d" / "p" / "ct.nii", noise.astype("f4") + np.float32(0.3))
    write(tmp_path / "d" / "p" / "mr.nii", np.indices(noise.shape).sum(0).astype("i2"))
    report = packed(tmp_path / "d", tmp_path / "a.h5")
    assert {group: name for group, (name, _) in report.codecs.items()} == {
        "MR": "gzip",
        "CT": "none",
    }
    assert all("times smaller" in why for _, why in report.codecs.values())


def test_it_is_sound_and_as_the_adviser_wants_it(tmp_path: Path) -> None:
    for seed in range(3):
        values = draw((128, 128, 16), seed)
        for name, image in values.items():
            write(tmp_path / "d" / f"p{seed}" / f"{name}.nii.gz", image)
    packed(tmp_path / "d", tmp_path / "a.h5")
    report = hs.verify(tmp_path / "a.h5")
    assert report.sound
    advice = hs.advise(tmp_path / "a.h5", access="[:, :, k]", measure=False)
    assert not advice.slow
    assert advice.command == ""
    assert [f for kind in advice.kinds for f in kind.findings if f.costs] == []
    assert {kind.patterns[0].amplification for kind in advice.kinds} == {1.0}


def test_images_of_it_open(tmp_path: Path) -> None:
    write_case(tmp_path / "d" / "p")
    packed(tmp_path / "d", tmp_path / "a.h5")
    image = hs.open_image(tmp_path / "a.h5", image="CT/p")
    assert (image.axes, image.layout) == ("ZYX", "labelled")
    assert np.allclose(image.scale, [3000, 1500, 1250])
    assert set(image.units) == {"um"}
    with h5py.File(tmp_path / "a.h5") as f:
        assert np.array_equal(image[2], f["CT/p"][:, :, 2])


def test_it_trains(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from hyperslab.torch import SliceDataset

    for seed in range(2):
        write_case(tmp_path / "d" / f"p{seed}", ".mha", seed=seed)
    packed(tmp_path / "d", tmp_path / "a.h5")
    dataset = SliceDataset(tmp_path / "a.h5", inputs={"A": "MR", "B": "CT", "M": "MASK"}, axis=-1)
    assert len(dataset) == 2 * SHAPE[2]
    for sample in (dataset[i] for i in range(len(dataset))):
        drawn = draw(seed=int(sample["case"][1:]))
        k = int(sample["slice"])
        ct = (drawn["ct"][..., k].astype(float) + 1024) / 4024 * 2 - 1
        assert np.allclose(sample["B"][0].numpy(), ct, atol=1e-6)
        assert np.array_equal(sample["M"][0].numpy(), drawn["mask"][..., k])
        assert np.allclose(sample["spacing"], SPACING)
        assert -1 <= sample["A"].min() <= sample["A"].max() <= 1


# --- the command


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["pack", *map(str, arguments)])


def test_the_command(tmp_path: Path) -> None:
    write_case(tmp_path / "d" / "good")
    nan(write_case(tmp_path / "d" / "bad"))
    write(tmp_path / "d" / "good" / "t1.nii", draw()["mr"])
    plan = run(tmp_path / "d", tmp_path / "a.h5", "--dry-run")
    assert plan.exit_code == 0
    assert "2 cases to pack" in plan.output  # the headers say nothing of values
    assert [p.name for p in tmp_path.iterdir()] == ["d"]
    done = run(tmp_path / "d", tmp_path / "a.h5", "--map", "ct=window:-1000:2000", "--map",
               "MR=zscore:2")  # fmt: skip
    assert done.exit_code == 1
    assert "Refused bad: " in done.output
    assert "1 case, 1 refused" in done.output
    assert "No case claims good/t1.nii." in done.output
    with h5py.File(tmp_path / "a.h5") as f:
        assert f["CT/good"].attrs["mapping"] == "window:-1000:2000"
        assert f["MR/good"].attrs["mapping"] == "zscore:2"


def test_json(tmp_path: Path) -> None:
    write_case(tmp_path / "d" / "p")
    done = run(tmp_path / "d", tmp_path / "a.h5", "--json", "--codec", "gzip", "--threads", 1)
    assert done.exit_code == 0
    found = json.loads(done.output)
    assert found["target"] == str(tmp_path / "a.h5")
    assert found["hyperslab"] == hs.__version__
    (case,) = found["cases"]
    assert case["images"][1]["source"] == "p/ct.nii.gz".replace("/", os.sep)
    assert case["images"][1]["stored_range"] == [
        pytest.approx(value, abs=1e-6)
        for value in (np.array([draw()["ct"].min(), draw()["ct"].max()]) + 1024) / 2012 - 1
    ]
    plan = json.loads(run(tmp_path / "d", tmp_path / "b.h5", "--json", "--dry-run").output)
    assert plan["cases"][0]["images"][1]["stored_range"] is None
    assert plan["target"] == ""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--pattern", "{image}"], "is no pattern"),
        (["--map", "CT"], "write it like CT=window:-1000:2000"),
        (["--map", "CT=window:3"], "is no map"),
        (["--codec", "rar"], "there is no codec"),
        (["--chunks", "1,2"], "rows, columns, slices"),
        (["--memory", "much"], "is no size"),
        (["--pattern", "{case}/{image}.mha"], "no path matches"),
    ],
)
def test_wrong_use(tmp_path: Path, options: list[str], told: str) -> None:
    write_case(tmp_path / "d" / "p")
    done = run(tmp_path / "d", tmp_path / "a.h5", *options)
    assert done.exit_code == 2
    assert told in " ".join(done.output.replace("│", " ").split())
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_targets_and_folders_that_cannot_be(tmp_path: Path) -> None:
    write_case(tmp_path / "d" / "p")
    (tmp_path / "a.h5").write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        hs.pack(tmp_path / "d", tmp_path / "a.h5")
    assert (tmp_path / "a.h5").read_text() == "mine"
    with pytest.raises(OutputError, match="there is no folder"):
        hs.pack(tmp_path / "d", tmp_path / "none" / "a.h5")
    with pytest.raises(MissingFileError, match="no such folder"):
        hs.pack(tmp_path / "none", tmp_path / "b.h5")
    (tmp_path / "empty").mkdir()
    with pytest.raises(LayoutError, match="no case was found"):
        hs.pack(tmp_path / "empty", tmp_path / "b.h5")
    with pytest.raises(ValueError, match="There is no codec"):
        hs.pack(tmp_path / "d", tmp_path / "b.h5", codec="rar")


@pytest.mark.parametrize("package", ["nibabel", "SimpleITK", "pydicom"])
def test_a_package_that_is_missing(
    tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "d" / "p" / "mask.nii", draw()["mask"])
    write(tmp_path / "d" / "p" / "mr.mha", draw()["mr"])
    write_series(tmp_path / "d" / "p" / "ct", draw()["ct"])
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"with {package}.*hyperslab\[medical\]"):
        hs.pack(tmp_path / "d", tmp_path / "a.h5")
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_info_calls_it_a_paired_cohort(tmp_path: Path) -> None:
    for name in "pq":
        write_case(tmp_path / "d" / name)
    packed(tmp_path / "d", tmp_path / "a.h5")
    done = CliRunner().invoke(app, ["info", str(tmp_path / "a.h5")])
    assert "paired cohort: CT, MASK, MR hold 2 cases" in done.output
