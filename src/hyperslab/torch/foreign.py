"""Dictionary transforms of other packages, with random numbers keyed like ours.

MONAI and TorchIO draw from generators with a state, so what a sample gets depends on the samples
before it: on the workers, the order, and where an epoch was interrupted. Here every generator that
such a transform draws from is set anew for each sample, from numbers that depend on nothing but
(seed, epoch, sample id).
"""

from __future__ import annotations

import operator
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyperslab.errors import SampleError
from hyperslab.torch.draws import stream_number, uniform
from hyperslab.torch.transforms import Compose, Transform

__all__ = ["apply", "is_self_contained"]

_STREAM = stream_number("foreign")
_WHO = ("case", "slice", "sample")  # what a sample is known by; no transform changes it

# One transform at a time: the process shares its generators, and callers may share a transform.
_lock = threading.RLock()


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # a thread that the child lacks may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def apply(
    transform: Callable[[dict[str, Any]], Any],
    sample: Mapping[str, Any],
    *,
    seed: int,
    epoch: int,
    masks: Sequence[str] = ("M",),
) -> dict[str, Any]:
    """Transform one sample, with random numbers that depend on (seed, epoch, sample id) only.

    Parameters
    ----------
    transform
        - Of `hyperslab.torch.transforms`: a `Compose` is called as it is, with the seed and the
          epoch that it has itself; a single `Transform` gets `seed` and `epoch`.
        - Of MONAI: any that takes and returns a dict. It and all random transforms in it share one
          RandomState, made anew for each sample. What they were seeded with before has no effect.
        - Of TorchIO: any. Tensors of three dimensions become images (C, H, W, 1), so that TorchIO's
          axis 0 is H and axis 1 is W, and a millimetre is a pixel. Those in `masks` or in the
          transform's `label_keys`, and all that are not of a float dtype, become label maps:
          they are resampled to the nearest label, and intensity transforms leave them alone.
        - Any other callable that takes and returns a dict.

        Except for our own, what they draw from PyTorch's CPU generator, from NumPy's legacy
        generator (``np.random.rand``) and from the module `random` is keyed too. Other generators
        are not reached: one of ``np.random.default_rng``, or a MONAI transform that a function
        calls. A MONAI transform is found in a list or an attribute of a callable object, in its
        attributes, and so on.
    sample
        Input name to torch.Tensor, (C, H, W); ``"sample"``: int, the id; ``"case"``, ``"slice"``
        and whatever else belongs to it.
    seed
        0 to 2**64 - 1.
    epoch
        0 to 2**32 - 1.
    masks
        Names of the inputs that hold labels, for TorchIO and for a single `Transform`.

    Returns
    -------
    dict
        New. Tensors of `sample` come back as contiguous torch.Tensor of the dtype that they had,
        also where MONAI makes a MetaTensor (of a tensor that was none) or a function an array;
        keys that the transform adds are kept. ``"case"``, ``"slice"`` and ``"sample"`` are those of
        `sample`.

    Raises
    ------
    SampleError
        `sample` has no id; a tensor of integers or booleans comes back with values that its dtype
        does not hold, since it was interpolated or scaled; TorchIO returns more than one plane.
    TypeError
        The transform returns no dict. A list of one dict, as MONAI's crops of one patch return it,
        will do.
    Exception
        What the transform raises, with a note that says which sample it was.

    Notes
    -----
    *Memory.* A foreign transform gets copies: it may work in place, and neither `sample` nor a
    batch whose memory it shares is written to. Our own never write to what they are given.

    *Masks* in float dtypes are labels only by what the transform does: give MONAI's spatial
    transforms ``mode="nearest"`` for them, as without this package.

    *Threads.* Foreign transforms run one at a time in a process. The global generators are set for
    the duration of the call, then put back. Meanwhile another thread, such as the one that trains
    a model beside a `SliceLoader`, would draw the sample's numbers, and change them by that. So in
    a thread apply only what `is_self_contained`; DataLoader's workers are processes, and may apply
    anything. CUDA generators are put back as well, where CUDA is in use: ``torch.manual_seed``,
    which TorchIO calls, sets them too. They are not keyed.

    *Cost*, on top of the transform's: a copy of the tensors, and some tenths of a millisecond.
    """
    if isinstance(transform, Compose):
        return transform(sample)
    if isinstance(transform, Transform):
        return transform(sample, seed=seed, epoch=epoch, masks=masks)
    words = _words(sample, seed, epoch)
    copied = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in sample.items()}
    try:
        with _lock:
            parts = list(_parts(transform))
            strange = [part for part in parts if not _keeps_to_itself(part)]
            _key_states(parts, strange, words[:2])
            with _seeded_globals(words[2:]) if strange else nullcontext():
                if _is(transform, "torchio", "Transform"):
                    result = _apply_torchio(transform, copied, masks)
                else:
                    result = transform(copied)
        return _settle(sample, result)
    except Exception as error:
        who = ", ".join(f"{key} {sample[key]!r}" for key in _WHO if key in sample)
        error.add_note(f"This happened in the transform of {who}.")
        raise


