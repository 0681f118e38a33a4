"""Every real file: the image that it opens as, against what h5py and other readers make of it.

A file that is in neither of the tables below fails the last test: nothing is passed over in
silence.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest

import hyperslab as hs
from hyperslab.errors import (
    FileInUseWarning,
    LayoutError,
    MetadataWarning,
    MissingSourceError,
    NotHDF5Error,
)
from tests.conftest import Corpus
from tests.layouts import oracles
from tests.layouts.oracles import Oracle, indices, nexus
from tests.layouts.planes import described, names, recognised

assert hdf5plugin.FILTERS  # what the oracle decodes some of the files with

# Layout that a file follows, and the oracle for what is in it.
IMAGES: dict[str, tuple[str, Oracle]] = {
    **dict.fromkeys(
        (
            "ims-imariswriter/Minimal_IMS_File.ims",
            "ims-ptk2cell/PtK2Cell.ims",
            "ims-multifile-rampdata/image-header.ims",
            "ims-multifile-mri-le/mri-stack-16bit-header.ims",
            "ims-multifile-nc1-nt3-cube/volume.ims",
        ),
        ("imaris", oracles.imaris),
    ),
    **dict.fromkeys(
        (
            "bdv-pybdv/example.h5",
            "bdv-mastodon-tiny/tiny-dataset.h5",
            "bdv-mastodon-datasethdf5/datasethdf5.h5",
        ),
        ("bdv", oracles.bdv),
    ),
    "ilastik4ij/test_axes.h5": ("ilastik", oracles.ilastik),
    **dict.fromkeys(
        (
            "pytorch3dunet/sample_cells.h5",
            "plantseg/sample_ovule.h5",
            "plantseg/training_sources/train_2Dc_2D.h5",
            "plantseg/training_sources/train_3D_3D.h5",
        ),
        ("unet", oracles.unet),
    ),
    **dict.fromkeys(
        (
            "minc2-nibabel/minc2-4d-d.mnc",
            "minc2-nibabel/minc2_1_scale.mnc",
            "minc2-nibabel/minc2_4d.mnc",
            "minc2-nibabel/small.mnc",
            "minc2-libminc/t3_grid_0.mnc",
            "minc2-libminc/test_float_grid_0.mnc",
            "minc2-libminc/test_short_grid_0.mnc",
        ),
        ("minc2", oracles.minc2),
    ),
    **dict.fromkeys(
        (
            "emd/Si100_1x1x3-zStart5.43.emd",
            "emd/Si100_2D_3D_DPC_potential_2slices.emd",
            "emd/Si100_2x1x1_3D.emd",
            "emd/Si100_4D.emd",
            "emd/example_axis_len_1.emd",
            "emd/example_image.emd",
            "emd/example_metadata.emd",
            "emd/example_signal.emd",
            "emd/py4DSTEM_size2x3x4x5_bf20x30.h5",
        ),
        ("emd", oracles.emd),
    ),
    **dict.fromkeys(
        ("emd/fei_example_dpc_titles.emd", "emd/fei_example_tem_stack.emd"),
        ("velox", oracles.velox),
    ),
    **dict.fromkeys(
        ("hspy/example2_v2.2.hspy", "hspy/test_marker_point_y2_data_deleted.hdf5"),
        ("hyperspy", oracles.hyperspy),
    ),
    **dict.fromkeys(
        (
            "mat73-matjl/array.mat",
            "mat73-matjl/logical.mat",
            "mat73-matjl/partial.mat",
            "mat73-skjerns/testfile1.mat",
            "mat73-skjerns/testfile15.mat",
        ),
        ("matlab", oracles.matlab),
    ),
    **dict.fromkeys(
        (
            "hdf5-image/ex_image2.h5",
            "hdfview/hdf5_test_2005.h5",
            "delmic/sparc-angle-resolved-spot.h5",
            "delmic/sparc-hyperspectral.h5",
            "delmic/sparc-intensity-drift.h5",
        ),
        ("hdf5_image", oracles.hdf5_image),
    ),
    **dict.fromkeys(
        ("sima/example-volume.h5", "layout-pyfive/dim_scales.hdf5"),
        ("labelled", oracles.labelled),
    ),
    # By path of the group with the signal: letters of the signal's axes, as they are in the file.
    **{
        name: ("nexus", nexus(letters))
        for name, letters in {
            "eiger-arina/test_00_data_000001.h5": {"entry/data": "FYX"},
            "eiger-arina/test_00_master.h5": {"entry/data": "FYX"},
            "nexus-rsciio/nexus_dls_example.nxs": {"entry1/testdata/nexustest": "YXS"},
            "nexus-rsciio/nxdata_tagged_as_string.nxs": {"entry1/dummy_byte": "YX"},
            "nexus-rsciio/saved_multi_signal.nxs": {
                "entry1/rocks": "SNYX",  # where the beam was; and the image that it gave there
                "entry2/unnamed__1": "YXE",
            },
            "nexus-exampledata/APS/EPICSareaDetector/hdf5/AgBehenate_228.hdf5": {
                "entry/data": "YX"
            },
            "nexus-exampledata/DLS/i03_i04_NXmx/hdf5/Therm_6_2.nxs": {"entry/data": "AYX"},
            "nexus-exampledata/SLS/Sample_Image_2021-03-16_095.hdf5": {"entry1/counter0": "YX"},
            "nexus-exampledata/code/hdf5/sans2009n012333.hdf": {"entry1/data1": "XY"},
            "nexus-exampledata/hdf5/simple3D.h5": {"entry/data": "FYX"},
            "nexus-k11-diad/k11-18014.nxs": {"entry/imaging": "AYX"},
            "tomo-savu/i12_test_data/dark_field.nxs01_savu.plugins.no_process_plugin_tomo.h5": {
                "1-NoProcessPlugin-tomo": "FYX"
            },
            "tomo-savu/stxm_single_sino.nxs": {"entry1/stxm_entry/data": "AX"},
        }.items()
    },
}

# What opening says about a file, in the order of its images; about others, nothing.
WARNINGS = {
    "bdv-mastodon-datasethdf5/datasethdf5.h5": ["31 time points", "setup 0 the size"],
    "emd/example_axis_len_1.emd": ["dim1 .* 1 values for 5", "dim3 .* 1 values for 5"],
    "nexus-k11-diad/k11-18014.nxs": ["'gts_theta_value_set' .* not evenly spaced"],
    "tomo-savu/stxm_single_sino.nxs": ["'theta' .* not evenly spaced"],
    "sima/example-volume.h5": ["channel_names for 1 of 2 channels"],
}

# Which of several images a file itself says is the one to show.
DEFAULTS = {"nexus-rsciio/saved_multi_signal.nxs": "entry1/rocks"}

# Signals in files that nobody handed on. Their facts are there, or their message is.
SOURCE_MISSING = "nexus-exampledata/DLS/i03_i04_NXmx/hdf5/Therm_6_2.nxs"
MISSING = {
    "nexus-exampledata/DLS/i16/hdf5/538039.nxs": ("entry1/pil100k",),
    "tomo-savu/24888.nxs": ("entry1/pco1_hw_hdf", "entry1/tomo_entry/data"),
    "tomo-savu/full_field_corrected/24737_processed.nxs": (
        "entry/final_result_tomo",
        "entry/input_data/tomo",
    ),
}

# Files without an image that could be found, and why.
_PART = "one channel and time point of a set, which opens by its .ims file"
_BARE = "/entry/data/data without a word about itself"
_NO_MATRIX = "no numeric variable with rows and columns"
_OTHER = "a convention that is none of the library's"
NO_IMAGE = {
    "ims-multifile-rampdata/image--C00--T00000.h5": _PART,
    "ims-multifile-mri-le/mri-stack-16bit--C00--T00000.h5": _PART,
    "ims-multifile-nc1-nt3-cube/volume--C00--T00000.h5": _PART,
    "ims-multifile-nc1-nt3-cube/volume--C00--T00001.h5": _PART,
    "ims-multifile-nc1-nt3-cube/volume--C00--T00002.h5": _PART,
    "ilastik4ij/2d_cells_apoptotic_1channel.h5": "no axistags: opens if asked for as ilastik's",
    "ilastik4ij/test.h5": "no axistags: opens if asked for as ilastik's",
    "emd/example_spectrum.emd": "one axis",
    "hspy/example1_v1.0.hdf5": "one axis",
    "hspy/example1_v1.2.hdf5": "one axis",
    "hspy/hspy_ext_missing.hspy": "one axis",
    "hspy/none_metadata.hdf5": "one value",
    "hspy/test_rgba16.hdf5": "colours as compound elements",
    "eiger-arina/test_00.h5": "no dataset",
    **dict.fromkeys(
        (
            "ebsd-bruker/bruker_patterns.h5",
            "ebsd-bruker/bruker_patterns_roi_nonrectangular.h5",
            "ebsd-kikuchipy/kikuchipy_h5ebsd/patterns.h5",
            "ebsd-kikuchipy/emsoft_ebsd_master_pattern/master_patterns.h5",
            "ebsd-kikuchipy/emsoft_ebsd_master_pattern/ni_mc_mp_20kv_uint8_gzip_opts9.h5",
            "ebsd-kikuchipy/emsoft_ebsd/simulated_ebsd.h5",
            "dream3d/RotateSampleRefFrameTest.dream3d",
            "openpmd/example-femm-thetaMode.h5",
            "itk-transform/ITK-HDF5-Transform.h5",
        ),
        _OTHER,
    ),
    "nexus-exampledata/code/hdf5/NXtest.h5": "NXdata without a signal",
    "nexus-exampledata/hdf5/writer_1_3__niac2014.h5": "one axis",
    "nexus-k11-diad/k11-18014/k11-18014-imaging.h5": "a source of the .nxs file, without a class",
    "nexus-k11-diad/k11-18014/k11-18014-pcompPanda.h5": "one axis",
    "tomo-savu/i12_test_data/lfov/dark_flat/pco2_flats_00000.hdf": _BARE,
    "tomo-savu/i12_test_data/lfov/dark_flat/pco3_darks_00000.hdf": _BARE,
    "tomo-savu/i12_test_data/lfov/tomo_data/pc2_projections.hdf": _BARE,
    "tomo-savu/i12_test_data/lfov/tomo_data/pc3_projections.hdf": _BARE,
    **{
        f"mat73-matjl/{name}.mat": _NO_MATRIX
        for name in (
            "char_unicode", "complex", "corrupted_subsystem", "dynamicprops", "empty_cells",
            "empty_struct_arrays", "old_class", "simple", "string", "struct",
            "user_defined_classdefs",
        )
    },
    **{f"mat73-skjerns/testfile{n}.mat": _NO_MATRIX for n in (3, 5, 8, 12, 13, 16)},
    "nwb/1.0.2_nwbfile.nwb": "no array",
    "nwb/2.1.0_imageseries_non_external_format.nwb": "an array without elements",
    "nwb/2.1.0_imageseries_nonmatch_starting_frame.nwb": "an array without elements",
}  # fmt: skip
# What the library of HDF5 and readers of it are tested by: arrays, said to be no image.
ARRAYS = {"layout", "virtual", "filters", "driver-files", "netcdf4", "hdf5-image"}
# Marked as open by a writer that died: h5py refuses it, the library warns.
OURS_ONLY = {"layout-jhdf/test_byteshuffle_compressed_datasets_latest.hdf5"}
NOT_HDF5 = {"source-dicom", "source-nifti", "source-mha", "source-nrrd"}


@contextmanager
def told(path: Path, name: str) -> Iterator[None]:
    """Check that what is inside says of the file what `WARNINGS` has, and nothing else."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MetadataWarning)
        yield
    messages = [str(w.message) for w in caught]
    for message, pattern in zip(messages, WARNINGS.get(name, []), strict=True):
        assert message.startswith(str(path))
        assert re.search(pattern, message)


