"""A dataset's filters, undone in the right order for one chunk at a time."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyperslab import filters
from hyperslab.codecs.base import Buffer, CodecError, Decoder
from hyperslab.filters import Filter

__all__ = ["Pipeline", "is_native"]

# One module a filter, imported when a dataset first needs it.
_MODULES = {
    filters.GZIP: "gzip",
    filters.SHUFFLE: "shuffle",
    filters.FLETCHER32: "fletcher32",
    filters.SZIP: "szip",
    filters.SCALEOFFSET: "scaleoffset",
    filters.BZIP2: "bzip2",
    filters.LZF: "lzf",
    filters.BLOSC: "blosc",
    filters.LZ4: "lz4",
    filters.BITSHUFFLE: "bitshuffle",
    filters.ZSTD: "zstd",
}

_CHECKSUM_NBYTES = 4


def is_native(pipeline: tuple[Filter, ...]) -> bool:
    """Tell whether every filter of `pipeline` is decoded here, without the HDF5 library."""
    return all(entry.code in _MODULES for entry in pipeline)


@dataclass(frozen=True, slots=True)
class _Stage:
    decoder: Decoder
    name: str
    nbytes: int | None  # size after this stage, where it is known beforehand


@dataclass(frozen=True, slots=True)
class _Recipe:
    stages: tuple[_Stage, ...]  # in decoding order
    planes: bool  # a byte shuffle is left to be undone by whoever places the elements


class Pipeline:
    """Decodes the chunks of one dataset. Stateless between calls; any number of threads.

    Parameters
    ----------
    pipeline
        The dataset's filters, in the order in which they were applied.
    itemsize
        Bytes per element.
    decoded_nbytes
        Bytes of a decoded chunk.
    """

    def __init__(self, pipeline: tuple[Filter, ...], *, itemsize: int, decoded_nbytes: int) -> None:
        self._filters = pipeline
        self._itemsize = itemsize
        self._decoded_nbytes = decoded_nbytes
        self._decoders = [
            importlib.import_module(f"hyperslab.codecs.{_MODULES[entry.code]}").build_decoder(
                entry.values, itemsize
            )
            for entry in pipeline
        ]
        self._recipes: dict[int, _Recipe] = {}

    def recipe(self, filter_mask: int) -> _Recipe:
        """Return how a chunk with `filter_mask` is decoded; kept for the next one."""
        found = self._recipes.get(filter_mask)
        if found is None:
            found = self._recipes[filter_mask] = self._plan(filter_mask)
        return found

    def _plan(self, filter_mask: int) -> _Recipe:
        stages: list[_Stage] = []
        nbytes: int | None = self._decoded_nbytes  # before the filter at hand was applied
        planes = False
        active = [i for i in range(len(self._filters)) if not filter_mask >> i & 1]
        for i in active:
            entry = self._filters[i]
            if entry.code == filters.SHUFFLE:
                width = entry.values[0] if entry.values else self._itemsize
                if width == 1:
                    continue
                if i == active[0] and width == self._itemsize:
                    planes = True
                    continue
            stages.append(_Stage(self._decoders[i], entry.name, nbytes))
            if entry.code == filters.FLETCHER32:
                nbytes = None if nbytes is None else nbytes + _CHECKSUM_NBYTES
            elif entry.code != filters.SHUFFLE:
                nbytes = None
        return _Recipe(tuple(reversed(stages)), planes)

    def decode(self, data: Buffer, filter_mask: int, out: NDArray[np.uint8]) -> tuple[Buffer, bool]:
        """Decode one chunk.

        Parameters
        ----------
        data
            The stored bytes.
        filter_mask
            Bit i set: filter i was skipped when this chunk was written.
        out
            1-D, exactly a decoded chunk long; may be used as the destination.

        Returns
        -------
        buffer
            The decoded bytes: `out`, or fresh memory, or (where no filter is active) `data`.
        planes
            True if `buffer` holds byte planes: the bytes of a chunk-wide shuffle, all first bytes
            first, as a (itemsize, *chunk shape) array. Whoever places the elements undoes it for
            the part that is wanted.

        Raises
        ------
        CodecError
            With the name of the filter that failed in front of the reason.
        """
        recipe = self.recipe(filter_mask)
        buffer = data
        last = len(recipe.stages) - 1
        for i, stage in enumerate(recipe.stages):
            try:
                buffer = stage.decoder(buffer, stage.nbytes, out if i == last else None)
            except CodecError as error:
                raise type(error)(f"{stage.name}: {error}") from error
        nbytes = len(buffer)  # of bytes: see `Decoder`
        if nbytes != self._decoded_nbytes:
            raise CodecError(f"{nbytes} bytes came out, where a chunk takes {self._decoded_nbytes}")
        return buffer, recipe.planes
