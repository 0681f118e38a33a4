"""BigDataViewer in HDF5: where the pixels are.

`/tTTTTT/sSS/L/cells` holds one (Z, Y, X) volume for every time point, view setup and level. A setup
is one combination of channel, angle, illumination and so on; which one, says the xml file beside
(`hyperslab.layouts.bdv_xml`). Pixels are stored as int16 and mean uint16, unless `/sSS` has an
attribute `dataType`.

Source of the format facts: BigDataViewer's writer, and files of three writers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hyperslab.errors import LayoutError
from hyperslab.layouts.bdv_xml import BdvXml, Setup, find_xml, read_display, read_xml
from hyperslab.layouts.items import read_text, warn
from hyperslab.layouts.links import child, follow, has_dataset, list_contents, numbered
from hyperslab.layouts.single import is_image
from hyperslab.layouts.spec import ChannelSpec, ImageSpec
from hyperslab.layouts.volumes import Triple, VolumeLevel, describe_volumes, placed, series

if TYPE_CHECKING:
    import h5py

__all__ = ["describe", "images", "matches"]


class _Setup(NamedTuple):
    """A setup, as its first time point has it."""

    number: int
    name: str  # of its groups
    levels: tuple[tuple[str, tuple[int, ...]], ...]  # name and size of each, finest first
    dtype: np.dtype[Any]


class _File(NamedTuple):
    times: dict[int, str]
    images: dict[str, list[_Setup]]  # by name; the setups are the channels
    xml: BdvXml | None


def matches(h5: h5py.File) -> bool:
    """Whether the file has time points, and a setup with its resolutions; reads 3 items."""
    import h5py

    setups = numbered(h5, "s")
    if not setups or not numbered(h5, "t"):
        return False
    return isinstance(child(h5, f"{next(iter(setups.values()))}/resolutions"), h5py.Dataset)


def images(h5: h5py.File) -> tuple[str, ...]:
    """Name the images: setups that differ in nothing but their channel are one."""
    return tuple(_look(h5, str(h5.filename)).images)


def describe(h5: h5py.File, path: str, image: str) -> ImageSpec:
    """Describe one image of a BigDataViewer file; no pixel is read.

    Parameters
    ----------
    h5
        The open file. No reference to it is kept.
    path
        Its path, for messages, for the result, and to find the xml file beside it.
    image
        One of `images`.

    Returns
    -------
    ImageSpec
        Axes TCZYX, one channel for every setup. Pixel size, unit and names are those of the xml
        file, and colours and contrast those of `NAME.settings.xml`. Where the xml's transform of
        the first view only scales and shifts, the image lies where that puts it, else at 0.

    Raises
    ------
    LayoutError
        If the file has no such image.
    MissingSourceError
        If a file that the datasets are linked to is not there.

    Warns
    -----
    MetadataWarning
        Without an xml file, or where it disagrees with the file, with what is used instead.

    Notes
    -----
    Sizes and types are read once for every setup and level. For every dataset one link is looked
    up, some 15 microseconds each.
    """
    times, found, xml = _look(h5, path)
    setups = found.get(image)
    if setups is None:
        raise LayoutError(
            f"{path}: a BigDataViewer image was asked for, but there is no dataset "
            f"'tTTTTT/sSS/L/cells' for it. The file holds: {list_contents(h5)}.",
            file=path,
        )
    if xml is None:
        several = len(setups) > 1
        warn(
            path,
            "there is no xml file beside it: using voxels of size 1 without a unit"
            + (" and taking its setups for channels." if several else "."),
        )
        xml = BdvXml(name="")
    axis = _time_axis(times, xml, path)
    levels = []
    for i, (level, size) in enumerate(setups[0].levels):
        datasets = tuple(
            _dataset(h5, times.get(t), s, s.levels[i][0], path) for t in axis for s in setups
        )
        levels.append(VolumeLevel(level, size, datasets))
    gaps = {
        i
        for i, view in enumerate((t, s.number) for t in axis for s in setups)
        if view in xml.missing
    }
    voxel, position = _place(setups, axis, xml, path)
    facts = xml.setups.get(setups[0].number, Setup())
    if facts.size is not None and facts.size != setups[0].levels[0][1]:
        warn(
            path,
            f"{xml.name} gives setup {setups[0].number} the size {facts.size}, its dataset has "
            f"{setups[0].levels[0][1]}: using that.",
        )
    return describe_volumes(
        levels,
        layout="bdv",
        file=path,
        name=image,
        dtype=setups[0].dtype,
        times=axis,
        channels=_channels(setups, xml, path),
        channel_names=[s.number for s in setups],
        scale=voxel,
        translation=position,
        unit=facts.unit,
        known_gaps=gaps,
    )


def _look(h5: h5py.File, path: str) -> _File:
    """Find the setups and put those together that are channels of one image."""
    times = numbered(h5, "t")
    setups = [
        setup
        for number, name in numbered(h5, "s").items()
        if (setup := _read_setup(h5, times, number, name, path)) is not None
    ]
    beside = find_xml(path)
    xml = None if beside is None else read_xml(beside)
    return _File(times, _group(setups, xml or BdvXml(name="")), xml)


def _read_setup(
    h5: h5py.File, times: dict[int, str], number: int, name: str, path: str
) -> _Setup | None:
    for t, time in times.items():
        subject = f"time point {t}, setup {number}"
        group = follow(h5, f"{time}/{name}", file=path, subject=subject)
        levels = []
        dtypes = []
        for level in numbered(group, "").values():
            cells = follow(group, f"{level}/cells", file=path, subject=f"{subject}, level {level}")
            if is_image(cells, kinds="iuf") and cells.ndim == 3:
                levels.append((level, tuple(int(n) for n in cells.shape)))
                dtypes.append(np.dtype(cells.dtype))
        if levels:
            return _Setup(number, name, tuple(levels), _meant(h5, name, dtypes[0], path))
    return None


def _meant(h5: h5py.File, name: str, stored: np.dtype[Any], path: str) -> np.dtype[Any]:
    """Type that the pixels of a setup stand for."""
    native = stored.newbyteorder("=")
    said = read_text(child(h5, name), "dataType")
    if said is None:
        return np.dtype(np.uint16) if native == np.int16 else native
    try:
        meant = np.dtype(said)
    except TypeError:
        meant = None
    if meant == native or (
        meant is not None
        and {meant.kind, native.kind} == {"i", "u"}
        and meant.itemsize == native.itemsize
    ):
        return meant
    warn(path, f"{name} has dataType = {said!r}, its datasets hold {native}: using {native}.")
    return native


def _group(setups: list[_Setup], xml: BdvXml) -> dict[str, list[_Setup]]:
    """Images by name: setups of one size and type that differ in their channel only."""
    together: dict[Any, list[_Setup]] = {}
    for setup in setups:
        attributes = dict(xml.setups.get(setup.number, Setup()).attributes)
        channel = attributes.pop("channel", None)
        key = (tuple(attributes.items()), channel is None, setup.levels, setup.dtype)
        together.setdefault(key, []).append(setup)
    groups: list[tuple[dict[str, int], list[_Setup]]] = []
    for (attributes, unknown, _, _), members in together.items():
        order = {s.number: _channel_number(s, xml) for s in members}
        if unknown or len(set(order.values())) == len(members):
            groups.append((dict(attributes), sorted(members, key=lambda s: order[s.number])))
        else:  # two of the same channel: nothing says how they differ
            groups += [(dict(attributes), [s]) for s in members]
    if len(groups) == 1:
        return {"": groups[0][1]}
    varied = [
        key
        for key in sorted({key for attributes, _ in groups for key in attributes})
        if len({attributes.get(key) for attributes, _ in groups}) > 1
    ]
    images: dict[str, list[_Setup]] = {}
    labels = [
        ", ".join(
            f"{key} {xml.names.get(key, {}).get(attributes[key], attributes[key])}"
            for key in varied
            if key in attributes
        )
        for attributes, _ in groups
    ]
    for label, (_, members) in zip(labels, groups, strict=True):
        own = f"setup{'s' if len(members) > 1 else ''} {', '.join(str(s.number) for s in members)}"
        images[label if label and labels.count(label) == 1 else own] = members
    return images


def _channel_number(setup: _Setup, xml: BdvXml) -> int:
    attributes = dict(xml.setups.get(setup.number, Setup()).attributes)
    return attributes.get("channel", setup.number)


def _channels(setups: list[_Setup], xml: BdvXml, path: str) -> list[ChannelSpec]:
    """Names from the channel, if it has one that is not just its number, else from the setup."""
    display = read_display(path)
    channels = []
    for setup in setups:
        number = _channel_number(setup, xml)
        entity = xml.names.get("channel", {}).get(number, "")
        name = xml.setups.get(setup.number, Setup()).name
        plain = entity if entity and not entity.isdigit() else ""
        color, limits = display.get(setup.number, (None, None))
        channels.append(
            ChannelSpec(
                name=plain or name or f"Channel {entity or number}",
                color=color,
                contrast_limits=limits,
            )
        )
    return channels


def _time_axis(times: dict[int, str], xml: BdvXml, path: str) -> tuple[int, ...]:
    """Numbers of the time points: those of the xml, as far as the file goes."""
    if xml.times is None:
        return series(times)
    last = max(times)
    later = sum(t > last for t in xml.times)
    if later:
        warn(
            path,
            f"{xml.name} speaks of {len(xml.times)} time points, the file ends {later} earlier: "
            "using those up to there.",
        )
    return tuple(sorted(set(times) | {t for t in xml.times if t < last}))


def _dataset(h5: h5py.File, time: str | None, setup: _Setup, level: str, path: str) -> str | None:
    if time is None:
        return None
    name = f"{time}/{setup.name}/{level}/cells"
    there = has_dataset(h5, name, file=path, subject=f"{time}, setup {setup.number}, level {level}")
    return f"/{name}" if there else None


def _place(
    setups: list[_Setup], axis: tuple[int, ...], xml: BdvXml, path: str
) -> tuple[Triple, Triple]:
    """Voxel size and position of the first view; (z, y, x)."""
    number = setups[0].number
    voxel = xml.setups.get(number, Setup()).voxel
    views = [
        transform
        for t in axis
        for s in setups
        if (transform := xml.transforms.get((t, s.number))) is not None
    ]
    found = placed(views[0], voxel) if views else None
    if views and found is None:
        warn(
            path,
            f"{xml.name} rotates or shears setup {number}: the image is shown along its own axes, "
            "at 0.",
        )
    elif any(not np.allclose(view, views[0]) for view in views):
        warn(
            path,
            f"{xml.name} places the views of this image differently: using the first one's place.",
        )
    if found is None and voxel is None and xml.name:
        warn(path, f"{xml.name} gives setup {number} no voxel size: using 1.")
    return found or (voxel or (1.0, 1.0, 1.0), (0.0, 0.0, 0.0))
