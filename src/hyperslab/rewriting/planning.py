"""From what was asked of a repack, and what is in the file, to its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hyperslab.codecs.encode import Codec
from hyperslab.codecs.encode import codec as codec_named
from hyperslab.errors import OutputError
from hyperslab.file import File
from hyperslab.index.session import session
from hyperslab.index.tree import Entry, walk_file
from hyperslab.rewriting.choose import choose_codec
from hyperslab.rewriting.plan import DatasetPlan, RepackPlan, Wish, plan_repack
from hyperslab.rewriting.viewing import Viewed, chunks_by_path, find_images, plan_levels

if TYPE_CHECKING:
    import h5py

__all__ = ["plan_for"]


def plan_for(file: File, wish: Wish) -> RepackPlan:
    """Plan a repack.

    Parameters
    ----------
    file
        The source.
    wish
        What was asked.

    Raises
    ------
    OutputError
        The wish contradicts itself.
    SelectionError, CapacityError, LayoutError
        It does not fit the file.

    Notes
    -----
    Reads metadata only, and for the codec "auto" some MiB of elements.
    """
    _check(wish)
    named = codec_named("none" if wish.codec == "auto" else wish.codec)
    with session(file.path) as h5:
        entries = list(walk_file(h5))
        images = find_images(h5, file.path, entries, wish) if wish.for_ else []
        first = _plan(file, h5, entries, images, wish, named)
        if wish.codec != "auto" or not first.rewritten:
            return first
        # Of a file that has the right chunks without filters, nothing is to be rewritten.
        name, why = choose_codec(first, file)
        return replace(_plan(file, h5, entries, images, wish, codec_named(name)), why=why)


def _check(wish: Wish) -> None:
    if sum(each is not None for each in (wish.access, wish.chunks, wish.for_)) != 1:
        raise OutputError(
            "Give one of these: an access pattern, a chunk shape, or what it is for (access=, "
            "chunks=, for_='viewing')."
        )
    if wish.for_ not in (None, "viewing"):
        raise OutputError(f"for_={wish.for_!r} is not known; there is 'viewing'.")
    if wish.for_ is None and (wish.layout != "auto" or wish.axes is not None):
        raise OutputError("A layout and axes say what is an image: they go with for_='viewing'.")
    if wish.slice_first and wish.access is None:
        raise OutputError("Slices come first by an access pattern: give one (access=).")


def _plan(
    file: File,
    h5: h5py.File,
    entries: Sequence[Entry],
    images: Sequence[Viewed],
    wish: Wish,
    codec: Codec,
) -> RepackPlan:
    chosen = chunks_by_path(images, entries, {}) if wish.for_ else None
    plan = plan_repack(entries, wish, codec=codec, chosen=chosen)
    notes: list[str] = []
    levels: list[DatasetPlan] = []
    for image in images:
        added, note = plan_levels(image, h5, file, entries, wish, codec=codec, dtypes={})
        taken = {item.path for item in levels}
        levels += [item for item in added if item.path not in taken]
        if note:
            notes.append(note)
    return replace(
        plan,
        rewritten=(*plan.rewritten, *levels),
        opened_as=(wish.layout, wish.axes),
        notes=tuple(notes),
    )
