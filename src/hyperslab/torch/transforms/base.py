"""`Transform`: what all operations have in common, and how a list of them is carried out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from hyperslab.errors import SampleError
from hyperslab.torch.draws import stream_number, uniforms
from hyperslab.torch.transforms.inputs import Batch, Inputs, restore_batch, take_inputs
from hyperslab.torch.transforms.moves import remap_inputs
from hyperslab.torch.transforms.remap import Remap, plan_remap

__all__ = ["Exact", "Parameters", "Record", "Transform"]

# What one transform does to each sample: arrays with one row a sample.
Parameters = Mapping[str, NDArray[Any]]
# The same for several transforms, by label.
Record = Mapping[str, Parameters]


class Transform(ABC):
    """An operation on the inputs of a batch; to write one, derive from this class.

    It has two halves. `draw` makes parameters out of random numbers and never sees an image;
    `apply` carries them out and has no randomness. So parameters can be asked for without reading
    anything, kept, and replayed.

    A transform acts by itself, on a batch or on one sample::

        T.RandomFlip()(batch, ids=[14, 3, 8])

    or as a part of `Compose`, which says more about batches, samples and their ids.
    """

    @property
    def draws(self) -> int:
        """How many random numbers a sample needs."""
        return 0

    def draw(self, u: NDArray[np.float64]) -> Parameters:
        """Make parameters, one row a sample, out of `u`: float64, (N, `draws`), in [0, 1)."""
        return {}

    @abstractmethod
    def apply(self, inputs: Inputs, parameters: Parameters) -> Inputs:
        """Carry out `parameters`. Tensors that `inputs` does not own stay as they are."""

    def __call__(
        self,
        batch: Batch,
        *,
        ids: ArrayLike | None = None,
        seed: int = 0,
        epoch: int = 0,
        images: Sequence[str] | None = None,
        masks: Sequence[str] = ("M",),
    ) -> dict[str, Any]:
        """Transform a batch or a sample, as `Compose` does with this transform alone.

        Parameters
        ----------
        batch
            Dict of tensors, (N, C, H, W), or (C, H, W) for one sample.
        ids
            Sample ids, one each; by default `batch["sample"]`.
        seed, epoch
            With the ids, what the random numbers depend on.
        images, masks
            Names of the inputs of either kind; see `Compose`.

        Returns
        -------
        dict
            New; tensors that nothing happens to are passed on, not copied.
        """
        labels = label_transforms([self])
        inputs = take_inputs(batch, images=images, masks=masks)
        record = draw_record([self], labels, batch, inputs.n, ids=ids, seed=seed, epoch=epoch)
        return restore_batch(batch, apply_all([self], labels, inputs, record))


class Exact(Transform):
    """A transform that rearranges pixels or clamps values; neighbours share one copy."""

    @abstractmethod
    def extend(self, remap: Remap, parameters: Parameters) -> Remap:
        """Return `remap` followed by this transform."""

    def follows(self, remap: Remap) -> bool:
        """Whether `extend` can take `remap`, or it has to be carried out first."""
        return True

    def apply(self, inputs: Inputs, parameters: Parameters) -> Inputs:
        """Carry out `parameters` by themselves."""
        return remap_inputs(inputs, self.extend(plan_remap(inputs), parameters))


def label_transforms(transforms: Iterable[Transform]) -> tuple[str, ...]:
    """Name each transform: by its class, with a number from the second of that class on.

    The label decides its stream of random numbers. So no two share draws, and a transform of
    another class may come or go without changing the draws of this one.
    """
    seen: dict[str, int] = {}
    labels = []
    for transform in transforms:
        name = type(transform).__name__
        seen[name] = seen.get(name, 0) + 1
        labels.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return tuple(labels)


def draw_record(
    transforms: Sequence[Transform],
    labels: Sequence[str],
    batch: Batch,
    n: int,
    *,
    ids: ArrayLike | None,
    seed: int,
    epoch: int,
) -> Record:
    """Draw the parameters of a batch of `n` samples, whose ids are given or in the batch."""
    if not any(transform.draws for transform in transforms):
        return {}
    if ids is None:
        ids = batch.get("sample")
    if ids is None:
        raise SampleError(
            "which samples are these? Random numbers depend on the sample's id, and the batch has "
            f"no 'sample' among {', '.join(map(repr, batch))}. Put it there (an int64 tensor with "
            "one id per sample, such as its index in the dataset), or give ids=..."
        )
    samples = np.atleast_1d(np.asarray(ids.cpu() if hasattr(ids, "cpu") else ids))
    if samples.shape != (n,):
        raise SampleError(
            f"the sample ids have shape {samples.shape}, and the batch has {n} samples; give one "
            "id per sample"
        )
    return draw_parameters(transforms, labels, samples, seed=seed, epoch=epoch)


def draw_parameters(
    transforms: Sequence[Transform],
    labels: Sequence[str],
    ids: ArrayLike,
    *,
    seed: int,
    epoch: int,
) -> Record:
    """Draw the parameters of all transforms that have any, for the samples `ids`."""
    random = [(t, label) for t, label in zip(transforms, labels, strict=True) if t.draws]
    drawn = uniforms(seed, epoch, ids, [(stream_number(label), t.draws) for t, label in random])
    return {label: t.draw(u) for (t, label), u in zip(random, drawn, strict=True)}


def apply_all(
    transforms: Sequence[Transform],
    labels: Sequence[str],
    inputs: Inputs,
    record: Record,
    out: Mapping[str, torch.Tensor] | None = None,
) -> Inputs:
    """Carry out one transform after the other; neighbours that are exact, by one copy.

    If the last ones are, their copy may go to `out`.
    """
    remap: Remap | None = None
    for transform, label in zip(transforms, labels, strict=True):
        parameters = _parameters(transform, label, inputs.n, record)
        if isinstance(transform, Exact):
            if remap is not None and not transform.follows(remap):
                inputs, remap = remap_inputs(inputs, remap), None
            remap = transform.extend(remap or plan_remap(inputs), parameters)
        else:
            if remap is not None:
                inputs, remap = remap_inputs(inputs, remap), None
            inputs = transform.apply(inputs, parameters)
    return inputs if remap is None else remap_inputs(inputs, remap, out)


def _parameters(transform: Transform, label: str, n: int, record: Record) -> Parameters:
    if not transform.draws:
        return {}
    if label not in record:
        raise SampleError(
            f"the parameters have no {label!r}; they are of {', '.join(map(repr, record))}. Replay "
            "them with the transforms that drew them."
        )
    parameters = {name: np.asarray(values) for name, values in record[label].items()}
    for name, values in parameters.items():
        if values.shape[:1] != (n,):
            raise SampleError(
                f"parameters {name!r} of {label!r} have shape {values.shape}, and the batch has "
                f"{n} samples: one row each is needed"
            )
    return parameters
