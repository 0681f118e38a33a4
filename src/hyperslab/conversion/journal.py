"""The journal of a conversion: what is written for good, so that it can be gone on with.

Everything is made in a folder beside the result, and gets its name at the end. A JSON line per
region says that it is there, and how large its files are. Lines are written after the files
themselves are on disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hyperslab.errors import OutputError
from hyperslab.rewriting.naming import give_name, sync
from hyperslab.rewriting.spool import whole_lines

__all__ = ["Journal"]

_NAME = "journal.jsonl"
_SYNC_S = 2.0


class Journal:
    """A folder beside the result, with what is made of it so far.

    Parameters
    ----------
    folder
        Its path.
    key
        What is made of what, and how, as JSON gives it back. What was begun otherwise is not gone
        on with.
    resume
        Go on with what is there. Otherwise a folder that is there is refused.

    Attributes
    ----------
    begun
        Whether the result's frame (its metadata, its header) had been made.

    Raises
    ------
    OutputError
        There is such a folder and `resume` is not set; or it is of something else.
    """

    def __init__(self, folder: Path, key: dict[str, Any], *, resume: bool) -> None:
        self.folder = folder
        if folder.exists() and not resume:
            raise OutputError(
                f"{folder}: a conversion was interrupted here. Go on with it (--resume), or "
                "delete that folder."
            )
        folder.mkdir(exist_ok=True)
        lines, whole_nbytes = whole_lines(folder / _NAME)
        if lines and lines[0] != {"key": key}:
            raise OutputError(
                f"{folder}: what was interrupted here was another conversion, or the source has "
                "changed since. Delete that folder to begin anew."
            )
        self.begun = {"begun": True} in lines
        self._done = {
            (line["level"], tuple(line["start"])): line["files"]
            for line in lines
            if "level" in line and self._whole(line["files"])
        }
        self._lines: list[str] = []
        self._files: list[Path] = []
        self._synced = time.monotonic()
        self._stream = open(folder / _NAME, "a", encoding="utf-8")  # noqa: SIM115 - see `close`
        self._stream.truncate(whole_nbytes)
        if not lines:
            self._write({"key": key})
            self.sync()

    @property
    def data(self) -> Path:
        """Where the result is made."""
        return self.folder / "data"

    def _whole(self, files: list[tuple[str, int]]) -> bool:
        """Tell whether the files of a region are there, as large as they were."""
        for name, nbytes in files:
            try:
                if (self.folder / name).stat().st_size != nbytes:
                    return False
            except FileNotFoundError:
                return False
        return True

    def has(self, level: int, start: tuple[int, ...]) -> bool:
        """Tell whether a region has been written."""
        return (level, start) in self._done

    def begin(self, files: Iterable[Path]) -> None:
        """Note that the frame is made."""
        self._files += files
        self._write({"begun": True})
        self.sync()
        self.begun = True

    def add(self, level: int, start: tuple[int, ...], files: list[Path]) -> None:
        """Note that a region is written; that is on disk in two seconds at the latest."""
        sizes = [[os.path.relpath(path, self.folder), path.stat().st_size] for path in files]
        self._files += files
        self._write({"level": level, "start": start, "files": sizes})
        if time.monotonic() - self._synced > _SYNC_S:
            self.sync()

    def _write(self, line: dict[str, Any]) -> None:
        self._lines.append(json.dumps(line) + "\n")

    def sync(self) -> None:
        """Have everything on disk: first the files, then what the journal says of them."""
        for path in dict.fromkeys(self._files):
            sync(path)
        for folder in {path.parent for path in self._files}:
            sync(folder)
        self._stream.writelines(self._lines)
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._files.clear()
        self._lines.clear()
        self._synced = time.monotonic()

    def close(self) -> None:
        """Close the journal; what is in the folder stays."""
        if self._stream.closed:
            return
        # On a disk that is full this fails; what is not noted is then done again.
        with contextlib.suppress(OSError):
            self.sync()
        with contextlib.suppress(OSError):
            self._stream.close()

    def finish(self, final: Path) -> None:
        """Give the result its name, and delete the folder.

        Raises
        ------
        OutputError
            Meanwhile something else has that name.
        """
        self.sync()
        self._stream.close()
        give_name(self.data, final)
        shutil.rmtree(self.folder)
