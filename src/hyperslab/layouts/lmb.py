"""LMB and ImSwitch: images that ImageJ's HDF5 plugins read and write.

LMB (University of Freiburg) keeps one (Z, Y, X) or (Y, X) dataset at `/tT/channelC` for every time
point and channel, with the attributes `element_size_um` (z, y, x) and `name`. ImSwitch keeps what
one detector saw, frames first, in a dataset with the attributes `detector_name` and
`element_size_um`.

Source of the format facts: the plugins' default `/t$T/channel$C`, and the programs' writers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hyperslab.errors import LayoutError
from hyperslab.layouts.axes import Axis
from hyperslab.layouts.items import read_text
from hyperslab.layouts.links import child, follow, has_dataset, list_contents, numbered
from hyperslab.layouts.single import describe_single, is_image, objects_below
from hyperslab.layouts.spec import ChannelSpec, ImageSpec
from hyperslab.layouts.volumes import (
    Triple,
    VolumeLevel,
    describe_volumes,
    element_size,
    series,
)

if TYPE_CHECKING:
    import h5py

__all__ = ["describe", "images", "matches"]

_DETECTOR_AXES = {2: "YX", 3: "TYX", 4: "TZYX"}


def matches(h5: h5py.File) -> bool:
    """Whether the first time point has channels, or some dataset near the top a detector."""
    return bool(_channel_sets(h5)) or bool(_detectors(h5))


def images(h5: h5py.File) -> tuple[str, ...]:
    """Name the images: one, "", for time points and channels; else one for each detector."""
    return ("",) if _channel_sets(h5) else tuple(_detectors(h5))


def describe(h5: h5py.File, path: str, image: str) -> ImageSpec:
    """Describe an image; no pixel is read.

    Parameters
    ----------
    h5
        The open file. No reference to it is kept.
    path
        Its path, for messages and for the result.
    image
        One of `images`.

    Returns
    -------
    ImageSpec
        Axes TCZYX or TCYX for LMB; TYX, YX or TZYX for ImSwitch.

    Raises
    ------
    LayoutError
        If the file has no such image, or its channels differ in size or type.
    MissingSourceError
        If a file that a dataset is linked to is not there.

    Warns
    -----
    MetadataWarning
        If datasets are missing between others, or `element_size_um` makes no sense.
    """
    sets = _channel_sets(h5)
    if sets:
        return _describe_channels(h5, path, sets)
    dataset = _detectors(h5).get(image)
    if dataset is None:
        raise LayoutError(
            f"{path}: an image of LMB or ImSwitch was asked for, but there is no dataset "
            f"'tT/channelC', nor one with a detector_name. The file holds: {list_contents(h5)}.",
            file=path,
        )
    letters = _DETECTOR_AXES[dataset.ndim]
    n = 3 if "Z" in letters else 2
    sizes, unit = element_size(dataset, n, file=path)
    axes = [Axis(letter=letter) for letter in letters[:-n]] + [
        Axis(letter=letter, scale=size, unit=unit)
        for letter, size in zip(letters[-n:], sizes, strict=True)
    ]
    return describe_single(
        dataset,
        axes,
        layout="lmb",
        file=path,
        name=image,
        path=str(dataset.name),
        channels=[ChannelSpec(name=read_text(dataset, "detector_name") or "Channel 0")],
    )


def _channel_sets(h5: h5py.File) -> dict[int, dict[int, str]]:
    """Paths of the datasets of every time point, by channel."""
    import h5py

    sets = {}
    for t, time in numbered(h5, "t").items():
        channels = numbered(child(h5, time), "channel")
        if channels:
            sets[t] = {c: f"{time}/{name}" for c, name in channels.items()}
    first = next((way for paths in sets.values() for way in paths.values()), None)
    item = None if first is None else h5.get(first, getlink=True)
    if isinstance(item, h5py.HardLink | h5py.SoftLink) and not is_image(child(h5, first or "")):
        return {}
    return sets


def _detectors(h5: h5py.File) -> dict[str, h5py.Dataset]:
    """Datasets of detectors, by the detector's name, or by path if a name comes twice."""
    found: dict[str, h5py.Dataset] = {}
    for path, item in objects_below(h5, depth=2, most=200):
        if is_image(item) and item.ndim in _DETECTOR_AXES:
            name = read_text(item, "detector_name")
            if name is not None:
                found[path if name in found else name] = item
    return found


def _describe_channels(h5: h5py.File, path: str, sets: dict[int, dict[int, str]]) -> ImageSpec:
    times = series(sets)
    numbers = series({c for paths in sets.values() for c in paths})
    first: dict[int, Any] = {}
    for t, paths in sets.items():
        for c, way in paths.items():
            if c not in first:
                first[c] = follow(h5, way, file=path, subject=f"channel {c} of time point {t}")
    kinds = {
        c: (item.shape, np.dtype(item.dtype))
        for c, item in first.items()
        if is_image(item) and item.ndim in (2, 3)
    }
    if len(kinds) < len(first) or len(set(kinds.values())) > 1:
        told = ", ".join(f"{c}: {getattr(i, 'shape', None)}" for c, i in sorted(first.items()))
        raise LayoutError(
            f"{path}: the channels are not alike volumes of numbers ({told}), so they are not one "
            "image. Give a template for those that are, such as layout='t{t}/channel0'.",
            file=path,
        )
    size, dtype = next(iter(kinds.values()))

    def dataset(t: int, c: int) -> str | None:
        way = sets.get(t, {}).get(c)
        subject = f"channel {c} of time point {t}"
        return f"/{way}" if way and has_dataset(h5, way, file=path, subject=subject) else None

    level = VolumeLevel("0", size, tuple(dataset(t, c) for t in times for c in numbers))
    item = next(iter(first.values()))
    sizes, unit = element_size(item, len(size), file=path)
    scale: Triple = (sizes[0] if len(sizes) == 3 else 1.0, sizes[-2], sizes[-1])
    return describe_volumes(
        [level],
        layout="lmb",
        file=path,
        name="",
        dtype=dtype,
        times=times,
        channels=[
            ChannelSpec(name=read_text(first.get(c), "name") or f"Channel {c}") for c in numbers
        ],
        channel_names=numbers,
        scale=scale,
        unit=unit,
    )
