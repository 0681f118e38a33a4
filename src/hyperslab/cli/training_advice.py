"""What the web advises for slices out of HDF5: h5py in each worker, MONAI's transforms, DataLoader.

It is written as well as it can be without leaving that advice: the table of (case, slice) is built
once, a file is opened once in each process, only the slice is read, tensors are made without a
copy, and workers live as long as the loader.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

    from hyperslab.cli.training_turn import Task

__all__ = ["Slices", "advised_loader", "advised_transforms"]

Sample = dict[str, Any]


class Slices:
    """A map-style dataset; PyTorch asks for no more than the two methods.

    Parameters
    ----------
    path
        HDF5 file. It is opened when a process reads its first sample, and stays open.
    inputs
        Input name to group.
    axis
        Slice axis of the stored datasets: 0, 1 or 2.
    samples
        Case and slice of each sample.
    transform
        Called with each sample: a dict of tensors (1, H, W), float32, with its case and slice.
    """

    def __init__(
        self,
        path: str,
        *,
        inputs: Mapping[str, str],
        axis: int,
        samples: Sequence[tuple[str, int]],
        transform: Callable[[Sample], Sample] | None = None,
    ) -> None:
        self.path = path
        self.inputs = dict(inputs)
        self.axis = axis
        self.samples = samples
        self.transform = transform
        self._file: Any = None

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        import torch

        if self._file is None:
            import h5py

            self._file = h5py.File(self.path, "r")
        case, k = self.samples[index]
        where = (slice(None),) * self.axis + (k,)
        sample: Sample = {
            name: torch.from_numpy(np.asarray(self._file[group][case][where], np.float32))[None]
            for name, group in self.inputs.items()
        }
        sample["case"], sample["slice"] = case, k
        return sample if self.transform is None else self.transform(sample)

    def close(self) -> None:
        """Close the file of this process."""
        if self._file is not None:
            self._file.close()
            self._file = None


def advised_loader(task: Task, *, workers: int) -> DataLoader[Sample]:
    """Return the DataLoader of that advice; `workers` is the number of its processes."""
    from torch.utils.data import DataLoader

    dataset: Any = Slices(
        task.path,
        inputs=task.inputs,
        axis=task.axis,
        samples=task.samples,
        transform=advised_transforms(task),
    )
    return DataLoader(
        dataset,
        batch_size=task.batch,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def advised_transforms(task: Task) -> Callable[[Sample], Sample]:
    """Return MONAI's dictionary transforms, with TorchIO's motion if `task` wants artefacts."""
    from monai.data.meta_obj import set_track_meta

    monai: Any = import_module("monai.transforms")  # which hides its names from type checkers

    set_track_meta(task.track_meta)
    names = list(task.inputs)
    steps: list[Any] = [monai.RandFlipd(names, prob=0.5, spatial_axis=[0, 1])]
    if task.quarter_turns:
        steps.append(monai.RandRotate90d(names, prob=0.5, max_k=3))
    if task.artefacts is not None:
        found = task.artefacts
        steps += [
            monai.RandAffined(
                [task.source],
                prob=found.p,
                rotate_range=math.radians(found.misalign_degrees),
                translate_range=(found.misalign_pixels,) * 2,
                mode="bilinear",
                padding_mode="reflection",
            ),
            monai.Lambdad([task.source], func=_Motion(task)),
        ]
    steps += [
        monai.Lambdad(task.images, func=_clamp),
        monai.RandSpatialCropd(names, roi_size=(task.crop, task.crop), random_size=False),
    ]
    composed: Callable[[Sample], Sample] = monai.Compose(steps)
    return composed


def _clamp(image: torch.Tensor) -> torch.Tensor:
    return image.clamp(-1, 1)


class _Motion:
    """TorchIO's motion on an image (1, H, W), which TorchIO wants as (1, H, W, 1)."""

    def __init__(self, task: Task) -> None:
        import torchio

        found = task.artefacts
        if found is None:
            raise ValueError("the task has no artefacts")
        self._move = torchio.RandomMotion(
            degrees=found.motion_degrees,
            translation=found.motion_pixels,
            num_transforms=found.moves,
            p=found.p,
        )

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        moved: torch.Tensor = self._move(image[..., None])[..., 0]
        return moved
