"""Images at numbered paths, and the choice of a layout."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hyperslab.errors import LayoutError, MetadataWarning, MissingSourceError
from hyperslab.index.session import session
from hyperslab.layouts import LAYOUTS, ImageSpec, describe, describe_template
from hyperslab.testing import make_imaris, make_stack


def described(path: str | Path, template: str, axes: str | None = None) -> ImageSpec:
    with session(str(path)) as h5:
        return describe_template(h5, str(path), template, axes=axes)


def written(tmp_path: Path, names: Sequence[str], shape: tuple[int, ...] = (2, 3, 4)) -> Path:
    """Write a dataset of zeros at each name; gives the file."""
    path = tmp_path / "written.h5"
    with h5py.File(path, "w") as h5:
        for name in names:
            h5.create_dataset(name, shape=shape, dtype="u1")
    return path


@pytest.mark.parametrize(
    ("template", "axes", "n_outer"),
    [
        ("t{t}/c{c}/data", "TCZYX", 2),
        ("t{t:05d}/s{c:02d}/0/cells", "TCZYX", 2),
        ("/c{c}/t{t}/data", "TCZYX", 2),
        ("channel{c}", "CTZYX", 1),
        ("z{z:03d}_t{t}_c{c}", "TCZYX", 3),
        ("{t}", "TCZYX", 1),
        ("image", "TCZYX", 0),
    ],
)
def test_templates(tmp_path: Path, template: str, axes: str, n_outer: int) -> None:
    facts = make_stack(tmp_path / "stack.h5", template)
    spec = described(facts.path, template, axes[n_outer:])
    assert (spec.axes, spec.n_outer, spec.dtype) == (axes, n_outer, "uint16")
    assert spec.axes == facts.axes
    assert spec.levels[0].shape == facts.shape
    assert spec.levels[0].datasets == tuple(facts.datasets[key] for key in sorted(facts.datasets))
    assert spec.scale == (1.0,) * 5
    assert spec.units == ("",) * 5
    assert spec.translation == (0.0,) * 5
    assert spec.origin == tuple(-0.5 if axis in "ZYX" else 0.0 for axis in axes)
    assert [channel.name for channel in spec.channels] == ["Channel 0", "Channel 1"]
    assert spec.layout == "template"
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("template", "shape", "axes"),
    [("t{t}", (2, 3, 4), "TZYX"), ("t{t}", (3, 4), "TYX"), ("z{z}c{c}", (3, 4), "CZYX")],
)
def test_default_axes(tmp_path: Path, template: str, shape: tuple[int, ...], axes: str) -> None:
    names = [template.format(t=i, z=i, c=j) for i in range(2) for j in range(2)]
    spec = described(written(tmp_path, sorted(set(names)), shape), template)
    assert spec.axes == axes
    assert spec.levels[0].shape[-len(shape) :] == shape


def test_numbers_sort_as_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, [f"t{t}/c{c}" for t in range(12) for c in range(11)])
    spec = described(path, "t{t}/c{c}")
    assert spec.levels[0].shape == (12, 11, 2, 3, 4)
    assert spec.levels[0].datasets == tuple(f"/t{t}/c{c}" for t in range(12) for c in range(11))


def test_other_letters_follow(tmp_path: Path) -> None:
    path = written(
        tmp_path, [f"view{s}/t{t}/tile{m}" for s in (0, 1) for t in (0, 1) for m in (0,)]
    )
    spec = described(path, "view{s}/t{t}/tile{M}")
    assert spec.axes == "TSMZYX"
    assert spec.levels[0].shape == (2, 2, 1, 2, 3, 4)
    assert spec.levels[0].datasets[1] == "/view1/t0/tile0"
    assert len(spec.channels) == 1


def test_all_axes_may_be_given(tmp_path: Path) -> None:
    path = written(tmp_path, [f"t{t}/c{c}" for t in range(2) for c in range(3)])
    spec = described(path, "t{t}/c{c}", "ctxyz")
    assert spec.axes == "CTXYZ"
    assert spec.levels[0].shape == (3, 2, 2, 3, 4)
    assert spec.levels[0].datasets[:2] == ("/t0/c0", "/t1/c0")


def test_numbers_need_not_start_at_zero(tmp_path: Path) -> None:
    facts = make_stack(tmp_path / "stack.h5", "t{t}/c{c}", first=1)
    spec = described(facts.path, facts.template)
    assert spec.levels[0].shape == facts.shape
    assert spec.levels[0].datasets[0] == "/t1/c1"
    assert [channel.name for channel in spec.channels] == ["Channel 1", "Channel 2"]


def test_gaps(tmp_path: Path) -> None:
    facts = make_stack(tmp_path / "stack.h5", missing={(0, 1), (2, 0)})
    with pytest.warns(MetadataWarning, match="2 of the 6 datasets"):
        spec = described(facts.path, facts.template)
    assert spec.levels[0].shape == facts.shape
    names = spec.levels[0].datasets
    assert [name is None for name in names] == [False, True, False, False, True, False]
    assert names[5] == "/t2/c1/data"


def test_a_whole_time_point_is_missing(tmp_path: Path) -> None:
    path = written(tmp_path, ["t0", "t1", "t3"])
    with pytest.warns(MetadataWarning, match="1 of the 4"):
        spec = described(path, "t{t}")
    assert spec.levels[0].datasets == ("/t0", "/t1", None, "/t3")


def test_every_tenth_number(tmp_path: Path) -> None:
    path = written(tmp_path, ["t5", "t15", "t25"])
    assert described(path, "t{t}").levels[0].datasets == ("/t5", "/t15", "/t25")


def test_two_numbers_that_are_apart_have_a_gap(tmp_path: Path) -> None:
    path = written(tmp_path, ["t0", "t2"])
    with pytest.warns(MetadataWarning, match="1 of the 3"):
        assert described(path, "t{t}").levels[0].datasets == ("/t0", None, "/t2")


def test_what_does_not_match_is_left_alone(tmp_path: Path) -> None:
    names = ["t0/c0/data", "t1/c0/data", "t1/c0/mask", "tx/c0/data", "t2", "t3/data", "notes"]
    spec = described(written(tmp_path, names), "t{t}/c{c}/data")
    assert spec.levels[0].datasets == ("/t0/c0/data", "/t1/c0/data")


def test_a_width_must_fit(tmp_path: Path) -> None:
    path = written(tmp_path, ["t00", "t01", "t100", "t2"])
    with pytest.warns(MetadataWarning):
        spec = described(path, "t{t:02d}")
    assert [name for name in spec.levels[0].datasets if name] == ["/t00", "/t01", "/t100"]


def test_a_field_may_come_back(tmp_path: Path) -> None:
    path = written(tmp_path, ["t0/img_0_0", "t1/img_1_1", "t1/img_0_0", "t1/img_1_0"])
    assert described(path, "t{t}/img_{t}_{t}").levels[0].datasets == ("/t0/img_0_0", "/t1/img_1_1")


def test_two_names_for_one_number(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match=r"/t01 .*same numbers"):
        described(written(tmp_path, ["t1", "t01"]), "t{t}")


def test_braces_in_names(tmp_path: Path) -> None:
    assert described(written(tmp_path, ["{a}0"]), "{{a}}{t}").levels[0].datasets == ("/{a}0",)


def test_nothing_matches(tmp_path: Path) -> None:
    path = written(tmp_path, ["time0/c0"])
    with pytest.raises(LayoutError, match=r"/time0/c0 \(2, 3, 4\) uint8"):
        described(path, "t{t}/c{c}")


@pytest.mark.parametrize(("shape", "dtype"), [((2, 3, 5), "u1"), ((2, 3, 4), "u2")])
def test_datasets_that_differ(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    path = written(tmp_path, ["t0", "t1"])
    with h5py.File(path, "r+") as h5:
        h5.create_dataset("t2", shape=shape, dtype=dtype)
    with pytest.raises(LayoutError, match=r"/t0 is .*/t2 is ") as caught:
        described(path, "t{t}")
    assert caught.value.dataset == "/t2"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("t{time}", "one letter"),
        ("t{}", "one letter"),
        ("t{0}", "one letter"),
        ("t{t!r}", "one letter"),
        ("t{t:x}", "whole number"),
        ("t{t", "malformed"),
        ("t{t}/{t:02d}", "two ways"),
        ("/", "names no dataset"),
    ],
)
def test_templates_that_cannot_be_understood(tmp_path: Path, template: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        described(written(tmp_path, ["t0"]), template)


@pytest.mark.parametrize(
    ("template", "shape", "axes", "message"),
    [
        ("t{t}", (2, 2, 3, 4), None, "axes='CZYX'"),
        ("z{z}", (2, 3, 4), None, "axes='CYX'"),
        ("t{t}", (4,), None, "1 axes"),
        ("t{t}", (), None, "0 axes"),
        ("t{t}", (2, 3, 4), "YX", "3 different letters"),
        ("t{t}", (2, 3, 4), "ZYY", "3 different letters"),
        ("t{t}", (2, 3, 4), "TYX", "3 different letters"),
        ("t{t}", (2, 3, 4), "ZYTX", "does not fit"),
        ("t{t}", (2, 3, 4), "Z-X", "does not fit"),
    ],
)
def test_axes_that_do_not_fit(
    tmp_path: Path, template: str, shape: tuple[int, ...], axes: str | None, message: str
) -> None:
    path = written(tmp_path, [template.format(t=0, z=0)], shape)
    with pytest.raises(LayoutError, match=message):
        described(path, template, axes)


def test_elements_that_are_no_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, [])
    with h5py.File(path, "w") as h5:
        h5["t0"] = np.array([["a", "b"]], dtype=h5py.string_dtype())
    with pytest.raises(LayoutError, match="an image has numbers"):
        described(path, "t{t}")


def test_a_stray_number_does_not_fill_the_memory(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="999999999"):
        described(written(tmp_path, ["t0", "t1", "t999999999"]), "t{t}")
    path = written(tmp_path, ["t0c0", "t1c1", "t9999c9999"])
    with pytest.raises(LayoutError, match="10000 x 10000"):
        described(path, "t{t}c{c}")


@pytest.mark.parametrize("link", ["soft", "external"])
def test_links_that_lead_nowhere(tmp_path: Path, link: str) -> None:
    path = written(tmp_path, ["t0/data", "t2/data"])
    with h5py.File(path, "r+") as h5:
        h5["t1"] = h5py.SoftLink("/gone") if link == "soft" else h5py.ExternalLink("gone.h5", "/")
    if link == "soft":
        with (
            pytest.warns(MetadataWarning, match="/t1 leads nowhere"),
            pytest.warns(MetadataWarning, match="1 of the 3"),
        ):
            assert described(path, "t{t}/data").levels[0].datasets[1] is None
    else:
        with pytest.raises(MissingSourceError, match=r"gone\.h5.*not there"):
            described(path, "t{t}/data")


@pytest.mark.parametrize(
    ("template", "axes", "scale"),
    [
        ("t{t}/c{c}", "TCZYX", (1.0, 1.0, 2.0, 0.25, 0.125)),
        ("z{z}c{c}", "CZTYX", (1.0, 2.0, 1.0, 0.25, 0.125)),
    ],
)
def test_element_size(tmp_path: Path, template: str, axes: str, scale: tuple[float, ...]) -> None:
    facts = make_stack(tmp_path / "stack.h5", template, element_size_um=(2.0, 0.25, 0.125))
    spec = described(facts.path, template, axes)
    assert spec.axes == axes
    assert spec.scale == scale
    assert spec.units == tuple("um" if axis in "ZYX" else "" for axis in axes)
    assert spec.origin == tuple(
        -step / 2 if axis in "ZYX" else 0.0 for step, axis in zip(scale, axes, strict=True)
    )


def test_element_size_of_a_plane(tmp_path: Path) -> None:
    facts = make_stack(tmp_path / "stack.h5", "t{t}c{c}z{z}", element_size_um=(0.25, 0.125))
    assert described(facts.path, facts.template).scale == (1.0, 1.0, 1.0, 0.25, 0.125)


@pytest.mark.parametrize("value", ["small", (0.0, 1.0, 1.0), (1.0,), (np.nan, 1.0, 1.0)])
def test_element_size_that_makes_no_sense(tmp_path: Path, value: Any) -> None:
    path = written(tmp_path, ["t0"])
    with h5py.File(path, "r+") as h5:
        h5["t0"].attrs["element_size_um"] = value
    with pytest.warns(MetadataWarning, match="element_size_um"):
        spec = described(path, "t{t}")
    assert (spec.scale, spec.units) == ((1.0,) * 4, ("",) * 4)


# --- the choice of a layout ----------------------------------------------------------------------


def test_describe_takes_a_template_or_a_path(tmp_path: Path) -> None:
    facts = make_stack(tmp_path / "stack.h5")
    with session(facts.path) as h5:
        spec = describe(h5, facts.path, facts.template)
        assert spec.levels[0].shape == facts.shape
        one = describe(h5, facts.path, "t1/c1/data", axes="XYZ")
        assert (one.axes, one.n_outer, one.name) == ("XYZ", 0, "t1/c1/data")
        assert one.levels[0].datasets == ("/t1/c1/data",)


def test_describe_by_name(tmp_path: Path) -> None:
    facts = make_imaris(tmp_path / "a.ims")
    with session(facts.path) as h5:
        spec = describe(h5, facts.path, "imaris")
        assert spec == describe(h5, facts.path)
        with pytest.raises(LayoutError, match="has its own"):
            describe(h5, facts.path, axes="TCZYX")
        # An Imaris file is also a stack, padding and all.
        stack = describe(h5, facts.path, "DataSet/ResolutionLevel 0/TimePoint {t}/Channel {c}/Data")
        assert stack.levels[0].datasets == spec.levels[0].datasets
        assert stack.levels[0].shape == (2, 2, 8, 128, 128)


@pytest.mark.parametrize("layout", ["auto", "no/such/data", "imarus"])
def test_no_layout_fits(tmp_path: Path, layout: str) -> None:
    path = str(written(tmp_path, ["volume"]))
    with session(path) as h5, pytest.raises(LayoutError) as caught:
        describe(h5, path, layout)
    message = str(caught.value)
    assert all(name in message for name in LAYOUTS)
    assert "t{t}/c{c}/data" in message
    assert "/volume (2, 3, 4) uint8" in message


def test_the_message_about_a_large_file_is_short(tmp_path: Path) -> None:
    path = str(written(tmp_path, [f"group/data{k}" for k in range(300)]))
    with session(path) as h5, pytest.raises(LayoutError, match=r", \.\.\.") as caught:
        describe(h5, path)
    assert len(str(caught.value)) < 1500


def test_a_type_that_numpy_has_not(tmp_path: Path) -> None:
    """A sound file is not called damaged over it."""
    quadruple = h5py.h5t.IEEE_F64LE.copy()
    quadruple.set_size(16)
    quadruple.set_precision(128)
    quadruple.set_fields(127, 112, 15, 0, 112)
    quadruple.set_ebias(16383)
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as h5:
        h5py.h5d.create(h5.id, b"wide", quadruple, h5py.h5s.create_simple((3, 4)))
    with session(path) as h5:
        with pytest.raises(ValueError, match="Insufficient precision"):
            _ = h5["wide"].dtype
        with pytest.raises(LayoutError, match=r"/wide \(3, 4\) of a type that NumPy has not"):
            describe(h5, path)
        with pytest.raises(LayoutError, match="/wide has elements of a type that NumPy has not"):
            describe(h5, path, "wide")
