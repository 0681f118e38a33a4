"""Datasets whose dimensions have labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hyperslab.errors import LayoutError, MetadataWarning
from tests.layouts.planes import assert_planes, described, names, recognised


def write(path: Path, labels: Sequence[str], shape: tuple[int, ...], **attributes: Any) -> Path:
    with h5py.File(path, "w") as h5:
        data = h5.create_dataset("a/imaging", data=np.arange(np.prod(shape)).reshape(shape))
        for axis, label in zip(data.dims, labels, strict=True):
            axis.label = label
        data.attrs.update(attributes)
        h5["other"] = np.zeros((3, 4))
    return path


def test_labels_and_what_sima_adds(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.h5", "tzyxc", (2, 3, 4, 5, 2),
        element_size_um=(2.0, 0.5, 0.25), channel_names=np.array(["red", "green"], "S5"),
    )  # fmt: skip
    assert recognised(path) == ["labelled"]
    assert names(path) == ("a/imaging",)
    spec = assert_planes(path).spec
    assert (spec.axes, spec.order) == ("TCZYX", (0, 4, 1, 2, 3))
    assert spec.scale == (1.0, 1.0, 2.0, 0.5, 0.25)
    assert spec.units == ("", "", "um", "um", "um")
    assert [c.name for c in spec.channels] == ["red", "green"]
    with pytest.raises(LayoutError, match="there is no image 'other'"):
        described(path, "other")


def test_scales_of_dimensions(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", ["sample_x", "sample_y"], (4, 5), element_size_um=(1, 3, 3))
    with h5py.File(path, "r+") as h5:
        h5["x"] = [7.0, 7.5, 8.0, 8.5]
        h5["x"].attrs["units"] = "microns"
        h5["x"].make_scale("x")
        h5["a/imaging"].dims[0].attach_scale(h5["x"])
    spec = assert_planes(path).spec
    assert (spec.axes, spec.order) == ("YX", (1, 0))
    assert (spec.scale, spec.translation) == ((3.0, 0.5), (0.0, 7.0))
    assert spec.units == ("um", "um")


@pytest.mark.parametrize("labels", ["?yx", "yxx", "tzx", "czy", ["", "y", "x"]])
def test_labels_that_do_not_tell_rows_and_columns(tmp_path: Path, labels: Sequence[str]) -> None:
    path = write(tmp_path / "a.h5", labels, (2, 3, 4))
    assert recognised(path) == []
    with pytest.raises(LayoutError, match="no image in the layout 'labelled'"):
        described(path, layout="labelled")


def test_other_layouts_go_first(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", "zyx", (2, 3, 4))
    with h5py.File(path, "r+") as h5:
        h5["raw"] = np.zeros((2, 3, 4), "u2")
        for axis, label in zip(h5["raw"].dims, "zyx", strict=True):
            axis.label = label
    assert recognised(path) == ["unet"]


def test_channel_names_for_some(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", "cyx", (2, 3, 4), channel_names=["red"])
    with pytest.warns(MetadataWarning, match="channel_names for 1 of 2 channels"):
        spec = described(path)
    assert [c.name for c in spec.channels] == ["Channel 0", "Channel 1"]
    path = write(tmp_path / "b.h5", "cyx", (2, 3, 4), channel_names=h5py.Empty("S1"))
    with pytest.warns(MetadataWarning, match="channel_names for 1 of 2 channels"):
        described(path)
