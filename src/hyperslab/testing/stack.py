"""Plain stacks: one dataset per time point and channel, at a path that follows a template."""

from __future__ import annotations

import itertools
import os
import string
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperslab.testing.cells import draw_cells

__all__ = ["StackFacts", "make_stack"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFacts:
    """What a reader should find in a file that `make_stack` wrote.

    Attributes
    ----------
    path, template
        The file, and the template its dataset paths follow.
    axes, shape
        Of the whole image, in the order T, C, Z, Y, X.
    outer
        Axes that are spread over datasets, in that order.
    datasets
        Index along the outer axes to path in the file; missing ones left out.
    dtype
        NumPy name of the element type.
    """

    path: str
    template: str
    axes: str
    shape: tuple[int, ...]
    outer: str
    datasets: dict[tuple[int, ...], str]
    dtype: str


def make_stack(
    path: str | os.PathLike[str],
    template: str = "t{t}/c{c}/data",
    shape: tuple[int, int, int, int, int] = (3, 2, 4, 48, 64),
    *,
    dtype: npt.DTypeLike = "uint16",
    chunks: tuple[int, ...] | bool | None = None,
    compression: str | int | None = "gzip",
    first: int = 0,
    missing: Collection[tuple[int, ...]] = (),
    element_size_um: tuple[float, ...] | None = None,
    data: Callable[[int, int], npt.NDArray[Any]] | None = None,
    seed: int = 0,
) -> StackFacts:
    """Write a 5-D image as one dataset per combination of the template's fields.

    Parameters
    ----------
    path
        File to write; one that exists is replaced.
    template
        Path with fields `{t}`, `{c}`, `{z}`, as in `str.format` (so `{t:05d}` pads with zeros).
        Axes without a field are the datasets' own; without any field, one 5-D dataset is written.
    shape
        (T, C, Z, Y, X).
    dtype, chunks, compression
        As for `h5py.Group.create_dataset`.
    first
        Number of the first time point, channel and plane in the paths.
    missing
        Indices (from 0) along the template's axes, in the order T, C, Z, to leave out.
    element_size_um
        Attribute of that name on every dataset: (z, y, x) in micrometres.
    data
        Function of (t, c) that gives (Z, Y, X); by default `draw_cells`.
    seed
        For `draw_cells`.

    Returns
    -------
    StackFacts
    """
    import h5py

    fields = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    if not fields <= set("tcz"):
        raise ValueError(f"template fields may be t, c and z; {template!r} has {sorted(fields)}.")
    sizes = dict(zip("TCZYX", shape, strict=True))
    outer = "".join(axis for axis in "TCZ" if axis.lower() in fields)
    written: dict[tuple[int, ...], str] = {}
    target = os.fspath(path)
    image = np.empty(shape, dtype=dtype)
    for t, c in itertools.product(range(shape[0]), range(shape[1])):
        image[t, c] = (
            draw_cells((shape[2], shape[3], shape[4]), t=t, c=c, dtype=dtype, seed=seed)
            if data is None
            else data(t, c)
        )
    with h5py.File(target, "w") as h5:
        for index in itertools.product(*(range(sizes[axis]) for axis in outer)):
            if index in missing:
                continue
            at = dict(zip(outer, index, strict=True))
            name = template.format(**{axis.lower(): i + first for axis, i in at.items()})
            cut = tuple(at.get(axis, slice(None)) for axis in "TCZYX")
            dataset = h5.create_dataset(
                name, data=image[cut], chunks=chunks, compression=compression
            )
            if element_size_um is not None:
                dataset.attrs["element_size_um"] = np.array(element_size_um)
            written[index] = dataset.name
    return StackFacts(
        path=target,
        template=template,
        axes=outer + "".join(axis for axis in "TCZYX" if axis not in outer),
        shape=tuple(sizes[axis] for axis in outer)
        + tuple(n for axis, n in sizes.items() if axis not in outer),
        outer=outer,
        datasets=written,
        dtype=image.dtype.newbyteorder("=").name,
    )
