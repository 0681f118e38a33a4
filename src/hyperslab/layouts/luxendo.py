"""Luxendo: one `.lux.h5` file for every time point and channel, or a main file that links them.

`/Data` is the (Z, Y, X) volume and `/Data_W_H_D` the same, smaller by these factors in width,
height and depth; `/metadata` is JSON with "processingInformation". A main file has no pixels: its
groups `timepoint_T/channel_C/VIEW` link to the same things in other files; in older ones the levels
are `res_N/data`.

Source of the format facts: the vendor's description of the Luxendo Image format.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hyperslab.errors import LayoutError, MissingSourceError, NotHDF5Error
from hyperslab.index.session import session
from hyperslab.layouts.items import number, read_text, warn
from hyperslab.layouts.links import child, child_names, follow, has_dataset, list_contents
from hyperslab.layouts.luxendo_set import find_set
from hyperslab.layouts.single import is_image
from hyperslab.layouts.spec import BESIDE, ChannelSpec, ImageSpec
from hyperslab.layouts.volumes import (
    Triple,
    VolumeLevel,
    describe_volumes,
    element_size,
    natural,
    placed,
    series,
)

if TYPE_CHECKING:
    import h5py

__all__ = ["describe", "images", "matches"]

_LEVEL = re.compile(r"Data_([0-9]{1,6})_([0-9]{1,6})_([0-9]{1,6})")


class _Volume(NamedTuple):
    """One volume with its levels: path below its group and size of each, finest first."""

    levels: tuple[tuple[str, tuple[int, ...]], ...]
    dtype: np.dtype[Any]


def matches(h5: h5py.File) -> bool:
    """Whether the file is a volume of Luxendo's, or a main file; reads a few items."""
    if _is_volume(child(h5, "Data")):
        return str(h5.filename).endswith(".lux.h5") or _metadata(h5) is not None
    times = _numbered_groups(h5, "timepoint_")
    return bool(times and _numbered_groups(child(h5, times[0]), "channel_"))


def images(h5: h5py.File) -> tuple[str, ...]:
    """Name the views of a main file; a file with one volume has one image, ""."""
    if child(h5, "Data") is not None:
        return ("",)
    return tuple(sorted({view for _, _, view in _views(h5)}, key=natural))


def describe(h5: h5py.File, path: str, image: str) -> ImageSpec:
    """Describe the image that a Luxendo file is a part of; no pixel is read.

    Parameters
    ----------
    h5
        The open file. No reference to it is kept.
    path
        Its path, for messages, for the result, and to find the other files of a set.
    image
        One of `images`.

    Returns
    -------
    ImageSpec
        Axes TCZYX, of the whole set: of the files whose names differ in time point and channel
        only, or that the main file links to. Voxel size and channel names are those in `metadata`.
        Where its `affine_to_sample` only scales and shifts, the image lies where that puts it, else
        at 0.

    Raises
    ------
    LayoutError
        If the file has no such image.
    MissingSourceError
        If a file that a main file links to is not there.

    Warns
    -----
    MetadataWarning
        For metadata that are missing or make no sense, with what is used instead, and for files
        that a set lacks.

    Notes
    -----
    Of a set, the first file of every channel is opened; that the others are alike is checked when
    they are read.
    """
    if child(h5, "Data") is not None:
        return _describe_set(h5, path)
    return _describe_main(h5, path, image)


def _describe_set(h5: h5py.File, path: str) -> ImageSpec:
    volume = _read_volume(h5, "the image", path)
    if volume is None:
        raise _nothing(h5, path)
    files = find_set(path)
    # The file at hand stands for its channel, the first file of any other for that.
    first = {c: file for (_, c), file in sorted(files.items(), reverse=True)}
    own = next((c for (_, c), file in files.items() if "/" not in file and _same(file, path)), 0)
    channels: dict[int, ChannelSpec] = {}
    for c in sorted(first):
        if c == own:
            channels[c] = _channel(_metadata(h5), c)
        elif (found := _look_beside(path, first[c], volume, c)) is not None:
            channels[c] = found
    files = {key: file for key, file in files.items() if key[1] in channels}
    times, numbers = series({t for t, _ in files}), sorted(channels)

    def dataset(t: int, c: int, level: str) -> str | None:
        file = files.get((t, c))
        if file is None or _same(file, path):
            return f"/{level}" if file else None
        return f"{file}{BESIDE}{level}"

    levels = [
        VolumeLevel(level, size, tuple(dataset(t, c, level) for t in times for c in numbers))
        for level, size in volume.levels
    ]
    facts = _metadata(h5)
    return _described(
        levels, volume, facts, child(h5, "Data"), path, "", times, numbers, list(channels.values())
    )


