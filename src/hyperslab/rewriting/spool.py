"""The spool: encoded chunks on disk before they are put into a file, and a journal of them.

HDF5 does not promise that a file is whole after its writer was killed. So chunks are first appended
to a plain file, and the journal says, a JSON line a region, which of them are safely there. Whoever
goes on later cuts off what came after the last line. The HDF5 file itself is made at the end, in
one go, from the spool: that is copying.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperslab.errors import OutputError
from hyperslab.rewriting.encode import Chunk

__all__ = ["Columns", "Spool", "Stored", "refuse_spool", "spool_key", "whole_lines"]

Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]

_CHUNKS, _JOURNAL = "chunks.bin", "journal.jsonl"
_SYNC_S = 2.0


@dataclass(frozen=True, slots=True)
class Stored:
    """An encoded chunk in the spool.

    Its linear number in the dataset's grid, the CRC-32 of its decoded bytes, and where it is; of a
    chunk that is all fill value, nothing is.
    """

    number: int
    crc: int
    byte_offset: int
    nbytes: int


class Spool:
    """A folder beside the result that holds encoded chunks.

    Parameters
    ----------
    folder
        Of the spool.
    key
        What the chunks are made from and how. A spool that was made otherwise is not gone on with.
    resume
        Go on with what is there. Otherwise a spool that is there is refused.
    what
        What is being made, for messages: "repack".

    Raises
    ------
    OutputError
        There is a spool and `resume` is not set; or it is set, and the spool is of something else.
    """

    def __init__(
        self, folder: Path, key: dict[str, Any], *, resume: bool, what: str = "repack"
    ) -> None:
        self.folder = folder
        self.done: dict[tuple[int, int], list[Stored]] = {}
        self.facts: dict[tuple[int, int], dict[str, Any]] = {}
        refuse_spool(folder, resume=resume, what=what)
        folder.mkdir(parents=True, exist_ok=True)
        self._end = 0
        self._lines: list[str] = []
        self._synced = time.monotonic()
        journal = folder / _JOURNAL
        lines, whole_nbytes = whole_lines(journal)
        if lines and lines[0] != {"key": key}:
            raise OutputError(
                f"{folder}: what was interrupted here was another {what}, or the source has "
                "changed since. Delete that folder to begin anew."
            )
        self.made = False
        self.left_out: tuple[str, ...] = ()
        if lines and not self._is_there(lines):
            lines, whole_nbytes = [], 0
        for line in lines[1:]:
            if "left_out" in line:
                self.made, self.left_out = True, tuple(line["left_out"])
                continue
            stored = [Stored(*entry) for entry in line["chunks"]]
            self.done[(line["dataset"], line["region"])] = stored
            if "facts" in line:
                self.facts[(line["dataset"], line["region"])] = line["facts"]
            self._end = line["end"]
        # What came after the last whole line is not known to be whole.
        self._journal = open(journal, "a", encoding="ascii")  # noqa: SIM115 - closed by `close`
        self._journal.truncate(whole_nbytes)
        if not lines:
            self._journal.write(json.dumps({"key": key}) + "\n")
        self._flush(self._journal)
        self._chunks = open(folder / _CHUNKS, "ab")  # noqa: SIM115
        self._chunks.truncate(self._end)

    def add(
        self,
        dataset: int,
        region: int,
        chunks: Iterator[Chunk],
        *,
        before: Callable[[], object] = lambda: None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        """Append the chunks of a region, in any order; a note is made once they are on disk.

        That is every two seconds, and when the spool is closed; `before` is called first. What
        `facts` says of the region, as JSON can hold it, is kept with the note.
        """
        stored: list[Stored] = []
        end = self._end
        try:
            for chunk in chunks:
                self._chunks.write(chunk.data)
                stored.append(Stored(chunk.number, chunk.crc, end, len(chunk.data)))
                end += len(chunk.data)
            self._chunks.flush()
        except BaseException:
            # On a full disk, what is buffered has no room until what was written of it is gone; nor
            # has the note of what had been done before.
            with contextlib.suppress(OSError):
                os.ftruncate(self._chunks.fileno(), self._end)
                self._chunks.truncate(self._end)
            raise
        line: dict[str, Any] = {
            "dataset": dataset,
            "region": region,
            "chunks": [[s.number, s.crc, s.byte_offset, s.nbytes] for s in stored],
            "end": end,
        }
        if facts is not None:
            line["facts"] = facts
            self.facts[(dataset, region)] = facts
        self._end = end
        self.done[(dataset, region)] = stored
        self._lines.append(json.dumps(line) + "\n")
        if time.monotonic() - self._synced > _SYNC_S:
            before()
            self.sync()

    def sync(self) -> None:
        """Have everything on disk, chunks first, then what the journal says of them."""
        self._flush(self._chunks)
        self._journal.writelines(self._lines)
        self._flush(self._journal)
        self._lines.clear()
        self._synced = time.monotonic()

    @property
    def file(self) -> Path:
        """Where the HDF5 file is made."""
        return self.folder / "file.h5"

    @property
    def chunks(self) -> Path:
        """Where encoded chunks are."""
        return self.folder / _CHUNKS

    def columns(self, dataset: int) -> Columns:
        """Return number, byte offset and size of a dataset's chunks, by rising number.

        Those that are all fill value are not among them. What has been added can be read by others.
        """
        self._chunks.flush()
        found = [(s.number, s.byte_offset, s.nbytes) for s in self.of_dataset(dataset) if s.nbytes]
        columns = np.array(sorted(found), np.int64).reshape(-1, 3).T
        return columns[0].copy(), columns[1].copy(), columns[2].copy()

    def mark_made(self, left_out: tuple[str, ...]) -> None:
        """Note that the file is there, with room for every chunk, but without `left_out`."""
        self._lines.append(json.dumps({"left_out": left_out}) + "\n")
        self.sync()
        self.made, self.left_out = True, left_out

    def of_dataset(self, dataset: int) -> list[Stored]:
        """Return the chunks of a dataset, in the order in which they lie in the spool."""
        found = [s for (d, _), stored in self.done.items() if d == dataset for s in stored]
        return sorted(found, key=lambda s: s.byte_offset)

    def read(self, stored: list[Stored]) -> Iterator[tuple[int, bytes]]:
        """Yield the numbers and the bytes of chunks that have any."""
        self._chunks.flush()
        with open(self.chunks, "rb") as stream:
            for entry in stored:
                if entry.nbytes:
                    stream.seek(entry.byte_offset)
                    yield entry.number, stream.read(entry.nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all chunks."""
        return self._end

    def close(self) -> None:
        """Close the files; what is in them stays."""
        if self._chunks.closed:
            return
        # On a disk that is full this fails; what is not on it is then done again.
        with contextlib.suppress(OSError):
            self.sync()
        for stream in (self._chunks, self._journal):
            with contextlib.suppress(OSError):
                stream.close()

    def delete(self) -> None:
        """Close the files and delete the folder, first what says that there is something in it."""
        self._chunks.close()
        self._journal.close()
        (self.folder / _JOURNAL).unlink()
        shutil.rmtree(self.folder)

    def _is_there(self, lines: list[dict[str, Any]]) -> bool:
        """Tell whether the files hold what the journal says; somebody may have deleted them."""
        if any("left_out" in line for line in lines) and not self.file.exists():
            return False
        end = max((line["end"] for line in lines if "end" in line), default=0)
        return not end or (self.chunks.exists() and self.chunks.stat().st_size >= end)

    @staticmethod
    def _flush(stream: Any) -> None:
        stream.flush()
        os.fsync(stream.fileno())


def refuse_spool(folder: Path, *, resume: bool, what: str = "repack") -> None:
    """Raise `OutputError` if there is a spool and nobody wants to go on with it."""
    if folder.exists() and not resume:
        raise OutputError(
            f"{folder}: a {what} was interrupted here. Go on with it (--resume), or delete that "
            "folder."
        )


def spool_key(folder: Path) -> dict[str, Any] | None:
    """Return the key of the spool in a folder; None if there is none."""
    lines, _ = whole_lines(folder / _JOURNAL)
    return lines[0].get("key") if lines else None


def whole_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the lines of a journal of JSON up to the first that was cut short, and their bytes."""
    found: list[dict[str, Any]] = []
    nbytes = 0
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return found, 0
    for line in data.splitlines(keepends=True):
        try:
            entry = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            break
        if not isinstance(entry, dict):
            break
        found.append(entry)
        nbytes += len(line)
    return found, nbytes
