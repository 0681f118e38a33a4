"""`repack`: a file written anew for the way in which it is read."""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hyperslab.array import Array
from hyperslab.codecs.encode import codec as codec_named
from hyperslab.engine.limits import limits
from hyperslab.engine.source import close_idle
from hyperslab.errors import CapacityError, DamagedFileError, MetadataWarning, OutputError
from hyperslab.exports.text import human_nbytes
from hyperslab.file import File, open_file
from hyperslab.index.container import FileIndex
from hyperslab.index.records import fingerprint
from hyperslab.index.session import library_lock, session
from hyperslab.index.tree import walk_file
from hyperslab.rewriting.choose import choose_codec
from hyperslab.rewriting.copy import copy_objects, disk_full, says_full
from hyperslab.rewriting.encode import Cancelled, Cutter
from hyperslab.rewriting.plan import RepackPlan, plan_repack
from hyperslab.rewriting.spool import Spool

__all__ = ["Progress", "RepackReport", "plan_file", "repack"]

_DEFAULT_MEMORY = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a repack is.

    Attributes
    ----------
    stage
        "encode", "write" or "verify".
    done_nbytes, total_nbytes
        Of the stage; decoded bytes, but stored ones for "write".
    """

    stage: str
    done_nbytes: int
    total_nbytes: int


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
    source: str | os.PathLike[str],
    *,
    access: str | None = None,
    chunks: tuple[int, ...] | None = None,
    codec: str = "auto",
    memory: int = _DEFAULT_MEMORY,
    datasets: str | None = None,
    slice_first: bool = False,
) -> RepackPlan:
    """Return what `repack` would do. Parameters and errors as there.

    Reads metadata only, and for the codec "auto" some MiB of elements.
    """
    if (access is None) == (chunks is None):
        raise OutputError("Give either an access pattern or a chunk shape (access=, chunks=).")
    named = codec_named("none" if codec == "auto" else codec)
    file = open_file(source)
    with session(file.path) as h5:
        entries = list(walk_file(h5))
    plan = partial(
        plan_repack,
        entries,
        access=access,
        chunks=chunks,
        memory_nbytes=memory,
        datasets=datasets,
        slice_first=slice_first,
    )
    first = plan(codec=named)
    if codec != "auto" or not first.rewritten:
        return first
    # Of a file that has the right chunks without filters, nothing is to be rewritten.
    name, why = choose_codec(first, {p.path: _array(file, p.path) for p in first.rewritten})
    return replace(plan(codec=codec_named(name)), why=why)


def repack(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    access: str | None = None,
    chunks: tuple[int, ...] | None = None,
    codec: str = "auto",
    memory: int = _DEFAULT_MEMORY,
    datasets: str | None = None,
    slice_first: bool = False,
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
    codec
        "none", "lz4", "zstd", "gzip" or "blosc" (with LZ4); with byte shuffle, but for "none".
        "auto": gzip where a sample of the data becomes at least 1.5 times smaller by it, otherwise
        none; `RepackPlan.why` says so in numbers.
    memory
        Most bytes that the data in work take; what Python and the libraries hold comes on top.
    datasets
        Glob of the paths to be rewritten; virtual and external datasets that match become ordinary
        ones. Default: numbers with two axes or more, 64 KiB or more, but virtual and external ones.
        A dataset that has the chunks and the filters already is copied, chunks as they are stored.
    slice_first
        Move the axes of which a request takes one index to the front; an attribute
        (``hyperslab_axis_order``) says which axis of the source each one was.
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
        The target exists, or is the source; or an interrupted repack is in the way.
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
    _refuse_existing(final)
    if not final.parent.is_dir():
        raise OutputError(f"{final}: there is no folder {final.parent}.")
    plan = plan_file(
        origin,
        access=access,
        chunks=chunks,
        codec=codec,
        memory=memory,
        datasets=datasets,
        slice_first=slice_first,
    )
    _check_room(final, origin, plan)
    seen = fingerprint(str(origin))
    key = {
        "version": 1,
        "source": [str(origin), seen.nbytes, seen.mtime_ns],
        "how": [access, chunks, codec, memory, datasets, slice_first],
        # Of another version of hyperslab, regions may be others.
        "plan": zlib.crc32(repr(plan.rewritten).encode()),
    }
    _warn_of_elsewhere(plan, origin, final)
    stop = cancelled or threading.Event()
    tell = progress or (lambda _: None)
    spool = Spool(final.with_name(f"{final.name}.repacking"), _plain(key), resume=resume)
    try:
        if plan.in_place:
            resumed = _write_in_place(file, plan, spool, n_threads, tell, stop)
        else:
            resumed = _encode_all(file, plan, spool, n_threads, tell, stop)
            _write_file(origin, plan, spool, tell, stop)
        if verify:
            _verify(plan, spool, n_threads, tell, stop)
        _sync(spool.file)
        _refuse_existing(final)  # it may have come into being meanwhile
        os.replace(spool.file, final)
        _sync(final.parent)
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


def _refuse_existing(final: Path) -> None:
    if final.exists():
        raise OutputError(f"{final}: exists already. Delete it, or give another name.")


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


def _array(file: File, path: str) -> Array:
    found = file[path]
    if not isinstance(found, Array):
        raise TypeError(f"{path} is no dataset")
    return found


def _encode_all(
    file: File,
    plan: RepackPlan,
    spool: Spool,
    threads: int,
    tell: Callable[[Progress], None],
    stop: threading.Event,
) -> int:
    """Have every region in the spool; return how many bytes of them were there already."""
    done = resumed = 0
    for number, item in enumerate(plan.rewritten):
        array = _array(file, item.path)
        with Cutter(array, item, order=item.order, threads=threads, cancelled=stop) as cutter:
            for region_number, region in enumerate(item.regions()):
                nbytes = math.prod(part.stop - part.start for part in region) * item.itemsize
                if (number, region_number) in spool.done:
                    resumed += nbytes
                else:
                    spool.add(number, region_number, cutter.encoded(region))
                done += nbytes
                tell(Progress(stage="encode", done_nbytes=done, total_nbytes=plan.nbytes))
    return resumed


def _write_file(
    origin: Path,
    plan: RepackPlan,
    spool: Spool,
    tell: Callable[[Progress], None],
    stop: threading.Event,
) -> None:
    """Make the file: copies of all objects, and the chunks that the spool holds."""
    spool.file.unlink(missing_ok=True)
    plans = {item.path: item for item in plan.rewritten}
    done = 0
    with library_lock, session(str(origin)) as source:
        out, made, spool.left_out = copy_objects(source, spool.file, plans)
    with out:
        for number, item in enumerate(plan.rewritten):
            dataset = made[item.path]
            grid = [-(-n // c) for n, c in zip(item.shape, item.chunks, strict=True)]
            for chunk, data in spool.read(spool.of_dataset(number)):
                if stop.is_set():
                    raise Cancelled
                place = np.unravel_index(chunk, grid)
                offset = tuple(int(i) * c for i, c in zip(place, item.chunks, strict=True))
                dataset.id.write_direct_chunk(offset, data)
                done += len(data)
            tell(Progress(stage="write", done_nbytes=done, total_nbytes=spool.nbytes))


def _write_in_place(
    file: File,
    plan: RepackPlan,
    spool: Spool,
    threads: int,
    tell: Callable[[Progress], None],
    stop: threading.Event,
) -> int:
    """Make the file with room for every chunk, close it, and put the chunks where they belong.

    From then on HDF5 has nothing to do with it, so whenever this ends, the file is whole; which
    chunks are there, the journal says. Returns how many bytes were there already.
    """
    if not spool.made:
        spool.file.unlink(missing_ok=True)
        plans = {item.path: item for item in plan.rewritten}
        with library_lock, session(file.path) as source:
            out, _, left_out = copy_objects(source, spool.file, plans, in_place=True)
            out.close()
        _sync(spool.file)
        spool.mark_made(left_out)
    result = FileIndex(str(spool.file))
    tables = [result.chunk_table(item.path).byte_offset.tolist() for item in plan.rewritten]
    descriptor = os.open(spool.file, os.O_RDWR)
    done = resumed = 0
    try:
        for number, item in enumerate(plan.rewritten):
            array, offsets = _array(file, item.path), tables[number]

            def write(chunk: int, data: memoryview, offsets: list[int] = offsets) -> None:
                _write_all(descriptor, data.cast("B"), offsets[chunk])

            with Cutter(array, item, order=item.order, threads=threads, cancelled=stop) as cutter:
                for region_number, region in enumerate(item.regions()):
                    nbytes = math.prod(part.stop - part.start for part in region) * item.itemsize
                    if (number, region_number) in spool.done:
                        resumed += nbytes
                    else:
                        spool.add(
                            number,
                            region_number,
                            cutter.written(region, write),
                            before=lambda: os.fsync(descriptor),
                        )
                    done += nbytes
                    tell(Progress(stage="encode", done_nbytes=done, total_nbytes=plan.nbytes))
    finally:
        os.close(descriptor)
    return resumed


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _verify(
    plan: RepackPlan,
    spool: Spool,
    threads: int,
    tell: Callable[[Progress], None],
    stop: threading.Event,
) -> None:
    """Read every chunk of the result, and compare its bytes with those it was made from."""
    done = 0
    temporary = spool.file
    file = open_file(temporary)
    for number, item in enumerate(plan.rewritten):
        expected = {stored.number: stored.crc for stored in spool.of_dataset(number)}
        array = _array(file, item.path)
        order = tuple(range(len(item.shape)))
        with Cutter(array, item, order=order, threads=threads, cancelled=stop) as cutter:
            for region in item.regions():
                for chunk, crc in cutter.sums(region):
                    if expected.pop(chunk, None) != crc:
                        raise DamagedFileError(
                            f"{temporary}: chunk {chunk} of {item.path} does not read back as it "
                            "was written. The disk may be failing; there is no file under the "
                            "final name.",
                            file=str(temporary),
                            dataset=item.path,
                        )
                done += math.prod(part.stop - part.start for part in region) * item.itemsize
                tell(Progress(stage="verify", done_nbytes=done, total_nbytes=plan.nbytes))
        if expected:
            raise DamagedFileError(
                f"{temporary}: {len(expected)} chunks of {item.path} are missing.",
                file=str(temporary),
                dataset=item.path,
            )
