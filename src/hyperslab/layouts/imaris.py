"""Imaris 5.5: where the pixels are.

`/DataSet/ResolutionLevel r/TimePoint t/Channel c/Data` holds one (Z, Y, X) volume each, padded to
whole chunks; the Channel group's ImageSizeX, ImageSizeY and ImageSizeZ give the true size. What
`/DataSetInfo` says about them is read in `hyperslab.layouts.imaris_info`.

Sources of the format facts: the vendor's "Imaris 5.5 file format" paper and ImarisWriter source,
and files of four writers.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hyperslab.errors import LayoutError
from hyperslab.layouts.imaris_info import (
    read_channels,
    read_extents,
    read_name,
    read_timestamps,
    read_unit,
    stated_channels,
    stated_time_points,
)
from hyperslab.layouts.items import read_text, warn, whole
from hyperslab.layouts.links import child, follow, has_dataset, list_contents, numbered
from hyperslab.layouts.spec import ImageSpec, LevelSpec

if TYPE_CHECKING:
    import h5py

__all__ = ["describe", "matches"]

_MOST = 1_000_000  # places in the grid of datasets; keeps a stray number from filling the memory

Size = tuple[int, int, int]


class _Level(NamedTuple):
    number: int
    path: str
    datasets: dict[tuple[int, int], str]  # (time point, channel), as numbered in the file


def matches(h5: h5py.File) -> bool:
    """Whether the file says that it is an Imaris file, or is built like one; reads 3 items."""
    if "ImarisDataSet" in h5.attrs or "ImarisVersion" in h5.attrs:
        return True
    import h5py

    top = h5.get(_directory(h5, "DataSetDirectoryName", "DataSet"))
    return isinstance(top, h5py.Group) and "ResolutionLevel 0" in top


def describe(h5: h5py.File, path: str) -> ImageSpec:
    """Describe the image of an Imaris file, single or multi-file; no pixel is read.

    Parameters
    ----------
    h5
        The open file. No reference to it is kept.
    path
        Its path, for messages and for the result.

    Returns
    -------
    ImageSpec
        Axes TCZYX. Levels get strictly smaller: one that is not smaller than the level before it
        is left out. Time points and channels are in numeric order, and one that is absent from the
        file has None as its dataset.

    Raises
    ------
    LayoutError
        If the file has no Imaris image, or its channels differ in type.
    MissingSourceError
        If the file of a channel in a multi-file set is not there.

    Warns
    -----
    MetadataWarning
        For metadata that are missing or make no sense, with what is used instead.

    Notes
    -----
    Sizes, types and contrast are read once per level and channel, not for every time point. For
    every dataset one link is looked up, some 15 microseconds each.
    """
    top_name = _directory(h5, "DataSetDirectoryName", "DataSet")
    info = child(h5, _directory(h5, "DataSetInfoDirectoryName", "DataSetInfo"))
    found = _find_levels(h5, top_name, path)
    if not found:
        raise LayoutError(
            f"{path}: an Imaris image was asked for, but /{top_name} has no dataset "
            "'ResolutionLevel r/TimePoint t/Channel c/Data'. "
            f"The file holds: {list_contents(h5)}.",
            file=path,
        )
    present = [key for level in found for key in level.datasets]
    times = _axis(path, "time point", {t for t, _ in present}, stated_time_points(info))
    channels = _axis(path, "channel", {c for _, c in present}, stated_channels(info))
    if len(times) * len(channels) > _MOST:
        raise LayoutError(
            f"{path}: time points up to {times[-1]} and channels up to {channels[-1]} span more "
            f"than {_MOST} datasets; {len(present)} are there.",
            file=path,
        )

    dtype = _check_types(h5, found[0], path)
    image_info = child(info, "Image")
    levels: list[LevelSpec] = []
    for level in found:
        name = next(iter(level.datasets.values()))
        dataset = _open_volume(h5, name, path)
        if dataset.dtype != dtype:
            warn(
                path,
                f"level {level.number} holds {dataset.dtype}, level {found[0].number} {dtype}; "
                f"level {level.number} is left out.",
            )
            continue
        size = _true_size(dataset, _group_of(h5, name), image_info, level.number, path)
        shape = (len(times), len(channels), *size)
        if levels and not _is_smaller(shape, levels[-1].shape):
            if shape != levels[-1].shape:  # a copy of the level before says nothing new
                warn(
                    path,
                    f"level {level.number} has the size {size}, the level before it "
                    f"{levels[-1].shape[2:]}: it is left out.",
                )
            continue
        grid = tuple(level.datasets.get((t, c)) for t in times for c in channels)
        levels.append(LevelSpec(shape=shape, datasets=grid))
    _warn_of_gaps(path, levels, times, channels)

    scale, origin, translation = read_extents(image_info, levels[0].shape[2:], file=path)
    unit = read_unit(image_info, file=path)
    return ImageSpec(
        layout="imaris",
        file=path,
        name=read_name(image_info),
        axes="TCZYX",
        n_outer=2,
        dtype=dtype.newbyteorder("=").name,
        levels=tuple(levels),
        scale=(1.0, 1.0, *scale),
        translation=(0.0, 0.0, *translation),
        origin=(0.0, 0.0, *origin),
        units=("", "", unit, unit, unit),
        channels=read_channels(
            info, [_first_group(h5, found, c) for c in channels], dtype=dtype, file=path
        ),
        timestamps=read_timestamps(info, len(times), file=path),
    )


def _directory(h5: h5py.File, item: str, default: str) -> str:
    """Name of a top-level group: what the root attribute says, escaped where that is needed."""
    name = read_text(h5, item)
    if name is None:
        return default
    escaped = name.replace("%", "%p").replace("/", "%s")
    # Old writers give the link's own name, new ones the name before "/" and "%" are escaped. An
    # attribute that leads nowhere counts less than a group with the usual name.
    for candidate in (escaped, name.strip("/"), default):
        if candidate and candidate in h5:
            return candidate
    return default


def _find_levels(h5: h5py.File, top_name: str, path: str) -> list[_Level]:
    """List the datasets of every level, finest first, leaving out levels that have none."""
    import h5py

    levels: list[_Level] = []
    top = follow(h5, top_name, file=path, subject="the image")
    if not isinstance(top, h5py.Group):
        return levels
    for r, level_name in numbered(top, "ResolutionLevel").items():
        level = follow(top, level_name, file=path, subject=f"level {r}")
        if not isinstance(level, h5py.Group):
            continue
        where = f"/{top_name}/{level_name}"
        datasets: dict[tuple[int, int], str] = {}
        for t, time_name in numbered(level, "TimePoint").items():
            time = follow(level, time_name, file=path, subject=f"level {r}, time point {t}")
            if not isinstance(time, h5py.Group):
                continue
            for c, channel_name in numbered(time, "Channel").items():
                subject = f"channel {c} of time point {t}, level {r},"
                if has_dataset(time, f"{channel_name}/Data", file=path, subject=subject):
                    datasets[t, c] = f"{where}/{time_name}/{channel_name}/Data"
        if datasets:
            levels.append(_Level(r, where, datasets))
    return levels


def _axis(path: str, what: str, indices: set[int], stated: int | None) -> range:
    """Numbers along an axis, from 0; from 1 if that is how the file counts them throughout."""
    last = max(indices)
    start = 1 if min(indices) == 1 and stated == last else 0
    length = last + 1 - start
    if stated is not None and stated > length:
        warn(path, f"DataSetInfo speaks of {stated} {what}s, the file holds {length}: using those.")
    return range(start, last + 1)


def _open_volume(h5: h5py.File, name: str, path: str) -> h5py.Dataset:
    import h5py

    dataset = h5[name]
    if isinstance(dataset, h5py.Dataset) and dataset.ndim == 3 and dataset.dtype.kind in "uif":
        return dataset
    found = (
        f"has shape {dataset.shape} and type {dataset.dtype}"
        if isinstance(dataset, h5py.Dataset)
        else "is no dataset"
    )
    raise LayoutError(
        f"{path}: {name} {found}; Imaris keeps volumes of numbers, (Z, Y, X). What can be read "
        "as an array is listed by `hyperslab info`.",
        file=path,
        dataset=name,
    )


def _group_of(h5: h5py.File, name: str) -> h5py.Group:
    """Channel group of a dataset; by path, because it can be in another file."""
    return h5[posixpath.dirname(name)]


def _check_types(h5: h5py.File, level: _Level, path: str) -> np.dtype[Any]:
    """Type of the image; looks at the first dataset of every channel of the finest level."""
    first: dict[int, str] = {}
    for (_, c), name in level.datasets.items():
        first.setdefault(c, name)
    dtypes = {c: np.dtype(_open_volume(h5, name, path).dtype) for c, name in first.items()}
    if len(set(dtypes.values())) > 1:
        listing = ", ".join(f"channel {c}: {dtype}" for c, dtype in dtypes.items())
        raise LayoutError(
            f"{path}: the channels differ in type ({listing}), so they are not one image. Read "
            "them as arrays of their own.",
            file=path,
        )
    return next(iter(dtypes.values()))


def _true_size(
    dataset: h5py.Dataset, channel: h5py.Group, image_info: Any, level: int, path: str
) -> Size:
    """(Z, Y, X) without the padding.

    From the Channel group's ImageSize; else from DataSetInfo/Image (X, Y, Z for level 0; some
    writers add X0, X1, ... for every level), as long as that leaves less than one chunk of padding;
    else the size of the dataset.
    """
    stored: Size = dataset.shape
    chunks = dataset.chunks or (1, 1, 1)
    size = []
    for axis, letter in enumerate("ZYX"):
        n, chunk = stored[axis], chunks[axis]
        said = read_text(channel, f"ImageSize{letter}")
        value = whole(said)
        if value is not None and 0 < value <= n:
            size.append(value)
            continue
        names = (letter, f"{letter}0") if level == 0 else (f"{letter}{level}",)
        others = [whole(read_text(image_info, name)) for name in names]
        fitting = [m for m in others if m is not None and 0 < m <= n and m > n - chunk]
        value = fitting[0] if fitting else n
        if said is not None or not (fitting or chunk == 1 or n % chunk):  # else there is padding
            warn(
                path,
                f"level {level}, {channel.name}: ImageSize{letter} is {said!r}, the dataset has "
                f"{n} along that axis: using {value}"
                + (", which may include padding." if value == n else "."),
            )
        size.append(value)
    return size[0], size[1], size[2]


def _is_smaller(shape: tuple[int, ...], previous: tuple[int, ...]) -> bool:
    """Whether a level is coarser: no axis longer than in the level before, and one shorter."""
    return shape != previous and all(a <= b for a, b in zip(shape, previous, strict=True))


def _warn_of_gaps(path: str, levels: list[LevelSpec], times: range, channels: range) -> None:
    gaps = [
        f"level {k} time point {times[i // len(channels)]} channel {channels[i % len(channels)]}"
        for k, level in enumerate(levels)
        for i, name in enumerate(level.datasets)
        if name is None
    ]
    if gaps:
        more = f" and {len(gaps) - 5} more" if len(gaps) > 5 else ""
        warn(path, f"no dataset for {', '.join(gaps[:5])}{more}: reads as zeros.")


def _first_group(h5: h5py.File, levels: list[_Level], channel: int) -> h5py.Group | None:
    """Group of the earliest dataset of `channel`, on the finest level that has one."""
    for level in levels:
        names = [name for (_, c), name in level.datasets.items() if c == channel]
        if names:
            return _group_of(h5, names[0])
    return None
