"""Images that are one dataset: which datasets can be one, and the facts of one put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hyperslab.layouts.axes import Axis
from hyperslab.layouts.links import child_names
from hyperslab.layouts.spec import ChannelSpec, ImageSpec, IntensitySpec, LevelSpec

if TYPE_CHECKING:
    import h5py

__all__ = ["arrange", "describe_single", "is_image", "names_in", "objects_below"]

_CANONICAL = "TCZYX"
_SPACE = "ZYX"
_MOST_AXES = 20  # so that there is a letter for each


def is_image(item: Any, *, kinds: str = "biufc") -> bool:
    """Whether `item` is a dataset of numbers with 2 to 20 axes, and some elements."""
    import h5py

    try:
        return (
            isinstance(item, h5py.Dataset)
            and item.shape is not None
            and 2 <= len(item.shape) <= _MOST_AXES
            and min(item.shape) > 0
            and item.dtype.kind in kinds
        )
    except (OSError, RuntimeError, TypeError, ValueError, KeyError):
        return False  # a type that h5py has no NumPy type for, or a damaged header


def names_in(group: Any) -> list[str]:
    """Names of the links in `group`; none if it is no group, or too damaged to say."""
    import h5py

    try:
        return child_names(group) if isinstance(group, h5py.Group) else []
    except (KeyError, OSError, RuntimeError, ValueError):
        return []


def objects_below(
    group: h5py.Group,
    *,
    depth: int,
    most: int = 100_000,
    closed: Callable[[h5py.Group], bool] | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yield path and object of what hard links lead to below `group`, breadth first, each once.

    Parameters
    ----------
    depth
        Deepest level that is looked at; 1 is the children.
    most
        Number of links after which to stop.
    closed
        A function of a group that says whether not to look inside.

    Notes
    -----
    Soft and external links are left out: what they lead to has a path of its own, or is another
    file's. Opens every object once, 20 to 60 microseconds each.
    """
    import h5py

    queue: list[tuple[str, Any, int]] = [("", group, 0)]
    seen: set[int] = set()
    while queue:
        prefix, parent, level = queue.pop(0)
        for name in names_in(parent):
            most -= 1
            if most < 0:
                return
            try:
                if not isinstance(parent.get(name, getlink=True), h5py.HardLink):
                    continue
                found = parent[name]
                address = hash(found.id)
            except (KeyError, OSError, RuntimeError, TypeError, ValueError):
                continue
            if address in seen:
                continue
            seen.add(address)
            path = f"{prefix}{name}"
            yield path, found
            inside = level + 1 < depth and isinstance(found, h5py.Group)
            if inside and not (closed and closed(found)):
                queue.append((f"{path}/", found, level + 1))


def arrange(letters: Sequence[str]) -> tuple[int, ...]:
    """Order of axes in an image: T, C, Z, Y, X last and in this order, others before them."""
    rank = {letter: i for i, letter in enumerate(_CANONICAL)}
    return tuple(sorted(range(len(letters)), key=lambda i: rank.get(letters[i], -1)))


def describe_single(
    dataset: h5py.Dataset,
    axes: Sequence[Axis],
    *,
    layout: str,
    file: str,
    name: str,
    path: str,
    order: tuple[int, ...] | None = None,
    channels: Sequence[ChannelSpec] | None = None,
    intensity: IntensitySpec | None = None,
    labels: bool = False,
) -> ImageSpec:
    """Put together the facts of an image that is one dataset.

    Parameters
    ----------
    dataset
        The dataset.
    axes
        Its axes, in its own order.
    layout, file, name
        As in `ImageSpec`.
    path
        Path of the dataset in the file that was opened.
    order
        Which of its axes is which of the image's; by default as `arrange` says.
    channels
        By default "Channel 0" and so on, one for every index of axis C.
    intensity, labels
        As in `ImageSpec`.

    Returns
    -------
    ImageSpec
        One level, no outer axes. Axis C becomes S, and its channels one, where they would not be
        planes.
    """
    if len(axes) == 2 and "C" in (axis.letter for axis in axes):
        axes = [replace(axis, letter="S") if axis.letter == "C" else axis for axis in axes]
        channels = None
    if order is None:
        order = arrange([axis.letter for axis in axes])
    shape = tuple(int(dataset.shape[i]) for i in order)
    ordered = [axes[i] for i in order]
    letters = "".join(axis.letter for axis in ordered)
    if channels is None:
        count = shape[letters.index("C")] if "C" in letters else 1
        channels = [ChannelSpec(name=f"Channel {i}") for i in range(count)]
    return ImageSpec(
        layout=layout,
        file=file,
        name=name,
        axes=letters,
        n_outer=0,
        dtype=dataset.dtype.newbyteorder("=").name,
        levels=(LevelSpec(shape=shape, datasets=(path,)),),
        scale=tuple(axis.scale for axis in ordered),
        translation=tuple(axis.translation for axis in ordered),
        origin=tuple(map(_origin, ordered)),
        units=tuple(axis.unit for axis in ordered),
        channels=tuple(channels),
        order=() if order == tuple(range(len(order))) else order,
        intensity=intensity,
        labels=labels,
    )


def _origin(axis: Axis) -> float:
    if axis.letter not in _SPACE:
        return 0.0
    return axis.translation - axis.scale / 2 if axis.origin is None else axis.origin
