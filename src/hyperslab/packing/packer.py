"""`pack`: folders of cases into a file that is ready for training."""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hyperslab.codecs.encode import codec as codec_named
from hyperslab.engine.limits import limits
from hyperslab.engine.source import close_idle
from hyperslab.errors import CapacityError
from hyperslab.exports.text import human_nbytes, parse_nbytes
from hyperslab.packing.cases import Packed, choose_codecs, look_at_cases, pack_cases
from hyperslab.packing.find import find_cases
from hyperslab.packing.intensity import parse_map
from hyperslab.packing.patterns import parse_pattern
from hyperslab.packing.plan import CasePlan, Options
from hyperslab.packing.records import PackedCase, PackReport, Progress
from hyperslab.packing.sources import quiet_readers
from hyperslab.packing.write import Entry, verify_file, write_file
from hyperslab.rewriting.copy import disk_full, says_full
from hyperslab.rewriting.encode import Cancelled
from hyperslab.rewriting.naming import give_name, refuse_existing
from hyperslab.rewriting.spool import Spool

__all__ = ["pack"]

_DEFAULT_MEMORY = 2 << 30
_COMPRESSED = 2  # how many times smaller data are taken to become, when room is looked for


def pack(
    folder: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    patterns: Sequence[str] = (),
    maps: Mapping[str, str] | None = None,
    resample: str = "",
    require: Sequence[str] = (),
    rename: bool = False,
    codec: str = "auto",
    chunks: tuple[int, int, int] | None = None,
    memory: int | str = _DEFAULT_MEMORY,
    threads: int | None = None,
    resume: bool = False,
    verify: bool = True,
    dry_run: bool = False,
    progress: Callable[[Progress], None] | None = None,
    cancelled: threading.Event | None = None,
) -> PackReport | None:
    """Write the cases of a folder into one HDF5 file: a group for each image, a dataset a case.

    Parameters
    ----------
    folder
        Where cases are looked for, see `hyperslab.packing.find`: trees of SynthRAD 2023 and 2025,
        folders of DICOM series.
    target
        The new file. It appears under that name when it is complete.
    patterns
        Where the images are instead, such as "{case}/{image}.nii.gz"; see
        `hyperslab.packing.patterns`.
    maps
        Group to what becomes of its values: "window:LOW:HIGH", "percentiles:LOW:HIGH", "zscore:N",
        "none" or "mask". By default CT and CBCT "window:-1024:3000", MASK "mask", and all others
        "percentiles:0.5:99.5". All but the last two give float32 in [-1, 1]; "mask" is uint8 and
        unchanged, "none" unchanged.
    resample
        Group whose grid the other images of a case are brought onto, where theirs differ: linearly,
        masks by the nearest voxel. What is outside of an image becomes the low end of its window,
        0 in masks, and else the least value of the image. "": a case whose grids differ is refused.
    require
        Groups that every case must have; one that lacks any is refused.
    rename
        Call the cases case0001, case0002 ... and write nowhere what their folders are called.
    codec
        "none", "lz4", "zstd", "gzip" or "blosc". "auto": for each group, gzip where a sample
        becomes at least 1.5 times smaller by it, otherwise none.
    chunks
        Chunk shape (rows, columns, slices); by default one slice, up to a MiB.
    memory
        Most bytes that the data in work take, as a number or like "2GB"; what Python and the
        libraries hold comes on top. A case that takes more by itself is refused.
    threads
        Cases that are in work at a time; default: the configured number.
    resume
        Go on with a pack that was interrupted. Images whose files have changed are read again.
    verify
        Read everything back, and compare it with what it was made from.
    dry_run
        Read headers only, and write nothing.
    progress
        Called now and then, from this thread.
    cancelled
        Set it to have the pack stop: what was done is kept for `resume`.

    Returns
    -------
    PackReport or None
        None if it was cancelled. Where every case is refused, there is no file.

    Raises
    ------
    MissingFileError
        There is no such folder.
    LayoutError
        No case was found.
    OutputError
        The target exists; or an interrupted pack is in the way.
    CapacityError
        The disk has no room.
    MissingExtraError
        The package that reads a format (nibabel, SimpleITK, pydicom) is not installed.
    ValueError
        A pattern, a map or a codec makes no sense.

    Notes
    -----
    A case is refused, and the others are packed, where an image cannot be read, its grid is not
    that of the others, or its values make no sense; the report says why. Axes are
    (rows, columns, slices), as `hyperslab.packing.grid` says; attributes keep the geometry and how
    values come back (`hyperslab.packing.restore`). Of DICOM only geometry, modality and rescale are
    read. The same images give the same file, bit for bit, whatever the number of threads and
    interruptions. Encoded chunks are kept in ``TARGET.packing`` until all are there: that takes
    twice the size of the result for a moment.
    """
    start = time.perf_counter()
    origin, final = Path(os.path.abspath(folder)), Path(os.path.abspath(target))
    if codec != "auto":
        codec_named(codec)  # raises
    options = Options(
        maps={group: parse_map(text) for group, text in (maps or {}).items()},
        resample=resample,
        require=tuple(require),
        chunks=chunks,
        memory_nbytes=parse_nbytes(memory),
    )
    n_threads = threads or limits.threads
    stop, tell = cancelled or threading.Event(), progress or (lambda _: None)
    read_patterns = [parse_pattern(text) for text in patterns]
    if not dry_run:
        refuse_existing(final)
    found = find_cases(str(origin), read_patterns)
    report = PackReport(
        folder=str(origin),
        target="",
        cases=(),
        refused=(),
        ignored=(),
        codecs={},
        nbytes=0,
        target_nbytes=0,
        seconds=0.0,
        verified=False,
    )
    try:
        with quiet_readers():
            plans, refused, beside = look_at_cases(found, options, n_threads, tell, stop)
            ignored = (*found.ignored, *(os.path.relpath(path, origin) for path in beside))
            report = replace(report, refused=tuple(refused), ignored=ignored)
            if dry_run or not plans:
                return _finished(report, _planned(plans, str(origin), rename), start)
            key = {
                "version": 1,
                "folder": str(origin),
                "how": [
                    list(patterns), dict(maps or {}), resample, list(require), codec, chunks, rename
                ],
            }  # fmt: skip
            spool = Spool(
                final.with_name(f"{final.name}.packing"),
                json.loads(json.dumps(key)),
                resume=resume,
                what="pack",
            )
            try:
                codecs = choose_codecs(plans, codec, options)
                _check_room(final, plans, codecs, spool)
                packed = pack_cases(plans, codecs, options, spool, n_threads, tell, stop)
                report = replace(
                    report,
                    refused=(*refused, *packed.refused),
                    codecs=codecs,
                    resumed=packed.resumed,
                    verified=verify,
                )
                entries = _entries(packed, spool, rename)
                cases = _reported(packed, entries, spool, str(origin), rename)
                if not entries:
                    spool.delete()
                    return _finished(replace(report, verified=False), (), start)
                write_file(spool.file, entries, spool, tell, stop)
                if verify:
                    verify_file(
                        spool.file,
                        entries,
                        spool,
                        threads=n_threads,
                        memory_nbytes=options.memory_nbytes,
                        tell=tell,
                        stop=stop,
                    )
                close_idle()
                give_name(spool.file, final)
                spool.delete()
            except BaseException as error:
                spool.close()
                if not spool.done:  # there is nothing to go on with
                    shutil.rmtree(spool.folder, ignore_errors=True)
                if isinstance(error, OSError | RuntimeError) and says_full(error):
                    raise disk_full(str(final)) from error
                raise
            finally:
                spool.close()
                close_idle()
    except Cancelled:
        return None
    report = replace(report, target=str(final), target_nbytes=final.stat().st_size)
    return _finished(report, cases, start)


