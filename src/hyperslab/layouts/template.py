"""Plain stacks: datasets at paths that follow a template, such as "t{t}/c{c}/data"."""

from __future__ import annotations

import math
import re
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hyperslab.errors import LayoutError
from hyperslab.layouts.items import numbers, read_text, warn
from hyperslab.layouts.links import child_names, dtype_of, follow, list_contents
from hyperslab.layouts.spec import ChannelSpec, ImageSpec, LevelSpec

if TYPE_CHECKING:
    import h5py

__all__ = ["describe_template"]

_CANONICAL = "TCZYX"
_SPACE = "ZYX"
_WIDTH = re.compile(r"(0?[0-9]*)d?")  # the format specs that make sense for a number in a name
_MOST = 1_000_000  # places in the grid of datasets; keeps a stray number from filling the memory


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One component of the path: literal, or with fields in it."""

    text: str
    pattern: re.Pattern[str] | None  # one group per field, named by its letter; None if literal
    specs: dict[str, str]  # field letter to format spec


class _Found(NamedTuple):
    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def describe_template(
    h5: h5py.File, path: str, template: str, *, axes: str | None = None
) -> ImageSpec:
    """Describe an image that is spread over datasets at numbered paths, or that is one dataset.

    Parameters
    ----------
    h5
        The open file. No reference to it is kept.
    path
        Its path, for messages and for the result.
    template
        Path of the datasets, with a field for every number in it, as in `str.format`:
        "t{t}/c{c}/data", "t{t:05d}/s{c:02d}/0/cells". A field is one letter and stands for the axis
        of that letter; it matches decimal numbers. Without a field, the path of one dataset.
    axes
        Letters of the datasets' own axes, or of all axes of the image, outer ones first. By default
        YX and ZYX for datasets of two and three dimensions.

    Returns
    -------
    ImageSpec
        One level. Axes: those with fields in the order T, C, Z, then others as they stand in the
        template, then the datasets' own. An axis runs from the smallest to the largest number in
        the file, in steps of 1 (or wider ones, if at least three numbers are evenly spaced); a
        dataset that is absent from this grid is None. Sizes in micrometres come from the datasets'
        attribute `element_size_um` (z, y, x), else pixels have size 1 without a unit.

    Raises
    ------
    LayoutError
        If the template cannot be understood, matches nothing, or matches datasets that differ in
        shape or type; if it takes `axes` to know what the axes are.
    MissingSourceError
        If an external link on the way leads nowhere.

    Warns
    -----
    MetadataWarning
        If datasets are missing from the grid, or `element_size_um` makes no sense.

    Notes
    -----
    Lists the groups along the template and opens every dataset once, 60 microseconds each.
    """
    parts = _parse(template)
    fields = list(dict.fromkeys(letter for part in parts for letter in part.specs))
    found = _find(h5, path, parts, fields)
    if not found:
        raise LayoutError(
            f"{path}: no dataset matches {template!r}. The file holds: {list_contents(h5)}.",
            file=path,
        )
    first = next(iter(found.values()))
    _check_alike(path, template, list(found.values()))
    outer, inner = _axes(path, template, fields, first.shape, axes)
    steps = {
        letter: _steps(path, letter, {index[fields.index(letter)] for index in found})
        for letter in outer.lower()
    }
    lengths = [len(steps[letter]) for letter in outer.lower()]
    if math.prod(lengths) > _MOST:
        raise LayoutError(
            f"{path}: the numbers at {template!r} span {' x '.join(map(str, lengths))} datasets, "
            f"of which {len(found)} are there. Choose a template that matches the image only.",
            file=path,
        )
    datasets = []
    for place in np.ndindex(*lengths):
        at = {letter: steps[letter][i] for letter, i in zip(outer.lower(), place, strict=True)}
        match = found.get(tuple(at[letter] for letter in fields))
        datasets.append(match.path if match else None)
    gaps = datasets.count(None)
    if gaps:
        warn(
            path,
            f"{gaps} of the {len(datasets)} datasets that {template!r} spans are missing: they "
            "read as zeros.",
        )
    image_axes = outer + inner
    shape = (*lengths, *first.shape)
    scale, unit = _scale(h5[first.path], image_axes, path)
    in_space = [letter in _SPACE for letter in image_axes]
    channel_numbers = steps.get("c") or range(shape[image_axes.index("C")] if "C" in inner else 1)
    return ImageSpec(
        layout="template",
        file=path,
        name="" if fields else first.path.strip("/"),
        axes=image_axes,
        n_outer=len(outer),
        dtype=first.dtype.newbyteorder("=").name,
        levels=(LevelSpec(shape=shape, datasets=tuple(datasets)),),
        scale=scale,
        translation=(0.0,) * len(shape),
        origin=tuple(-s / 2 if here else 0.0 for s, here in zip(scale, in_space, strict=True)),
        units=tuple(unit if here else "" for here in in_space),
        channels=tuple(ChannelSpec(name=f"Channel {number}") for number in channel_numbers),
    )


def _parse(template: str) -> list[_Part]:
    """Split a template at "/" and make a pattern of every part with fields in it."""
    parts: list[_Part] = []
    literal, pattern = "", ""
    specs: dict[str, str] = {}
    seen: dict[str, str] = {}

    def finish() -> None:
        nonlocal literal, pattern, specs
        if literal or specs:
            compiled = re.compile(pattern) if specs else None
            parts.append(_Part(text=literal, pattern=compiled, specs=specs))
        literal, pattern, specs = "", "", {}

    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as error:
        raise LayoutError(f"the template {template!r} is malformed: {error}.") from None
    for text, field, spec, conversion in pieces:
        for i, piece in enumerate(text.split("/")):
            if i:
                finish()
            literal += piece
            pattern += re.escape(piece)
        if field is None:
            continue
        spec = spec or ""
        if len(field) != 1 or not (field.isascii() and field.isalpha()) or conversion:
            raise LayoutError(
                f"the template {template!r} has the field {{{field}}}; a field is one letter, "
                "such as {t}, {c} or {z}."
            )
        if not _WIDTH.fullmatch(spec):
            raise LayoutError(
                f"the template {template!r} asks for the format {spec!r}; a field stands for a "
                "whole number, such as {t} or {t:05d}."
            )
        letter = field.lower()
        pattern += f"(?P={letter})" if letter in specs else f"(?P<{letter}>[0-9]{{1,18}})"
        if seen.setdefault(letter, spec) != spec:
            raise LayoutError(f"the template {template!r} formats {{{field}}} in two ways.")
        specs[letter] = spec
        literal += f"{{{field}}}"
    finish()
    if not parts:
        raise LayoutError(f"the template {template!r} names no dataset.")
    return parts


def _find(
    h5: h5py.File, path: str, parts: list[_Part], fields: list[str]
) -> dict[tuple[int, ...], _Found]:
    """Datasets that match, by their numbers in the order of `fields`; rising numbers."""
    import h5py

    found: dict[tuple[int, ...], _Found] = {}

    def visit(group: Any, prefix: str, depth: int, at: dict[str, int]) -> None:
        if depth == len(parts):
            if isinstance(group, h5py.Dataset):
                index = tuple(at[letter] for letter in fields)
                if index in found:
                    raise LayoutError(
                        f"{path}: {found[index].path} and {prefix} stand for the same numbers. "
                        "Give the width in the template, such as {t:03d}.",
                        file=path,
                    )
                dtype = dtype_of(group)
                if dtype is None or dtype.kind not in "biufc" or group.shape is None:
                    told = dtype or "that NumPy has not"
                    raise LayoutError(
                        f"{path}: {prefix} has elements of a type {told}, an image has numbers.",
                        file=path,
                        dataset=prefix,
                    )
                found[index] = _Found(prefix, group.shape, dtype)
            return
        if not isinstance(group, h5py.Group):
            return
        part = parts[depth]
        if part.pattern is None:
            matches = [(part.text, at)]
        else:
            matches = [
                (name, at | values)
                for name in child_names(group)
                if (values := _match(part, name, at)) is not None
            ]
        for name, values in matches:
            way = f"{prefix}/{name}"
            below = follow(group, name, file=path, subject=f"the object at {way}")
            if below is None and part.pattern is not None:
                warn(path, f"the link {way} leads nowhere, so it is left out.")
            visit(below, way, depth + 1, values)

    visit(h5, "", 0, {})
    return dict(sorted(found.items()))


def _match(part: _Part, name: str, at: dict[str, int]) -> dict[str, int] | None:
    """Numbers that `name` holds, if it has the form of `part` and agrees with those so far."""
    match = part.pattern.fullmatch(name) if part.pattern else None
    if match is None:
        return None
    values = {letter: int(text) for letter, text in match.groupdict().items()}
    for letter, value in values.items():
        spec = part.specs[letter]
        if at.get(letter, value) != value or (spec and format(value, spec) != match[letter]):
            return None
    return values


def _steps(path: str, letter: str, values: set[int]) -> range:
    """Numbers along an axis, evenly spaced and with all of `values` among them.

    Two numbers that are apart may be all that is left of a longer series, so the space between
    them is taken for a gap; three or more at the same distance are taken for the whole series.
    """
    low, high = min(values), max(values)
    step = (high - low) // max(1, len(values) - 1)
    if len(values) < 3 or values != set(range(low, high + 1, step)):
        step = 1
    if (high - low) // step >= _MOST:
        raise LayoutError(
            f"{path}: the numbers of {{{letter}}} run from {low} to {high}, but only "
            f"{len(values)} are there. Choose a template that matches the image only.",
            file=path,
        )
    return range(low, high + 1, step)


def _check_alike(path: str, template: str, found: list[_Found]) -> None:
    first = found[0]
    for other in found[1:]:
        if other.shape != first.shape or other.dtype != first.dtype:
            raise LayoutError(
                f"{path}: the datasets at {template!r} differ: {first.path} is {first.shape} "
                f"{first.dtype}, {other.path} is {other.shape} {other.dtype}. One image needs one "
                "shape and type; choose a template that matches alike datasets only.",
                file=path,
                dataset=other.path,
            )


def _axes(
    path: str, template: str, fields: list[str], shape: tuple[int, ...], axes: str | None
) -> tuple[str, str]:
    """Letters of the outer and of the inner axes."""
    letters = [letter.upper() for letter in fields]
    ordered = [axis for axis in "TCZ" if axis in letters]
    outer = "".join(ordered + [axis for axis in letters if axis not in ordered])
    ndim = len(shape)
    if axes is None:
        inner = _CANONICAL[-ndim:] if 1 < ndim < 4 else ""
        if not inner or set(inner) & set(outer):
            free = "".join(axis for axis in _CANONICAL if axis not in outer)
            such_as = f", such as axes={free[-ndim:]!r}" if 0 < ndim <= len(free) else ""
            raise LayoutError(
                f"{path}: the datasets at {template!r} have the shape {shape}; say what their "
                f"{ndim} axes are{such_as}.",
                file=path,
            )
        return outer, inner
    given = axes.upper()
    if len(given) == len(outer) + ndim and sorted(given[: len(outer)]) == sorted(outer):
        outer, inner = given[: len(outer)], given[len(outer) :]
    else:
        inner = given
    if not given.isalpha() or len(inner) != ndim or len(set(outer + inner)) != len(outer + inner):
        raise LayoutError(
            f"{path}: axes={axes!r} does not fit {template!r}, whose datasets have the shape "
            f"{shape}. Give {ndim} different letters for those"
            + (f", or {outer!r} and {ndim} more." if outer else "."),
            file=path,
        )
    return outer, inner


def _scale(dataset: h5py.Dataset, axes: str, path: str) -> tuple[tuple[float, ...], str]:
    """Pixel size along `axes`, and its unit, from `element_size_um` (z, y, x; or y, x)."""
    said = read_text(dataset, "element_size_um")
    values = numbers(said)
    if said is None:
        return (1.0,) * len(axes), ""
    if values is None or len(values) not in (2, 3) or min(values) <= 0:
        warn(
            path,
            f"{dataset.name} has element_size_um = {said!r}, not positive sizes (z, y, x): using "
            "size 1 without a unit.",
        )
        return (1.0,) * len(axes), ""
    sizes = dict(zip(_SPACE[-len(values) :], values, strict=True))
    return tuple(sizes.get(axis, 1.0) for axis in axes), "um"
