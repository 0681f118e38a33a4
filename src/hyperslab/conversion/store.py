"""The zarr group: made by zarr's own library."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hyperslab.conversion.codecs import compressor
from hyperslab.conversion.plan import ZarrPlan
from hyperslab.errors import MissingExtraError

__all__ = ["create_group", "require_zarr"]


def require_zarr() -> None:
    """Raise `MissingExtraError` unless zarr 3 is installed."""
    try:
        found = version("zarr")
    except PackageNotFoundError:
        found = "0"
    if int(found.split(".")[0]) < 3:
        raise MissingExtraError(
            "OME-Zarr 0.5 needs zarr 3, which is not installed here. Install it with: "
            "pip install 'hyperslab[zarr]' (in a clone of it: pip install '.[zarr]')",
            package="zarr",
            extra="zarr",
        )


def create_group(path: Path, plan: ZarrPlan, attributes: dict[str, Any]) -> Iterator[Path]:
    """Make the group with an array a level, all without chunks; yield the files that it took."""
    import zarr

    group = zarr.create_group(os.fspath(path), zarr_format=3, overwrite=True, attributes=attributes)
    for number, level in enumerate(plan.levels):
        group.create_array(
            str(number),
            shape=level.shape,
            chunks=level.chunks,
            shards=level.shards,
            dtype=plan.dtype,
            compressors=compressor(plan.codec),
            fill_value=0,
            dimension_names=[letter.lower() for letter in plan.axes],
        )
        yield path / str(number) / "zarr.json"
    yield path / "zarr.json"