def _finished(report: PackReport, cases: tuple[PackedCase, ...], start: float) -> PackReport:
    return replace(
        report,
        cases=cases,
        nbytes=sum(image.nbytes for case in cases for image in case.images),
        seconds=time.perf_counter() - start,
        refused=tuple(sorted(report.refused, key=lambda case: case.folder)),
    )


def _names(plans: Sequence[CasePlan], rename: bool) -> list[str]:
    return [f"case{i:04d}" if rename else plan.name for i, plan in enumerate(plans, start=1)]


def _planned(plans: Sequence[CasePlan], folder: str, rename: bool) -> tuple[PackedCase, ...]:
    names = _names(plans, rename)
    return tuple(
        replace(plan.described(folder), case=name) for plan, name in zip(plans, names, strict=True)
    )


def _check_room(
    final: Path,
    plans: Sequence[CasePlan],
    codecs: Mapping[str, tuple[str, str]],
    spool: Spool,
) -> None:
    """Raise unless the disk has room for the spool and the file, by what is known beforehand."""
    nbytes = sum(
        image.nbytes // (1 if codecs[image.image][0] == "none" else _COMPRESSED)
        for plan in plans
        for image in plan.images
    )
    wanted = max(nbytes, 2 * nbytes - spool.nbytes)
    free = shutil.disk_usage(final.parent).free
    if wanted > free:
        raise CapacityError(
            f"{final}: about {human_nbytes(wanted)} are needed for a moment, and the disk has "
            f"{human_nbytes(free)} free. Choose a codec that compresses, or another disk.",
            file=str(final),
            wanted_nbytes=wanted,
            at_hand_nbytes=free,
        )


def _entries(packed: Packed, spool: Spool, rename: bool) -> list[Entry]:
    names = _names([plan for plan, _ in packed.done], rename)
    return [
        Entry(
            case=name,
            plan=image,
            facts=spool.facts[(number, 0)],
            number=number,
            folder="" if rename else plan.folder,
        )
        for name, (plan, numbers) in zip(names, packed.done, strict=True)
        for image, number in zip(plan.images, numbers, strict=True)
    ]


def _reported(
    packed: Packed, entries: Sequence[Entry], spool: Spool, folder: str, rename: bool
) -> tuple[PackedCase, ...]:
    cases = _planned([plan for plan, _ in packed.done], folder, rename)
    each = iter(entries)
    found = []
    for case in cases:
        images = []
        for image in case.images:
            entry: Any = next(each)
            facts = entry.facts
            low_high = facts["window"]
            images.append(
                replace(
                    image,
                    source_range=tuple(facts["source_range"]),
                    stored_range=tuple(facts["stored_range"]),
                    window=None if low_high is None else tuple(low_high),
                    clipped=facts["clipped"],
                    dtype=facts["dtype"],
                    chunks=tuple(facts["chunks"]),
                    codec=facts["codec"],
                    nbytes=_nbytes(image.shape, facts["dtype"]),
                    stored_nbytes=sum(s.nbytes for s in spool.of_dataset(entry.number)),
                )
            )
        found.append(replace(case, images=tuple(images)))
    return tuple(found)


def _nbytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize
