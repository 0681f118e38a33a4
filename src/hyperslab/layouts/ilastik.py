"""ilastik: a dataset anywhere in the file whose attribute `axistags` says what its axes are.

`axistags` is JSON: for every axis of the dataset a key ("x", "y", "z", "t", "c") and a resolution,
0 if unknown. `axis_units` is JSON as well, unit by key; `drange` the range of values;
`display_mode` how they are meant: "grayscale", "rgba", "random-colortable", "binary-mask".

Source of the format facts: VIGRA's AxisTags, and ilastik's writer.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from hyperslab.errors import LayoutError
from hyperslab.layouts.axes import Axis, axis_letters, tidy_unit
from hyperslab.layouts.items import number, numbers, read_text, warn
from hyperslab.layouts.links import child, list_contents
from hyperslab.layouts.single import describe_single, is_image, objects_below
from hyperslab.layouts.spec import ChannelSpec, ImageSpec

if TYPE_CHECKING:
    import h5py

__all__ = ["describe", "images", "matches"]

_DEPTH, _MOST = 5, 500  # how far to look for datasets
_UNTAGGED = {2: "yx", 3: "zyx", 4: "zyxc", 5: "tzyxc"}  # what ilastik takes data for
_LABELS = ("random-colortable", "binary-mask")
_RGB = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


def matches(h5: h5py.File) -> bool:
    """Whether some dataset has axistags."""
    return any(tagged for _, tagged in _find(h5))


def images(h5: h5py.File) -> tuple[str, ...]:
    """Paths of the datasets with axistags; of all that can be images, if none has any."""
    found = _find(h5)
    tagged = tuple(path for path, has_tags in found if has_tags)
    return tagged or tuple(path for path, _ in found)


def describe(h5: h5py.File, path: str, image: str) -> ImageSpec:
    """Describe an image; no pixel is read.

    Parameters
    ----------
    h5
        The open file. No reference to it is kept.
    path
        Its path, for messages and for the result.
    image
        Path of the dataset.

    Returns
    -------
    ImageSpec
        One level. Axes in the order TCZYX, whatever their order in the file; others before them.

    Raises
    ------
    LayoutError
        If there is no such dataset.

    Warns
    -----
    MetadataWarning
        If `axistags` are missing or do not fit the dataset, with the axes that are used instead; if
        a resolution, unit or range makes no sense.
    """
    dataset = child(h5, image)
    if not is_image(dataset):
        raise LayoutError(
            f"{path}: there is no image {image!r}. The file holds: {list_contents(h5)}.", file=path
        )
    tags = _tags(dataset, path)
    letters = axis_letters([str(tag["key"]) for tag in tags])
    units = _units(dataset, path)
    axes = []
    for tag, letter in zip(tags, letters, strict=True):
        size = number(str(tag.get("resolution") or 0))
        if size is None or size < 0:
            warn(
                path,
                f"axistags of {image} give axis {tag['key']} the resolution {tag['resolution']!r}: "
                "using 1 without a unit.",
            )
        known = size is not None and size > 0
        unit = units.get(str(tag["key"])) if known and letter != "C" else None
        axes.append(Axis(letter=letter, scale=float(size or 1) if known else 1.0, unit=unit or ""))
    mode = read_text(dataset, "display_mode")
    count = dataset.shape[letters.index("C")] if "C" in letters else 1
    limits = _limits(dataset, path)
    colors = _RGB if mode == "rgba" and count in (3, 4) else ()
    return describe_single(
        dataset,
        axes,
        layout="ilastik",
        file=path,
        name=image,
        path=f"/{image}",
        channels=[
            ChannelSpec(
                name=f"Channel {c}",
                color=colors[c] if c < len(colors) else None,
                contrast_limits=limits,
            )
            for c in range(count)
        ],
        labels=mode in _LABELS,
    )


def _find(h5: h5py.File) -> list[tuple[str, bool]]:
    """Paths of datasets that can be images, and whether they have axistags."""
    return [
        (path, read_text(item, "axistags") is not None)
        for path, item in objects_below(h5, depth=_DEPTH, most=_MOST)
        if is_image(item)
    ]


def _tags(dataset: h5py.Dataset, path: str) -> list[dict[str, Any]]:
    """One mapping with a "key" for every axis of the dataset."""
    said = read_text(dataset, "axistags")
    try:
        found = json.loads(said or "")["axes"]
        if len(found) == dataset.ndim and all(
            isinstance(tag, dict) and isinstance(tag.get("key"), str) for tag in found
        ):
            return list(found)
    except (KeyError, TypeError, ValueError):
        pass  # told below, as for tags that do not fit
    default = _UNTAGGED.get(dataset.ndim, "?" * dataset.ndim)
    letters = axis_letters(["" if key == "?" else key for key in default])
    problem = "has no axistags" if said is None else f"has axistags that do not fit {dataset.shape}"
    warn(path, f"{dataset.name} {problem}: taking its axes for {letters}.")
    return [{"key": letter.lower()} for letter in letters]


def _units(dataset: h5py.Dataset, path: str) -> dict[str, str]:
    said = read_text(dataset, "axis_units")
    if said is None:
        return {}
    try:
        found = json.loads(said)
        return {str(key): tidy_unit(unit) for key, unit in found.items() if isinstance(unit, str)}
    except (AttributeError, ValueError):
        warn(path, f"{dataset.name} has axis_units = {said!r}, which is no JSON: using no units.")
        return {}


def _limits(dataset: h5py.Dataset, path: str) -> tuple[float, float] | None:
    said = read_text(dataset, "drange")
    values = numbers(said)
    if said is None:
        return None
    if values is None or len(values) != 2 or not values[0] < values[1] < math.inf:
        warn(path, f"{dataset.name} has drange = {said!r}, which is no range: using none.")
        return None
    return values[0], values[1]