def is_self_contained(transform: Callable[..., Any]) -> bool:
    """Tell whether a transform leaves the generators alone that the whole process shares.

    So it is for ours, and for MONAI's, which keep a RandomState of their own: also for `Compose`,
    `OneOf`, `SomeOf` and `RandomOrder` of such. It is not for those with anything in them that is
    not MONAI's own (a function, a transform of TorchVision or TorchIO, a class derived from one of
    MONAI's), nor for MONAI's one-dimensional signal transforms, some of which draw from PyTorch's
    generator. Other callables may do anything, and count as not self-contained.
    """
    if isinstance(transform, Compose | Transform):
        return True
    return all(map(_keeps_to_itself, _parts(transform)))


def _is(value: Any, module: str, name: str) -> bool:
    """Tell whether `value` is an instance of a class, whose package is not imported for that."""
    return isinstance(value, getattr(sys.modules.get(module), name, ()))


def _parts(transform: Any) -> Iterator[Any]:
    """Yield the callable objects that a transform is made of, itself first."""
    seen: set[int] = set()
    pending = [transform]
    while pending:
        part = pending.pop()
        if id(part) in seen or isinstance(part, type):
            continue
        if isinstance(part, list | tuple):
            inside = list(part)
        elif isinstance(part, dict):
            inside = list(part.values())
        elif callable(part):
            yield part
            inside = list(getattr(part, "__dict__", {}).values())
        else:
            continue
        seen.add(id(part))
        pending.extend(reversed(inside))


def _keeps_to_itself(part: Any) -> bool:
    """Tell whether a part of a transform is MONAI's, and draws from a RandomState if at all."""
    named = part if hasattr(part, "__qualname__") else type(part)  # a function; an object's class
    module = f"{named.__module__}."
    return module.startswith("monai.") and not module.startswith("monai.transforms.signal.")


def _words(sample: Mapping[str, Any], seed: int, epoch: int) -> NDArray[np.uint32]:
    """Return 7 random words of 32 bits that depend on (seed, epoch, sample id) only."""
    if "sample" not in sample:
        raise SampleError(
            "which sample is this? Random numbers depend on the sample's id, and there is no "
            f"'sample' among {', '.join(map(repr, sample))}. Put it there, as an int."
        )
    drawn = uniform(seed, epoch, [operator.index(sample["sample"])], _STREAM, 7)
    words: NDArray[np.uint32] = (drawn[0] * 2.0**32).astype(np.uint32)
    return words


