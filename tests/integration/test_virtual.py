"""Virtual datasets of every sort: h5py's answer where it has one, an error where it hides a gap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import (
    DamagedFileError,
    MissingObjectError,
    MissingSourceError,
    PerformanceWarning,
    StaleIndexError,
)
from tests.compare import assert_same, h5py_read

Array = np.ndarray[Any, Any]

# Indices of three axes, whatever their lengths from 4 on.
INDICES: list[Any] = [
    np.s_[...],
    np.s_[1],
    np.s_[::-1, 1:4, ::2],
    np.s_[..., -1],
    np.s_[2, :, 3],
    np.s_[3, 2, 1],
    np.s_[[3, 0, 0, 2], :, 1],
    np.s_[[3, 0], [1, 2], [0, 3]],
    np.s_[:, [3, 1], None],
    np.s_[None, ..., [[0, 3], [3, 2]]],
    np.s_[2:2],
]


def check(path: Path, name: str = "v") -> Array:
    """Compare every kind of read with h5py; return what was read."""
    want = h5py_read(path, name)
    array = hs.open(path)[name]
    assert array.shape == want.shape
    assert array.dtype == want.dtype
    for index in INDICES:
        assert_same(array[index], want[index])
    out = np.empty((*want.shape, 2), want.dtype)[..., 1]
    assert_same(array.read(out=out)[...], want)
    return want


def write_source(path: Path, seed: int, *, dtype: str = "i4", **how: Any) -> Array:
    """A file with dataset "s", shape (4, 5, 6)."""
    values = np.random.default_rng(seed).integers(0, 100, (4, 5, 6)).astype(dtype)
    with h5py.File(path, "w") as h5:
        h5.create_dataset("s", data=values, **how)
    return values


STORAGES: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "gzip": {"chunks": (2, 3, 4), "compression": "gzip", "shuffle": True},
    "raw chunks": {"chunks": (1, 5, 6)},
}


@pytest.mark.parametrize("how", STORAGES.values(), ids=STORAGES)
@pytest.mark.parametrize("dtype", ["i4", ">f4", "?"])
def test_stacked(dtype: str, how: dict[str, Any], tmp_path: Path) -> None:
    layout = h5py.VirtualLayout((5, 4, 5, 6), dtype)
    for i in range(5):
        write_source(tmp_path / f"{i}.h5", i, dtype=dtype, **how)
        layout[i] = h5py.VirtualSource(f"{i}.h5", "s", (4, 5, 6))
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as h5:
        h5.create_virtual_dataset("v", layout)
    want = check(path)
    assert_same(hs.open(path)["v"][:, 1, ::-2, 3], want[:, 1, ::-2, 3])


@pytest.mark.parametrize("how", STORAGES.values(), ids=STORAGES)
def test_side_by_side_along_the_last_axis(how: dict[str, Any], tmp_path: Path) -> None:
    layout = h5py.VirtualLayout((4, 5, 18), "i4")
    for i in range(3):
        write_source(tmp_path / f"{i}.h5", i, **how)
        layout[..., 6 * i : 6 * i + 6] = h5py.VirtualSource(tmp_path / f"{i}.h5", "s", (4, 5, 6))
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as h5:
        h5.create_virtual_dataset("v", layout)
    assert check(path).any()


def test_interleaved(tmp_path: Path) -> None:
    layout = h5py.VirtualLayout((8, 5, 6), "i4")
    for i in range(2):
        write_source(tmp_path / f"{i}.h5", i, chunks=(2, 2, 2), compression="gzip")
        layout[i::2] = h5py.VirtualSource(tmp_path / f"{i}.h5", "s", (4, 5, 6))
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as h5:
        h5.create_virtual_dataset("v", layout)
    want = check(path)
    assert_same(hs.open(path)["v"][[1, 2, 7, 2]], want[[1, 2, 7, 2]])


def test_strided_and_turned_sources(tmp_path: Path) -> None:
    values = write_source(tmp_path / "s.h5", 0)
    layout = h5py.VirtualLayout((4, 5, 6), "i4")
    source = h5py.VirtualSource(tmp_path / "s.h5", "s", (4, 5, 6))
    layout[0:2, :, ::2] = source[::2, :, 3:]
    layout[2, ::3, 0:3] = source[3, 1:3, ::2]
    layout[3, :, 1] = source[1, :, 4]
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as h5:
        h5.create_virtual_dataset("v", layout, fillvalue=-5)
    want = check(path)
    assert (want[0, :, 0] == values[0, :, 3]).all()
    assert (want == -5).any()


@pytest.mark.parametrize("fill", [None, -7, 2.5], ids=str)
def test_gaps_are_fill(fill: float | None, tmp_path: Path) -> None:
    write_source(tmp_path / "s.h5", 0, dtype="f4")
    layout = h5py.VirtualLayout((9, 7, 8), "f4")
    layout[2:6, 1:6, 1:7] = h5py.VirtualSource(tmp_path / "s.h5", "s", (4, 5, 6))
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as h5:
        h5.create_virtual_dataset("v", layout, fillvalue=fill)
    want = check(path)
    assert want[0, 0, 0] == (fill or 0)


def test_source_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "v.h5"
    values = write_source(path, 0, chunks=(1, 5, 6), compression="gzip")
    with h5py.File(path, "r+") as h5:
        layout = h5py.VirtualLayout((8, 5, 6), "i4")
        layout[:4] = h5py.VirtualSource(".", "s", (4, 5, 6))
        layout[4:] = h5py.VirtualSource(h5["s"])[::1]
        h5.create_virtual_dataset("v", layout)
    assert (check(path)[:4] == values).all()


def test_nested(tmp_path: Path) -> None:
    """A virtual dataset of virtual datasets, of which one lies in another folder."""
    (tmp_path / "deep").mkdir()
    for i in range(2):
        write_source(tmp_path / "deep" / f"{i}.h5", i)
        layout = h5py.VirtualLayout((4, 5, 6), "i4")
        layout[1:] = h5py.VirtualSource(f"{i}.h5", "s", (4, 5, 6))[:3]
        with h5py.File(tmp_path / "deep" / f"middle{i}.h5", "w") as h5:
            h5.create_virtual_dataset("m", layout, fillvalue=7)
    layout = h5py.VirtualLayout((4, 10, 6), "i4")
    for i in range(2):
        name = f"deep/middle{i}.h5"
        layout[:, 5 * i : 5 * i + 5] = h5py.VirtualSource(name, "m", (4, 5, 6))
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as h5:
        h5.create_virtual_dataset("v", layout)
    want = check(path)
    assert (want[0] == 7).all()


def test_a_dataset_that_contains_itself(tmp_path: Path) -> None:
    path = tmp_path / "v.h5"
    layout = h5py.VirtualLayout((4, 5, 6), "i4")
    layout[...] = h5py.VirtualSource(".", "v", (4, 5, 6))
    with h5py.File(path, "w") as h5:
        h5.create_virtual_dataset("v", layout)
    with pytest.raises(DamagedFileError, match="contains itself"):
        hs.open(path)["v"][...]


@pytest.mark.parametrize(
    ("source", "virtual"),
    [
        ("i2", "f4"),
        (">i2", "i4"),
        ("f8", "f4"),
        ("u1", ">u2"),
        ("i4", "u2"),
        ("f4", "i1"),
        ("u8", "i8"),
        ("f8", "f2"),
        ("u1", "f8"),
    ],
)
def test_source_of_another_dtype(source: str, virtual: str, tmp_path: Path) -> None:
    """HDF5 converts, and cuts off at the limits of the type."""
    values = np.linspace(-400, 70_000, 120).reshape(4, 5, 6).astype(source)
    if source == "u8":
        values += np.uint64(2**63)
    with h5py.File(tmp_path / "s.h5", "w") as h5:
        h5["s"] = values
    layout = h5py.VirtualLayout((4, 5, 6), virtual)
    layout[1:] = h5py.VirtualSource(tmp_path / "s.h5", "s", (4, 5, 6))[1:]
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as h5:
        h5.create_virtual_dataset("v", layout, fillvalue=1)
    if np.can_cast(source, virtual, "safe"):
        check(path)
    else:  # only HDF5's own conversion will do
        with pytest.warns(PerformanceWarning, match="HDF5 library"):
            check(path)


def test_source_of_another_rank(tmp_path: Path) -> None:
    """Axes of one index may be left out, on either side."""
    values = np.arange(24, dtype="i4").reshape(4, 6)
    with h5py.File(tmp_path / "s.h5", "w") as h5:
        h5["plane"] = values
        h5["long"] = values.reshape(1, 1, 4, 6, 1)
        h5["number"] = np.int32(77)
    layout = h5py.VirtualLayout((5, 4, 6), "i4")
    layout[1] = h5py.VirtualSource(tmp_path / "s.h5", "plane", (4, 6))
    layout[3] = h5py.VirtualSource(tmp_path / "s.h5", "long", (1, 1, 4, 6, 1))
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as h5:
        h5.create_virtual_dataset("v", layout)
    want = check(path)
    assert (want[1] == values).all()
    assert (want[3] == values).all()


def create_virtual(
    h5: h5py.File,
    shape: tuple[int, ...],
    mappings: list[tuple[h5py.h5s.SpaceID, str, str, h5py.h5s.SpaceID]],
    maxshape: tuple[int, ...] | None = None,
) -> None:
    """Dataset "v" of 4-byte integers, for mappings that h5py's own layout cannot express."""
    dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    for virtual, file, dataset, source in mappings:
        dcpl.set_virtual(virtual, file.encode(), dataset.encode(), source)
    space = h5py.h5s.create_simple(shape, maxshape or shape)
    h5py.h5d.create(h5.id, b"v", h5py.h5t.STD_I32LE, space, dcpl)


