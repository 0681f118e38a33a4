"""`Inputs`: the images and masks of a batch, all as (N, C, H, W)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from hyperslab.errors import OutputError, SampleError

__all__ = ["Batch", "Inputs", "restore_batch", "take_inputs", "view_output"]

# What a Dataset or a loader hands over: tensors, and whatever else belongs to the samples.
Batch = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Tensors that share their geometry, and are transformed together.

    Attributes
    ----------
    tensors
        Name to tensor of shape (N, C, H, W). N, H and W are those of all; C is each one's own.
    leading
        Name to what stands before (H, W) in the caller's shape: (N, C) or (C,), or such.
    masks
        Names of those that hold labels: never interpolated to new values, never clamped.
    owned
        Names of those that a transform made, and the next one may write into. All others belong
        to the caller, who finds them as they were.
    """

    tensors: dict[str, torch.Tensor]
    leading: dict[str, tuple[int, ...]]
    masks: frozenset[str]
    owned: frozenset[str] = frozenset()

    @property
    def n(self) -> int:
        """Number of samples."""
        return int(self._any.shape[0])

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) in pixels."""
        height, width = self._any.shape[-2:]
        return height, width

    @property
    def images(self) -> tuple[str, ...]:
        """Names of those that are no masks."""
        return tuple(name for name in self.tensors if name not in self.masks)

    @property
    def _any(self) -> torch.Tensor:
        return next(iter(self.tensors.values()))

    def chosen(self, names: Iterable[str], transform: str) -> tuple[str, ...]:
        """Return `names` as they are, all of them inputs; else raise for `transform`."""
        names = tuple(names)
        for name in names:
            if name not in self.tensors:
                raise SampleError(
                    f"{transform} is to change input {name!r}, and the batch has "
                    f"{', '.join(map(repr, self.tensors))}. Name one of these, or read {name!r} "
                    "as an input too.",
                    inputs=(name,),
                )
        return names

    def with_tensors(self, changed: Mapping[str, torch.Tensor]) -> Inputs:
        """Return these inputs with new tensors, which become owned, in the place of some."""
        return replace(self, tensors={**self.tensors, **changed}, owned=self.owned.union(changed))


def take_inputs(batch: Batch, *, images: Sequence[str] | None, masks: Sequence[str]) -> Inputs:
    """Find the images and masks in a batch or in a single sample.

    Parameters
    ----------
    batch
        A batch, whose tensors are (N, C, H, W), or a sample, whose tensors are (C, H, W). Which of
        the two is told from "A", or else from the first image.
    images
        Names of the images. None: all tensors of three or more dimensions that are no masks. Of
        those, one that differs in the number of dimensions and in size too (a 4 x 4 affine per
        sample, say) is left alone.
    masks
        Names of the masks; those that the batch lacks do not matter. Where `images` is None, all
        boolean tensors are masks too.

    Returns
    -------
    Inputs
        Views of the batch's tensors where their strides allow it; a sample has N = 1. Tensors of
        one dimension less or more, (N, H, W) or (N, C, T, H, W), are taken too.

    Raises
    ------
    SampleError
        There is no image or mask; a named one is absent; sizes differ.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"transforms act on a dict of tensors, such as {{'A': ..., 'B': ...}}, not on "
            f"{type(batch).__name__}"
        )
    listed = _names(masks)
    mask_names = [
        name
        for name, value in batch.items()
        if name in listed
        or (images is None and isinstance(value, torch.Tensor) and value.dtype == torch.bool)
    ]
    if images is None:
        image_names = [
            name
            for name, value in batch.items()
            if isinstance(value, torch.Tensor) and value.ndim >= 3 and name not in mask_names
        ]
        if "A" in image_names:  # the one that the others are compared with
            image_names.remove("A")
            image_names.insert(0, "A")
    else:
        image_names = list(_names(images))
    named = [*image_names, *mask_names]
    if not named:
        raise SampleError(
            "there is no image to transform: no tensor of shape (C, H, W) or (N, C, H, W) under "
            f"the keys {', '.join(map(repr, batch)) or '(none)'}"
        )
    first = _tensor(batch, named[0])
    if first.ndim < 3:
        raise SampleError(
            f"{named[0]!r} has shape {tuple(first.shape)}; a sample's tensors are (C, H, W), and a "
            "batch's (N, C, H, W)",
            inputs=(named[0],),
        )
    single = first.ndim == 3
    n = 1 if single else first.shape[0]
    size = first.shape[-2:]

    taken = {}
    for name in named:
        tensor = _tensor(batch, name)
        shape = tensor.shape
        fits = shape[-2:] == size and (single or (tensor.ndim >= 3 and shape[0] == n))
        if fits:
            channels = math.prod(shape[:-2] if single else shape[1:-2])
            taken[name] = _reshaped(tensor, (n, channels, *size))
        elif images is not None or name in mask_names or tensor.ndim == first.ndim:
            raise SampleError(
                f"{name!r} has shape {tuple(shape)} beside {named[0]!r} with {tuple(first.shape)}. "
                f"Inputs are transformed together, so {'' if single else 'N, '}H and W must agree. "
                "If it is no image, name those that are: images=('A', 'B').",
                inputs=(named[0], name),
            )
    names = [name for name in batch if name in taken]  # in the batch's order
    return Inputs(
        tensors={name: taken[name] for name in names},
        leading={name: tuple(batch[name].shape[:-2]) for name in names},
        masks=frozenset(mask_names),
    )


