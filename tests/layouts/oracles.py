"""What real files say of their images, found out by h5py alone: an oracle for each convention.

Nothing here uses the library's layouts. An oracle knows only files that are sound, so it can be
short: it takes what the convention says and checks nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import h5py
import numpy as np
from numpy.typing import NDArray

__all__ = ["Expected", "Oracle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One image, axes in the order in which it should come.

    Attributes
    ----------
    scale, translation, units
        By letter, for axes that have more than size 1, position 0 and no unit.
    channels
        Names; None where the file gives none: then "Channel 0" and so on.
    plane
        Pixels of a level at an index of all axes but the last two.
    """

    axes: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    scale: dict[str, float]
    translation: dict[str, float]
    units: dict[str, str]
    plane: Callable[[h5py.File, int, tuple[int, ...]], NDArray[Any]]
    channels: tuple[str, ...] | None = None
    colors: tuple[tuple[float, ...] | None, ...] | None = None
    labels: bool = False


Oracle = Callable[[h5py.File, Path], dict[str, Expected]]


def text(item: Any, name: str) -> str:
    """Text of an attribute, whatever its type; "" where there is none."""
    value = item.attrs.get(name, "")
    value = value.tobytes() if isinstance(value, np.ndarray) and value.dtype.kind == "S" else value
    value = value.ravel()[0] if isinstance(value, np.ndarray) else value
    return (value.decode("latin-1") if isinstance(value, bytes) else str(value)).rstrip("\0")


def plain(unit: str) -> str:
    """Units as people write them."""
    unit = unit.strip("[]").replace("_", "").replace("\u03bc", "u").replace("\xce\xbc", "u")
    return {"pixels": "pixel", "<undefined>": "", "degrees": "deg"}.get(unit, unit)


