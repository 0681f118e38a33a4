"""The other end of `hyperslab.soundness.child`: a process that asks the HDF5 library, and may die.

It is started anew after a death, and goes through the file again without the step that killed it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hyperslab.engine.limits import memory_at_hand
from hyperslab.soundness.messages import Message, MessageError, read_message
from hyperslab.soundness.report import Problem

__all__ = ["Found", "LibraryProcess", "Survey"]

_MOST_DEATHS = 8
_MOST_HANGS = 2
_START_S = 60.0
_LEAST_MEMORY, _MOST_MEMORY = 2 << 30, 8 << 30
_ENVIRONMENT = {
    # Threads that multiply matrices would take address space, which is limited.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    # Memory that is new or freed holds a pattern (glibc; macOS), so that a library which takes it
    # for something dies of that every time, and not by chance.
    "MALLOC_PERTURB_": "165",
    "MallocPreScribble": "1",
    "MallocScribble": "1",
}
_PROGRAM = "import sys; sys.path[:] = {path!r}; from hyperslab.soundness.child import main; main()"


@dataclass(slots=True, kw_only=True, eq=False)
class Found:
    """A dataset, as the HDF5 library describes it; see `hyperslab.soundness.objects`.

    Attributes
    ----------
    facts
        Of the message "dataset".
    columns
        Of its chunk table: byte offset, stored size, filter mask and, unless every chunk is there,
        linear number.
    bad
        Parts of it that the library could not read: chunk coordinate (or None), range of slices
        (or None), reason.
    unchecked
        Why its elements could not be checked; "" if they were.
    """

    facts: dict[str, Any]
    columns: list[NDArray[Any]]
    bad: list[tuple[tuple[int, ...] | None, tuple[int, int] | None, str]] = field(
        default_factory=list
    )
    unchecked: str = ""


@dataclass(slots=True, kw_only=True, eq=False)
class Survey:
    """What the HDF5 library says of one file.

    Attributes
    ----------
    datasets
        In the order in which they were found.
    problems
        What is wrong besides.
    sources
        Datasets that virtual ones need, by file and name: the number of each in `datasets`, or why
        it cannot be had.
    """

    datasets: list[Found] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    sources: dict[tuple[str, str], int | str] = field(default_factory=dict)


class LibraryProcess:
    """A process that goes through files with the HDF5 library; for use in a `with` block.

    Started when it is first needed. Not thread-safe.

    Parameters
    ----------
    timeout_s
        Seconds without a word from it after which it counts as hanging.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._child: subprocess.Popen[bytes] | None = None
        self._said: queue.Queue[Message | None] = queue.Queue()
        self._reader = threading.Thread()
        self._memory_nbytes = 0

    def __enter__(self) -> LibraryProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def survey(
        self,
        path: str,
        *,
        base: int,
        axis: int,
        elements: bool,
        heard: Callable[[str], None] = lambda where: None,
    ) -> Survey:
        """Go through the file at `path`; see `hyperslab.soundness.objects.survey_file`.

        `heard` is called with what is being looked at. What killed the process, or made it hang, is
        among the survey's problems; nothing is raised for it.
        """
        fatal: dict[str, tuple[Problem, int | None]] = {}
        n_hangs = 0
        while True:
            request = {
                "path": path,
                "base": base,
                "axis": axis,
                "elements": elements,
                "skip": list(fatal),
            }
            found, step, death = self._ask(request, heard)
            key, where = str(step.get("key", "")), str(step.get("where", ""))
            if death:
                n_hangs += death == "hangs"
                problem = Problem(where=where, reason=_words(key, death, self._timeout_s))
                fatal[key] = problem, step.get("dataset")
            early = key in ("", "open")
            if death and not early and len(fatal) < _MOST_DEATHS and n_hangs < _MOST_HANGS:
                continue
            for problem, number in fatal.values():
                found.problems.append(problem)
                if isinstance(number, int) and number < len(found.datasets):
                    found.datasets[number].unchecked = problem.reason
            if death and not early:
                told = f"the HDF5 library was given up on: nothing after {where} was looked at"
                found.problems.append(Problem(where="", reason=told))
            return found

    def _ask(
        self, request: dict[str, Any], heard: Callable[[str], None]
    ) -> tuple[Survey, dict[str, Any], str]:
        """Return what was found, the last step that was announced, and how the child died."""
        found = Survey()
        step: dict[str, Any] = {}
        child = self._start()
        told = (json.dumps({**request, "memory_nbytes": self._memory_nbytes}) + "\n").encode()
        try:
            if child.stdin is None:
                raise TypeError("the process has no input")
            child.stdin.write(told)
            child.stdin.flush()
        except OSError:
            pass  # it has died: its silence says so
        while True:
            # Before its first word it may have to start, on a machine that is busy.
            patience = self._timeout_s if step else max(self._timeout_s, _START_S)
            try:
                message = self._said.get(timeout=patience)
            except queue.Empty:
                self._end()
                return found, step, "hangs"
            if message is None:
                return found, step, self._end()
            try:
                if message[0]["kind"] == "end":
                    return found, {}, ""
                if message[0]["kind"] == "step":
                    step = message[0]
                    heard(str(step["where"]))
                else:
                    _take(found, *message)
            except (LookupError, TypeError, ValueError) as error:
                self._end()
                return found, step, f"answers nonsense ({error!r})"

    def _start(self) -> subprocess.Popen[bytes]:
        if self._child is not None:
            return self._child
        # Half of what there is: the decoders take their share at another time, but others may not.
        self._memory_nbytes = max(_LEAST_MEMORY, min(_MOST_MEMORY, memory_at_hand() // 2))
        child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_ENVIRONMENT},
        )
        if child.stdout is None:
            raise TypeError("the process has no output")
        self._child = child
        self._said = queue.Queue(64)
        self._reader = threading.Thread(
            target=_listen, args=(child.stdout, self._said), name="hyperslab-verify", daemon=True
        )
        self._reader.start()
        return child

    def _end(self) -> str:
        """End the process, and say how it had ended by itself; "" if it had not."""
        child, self._child = self._child, None
        if child is None:
            return ""
        # Whoever has closed its output is about to end.
        how = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            how = child.wait(0.0 if self._reader.is_alive() else 5.0)
        child.kill()
        child.wait()
        while self._reader.is_alive():  # it may wait for room in the queue
            with contextlib.suppress(queue.Empty):
                self._said.get(timeout=0.01)
        self._reader.join()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # what it did not take in is of no use any more
                    stream.close()
        if how is None:
            return "hangs"
        if how < 0:
            with contextlib.suppress(ValueError):
                return f"dies of it ({signal.Signals(-how).name})"
        return f"dies of it (exit status {how})"


