"""Layouts of other packages: real ones, as pip leaves them, on the path of a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np

MODULE = """
from hyperslab.layouts import Layout, describe_template

def matches(h5):
    return "lab" in h5.attrs

def describe(h5, path, image):
    return describe_template(h5, path, "shots/{image}/pixels".format(image=image))

def images(h5):
    return tuple(h5["shots"])

def default(h5):
    return h5.attrs["lab"]

LAB = Layout(matches=matches, describe=describe, images=images, default=default)
BROKEN = "not a layout"
"""
ENTRIES = """[hyperslab.layouts]
lab = lab_layouts:LAB
imaris = lab_layouts:LAB
text = lab_layouts:BROKEN
absent = lab_layouts:NOTHING
lost = no_such_module:LAYOUT
"""
LOOK = """
import sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import hyperslab as hs
    img = hs.open_image(sys.argv[1])
print(img.shape, hs.list_images(sys.argv[1]), img.spec.levels[0].datasets, int(img[1, 2]))
print(hs.open_image(sys.argv[1], "lab", image="b")[0, 0])
for warning in caught:
    print(warning.category.__name__, warning.message)
from hyperslab.layouts import known_layouts
print(list(known_layouts())[-1])
"""


def test_a_layout_of_an_installed_package(tmp_path: Path) -> None:
    (tmp_path / "lab_layouts.py").write_text(MODULE)
    installed = tmp_path / "lab_layouts-1.2.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-layouts\nVersion: 1.2\n")
    (installed / "entry_points.txt").write_text(ENTRIES)
    path = tmp_path / "lab.h5"
    with h5py.File(path, "w") as h5:
        h5.attrs["lab"] = "a"
        h5["shots/a/pixels"] = np.arange(12).reshape(3, 4)
        h5["shots/b/pixels"] = np.full((3, 4), 9)
    ways = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    child = subprocess.run(
        [sys.executable, "-c", LOOK, str(path)], env={**os.environ, "PYTHONPATH": ways},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    shown, other, *told, last = child.stdout.splitlines()
    assert shown == "(3, 4) ('a', 'b') ('/shots/a/pixels',) 6"
    assert other == "9"
    assert last == "lab"
    # One that is broken keeps no other file from being opened.
    assert len(told) == 4
    assert all(line.startswith("MetadataWarning the layout ") for line in told)
    assert all("'lab-layouts'" in line and "is left out: " in line for line in told)
    for line, problem in zip(
        sorted(told),
        (
            "(lab_layouts:NOTHING) is left out: AttributeError",
            "there is one of that name already",
            "ModuleNotFoundError: No module named 'no_such_module'",
            "it is 'not a layout', not a hyperslab.layouts.Layout",
        ),
        strict=True,
    ):
        assert problem in line