def _key_states(parts: list[Any], strange: list[Any], words: NDArray[np.uint32]) -> None:
    """Give the random transforms of MONAI's kind one state, made from `words`."""
    state = np.random.RandomState(words)
    for part in strange:
        if _is(part, "monai.transforms", "Randomizable"):
            part.set_random_state(state=state)  # which may do more than MONAI's
    # One for all of them: Compose has given each a seed instead. So keyed, a transform and one in
    # it begin with the same numbers, and how much is done depends on whether it is.
    for part in parts:
        if _is(part, "monai.transforms", "Randomizable"):
            part.R = state


@contextmanager
def _seeded_globals(words: NDArray[np.uint32]) -> Iterator[None]:
    """Set the process's generators from 5 words, and put them back afterwards."""
    # The legacy generator is what callables draw from that know of no other.
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if initialized else []
    try:
        random.seed(words[:2].tobytes())
        np.random.seed(words[2:4])  # noqa: NPY002
        # Not torch.manual_seed, which sets the generators of all devices.
        torch.default_generator.manual_seed(int(words[4]))
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])
        torch.cuda.set_rng_state_all(cuda)


def _apply_torchio(transform: Any, sample: dict[str, Any], masks: Sequence[str]) -> dict[str, Any]:
    """Call a TorchIO transform with the sample's images as a Subject."""
    torchio: Any = sys.modules["torchio"]
    labels = {*masks, *(transform.label_keys or ())}
    images = {}
    for name, value in sample.items():
        if isinstance(value, torch.Tensor) and value.ndim == 3:
            is_label = name in labels or not value.is_floating_point()
            tensor = value.as_subclass(torch.Tensor).unsqueeze(-1)
            if value.dtype in (torch.float16, torch.bfloat16):  # what it resamples with has neither
                tensor = tensor.float()
            images[name] = (torchio.LabelMap if is_label else torchio.ScalarImage)(tensor=tensor)
    if not images:
        raise SampleError(
            "there is no image for TorchIO: no tensor of shape (C, H, W) under the keys "
            f"{', '.join(map(repr, sample)) or '(none)'}"
        )
    result = dict(sample)
    for name, image in transform(torchio.Subject(images)).items():
        result[name] = image
        if isinstance(image, torchio.Image):
            if image.data.shape[-1] != 1:
                raise SampleError(
                    f"{name!r} comes back from TorchIO as {tuple(image.data.shape)}, and slices "
                    "have one plane: the last axis is 1. Let the transform keep it, for instance "
                    "by CropOrPad((H, W, 1)).",
                    inputs=(name,),
                )
            result[name] = image.data.squeeze(-1)
    return result


def _settle(sample: Mapping[str, Any], result: Any) -> dict[str, Any]:
    """Return what a transform made of `sample`, as tensors like those of `sample`."""
    while isinstance(result, list | tuple) and len(result) == 1:
        result = result[0]
    if not isinstance(result, Mapping):
        several = f" of {len(result)}" if isinstance(result, list | tuple) else ""
        raise TypeError(
            f"the transform returned {type(result).__name__}{several}, and a sample is one dict. "
            "Have it return the dict that it was given, changed, or a new one."
        )
    settled = {key: _like(key, sample.get(key), value) for key, value in result.items()}
    return settled | {key: sample[key] for key in _WHO if key in sample}


def _like(name: str, given: Any, value: Any) -> Any:
    """Return `value` as a tensor like `given`, what it was before, if that was a tensor."""
    if isinstance(value, torch.Tensor) and type(given) is not type(value):
        value = value.as_subclass(torch.Tensor)
    if not isinstance(given, torch.Tensor):
        return value
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.array(value, order="C"))  # PyTorch has no negative strides
    elif not isinstance(value, torch.Tensor):
        return value
    tensor = value.to(given.dtype)
    if not given.is_floating_point() and not torch.equal(tensor.to(value.dtype), value):
        raise SampleError(
            f"{name!r} is {given.dtype}, and the transform returns {value.dtype} with values that "
            "this does not hold. Integers are taken for labels: have them resampled by "
            "mode='nearest', and not scaled. If it is an image, read it as float32.",
            inputs=(name,),
        )
    return tensor.contiguous()
