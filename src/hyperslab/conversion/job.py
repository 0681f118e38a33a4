"""`convert`: an image in a format that other programs read."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hyperslab.conversion import flat, tiff
from hyperslab.conversion.cluster import Run, on_cluster
from hyperslab.conversion.journal import Journal
from hyperslab.conversion.ome import attributes
from hyperslab.conversion.plan import ZarrPlan, plan_zarr
from hyperslab.conversion.region import Written, convert_region
from hyperslab.conversion.store import create_group, require_zarr
from hyperslab.engine.limits import limits
from hyperslab.engine.source import close_idle
from hyperslab.errors import CapacityError, OutputError
from hyperslab.exports.portable import Portable
from hyperslab.exports.text import human_nbytes, parse_nbytes
from hyperslab.image import Image, open_image
from hyperslab.rewriting.encode import Cancelled
from hyperslab.rewriting.memory import Memory
from hyperslab.rewriting.naming import refuse_existing

__all__ = ["ConversionReport", "convert", "plan_conversion"]

_DEFAULT_MEMORY = 1 << 30
_ENDINGS = (".zarr", ".npy", ".tif", ".tiff")

Plan = ZarrPlan | flat.FlatPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionReport:
    """What a conversion did.

    Attributes
    ----------
    source, target
        The file, and what was made.
    plan
        What was planned.
    nbytes, target_nbytes
        Decoded bytes of all that was converted, and what it takes on disk.
    resumed_nbytes
        Decoded bytes that an earlier run had done.
    chunks_decoded
        Chunks of the source that this run decoded.
    seconds
        From beginning to end, of this run.
    """

    source: str
    target: str
    plan: Plan
    nbytes: int
    target_nbytes: int
    resumed_nbytes: int
    chunks_decoded: int
    seconds: float


def plan_conversion(
    source: str | os.PathLike[str] | Image,
    target: str | os.PathLike[str],
    *,
    layout: str = "auto",
    axes: str | None = None,
    image: str | int | None = None,
    physical: bool = True,
    level: int = 0,
    selection: Any = Ellipsis,
    chunks: tuple[int, ...] | None = None,
    shards: tuple[int, ...] | None = None,
    codec: str | None = None,
    memory: int | str = _DEFAULT_MEMORY,
    threads: int | None = None,
) -> tuple[Image, Plan]:
    """Return the image, and what `convert` would do with it. Parameters and errors as there.

    Reads metadata only.
    """
    opened = (
        source
        if isinstance(source, Image)
        else open_image(source, layout, axes=axes, image=image, physical=physical)
    )
    ending = _ending(target)
    n_threads = threads or limits.threads
    if ending == ".zarr":
        if selection is not Ellipsis:
            raise OutputError("A selection can be converted to .npy or .tif, not to .ome.zarr.")
        require_zarr()
        return opened, plan_zarr(
            opened,
            level=level,
            chunks=chunks,
            shards=shards,
            codec=codec or "blosc",
            memory_nbytes=parse_nbytes(memory),
            threads=n_threads,
        )
    if chunks or shards or codec not in (None, "none"):
        raise OutputError(f"Chunks, shards and codecs are for .ome.zarr; {ending} has none.")
    plan = flat.plan_flat(
        opened,
        level=level,
        selection=selection,
        canonical=ending != ".npy",
        memory_nbytes=parse_nbytes(memory),
        threads=n_threads,
    )
    if ending != ".npy":
        tiff.require_tifffile()
        tiff.check_tiff(opened, plan)
    return opened, plan


def convert(
    source: str | os.PathLike[str] | Image,
    target: str | os.PathLike[str],
    *,
    layout: str = "auto",
    axes: str | None = None,
    image: str | int | None = None,
    physical: bool = True,
    level: int = 0,
    selection: Any = Ellipsis,
    chunks: tuple[int, ...] | None = None,
    shards: tuple[int, ...] | None = None,
    codec: str | None = None,
    memory: int | str = _DEFAULT_MEMORY,
    threads: int | None = None,
    scheduler: str | None = None,
    resume: bool = False,
    progress: Callable[[int, int], None] | None = None,
    cancelled: threading.Event | None = None,
) -> ConversionReport | None:
    """Write an image as OME-Zarr, ``.npy`` or OME-TIFF.

    Parameters
    ----------
    source
        Path of the file; or an image.
    target
        What to make: its ending, ``.ome.zarr`` (or ``.zarr``), ``.npy``, ``.tif`` or ``.tiff``,
        says the format. It appears under that name when it is complete.
    layout, axes, image, physical
        As in `hyperslab.open_image`.
    level
        The finest level to convert. OME-Zarr gets it and all coarser ones; other formats that one.
    selection
        For ``.npy`` and ``.tif``: numbers and slices of step 1, such as ``np.s_[0, :, 10:20]``.
    chunks, shards
        For OME-Zarr, in the order of its axes (time, channel, Z, Y, X). Default: chunks of 256
        pixels along Y and X and as many planes as make up to 1 MiB; shards of up to 64 MiB,
        through the volume first.
    codec
        For OME-Zarr: "blosc" (Zstandard after byte shuffle, the default), "zstd", "gzip" or "none".
    memory
        Most bytes that the data in work take, as a number or like "2GB"; what Python and the
        libraries hold comes on top. On a cluster, for each thread of a worker.
    threads
        To decode and encode with; default: the configured number. On a cluster, one for each
        region, and as many regions at once as the workers have threads.
    scheduler
        Address of a dask.distributed scheduler, for OME-Zarr: its workers write whole shards. They
        must see both paths.
    resume
        Go on with a conversion that was interrupted, from its finished shards.
    progress
        Called with the decoded bytes that are done, and all of them; from this thread.
    cancelled
        Set it to have the conversion stop: what was done is kept for `resume`.

    Returns
    -------
    ConversionReport or None
        None if it was cancelled.

    Raises
    ------
    OutputError
        The target exists, or its format cannot hold the image; or an interrupted conversion is in
        the way, or was of something else.
    CapacityError
        The disk has no room, or a shard does not fit under `memory`.
    SelectionError
        No such level, or a selection that does not fit.
    MissingExtraError
        zarr, tifffile or dask.distributed is not installed.
    LayoutError, StaleIndexError, DamagedFileError, ChunkDecodeError
        As reading an image. Nothing is lost, and there is no target.

    Notes
    -----
    The file's own levels are read from it, chunk by chunk, each decoded once where `memory` allows
    (`LevelPlan.decodings`). Levels that it lacks are made of the result's next finer one, by the
    rule of `Image.levels`. Everything is made in a folder beside the target,
    ``TARGET.converting``.
    """
    start = time.perf_counter()
    final = Path(os.path.abspath(os.fspath(target)))
    refuse_existing(final)
    n_threads = threads or limits.threads
    opened, plan = plan_conversion(
        source,
        target,
        layout=layout,
        axes=axes,
        image=image,
        physical=physical,
        level=level,
        selection=selection,
        chunks=chunks,
        shards=shards,
        codec=codec,
        memory=memory,
        threads=1 if scheduler else n_threads,
    )
    if scheduler and not isinstance(plan, ZarrPlan):
        raise OutputError("A cluster writes .ome.zarr only: leave --scheduler out.")
    folder = final.with_name(f"{final.name}.converting")
    if not folder.exists():
        _check_room(final, opened, plan)
    stop = cancelled or threading.Event()
    journal = Journal(folder, _key(opened, plan), resume=resume)
    tally = _Tally(plan.nbytes, progress)
    try:
        if isinstance(plan, ZarrPlan):
            _write_zarr(opened, plan, journal, tally, scheduler, stop)
        else:
            _write_flat(opened, plan, final.suffix, journal, tally, stop)
        journal.finish(final)
    except Cancelled:
        return None
    except OSError as error:
        if error.errno != errno.ENOSPC or isinstance(error, CapacityError):
            raise
        raise CapacityError(
            f"{final}: no space is left on the disk. Make room and go on with --resume "
            "(resume=True), or choose a codec that compresses.",
            file=str(final),
        ) from error
    finally:
        journal.close()
        close_idle()
    return ConversionReport(
        source=opened.file,
        target=str(final),
        plan=plan,
        nbytes=plan.nbytes,
        target_nbytes=_on_disk(final),
        resumed_nbytes=tally.resumed,
        chunks_decoded=tally.chunks_decoded,
        seconds=time.perf_counter() - start,
    )


class _Tally:
    """What is done so far."""

    def __init__(self, total: int, progress: Callable[[int, int], None] | None) -> None:
        self.total = total
        self.done = self.resumed = self.chunks_decoded = 0
        self._progress = progress

    def add(self, nbytes: int, *, resumed: bool = False, chunks_decoded: int = 0) -> None:
        self.done += nbytes
        self.resumed += nbytes if resumed else 0
        self.chunks_decoded += chunks_decoded
        if self._progress is not None:
            self._progress(self.done, self.total)


def _ending(target: str | os.PathLike[str]) -> str:
    ending = Path(os.fspath(target)).suffix.lower()
    if ending not in _ENDINGS:
        raise OutputError(
            f"{os.fspath(target)}: the ending says what to make: .ome.zarr, .npy, .tif or .tiff."
        )
    return ending


def _key(image: Image, plan: Plan) -> dict[str, Any]:
    """Return what is made of what, as JSON gives it back."""
    seen = image.container.fingerprint
    key = {
        "version": 1,
        "source": [image.file, seen.nbytes, seen.mtime_ns],
        "image": [image.layout, image.name, *image.request],
        "plan": asdict(plan),
    }
    found: dict[str, Any] = json.loads(json.dumps(key, default=repr))
    for part in (found["plan"], *found["plan"].get("levels", [])):
        part.pop("threads", None)  # whoever goes on may have more or fewer
    return found


def _check_room(final: Path, image: Image, plan: Plan) -> None:
    """Raise unless the disk has room, by what is known beforehand."""
    wanted = plan.nbytes
    if isinstance(plan, ZarrPlan) and plan.codec != "none":
        # Of data that are compressed already: about as much again, and a third for levels.
        wanted = min(wanted, image.container.fingerprint.nbytes * 4 // 3)
    free = shutil.disk_usage(final.parent).free
    if wanted > free:
        raise CapacityError(
            f"{final}: about {human_nbytes(wanted)} are needed, and the disk has "
            f"{human_nbytes(free)} free. Choose a coarser level, or another disk.",
            file=str(final),
            wanted_nbytes=wanted,
            at_hand_nbytes=free,
        )


def _write_zarr(
    image: Image,
    plan: ZarrPlan,
    journal: Journal,
    tally: _Tally,
    scheduler: str | None,
    stop: threading.Event,
) -> None:
    group = journal.data
    if not journal.begun:
        journal.begin(list(create_group(group, plan, attributes(image, plan))))
    nearest = image.spec.labels or image.dtype.kind == "b"

    memory = Memory()

    def here(
        source: Portable, number: int, regions: Iterator[tuple[slice, ...]]
    ) -> Iterator[Written]:
        for region in regions:
            if stop.is_set():
                raise Cancelled
            yield convert_region(
                group, source, plan, number, region,
                nearest=nearest, memory=memory, cancelled=stop,
            )  # fmt: skip

    runner: AbstractContextManager[Run] = nullcontext(here)
    if scheduler is not None:
        runner = on_cluster(scheduler, group, plan, nearest=nearest, cancelled=stop)
    with runner as run:
        for number, level in enumerate(plan.levels):
            source = Portable(image.levels[level.number])
            rest = _rest(journal, number, level.regions(), level.itemsize, tally)
            for written in run(source, number, rest):
                journal.add(number, written.start, written.files)
                tally.add(written.nbytes, chunks_decoded=written.chunks_decoded)


def _rest(
    journal: Journal,
    number: int,
    regions: Iterator[tuple[slice, ...]],
    itemsize: int,
    tally: _Tally,
) -> Iterator[tuple[slice, ...]]:
    """Yield the regions that are not there yet."""
    for region in regions:
        if journal.has(number, tuple(part.start for part in region)):
            nbytes = itemsize
            for part in region:
                nbytes *= part.stop - part.start
            tally.add(nbytes, resumed=True)
        else:
            yield region


def _write_flat(
    image: Image,
    plan: flat.FlatPlan,
    ending: str,
    journal: Journal,
    tally: _Tally,
    stop: threading.Event,
) -> None:
    path = journal.data
    header = journal.folder / "header.json"
    if not journal.begun:
        if ending.lower() == ".npy":
            byte_offset = flat.create_npy(path, plan)
        else:
            byte_offset = tiff.create_tiff(path, image, plan)
        header.write_text(json.dumps(byte_offset))
        journal.begin([path, header])
    byte_offset = int(json.loads(header.read_text()))
    flat.check_size(path, byte_offset + plan.nbytes)
    itemsize = image.levels[plan.level].dtype.itemsize
    rest = _rest(journal, 0, plan.regions(), itemsize, tally)
    for written in flat.copy_regions(path, byte_offset, image, plan, rest, cancelled=stop):
        journal.add(0, written.start, written.files)
        tally.add(written.nbytes, chunks_decoded=written.chunks_decoded)


def _on_disk(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(item.stat().st_size for item in path.rglob("*") if item.is_file())
