"""What a file holds of the inputs of a training set: which cases, and where."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

from hyperslab.errors import MissingObjectError, MissingSourceError, SampleError
from hyperslab.index.container import FileIndex
from hyperslab.torch.cohorts.split import listed

__all__ = ["FileCases", "find_cases"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCases:
    """The cases of one file.

    Attributes
    ----------
    templates
        Input name to the HDF5 path of its datasets: with ``{case}`` in it, or that of the file's
        only one.
    keys
        Input name to the cases' names in the file; the only one of a file is "".
    """

    templates: dict[str, str]
    keys: dict[str, set[str]]


def find_cases(container: FileIndex, inputs: Mapping[str, str]) -> FileCases:
    """Look up what each input's path leads to.

    Parameters
    ----------
    container
        Of the file.
    inputs
        Input name to absolute HDF5 path: of a group with one dataset a case, of a dataset, or with
        ``{case}`` for one of its parts.

    Raises
    ------
    SampleError
        A path leads to nothing.
    """
    templates: dict[str, str] = {}
    keys: dict[str, set[str]] = {}
    for name, path in inputs.items():
        if "{case}" in path:
            templates[name] = path
            keys[name] = _find_by_template(container, name, path)
        elif _kind(container, path) == "dataset":
            templates[name] = path
            keys[name] = {""}
        else:
            templates[name] = posixpath.join(path, "{case}")
            members = _members(container, name, path)
            # What is a link that leads nowhere may once have led to a dataset.
            keys[name] = {m for m, kind in members.items() if kind in ("dataset", "broken")}
    if len({"{case}" in template for template in templates.values()}) > 1:
        kinds = ", ".join(
            f"{name}: {inputs[name]} is a {'group' if '{case}' in template else 'dataset'}"
            for name, template in templates.items()
        )
        raise SampleError(
            f"{container.path}: some inputs are one dataset and others have one for each case "
            f"({kinds}). Inputs pair up if all are of a kind.",
            file=container.path,
            inputs=tuple(inputs),
        )
    return FileCases(templates=templates, keys=keys)


def _find_by_template(container: FileIndex, name: str, template: str) -> set[str]:
    before, after = (part.strip("/") for part in template.split("{case}"))
    members = _members(container, name, "/" + before)
    if not after:
        return {m for m, kind in members.items() if kind in ("dataset", "broken")}
    groups = [member for member, kind in members.items() if kind == "group"]
    return {g for g in groups if _kind(container, template.replace("{case}", g)) == "dataset"}


def _kind(container: FileIndex, path: str) -> str:
    try:
        return container.kind(path)
    except MissingSourceError:
        return "dataset"  # behind a link; opening it says what is wrong
    except MissingObjectError:
        return "nothing"


def _members(container: FileIndex, name: str, group: str) -> dict[str, str]:
    try:
        return container.members(group)
    except MissingObjectError as error:
        raise SampleError(
            f"{container.path}: there is no group {group} for input {name!r}. "
            f"{_what_is_there(container, group)} Name groups that hold one dataset per case, "
            "e.g. inputs={'A': 'MR', 'B': 'CT'}.",
            file=container.path,
            dataset=group,
            inputs=(name,),
        ) from error


def _what_is_there(container: FileIndex, group: str) -> str:
    """Say what lies at the deepest part of the path `group` that is there."""
    while True:
        group = posixpath.dirname(group)
        try:
            members = container.members(group)
        except MissingObjectError:
            continue  # ends at "/", which every file has
        if not members:
            return f"{group} is empty."
        return f"{group} holds {listed(f'{m} ({k})' for m, k in members.items())}."