def _same(file: str, path: str) -> bool:
    return "/" not in file and path.replace("\\", "/").rpartition("/")[2] == file


def _look_beside(path: str, file: str, volume: _Volume, c: int) -> ChannelSpec | None:
    """Read the name of another channel from its first file; None if it cannot be one."""
    other = os.path.join(os.path.dirname(path), file)
    try:
        with session(other) as h5:
            found = _read_volume(h5, f"channel {c}", other)
            if found == volume:
                return _channel(_metadata(h5), c)
            problem = "it has another size or type"
    except (NotHDF5Error, MissingSourceError) as error:
        problem = str(error)
    warn(path, f"channel {c} is left out, from {file}: {problem}.")
    return None


def _describe_main(h5: h5py.File, path: str, image: str) -> ImageSpec:
    views = {(t, c): way for (t, c, view), way in _views(h5).items() if view == image}
    times = sorted({t for t, _ in views}, key=natural)
    numbers = sorted({c for _, c in views}, key=natural)
    volume = group = None
    channels = []
    for c in numbers:
        way = next(way for (_, other), way in sorted(views.items()) if other == c)
        subject = f"channel {c}"
        here = follow(h5, way, file=path, subject=subject)
        found = _read_volume(here, subject, path)
        if volume is None:
            volume, group = found, here
        elif found is not None and found != volume:
            raise LayoutError(
                f"{path}: the channels differ in size or type, so they are not one image: "
                f"{numbers[0]} is {volume.levels[0][1]} {volume.dtype}, {c} is "
                f"{found.levels[0][1]} {found.dtype}. Open their files one by one.",
                file=path,
                dataset=way,
            )
        channels.append(_channel(_metadata(here), c))
    if volume is None or group is None:
        raise _nothing(h5, path)

    def dataset(t: str, c: str, level: str) -> str | None:
        if (t, c) not in views:
            return None
        way = f"{views[t, c]}/{level}"
        subject = f"time point {t}, channel {c}, {level},"
        return f"/{way}" if has_dataset(h5, way, file=path, subject=subject) else None

    levels = [
        VolumeLevel(level, size, tuple(dataset(t, c, level) for t in times for c in numbers))
        for level, size in volume.levels
    ]
    finest = child(group, volume.levels[0][0])
    return _described(
        levels, volume, _metadata(group), finest, path, image, times, numbers, channels
    )


def _described(
    levels: list[VolumeLevel],
    volume: _Volume,
    facts: Mapping[str, Any] | None,
    finest: Any,
    path: str,
    image: str,
    times: Sequence[object],
    numbers: Sequence[object],
    channels: list[ChannelSpec],
) -> ImageSpec:
    size, position, unit = _place(facts or {}, finest, path)
    name = (facts or {}).get("stack_description")
    return describe_volumes(
        levels,
        layout="luxendo",
        file=path,
        name=image or (name if isinstance(name, str) else ""),
        dtype=volume.dtype,
        times=times,
        channels=channels,
        channel_names=numbers,
        scale=size,
        translation=position,
        unit=unit,
    )


def _nothing(h5: h5py.File, path: str) -> LayoutError:
    return LayoutError(
        f"{path}: a Luxendo image was asked for, but there is no volume 'Data' in the file, nor in "
        f"groups 'timepoint_T/channel_C/VIEW'. The file holds: {list_contents(h5)}.",
        file=path,
    )


def _numbered_groups(group: Any, stem: str) -> list[str]:
    import h5py

    if not isinstance(group, h5py.Group):
        return []
    return sorted((n for n in child_names(group) if n.startswith(stem)), key=natural)


