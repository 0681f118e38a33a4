"""What a file is as a whole: images, a cohort of paired volumes, or neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from hyperslab.cli.listing import Node, shape_words
from hyperslab.cli.terminal import size
from hyperslab.errors import HyperslabError
from hyperslab.image import Image, list_images, open_image
from hyperslab.index.session import session
from hyperslab.layouts import recognise

__all__ = ["LayoutFacts", "describe_layout", "layout_lines"]

_MOST_IMAGES = 4  # that are described to people in full
_MOST_NAMES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFacts:
    """What was recognised.

    Attributes
    ----------
    name
        Of an image layout, or "paired cohort"; "" for neither.
    images
        The images, where there are any.
    facts
        As JSON can hold it.
    problem
        Why the images cannot be described, though the file follows the layout.
    """

    name: str = ""
    images: tuple[Image, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def describe_layout(
    path: str, root: Node, *, layout: str, axes: str | None, image: str | int | None
) -> LayoutFacts:
    """Recognise the layout of the file at `path`, whose objects are below `root`.

    `layout`, `axes` and `image` as for `hyperslab.open_image`; without `image`, all are described.
    """
    name = None
    try:
        if layout == "auto":
            with session(path) as h5:
                names = recognise(h5)
            # Volumes with labelled axes are images each, and as a whole more than that.
            if not names or (names == ["labelled"] and image is None):
                cohort = _cohort(root)
                if cohort.name or not names:
                    return cohort
            name = ", ".join(names)
        else:
            name = layout
        wanted: Sequence[str | int]
        if image is not None:
            wanted = [image]
        else:
            wanted = range(len(list_images(path, layout))) if axes is None else [0]
        images = tuple(open_image(path, layout, axes=axes, image=each) for each in wanted)
    except (HyperslabError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        # What h5py raises about a damaged file is as much of an answer as our own errors.
        return LayoutFacts(
            name=name or "",
            facts={"name": name} if name else {},
            problem=str(error).removeprefix(f"{path}: "),
        )
    if len(images) == 1:
        return LayoutFacts(name=name, images=images, facts=_image_facts(images[0]))
    several = {"name": name, "images": [_image_facts(each) for each in images]}
    return LayoutFacts(name=name, images=images, facts=several)


def _image_facts(image: Image) -> dict[str, Any]:
    return {
        "name": image.layout,
        "image": image.name,
        "axes": image.axes,
        "shape": image.shape,
        "dtype": image.dtype.name,
        "nbytes": image.nbytes,
        "levels": [
            {"shape": level.shape, "datasets_missing": level.datasets.count(None)}
            for level in image.spec.levels
        ],
        "computed_levels": [level.shape for level in image.levels if level.computed],
        "scale": image.scale,
        "translation": image.translation,
        "units": image.units,
        "channels": [
            {"name": c.name, "color": c.color, "contrast_limits": c.contrast_limits}
            for c in image.channels
        ],
        "timestamps": [t.isoformat() for t in image.timestamps] if image.timestamps else None,
    }


def _cohort(root: Node) -> LayoutFacts:
    """Recognise groups at the top whose 3-D datasets pair up by name and shape."""
    inputs: dict[str, dict[str, tuple[int, ...]]] = {}
    for group in root.members:
        held: dict[str, tuple[int, ...]] = {}
        for member in group.members:
            facts = member.entry.facts
            if facts is not None and facts.numeric and facts.shape and len(facts.shape) == 3:
                held[member.name] = facts.shape
        if held:
            inputs[group.name] = held
    if len(inputs) < 2:
        return LayoutFacts()
    every = set[str]().union(*inputs.values())
    paired = {case for case in every if len({shapes.get(case) for shapes in inputs.values()}) == 1}
    if len(paired) < 2 or len(paired) < len(every) / 2:
        return LayoutFacts()
    return LayoutFacts(
        name="paired cohort",
        facts={
            "name": "paired cohort",
            "inputs": {name: len(held) for name, held in inputs.items()},
            "cases": len(every),
            "cases_paired": len(paired),
        },
    )


def layout_lines(layout: LayoutFacts) -> list[tuple[str, Text]]:
    """Return the layout for people: labels and what stands beside them."""
    if layout.images:
        first, *more = layout.images
        lines = _image_lines(first)
        if more:
            lines[0] = ("layout", Text(f"{first.layout}: {len(layout.images)} images"))
            lines.insert(1, ("", Text(f"“{first.name}”", "bold")))
        for each in more[: _MOST_IMAGES - 1]:
            lines += [("", Text(f"“{each.name}”", "bold")), *_image_lines(each)[1:]]
        if len(more) >= _MOST_IMAGES:
            rest = ", ".join(each.name for each in more[_MOST_IMAGES - 1 :][:_MOST_NAMES])
            dots = ", ..." if len(more) - _MOST_IMAGES + 1 > _MOST_NAMES else ""
            lines.append(("", Text(f"and {len(more) - _MOST_IMAGES + 1} more: {rest}{dots}")))
        return lines
    if layout.problem:
        line = f"{layout.name or 'unknown'}: see the problem below"
        return [("layout", Text(line, "yellow"))]
    if not layout.name:
        return [("layout", Text("none that is known", "dim"))]
    facts = layout.facts
    groups = ", ".join(facts["inputs"])
    line = f"paired cohort: {groups} hold {facts['cases']} cases"
    apart = facts["cases"] - facts["cases_paired"]
    if apart:
        line += f", of which {apart} are not in all of them with one shape"
    return [("layout", Text(line))]


def _image_lines(image: Image) -> list[tuple[str, Text]]:
    sizes = " ".join(f"{axis}={n}" for axis, n in zip(image.axes, image.shape, strict=True))
    held = size(image.nbytes)
    title = f"{image.layout} image" + (f" “{image.name}”" if image.name else "")
    lines = [
        ("layout", Text(title)),
        ("labels" if image.spec.labels else "image", Text(f"{sizes}, {image.dtype}, {held}")),
    ]
    n_outer = image.spec.n_outer
    shapes = ", ".join(shape_words([level.shape[n_outer:]]) for level in image.levels)
    n_computed = sum(level.computed for level in image.levels)
    computed = f" (the last {n_computed} computed when read)" if n_computed else ""
    lines.append(("levels", Text(f"{len(image.levels)}: {shapes}{computed}")))
    space = [i for i, axis in enumerate(image.axes) if axis in "ZYX"]
    units = {image.units[i] for i in space}
    if units != {""}:
        pixel = " × ".join(f"{image.scale[i]:.4g}" for i in space)
        unit = " ".join(units).replace("um", "µm")
        lines.append(("pixel", Text(f"{pixel} {unit} ({', '.join(image.axes[i] for i in space)})")))
    if "C" in image.axes:
        lines.append(("channels", _channels(image)))
    if image.timestamps:
        first, last = image.timestamps[0], image.timestamps[-1]
        line = f"{len(image.timestamps)} from {first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S}"
        lines.append(("times", Text(line)))
    return lines


def _channels(image: Image) -> Text:
    line = Text()
    for channel in image.channels:
        if line:
            line.append("   ")
        if channel.color is not None:
            red, green, blue = (round(255 * c) for c in channel.color)
            line.append("■ ", f"rgb({red},{green},{blue})")
        line.append(channel.name)
        if channel.contrast_limits is not None:
            low, high = channel.contrast_limits
            line.append(f" {low:g} to {high:g}", "dim")
    return line
