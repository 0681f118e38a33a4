"""One turn of one loader: batches for a while, in a process of its own, and what they took."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from hyperslab.cli.training_advice import advised_loader
from hyperslab.engine import cache
from hyperslab.errors import HyperslabError

if TYPE_CHECKING:
    from hyperslab.torch import SliceLoader

__all__ = ["ARTEFACTS", "Artefacts", "Task", "Turn", "iterate", "our_loader", "take_turn"]

Batches = Generator[dict[str, Any], None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefacts:
    """How the source is misaligned and moved, each with probability `p`.

    Attributes
    ----------
    p
        For each sample and each of the two.
    misalign_pixels, misalign_degrees
        Shifts and angle are uniform between minus and plus this.
    moves
        Moved images that are mixed in.
    motion_pixels, motion_degrees
        How far each of them moves at most.
    """

    p: float = 0.5
    misalign_pixels: float = 5.0
    misalign_degrees: float = 2.0
    moves: int = 3
    motion_pixels: float = 10.0
    motion_degrees: float = 5.0


ARTEFACTS = Artefacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What both sides do.

    Attributes
    ----------
    path
        HDF5 file.
    inputs
        Input name to group. The first is the source, which artefacts befall.
    axis
        Slice axis: 0, 1 or 2.
    samples
        Case and slice of each sample.
    batch
        Samples in a batch.
    crop
        Side of the square window, pixels.
    quarter_turns
        Whether planes are turned; only square ones can be, in a batch.
    artefacts
        None: there are none.
    track_meta
        Whether MONAI carries metadata along with each tensor, which is its default.
    """

    path: str
    inputs: dict[str, str]
    axis: int
    samples: tuple[tuple[str, int], ...]
    batch: int
    crop: int
    quarter_turns: bool
    artefacts: Artefacts | None
    track_meta: bool

    @property
    def source(self) -> str:
        """Name of the first input."""
        return next(iter(self.inputs))

    @property
    def images(self) -> list[str]:
        """Names of the inputs that are clamped: all but the mask, M."""
        return [name for name in self.inputs if name != "M"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one turn took.

    Attributes
    ----------
    pairs
        Samples handed over.
    wall_s
        Time for them, seconds.
    cpu_s
        CPU time, user and system, of the process and its workers during that time, seconds. None
        where a system does not tell the workers' share.
    peak_rss_nbytes
        Largest resident memory of the process since it began, plus the same of each worker. A page
        that several share (libraries, what a fork left in common, batches handed over) counts in
        each, and so do pages of files that are mapped. None where a system does not tell.
    """

    pairs: int
    wall_s: float
    cpu_s: float | None
    peak_rss_nbytes: int | None


def take_turn(task: Task, *, workers: int | None, seconds: float) -> Turn:
    """Let one loader work for a while, in a fresh process.

    Parameters
    ----------
    task
        What to do.
    workers
        Of the web's advice: DataLoader's processes. None: hyperslab's loader.
    seconds
        How long, after a warm-up.

    Raises
    ------
    HyperslabError
        The process ended before it was done; and whatever reading the file raises.

    Notes
    -----
    PyTorch's own threads are limited to one in every process: the work is done by the advice's
    worker processes, or by hyperslab's threads, and others beside them would only get in the way.
    (DataLoader limits its workers in the same way.)

    *The advice* is measured in its stride. The warm-up is a first batch of each worker. Since
    batches of equally fast workers come in groups, the clock stops after a group.

    *hyperslab* reads ahead at the beginning of an epoch, so it is measured from there: up to the
    end of the last epoch that ended in time, or up to `seconds` if none did; what it has decoded by
    then and not handed over counts against it. The warm-up is an epoch before, or `seconds` of it.
    Decoded chunks in hyperslab's cache are forgotten between epochs, so that a small file is not
    served from there.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        try:
            return process.submit(_turn, task, workers, seconds).result()
        except BrokenProcessPool as error:
            which = "hyperslab's loader" if workers is None else f"the advice, {workers} workers,"
            raise HyperslabError(
                f"{task.path}: the process that measured {which} ended before it was done. It may "
                "have run out of memory: try a smaller --batch.",
                file=task.path,
            ) from error


def _turn(task: Task, workers: int | None, seconds: float) -> Turn:
    import torch

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the peers'; ours were shown when the file was checked
        if workers is None:
            epoch = _our_epochs(task)
            with closing(epoch(0)) as batches:
                _count(batches, time.perf_counter() + seconds, group=1)
        else:
            epoch = _advised_epochs(task, workers)
        try:
            return _measure(epoch, workers, seconds)
        finally:
            if workers:
                _end_workers()


def our_loader(task: Task) -> SliceLoader:
    """Return hyperslab's loader for `task`, block shuffle and all else as by default."""
    from hyperslab.torch import SliceDataset, SliceLoader
    from hyperslab.torch import transforms as T

    steps: list[T.Transform] = [T.RandomFlip(both=True)]
    if task.quarter_turns:
        steps.append(T.RandomRotate90())
    if task.artefacts is not None:
        found = task.artefacts
        steps += [
            T.Misalign(
                task.source,
                pixels=found.misalign_pixels,
                degrees=found.misalign_degrees,
                p=found.p,
            ),
            T.MotionArtifact(
                task.source,
                p=found.p,
                moves=found.moves,
                pixels=found.motion_pixels,
                degrees=found.motion_degrees,
            ),
        ]
    steps += [T.Clamp(-1, 1), T.RandomCrop(task.crop)]
    return SliceLoader(
        SliceDataset(task.path, inputs=task.inputs, axis=task.axis),
        batch_size=task.batch,
        transforms=T.Compose(steps),
    )


def iterate(loader: Iterable[dict[str, Any]]) -> Batches:
    """Yield a loader's batches; closing this generator ends what reads ahead."""
    yield from loader


def _our_epochs(task: Task) -> Callable[[int], Batches]:
    loader = our_loader(task)

    def epoch(number: int) -> Batches:
        cache.forget()
        loader.set_epoch(number)
        return iterate(loader)

    return epoch


def _advised_epochs(task: Task, workers: int) -> Callable[[int], Batches]:
    loader = advised_loader(task, workers=workers)
    return lambda number: iterate(loader)


def _measure(epoch: Callable[[int], Batches], workers: int | None, seconds: float) -> Turn:
    """Count from the beginning of an epoch, or for the advice after a group of batches."""
    group = max(1, workers or 0)
    number, pairs, ended = 1, 0, None
    batches = epoch(number)
    if workers is not None:
        deque(islice(batches, group), maxlen=0)
    start, cpu_before = time.perf_counter(), _cpu_s()

    def so_far() -> Turn:
        wall_s, cpu_now = time.perf_counter() - start, _cpu_s()
        cpu_s = None if cpu_before is None or cpu_now is None else cpu_now - cpu_before
        return Turn(pairs=pairs, wall_s=wall_s, cpu_s=cpu_s, peak_rss_nbytes=_peak_rss_nbytes())

    while True:
        with closing(batches):
            counted, done = _count(batches, start + seconds, group=group)
            pairs += counted
            turn = so_far()
        if not done:
            return ended if ended is not None and workers is None else turn
        if time.perf_counter() >= start + seconds and pairs:
            return turn
        ended = turn
        number += 1
        batches = epoch(number)


def _count(batches: Iterable[dict[str, Any]], until: float, *, group: int) -> tuple[int, bool]:
    """Take batches; return how many samples they held, and whether there are no more of them.

    Stops after the first group of batches that takes it past the time `until`.
    """
    pairs = 0
    for i, batch in enumerate(batches, 1):
        pairs += len(batch["case"])
        if i % group == 0 and time.perf_counter() >= until:
            return pairs, False
    return pairs, True


def _end_workers() -> None:
    """End DataLoader's workers in the middle of their batches.

    Its own way is to wait for these, and a worker that hands one over just then may abort.
    """
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or PyTorch would raise at their end
    workers = multiprocessing.active_children()
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join()


def _cpu_s() -> float | None:
    """Return the CPU time that this process and its living workers have taken, seconds."""
    found = time.process_time()
    for worker in multiprocessing.active_children():
        try:
            with open(f"/proc/{worker.pid}/stat", encoding="utf-8") as stream:
                fields = stream.read().rpartition(")")[2].split()
        except OSError:
            return None  # not Linux
        found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def _peak_rss_nbytes() -> int | None:
    """Return the peak resident memory of this process, and of each living worker, added up."""
    workers = multiprocessing.active_children()
    try:
        return sum(_high_water_nbytes(pid) for pid in [os.getpid(), *(w.pid for w in workers)])
    except OSError:
        pass  # not Linux
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None if workers else peak * (1 if sys.platform == "darwin" else 1024)


def _high_water_nbytes(pid: int | None) -> int:
    with open(f"/proc/{pid}/status", encoding="utf-8") as stream:
        for line in stream:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/{pid}/status does not tell the peak of the resident memory")
