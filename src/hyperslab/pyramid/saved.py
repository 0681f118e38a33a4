"""Computed levels, kept on disk: a folder an image in the cache folder, one ``.npy`` file a level.

``levels.json`` in that folder says of which files the levels were made, and what those looked like;
it is written last, so that what it names is whole. Where any of them has changed, or something does
not fit, the saved levels are as good as not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperslab.engine.node import Node, array_node
from hyperslab.errors import CapacityError, MissingFileError
from hyperslab.exports.progress import fill_with_progress
from hyperslab.exports.text import human_nbytes
from hyperslab.index.folder import cache_folder
from hyperslab.index.records import Fingerprint, Segment, fingerprint

if TYPE_CHECKING:
    from hyperslab.image import Image
    from hyperslab.pyramid.level import ComputedLevel

__all__ = ["delete_levels", "load_level", "save_levels"]

# To be raised whenever levels are computed in another way.
_VERSION = 1
_FACTS = "levels.json"


def load_level(level: ComputedLevel) -> Node | None:
    """Return a saved level as a node; None if it was not saved, or is out of date."""
    folder = _folder(level.image)
    facts = _facts(folder)
    entry = facts.get("levels", {}).get(str(level.number))
    if not isinstance(entry, str) or not all(map(_unchanged, facts["files"])):
        return None
    path = str(folder / entry)
    try:
        saved = np.load(path, mmap_mode="r", allow_pickle=False)
        now = fingerprint(path)
    except (OSError, ValueError):  # gone, cut short or overwritten: computed again
        return None
    if saved.shape != level.shape or saved.dtype != level.dtype or not saved.flags.c_contiguous:
        return None
    offset = now.nbytes - saved.nbytes
    return array_node(
        Segment(path, offset, saved.nbytes),
        name=f"/{entry}",
        fingerprint=now,
        shape=level.shape,
        dtype=level.dtype,
    )


def save_levels(image: Image, levels: Sequence[ComputedLevel], *, progress: bool) -> Path:
    """Compute `levels`, finest first, and keep them; return the folder they are in.

    Raises
    ------
    CapacityError
        The disk has no room for them; nothing has been written.
    OSError
        The folder cannot be written to. Levels that were done before stay.
    """
    folder = _folder(image)
    folder.mkdir(parents=True, exist_ok=True)
    wanted, free = sum(level.nbytes for level in levels), shutil.disk_usage(folder).free
    if wanted > free:
        raise CapacityError(
            f"{image.file}: its computed levels take {human_nbytes(wanted)}, and the disk of "
            f"{folder} has {human_nbytes(free)} free. Set HYPERSLAB_CACHE_DIR to a folder on "
            "another disk, or save coarser levels only (levels=[...]).",
            wanted_nbytes=wanted,
            at_hand_nbytes=free,
            file=image.file,
        )
    facts = _facts(folder)
    if not all(map(_unchanged, facts["files"])):
        delete_levels(image)
        folder.mkdir(parents=True, exist_ok=True)
        facts = _facts(folder)
    for level in levels:
        name = f"level-{level.number}.npy"
        temporary = folder / f".{name}-{os.getpid()}-{secrets.token_hex(4)}.tmp"
        try:
            out = np.lib.format.open_memmap(
                temporary, mode="w+", dtype=level.dtype, shape=level.shape
            )
            if progress:
                fill_with_progress(level.lazy[...], out, threads=None, title=repr(level))
            else:
                level.read(out=out)
            out.flush()
            del out
            os.replace(temporary, folder / name)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        facts["levels"][str(level.number)] = name
        facts["files"] = sorted({*map(tuple, facts["files"]), *_seen(image.sources.items())})
        _write(folder, facts)
        level.forget_saved()
    return folder


def delete_levels(image: Image) -> None:
    """Delete what was saved of an image, if anything was."""
    folder = _folder(image)
    # First the facts: without them, what is left is not used.
    (folder / _FACTS).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _folder(image: Image) -> Path:
    text = json.dumps([_VERSION, image.file, image.request])
    return cache_folder("levels") / hashlib.sha256(text.encode()).hexdigest()[:32]


def _facts(folder: Path) -> dict[str, Any]:
    empty: dict[str, Any] = {"files": [], "levels": {}}
    try:
        found = json.loads((folder / _FACTS).read_text("utf-8"))
    except (OSError, ValueError):
        return empty
    if not isinstance(found, dict):
        return empty
    whole = isinstance(found.get("files"), list) and isinstance(found.get("levels"), dict)
    return found if whole else empty


def _write(folder: Path, facts: dict[str, Any]) -> None:
    temporary = folder / f".{_FACTS}-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    temporary.write_text(json.dumps(facts), "utf-8")
    os.replace(temporary, folder / _FACTS)


def _seen(files: Iterable[tuple[str, Fingerprint]]) -> set[tuple[str, int, int]]:
    return {(path, seen.nbytes, seen.mtime_ns) for path, seen in files}


def _unchanged(entry: Any) -> bool:
    """Tell whether a file still has the size and the time of the last write that were noted."""
    try:
        path, nbytes, mtime_ns = entry
        now = fingerprint(path)
    except (MissingFileError, OSError, TypeError, ValueError):
        return False
    return bool((now.nbytes, now.mtime_ns) == (nbytes, mtime_ns))
