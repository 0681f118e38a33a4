"""Batched, paired augmentation: what is done to one input of a sample is done to all of them.

Each operation takes a batch, a dict of tensors (N, C, H, W), or one sample, (C, H, W), on any
device. `Compose` strings them together; its random numbers depend on (seed, epoch, sample id) only.

| | |
|---|---|
| `RandomFlip` | along y and along x, each by its own draw; or the half turn |
| `RandomRotate90` | one to three quarter turns |
| `Misalign` | a small rotation and shift of the named inputs, each by draws of its own |
| `MotionArtifact` | k-space columns of moved images mixed into one image |
| `Elastic` | a smooth random displacement |
| `Clamp` | images to [lo, hi], masks as they are |
| `RandomCrop` | one window for all inputs, padded first where they are smaller |
| `CenterCrop` | the same in the middle |
| `Swap` | exchange source and target |
| `Window`, `ZScore` | scale images by given constants |

The usual order is that of the table, with scaling before it. Masks never get new label values.
"""

from __future__ import annotations

from hyperslab.torch.transforms.base import Transform
from hyperslab.torch.transforms.compose import Compose
from hyperslab.torch.transforms.crop import CenterCrop, RandomCrop
from hyperslab.torch.transforms.elastic import Elastic
from hyperslab.torch.transforms.flips import RandomFlip, RandomRotate90
from hyperslab.torch.transforms.inputs import Inputs
from hyperslab.torch.transforms.intensity import Clamp, Window, ZScore
from hyperslab.torch.transforms.misalign import Misalign
from hyperslab.torch.transforms.motion import MotionArtifact
from hyperslab.torch.transforms.swap import Swap

__all__ = [
    "CenterCrop",
    "Clamp",
    "Compose",
    "Elastic",
    "Inputs",
    "Misalign",
    "MotionArtifact",
    "RandomCrop",
    "RandomFlip",
    "RandomRotate90",
    "Swap",
    "Transform",
    "Window",
    "ZScore",
]
