"""The file factories: what they write is what they say, the same every time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hyperslab import testing
from hyperslab.testing import draw_cells, draw_phantom, make_cohort, make_imaris, make_stack


def contents(path: str | Path) -> dict[str, np.ndarray]:
    """Every dataset of a file, by path."""
    found: dict[str, np.ndarray] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with h5py.File(path) as h5:
        h5.visititems(visit)
    return found


def test_all_is_sorted_and_there() -> None:
    assert testing.__all__ == sorted(testing.__all__)
    assert all(hasattr(testing, name) for name in testing.__all__)


def test_importing_the_kit_does_not_load_h5py() -> None:
    code = "import sys, hyperslab.testing; sys.exit('h5py' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- cohort --------------------------------------------------------------------------------------


def test_cohort(tmp_path: Path) -> None:
    facts = make_cohort(tmp_path / "cohort.h5")
    assert facts["cases"] == ["1PA001", "1PA004", "1PB002", "1PC003"]
    cases = facts["cases"]
    assert (facts["axis"], facts["n_slices"]) == (2, 4 * 24)
    data = contents(facts["path"])
    assert list(data) == [f"{name}/{case}" for name in ("CT", "MASK", "MR") for case in cases]
    for name, volume in data.items():
        assert volume.shape == (64, 64, 24) == facts["shapes"][name.split("/")[1]]
        assert volume.dtype == facts["dtypes"][name.split("/")[0]]
    assert facts["dtypes"] == {"MR": "float32", "CT": "float32", "MASK": "uint8"}
    assert sum(volume.nbytes for volume in data.values()) == facts["nbytes"]
    with h5py.File(facts["path"]) as h5, h5py.File(tmp_path / "auto.h5", "w") as other:
        auto = other.create_dataset("x", shape=(64, 64, 24), dtype="f4", compression="gzip")
        assert h5["MR/1PA001"].chunks == auto.chunks == facts["chunks"]
        assert h5["MR/1PA001"].compression == "gzip"


def test_cohort_looks_like_anatomy(tmp_path: Path) -> None:
    data = contents(make_cohort(tmp_path / "cohort.h5", n_cases=1)["path"])
    mr, ct, mask = (data[f"{name}/1PA001"] for name in ("MR", "CT", "MASK"))
    for volume in (mr, ct):
        assert -1 == volume.min() < volume.max() <= 1
    assert set(np.unique(mask)) == {0, 1}
    assert 0.2 < mask.mean() < 0.7
    body = mask == 1
    assert ct[~body].mean() < -0.9 < ct[body].mean()
    bone = ct > 0.5
    assert 0.003 < bone.mean() < 0.1
    assert body[bone].mean() > 0.99
    # Bone is bright in CT and dark in MR; fat is the other way round.
    fat = body & (ct < -0.05) & (ct > -0.2)
    assert mr[bone].mean() < -0.4 < 0.2 < mr[fat].mean()
    # Neighbouring slices belong together, distant ones differ.
    near, far = (np.abs(ct[..., 8] - ct[..., k]).mean() for k in (9, 20))
    assert near < far


def test_cohort_is_the_same_every_time(tmp_path: Path) -> None:
    first, again, other = (
        contents(make_cohort(tmp_path / f"{k}.h5", n_cases=2, shape=(20, 24, 6), seed=seed)["path"])
        for k, seed in enumerate((3, 3, 4))
    )
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["MR/1PA001"], other["MR/1PA001"])
    assert not np.array_equal(first["MR/1PA001"], first["MR/1PB002"])


def test_slice_first_is_the_same_cohort(tmp_path: Path) -> None:
    options: dict[str, Any] = {"n_cases": 1, "shape": (20, 24, 6)}
    last = contents(make_cohort(tmp_path / "last.h5", **options)["path"])
    facts = make_cohort(
        tmp_path / "first.h5", slice_first=True, chunks=(1, 20, 24), compression=None, **options
    )
    first = contents(facts["path"])
    assert (facts["axis"], facts["n_slices"], facts["chunks"]) == (0, 6, (1, 20, 24))
    for name, volume in last.items():
        assert np.array_equal(first[name], volume.transpose(2, 0, 1))


def test_ragged_cohort(tmp_path: Path) -> None:
    facts = make_cohort(tmp_path / "ragged.h5", ragged=True, inputs=("CT", "MASK"))
    data = contents(facts["path"])
    assert set(data) == {f"{name}/{case}" for name in ("CT", "MASK") for case in facts["cases"]}
    shapes = [data[f"CT/{case}"].shape for case in facts["cases"]]
    assert all(len(set(sizes)) == 4 for sizes in zip(*shapes, strict=True))
    assert shapes == [data[f"MASK/{case}"].shape for case in facts["cases"]]
    assert facts["n_slices"] == sum(shape[2] for shape in shapes)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("int16", -1000, 1000), ("uint16", 0, 2000), ("uint8", 0, 254), ("float64", -1, 1)],
)
def test_cohort_of_other_types(tmp_path: Path, dtype: str, low: int, high: int) -> None:
    facts = make_cohort(tmp_path / "cohort.h5", n_cases=1, shape=(32, 32, 4), dtype=dtype)
    data = contents(facts["path"])
    assert data["CT/1PA001"].dtype == dtype
    assert data["MASK/1PA001"].dtype == "uint8"
    assert data["CT/1PA001"].min() == low
    assert 0.6 * high < data["CT/1PA001"].max() <= high


@pytest.mark.parametrize("options", [{"inputs": ("PET",)}, {"inputs": ()}, {"n_cases": 0}])
def test_wrong_cohort(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"inputs|n_cases"):
        make_cohort(tmp_path / "cohort.h5", **options)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 300, 1), (33, 7, 5)])
def test_phantom_of_any_shape(shape: tuple[int, int, int]) -> None:
    mr, ct, mask = draw_phantom(shape)
    assert mr.shape == ct.shape == mask.shape == shape
    assert np.isfinite(mr).all()
    assert np.isfinite(ct).all()


# --- cells ---------------------------------------------------------------------------------------


def test_cells_move_and_differ() -> None:
    shape = (6, 96, 96)
    first = draw_cells(shape).astype(float)
    next_one, later, other = (
        draw_cells(shape, t=t, c=c).astype(float) for t, c in ((1, 0), (40, 0), (0, 1))
    )

    def likeness(volume: np.ndarray) -> float:
        return float(np.corrcoef(first.ravel(), volume.ravel())[0, 1])

    assert likeness(next_one) > 0.8
    assert likeness(later) < 0.6
    assert likeness(other) < 0.6
    assert np.array_equal(first, draw_cells(shape))
    assert not np.array_equal(first, draw_cells(shape, seed=1))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "float32", ">u2"])
def test_cells_of_any_type(dtype: str) -> None:
    volume = draw_cells((4, 40, 50), dtype=dtype)
    kind = np.dtype(dtype).newbyteorder("=")
    full = 1.0 if kind.kind == "f" else min(np.iinfo(kind).max, 8191)
    assert volume.dtype == kind
    assert 0 <= volume.min() < 0.05 * full
    assert 0.15 * full < volume.max() < 0.75 * full


# --- Imaris --------------------------------------------------------------------------------------


def test_imaris_holds_the_given_data(tmp_path: Path) -> None:
    shape = (2, 3, 5, 70, 90)
    data = np.random.default_rng(0).integers(0, 60000, shape, dtype="u2")
    by_array = make_imaris(tmp_path / "array.ims", shape=shape, data=data)
    make_imaris(tmp_path / "call.ims", shape=shape, data=lambda t, c: data[t, c])
    files = [contents(tmp_path / name) for name in ("array.ims", "call.ims")]
    assert files[0].keys() == files[1].keys()
    assert all(np.array_equal(files[0][name], files[1][name]) for name in files[0])
    for t in range(2):
        for c in range(3):
            where = f"TimePoint {t}/Channel {c}/Data"
            stored = files[0][f"DataSet/ResolutionLevel 0/{where}"]
            assert np.array_equal(stored[:5, :70, :90], data[t, c])
            coarse = files[0][f"DataSet/ResolutionLevel 1/{where}"][:5, :35, :45]
            means = data[t, c].reshape(5, 35, 2, 45, 2).astype(float).mean(axis=(2, 4))
            assert np.array_equal(coarse, means.astype("u2"))
    assert by_array.level_sizes == ((5, 70, 90), (5, 35, 45))


def test_imaris_histogram_counts_the_image_without_its_padding(tmp_path: Path) -> None:
    make_imaris(tmp_path / "a.ims")
    group = "DataSet/ResolutionLevel 0/TimePoint 0/Channel 1"
    with h5py.File(tmp_path / "a.ims") as h5:
        attrs = h5[group].attrs
        low, high = (float(attrs[f"Histogram{end}"].tobytes()) for end in ("Min", "Max"))
        image = h5[f"{group}/Data"][:5, :70, :90]
        assert h5[f"{group}/Histogram"].dtype == "u8"
        assert h5[f"{group}/Histogram"][:].sum() == image.size
    assert (low, high) == (image.min(), image.max())


@pytest.mark.parametrize(
    ("options", "n_filters"),
    [
        ({}, 1),
        ({"shuffle": True}, 2),
        ({"compression": None}, 0),
        ({"compression": "lzf"}, 1),
    ],
)
def test_imaris_filters(tmp_path: Path, options: dict[str, Any], n_filters: int) -> None:
    make_imaris(tmp_path / "a.ims", **options)
    with h5py.File(tmp_path / "a.ims") as h5:
        data = h5["DataSet/ResolutionLevel 0/TimePoint 0/Channel 0/Data"]
        assert data.chunks == (8, 64, 64)
        assert data.shuffle == options.get("shuffle", False)
        assert data.compression == options.get("compression", "gzip")
        assert data.compression_opts == (2 if data.compression == "gzip" else None)
        assert data.id.get_create_plist().get_nfilters() == n_filters


def test_sparse_imaris(tmp_path: Path) -> None:
    facts = make_imaris(
        tmp_path / "a.ims", shape=(3, 2, 16, 300, 500), sparse=True, n_written=2, levels=3
    )
    with h5py.File(facts.path) as h5:
        for level, size in enumerate(facts.stored_sizes):
            for t in range(3):
                data = h5[f"DataSet/ResolutionLevel {level}/TimePoint {t}/Channel 1/Data"]
                assert data.shape == size
                assert data.id.get_num_chunks() == (2 if t == 0 else 0)
                assert (data[0, 0, :64].max() > 0) == (t == 0)


def test_multi_file_imaris_is_the_same_image(tmp_path: Path) -> None:
    make_imaris(tmp_path / "one.ims", thumbnail=False)
    facts = make_imaris(tmp_path / "many.ims", thumbnail=False, multi_file=True)
    one = contents(tmp_path / "one.ims")
    assert {Path(name).parent for name in facts.linked_files} == {tmp_path}
    with h5py.File(facts.path) as h5:
        place = "DataSet/ResolutionLevel 1/TimePoint 1/Channel 0"
        link = h5.get(place, getlink=True)
        assert (link.filename, link.path) == ("./many--C00--T00001.h5", "ResolutionLevel 1")
        assert all(np.array_equal(h5[name][()], volume) for name, volume in one.items())


def test_imaris_thumbnail(tmp_path: Path) -> None:
    make_imaris(tmp_path / "a.ims")
    strip = contents(tmp_path / "a.ims")["Thumbnail/Data"].reshape(64, 64, 4)
    assert (strip[..., 3] == 255).all()
    assert strip[..., :3].std() > 10


def test_imaris_data_of_the_wrong_shape(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\(5, 70, 91\), not \(5, 70, 90\)"):
        make_imaris(tmp_path / "a.ims", data=np.zeros((2, 2, 5, 70, 91)))


# --- stack ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", ["t{t}/c{c}/data", "c{c:02d}", "z{z}/t{t}/c{c}", "all"])
def test_stack(tmp_path: Path, template: str) -> None:
    shape = (2, 3, 4, 20, 24)
    facts = make_stack(tmp_path / "stack.h5", template, shape)
    data = contents(facts.path)
    whole = np.stack(
        [[draw_cells((4, 20, 24), t=t, c=c) for c in range(3)] for t in range(2)]
    ).transpose(["TCZYX".index(axis) for axis in facts.axes])
    assert facts.shape == whole.shape
    assert {"/" + name for name in data} == set(facts.datasets.values())
    for index, name in facts.datasets.items():
        assert np.array_equal(data[name[1:]], whole[index])


def test_stack_with_an_unknown_field(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="t, c and z"):
        make_stack(tmp_path / "stack.h5", "t{time}")