@pytest.mark.parametrize("name", IMAGES)
def test_images_are_what_the_file_says(corpus: Corpus, name: str) -> None:
    layout, oracle = IMAGES[name]
    path = corpus.path(name)
    with h5py.File(path) as h5:
        expected = oracle(h5, path)
        assert expected
        assert recognised(path) == [layout]
        assert set(names(path)) == set(expected)
        with told(path, name):
            images = {image: hs.open_image(path, image=image, physical=False) for image in expected}
        for image, want in expected.items():
            compare(images[image], want)
            if name != SOURCE_MISSING:
                compare_pixels(images[image], want, h5)


def compare(image: hs.Image, want: oracles.Expected) -> None:
    spec = image.spec
    assert (image.axes, spec.dtype, spec.labels) == (want.axes, want.dtype, want.labels)
    assert tuple(level.shape for level in spec.levels) == want.shapes
    assert image.shape == want.shapes[0]
    assert all(
        min(level.scale) > 0 and level.shape == shape
        for level, shape in zip(image.levels, want.shapes, strict=False)
    )
    assert image.scale == pytest.approx([want.scale.get(a, 1.0) for a in image.axes], rel=1e-6)
    first = [want.translation.get(a, 0.0) for a in image.axes]
    assert image.translation == pytest.approx(first, rel=1e-6, abs=1e-12)
    for a, origin, at, scale in zip(
        image.axes, image.origin, image.translation, image.scale, strict=True
    ):
        assert origin == pytest.approx(at - scale / 2 if a in "XYZ" else 0.0, rel=1e-9, abs=1e-12)
    assert image.units == tuple(want.units.get(a, "") for a in image.axes)
    count = image.shape[image.axes.index("C")] if "C" in image.axes else 1
    numbered = tuple(f"Channel {c}" for c in range(count))
    assert tuple(c.name for c in image.channels) == (want.channels or numbered)
    assert tuple(c.color for c in image.channels) == (want.colors or (None,) * count)


