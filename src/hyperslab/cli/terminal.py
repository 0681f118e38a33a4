"""What the commands have in common: consoles, sizes for people, errors, notes, progress."""

from __future__ import annotations

import codecs
import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from hyperslab.errors import (
    HyperslabError,
    LayoutError,
    MissingExtraError,
    MissingFileError,
    MissingObjectError,
    MissingSourceError,
    NotHDF5Error,
    OutputError,
    SelectionError,
    UnsupportedDtypeError,
)
from hyperslab.index.session import check_signature

__all__ = [
    "allow_any_text",
    "bytes_progress",
    "console",
    "examples",
    "exit_status",
    "memory_nbytes",
    "notices",
    "program",
    "progress",
    "show_error",
    "show_warning",
    "size",
    "times",
]

_PLAIN = {"×": "x", "µ": "u", "→": "->", "…": "...", "“": '"', "”": '"', "■": "#"}
_PLAIN_WIDTH = 120  # columns where the output goes to a file or a pipe


def allow_any_text() -> None:
    """Let characters that the output's encoding lacks come out as plainer ones, not as an error."""
    codecs.register_error("hyperslab", _make_plain)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="hyperslab")


def _make_plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(character, "?") for character in lacking), error.end


def console() -> Console:
    """Return a console on stdout, of the width that COLUMNS or the terminal says."""
    return _console(stderr=False)


def notices() -> Console:
    """Return a console on stderr: for what is said to the person, not part of the report."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    found = Console(stderr=stderr, highlight=False)
    if not found.is_terminal and not os.environ.get("COLUMNS"):
        found = Console(stderr=stderr, highlight=False, width=_PLAIN_WIDTH)
    return found


def size(nbytes: float) -> str:
    """Return a number of bytes for people, in decimal units.

    Examples
    --------
    >>> size(0), size(999), size(1_500_000), size(208e9)
    ('0 B', '999 B', '1.5 MB', '208 GB')
    """
    units = ["B", "kB", "MB", "GB", "TB"]
    while nbytes >= 999.5 and len(units) > 1:
        nbytes /= 1000
        del units[0]
    unit = units[0]
    whole = unit == "B" or nbytes >= 99.95
    return f"{nbytes:.0f} {unit}" if whole else f"{nbytes:.1f} {unit}"


def memory_nbytes() -> int:
    """Return how many bytes of memory are free to use, as well as it can be known."""
    try:
        with open("/proc/meminfo", encoding="ascii") as stream:
            for line in stream:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return 4 << 30


def times(ratio: float) -> str:
    """Return a ratio for people.

    Examples
    --------
    >>> times(0.954), times(3.14159), times(31.4)
    ('0.95×', '3.1×', '31×')
    """
    digits = 2 if ratio < 1 else 1 if ratio < 10 else 0
    return f"{ratio:,.{digits}f}×"


def examples(*pairs: tuple[str, str]) -> str:
    """Return the part of a help text that shows commands, each with what it does."""
    lines = ["[bold]Examples[/]"]
    for line, meaning in pairs:
        lines.append(f"[cyan]{line}[/]\n[dim]{meaning}[/]")
    return "\n\n".join(lines)


def exit_status(error: Exception) -> int:
    """Return 2 if the command was used wrongly, 1 if it found a problem with the data."""
    match error:
        case MissingSourceError():
            return 1
        case NotHDF5Error(file=str(path)):
            try:
                check_signature(path)
            except HyperslabError:
                return 2
            return 1  # an HDF5 file, and yet it cannot be opened: damaged
        case (
            MissingFileError()
            | MissingObjectError()
            | MissingExtraError()
            | LayoutError()
            | OutputError()
            | SelectionError()
            | UnsupportedDtypeError()
        ):
            return 2
        case OSError(filename=str() | bytes()) if not isinstance(error, HyperslabError):
            return 2  # the operating system refuses to read or write a path that was given
    return 1


def show_error(error: Exception) -> None:
    """Print an error on stderr, as one message."""
    message = str(error)
    if isinstance(error, OSError) and not isinstance(error, HyperslabError):
        message = f"{error.filename}: {error.strerror}" if error.filename else message
    notices().print(Text.assemble(("Error: ", "bold red"), (message, "red")), soft_wrap=True)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning on stderr as a note; stands in for `warnings.showwarning`."""
    notices().print(Text.assemble(("Note: ", "bold yellow"), str(message)), soft_wrap=True)


def progress() -> contextlib.AbstractContextManager[Progress]:
    """Show progress bars on stderr while a `with` block lasts, and remove them; terminals only."""
    return _progress(TimeElapsedColumn())


def bytes_progress() -> contextlib.AbstractContextManager[Progress]:
    """As `progress`, of tasks whose totals are bytes: how many are done, how fast, time left."""
    return _progress(DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())


@contextlib.contextmanager
def _progress(*columns: ProgressColumn) -> Iterator[Progress]:
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        *columns,
        console=notices(),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bars:
        yield bars


def program() -> str:
    """Return how this program was called, so that what is printed can be typed."""
    called = sys.argv[0]
    if os.path.basename(called) != "hyperslab":
        return "hyperslab"
    return "hyperslab" if shutil.which("hyperslab") else called