def restore_batch(
    batch: Batch, inputs: Inputs, out: Mapping[str, torch.Tensor] | None = None
) -> dict[str, Any]:
    """Return a new dict: `inputs` in the place of the batch's tensors, the rest as it is.

    What is not in `out` yet, and has a place there, is copied to it.
    """
    restored = dict(batch)
    for name, tensor in inputs.tensors.items():
        leading = inputs.leading[name]
        place = view_output(out, name, tensor.shape, leading, tensor)
        if out is None or place is None:
            restored[name] = _reshaped(tensor, (*leading, *tensor.shape[-2:]))
            continue
        if place.data_ptr() != tensor.data_ptr():
            place.copy_(tensor)
        restored[name] = out[name]
    for name in out or {}:
        if name not in inputs.tensors:
            raise OutputError(
                f"out has {name!r}, and the inputs are {', '.join(map(repr, inputs.tensors))}",
                inputs=(name,),
            )
    return restored


def view_output(
    out: Mapping[str, torch.Tensor] | None,
    name: str,
    shape: Sequence[int],
    leading: tuple[int, ...],
    like: torch.Tensor,
) -> torch.Tensor | None:
    """Return `out[name]` seen as `shape`, (N, C, H, W); None where there is none.

    Raises
    ------
    OutputError
        It is not contiguous, or has not the result's shape (`leading`, H, W) and dtype.
    """
    if out is None or name not in out:
        return None
    place, wanted = out[name], (*leading, *shape[-2:])
    if tuple(place.shape) != wanted or place.dtype != like.dtype or not place.is_contiguous():
        raise OutputError(
            f"out[{name!r}] is {place.dtype} of shape {tuple(place.shape)}"
            f"{'' if place.is_contiguous() else ', not contiguous'}; the result is {like.dtype} of "
            f"shape {wanted}",
            inputs=(name,),
        )
    return place.view(tuple(shape))


def _reshaped(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor itself where it has that shape already: what is passed on stays that."""
    return tensor if tensor.shape == shape else tensor.reshape(shape)


def _names(names: Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _tensor(batch: Batch, name: str) -> torch.Tensor:
    if name not in batch:
        raise SampleError(
            f"there is no image {name!r} in the batch; it has {', '.join(map(repr, batch))}",
            inputs=(name,),
        )
    value = batch[name]
    if not isinstance(value, torch.Tensor):
        raise SampleError(
            f"{name!r} is {type(value).__name__}, not a tensor; torch.as_tensor makes one",
            inputs=(name,),
        )
    return value
