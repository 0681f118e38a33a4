"""Which of the real files each layout claims; and damaged ones, which none may choke on."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from hyperslab.layouts import LAYOUTS
from tests.layouts.planes import recognised

#: Kinds of real files that a layout may claim.
KINDS = {
    "bdv": {"bdv"},
    "luxendo": set(),
    "lmb": set(),
    "ilastik": {"ilastik"},
    "matlab": {"matlab73"},
    "nexus": {"nexus", "eiger-dectris"},
    "emd": {"em-emd"},
    "velox": {"em-emd"},
    "hyperspy": {"em-hspy"},
    "minc2": {"minc2"},
    "fastmri": set(),
    "hdf5_image": {"hdf5-image", "microscopy-5d-h5"},
    "unet": {"training-h5"},
    "slices": set(),
    "labelled": {"microscopy-h5", "layout"},
}

LOOK = """
import sys, warnings
import hyperslab as hs
from hyperslab.errors import HyperslabError
warnings.simplefilter("ignore")
for path in sys.stdin.read().splitlines():
    print("at", path, flush=True)
    try:
        for image in hs.list_images(path):
            img = hs.open_image(path, image=image)
            for level in img.levels:
                level[(0,) * (level.ndim - 1)]
    except HyperslabError:
        pass
print("done")
"""


def test_real_files_are_taken_for_what_they_are(corpus: Any) -> None:
    claimed = set()
    for path, entry in corpus.readable():
        found = recognised(path)
        assert len(found) <= 1, path
        for layout in found:
            claimed.add(layout)
            assert entry["kind"] in KINDS.get(layout, {entry["kind"]}), (layout, path)
    assert claimed >= {layout for layout, kinds in KINDS.items() if kinds}
    assert set(KINDS) <= set(LAYOUTS)


def test_damaged_files_raise_our_errors_only(corpus: Any) -> None:
    paths = [
        str(corpus.path(entry["name"])) for entry in corpus.entries if entry["kind"] == "corrupt"
    ]
    assert paths
    killers = []
    # One child for all; another for the rest, where a file kills the library itself.
    while paths:
        child = subprocess.run(
            [sys.executable, "-c", LOOK],
            input="\n".join(paths), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        lines = child.stdout.splitlines()
        if child.returncode == 0:
            assert lines[-1] == "done"
            break
        last = lines[-1].removeprefix("at ")
        if child.returncode > 0:
            pytest.fail(f"{last}: {child.stderr[-2000:]}")
        killers.append(last)
        paths = paths[paths.index(last) + 1 :]
    assert [path.rsplit("/", 1)[1] for path in killers] == ["cve-2024-32609.h5"]
