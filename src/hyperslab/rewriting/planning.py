"""From what was asked of a repack, and what is in the file, to its plan."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hyperslab.codecs.encode import Codec
from hyperslab.codecs.encode import codec as codec_named
from hyperslab.engine.limits import limits
from hyperslab.errors import HyperslabError, MetadataWarning, OutputError
from hyperslab.file import File
from hyperslab.index.session import session
from hyperslab.index.tree import Entry, walk_file
from hyperslab.rewriting.choose import choose_codec
from hyperslab.rewriting.making import Progress
from hyperslab.rewriting.narrow import narrower_types
from hyperslab.rewriting.plan import (
    DatasetPlan,
    Narrowing,
    RepackPlan,
    Wish,
    is_wanted,
    own_datasets,
    plan_repack,
)
from hyperslab.rewriting.viewing import Viewed, chunks_by_path, find_images, plan_levels

__all__ = ["plan_for"]


def plan_for(
    file: File,
    wish: Wish,
    *,
    narrowed: tuple[Narrowing, ...] | None = None,
    threads: int | None = None,
    tell: Callable[[Progress], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> RepackPlan:
    """Plan a repack.

    Parameters
    ----------
    file
        The source.
    wish
        What was asked.
    narrowed
        What is known already of smaller types, where they are asked for.
    threads, tell, stop
        For the search for them.

    Raises
    ------
    OutputError
        The wish contradicts itself.
    SelectionError, CapacityError, LayoutError
        It does not fit the file.
    Cancelled
        `stop` was set.

    Notes
    -----
    Reads metadata only, and for the codec "auto" some MiB of elements; where smaller types are
    asked for, all elements that may have one, or up to the first that has none.
    """
    _check(wish)
    named = codec_named("none" if wish.codec == "auto" else wish.codec)
    # Elements are read outside of the library's lock: others go on, and helpers may need it.
    with session(file.path) as h5:
        entries = list(walk_file(h5))
        images = find_images(h5, file.path, entries, wish) if wish.for_ else []
    if wish.narrow and narrowed is None:
        narrowed = _look(file, entries, images, wish, threads, tell, stop)
    plan = partial(_plan, file, entries, images, wish, narrowed or ())
    first = plan(named)
    if wish.codec != "auto" or not first.rewritten:
        return first
    # Of a file that has the right chunks without filters, nothing is to be rewritten.
    name, why = choose_codec(first, file)
    return replace(plan(codec_named(name)), why=why)


def _look(
    file: File,
    entries: Sequence[Entry],
    images: Sequence[Viewed],
    wish: Wish,
    threads: int | None,
    tell: Callable[[Progress], None],
    stop: threading.Event | None,
) -> tuple[Narrowing, ...]:
    """Look for smaller types of what is rewritten, and of what would be if it had one."""
    datasets, _ = own_datasets(entries)
    paths = [entry.path for entry, facts in datasets if is_wanted(entry.path, facts, wish.datasets)]
    if wish.for_:
        chosen = {path for image in images for path in image.paths.values()}
        paths = [path for path in paths if path in chosen]
    else:
        with (
            contextlib.suppress(HyperslabError),
            warnings.catch_warnings(),
            session(file.path) as h5,
        ):
            warnings.simplefilter("ignore", MetadataWarning)  # told when the image is opened
            images = find_images(h5, file.path, entries, wish)
    return narrower_types(
        file,
        paths,
        [image.paths.values() for image in images],
        wish,
        threads=threads or limits.threads,
        tell=lambda done, total: tell(Progress(stage="look", done_nbytes=done, total_nbytes=total)),
        stop=stop or threading.Event(),
    )


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
    if wish.narrow not in ("", "same", "integers"):
        raise OutputError(f"narrow={wish.narrow!r} is not known; there are True and 'integers'.")
    if wish.slice_first and wish.access is None:
        raise OutputError("Slices come first by an access pattern: give one (access=).")


def _plan(
    file: File,
    entries: Sequence[Entry],
    images: Sequence[Viewed],
    wish: Wish,
    narrowed: tuple[Narrowing, ...],
    codec: Codec,
) -> RepackPlan:
    dtypes = {each.path: np.dtype(each.new).newbyteorder("<").str for each in narrowed if each.new}
    itemsizes = {path: np.dtype(dtype).itemsize for path, dtype in dtypes.items()}
    chosen = chunks_by_path(images, entries, itemsizes) if wish.for_ else None
    plan = plan_repack(entries, wish, codec=codec, chosen=chosen, dtypes=dtypes)
    notes: list[str] = []
    levels: list[DatasetPlan] = []
    with session(file.path) as h5:
        for image in images:
            added, note = plan_levels(image, h5, file, entries, wish, codec=codec, dtypes=dtypes)
            taken = {item.path for item in levels}
            levels += [item for item in added if item.path not in taken]
            if note:
                notes.append(note)
    return replace(
        plan,
        rewritten=(*plan.rewritten, *levels),
        opened_as=(wish.layout, wish.axes),
        narrowed=narrowed,
        notes=tuple(notes),
    )
