"""Patterns that say which files of a tree are which image of which case.

A pattern is a path below the folder that is packed, with ``/`` between its parts:

- ``{case}`` stands for the name of a case: one or more characters of one part. It has to occur;
  where it does twice, both are the same.
- ``{image}`` stands for the name of an image, likewise: "mr" and "mri" become MR, "ct", "cbct" and
  "mask" CT, CBCT and MASK; others are written in capitals.
- ``*`` stands for any characters of one part, ``**`` as a part for any number of folders.
- ``NAME=`` in front names the image, where the path does not.

Each takes as much as it can, from left to right. A folder that matches is a DICOM series.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Pattern", "image_name", "parse_pattern"]

_KNOWN = {"mri": "MR"}
_TOKEN = re.compile(r"(\{case\}|\{image\}|\*\*/|\*)")
_NAMED = re.compile(r"([A-Za-z][\w-]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A pattern that has been read.

    Attributes
    ----------
    text
        As it was given.
    image
        The image's name; "" where the path names it.
    expression
        What a path has to match.
    """

    text: str
    image: str
    expression: re.Pattern[str]

    def match(self, path: str) -> tuple[str, str] | None:
        """Return case and image of a path below the folder; None if it does not match.

        Examples
        --------
        >>> parse_pattern("{case}/{image}.nii.gz").match("1BA001/mr.nii.gz")
        ('1BA001', 'MR')
        >>> parse_pattern("CT=**/{case}_ct.mha").match("a/b/p_7_ct.mha")
        ('p_7', 'CT')
        """
        found = self.expression.fullmatch(path)
        if not found:
            return None
        return found["case"], self.image or image_name(found["image"])


def image_name(text: str) -> str:
    """Return the name of an image's group, for what a file or folder calls it.

    Examples
    --------
    >>> image_name("mri"), image_name("cbct"), image_name("t1")
    ('MR', 'CBCT', 'T1')
    """
    return _KNOWN.get(text.lower(), text.upper())


def parse_pattern(text: str) -> Pattern:
    """Read a pattern.

    Raises
    ------
    ValueError
        It has no ``{case}``, or does not say what the image is.
    """
    named = _NAMED.fullmatch(text)
    image, path = (image_name(named[1]), named[2]) if named else ("", text)
    path = path.removeprefix("./").strip("/")
    if "{case}" not in path or bool(image) == ("{image}" in path):
        raise ValueError(
            f"{text!r} is no pattern: it needs {{case}}, and either {{image}} or NAME= in front, "
            "as in '{case}/{image}.nii.gz' or 'CT={case}/ct_*.mha'."
        )
    parts = []
    seen: set[str] = set()
    for token in _TOKEN.split(path):
        match token:
            case "{case}" | "{image}":
                name = token.strip("{}")
                parts.append(f"(?P={name})" if name in seen else f"(?P<{name}>[^/]+)")
                seen.add(name)
            case "**/":
                parts.append("(?:[^/]+/)*")
            case "*":
                parts.append("[^/]*")
            case _:
                parts.append(re.escape(token))
    return Pattern(text=text, image=image, expression=re.compile("".join(parts)))
