"""Luxendo: which files beside a `.lux.h5` file hold the other time points and channels.

Names carry the numbers: `uni_tp-0_ch-1_st-0_....lux.h5` in one folder, or
`stack_0_channel_1-GFP_obj_left/Cam_left_00000.lux.h5`, one folder for each channel.
"""

from __future__ import annotations

import os
import re

__all__ = ["find_set"]

_FIELD = re.compile(r"(?<![A-Za-z0-9])(tp|ch)-([0-9]{1,9})(?![0-9])")
_FRAME = re.compile(r"(.*_)([0-9]{5,9})(\.lux\.h5|\.h5)")
_CHANNEL = re.compile(r"(.*channel_)([0-9]{1,9})(-.*?)?(_obj_.*)?")


def find_set(path: str) -> dict[tuple[int, int], str]:
    """Return the files of the set that the file at `path` is one of.

    Returns
    -------
    dict
        (time point, channel) to path, relative to the folder of `path`; itself among them, as its
        bare name. Time point 0 and channel 0 where the name has no number for them.

    Notes
    -----
    Lists one folder, or the channels' folders; opens no file.
    """
    folder, name = os.path.split(os.path.abspath(path))
    if _FIELD.search(name):
        return _same_folder(folder, name)
    frame = _FRAME.fullmatch(name)
    if frame is None:
        return {(0, 0): name}
    channels = _channel_folders(folder)
    pattern = re.compile(re.escape(frame[1]) + "([0-9]{5,9})" + re.escape(frame[3]))
    found = {}
    for channel, other in channels.items():
        for entry in _names(os.path.join(folder, other)):
            match = pattern.fullmatch(entry)
            if match:
                found[int(match[1]), channel] = entry if other == "." else f"{other}/{entry}"
    return found


def _same_folder(folder: str, name: str) -> dict[tuple[int, int], str]:
    """Files whose names differ from `name` in the numbers of time point and channel only."""
    seen: set[str] = set()
    pattern, at = "", 0
    for match in _FIELD.finditer(name):
        if match[1] in seen:
            continue
        seen.add(match[1])
        pattern += re.escape(name[at : match.start(2)]) + f"(?P<{match[1]}>[0-9]{{1,9}})"
        at = match.end(2)
    compiled = re.compile(pattern + re.escape(name[at:]))
    found: dict[tuple[int, int], str] = {}
    for entry in [name, *_names(folder)]:
        other = compiled.fullmatch(entry)
        if other:
            numbers = other.groupdict()
            found.setdefault((int(numbers.get("tp", 0)), int(numbers.get("ch", 0))), entry)
    return found


def _channel_folders(folder: str) -> dict[int, str]:
    """Folders beside `folder` that are its other channels, by number; "." is itself."""
    parent, own = os.path.split(folder)
    match = _CHANNEL.fullmatch(own)
    if match is None:
        return {0: "."}
    found = {int(match[2]): "."}
    for entry in _names(parent):
        other = _CHANNEL.fullmatch(entry)
        same = other is not None and (other[1], other[4]) == (match[1], match[4])
        if other and same and os.path.isdir(os.path.join(parent, entry)):
            found.setdefault(int(other[2]), f"../{entry}")
    return found


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
