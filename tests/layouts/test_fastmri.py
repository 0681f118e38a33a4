"""fastMRI: k-space, reconstructions and masks, with sizes from the scanner's header."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from hyperslab.errors import LayoutError, MetadataWarning
from tests.layouts.planes import assert_planes, described, names, recognised

SPACE = (
    "<{0}><matrixSize><x>{1}</x><y>{2}</y><z>{3}</z></matrixSize>"
    "<fieldOfView_mm><x>{4}</x><y>{5}</y><z>{6}</z></fieldOfView_mm></{0}>"
)
HEADER = (
    '<?xml version="1.0" encoding="utf-8"?>\n<ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD">'
    "<!-- made for a test --><encoding>"
    + SPACE.format("encodedSpace", 16, 10, 1, 280, 125.0, 4.5)
    + SPACE.format("reconSpace", 8, 8, 1, 140, 120, 4.5)
    + "</encoding></ismrmrdHeader>"
)


@pytest.fixture
def scan(tmp_path: Path) -> Callable[..., Path]:
    """Write a scan of three slices and four coils, changed by a function; gives its path."""

    def write(edit: Callable[[h5py.File], None] | None = None, header: str = HEADER) -> Path:
        path = tmp_path / "file1000001.h5"
        rng = np.random.default_rng(0)
        shape = (3, 4, 16, 10)
        with h5py.File(path, "w") as h5:
            h5["kspace"] = (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype("c8")
            h5["reconstruction_rss"] = rng.random((3, 8, 8), "f4")
            h5["mask"] = rng.random(10) < 0.5
            h5["ismrmrd_header"] = header.encode()
            h5.attrs.update({"acquisition": "AXT2", "max": 0.9, "norm": 3.5})
            if edit:
                edit(h5)
        return path

    return write


def test_a_reconstruction(scan: Callable[..., Path]) -> None:
    path = scan()
    assert recognised(path) == ["fastmri"]
    assert names(path) == ("reconstruction_rss", "kspace")
    spec = assert_planes(path, "reconstruction_rss").spec
    assert (spec.axes, spec.dtype, spec.name) == ("ZYX", "float32", "reconstruction_rss")
    assert spec.scale == (4.5, 17.5, 15.0)  # rows run along the header's x
    assert spec.units == ("mm", "mm", "mm")
    assert [c.contrast_limits for c in spec.channels] == [(0.0, 0.9)]
    assert not spec.labels


def test_k_space(scan: Callable[..., Path]) -> None:
    spec = assert_planes(scan(), "kspace").spec
    assert (spec.axes, spec.order, spec.dtype) == ("CZYX", (1, 0, 2, 3), "complex64")
    assert spec.scale == (1.0, 4.5, 1 / 280, 1 / 125)
    assert spec.translation == (0.0, 0.0, -8 / 280, -5 / 125)
    assert spec.units == ("", "mm", "1/mm", "1/mm")
    assert [c.name for c in spec.channels] == ["Coil 0", "Coil 1", "Coil 2", "Coil 3"]


def test_a_single_coil_and_a_mask_in_two_dimensions(scan: Callable[..., Path]) -> None:
    def edit(h5: h5py.File) -> None:
        del h5["kspace"], h5["mask"]
        h5.move("reconstruction_rss", "reconstruction_esc")
        h5["kspace"] = np.ones((3, 16, 10), "c8")
        h5["mask"] = np.eye(16, 10, dtype="u1")

    path = scan(edit)
    assert names(path) == ("reconstruction_esc", "kspace", "mask")
    assert described(path, "kspace").axes == "ZYX"
    mask = assert_planes(path, "mask").spec
    assert (mask.axes, mask.labels, mask.scale) == ("YX", True, (1.0, 1.0))


@pytest.mark.parametrize(
    "header",
    [
        "",
        "no xml",
        "<ismrmrdHeader><encoding/></ismrmrdHeader>",
        HEADER.replace("<x>8</x>", "<x>0</x>").replace("120", "-1").replace("4.5", "nan"),
        # Entities could be made to fill the memory.
        HEADER.replace("<ismrm", '<!DOCTYPE a [<!ENTITY b "8">]><ismrm').replace(">8<", ">&b;<"),
    ],
)
def test_headers_without_sizes(scan: Callable[..., Path], header: str) -> None:
    with pytest.warns(MetadataWarning, match=r"in reconSpace along z, x, y: using pixel size 1"):
        spec = described(scan(header=header), "reconstruction_rss")
    assert (spec.scale, spec.units) == ((1.0, 1.0, 1.0), ("", "", ""))


def test_only_what_is_unusable_is_replaced(scan: Callable[..., Path]) -> None:
    with pytest.warns(MetadataWarning, match=r"in reconSpace along y:"):
        spec = described(scan(header=HEADER.replace("120", "wide")), "reconstruction_rss")
    assert (spec.scale, spec.units) == ((4.5, 17.5, 1.0), ("mm", "mm", ""))


def test_without_a_header(scan: Callable[..., Path]) -> None:
    def edit(h5: h5py.File) -> None:
        del h5["ismrmrd_header"]
        h5.attrs["max"] = "much"

    path = scan(edit)
    assert recognised(path) == ["fastmri"]
    with pytest.warns(MetadataWarning, match="ismrmrd_header"):
        spec = described(path, "reconstruction_rss")
    assert spec.channels[0].contrast_limits is None


def test_what_is_no_scan(scan: Callable[..., Path], tmp_path: Path) -> None:
    def edit(h5: h5py.File) -> None:
        del h5["kspace"], h5["ismrmrd_header"]

    path = scan(edit)
    assert recognised(path) == []  # a reconstruction alone may be anybody's
    with pytest.raises(LayoutError, match="no image 'mask'"):
        described(path, "mask", layout="fastmri")
