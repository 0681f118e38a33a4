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
other       elements that are no numbers; hyperslab says so
mistaken    elements that are no numbers; hyperslab does not say so
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
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


def names_of(path: str) -> list[str]:
    """Datasets of a file, each by one of its names; links are not followed."""
    found: list[str] = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found.append(name)

    with h5py.File(path, "r") as h5:
        h5.visititems(visit)
    return found


def describe(path: str, name: str) -> tuple[bool, tuple[int, ...] | None]:
    """Tell whether a dataset holds numbers, and its shape (None: it holds nothing)."""
    with h5py.File(path, "r") as h5:
        dtype = h5[name].dtype
        return dtype.kind in _NUMBERS and dtype.subdtype is None, h5[name].shape


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
    """Compare what hyperslab reads with `want`, the whole dataset or None, if h5py has failed."""
    array = hs.open(path)[name]
    if not isinstance(array, hs.Array):
        return "different", f"hyperslab has a {type(array).__name__}"
    if array.nbytes > _MOST_NBYTES:
        array[(0,) * array.ndim]
        return "excess", "only one element was read"
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
        numbers, shape = describe(path, name)
        if numbers:
            with h5py.File(path, "r") as h5:
                dataset = h5[name]
                if dataset.nbytes > _MOST_NBYTES:
                    refusal = f"{dataset.nbytes} bytes are more than this check reads"
                else:
                    want = dataset[()] if shape is not None else np.zeros(0, dataset.dtype)
    except Exception as error:  # noqa: BLE001 - whatever h5py comes up with is a result here
        refusal = text_of(error)
        numbers = not isinstance(error, TypeError)  # there is no such type in NumPy
    say("hyperslab", name)
    if not numbers:
        try:
            hs.open(path)[name]
        except hs.errors.UnsupportedDtypeError:
            return "other", refusal
        except hs.errors.HyperslabError as error:
            return "neither", f"{refusal} / {text_of(error)}"
        return "mistaken", "no UnsupportedDtypeError"
    try:
        verdict, detail = read_with_hyperslab(path, name, want)
    except hs.errors.HyperslabError as error:
        return "neither" if refusal else "refused", f"{refusal} / {text_of(error)}"
    except Exception as error:  # noqa: BLE001 - an error that is not ours is a failure
        return "different", f"an error of another kind, {text_of(error)}"
    return verdict, f"{detail}; h5py: {refusal}" if refusal else detail


def main(paths: list[str]) -> None:
    with contextlib.suppress(ImportError):  # not on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, hard))
    warnings.simplefilter("ignore")
    if not hdf5plugin.FILTERS:
        raise SystemExit("hdf5plugin has no filters")
    for path in paths:
        say("file", path)
        say("h5py", "")
        names: list[str] = []
        problem = ""
        try:
            names = names_of(path)
        except Exception as error:  # noqa: BLE001 - as above
            problem = text_of(error)
        if problem:
            say("hyperslab", "")
            try:
                members = list(hs.open(path))
            except hs.errors.HyperslabError as error:
                say("result", "", "neither", f"{problem} / {text_of(error)}")
            except Exception as error:  # noqa: BLE001 - as above
                say("result", "", "different", f"an error of another kind, {text_of(error)}")
            else:
                say("result", "", "excess", f"{members}; h5py: {problem}")
        for name in names:
            say("result", name, *compare(path, name))
        say("end", path)


if __name__ == "__main__":
    main(sys.argv[1:])