def space_of(
    shape: tuple[int, ...], *slabs: tuple[tuple[int, ...], ...], maxshape: Any = None
) -> h5py.h5s.SpaceID:
    """A dataspace in which `slabs` (start, count, stride, block) are selected together."""
    space = h5py.h5s.create_simple(shape, maxshape or shape)
    for i, slab in enumerate(slabs):
        how = h5py.h5s.SELECT_OR if i else h5py.h5s.SELECT_SET
        space.select_hyperslab(*slab, op=how)
    return space


@pytest.mark.filterwarnings("ignore::hyperslab.errors.PerformanceWarning")
def test_mappings_that_are_no_product_of_axes(tmp_path: Path) -> None:
    """Shapes that differ, and selections of several slabs: the HDF5 library follows these."""
    write_source(tmp_path / "s.h5", 0)
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as h5:
        same_count = space_of((4, 5, 6), ((0, 0, 0), (2, 5, 6)))
        reshaped = space_of((4, 5, 6), ((1, 0, 0), (3, 5, 4)))
        corner = ((3, 0, 0), (1, 2, 3))
        middle = ((2, 3, 3), (1, 2, 3))
        several = space_of((4, 5, 6), corner, middle)
        straight = space_of((4, 5, 6), ((0, 0, 0), (2, 2, 3)))
        mappings = [
            (same_count, "s.h5", "s", reshaped),
            (several, "s.h5", "s", straight),
        ]
        create_virtual(h5, (4, 5, 6), mappings)
    want = check(path)
    assert want[:2].any()
    assert want[3, 0, 0] or want[3, 1, 2] or want[2, 4, 5]


