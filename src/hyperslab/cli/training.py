"""``hyperslab bench --training FILE``: our loader and the web's advice in turn."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from hyperslab.array import Array
from hyperslab.cli.figures import new_figure, save
from hyperslab.cli.listing import filter_words, shape_words
from hyperslab.cli.terminal import console, memory_nbytes, progress, size, times
from hyperslab.cli.timing import machine_facts, machine_line
from hyperslab.cli.training_advice import Slices
from hyperslab.cli.training_turn import ARTEFACTS, Task, Turn, iterate, take_turn
from hyperslab.engine import cache
from hyperslab.errors import HyperslabError, MissingExtraError, SampleError
from hyperslab.file import open_file

if TYPE_CHECKING:
    import torch

__all__ = [
    "Contender",
    "Contest",
    "hold_contest",
    "make_task",
    "run",
    "training_facts",
    "warm_page_cache",
]

ADVISED_WORKERS = (0, 2, 4)
_CHECKED_BATCHES = 2
_CHECKED_BATCH = 16  # samples, at most
_CHECK_WINDOW_NBYTES = 64 << 20
_READ_NBYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One loader, and what each of its turns took.

    Attributes
    ----------
    workers
        Of the web's advice: DataLoader's processes. None: hyperslab's loader.
    turns
        One a round.
    """

    workers: int | None
    turns: tuple[Turn, ...]

    @property
    def title(self) -> str:
        """For people."""
        if self.workers is None:
            return "hyperslab"
        return f"advice, {self.workers} workers" if self.workers else "advice, no workers"

    @property
    def pairs_per_s(self) -> float:
        """Samples per second of wall time, median of the turns."""
        return statistics.median(turn.pairs / turn.wall_s for turn in self.turns)

    @property
    def cpu_s_per_1000_pairs(self) -> float | None:
        """CPU seconds for a thousand samples, median of the turns; None if not known."""
        known = [1000 * t.cpu_s / t.pairs for t in self.turns if t.cpu_s is not None]
        return statistics.median(known) if known else None

    @property
    def peak_rss_nbytes(self) -> int | None:
        """Largest of the turns; None if not known."""
        known = [t.peak_rss_nbytes for t in self.turns if t.peak_rss_nbytes is not None]
        return max(known, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What came out.

    Attributes
    ----------
    checked
        Samples that were found to be equal, bit for bit, before anything was timed.
    ours, advised
        hyperslab's loader, and the advice with each number of workers.
    """

    checked: int
    ours: Contender
    advised: tuple[Contender, ...]

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """All of them, ours first."""
        return self.ours, *self.advised

    @property
    def best(self) -> Contender:
        """The fastest of the advice."""
        return max(self.advised, key=lambda contender: contender.pairs_per_s)

    @property
    def times_faster(self) -> float:
        """hyperslab's pairs per second by the best advice's."""
        return self.times_best(self.ours)

    def times_best(self, contender: Contender) -> float:
        """Return a contender's pairs per second by the best advice's."""
        return contender.pairs_per_s / self.best.pairs_per_s

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "checked_samples": self.checked,
            "contenders": [
                {
                    "contender": "hyperslab" if contender.workers is None else "advice",
                    "workers": contender.workers,
                    "pairs_per_s": contender.pairs_per_s,
                    "cpu_s_per_1000_pairs": contender.cpu_s_per_1000_pairs,
                    "peak_rss_nbytes": contender.peak_rss_nbytes,
                    "times_best_advice": self.times_best(contender),
                    "turns": [asdict(turn) for turn in contender.turns],
                }
                for contender in self.contenders
            ],
            "best_advice_workers": self.best.workers,
            "times_faster": self.times_faster,
        }


def run(
    file: Path,
    *,
    inputs: Sequence[str],
    axis: int,
    batch: int,
    crop: int,
    artefacts: bool,
    track_meta: bool,
    rounds: int,
    seconds: float,
    as_json: Path | None,
    plot: Path | None,
    hdf5: str,
) -> None:
    """Do what ``hyperslab bench --training`` does; the parameters are its options.

    `inputs` are "A=MR" and such; `hdf5` is the version of h5py's HDF5 library.
    """
    task = make_task(
        open_file(file).path,
        inputs=_named(inputs),
        axis=axis,
        batch=batch,
        crop=crop,
        artefacts=artefacts,
        track_meta=track_meta,
    )
    where = _words(task)
    cached = warm_page_cache(task.path)
    with progress() as bars:
        bar = bars.add_task("", total=None)
        contest = hold_contest(
            task,
            rounds=rounds,
            seconds=seconds,
            tell=lambda what: bars.update(bar, description=what),
        )
    machine = machine_facts(hdf5) | training_facts(artefacts=task.artefacts is not None)
    report = {
        **_task_dict(task),
        "rounds": rounds,
        "seconds": seconds,
        "machine": machine,
        "page_cache": "warm" if cached else "unknown",
        **contest.as_dict(),
    }
    text = json.dumps(report, indent=2, ensure_ascii=False)
    if plot is not None:
        _plot(contest, plot, title=f"{os.path.basename(task.path)}\n{where}", machine=machine)
    if as_json is not None and str(as_json) == "-":
        typer.echo(text)
    else:
        if as_json is not None:
            as_json.write_text(text + "\n", encoding="utf-8")
        out = console()
        out.print(Text(os.path.basename(task.path), "bold"), Text(where, "dim"), "", sep="\n")
        out.print(_table(contest))
        out.print("\n" + _notes(contest, rounds, seconds, cached), style="dim")
        out.print(_machine_words(machine), style="dim")
        for target in (as_json, plot):
            if target is not None:
                out.print(f"Wrote {target}", soft_wrap=True)


def make_task(
    path: str,
    *,
    inputs: Mapping[str, str],
    axis: int = -1,
    batch: int = 32,
    crop: int = 192,
    artefacts: bool = False,
    track_meta: bool = True,
) -> Task:
    """Look into a cohort file, and say what both sides are to do with it.

    Parameters
    ----------
    path, inputs, axis
        As for `hyperslab.torch.SliceDataset`.
    batch
        Samples in a batch.
    crop
        Side of the window, pixels; the planes' shorter side where that is less.
    artefacts
        Whether the first input is misaligned and moved.
    track_meta
        Whether MONAI carries metadata along, which is its default.

    Raises
    ------
    MissingExtraError
        PyTorch, MONAI or TorchIO, of those that are needed, is not installed.
    SampleError
        The inputs do not pair up; and whatever else making a `SliceDataset` raises.
    """
    _require(["torch", "monai", *(["torchio"] if artefacts else [])])
    from hyperslab.torch import SliceDataset

    dataset = SliceDataset(path, inputs=inputs, axis=axis)
    if not len(dataset):
        raise SampleError(
            f"{path}: the cases in {', '.join(inputs.values())} have no slices. Name other groups.",
            file=path,
        )
    height, width = dataset[0][next(iter(dataset.inputs))].shape[-2:]
    return Task(
        path=path,
        inputs=dataset.inputs,
        axis=dataset.axis,
        samples=tuple(dataset.sample(i) for i in range(len(dataset))),
        batch=batch,
        crop=min(crop, height, width),
        quarter_turns=height == width,
        artefacts=ARTEFACTS if artefacts else None,
        track_meta=track_meta,
    )


def hold_contest(
    task: Task,
    *,
    rounds: int,
    seconds: float,
    advised: Sequence[int] = ADVISED_WORKERS,
    tell: Callable[[str], object] = lambda what: None,
) -> Contest:
    """Check that both sides read the same, then let each loader work in turn.

    Parameters
    ----------
    task
        What to do.
    rounds
        Turns of each loader: A B C A B C.
    seconds
        Length of a turn after its warm-up, see `take_turn`.
    advised
        Numbers of workers for the advice.
    tell
        Told what is done next.

    Raises
    ------
    HyperslabError
        The two sides read different values, or a turn's process ended early.

    Notes
    -----
    Takes about ``rounds * (1 + len(advised)) * (seconds + 6)`` seconds: each turn is a process that
    imports PyTorch and MONAI first.
    """
    tell("comparing what both read")
    checked = _check_equal(task)
    everyone: tuple[int | None, ...] = (None, *advised)
    turns: dict[int | None, list[Turn]] = {workers: [] for workers in everyone}
    for i in range(rounds):
        for workers in everyone:
            title = Contender(workers=workers, turns=()).title
            tell(f"round {i + 1} of {rounds}: {title}")
            turns[workers].append(take_turn(task, workers=workers, seconds=seconds))
    ours, *others = (Contender(workers=w, turns=tuple(turns[w])) for w in everyone)
    return Contest(checked=checked, ours=ours, advised=tuple(others))


def training_facts(*, artefacts: bool) -> dict[str, Any]:
    """Return what figures of training depend on, beside `machine_facts`."""
    names = ["torch", "monai", *(["torchio"] if artefacts else [])]
    return {name: version(name) for name in names} | {"torch_threads": 1}


def _require(packages: Iterable[str]) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(
                f"bench --training needs {package}, which is not installed here. Install it with: "
                "pip install 'hyperslab[bench]'",
                package=package,
                extra="bench",
            )


def _named(inputs: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in inputs:
        name, _, group = text.partition("=")
        if not name or not group or name in found:
            raise typer.BadParameter(
                f"{text!r}: write NAME=GROUP, such as A=MR, and each name once",
                param_hint="--input",
            )
        found[name] = group
    return found


def _check_equal(task: Task) -> int:
    """Compare samples of both sides, not transformed, bit for bit; return how many."""
    from hyperslab.torch import SliceDataset, SliceLoader

    loader = SliceLoader(
        SliceDataset(task.path, inputs=task.inputs, axis=task.axis),
        batch_size=min(task.batch, _CHECKED_BATCH),
        memory_nbytes=_CHECK_WINDOW_NBYTES,
    )
    checked = 0
    advice = Slices(task.path, inputs=task.inputs, axis=task.axis, samples=task.samples)
    with closing(advice), closing(iterate(loader)) as batches:
        for batch in islice(batches, _CHECKED_BATCHES):
            for i, number in enumerate(batch["sample"].tolist()):
                theirs = advice[number]
                same = (batch["case"][i], int(batch["slice"][i])) == task.samples[number]
                if not same or not all(_same(batch[n][i], theirs[n]) for n in task.inputs):
                    raise HyperslabError(
                        f"{task.path}: hyperslab and h5py read different values for slice "
                        f"{theirs['slice']} of case {theirs['case']!r}, so nothing was timed. That "
                        "must not happen: please report it, with this file if you can.",
                        file=task.path,
                        samples=(task.samples[number],),
                    )
                checked += 1
    cache.clear()
    return checked


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    alike = a.shape == b.shape and a.dtype == b.dtype
    return alike and a.numpy().tobytes() == b.numpy().tobytes()


def warm_page_cache(path: str) -> bool:
    """Read a file once, so that it is in the page cache; leave one be that is too large for it."""
    if os.path.getsize(path) > memory_nbytes() // 2:
        return False
    with open(path, "rb", buffering=0) as stream:
        while stream.read(_READ_NBYTES):
            pass
    return True


def _task_dict(task: Task) -> dict[str, Any]:
    facts = asdict(task)
    facts["file"] = facts.pop("path")
    facts["samples"] = len(task.samples)
    facts["cases"] = len({case for case, _ in task.samples})
    return facts


def _words(task: Task) -> str:
    groups = " and ".join(group.strip("/") for group in task.inputs.values())
    cases = dict.fromkeys(case for case, _ in task.samples)
    opened = open_file(task.path)
    found = [opened[f"{task.inputs[task.source]}/{case}"] for case in cases]
    arrays = [array for array in found if isinstance(array, Array)]
    first = arrays[0]
    stored = "contiguous" if first.chunks is None else f"chunks {shape_words([first.chunks])}"
    parts = [
        f"{len(task.samples):,} slices of {len(cases)} cases, {groups}",
        f"{shape_words(array.shape for array in arrays)} {first.dtype}, {stored}, "
        + (filter_words(first.filters) or "no filter"),
    ]
    turned = ["half turns", *(["quarter turns"] if task.quarter_turns else [])]
    moved = ["misalignment", "motion"] if task.artefacts else []
    done = ", ".join([*turned, *moved, "clamp", f"crop {task.crop}"])
    parts.append(f"batches of {task.batch}; {done}")
    return "\n".join(parts)


def _table(contest: Contest) -> Table:
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    found.add_column("loader", no_wrap=True)
    for name in ("pairs/s", "CPU s/1000 pairs", "peak RSS", "times the best advice"):
        found.add_column(name, justify="right")
    for contender in contest.contenders:
        ratio = contest.times_best(contender)
        ours = contender is contest.ours
        style = "" if not ours else "bold green" if ratio >= 1.05 else "bold yellow"
        found.add_row(
            Text(contender.title, "bold" if ours else ""),
            Text(_pairs(contender.pairs_per_s)),
            Text(_seconds(contender.cpu_s_per_1000_pairs)),
            Text(_memory(contender.peak_rss_nbytes)),
            Text(times(ratio), style),
        )
    return found


def _pairs(per_s: float) -> str:
    return f"{per_s:,.1f}" if per_s < 10 else f"{per_s:,.0f}"


def _seconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds:,.2f}" if seconds < 10 else f"{seconds:,.1f}"


def _memory(nbytes: int | None) -> str:
    return "?" if nbytes is None else size(nbytes)


def _notes(contest: Contest, rounds: int, seconds: float, cached: bool) -> str:
    return (
        "advice: h5py opened in each worker, MONAI's transforms, DataLoader. Medians of "
        f"{rounds} turn{'s' * (rounds != 1)} of {seconds:g} s, each in a process of its own; page "
        f"cache {'warm' if cached else 'as it was'}. CPU and RSS are those of the process and its "
        "workers; memory that several share counts in each. "
        f"{contest.checked} samples compared bit for bit."
    )


def _machine_words(machine: Mapping[str, Any]) -> str:
    peers = ("torch", "monai", "torchio")
    others = ", ".join(f"{name} {machine[name]}" for name in peers if name in machine)
    return f"{machine_line(machine)}; {others}."


def _plot(contest: Contest, path: Path, *, title: str, machine: Mapping[str, Any]) -> None:
    """Draw speed, CPU time and memory side by side, a bar for each loader."""
    contenders = contest.contenders
    figure = new_figure(10, 2.2 + 0.42 * len(contenders))
    panels = figure.subplots(1, 3, sharey=True)
    known = [
        ("pairs per second", [c.pairs_per_s for c in contenders], _speed_labels(contest)),
        (
            "CPU seconds per 1000 pairs",
            [c.cpu_s_per_1000_pairs or 0.0 for c in contenders],
            [_seconds(c.cpu_s_per_1000_pairs) for c in contenders],
        ),
        (
            "peak RSS, MB",
            [(c.peak_rss_nbytes or 0) / 1e6 for c in contenders],
            [_memory(c.peak_rss_nbytes) for c in contenders],
        ),
    ]
    colors = ["#3465a4" if c is contest.ours else "#babdb6" for c in contenders]
    for axes, (name, values, labels) in zip(panels, known, strict=True):
        bars = axes.barh(range(len(values)), values, color=colors, height=0.66)
        axes.bar_label(bars, labels, padding=4, fontsize="small", fontweight="bold")
        axes.set_xlim(0, 1.45 * max(*values, 1e-9))
        axes.set_title(name, fontsize="small", loc="left")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize="x-small")
    panels[0].set_yticks(range(len(contenders)), [c.title for c in contenders])
    panels[0].invert_yaxis()
    figure.suptitle(title, x=0.01, ha="left", fontsize="small")
    below = f"advice: h5py in each worker, MONAI, DataLoader. {_machine_words(machine)}"
    figure.supxlabel(below, fontsize="x-small", color="#666666")
    save(figure, path)


def _speed_labels(contest: Contest) -> list[str]:
    ours, *advised = contest.contenders
    return [
        f"{_pairs(ours.pairs_per_s)} ({times(contest.times_faster)})",
        *(_pairs(contender.pairs_per_s) for contender in advised),
    ]
