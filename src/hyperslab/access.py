"""Access patterns: how a dataset is going to be read, request by request."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from hyperslab.errors import SelectionError

__all__ = ["Access", "chunk_shape_for", "chunks_touched", "parse_access", "slab_shape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One kind of request, for a dataset of a certain number of axes.

    Attributes
    ----------
    text
        As it was given.
    window
        Per axis, how many indices in a row one request takes; None: all of them.
    """

    text: str
    window: tuple[int | None, ...]

    def region(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of what one request takes of a dataset of `shape`.

        Examples
        --------
        >>> parse_access("[:, :, k]", 3).region((256, 240, 60))
        (256, 240, 1)
        """
        return tuple(n if w is None else min(w, n) for w, n in zip(self.window, shape, strict=True))


def parse_access(text: str, ndim: int) -> Access:
    """Read an access pattern.

    Parameters
    ----------
    text
        ``[:, :, k]``: along each axis all (``:``), one index at a time (a letter or a number), or a
        window of so many (``64w``, as in ``[k, 64w, 64w]``); axes left out at the end, or at
        ``...``, are taken whole. ``patch 96x96x96``: a window along each of the last axes, one
        index along the others; so is ``tile 512x512``. ``plane``: the last two axes whole.
        ``whole``: everything.
    ndim
        How many axes the dataset has.

    Returns
    -------
    Access

    Raises
    ------
    SelectionError
        The pattern makes no sense, or has more axes than the dataset.

    Examples
    --------
    >>> parse_access("[..., k]", 3).window
    (None, None, 1)
    >>> parse_access("patch 96x96", 3).window
    (1, 96, 96)
    >>> parse_access("[t, c, z]", 5).window
    (1, 1, 1, None, None)
    """
    plain = text.strip().lower()
    if plain == "whole":
        return Access(text=text, window=(None,) * ndim)
    if plain == "plane":
        plain = "[" + ", ".join("k" * max(0, ndim - 2)) + "]"
        if ndim <= 2:
            return Access(text=text, window=(None,) * ndim)
    found = re.fullmatch(r"(?:patch|tile)\s+(\d+(?:x\d+)*)", plain)
    if found:
        sizes = [int(size) for size in found[1].split("x")]
        if len(sizes) > ndim or 0 in sizes:
            raise _nonsense(text, ndim)
        return Access(text=text, window=(1,) * (ndim - len(sizes)) + tuple(sizes))
    found = re.fullmatch(r"\[(.*)\]", plain)
    if not found:
        raise _nonsense(text, ndim)
    parts = [part.strip() for part in found[1].split(",")] if found[1].strip() else []
    if parts.count("...") > 1:
        raise _nonsense(text, ndim)
    if "..." in parts:
        at = parts.index("...")
        parts[at : at + 1] = [":"] * (ndim - len(parts) + 1)
    parts += [":"] * (ndim - len(parts))
    if len(parts) != ndim:
        raise _nonsense(text, ndim)
    window: list[int | None] = []
    for part in parts:
        size = re.fullmatch(r"(\d+)w", part)
        if part == ":":
            window.append(None)
        elif size and int(size[1]):
            window.append(int(size[1]))
        elif re.fullmatch(r"[a-z]\w*|\d+", part):
            window.append(1)
        else:
            raise _nonsense(text, ndim)
    return Access(text=text, window=tuple(window))


def _nonsense(text: str, ndim: int) -> SelectionError:
    return SelectionError(
        f"The access pattern {text!r} does not fit a dataset of {ndim} axes. Patterns look like "
        "'[:, :, k]', '[k]', '[t, c, z]', '[k, 64w, 64w]', 'patch 96x96x96', 'tile 512x512', "
        "'plane' or 'whole'."
    )


def chunks_touched(access: Access, shape: tuple[int, ...], chunks: tuple[int, ...]) -> float:
    """Return how many chunks one request meets, on average over all places it can be at.

    Examples
    --------
    >>> chunks_touched(parse_access("[:, :, k]", 3), (512, 512, 200), (32, 32, 25))
    256.0
    >>> chunks_touched(parse_access("patch 2", 1), (4,), (2,))
    1.3333333333333333
    """
    n = 1.0
    for window, extent, chunk in zip(access.window, shape, chunks, strict=True):
        if not extent:
            return 0.0
        size = extent if window is None else min(window, extent)
        start = np.arange(extent - size + 1)
        n *= float(np.mean((start + size - 1) // chunk - start // chunk + 1))
    return n


def slab_shape(access: Access, shape: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of all the elements in the chunks that a request meets, at the best.

    Examples
    --------
    >>> slab_shape(parse_access("[:, :, k]", 3), (512, 512, 200), (32, 32, 25))
    (512, 512, 25)
    """
    return tuple(
        min(n, -(-size // chunk) * chunk)
        for size, n, chunk in zip(access.region(shape), shape, chunks, strict=True)
    )


def chunk_shape_for(
    access: Access, shape: tuple[int, ...], itemsize: int, *, target_nbytes: int = 1 << 20
) -> tuple[int, ...]:
    """Return a chunk shape of which one request takes all, or as much as can be.

    Parameters
    ----------
    access
        How the dataset will be read.
    shape, itemsize
        Of the dataset.
    target_nbytes
        Most bytes of a chunk. A request that is larger takes several; its longest axes are
        halved first. The chunk of a smaller one is as large as the request.

    Examples
    --------
    >>> chunk_shape_for(parse_access("[:, :, k]", 3), (256, 240, 60), 4)
    (256, 240, 1)
    >>> chunk_shape_for(parse_access("whole", 3), (256, 256, 256), 4)
    (64, 64, 64)
    """
    chunk = [max(1, n) for n in access.region(shape)]
    while math.prod(chunk) * itemsize > target_nbytes and max(chunk) > 1:
        axis = max(range(len(chunk)), key=chunk.__getitem__)
        chunk[axis] = -(-chunk[axis] // 2)
    return tuple(chunk)