def test_the_library_is_only_asked_with_a_warning(tmp_path: Path) -> None:
    write_source(tmp_path / "s.h5", 0)
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as h5:
        uneven = space_of((4, 5, 6), ((0, 0, 0), (2, 5, 6)), ((3, 0, 0), (1, 5, 6)))
        create_virtual(h5, (4, 5, 6), [(uneven, "s.h5", "s", uneven)])
    with pytest.warns(PerformanceWarning, match="/v"):
        found = hs.open(path)["v"][...]
    assert_same(found, h5py_read(path, "v"))
    (tmp_path / "s.h5").unlink()
    with pytest.raises(MissingSourceError, match=r"s\.h5"):
        hs.open(path)["v"]


def test_stride_and_block(tmp_path: Path) -> None:
    write_source(tmp_path / "s.h5", 0)
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as h5:
        virtual = space_of((11, 5, 6), ((1, 0, 0), (2, 1, 1), (5, 1, 1), (2, 5, 6)))
        create_virtual(h5, (11, 5, 6), [(virtual, "s.h5", "s", space_of((4, 5, 6)))])
    want = check(path)
    assert [bool(plane.any()) for plane in want[:9]] == [
        False, True, True, False, False, False, True, True, False,
    ]  # fmt: skip


ENDLESS = h5py.h5s.UNLIMITED


