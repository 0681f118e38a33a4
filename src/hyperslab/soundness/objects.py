"""A file gone through with the HDF5 library, in a process that may die of it.

Every step is announced before it is taken, so that whoever listens knows what killed the process,
and can have the file gone through again without that step.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import h5py
from numpy.typing import NDArray

from hyperslab.errors import HyperslabError
from hyperslab.index.resolve import get_object
from hyperslab.index.superblock import ShownFile, is_marked, stated_nbytes
from hyperslab.soundness.describe import TROUBLE, describe
from hyperslab.soundness.elements import check_elements

__all__ = ["Say", "survey_file"]

# Sends one message: its facts, and columns of numbers.
Say = Callable[[dict[str, Any], list[NDArray[Any]]], None]

_DEEPEST = 100  # groups in groups
_BEAT_S = 0.5


def survey_file(
    path: str, *, base: int, axis: int, elements: bool, skip: frozenset[str], say: Say
) -> None:
    """Go through the file at `path`, and say what is in it and what is wrong with that.

    Parameters
    ----------
    path
        Absolute.
    base
        Size of its user block, bytes.
    axis
        The slice axis, for virtual datasets: which slices each of their sources is for.
    elements
        Read elements that can be checked by the HDF5 library only.
    skip
        Steps that are not to be taken.
    say
        Takes the messages. Their key "kind" is one of

        - "step": `key` is about to be taken, which is about `where` (and number `dataset`),
        - "beat": it takes long, and is still going on,
        - "problem": `where` and `reason`,
        - "dataset": its facts, and for a chunked one the columns of its chunk table,
        - "source": of a virtual dataset, `file` and `name`: the number of the `dataset` that it
          is, or the `reason` why it cannot be had,
        - "elements": of dataset number `dataset`, the `bad` parts among what was read, or why
          nothing could be (`unchecked`).

    Notes
    -----
    No element is read that hyperslab decodes itself. Chunk tables take 24 bytes a chunk while they
    are sent.
    """
    _Survey(path, base, axis, elements, skip, say).run()


class _Survey:
    def __init__(
        self, path: str, base: int, axis: int, elements: bool, skip: frozenset[str], say: Say
    ) -> None:
        self._path = path
        self._base = base
        self._axis = axis
        self._elements = elements
        self._skip = skip
        self._say = say
        self._whole = True
        # Objects that were met, by file and address; datasets with their number.
        self._seen: dict[tuple[str, int], int | None] = {}
        self._n_datasets = 0
        self._beat = time.monotonic()

    def run(self) -> None:
        with ExitStack() as stack:
            if not self._step("open", ""):
                return
            try:
                self._h5 = self._open(stack)
                root = self._h5["/"]
                self._seen[_identity(root)] = None
            except TROUBLE as error:
                self._problem("", f"the HDF5 library cannot open it: {error}")
                return
            self._attributes(root, "/")
            self._group(root, "/", 0)

    def _open(self, stack: ExitStack) -> h5py.File:
        try:
            return stack.enter_context(h5py.File(self._path, "r", locking=False))
        except OSError as error:
            refusal = error
            stated = stated_nbytes(self._path, self._base)
            marked = is_marked(self._path, self._base)
            self._whole = stated <= os.path.getsize(self._path)
            if self._whole and not marked:
                raise
        if marked:
            self._problem(
                "",
                "it is marked as open for writing: its writer is still at work, or died. Other "
                "readers refuse it. If no writer is left, h5clear -s takes the mark off",
            )
        nbytes = 0 if self._whole else stated
        file = stack.enter_context(ShownFile(self._path, self._base, unmark=marked, nbytes=nbytes))
        try:
            return stack.enter_context(h5py.File(file, "r"))
        except TROUBLE as error:
            raise refusal from error

    # --- what is said

    def _step(self, kind: str, path: str, **more: Any) -> bool:
        key = f"{kind} {path}".rstrip()
        if key in self._skip:
            return False
        self._say({"kind": "step", "key": key, "where": path, **more}, [])
        return True

    def _alive(self) -> None:
        if (now := time.monotonic()) - self._beat > _BEAT_S:
            self._beat = now
            self._say({"kind": "beat"}, [])

    def _problem(self, where: str, reason: str) -> None:
        self._say({"kind": "problem", "where": where, "reason": reason}, [])

    # --- groups and links

    def _group(self, group: h5py.Group, path: str, depth: int) -> None:
        if not self._step("list", path):
            return
        try:
            keys = list(group)
        except TROUBLE as error:
            self._problem(path, f"its members cannot be listed: {error}")
            return
        for key in keys:
            # h5py gives the name as bytes where it is no UTF-8.
            name = key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")
            self._member(group, key, posixpath.join(path, name), depth)

    def _member(self, group: h5py.Group, key: str | bytes, path: str, depth: int) -> None:
        if not self._step("object", path):
            return
        try:
            raw = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
            link = group.id.links.get_info(raw)
            item = group[key]
            identity = _identity(item, link.u if link.type == h5py.h5l.TYPE_HARD else None)
        except TROUBLE as error:
            self._problem(path, self._reason(path, error))
            return
        # A soft link within a file: what it leads to has a place of its own.
        soft = link.type == h5py.h5l.TYPE_SOFT and identity[0] == _file_of(group)
        if identity in self._seen or soft:
            return
        self._seen[identity] = None
        self._attributes(item, path)
        if isinstance(item, h5py.Dataset):
            self._dataset(item, identity, path, path)
        elif isinstance(item, h5py.Group):
            if depth == _DEEPEST:
                self._problem(path, f"lies more than {_DEEPEST} groups deep")
            else:
                self._group(item, path, depth + 1)

    def _reason(self, path: str, error: Exception) -> str:
        """Say why the object at `path` cannot be opened, in the words of whoever asks for it."""
        try:
            get_object(self._h5, path)
        except HyperslabError as reason:
            return reason.message.removeprefix(f"{self._h5.filename}: ")
        except TROUBLE:
            pass  # a name that is no UTF-8, say: then the first error tells as much as there is
        return str(error)

    def _attributes(self, item: Any, path: str) -> None:
        if not self._step("attributes", path):
            return
        try:
            for name in item.attrs:
                self._attribute(item, path, name)
        except TROUBLE as error:
            self._problem(path, f"its attributes cannot be listed: {error}")

    def _attribute(self, item: Any, path: str, name: str) -> None:
        try:
            item.attrs[name]
        except TypeError:
            pass  # of a type that h5py has no word for, which is no damage
        except TROUBLE as error:
            self._problem(path, f"its attribute {name!r} cannot be read: {error}")

    # --- datasets

    def _dataset(
        self, dataset: h5py.Dataset, identity: tuple[str, int], name: str, where: str
    ) -> None:
        """Tell of dataset `name`; in messages it is called `where`, in another file with that."""
        if not self._step("dataset", where):
            return
        try:
            facts, index, table = describe(dataset, name, axis=self._axis)
        except TROUBLE as error:
            self._problem(where, f"cannot be described: {error}")
            return
        columns: list[NDArray[Any]] = []
        if table is not None:
            columns = [table.byte_offset, table.nbytes, table.filter_mask]
            columns += [] if table.number is None else [table.number]
        self._say(facts, columns)
        number, self._n_datasets = self._n_datasets, self._n_datasets + 1
        self._seen[identity] = number
        if facts["pieces"]:
            self._sources(facts["pieces"])
        if facts["library"] and self._step("elements", where, dataset=number):
            told = check_elements(
                dataset, index, table, read=self._elements, axis=self._axis, alive=self._alive
            )
            self._say({"kind": "elements", "dataset": number, **told}, [])

    def _sources(self, pieces: list[list[Any]]) -> None:
        """Go through the datasets that a virtual dataset is made of."""
        for file, name, _ in pieces:
            if name is None or not os.path.exists(file):
                continue  # not there: that is told by whoever listens
            key = name if file == self._path else f"{file}:{name}"
            if not self._step("source", key):
                continue
            try:
                with _opened(file, self._path, self._h5) as h5:
                    source = get_object(h5, name)
                    if not isinstance(source, h5py.Dataset):
                        raise TypeError(f"{name} is no dataset")
                    identity = _identity(source)
                    if identity not in self._seen:
                        self._seen[identity] = None
                        self._dataset(source, identity, name, key)
                told = {"dataset": self._seen[identity], "reason": ""}
            except TROUBLE as error:
                told = {"dataset": None, "reason": str(error).removeprefix(f"{file}: ")}
            self._say({"kind": "source", "file": file, "name": name, **told}, [])


def _identity(item: Any, address: int | None = None) -> tuple[str, int]:
    """Return the file that an open object lies in, and its address there.

    HDF5 does not tell the address of a dataset whose chunk index is damaged; a hard link does.
    """
    if address is None:
        address = int(h5py.h5o.get_info(item.id).addr)
    return _file_of(item), int(address)


def _file_of(item: Any) -> str:
    return os.path.abspath(os.fsdecode(h5py.h5f.get_name(item.id)))


@contextmanager
def _opened(file: str, path: str, h5: h5py.File) -> Iterator[h5py.File]:
    if file == path:
        yield h5
    else:
        with h5py.File(file, "r", locking=False) as other:
            yield other
