"""For tests of layouts: a description, and pixels held against h5py along the image's axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

import hyperslab as hs
from hyperslab.index.session import session
from hyperslab.layouts import ImageSpec, describe, image_names, recognise

_SMALL = 1 << 20  # elements


def described(path: str | Path, image: str | None = None, layout: str = "auto") -> ImageSpec:
    with session(str(path)) as h5:
        return describe(h5, str(path), layout, image=image)


def recognised(path: str | Path) -> list[str]:
    with session(str(path)) as h5:
        return recognise(h5)


def names(path: str | Path, layout: str = "auto") -> tuple[str, ...]:
    with session(str(path)) as h5:
        return image_names(h5, str(path), layout)


def assert_planes(path: str | Path, image: str | None = None) -> hs.Image:
    """Compare first, middle and last plane with what h5py reads of the one dataset."""
    img = hs.open_image(path, image=image, physical=False)
    spec = img.spec
    assert spec.n_outer == 0
    (name,) = spec.levels[0].datasets
    order = spec.order or tuple(range(len(spec.axes)))
    assert sorted(order) == list(range(len(spec.axes)))
    with h5py.File(path) as h5:
        dataset = h5[name]
        assert tuple(dataset.shape[i] for i in order) == img.shape
        assert dataset.dtype.newbyteorder("=") == img.dtype
        for part in (0, 0.5, 1):
            lead = tuple(round(part * (n - 1)) for n in img.shape[:-2])
            index: list[Any] = [slice(None)] * dataset.ndim
            for axis, position in zip(order, lead, strict=False):
                index[axis] = position
            plane = dataset[tuple(index)]
            want = plane.T if order[-2] > order[-1] else plane
            np.testing.assert_array_equal(img[lead], want)
            # Along the axis before the plane as well, so that its order shows.
            if lead and dataset.size <= _SMALL:
                index[order[len(lead) - 1]] = slice(None)
                rest = sorted((order[-3], order[-2], order[-1]))
                want = dataset[tuple(index)].transpose([rest.index(i) for i in order[-3:]])
                np.testing.assert_array_equal(img[lead[:-1]], want)
    return img
