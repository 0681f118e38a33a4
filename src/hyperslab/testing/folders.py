"""Folders of medical images, as the SynthRAD challenges hand them out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from hyperslab.testing.phantom import draw_phantom

__all__ = ["make_case_folders"]


def make_case_folders(
    path: str | os.PathLike[str],
    *,
    n_cases: int = 3,
    shape: tuple[int, int, int] = (64, 64, 24),
    spacing: tuple[float, float, float] = (1.0, 1.0, 2.5),
    suffix: str = ".nii.gz",
    seed: int = 0,
) -> list[str]:
    """Write folders with an MR, a CT and a mask each, for `hyperslab.pack`.

    Parameters
    ----------
    path
        Folder to write ``1BA001/mr.nii.gz``, ``ct.nii.gz`` and ``mask.nii.gz`` and so on into.
    n_cases
        Number of patients.
    shape
        (H, W, D): rows, columns, slices.
    spacing
        Distance of neighbouring voxels along these, mm.
    suffix
        ".nii", ".nii.gz", ".mha" or ".nrrd".
    seed
        The same seed gives the same patients.

    Returns
    -------
    list
        Names of the patients: "1BA001", "1BB002", "1BC003", "1BA004" ...

    Notes
    -----
    MR int16 from 0, CT int16 in HU from -1000, mask uint8. Written through SimpleITK, which comes
    with the extra "medical".
    """
    import SimpleITK as sitk

    names = [f"1B{'ABC'[i % 3]}{i + 1:03d}" for i in range(n_cases)]
    for number, name in enumerate(names):
        mr, ct, mask = draw_phantom(shape, seed=seed, case=number)
        drawn: dict[str, Any] = {
            "mr": np.rint((mr + 1) * 600).astype(np.int16),
            "ct": np.rint(ct * 1000).astype(np.int16),
            "mask": mask,
        }
        folder = Path(path) / name
        folder.mkdir(parents=True, exist_ok=True)
        for image, values in drawn.items():
            made = sitk.GetImageFromArray(np.ascontiguousarray(values.transpose(2, 0, 1)))
            made.SetSpacing([spacing[1], spacing[0], spacing[2]])
            sitk.WriteImage(made, str(folder / f"{image}{suffix}"))
    return names
