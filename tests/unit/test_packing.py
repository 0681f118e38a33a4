"""The parts of `pack` by themselves: grids, intensity maps, patterns, which folders are cases."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hyperslab.errors import LayoutError, MissingFileError
from hyperslab.packing.find import find_cases
from hyperslab.packing.grid import TOLERANCE, Grid, difference, grid_of
from hyperslab.packing.intensity import DEFAULTS, fit, parse_map, restore
from hyperslab.packing.patterns import parse_pattern
from hyperslab.packing.refusal import Refused
from hyperslab.packing.volume import Volume
from hyperslab.packing.work import cut

GRID = Grid(
    shape=(2, 3, 4),
    spacing=(1.0, 2.0, 3.0),
    origin=(0.0, 0.0, 0.0),
    direction=((0.0, 1.0, 0.0), (1.0, 0.0, 0.0), (0.0, 0.0, 1.0)),
)


# --- grids


def rotation(angles: tuple[float, float, float]) -> NDArray[np.float64]:
    turned = np.eye(3)
    for axis, angle in enumerate(angles):
        a, b = [other for other in range(3) if other != axis]
        one = np.eye(3)
        one[a, a] = one[b, b] = np.cos(angle)
        one[a, b], one[b, a] = -np.sin(angle), np.sin(angle)
        turned = turned @ one
    return turned


@given(
    shape=st.tuples(*[st.integers(1, 5)] * 3),
    spacing=st.tuples(*[st.floats(0.1, 9)] * 3),
    origin=st.tuples(*[st.floats(-300, 300)] * 3),
    angles=st.tuples(*[st.floats(-3.2, 3.2)] * 3),
    mirrored=st.booleans(),
)
def test_every_voxel_stays_where_it_is(
    shape: tuple[int, int, int],
    spacing: tuple[float, float, float],
    origin: tuple[float, float, float],
    angles: tuple[float, float, float],
    mirrored: bool,
) -> None:
    matrix = rotation(angles) * np.array(spacing)
    if mirrored:
        matrix[:, 0] *= -1
    numbers = np.arange(np.prod(shape)).reshape(shape)
    grid, turn = grid_of(shape, matrix, np.array(origin))
    turned = turn(numbers)
    assert turned.shape == grid.shape
    assert turned.base is not None  # nothing is copied
    for index in np.ndindex(*shape):
        (place,) = np.argwhere(turned == numbers[index])
        there = np.array(origin) + matrix @ index
        assert np.allclose(grid.at(tuple(map(float, place))), there, atol=1e-6)
    # Rows, columns and slices run to posterior, left and superior as nearly as the axes allow.
    direction = np.array(grid.direction)
    along = [direction[1, 0], direction[0, 1], direction[2, 2]]
    assert min(along) >= 0
    fits = [
        sum(abs(direction[[1, 0, 2][a], axis]) for a, axis in enumerate(order))
        for order in itertools.permutations(range(3))
    ]
    assert sum(along) >= max(fits) - 1e-4


@given(order=st.permutations(range(3)), flips=st.tuples(*[st.booleans()] * 3))
def test_however_it_is_stored_it_comes_out_alike(order: list[int], flips: tuple[bool, ...]) -> None:
    shape, step = (3, 4, 5), np.array([1.0, 2.0, 3.0])
    canonical = np.arange(60).reshape(shape)
    matrix = np.eye(3)[:, [1, 0, 2]] * step
    stored = canonical.transpose(order)
    stored = stored[tuple(slice(None, None, -1 if flip else 1) for flip in flips)]
    columns = matrix[:, order]
    first = np.array([n - 1 if flip else 0 for n, flip in zip(stored.shape, flips, strict=True)])
    origin = columns @ first
    columns = columns * np.where(flips, -1, 1)
    grid, turn = grid_of(stored.shape, columns, origin)
    assert np.array_equal(turn(stored), canonical)
    assert grid.shape == shape
    assert grid.spacing == tuple(step)
    assert np.allclose(grid.origin, 0)
    assert np.array_equal(grid.direction, np.eye(3)[:, [1, 0, 2]])


@pytest.mark.parametrize(
    ("shape", "matrix", "match"),
    [
        ((2, 2), np.eye(3), "three axes"),
        ((2, 0, 2), np.eye(3), "none is empty"),
        ((2, 2, 2), np.diag([1, 0, 1]), "make no sense"),
        ((2, 2, 2), np.diag([1, np.nan, 1]), "make no sense"),
        ((2, 2, 2), np.eye(3) + np.eye(3, k=1) * 0.1, "not at right angles"),
    ],
)
def test_grids_that_make_no_sense(shape: Any, matrix: Any, match: str) -> None:
    with pytest.raises(Refused, match=match):
        grid_of(shape, np.asarray(matrix, float), np.zeros(3))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, ""),
        ({"shape": (2, 3, 5)}, "shape (2, 3, 4), not (2, 3, 5)"),
        ({"spacing": (1.0, 2.0, 3.1)}, "spacing 1 x 2 x 3 mm, not 1 x 2 x 3.1 mm"),
        ({"origin": (0.0, 0.0, 0.9 * TOLERANCE)}, ""),
        ({"origin": (0.0, 0.0, 1.1 * TOLERANCE)}, "origin 0 x 0 x 0 mm, not 0 x 0 x 0.011 mm"),
        ({"direction": ((0.0, 1.0, 0.0), (-1.0, 0.0, 0.0), (0.0, 0.0, 1.0))}, "other directions"),
    ],
)
def test_grids_that_differ(change: dict[str, Any], told: str) -> None:
    from dataclasses import replace

    found = difference(GRID, replace(GRID, **change))
    assert found.startswith(told)
    assert bool(found) == bool(told)


# --- intensities


def volume(values: Any, slope: float = 1, intercept: float = 0) -> Volume:
    return Volume(values=np.asarray(values), slope=slope, intercept=intercept, grid=GRID)


WHOLE = (slice(None),) * 3
SHAPES = st.tuples(*[st.integers(1, 6)] * 3).filter(lambda shape: np.prod(shape) > 3)


@given(
    shape=SHAPES,
    dtype=st.sampled_from(["int16", "uint8", ">u2", "float32", "int32"]),
    rescale=st.sampled_from([(1, 0), (1, -1024), (2.5, 10), (-0.5, 3)]),
    text=st.sampled_from(
        ["window:-100:200.5", "percentiles:0:100", "percentiles:2:97.5", "zscore:2", "zscore"]
    ),
    seed=st.integers(0, 9),
)
def test_maps_come_back(
    shape: Any, dtype: str, rescale: tuple[float, float], text: str, seed: int
) -> None:
    stored = np.random.default_rng(seed).integers(0, 250, shape).astype(dtype)
    if stored.min() == stored.max():
        stored.flat[0] += 1
    slope, intercept = rescale
    source = stored.astype(float) * slope + intercept
    rule = parse_map(text)
    if rule.kind == "window":
        low, high = rule.numbers
    elif rule.kind == "percentiles":
        low, high = np.percentile(source, rule.numbers)
    else:
        low, high = (source.mean() + side * rule.numbers[0] * source.std() for side in (-1, 1))
    if low == high:  # the percentiles of few values may be one
        with pytest.raises(Refused, match="finds no window"):
            fit(rule, volume(stored, *rescale))
        return
    fitted = fit(rule, volume(stored, *rescale))
    assert np.allclose([fitted.low, fitted.high], [low, high])
    assert fitted.source_range == (source.min(), source.max())
    made, outside = fitted.apply(volume(stored, *rescale).real(WHOLE))
    assert made.dtype == np.float32
    assert -1 <= made.min() <= made.max() <= 1
    inside = (source >= fitted.low) & (source <= fitted.high)
    assert outside == np.count_nonzero(~inside)
    assert np.allclose(made, np.clip((source - low) / (high - low) * 2 - 1, -1, 1), atol=1e-5)
    back = restore(made, {"slope": fitted.slope, "intercept": fitted.intercept})
    width = high - low
    assert np.abs(back - source)[inside].max(initial=0) <= 2e-7 * width
    if rescale[0] == 1:
        assert np.array_equal(np.rint(back[inside]), source[inside])
    assert np.allclose(back, np.clip(source, low, high), atol=1e-6 * width)


def test_percentiles_do_not_overflow() -> None:
    values = np.array([-30000, -29000, 30000, 32000], "i2").reshape(1, 2, 2)
    fitted = fit(parse_map("percentiles:25:75"), volume(values))
    expected = np.percentile(values.astype(float), [25, 75])
    assert [fitted.low, fitted.high] == expected.tolist()


@pytest.mark.parametrize("dtype", ["int16", "float32", "uint8", ">f4"])
def test_none_changes_nothing(dtype: str) -> None:
    values = np.arange(24).reshape(2, 3, 4).astype(dtype)
    fitted = fit(parse_map("none"), volume(values))
    made, outside = fitted.apply(volume(values).real(WHOLE))
    assert (made.dtype, outside) == (np.dtype(dtype).newbyteorder("="), 0)
    assert np.array_equal(made, values)


def test_masks_are_uint8() -> None:
    values = np.array([0.0, 1, 255, 3]).reshape(1, 2, 2)
    made, _ = fit(parse_map("mask"), volume(values)).apply(volume(values).real(WHOLE))
    assert made.dtype == np.uint8
    assert made.ravel().tolist() == [0, 1, 255, 3]


@pytest.mark.parametrize(
    ("text", "values", "match"),
    [
        ("window:0:1", [0, np.nan, 1, np.inf], "2 voxels are no finite numbers"),
        ("mask", [0, -1], "from -1 to 0, which do not fit"),
        ("mask", [0, 256], "do not fit"),
        ("mask", [0, 0.5], "no whole numbers"),
        ("percentiles:0:100", [3, 3], "finds no window: it begins and ends at 3"),
        ("zscore", [3, 3], "finds no window"),
    ],
)
def test_values_that_make_no_sense(text: str, values: list[float], match: str) -> None:
    found = volume(np.array(values).reshape(1, 1, -1))
    with pytest.raises(Refused, match=match):
        fit(parse_map(text), found).apply(found.real(WHOLE))


@pytest.mark.parametrize(
    "text",
    ["", "window", "window:1", "window:2:1", "window:a:b", "percentiles:-1:50", "none:1", "ct",
     "percentiles:1:101", "zscore:0", "zscore:1:2", "window:nan:1"],
)  # fmt: skip
def test_maps_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no map"):
        parse_map(text)


def test_defaults_are_maps() -> None:
    assert [str(parse_map(text)) for text in DEFAULTS.values()] == list(DEFAULTS.values())


def test_restore_needs_a_packed_dataset() -> None:
    with pytest.raises(ValueError, match="hyperslab pack"):
        restore([1], {"slope": 2})


@given(shape=SHAPES, chunks=st.tuples(*[st.integers(1, 7)] * 3))
def test_chunks_tile(shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
    seen = np.full(shape, -1)
    grid = [-(-n // c) for n, c in zip(shape, chunks, strict=True)]
    for number, region in cut(shape, chunks):
        assert (seen[region] == -1).all()
        seen[region] = number
        place = np.unravel_index(number, grid)
        assert [part.start for part in region] == [
            i * c for i, c in zip(place, chunks, strict=True)
        ]
    assert seen.min() >= 0


# --- patterns and folders


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("{case}/{image}.nii.gz", "p1/mri.nii.gz", ("p1", "MR")),
        ("{case}/{image}.nii.gz", "a/p1/mr.nii.gz", None),
        ("{case}/{image}.nii.gz", "p1/mrxnii.gz", None),
        ("**/{case}/{image}.mha", "p1/cbct.mha", ("p1", "CBCT")),
        ("**/{case}/{image}.mha", "a/b/p1/t1.mha", ("p1", "T1")),
        ("t1c={case}/{case}_t1.nii", "x_1/x_1_t1.nii", ("x_1", "T1C")),
        ("CT={case}/{case}_ct.nii", "x/y_ct.nii", None),
        ("MASK=labels*/{case}*.nrrd", "labels_v2/p1.nrrd", ("p1", "MASK")),
        ("./{case}_{image}.nii", "sub_01_ct.nii", ("sub_01", "CT")),
        ("CT={case}/study/ct", "p1/study/ct", ("p1", "CT")),
    ],
)
def test_patterns(pattern: str, path: str, found: tuple[str, str] | None) -> None:
    assert parse_pattern(pattern).match(path) == found


@pytest.mark.parametrize("text", ["{image}.nii", "{case}.nii", "CT={case}/{image}.nii", "CT=x.nii"])
def test_patterns_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no pattern"):
        parse_pattern(text)


def tree(root: Path, *names: str) -> str:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if "." not in path.name:
            path.write_bytes(b"\0" * 128 + b"DICM")
        else:
            path.touch()
    return str(root)


def found_in(root: str, *patterns: str) -> dict[str, list[str]]:
    found = find_cases(root, [parse_pattern(text) for text in patterns])
    return {case.name: [image for image, _ in case.images] for case in found.cases}


def test_the_trees_of_synthrad(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        "Task1/brain/1BA001/mr.nii.gz", "Task1/brain/1BA001/ct.nii.gz",
        "Task1/brain/1BA001/mask.nii.gz", "Task1/brain/overview/1BA001_train.png",
        "Task1/brain/overview/1_brain_train.xlsx",
        "Task2/AB/2ABA010/cbct.mha", "Task2/AB/2ABA010/CT.mha", "Task2/AB/2ABA002/cbct.mha",
        "Task2/AB/2ABA010/ct_def.mha", "Task2/AB/overviews/2ABA010_overview.png",
        "Task2/AB/2ABA010/._ct.mha", ".hidden/1BA009/ct.mha",
    )  # fmt: skip
    assert found_in(root) == {
        "1BA001": ["CT", "MASK", "MR"],
        "2ABA002": ["CBCT"],
        "2ABA010": ["CT", "CBCT"],
    }
    assert find_cases(root).ignored == ("Task2/AB/2ABA010/ct_def.mha",)


def test_folders_of_dicom(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        "p1/mr/1.dcm", "p1/mr/2.dcm", "p1/1.2.840/IM0001", "p1/1.2.840/DICOMDIR",
        "p1/mask.nii.gz", "p2/study/CT/0.IMA",
    )  # fmt: skip
    assert found_in(root) == {"p1": ["MASK", "", "MR"], "study": ["CT"]}
    (one, _) = find_cases(root).cases
    assert [len(source.files) for _, source in one.images] == [0, 1, 2]
    assert found_in(str(tmp_path / "p1")) == {"1.2.840": [""], "p1": ["MASK", "MR"]}
    assert found_in(str(tmp_path / "p1" / "mr")) == {"mr": ["MR"]}


def test_cases_of_one_name_are_told_apart(tmp_path: Path) -> None:
    root = tree(tmp_path, "a/p/ct.mha", "b/p/ct.mha", "b/q/ct.mha")
    assert list(found_in(root)) == ["a_p", "b_p", "q"]


def test_links_that_lead_back_are_seen_once(tmp_path: Path) -> None:
    root = tree(tmp_path, "a/p/ct.mha")
    (tmp_path / "a" / "p" / "loop").symlink_to(tmp_path)
    assert list(found_in(root)) == ["p"]


def test_where_patterns_say(tmp_path: Path) -> None:
    root = tree(
        tmp_path, "images/p1_t1.nii", "labels/p1.nii", "p2/series/1.dcm", "other/x.mha", "one/7.dcm"
    )
    assert found_in(
        root, "MR=images/{case}_t1.nii", "mask=labels/{case}.nii", "CT={case}/series",
        "{image}/{case}.dcm",
    ) == {"7": ["ONE"], "p1": ["MR", "MASK"], "p2": ["CT"]}  # fmt: skip
    assert find_cases(root, [parse_pattern("CT={case}/series")]).ignored == (
        "images/p1_t1.nii", "labels/p1.nii", "other/x.mha",
    )  # fmt: skip


def test_nothing_there(tmp_path: Path) -> None:
    root = tree(tmp_path, "a/t1.nii.gz")
    with pytest.raises(LayoutError, match=r"no case was found.*t1\.nii\.gz.*--pattern"):
        find_cases(root)
    with pytest.raises(LayoutError, match="no path matches the patterns"):
        find_cases(root, [parse_pattern("{case}/{image}.mha")])
    with pytest.raises(MissingFileError, match="no such folder"):
        find_cases(str(tmp_path / "none"))