def compare_pixels(image: hs.Image, want: oracles.Expected, h5: h5py.File) -> None:
    for number in sorted({0, len(want.shapes) - 1}):
        level = image.levels[number]
        for lead in indices(level.shape):
            plane = want.plane(h5, number, lead)
            assert plane.shape == level.shape[-2:]
            np.testing.assert_array_equal(level[lead], plane)


@pytest.mark.parametrize("name", IMAGES)
def test_what_opens_without_being_told_which(corpus: Corpus, name: str) -> None:
    path = corpus.path(name)
    listed = names(path)
    if len(listed) == 1 or name in DEFAULTS:
        with told(path, name):
            assert described(path) == described_again(path, DEFAULTS.get(name, listed[0]))
    else:
        with pytest.raises(LayoutError, match=f"holds {len(listed)} images: ") as caught:
            hs.open_image(path)
        assert all(repr(image) in str(caught.value) for image in listed)


def described_again(path: Path, image: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetadataWarning)
        return described(path, image)


@pytest.mark.parametrize("name", [n for n, (layout, _) in IMAGES.items() if layout == "minc2"])
def test_minc2_as_nibabel_has_it(corpus: Corpus, name: str) -> None:
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed")
    path = corpus.path(name)
    spec = described(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nibabel's own
        other = nibabel.load(path)
        header = other.header
        values = np.asarray(other.get_fdata(dtype=np.float64))
    with h5py.File(path) as h5:
        stored = h5["minc-2.0/image/0/image"][...].transpose(spec.order or range(values.ndim))
    if spec.intensity is not None:
        lead = stored.shape[: spec.intensity.n_axes]
        constants = [
            np.reshape(table, lead + (1,) * (stored.ndim - len(lead)))
            for table in (spec.intensity.slope, spec.intensity.offset)
        ]
        stored = stored * constants[0] + constants[1]
    # nibabel has the axes as they are in the file.
    np.testing.assert_allclose(
        stored, values.transpose(spec.order or range(values.ndim)), rtol=1e-12, atol=1e-12
    )
    zooms = np.abs(np.array(header.get_zooms(), float))
    space = [i for i, letter in enumerate(spec.axes) if letter in "XYZ"]
    order = spec.order or tuple(range(values.ndim))
    assert [abs(spec.scale[i]) for i in space] == pytest.approx(zooms[[order[i] for i in space]])
    for i in space:
        assert spec.translation[i] == pytest.approx(other.affine["XYZ".index(spec.axes[i]), 3])


def test_ilastik_without_tags(corpus: Corpus) -> None:
    for name in ("ilastik4ij/test.h5", "ilastik4ij/2d_cells_apoptotic_1channel.h5"):
        path = corpus.path(name)
        with h5py.File(path) as h5:
            for image, want in oracles.ilastik_untagged(h5, path).items():
                with pytest.warns(MetadataWarning, match="its axes for TZYXC"):
                    found = hs.open_image(path, "ilastik", image=image)
                compare(found, want)
                compare_pixels(found, want, h5)


def test_signals_whose_files_are_missing(corpus: Corpus) -> None:
    for name, images in MISSING.items():
        path = corpus.path(name)
        assert (recognised(path), names(path)) == (["nexus"], images)
        for image in images:
            with pytest.raises(MissingSourceError, match="is not there"):
                hs.open_image(path, image=image)
    with pytest.raises(MissingSourceError):
        hs.open_image(corpus.path(SOURCE_MISSING))[0]


def signs(h5: h5py.File) -> set[str]:
    """What in a file looks as if it were meant as an image."""
    found = set()
    for path, item in oracles.walk(h5):
        array = isinstance(item, h5py.Dataset) and item.shape is not None and len(item.shape) > 1
        for name in item.attrs:
            if name in ("axistags", "detector_name", "element_size_um", "DIMENSION_LABELS"):
                found.add(name)
        if array and oracles.text(item, "CLASS") == "IMAGE":
            found.add(f"IMAGE {path}")
        if path in ("DataSet", "minc-2.0", "Data/Image", "raw", "kspace", "s00", "Experiments"):
            found.add(path)
    return found


def test_other_files_have_no_image(corpus: Corpus) -> None:
    unreadable = set()
    for path, entry in corpus.readable():
        name = entry["name"]
        if name in IMAGES or name in MISSING:
            continue
        assert name in NO_IMAGE or entry["kind"] in ARRAYS, f"{name} is in no table"
        assert recognised(path) == [], name
        with pytest.raises(LayoutError, match="follows no known layout"):
            hs.open_image(path)
        if name not in NO_IMAGE:
            try:
                with h5py.File(path) as h5:
                    assert signs(h5) == set(), name
            except (KeyError, OSError, RuntimeError, TypeError):
                unreadable.add(name)  # h5py cannot list it
    assert len(unreadable) < 10, unreadable


def test_every_file_is_in_a_table(corpus: Corpus) -> None:
    readable = {entry["name"] for _, entry in corpus.readable()}
    tables = [set(IMAGES), set(MISSING), set(NO_IMAGE)]
    assert set().union(*tables) <= readable
    assert sum(map(len, tables)) == len(set().union(*tables))
    left = 0
    for entry in corpus.entries:
        name, path = entry["name"], corpus.path(entry["name"])
        if name in readable or entry["kind"] == "corrupt":  # these: see the other tests
            continue
        left += 1
        if path.suffix == ".xml":
            assert path.with_suffix(".h5").relative_to(corpus.root).as_posix() in IMAGES
            with told(path.with_suffix(".h5"), name.replace(".xml", ".h5")):
                assert hs.open_image(path).layout == "bdv"
        else:
            assert entry["kind"] in NOT_HDF5 | ARRAYS, f"{name} is in no table"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FileInUseWarning)
                with pytest.raises((NotHDF5Error, LayoutError)) as caught:
                    hs.open_image(path)
            assert caught.type is NotHDF5Error or name in OURS_ONLY
    assert left + len(readable) > 450