def test_numbered_source_files(tmp_path: Path) -> None:
    """ "%b" in a name counts the blocks along the unlimited axis."""
    for i in range(3):
        write_source(tmp_path / f"part-{i}%.h5", i, chunks=(2, 5, 6), compression="gzip")
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as h5:
        most = (ENDLESS, 5, 6)
        slab = ((0, 0, 0), (ENDLESS, 1, 1), (4, 1, 1), (4, 5, 6))
        virtual = space_of((4, 5, 6), slab, maxshape=most)
        mapping = (virtual, "part-%b%%.h5", "s", space_of((4, 5, 6)))
        create_virtual(h5, (4, 5, 6), [mapping], most)
    want = check(path)
    assert want.shape == (12, 5, 6)
    file = hs.open(path)
    array = file["v"]
    assert array.shape == (12, 5, 6)
    write_source(tmp_path / "part-3%.h5", 3)
    file.refresh()
    assert array[...].shape == (16, 5, 6)
    assert_same(array[...], h5py_read(path, "v"))


def test_numbered_source_datasets(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "s.h5", "w") as h5:
        for i in range(4):
            h5[f"frame{i}"] = np.full((5, 6), i + 1, "i4")
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as h5:
        most = (ENDLESS, 5, 6)
        slab = ((0, 0, 0), (ENDLESS, 1, 1), (1, 1, 1), (1, 5, 6))
        virtual = space_of((1, 5, 6), slab, maxshape=most)
        mapping = (virtual, "s.h5", "frame%b", space_of((5, 6)))
        create_virtual(h5, (1, 5, 6), [mapping], most)
    assert check(path)[:, 0, 0].tolist() == [1, 2, 3, 4]


def test_unlimited_source_grows(tmp_path: Path) -> None:
    source, path = tmp_path / "s.h5", tmp_path / "v.h5"
    with h5py.File(source, "w") as h5:
        h5.create_dataset(
            "s", data=np.arange(120, dtype="i4").reshape(4, 5, 6), maxshape=(None, 5, 6)
        )
    with h5py.File(path, "w") as h5:
        most = (ENDLESS, 5, 6)
        slab = ((0, 0, 0), (1, 1, 1), (1, 1, 1), (ENDLESS, 5, 6))
        virtual = space_of((4, 5, 6), slab, maxshape=most)
        from_ = space_of((4, 5, 6), slab, maxshape=most)
        create_virtual(h5, (4, 5, 6), [(virtual, "s.h5", "s", from_)], most)
    want = check(path)
    file = hs.open(path)
    array = file["v"]
    assert_same(array[...], want)
    with h5py.File(source, "r+") as h5:
        h5["s"].resize(7, axis=0)
        h5["s"][4:] = 9
    with pytest.raises(StaleIndexError, match=r"s\.h5"):
        array[...]
    file.refresh()
    want = h5py_read(path, "v")
    assert want.shape == (7, 5, 6)
    assert array.shape == want.shape
    assert_same(array[...], want)


def test_unlimited_sources_of_different_lengths(tmp_path: Path) -> None:
    """Where one source has not grown as far as the other, there is fill."""
    for i, n in enumerate((5, 2)):
        with h5py.File(tmp_path / f"{i}.h5", "w") as h5:
            values = np.full((n, 5, 6), i + 1, "i4")
            h5.create_dataset("s", data=values, maxshape=(None, 5, 6), chunks=(2, 5, 6))
    path = tmp_path / "v.h5"
    most = (ENDLESS, 5, 6)
    with h5py.File(path, "w") as h5:
        mappings = []
        for i in range(2):
            slab = ((i, 0, 0), (ENDLESS, 1, 1), (2, 1, 1), (1, 5, 6))
            whole = ((0, 0, 0), (1, 1, 1), (1, 1, 1), (ENDLESS, 5, 6))
            mappings.append(
                (
                    space_of((2, 5, 6), slab, maxshape=most),
                    f"{i}.h5",
                    "s",
                    space_of((2, 5, 6), whole, maxshape=most),
                )
            )
        create_virtual(h5, (2, 5, 6), mappings, most)
    assert check(path)[:, 0, 0].tolist() == [1, 2, 1, 2, 1, 0, 1, 0, 1]


