"""`Compose`: transforms one after the other, with the seed and the epoch that they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import ArrayLike

from hyperslab.torch.epoch import Epoch
from hyperslab.torch.transforms.base import (
    Record,
    Transform,
    apply_all,
    draw_parameters,
    draw_record,
    label_transforms,
)
from hyperslab.torch.transforms.inputs import Batch, restore_batch, take_inputs

__all__ = ["Compose"]


class Compose:
    """Transforms in the order given, for batches and for single samples.

    Parameters
    ----------
    transforms
        Any of this package, or your own `Transform`. A `Compose` among them stands for its
        transforms; seed, epoch and names are those of the outer one.
    seed
        0 to 2**64 - 1.
    images
        Names of the images. By default all tensors with three or more dimensions that are no masks.
    masks
        Names of the inputs that hold labels; those that a batch lacks do not matter. Boolean
        tensors are masks in any case, unless `images` are named.

    Raises
    ------
    TypeError
        One of `transforms` is something else, a dictionary transform of MONAI for instance. Apply
        such a one before or after.

    Notes
    -----
    *A batch* is a dict whose tensors are (N, C, H, W); in *a sample* they are (C, H, W). H and W
    agree within a dict. What is neither image nor mask passes through. The result is a new dict,
    and no tensor of the old one is written to; those that nothing happens to are in both.

    *Random numbers* are functions of (seed, epoch, sample id, transform), and of nothing else. Each
    batch says which samples it holds: ``batch["sample"]``, an int64 tensor with an id per sample
    (in a sample, an int will do), or `ids`. So a sample is transformed alike in any batch, order,
    worker or process, and after any interruption; and differently in every epoch. A transform's
    numbers depend on its class, and on how many of that class stand before it: adding or removing
    one of another class does not change them.

    *Epochs.* `set_epoch` reaches worker processes that have begun already, as
    ``DataLoader(persistent_workers=True)`` keeps them: the epoch is in memory that they share.
    Batches that a worker has prepared before are not done again.

    *Order.* It is not changed. The usual one is: flip, rotate, misalign, motion, clamp, crop, swap.

    *Cost.* Flips, quarter turns, crops and clamps that follow each other are carried out by one
    copy of what the crop leaves. Intermediate tensors are reused. Runs on the device where the
    tensors are; parameters are always drawn on the CPU.

    Examples
    --------
    >>> import torch
    >>> from hyperslab.torch import transforms as T
    >>> augment = T.Compose([T.RandomFlip(), T.RandomRotate90(), T.Clamp(-1, 1), T.RandomCrop(4)])
    >>> batch = {"A": torch.rand(2, 1, 6, 6), "B": torch.rand(2, 1, 6, 6), "sample": [14, 3]}
    >>> augment(batch)["B"].shape
    torch.Size([2, 1, 4, 4])
    >>> augment.set_epoch(7)
    >>> augment.parameters([3])["RandomRotate90"]["k"]
    array([2])
    """

    def __init__(
        self,
        transforms: Iterable[Transform | Compose],
        *,
        seed: int = 0,
        images: Sequence[str] | None = None,
        masks: Sequence[str] = ("M",),
    ) -> None:
        flat: list[Transform] = []
        for transform in transforms:
            if isinstance(transform, Compose):
                flat.extend(transform.transforms)
            elif isinstance(transform, Transform):
                flat.append(transform)
            else:
                raise TypeError(
                    f"Compose takes transforms of hyperslab.torch.transforms, not {transform!r}. "
                    "Other functions, and dictionary transforms of MONAI or TorchIO, go to "
                    "SliceDataset(transform=...)."
                )
        self.transforms: tuple[Transform, ...] = tuple(flat)
        self.labels = label_transforms(flat)
        self.seed = seed
        self.images = images
        self.masks = masks
        self._epoch = Epoch()

    def __repr__(self) -> str:
        inside = ", ".join(map(repr, self.transforms))
        return f"Compose([{inside}], seed={self.seed}, epoch={self.epoch})"

    @property
    def epoch(self) -> int:
        """The epoch whose random numbers are used, unless a call says otherwise."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, 0 to 2**32 - 1, here and in the worker processes that have this object."""
        self._epoch.set(epoch)

    def __call__(
        self,
        batch: Batch,
        *,
        ids: ArrayLike | None = None,
        epoch: int | None = None,
        out: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, Any]:
        """Transform a batch or a sample.

        Parameters
        ----------
        batch
            Dict of tensors, (N, C, H, W) or (C, H, W).
        ids
            Sample ids, by default ``batch["sample"]``. Not needed where nothing is random.
        epoch
            By default `self.epoch`.
        out
            Names to contiguous tensors of the results' shapes and dtypes, which get the results:
            pinned memory, say, or a batch that is done with. They must not overlap those of
            `batch`.

        Returns
        -------
        dict
            With the keys of `batch`, and the tensors of `out` where there are any.

        Raises
        ------
        SampleError
            There are no ids, or not one per sample; H and W differ between inputs, or a transform
            cannot act on one. The message says which input, its shape, and what to do.
        OutputError
            A tensor of `out` does not fit.
        """
        inputs = take_inputs(batch, images=self.images, masks=self.masks)
        record = draw_record(
            self.transforms,
            self.labels,
            batch,
            inputs.n,
            ids=ids,
            seed=self.seed,
            epoch=self.epoch if epoch is None else epoch,
        )
        done = apply_all(self.transforms, self.labels, inputs, record, out)
        return restore_batch(batch, done, out)

    def parameters(self, ids: ArrayLike, *, epoch: int | None = None) -> Record:
        """Return what is done to the samples `ids`: nothing is read or transformed.

        Parameters
        ----------
        ids
            1-D integers.
        epoch
            By default `self.epoch`.

        Returns
        -------
        dict
            Label of each random transform (its class's name; from the second of a class on, with
            "-2" and so forth) to a dict of arrays with a row per id. Each class says what they are.
        """
        return draw_parameters(
            self.transforms,
            self.labels,
            ids,
            seed=self.seed,
            epoch=self.epoch if epoch is None else epoch,
        )

    def replay(
        self,
        batch: Batch,
        parameters: Record,
        *,
        out: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, Any]:
        """Transform a batch or a sample by given parameters, such as `parameters` returns.

        A sample takes parameters of one row. Arrays may be lists, as they come back from JSON.
        `out` is as for a call.

        Raises
        ------
        SampleError
            As for a call; or a transform's parameters are missing, or not a row for each sample.
        """
        inputs = take_inputs(batch, images=self.images, masks=self.masks)
        done = apply_all(self.transforms, self.labels, inputs, parameters, out)
        return restore_batch(batch, done, out)
