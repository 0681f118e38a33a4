"""`repack`: a file written anew for the way in which it is read."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hyperslab.engine.limits import limits
from hyperslab.engine.source import close_idle
from hyperslab.errors import CapacityError, MetadataWarning
from hyperslab.exports.text import human_nbytes, parse_nbytes
from hyperslab.file import open_file
from hyperslab.index.records import fingerprint
from hyperslab.rewriting.companions import copy_companions
from hyperslab.rewriting.copy import disk_full, says_full
from hyperslab.rewriting.encode import Cancelled
from hyperslab.rewriting.making import Making, Progress, encode_all, write_in_place
from hyperslab.rewriting.making import verify as read_back
from hyperslab.rewriting.naming import give_name, refuse_existing
from hyperslab.rewriting.plan import Narrowing, RepackPlan, Wish
from hyperslab.rewriting.planning import plan_for
from hyperslab.rewriting.spool import Spool, refuse_spool, spool_key

__all__ = ["Progress", "RepackReport", "plan_file", "repack"]

_DEFAULT_MEMORY = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackReport:
    """What a repack did.

    Attributes
    ----------
    source, target
        The files.
    plan
        What was planned.
    source_nbytes, target_nbytes
        Their sizes.
    seconds
        From beginning to end, of this run.
    verified
        Whether all that was rewritten was read back and compared.
    resumed_nbytes
        Decoded bytes that an earlier run had done.
    left_out
        What could not be copied, in words: attributes of types, and links of kinds, that h5py has
        no word for.
    """

    source: str
    target: str
    plan: RepackPlan
    source_nbytes: int
    target_nbytes: int
    seconds: float
    verified: bool
    resumed_nbytes: int
    left_out: tuple[str, ...] = ()


def plan_file(
    source: str | os.PathLike[str], *, memory: int | str = _DEFAULT_MEMORY, **wish: Any
) -> RepackPlan:
    """Return what `repack` would do.

    Parameters
    ----------
    source
        Of the file.
    memory, wish
        As the keywords of `repack` that say what is wanted (see `hyperslab.rewriting.plan.Wish`);
        errors as there.

    Notes
    -----
    Reads metadata only, and for the codec "auto" some MiB of elements.
    """
    return plan_for(open_file(source), Wish(memory=parse_nbytes(memory), **wish))


def repack(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    access: str | None = None,
    chunks: tuple[int, ...] | None = None,
    for_: str | None = None,
    layout: str = "auto",
    axes: str | None = None,
    codec: str = "auto",
    memory: int | str = _DEFAULT_MEMORY,
    datasets: str | None = None,
    slice_first: bool = False,
    narrow: bool | str = False,
    threads: int | None = None,
    resume: bool = False,
    verify: bool = True,
    progress: Callable[[Progress], None] | None = None,
    cancelled: threading.Event | None = None,
) -> RepackReport | None:
    """Write a file anew, in chunks that suit how it is read.

    Parameters
    ----------
    source
        Of the file; it is only read.
    target
        Of the new one. It appears under that name when it is complete.
    access
        How it will be read, see `hyperslab.access.parse_access`: decides the chunk shapes.
    chunks
        Or the chunk shape, for datasets of as many axes.
    for_
        Or "viewing": images get chunks for looking at planes, of about a MiB, and the coarser
        levels that they lack, computed as `hyperslab.open_image` computes them. The result opens
        as the same image, with these levels in the file: where Imaris, BigDataViewer and Luxendo
        have them, for files of these; for others in a group of their own
        (`hyperslab.layouts.levels`). What is no image is copied.
    layout, axes
        With `for_`: as for `hyperslab.open_image`. The result then opens without them, if no layout
        is recognised in it.
    codec
        "none", "lzf", "lz4", "zstd", "gzip" or "blosc" (with LZ4); but for "none" with byte
        shuffle. "auto": gzip where a sample of the data becomes at least 1.5 times smaller by it,
        otherwise none; `RepackPlan.why` says so in numbers.
    memory
        Most bytes that the data in work take, as a number or like "2GB"; what Python and the
        libraries hold comes on top.
    datasets
        Glob of the paths to be rewritten; virtual and external datasets that match become ordinary
        ones. Default: numbers with two axes or more, 64 KiB or more, but virtual and external ones.
        A dataset that has the chunks and the filters already is copied, chunks as they are stored.
    slice_first
        Move the axes of which a request takes one index to the front; an attribute
        (``hyperslab_axis_order``) says which axis of the source each one was.
    narrow
        True: give datasets the smallest type of the same kind that holds each of their values, and
        the fill value, exactly: float32 for float64, and whole numbers of fewer bits, with the
        sign that they have. "integers": besides, whole numbers for floats that are none but these.
        Datasets that belong together get one type. `RepackPlan.narrowed` says what was done, and
        what not and why. All values are looked at first, which takes another decoding.
    threads
        To decode and encode with; default: the configured number.
    resume
        Go on with a repack that was interrupted.
    verify
        Read everything that was rewritten back, and compare it with what it was made from.
    progress
        Called now and then, from this thread. What it raises ends the repack like an interruption.
    cancelled
        Set it, from any thread, to have the repack stop: what was done is kept for `resume`, in the
        folder ``TARGET.repacking``; there is no target. Between two regions, or two chunks of one.

    Returns
    -------
    RepackReport or None
        None if it was cancelled.

    Raises
    ------
    OutputError
        The target exists, or is the source; an interrupted repack is in the way; or the wish
        contradicts itself.
    LayoutError
        With `for_`: there is no image, or what `layout` says does not fit.
    CapacityError
        The disk has no room, or a chunk does not fit under `memory`.
    SelectionError
        Pattern or chunk shape do not fit.
    StaleIndexError, DamagedFileError, ChunkDecodeError
        The source changed, or is damaged; nothing is lost, and there is no target.

    Notes
    -----
    Regions of the source are decoded by all cores, cut into chunks, and encoded by all cores; each
    old chunk is decoded once where `memory` allows (`DatasetPlan.decodings`). The file is made in a
    folder beside the target, ``TARGET.repacking``. Chunks that are not compressed go right to their
    places in it; others are kept beside it until all are encoded, for only then their sizes are
    known: that takes twice the size of the result for a moment. Decoded chunks are not kept, and
    those that the process has kept of other reads stay.
    """
    start = time.perf_counter()
    file = open_file(source)
    origin, final = Path(file.path), Path(os.path.abspath(os.fspath(target)))
    n_threads = threads or limits.threads
    refuse_existing(final)
    wish = Wish(
        access=access,
        chunks=chunks,
        for_=for_,
        layout=layout,
        axes=axes,
        codec=codec,
        memory=parse_nbytes(memory),
        datasets=datasets,
        slice_first=slice_first,
        narrow="same" if narrow is True else narrow or "",
    )
    stop = cancelled or threading.Event()
    tell = progress or (lambda _: None)
    folder = final.with_name(f"{final.name}.repacking")
    refuse_spool(folder, resume=resume)
    seen = fingerprint(str(origin))
    what = _plain(
        {
            "version": 2,
            "source": [str(origin), seen.nbytes, seen.mtime_ns],
            "how": asdict(wish),
        }
    )
    known = spool_key(folder)
    narrowed = None
    if known is not None and all(known.get(name) == value for name, value in what.items()):
        narrowed = tuple(Narrowing(**each) for each in known["narrowed"])
    try:
        plan = plan_for(file, wish, narrowed=narrowed, threads=threads, tell=tell, stop=stop)
    except Cancelled:
        return None
    _check_room(final, origin, plan)
    key = {
        **what,
        # Of another version of hyperslab, regions may be others.
        "plan": zlib.crc32(repr(plan.rewritten).encode()),
        "narrowed": [asdict(each) for each in plan.narrowed],
    }
    _warn_of_elsewhere(plan, origin, final)
    spool = Spool(folder, _plain(key), resume=resume)
    making = Making(file=file, plan=plan, spool=spool, threads=n_threads, tell=tell, stop=stop)
    try:
        resumed = write_in_place(making) if plan.in_place else encode_all(making)
        if verify:
            read_back(making)
        if wish.for_:
            copy_companions(origin, final)
        give_name(spool.file, final)
        left_out = spool.left_out
        spool.delete()
    except Cancelled:
        if not spool.done:  # there is nothing to go on with
            spool.delete()
        return None
    except (OSError, RuntimeError) as error:
        spool.close()
        if not spool.done:  # there is nothing to go on with
            shutil.rmtree(spool.folder)
        if says_full(error):
            raise disk_full(str(final)) from error
        raise
    finally:
        spool.close()
        close_idle()  # no reader keeps hold of the file that is being made
    if left_out:
        warnings.warn(
            f"{final}: without {'; '.join(left_out)}. h5py has no word for these.",
            MetadataWarning,
            stacklevel=2,
        )
    return RepackReport(
        source=str(origin),
        target=str(final),
        plan=plan,
        source_nbytes=seen.nbytes,
        target_nbytes=final.stat().st_size,
        seconds=time.perf_counter() - start,
        verified=verify,
        resumed_nbytes=resumed,
        left_out=left_out,
    )


def _warn_of_elsewhere(plan: RepackPlan, origin: Path, final: Path) -> None:
    if not plan.elsewhere or final.parent.resolve() == origin.parent.resolve():
        return
    more = f" and {len(plan.elsewhere) - 1} more" if len(plan.elsewhere) > 1 else ""
    warnings.warn(
        f"{final}: {plan.elsewhere[0]}{more} refer to other files, by names that may count from "
        f"the folder of the source ({origin.parent}). Keep the new file in that folder; or name "
        "virtual datasets (datasets=, --dataset) to have their elements in it.",
        MetadataWarning,
        stacklevel=3,
    )


def _plain(key: dict[str, Any]) -> dict[str, Any]:
    """Return a key as JSON gives it back: lists for tuples."""
    found: dict[str, Any] = json.loads(json.dumps(key))
    return found


def _check_room(final: Path, origin: Path, plan: RepackPlan) -> None:
    """Raise unless the disk has room for the spool and the file, by what is known beforehand."""
    stored = origin.stat().st_size
    most = (
        plan.nbytes if any(not p.codec.code for p in plan.rewritten) else min(plan.nbytes, stored)
    )
    wanted = most * (1 if plan.in_place else 2) + (stored if plan.copied else 0)
    free = shutil.disk_usage(final.parent).free
    if wanted > free:
        raise CapacityError(
            f"{final}: about {human_nbytes(wanted)} are needed for a moment, and the disk has "
            f"{human_nbytes(free)} free. Choose a codec that compresses, or another disk.",
            file=str(final),
            wanted_nbytes=wanted,
            at_hand_nbytes=free,
        )
