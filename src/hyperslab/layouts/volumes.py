"""Images that are volumes: a dataset for every time point, channel and level."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyperslab.layouts.items import numbers, read_text, warn
from hyperslab.layouts.spec import ChannelSpec, ImageSpec, LevelSpec

if TYPE_CHECKING:
    import h5py

__all__ = [
    "Triple", "VolumeLevel", "describe_volumes", "element_size", "natural", "placed", "series",
]  # fmt: skip

Triple = tuple[float, float, float]

_SPACE = "ZYX"
_EVEN = 1e-6  # how much of a transform may be rotation or shear, before it is more than rounding


class VolumeLevel(NamedTuple):
    """One level: size of its volumes, (Z, Y, X) or (Y, X), and their paths, channels fastest."""

    name: str
    size: tuple[int, ...]
    datasets: tuple[str | None, ...]


def describe_volumes(
    levels: Sequence[VolumeLevel],
    *,
    layout: str,
    file: str,
    name: str,
    dtype: np.dtype[Any],
    times: Sequence[object],
    channels: Sequence[ChannelSpec],
    channel_names: Sequence[object],
    scale: Triple = (1.0, 1.0, 1.0),
    translation: Triple = (0.0, 0.0, 0.0),
    unit: str = "",
    known_gaps: Collection[int] = (),
) -> ImageSpec:
    """Put together the facts of an image, axes T, C and those of the volumes.

    Parameters
    ----------
    levels
        Finest first; one that is not smaller than the level before it is left out.
    layout, file, name
        As in `ImageSpec`.
    dtype
        Element type, in any byte order.
    times, channel_names
        What the file calls each time point, and each channel, for messages.
    channels
        One for every channel.
    scale, translation
        (z, y, x): size of a voxel, and position of the centre of the first one, in `unit`.
    known_gaps
        Positions in a level's `datasets` at which the file says itself that there is nothing.

    Returns
    -------
    ImageSpec

    Warns
    -----
    MetadataWarning
        If a level grows, or datasets are missing.
    """
    kept: list[LevelSpec] = []
    gaps: list[str] = []
    for level in levels:
        shape = (len(times), len(channels), *level.size)
        if kept and not _is_smaller(shape, kept[-1].shape):
            if shape != kept[-1].shape:  # a copy of the level before says nothing new
                warn(
                    file,
                    f"level {level.name} has the size {level.size}, the level before it "
                    f"{kept[-1].shape[2:]}: it is left out.",
                )
            continue
        kept.append(LevelSpec(shape=shape, datasets=level.datasets))
        gaps += [
            f"level {level.name} time point {times[i // len(channels)]} "
            f"channel {channel_names[i % len(channels)]}"
            for i, path in enumerate(level.datasets)
            if path is None and i not in known_gaps
        ]
    if gaps:
        more = f" and {len(gaps) - 5} more" if len(gaps) > 5 else ""
        warn(file, f"no dataset for {', '.join(gaps[:5])}{more}: reads as zeros.")
    n = len(kept[0].shape) - 2
    borders = [t - s / 2 for t, s in zip(translation, scale, strict=True)]
    return ImageSpec(
        layout=layout,
        file=file,
        name=name,
        axes="TC" + _SPACE[-n:],
        n_outer=2,
        dtype=dtype.newbyteorder("=").name,
        levels=tuple(kept),
        scale=(1.0, 1.0, *scale[-n:]),
        translation=(0.0, 0.0, *translation[-n:]),
        origin=(0.0, 0.0, *borders[-n:]),
        units=("", "", *(unit,) * n),
        channels=tuple(channels),
    )


def _is_smaller(shape: tuple[int, ...], previous: tuple[int, ...]) -> bool:
    """Whether a level is coarser: no axis longer than in the level before, and one shorter."""
    return shape != previous and all(a <= b for a, b in zip(shape, previous, strict=True))


def series(found: Collection[int]) -> tuple[int, ...]:
    """Numbers along an axis of which `found` are there: what is absent in between is a gap.

    Numbers that are evenly spaced, or so far apart that they are no count of anything, are taken as
    they are.
    """
    present = sorted(found)
    steps = set(np.diff(present).tolist())
    if (len(steps) == 1 and len(present) > 2) or present[-1] - present[0] >= 4 * len(present):
        return tuple(present)
    return tuple(range(present[0], present[-1] + 1))


def natural(name: str) -> list[tuple[int, str]]:
    """Key that sorts "t10" after "t9"."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split("([0-9]+)", name)
    ]


def element_size(
    item: h5py.Dataset | None, n_axes: int, *, file: str
) -> tuple[tuple[float, ...], str]:
    """Size of an element along the last `n_axes` axes, and its unit, from `element_size_um`.

    The attribute gives z, y, x. Size 1 without a unit, where it is absent; with a MetadataWarning,
    where it makes no sense.
    """
    said = read_text(item, "element_size_um")
    if item is None or said is None:
        return (1.0,) * n_axes, ""
    values = numbers(said)
    if values is None or not n_axes <= len(values) <= 3 or min(values[-n_axes:]) <= 0:
        warn(
            file,
            f"{item.name} has element_size_um = {said!r}, not positive sizes (z, y, x): using size "
            "1 without a unit.",
        )
        return (1.0,) * n_axes, ""
    return values[-n_axes:], "um"


def placed(transform: NDArray[np.float64], voxel: Triple | None) -> tuple[Triple, Triple] | None:
    """Size of a voxel and position of the first one's centre, from a transform of voxel indices.

    Parameters
    ----------
    transform
        (3, 4): takes the index (x, y, z) of a voxel to a position.
    voxel
        (z, y, x), the size by other facts, which counts if the transform has another: then that is
        made for voxels of another size (often 1). None: the transform's.

    Returns
    -------
    (size, position), each (z, y, x), or None if the transform does more than to scale and to shift.
    """
    linear, shift = transform[:, :3], transform[:, 3]
    diagonal = np.diagonal(linear)
    if not np.all(np.isfinite(transform)) or not np.all(diagonal > 0):
        return None
    if np.abs(linear - np.diag(diagonal)).max() > _EVEN * diagonal.max():
        return None
    size = np.array(voxel[::-1]) if voxel is not None else diagonal
    position = shift if np.allclose(size, diagonal, rtol=1e-9) else shift / diagonal * size
    z, y, x = (float(value) for value in size[::-1])
    at_z, at_y, at_x = (float(value) for value in position[::-1])
    return (z, y, x), (at_z, at_y, at_x)
