"""BigDataViewer files: HDF5 with one volume for each time point, setup and level, and its xml."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from hyperslab.testing.cells import draw_cells
from hyperslab.testing.pyramid import Size, clip_chunks, halve, level_sizes

__all__ = ["BdvFacts", "make_bdv"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BdvFacts:
    """What a reader should find in a file that `make_bdv` wrote.

    Attributes
    ----------
    path, xml_path
        The file, and its xml; None if there is none.
    shape
        (T, C, Z, Y, X) of every angle.
    level_sizes
        (Z, Y, X) of every level, finest first.
    dtype
        NumPy name of the type that pixels mean.
    voxel, position
        (z, y, x) in `unit`: size of a voxel, and centre of the first one.
    unit
        As in the xml.
    channel_names
        One per channel.
    setups
        (angle, channel) to the number of the setup.
    missing
        (time point, setup) without datasets.
    """

    path: str
    xml_path: str | None
    shape: tuple[int, int, int, int, int]
    level_sizes: tuple[Size, ...]
    dtype: str
    voxel: tuple[float, float, float]
    position: tuple[float, float, float]
    unit: str
    channel_names: tuple[str, ...]
    setups: dict[tuple[int, int], int]
    missing: frozenset[tuple[int, int]]


def make_bdv(
    path: str | os.PathLike[str],
    *,
    shape: tuple[int, int, int, int, int] = (2, 2, 5, 70, 90),
    angles: int = 1,
    dtype: npt.DTypeLike = "uint16",
    state_type: bool = False,
    chunks: Size = (4, 32, 32),
    levels: int | Sequence[Size] = 2,
    compression: str | int | None = "gzip",
    scaleoffset: int | None = None,
    voxel: tuple[float, float, float] = (2.0, 0.25, 0.25),
    position: tuple[float, float, float] = (0.0, 0.0, 0.0),
    unit: str = "micrometer",
    channel_names: Sequence[str] | None = None,
    xml: bool = True,
    times: Sequence[int] | None = None,
    missing: Collection[tuple[int, int]] = (),
    data: Callable[[int, int], npt.NDArray[Any]] | None = None,
    seed: int = 0,
) -> BdvFacts:
    """Write a 5-D image as a BigDataViewer file.

    Parameters
    ----------
    path
        File to write; one that exists is replaced, and so is the xml beside it.
    shape
        (T, C, Z, Y, X).
    angles
        Write the image once for every angle.
    dtype
        What pixels mean. uint16 is stored as int16, with the same bytes.
    state_type
        Say the type in the attribute `dataType`; unsigned types are then stored as they are.
    chunks, compression, scaleoffset
        As for `h5py.Group.create_dataset`.
    levels
        How many resolution levels, or the (Z, Y, X) of each.
    voxel, position
        (z, y, x) in `unit`: size of a voxel, and centre of the first one; `position` is written
        into the transforms.
    unit
        Of both.
    channel_names
        One per channel.
    xml
        Write the xml file.
    times
        Number of each time point; by default from 0.
    missing
        (time point, setup) to leave out; the xml lists them.
    data
        Function of (t, setup) that gives (Z, Y, X); by default `draw_cells`.
    seed
        For `draw_cells`.

    Returns
    -------
    BdvFacts
    """
    import h5py

    n_t, n_c, *zyx = shape
    size: Size = (zyx[0], zyx[1], zyx[2])
    sizes = level_sizes(size, levels, chunks)
    meant = np.dtype(dtype)
    stored = np.dtype("int16") if meant == np.uint16 and not state_type else meant
    setups = {
        key: number for number, key in enumerate(itertools.product(range(angles), range(n_c)))
    }
    numbers = list(times or range(n_t))
    names = list(channel_names or ("GFP", "Cherry", *(f"Dye {c}" for c in range(2, n_c))))[:n_c]
    target = os.fspath(path)
    with h5py.File(target, "w") as h5:
        for number in setups.values():
            group = h5.create_group(f"s{number:02d}")
            factors = [[size[i] / level[i] for i in (2, 1, 0)] for level in sizes]
            group["resolutions"] = np.round(factors)
            group["subdivisions"] = np.array([chunks[::-1]] * len(sizes), np.int32)
            if state_type:
                group.attrs["dataType"] = np.bytes_(meant.name)
        for t, ((_, c), number) in itertools.product(range(n_t), setups.items()):
            if (numbers[t], number) in missing:
                continue
            volume = (
                draw_cells(size, t=t, c=c, dtype=meant, seed=seed + number)
                if data is None
                else data(t, number)
            )
            for level, level_size in enumerate(sizes):
                volume = halve(volume, level_size)
                h5.create_dataset(
                    f"t{numbers[t]:05d}/s{number:02d}/{level}/cells",
                    data=volume.view(stored),
                    chunks=clip_chunks(chunks, level_size),
                    compression=compression,
                    scaleoffset=scaleoffset,
                )
    facts = BdvFacts(
        path=target,
        xml_path=os.path.splitext(target)[0] + ".xml" if xml else None,
        shape=shape,
        level_sizes=tuple(sizes),
        dtype=meant.name,
        voxel=voxel,
        position=position,
        unit=unit,
        channel_names=tuple(names),
        setups=setups,
        missing=frozenset(missing),
    )
    if facts.xml_path is not None:
        _write_xml(facts, facts.xml_path, numbers)
    return facts


def _write_xml(facts: BdvFacts, path: str, times: Sequence[int]) -> None:
    def put(parent: ElementTree.Element, tag: str, text: object = None) -> ElementTree.Element:
        item = ElementTree.SubElement(parent, tag)
        item.text = None if text is None else str(text)
        return item

    def joined(values: Sequence[float]) -> str:
        return " ".join(map(repr, values))

    root = ElementTree.Element("SpimData", version="0.2")
    put(root, "BasePath", ".").set("type", "relative")
    sequence = put(root, "SequenceDescription")
    loader = put(sequence, "ImageLoader")
    loader.set("format", "bdv.hdf5")
    put(loader, "hdf5", os.path.basename(facts.path)).set("type", "relative")
    setups = put(sequence, "ViewSetups")
    for (angle, channel), number in facts.setups.items():
        setup = put(setups, "ViewSetup")
        put(setup, "id", number)
        put(setup, "size", joined(facts.shape[:1:-1]))
        voxel = put(setup, "voxelSize")
        put(voxel, "unit", facts.unit)
        put(voxel, "size", joined(facts.voxel[::-1]))
        attributes = put(setup, "attributes")
        put(attributes, "channel", channel)
        put(attributes, "angle", angle)
    for kind, tag, names in (
        ("channel", "Channel", dict(enumerate(facts.channel_names))),
        ("angle", "Angle", {angle: str(90 * angle) for angle, _ in facts.setups}),
    ):
        group = put(setups, "Attributes")
        group.set("name", kind)
        for n, name in names.items():
            entry = put(group, tag)
            put(entry, "id", n)
            put(entry, "name", name)
    series = put(sequence, "Timepoints")
    series.set("type", "pattern")
    put(series, "integerpattern", ", ".join(map(str, times)))
    gaps = put(sequence, "MissingViews")
    for t, number in sorted(facts.missing):
        gap = put(gaps, "MissingView")
        gap.set("timepoint", str(t))
        gap.set("setup", str(number))
    views = put(root, "ViewRegistrations")
    for t, number in itertools.product(times, facts.setups.values()):
        view = put(views, "ViewRegistration")
        view.set("timepoint", str(t))
        view.set("setup", str(number))
        rows = np.hstack([np.diag(facts.voxel[::-1]), np.array(facts.position[::-1])[:, None]])
        step = put(view, "ViewTransform")
        step.set("type", "affine")
        put(step, "affine", joined(rows.ravel().tolist()))
    ElementTree.indent(root)
    ElementTree.ElementTree(root).write(path, encoding="UTF-8", xml_declaration=True)