def _listen(stream: BinaryIO, said: queue.Queue[Message | None]) -> None:
    """Hand on messages until there are no more, and then None; the body of a thread."""
    try:
        while True:
            said.put(read_message(stream))
    except (MessageError, OSError, ValueError):
        said.put(None)


_WHAT = {
    "open": "it is opened",
    "list": "its members are listed",
    "object": "it is opened",
    "attributes": "its attributes are read",
    "dataset": "it is described",
    "source": "it is opened, as the source of a virtual dataset",
    "elements": "its elements are read",
}


def _words(key: str, death: str, timeout_s: float) -> str:
    """Say what happened at which step, of a process that did `death`."""
    what = _WHAT.get(key.partition(" ")[0], "it is looked at")
    if death == "hangs":
        return f"the HDF5 library has not come back after {timeout_s:g} s when {what}"
    return f"the HDF5 library {death} when {what}"


def _take(found: Survey, facts: dict[str, Any], columns: list[NDArray[Any]]) -> None:
    """Add one message to what was found; raise where it makes no sense."""
    match facts["kind"]:
        case "problem":
            found.problems.append(Problem(where=str(facts["where"]), reason=str(facts["reason"])))
        case "source":
            number, reason = facts["dataset"], str(facts["reason"])
            source = str(facts["file"]), str(facts["name"])
            found.sources[source] = int(number) if number is not None else reason
        case "dataset":
            if columns and (len(columns) not in (3, 4) or len({c.size for c in columns}) > 1):
                raise ValueError("columns of unlike lengths")
            if columns and columns[2].dtype != np.uint32:
                raise TypeError("filter masks of another type")
            found.datasets.append(
                Found(facts=facts, columns=columns, unchecked=str(facts["unchecked"]))
            )
        case "elements":
            dataset = found.datasets[int(facts["dataset"])]
            for chunk, slices, reason in facts["bad"]:
                at = None if chunk is None else tuple(int(i) for i in chunk)
                some = None if slices is None else (int(slices[0]), int(slices[1]))
                dataset.bad.append((at, some, str(reason)))
            dataset.unchecked = dataset.unchecked or str(facts.get("unchecked", ""))
        case "beat":
            pass
        case _:
            raise ValueError(f"a message of an unknown kind, {facts['kind']!r}")
