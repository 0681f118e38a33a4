"""Cases in parallel: looked at by their headers, then packed into the spool."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from hyperslab.codecs.encode import CODECS, Codec
from hyperslab.packing.find import Found, FoundCase
from hyperslab.packing.plan import CasePlan, ImagePlan, Options, image_order, plan_case
from hyperslab.packing.records import Progress, RefusedCase
from hyperslab.packing.refusal import NotAnImage, Refused
from hyperslab.packing.sources import Source, read_header
from hyperslab.packing.volume import Header
from hyperslab.packing.work import PackedChunks, pack_image, sample_image
from hyperslab.rewriting.choose import codec_for
from hyperslab.rewriting.encode import Cancelled
from hyperslab.rewriting.spool import Spool

__all__ = ["Packed", "choose_codecs", "look_at_cases", "pack_cases"]

Tell = Callable[[Progress], None]

_POLL_S = 0.1


def look_at_cases(
    found: Found, options: Options, threads: int, tell: Tell, stop: threading.Event
) -> tuple[list[CasePlan], list[RefusedCase], list[str]]:
    """Read the headers of all cases; return what is planned for each, or why it is left out.

    The last of the three is DICOM series that are no images, which cases have beside them.

    Raises
    ------
    Cancelled
        Somebody wants it to stop.
    MissingExtraError
        A package that reads the images is not installed.
    """

    beside: list[str] = []

    def look(case: FoundCase) -> CasePlan | RefusedCase:
        if stop.is_set():
            raise Cancelled
        try:
            return plan_case(case, _headers(case, beside), options)
        except Refused as error:
            return RefusedCase(folder=case.folder, reason=str(error))

    plans: list[CasePlan] = []
    refused: list[RefusedCase] = []
    with ThreadPoolExecutor(threads, thread_name_prefix="hyperslab-pack") as pool:
        for n, result in enumerate(pool.map(look, found.cases), start=1):
            if isinstance(result, CasePlan):
                plans.append(result)
            else:
                refused.append(result)
            tell(Progress(stage="look", done=n, total=len(found.cases)))
    return plans, refused, sorted(beside)


def _headers(case: FoundCase, beside: list[str]) -> list[tuple[str, Source, Header]]:
    found = []
    for name, source in case.images:
        try:
            found.append((name, source, read_header(source)))
        except NotAnImage:
            if name:  # it is called an image
                raise
            beside.append(source.path)
    if not found:
        raise Refused("it holds DICOM files, but no images")
    return found


def choose_codecs(
    plans: Sequence[CasePlan], name: str, options: Options
) -> dict[str, tuple[str, str]]:
    """Return the codec of each group, and why.

    Parameters
    ----------
    plans
        The cases.
    name
        Of the codec; "auto" to choose it for each group, by a sample of its largest image that can
        be read. As in a repack, sizes decide: they come out the same each time.
    options
        What was chosen.
    """
    images: dict[str, list[ImagePlan]] = {}
    for case in plans:
        for image in case.images:
            images.setdefault(image.image, []).append(image)
    groups = sorted(images, key=image_order)
    if name != "auto":
        return dict.fromkeys(groups, (name, ""))
    found = {}
    for group in groups:
        found[group] = ("none", "no image of it can be read")
        for image in sorted(images[group], key=lambda one: -one.nbytes):
            try:
                found[group] = codec_for(sample_image(image, options.chunks))
                break
            except Refused:
                continue  # its case is refused in its turn
    return found


@dataclass(slots=True)
class Packed:
    """What has become of the cases.

    Attributes
    ----------
    done
        Cases, with the numbers of their images in the spool.
    refused
        Cases that turned out not to be packable.
    resumed
        Images that an earlier run had done.
    """

    done: list[tuple[CasePlan, tuple[int, ...]]] = field(default_factory=list)
    refused: list[RefusedCase] = field(default_factory=list)
    resumed: int = 0


def pack_cases(
    plans: Sequence[CasePlan],
    codecs: Mapping[str, tuple[str, str]],
    options: Options,
    spool: Spool,
    threads: int,
    tell: Tell,
    stop: threading.Event,
) -> Packed:
    """Have the chunks of every case in the spool.

    A case is one task: its images are read one after the other. As many are in work as there are
    threads and as `Options.memory_nbytes` has room for.

    Raises
    ------
    Cancelled
        Somebody wants it to stop.
    OSError
        The spool cannot be written.
    """
    run = _Run(plans, codecs, options, spool, tell, stop)
    with ThreadPoolExecutor(threads, thread_name_prefix="hyperslab-pack") as pool:
        try:
            run.work(pool, threads)
        finally:
            run.halt.set()  # whatever has happened, nobody waits for the cases in work
    order = {plan.name: i for i, plan in enumerate(plans)}
    run.packed.done.sort(key=lambda entry: order[entry[0].name])
    run.packed.refused.sort(key=lambda entry: entry.folder)
    return run.packed


class _Run:
    """The cases that wait, that are in work, and that are done."""

    def __init__(
        self,
        plans: Sequence[CasePlan],
        codecs: Mapping[str, tuple[str, str]],
        options: Options,
        spool: Spool,
        tell: Tell,
        stop: threading.Event,
    ) -> None:
        self.packed = Packed()
        self.halt = threading.Event()
        self._plans = list(plans)
        self._codecs = {group: CODECS[name] for group, (name, _) in codecs.items()}
        self._options = options
        self._spool = spool
        self._tell = tell
        self._stop = stop
        # What the spool has; of what is there twice, the later one.
        self._there = {facts["key"]: number for (number, _), facts in sorted(spool.facts.items())}
        self._next = 1 + max((number for number, _ in spool.done), default=-1)
        self._done_nbytes, self._total_nbytes = 0, sum(plan.nbytes for plan in plans)
        self._working: dict[Future[list[PackedChunks | None]], CasePlan] = {}

    def work(self, pool: ThreadPoolExecutor, threads: int) -> None:
        for plan in self._plans:
            while self._working and not self._has_room(plan, threads):
                self._take()
            if all(self._key(image) in self._there for image in plan.images):
                self._finish(plan, [None] * len(plan.images))
            else:
                self._working[pool.submit(self._pack, plan)] = plan
        while self._working:
            self._take()

    def _has_room(self, plan: CasePlan, threads: int) -> bool:
        used = sum(other.work_nbytes for other in self._working.values())
        return (
            len(self._working) < threads and used + plan.work_nbytes <= self._options.memory_nbytes
        )

    def _take(self) -> None:
        """Wait until a case is done, and put it into the spool."""
        done: set[Future[list[PackedChunks | None]]] = set()
        while not done:
            if self._stop.is_set():
                raise Cancelled
            done, _ = wait(self._working, timeout=_POLL_S, return_when=FIRST_COMPLETED)
        for future in done:
            plan = self._working.pop(future)
            try:
                self._finish(plan, future.result())
            except Refused as error:
                self.packed.refused.append(RefusedCase(folder=plan.folder, reason=str(error)))
                self._count(plan)

    def _pack(self, plan: CasePlan) -> list[PackedChunks | None]:
        """Pack the images of a case that the spool does not have; by a thread of the pool."""
        return [
            None
            if self._key(image) in self._there
            else pack_image(image, self._codec(image), self._options.chunks, self.halt)
            for image in plan.images
        ]

    def _finish(self, plan: CasePlan, images: Sequence[PackedChunks | None]) -> None:
        numbers = []
        for image, made in zip(plan.images, images, strict=True):
            key = self._key(image)
            if made is None:
                self.packed.resumed += 1
                numbers.append(self._there[key])
                continue
            number, self._next = self._next, self._next + 1
            self._spool.add(number, 0, iter(made.chunks), facts={"key": key, **made.facts})
            numbers.append(number)
        self.packed.done.append((plan, tuple(numbers)))
        self._count(plan)

    def _count(self, plan: CasePlan) -> None:
        self._done_nbytes += plan.nbytes
        self._tell(Progress(stage="pack", done=self._done_nbytes, total=self._total_nbytes))

    def _codec(self, image: ImagePlan) -> Codec:
        return self._codecs[image.image]

    def _key(self, image: ImagePlan) -> str:
        """Return what an image that is in the spool has to agree in, to be taken from there."""
        return json.dumps(
            [
                image.image,
                image.source.path,
                image.fingerprint,
                repr(image.rule),
                repr(image.target),
                self._codec(image).name,
            ]
        )
