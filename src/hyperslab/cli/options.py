"""Values of options that several commands take: sizes and shapes, as people write them."""

from __future__ import annotations

import re

import typer

__all__ = ["parse_nbytes", "parse_shape"]

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}


def parse_nbytes(text: str) -> int:
    """Return a size in bytes.

    Raises
    ------
    typer.BadParameter
        It is none.

    Examples
    --------
    >>> parse_nbytes("500MB"), parse_nbytes("1GiB"), parse_nbytes("1.5k")
    (500000000, 1073741824, 1500)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?)B?", text.strip().upper())
    if not found or found[2] not in _UNITS or not float(found[1]):
        raise typer.BadParameter(f"{text!r} is no size; write it like 500MB, 2GB or 1GiB")
    return int(float(found[1]) * _UNITS[found[2]])


def parse_shape(text: str) -> tuple[int, ...]:
    """Return a chunk shape.

    Raises
    ------
    typer.BadParameter
        It is none.

    Examples
    --------
    >>> parse_shape("16,256,256"), parse_shape("(1, 64)"), parse_shape("8x8")
    ((16, 256, 256), (1, 64), (8, 8))
    """
    parts = [part for part in re.split(r"[,x ]+", text.strip("()[] ")) if part]
    if not parts or not all(part.isdecimal() and int(part) for part in parts):
        raise typer.BadParameter(f"{text!r} is no shape; write it like 16,256,256")
    return tuple(map(int, parts))