def _views(h5: h5py.File) -> dict[tuple[str, str, str], str]:
    """Groups of a main file: (time point, channel, view) to path."""
    found = {}
    for time in _numbered_groups(h5, "timepoint_"):
        times = child(h5, time)
        for channel in _numbered_groups(times, "channel_"):
            for view in _numbered_groups(child(times, channel), ""):
                key = time.removeprefix("timepoint_"), channel.removeprefix("channel_"), view
                found[key] = f"{time}/{channel}/{view}"
    return found


def _is_volume(item: Any) -> bool:
    return is_image(item, kinds="iuf") and item.ndim == 3


def _read_volume(group: Any, subject: str, path: str) -> _Volume | None:
    """Levels of the volume in `group`, finest first."""
    import h5py

    if not isinstance(group, h5py.Group):
        return None
    names = child_names(group)
    finer = [(1, "Data")] if "Data" in names else []
    finer += [
        (int(match[1]) * int(match[2]) * int(match[3]), match[0])
        for match in map(_LEVEL.fullmatch, names)
        if match
    ]
    ways = [name for _, name in sorted(finer)]
    ways = ways or [f"{name}/data" for name in _numbered_groups(group, "res_")]
    levels = []
    dtypes = []
    for way in ways:
        item = follow(group, way, file=path, subject=f"{subject}, {way}")
        if _is_volume(item):
            levels.append((way, tuple(int(n) for n in item.shape)))
            dtypes.append(np.dtype(item.dtype))
    return _Volume(tuple(levels), dtypes[0]) if levels else None


def _metadata(group: Any) -> Mapping[str, Any] | None:
    """Return what `metadata` says under "processingInformation"; None if there is no such thing."""
    text = read_text(group, "metadata") or read_text(child(group, "res_0"), "metadata")
    try:
        found = json.loads(text or "")
    except ValueError:
        return None
    facts = found.get("processingInformation") if isinstance(found, dict) else None
    return facts if isinstance(facts, dict) else None


def _channel(facts: Mapping[str, Any] | None, c: object) -> ChannelSpec:
    said = (facts or {}).get("channel_description")
    return ChannelSpec(
        name=said.strip() if isinstance(said, str) and said.strip() else f"Channel {c}"
    )


def _place(facts: Mapping[str, Any], finest: Any, path: str) -> tuple[Triple, Triple, str]:
    """Voxel size, position of the first voxel's centre, and unit."""
    said = facts.get("voxel_size_um")
    parts = [
        number(str(said.get(key))) if isinstance(said, dict) else None
        for key in ("depth", "height", "width")
    ]
    sizes = [float(part) for part in parts if part is not None and part > 0]
    unit = "um"
    if len(sizes) < 3:
        values, unit = element_size(finest, 3, file=path)
        sizes = list(values)
        if said is not None or not unit:
            warn(
                path,
                f"the metadata give the voxel size {said!r}: using "
                + (f"element_size_um, {tuple(sizes)}." if unit else "1 without a unit."),
            )
    voxel = (sizes[0], sizes[1], sizes[2])
    chain = facts.get("affine_to_sample")
    if not isinstance(chain, list) or not chain or not unit:
        return voxel, (0.0, 0.0, 0.0), unit
    transform = np.eye(4)
    for step in chain:
        try:
            matrix = np.hstack(
                [np.reshape(step["matrix"], (3, 3)), np.reshape(step["translation"], (3, 1))]
            ).astype(np.float64)
        except (KeyError, TypeError, ValueError):
            warn(path, f"the metadata have {step!r} in affine_to_sample: the image is put at 0.")
            return voxel, (0.0, 0.0, 0.0), unit
        transform = np.vstack([matrix, [0, 0, 0, 1]]) @ transform
    found = placed(transform[:3], voxel)
    if found is None:
        warn(
            path,
            "affine_to_sample flips, rotates or shears the image: it is shown along its own axes, "
            "at 0.",
        )
    return voxel, found[1] if found else (0.0, 0.0, 0.0), unit