def walk(group: h5py.Group, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Path and object of everything that hard links lead to, and that h5py has a class for."""
    for name in group:
        if isinstance(group.get(name, getlink=True), h5py.HardLink):
            item = group.get(name)
            if item is None:
                continue
            yield prefix + name, item
            if isinstance(item, h5py.Group):
                yield from walk(item, f"{prefix}{name}/")


def step(values: NDArray[Any]) -> tuple[float, float] | None:
    """Step and first value of a vector that rises or falls evenly; None if it does not."""
    values = np.atleast_1d(values).astype(np.float64)
    if len(values) == 1:
        return 1.0, float(values[0])
    steps = np.diff(values)
    even = np.allclose(steps, steps.mean(), rtol=0.01, atol=0) and steps.mean() != 0
    return ((values[-1] - values[0]) / len(steps), float(values[0])) if even else None


def single(
    dataset: h5py.Dataset,
    letters: str,
    positions: dict[str, tuple[float, float, str]],
    *,
    name: str | None = None,
    channels: Sequence[str] | None = None,
    colors: Sequence[tuple[float, ...]] | None = None,
    labels: bool = False,
) -> Expected:
    """An image that is one dataset.

    `letters` are those of the dataset's axes, in its own order; `positions` gives step, first
    position and unit by letter. `name` is the way to it, where that is not its own name.
    """
    others = [letter for letter in letters if letter not in "TCZYX"]
    axes = "".join([*others, *(letter for letter in "TCZYX" if letter in letters)])
    way = name or dataset.name

    def plane(h5: h5py.File, level: int, lead: tuple[int, ...]) -> NDArray[Any]:
        assert level == 0
        at = dict(zip(axes, lead, strict=False))
        found = h5[way][tuple(at.get(letter, slice(None)) for letter in letters)]
        in_file = [letter for letter in letters if letter not in at]
        return np.asarray(found if in_file == list(axes[-2:]) else found.T)

    return Expected(
        axes=axes,
        shapes=(tuple(dataset.shape[letters.index(letter)] for letter in axes),),
        dtype=dataset.dtype.newbyteorder("=").name,
        scale={letter: at[0] for letter, at in positions.items()},
        translation={letter: at[1] for letter, at in positions.items()},
        units={letter: at[2] for letter, at in positions.items()},
        plane=plane,
        channels=None if channels is None else tuple(channels),
        colors=None if colors is None else tuple(colors),
        labels=labels,
    )


# --- volumes for each time point and channel -----------------------------------------------------


def imaris(h5: h5py.File, path: Path) -> dict[str, Expected]:
    def numbered(group: h5py.Group, stem: str) -> list[str]:
        return sorted((n for n in group if n.startswith(stem)), key=lambda n: int(n.split()[-1]))

    info, top = h5[text(h5, "DataSetInfoDirectoryName")], h5[text(h5, "DataSetDirectoryName")]
    facts = info["Image"]
    levels = [top[name] for name in numbered(top, "ResolutionLevel")]
    times = numbered(levels[0], "TimePoint")
    channels = numbered(levels[0][times[0]], "Channel")
    shapes = []
    for level in levels:
        said = level[times[0]][channels[0]]
        sizes = (int(text(said, f"ImageSize{axis}")) for axis in "ZYX")
        shapes.append((len(times), len(channels), *sizes))
    scale, translation, units = {}, {}, {}
    for i, axis in enumerate("XYZ"):
        low, high = (Fraction(text(facts, f"Ext{end}{i}")) for end in ("Min", "Max"))
        size = (high - low) / shapes[0][-1 - i]
        scale[axis], translation[axis] = float(size), float(low + size / 2)
        units[axis] = text(facts, "Unit") or "um"
    sections = [info.get(name) for name in channels]
    root = top.name

    def plane(h5: h5py.File, level: int, lead: tuple[int, ...]) -> NDArray[Any]:
        t, c, z = lead
        way = f"{root}/ResolutionLevel {level}/{times[t]}/{channels[c]}/Data"
        return np.asarray(h5[way][z, : shapes[level][-2], : shapes[level][-1]])

    expected = Expected(
        axes="TCZYX",
        shapes=tuple(shapes),
        dtype=levels[0][times[0]][channels[0]]["Data"].dtype.name,
        scale=scale,
        translation=translation,
        units=units,
        plane=plane,
        channels=tuple(
            name if section is None else text(section, "Name")
            for section, name in zip(sections, channels, strict=True)
        ),
        colors=tuple(
            None if section is None else tuple(map(float, text(section, "Color").split()))
            for section in sections
        ),
    )
    return {"": expected}


def bdv(h5: h5py.File, path: Path) -> dict[str, Expected]:
    root = ElementTree.parse(path.with_suffix(".xml")).getroot()
    (setup,) = root.iter("ViewSetup")
    number = int(setup.findtext("id") or "")
    name, times = f"s{number:02d}", sorted(n for n in h5 if n.startswith("t"))
    first = h5[times[0]][name]
    assert len(first) == len(h5[name]["resolutions"])
    sizes = [first[str(level)]["cells"].shape for level in range(len(first))]
    # Positions: all affine maps of the first view, from the last to the first, of voxel (0, 0, 0)
    # and of its three neighbours.
    view = next(v for v in root.iter("ViewRegistration") if v.get("setup") == str(number))
    points = np.vstack([np.zeros(3), np.eye(3)])
    for item in reversed(view.findall("ViewTransform/affine")):
        affine = np.array((item.text or "").split(), float).reshape(3, 4)
        points = points @ affine[:, :3].T + affine[:, 3]
    voxel = [float(v) for v in (setup.findtext("voxelSize/size") or "").split()]
    np.testing.assert_allclose(points[1:] - points[0], np.diag(voxel))
    entity = root.find(f".//Channel[id='{setup.findtext('attributes/channel')}']/name")
    channel = (entity.text if entity is not None else None) or ""
    if channel.isdigit():  # a number is no name
        channel = setup.findtext("name") or f"Channel {channel}"

    def plane(h5: h5py.File, level: int, lead: tuple[int, ...]) -> NDArray[Any]:
        t, _, z = lead
        return np.asarray(h5[f"{times[t]}/{name}/{level}/cells"][z]).view(np.uint16)

    expected = Expected(
        axes="TCZYX",
        shapes=tuple((len(times), 1, *size) for size in sizes),
        dtype="uint16",
        scale=dict(zip("XYZ", voxel, strict=True)),
        translation=dict(zip("XYZ", points[0], strict=True)),
        units=dict.fromkeys("XYZ", (setup.findtext("voxelSize/unit") or "").strip()),
        plane=plane,
        channels=(channel,),
    )
    return {"": expected}


# --- one dataset each ----------------------------------------------------------------------------


def ilastik(h5: h5py.File, path: Path) -> dict[str, Expected]:
    found = {}
    for name, item in walk(h5):
        if "axistags" in item.attrs:
            tags = json.loads(text(item, "axistags"))["axes"]
            sizes = {t["key"].upper(): float(t["resolution"]) or 1.0 for t in tags}
            letters = "".join(sizes)
            found[name] = single(item, letters, {k: (v, 0.0, "") for k, v in sizes.items()})
    return found


def ilastik_untagged(h5: h5py.File, path: Path) -> dict[str, Expected]:
    """As ilastik itself takes five axes for, where nothing says what they are."""
    return {name: single(item, "TZYXC", {}) for name, item in h5.items()}


def unet(h5: h5py.File, path: Path) -> dict[str, Expected]:
    found = {}
    for name in ("raw", "label"):
        if name not in h5:
            continue
        letters = "ZYX"[-h5[name].ndim :]
        if name == "raw" and h5[name].ndim > h5["label"].ndim:
            letters = "C" + "YX"
        sizes = h5[name].attrs.get("element_size_um")
        known = {} if sizes is None else dict(zip("ZYX", sizes.tolist(), strict=True))
        at = {k: (v, 0.0, "um") for k, v in known.items() if k in letters}
        found[name] = single(h5[name], letters, at, labels=name == "label")
    return found


def labelled(h5: h5py.File, path: Path) -> dict[str, Expected]:
    found = {}
    for name, item in walk(h5):
        if "DIMENSION_LABELS" not in item.attrs:
            continue
        letters = "".join(axis.label for axis in item.dims).upper()
        sizes = item.attrs.get("element_size_um")
        known = {} if sizes is None else dict(zip("ZYX", sizes.tolist(), strict=True))
        at = {letter: (size, 0.0, "um") for letter, size in known.items()}
        for letter, axis in zip(letters, item.dims, strict=True):
            if len(axis):
                at[letter] = (*(step(axis[0][()]) or (1.0, 0.0)), "")
        found[name] = single(item, letters, at)
    return found


def minc2(h5: h5py.File, path: Path) -> dict[str, Expected]:
    data = h5["minc-2.0/image/0/image"]
    names = text(data, "dimorder").split(",")
    letters = "".join("C" if n == "vector_dimension" else n[0].upper() for n in names)
    at = {}
    for name, letter in zip(names, letters, strict=True):
        said = h5["minc-2.0/dimensions"][name].attrs
        if letter != "C":
            unit = text(h5["minc-2.0/dimensions"][name], "units") or ("s", "mm")[letter in "ZYX"]
            at[letter] = (float(said["step"]), float(said["start"]), unit)
    return {"": single(data, letters, at)}


def emd(h5: h5py.File, path: Path) -> dict[str, Expected]:
    found = {}
    for name, group in walk(h5):
        if text(group, "emd_group_type") not in ("1", "array"):
            continue
        (data,) = (
            item
            for key, item in group.items()
            if isinstance(item, h5py.Dataset) and not key.startswith("dim") and item.ndim > 1
        )
        start = 0 if "dim0" in group else 1
        dims = [group[f"dim{start + i}"] for i in range(data.ndim)]
        names = [text(dim, "name") for dim in dims]
        if any(dim.dtype.kind in "SO" for dim in dims):
            names[[dim.dtype.kind in "SO" for dim in dims].index(True)] = "channels"
        letters = _emd_letters(names)
        at, channels = {}, None
        for letter, dim, size in zip(letters, dims, data.shape, strict=True):
            if letter == "C":
                channels = [value.decode() for value in dim[()]]
            elif dim.size in (2, size) and (known := step(dim[()])) is not None:
                at[letter] = (*known, plain(text(dim, "units")))
        found[name] = single(data, letters, at, channels=channels)
    return found


def _emd_letters(names: list[str]) -> str:
    """Letters for the names that the writers of these files give."""
    short = [re.sub("[^a-z]", "", name.lower()) for name in names]
    if short[:2] == ["rx", "ry"]:  # where the beam was; and where in its diffraction pattern
        return {"rx ry": "XY", "rx ry qx qy": "RSXY"}.get(" ".join(short)) or "XY" + {
            "binouterangle": "A", "z": "Z", "rz": "Z", "channels": "C",
        }[short[2]]  # fmt: skip
    return "ZYX"[-len(names) :]


def velox(h5: h5py.File, path: Path) -> dict[str, Expected]:
    labels = {}
    for item in h5["Presentation/Displays/ImageDisplay"].values():
        said = json.loads(item[0])
        labels[said["dataPath"]] = unquote(said["display"]["label"])
    found = {}
    for name, group in h5["Data/Image"].items():
        if group["Data"].dtype.names is None:  # else a Fourier transform
            raw = group["Metadata"][:, 0].tobytes().rstrip(b"\0 ")
            facts = json.loads(raw)["BinaryResult"]
            at = {
                axis: (
                    float(facts["PixelSize"][side]),
                    float(facts["Offset"][axis.lower()]),
                    facts[f"PixelUnit{axis}"],
                )
                for axis, side in (("Y", "height"), ("X", "width"))
            }
            label = labels.get(f"/Data/Image/{name}", facts["Detector"])
            found[name] = single(group["Data"], "YXT", at, channels=[label])
    return found


def hyperspy(h5: h5py.File, path: Path) -> dict[str, Expected]:
    found = {}
    for name, group in h5["Experiments"].items():
        data = group["data"]
        letters = "TZYX"[-data.ndim :]
        at = {}
        for i, letter in enumerate(letters):
            said = group[f"axis-{i}"].attrs
            unit = plain(text(group[f"axis-{i}"], "units"))
            at[letter] = (float(said["scale"]), float(said["offset"]), unit)
        found[name] = single(data, letters, at)
    return found


def matlab(h5: h5py.File, path: Path) -> dict[str, Expected]:
    integers = {f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)}
    numeric = {"double", "single", "logical", *integers}
    arrays = {
        name: item
        for name, item in walk(h5)
        if not name.startswith("#")
        and text(item, "MATLAB_class") in numeric
        and not text(item, "MATLAB_empty")
        and isinstance(item, h5py.Dataset)
        and item.dtype.kind in "iuf"
        and min(item.shape[-2:]) > 1  # a size of MATLAB's, its first two axes
    }
    largest = max(min(item.shape[-2:]) for item in arrays.values())
    return {
        name: single(item, "TZXY"[-item.ndim :], {}, labels=text(item, "MATLAB_class") == "logical")
        for name, item in arrays.items()
        if largest < 8 or min(item.shape[-2:]) >= 8
    }


def hdf5_image(h5: h5py.File, path: Path) -> dict[str, Expected]:
    rgb = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    found = {}
    for name, item in walk(h5):
        if text(item, "CLASS") != "IMAGE":
            continue
        mode = text(item, "INTERLACE_MODE")
        letters = "".join(axis.label for axis in item.dims)
        if not letters:
            letters = {"INTERLACE_PIXEL": "YXC", "INTERLACE_PLANE": "CYX"}.get(mode, "YX")
        at, bands = {}, None
        for letter, axis in zip(letters, item.dims, strict=True):
            values = axis[0][()] if len(axis) else 0
            if letter != "C" and values > 0:  # a scalar: the size of a pixel
                at[letter] = (float(values), 0.0, text(axis[0], "UNIT"))
            elif letter == "C" and np.ndim(values):
                bands = [f"{value * 1e9:.6g} nm" for value in values]
        beside = item.parent.parent.get("PhysicalData/ChannelDescription")
        names = bands or (None if beside is None else [value.decode() for value in beside[()]])
        if mode.startswith("INTERLACE") and "C" in letters:
            colored = single(item, letters, at, channels=("Red", "Green", "Blue"), colors=rgb)
            found[name] = colored
        else:
            found[name] = single(item, letters, at, channels=names)
    return found


# --- NeXus: what an axis is called says what it is; that takes a person ---------------------------


def nexus(letters: dict[str, str]) -> Oracle:
    """An oracle for NeXus, told the letters of the axes of each signal, by path of its group."""

    def oracle(h5: h5py.File, path: Path) -> dict[str, Expected]:
        return {name: _nexus(h5[name], axes) for name, axes in letters.items()}

    return oracle


def _nexus(group: h5py.Group, letters: str) -> Expected:
    items = {key: item for key in group if (item := group.get(key)) is not None}
    signal = text(group, "signal") or next(
        (key for key, item in items.items() if "signal" in item.attrs), "data"
    )
    data = group[signal]
    said = np.atleast_1d(group.attrs.get("axes", [])).tolist()
    names = [v.decode() if isinstance(v, bytes) else v for v in said]
    numbered = {int(text(v, "axis")): k for k, v in items.items() if "axis" in v.attrs}
    names = names or [numbered.get(i + 1, ".") for i in range(data.ndim)]
    at = {}
    for letter, name in zip(letters, names, strict=False):
        item = items.get(name, items.get(name.removesuffix("_set")))
        if item is not None and (known := step(item[()])) is not None:
            at[letter] = (*known, plain(text(item, "units")))
    return single(data, letters, at, name=f"{group.name}/{signal}")


def indices(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Where to look at planes: the first, the one in the middle, the last."""
    lead = shape[:-2]
    return sorted({tuple(math.floor(part * (n - 1)) for n in lead) for part in (0, 0.5, 1)})