# --- what h5py fills with zeros in silence -------------------------------------------------------


def half_there(tmp_path: Path) -> Path:
    """Two sources, of which the second is missing."""
    layout = h5py.VirtualLayout((8, 5, 6), "i4")
    for i in range(2):
        write_source(tmp_path / f"{i}.h5", i)
        layout[4 * i : 4 * i + 4] = h5py.VirtualSource(f"{i}.h5", "s", (4, 5, 6))
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as h5:
        h5.create_virtual_dataset("v", layout)
    (tmp_path / "1.h5").unlink()
    return path


def test_missing_source(tmp_path: Path) -> None:
    path = half_there(tmp_path)
    assert not h5py_read(path, "v")[4:].any()
    array = hs.open(path)["v"]
    # What does not need it can be read.
    assert_same(array[:4], h5py_read(path, "v")[:4])
    with pytest.raises(MissingSourceError, match=r"1\.h5") as caught:
        array[...]
    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.file == str(tmp_path / "1.h5")
    assert caught.value.dataset == "/v"
    assert str(path) in str(caught.value)
    write_source(tmp_path / "1.h5", 1)
    assert_same(array[...], h5py_read(path, "v"))


def test_source_that_goes_missing(tmp_path: Path) -> None:
    path = half_there(tmp_path)
    write_source(tmp_path / "1.h5", 1)
    array = hs.open(path)["v"]
    array[...]
    (tmp_path / "1.h5").unlink()
    with pytest.raises(hs.errors.MissingFileError, match=r"1\.h5"):
        array[...]


@pytest.mark.filterwarnings("ignore::hyperslab.errors.PerformanceWarning")
@pytest.mark.parametrize("part", [np.s_[:], np.s_[1:4]], ids=["whole", "sliced"])
def test_source_that_is_too_small(part: slice, tmp_path: Path) -> None:
    """h5py fails, or reads zeros, depending on the selection."""
    layout = h5py.VirtualLayout((4, 5, 6), "i4")
    source = h5py.VirtualSource("s.h5", "s", (4, 5, 6))
    layout[part] = source if part == np.s_[:] else source[part]
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as h5:
        h5.create_virtual_dataset("v", layout, fillvalue=3)
    with h5py.File(tmp_path / "s.h5", "w") as h5:
        h5["s"] = np.ones((2, 5, 6), "i4")
    array = hs.open(path)["v"]
    with pytest.raises(DamagedFileError):
        array[...]


def test_missing_dataset_in_a_source(tmp_path: Path) -> None:
    path = half_there(tmp_path)
    with h5py.File(tmp_path / "1.h5", "w") as h5:
        h5["other"] = 1
    with pytest.raises(MissingObjectError, match="'s'"):
        hs.open(path)["v"][...]


def test_source_that_is_no_hdf5_file(tmp_path: Path) -> None:
    path = half_there(tmp_path)
    (tmp_path / "1.h5").write_bytes(b"nothing of the kind")
    with pytest.raises(hs.errors.NotHDF5Error, match=r"1\.h5"):
        hs.open(path)["v"][...]


def test_changed_source(tmp_path: Path) -> None:
    path = half_there(tmp_path)
    write_source(tmp_path / "1.h5", 1)
    file = hs.open(path)
    file["v"][...]
    write_source(tmp_path / "1.h5", 17, chunks=(1, 5, 6))
    with pytest.raises(StaleIndexError, match=r"1\.h5"):
        file["v"][...]
    file.refresh()
    assert_same(file["v"][...], h5py_read(path, "v"))


def test_names_are_taken_from_the_folder_of_the_virtual_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from the current one, which holds a file of that name with other values."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    path = half_there(there)
    write_source(there / "1.h5", 1)
    write_source(here / "1.h5", 99)
    monkeypatch.chdir(here)
    check(path)
    monkeypatch.chdir(there)
    check(Path("v.h5"))


def test_prefix_for_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    path = half_there(tmp_path)
    write_source(other / "1.h5", 1)
    write_source(other / "0.h5", 0)
    monkeypatch.setenv("HDF5_VDS_PREFIX", str(other))
    (tmp_path / "0.h5").unlink()
    want = hs.open(path)["v"][...]
    assert want[4:].any()
    assert want[:4].any()
