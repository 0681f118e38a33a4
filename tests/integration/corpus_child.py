"""Read files through h5py and through hyperslab and say, a JSON line a step, how they compare.

A program of its own, since a damaged file may kill the HDF5 library. Every step is announced before
it is taken, so that whoever reads the output of a child that died knows which file and which of the
two readers it was.

Lines are lists: ["file", path], then for each dataset ["h5py", name], ["hyperslab", name] and
["result", name, verdict, detail], and ["end", path]. Verdicts:

equal       both read it, to the same bytes
different   both read it, to different bytes
refused     h5py reads it, hyperslab raises
excess      hyperslab reads it, h5py raises
neither     both raise
other       elements that are no numbers, which hyperslab says
group       both list the same members
link        a soft or external link, which leads to the same kind of thing for both
broken      a link that both refuse to follow
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any

import h5py
import hdf5plugin
import numpy as np

import hyperslab as hs

_MOST_NBYTES = 1 << 29
_NUMBERS = "biufc"


def say(*line: Any) -> None:
    os.write(1, (json.dumps(line) + "\n").encode())


def text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


@dataclass(slots=True)
class Names:
    """What a file holds: sound groups; everything else, by one of its names; and links."""

    groups: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)


def names_of(path: str) -> Names:
    names = Names()
    seen: set[int] = set()

    def visit(group: h5py.Group, name: str) -> None:
        names.groups.append(name)
        with contextlib.suppress(Exception):  # `list_group` will find out
            for key in group:
                take(group, key, f"{name.rstrip('/')}/{key}")

    def take(group: h5py.Group, key: str, name: str) -> None:
        if not is_hard_link(group, key):
            names.links.append(name)
            return
        try:
            item = group[key]
            address = h5py.h5o.get_info(item.id).addr
        except Exception:  # noqa: BLE001 - it is there, and both will be asked for it
            names.others.append(name)
            return
        if address in seen:
            return
        seen.add(address)
        if isinstance(item, h5py.Group):
            visit(item, name)
        elif isinstance(item, h5py.Dataset):
            names.others.append(name)

    with h5py.File(path, "r") as h5:
        visit(h5["/"], "/")
    return names


def list_group(path: str, name: str) -> tuple[str, str]:
    """Return verdict and detail for the members of one group."""
    say("h5py", name)
    refusal = ""
    wanted: list[Any] = []
    try:
        with h5py.File(path, "r") as h5:
            wanted = list(h5[name])
    except Exception as error:  # noqa: BLE001 - whatever h5py comes up with is a result here
        refusal = text_of(error)
    say("hyperslab", name)
    try:
        found = list(hs.open(path)[name])
    except hs.errors.HyperslabError as error:
        return ("neither" if refusal else "refused"), f"h5py: {refusal}; {text_of(error)}"
    except Exception as error:  # noqa: BLE001 - an error that is not ours is a failure
        return "different", f"an error of another kind, {text_of(error)}"
    if refusal:
        return "excess", f"{found}; h5py: {refusal}"
    return ("group" if found == wanted else "different"), f"{found}; h5py: {wanted}"


def is_hard_link(group: h5py.Group, key: str) -> bool:
    try:
        return isinstance(group.get(key, getlink=True), h5py.HardLink)
    except TypeError:  # a link of the user's own kind
        return False


def follow(path: str, name: str) -> tuple[str, str]:
    """Return verdict and detail for one link."""
    say("h5py", name)
    refusal = ""
    try:
        with h5py.File(path, "r") as h5:
            wanted = type(h5[name]).__name__.replace("Dataset", "Array")
    except Exception as error:  # noqa: BLE001 - whatever h5py comes up with is a result here
        refusal = text_of(error)
    say("hyperslab", name)
    try:
        found = type(hs.open(path)[name]).__name__
    except hs.errors.UnsupportedDtypeError:
        return "other", ""
    except hs.errors.HyperslabError as error:
        if not refusal and wanted == "Datatype":
            return "other", text_of(error)
        return ("broken" if refusal else "refused"), f"h5py: {refusal}; hyperslab: {text_of(error)}"
    except Exception as error:  # noqa: BLE001 - an error that is not ours is a failure
        return "different", f"an error of another kind, {text_of(error)}"
    if refusal:
        return "excess", f"{found}; h5py: {refusal}"
    return ("link" if found == wanted else "different"), f"{found}, h5py: {wanted}"


def read_with_h5py(path: str, name: str) -> tuple[bool, Any]:
    """Return whether a dataset holds numbers; and all of it, or (a large one) two corners."""
    with h5py.File(path, "r") as h5:
        dataset = h5[name]
        if not isinstance(dataset, h5py.Dataset):
            raise TypeError(f"a {type(dataset).__name__}, not a dataset")
        if dataset.dtype.kind not in _NUMBERS or dataset.dtype.subdtype is not None:
            return False, None
        if dataset.shape is None:
            return True, np.zeros(0, dataset.dtype)
        if dataset.nbytes > _MOST_NBYTES:
            return True, [dataset[corner] for corner in corners(dataset.shape)]
        return True, dataset[()]


def corners(shape: tuple[int, ...]) -> list[Any]:
    """The first and the last few elements along every axis."""
    low = tuple(slice(0, 3) for _ in shape)
    high = tuple(slice(max(0, n - 3), n) for n in shape)
    return [low, high]


def selections(shape: tuple[int, ...]) -> list[Any]:
    """A plane, and a strided selection that runs backwards."""
    if 0 in shape or not shape:
        return []
    plane = (..., shape[-1] // 2)
    steps = tuple(slice(None, None, -2 if axis % 2 else 3) for axis in range(len(shape)))
    return [plane, steps]


def differs(found: Any, want: Any) -> str:
    """Say how `found` differs from `want`; "" if it does not."""
    found, want = np.asarray(found), np.asarray(want)
    want = want.astype(want.dtype.newbyteorder("="))
    if (found.shape, found.dtype) != (want.shape, want.dtype):
        return f"{found.shape} {found.dtype}, not {want.shape} {want.dtype}"
    same = (
        np.array_equal(found, want, equal_nan=True)
        if want.dtype.char in "gG"  # with bytes of padding
        else found.tobytes() == want.tobytes()
    )
    return "" if same else f"{np.count_nonzero(found != want)} of {found.size} elements"


def read_with_hyperslab(path: str, name: str, want: Any) -> tuple[str, str]:
    """Compare what hyperslab reads with `want`: what h5py has read, or None, if that failed."""
    array = hs.open(path)[name]
    if not isinstance(array, hs.Array):
        return ("neither" if want is None else "different"), f"a {type(array).__name__}"
    if array.nbytes > _MOST_NBYTES:
        found = [array[corner] for corner in corners(array.shape)]
        if want is None:
            return "excess", f"{array!r}: {found[0].reshape(-1)[:4]}"
        difference = "".join(differs(f, w) for f, w in zip(found, want, strict=True))
        return ("different" if difference else "equal"), f"{array!r}, two corners {difference}"
    whole = array[...]
    if want is None:
        return "excess", f"{array!r}: {np.asarray(whole).reshape(-1)[:4]}"
    if difference := differs(whole, want):
        return "different", f"{array!r}: {difference}"
    for index in selections(array.shape):
        if difference := differs(array[index], np.asarray(want)[index]):
            return "different", f"{array!r}[{index}]: {difference}"
    return "equal", repr(array.dtype)


def compare(path: str, name: str) -> tuple[str, str]:
    """Return verdict and detail for one dataset."""
    say("h5py", name)
    refusal = ""
    want = None
    numbers = True
    try:
        numbers, want = read_with_h5py(path, name)
    except Exception as error:  # noqa: BLE001 - whatever h5py comes up with is a result here
        refusal = text_of(error)
    say("hyperslab", name)
    try:
        verdict, detail = read_with_hyperslab(path, name, want)
    except hs.errors.UnsupportedDtypeError as error:
        verdict, detail = ("neither" if refusal else "refused"), text_of(error)
        if not numbers:
            verdict = "other"
    except hs.errors.HyperslabError as error:
        verdict, detail = ("neither" if refusal else "refused"), text_of(error)
    except Exception as error:  # noqa: BLE001 - an error that is not ours is a failure
        verdict, detail = "different", f"an error of another kind, {text_of(error)}"
    return verdict, f"h5py: {refusal}; hyperslab: {detail}" if refusal else detail


def main(arguments: list[str]) -> None:
    """Each argument is a JSON list: a path, and names of datasets to be read in any case."""
    with contextlib.suppress(ImportError):  # not on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, hard))
    warnings.simplefilter("ignore")
    if not hdf5plugin.FILTERS:
        raise SystemExit("hdf5plugin has no filters")
    for path, *listed in map(json.loads, arguments):
        # HDF5 looks for raw files in the current folder.
        os.chdir(os.path.dirname(path))
        say("file", path)
        say("h5py", "")
        names = Names(groups=["/"])
        with contextlib.suppress(Exception):  # `list_group` will find out
            names = names_of(path)
        for name in names.groups:
            say("result", name, *list_group(path, name))
        for name in [*names.others, *sorted(set(listed) - set(names.others))]:
            say("result", name, *compare(path, name))
        for name in names.links:
            say("result", name, *follow(path, name))
        say("end", path)


if __name__ == "__main__":
    main(sys.argv[1:])
