"""Values of options that several commands take, as people write them."""

from __future__ import annotations

import re

import typer

__all__ = ["parse_codec", "parse_shape"]


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


def parse_codec(name: str) -> str:
    """Return the name of a codec that datasets can be encoded with, or "auto".

    Raises
    ------
    typer.BadParameter
        There is none of that name.
    """
    from hyperslab.codecs.encode import CODECS

    if name not in (names := ("auto", *CODECS)):
        raise typer.BadParameter(f"there is no codec {name!r}; there are {', '.join(names)}")
    return name
