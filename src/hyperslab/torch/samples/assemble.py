"""`Assembler`: from stored planes to the tensors of samples, for one sample or a whole batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyperslab.errors import DamagedFileError, SampleError
from hyperslab.torch.epoch import Epoch
from hyperslab.torch.samples.dtypes import convert
from hyperslab.torch.samples.fitting import fit_planes
from hyperslab.torch.samples.planes import Part, Parts, TakeMemory, slice_requests
from hyperslab.torch.samples.reader import CaseReader
from hyperslab.torch.samples.samples import Samples
from hyperslab.torch.scaling import Constants, apply_scaling

__all__ = ["Assembler"]


class Assembler:
    """Fetches the planes of samples, and makes tensors of them.

    Parameters
    ----------
    reader
        Of the cases.
    samples
        Which slices of which cases they are.
    dtypes
        By input: the tensors' dtype; None: as stored.
    constants
        By input that is scaled: how, for each case.
    size
        (H, W) that planes are cropped or padded to; None leaves them.
    pads
        By input: what padding holds.
    epoch
        That a neighbouring slice is drawn for; None where none is.
    """

    def __init__(
        self,
        reader: CaseReader,
        samples: Samples,
        *,
        dtypes: Mapping[str, np.dtype | None],
        constants: Mapping[str, Sequence[Constants]],
        size: tuple[int, int] | None,
        pads: Mapping[str, float],
        epoch: Epoch | None,
    ) -> None:
        self.reader = reader
        self.samples = samples
        self.constants = constants
        self.size = size
        self._dtypes = dtypes
        self._pads = pads
        self._epoch = epoch

    def of(self, cases: NDArray[np.int64], epoch: Epoch | None) -> Assembler:
        """Return what makes the samples of these cases alone, with an epoch of their own."""
        cohort = self.reader.cohort.take(cases.tolist())
        return Assembler(
            self.reader.of(cohort),
            self.samples.of(cohort, cases),
            dtypes=self._dtypes,
            constants={k: [v[i] for i in cases.tolist()] for k, v in self.constants.items()},
            size=self.size,
            pads=self._pads,
            epoch=epoch,
        )

    def channels(self, name: str, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which slices samples take of input `name`: int64, (samples, C)."""
        return self.samples.channels(
            name, positions, 0 if self._epoch is None else int(self._epoch)
        )

    def empty_parts(self, positions: NDArray[np.int64], take_memory: TakeMemory) -> Parts:
        """Return memory for the stored planes of samples, in parts of one shape and dtype."""
        cohort = self.reader.cohort
        cases = self.samples.case[positions]
        shapes = np.delete(cohort.shapes, cohort.axis, axis=1)
        parts: Parts = {}
        for name, codes in zip(cohort.inputs, cohort.dtype_of, strict=True):
            n_channels = self.samples.n_channels(name)
            alike: dict[tuple[int, int, int], list[int]] = {}
            kinds = zip(*shapes[cases].T.tolist(), codes[cases].tolist(), strict=True)
            for row, kind in enumerate(kinds):
                alike.setdefault(kind, []).append(row)
            parts[name] = [
                Part(rows, take_memory((len(rows), n_channels, h, w), cohort.dtypes[code]))
                for (h, w, code), rows in alike.items()
            ]
        return parts

    def fetch(
        self,
        positions: NDArray[np.int64],
        *,
        threads: int | None = None,
        take_memory: TakeMemory = np.empty,
    ) -> Parts:
        """Read the stored planes of samples by one plan.

        Returns
        -------
        dict
            Per input, its planes in parts of one shape and dtype; the memory is the caller's.
        """
        reader = self.reader
        cases: list[int] = self.samples.case[positions].tolist()
        reader.touch((name, case) for name in self.reader.cohort.inputs for case in cases)
        parts = self.empty_parts(positions, take_memory)
        slices = {name: self.channels(name, positions) for name in parts}

        def plan() -> tuple[list[tuple[Any, Any]], list[NDArray[Any]]]:
            requests: list[tuple[Any, Any]] = []
            places: list[NDArray[Any]] = []
            for name, some in parts.items():
                sources = {
                    case: reader.source(name, case, threads=threads)
                    for case in dict.fromkeys(cases)
                }
                for part in some:
                    n_channels = part.planes.shape[1]
                    wanted, into = slice_requests(
                        [sources[cases[row]] for row in part.rows for _ in range(n_channels)],
                        slices[name][part.rows].ravel().tolist(),
                        part.planes.reshape(-1, *part.planes.shape[2:]),
                    )
                    requests += wanted
                    places += into
            return requests, places

        with self.naming_samples(positions.tolist()):
            reader.read(plan, threads=threads)
        return parts

    def finish(
        self, name: str, parts: Sequence[Part], positions: NDArray[np.int64]
    ) -> torch.Tensor | list[torch.Tensor]:
        """Make tensors of the stored planes of input `name`: convert, scale, crop or pad.

        Parameters
        ----------
        name
            The input.
        parts
            Its planes. Where nothing is to be done to them, the result shares their memory; where
            they are scaled, their content may be overwritten.
        positions
            The samples that they belong to.

        Returns
        -------
        torch.Tensor
            (N, C, H, W); a list of (C, H, W) where samples differ in H or W.

        Raises
        ------
        SampleError
            A value does not fit an integer dtype.
        """
        tensors: list[torch.Tensor] = []
        for part in parts:
            converted, bad = convert(part.planes, self._dtypes[name])
            if bad is not None:
                raise self._inexact(name, int(positions[part.rows[bad[0]]]), part.planes[bad])
            planes = torch.from_numpy(converted)
            if name in self.constants:
                constants = self.constants[name]
                cases = self.samples.case[positions[part.rows]].tolist()
                apply_scaling(planes, [constants[case] for case in cases])
            if self.size is not None:
                planes = fit_planes(planes, self.size, self._pads[name])
            tensors.append(planes)
        if len(tensors) == 1:
            return tensors[0]
        rows: list[torch.Tensor] = [torch.empty(0)] * positions.size
        for part, planes in zip(parts, tensors, strict=True):
            for row, plane in zip(part.rows, planes.unbind(0), strict=True):
                rows[row] = plane
        alike = {(tuple(row.shape), row.dtype) for row in rows}
        return torch.stack(rows) if len(alike) == 1 else rows

    @contextmanager
    def naming_samples(self, positions: Sequence[int]) -> Iterator[None]:
        """Let damage that is met say which samples it concerns; `positions` are those read."""
        try:
            yield
        except DamagedFileError as error:
            at = list(positions)
            cases, slices = self.samples.case[at].tolist(), self.samples.number[at].tolist()
            raise self._with_samples(error, cases, slices) from error

    def _with_samples(
        self, error: DamagedFileError, cases: list[int], slices: list[int]
    ) -> DamagedFileError:
        """Return `error` with what it means for training: the samples that cannot be read."""
        names = self.reader.cohort.cases
        spans = self.reader.spoilt(error)
        if spans:
            samples = [(names[case], k) for case, span in spans.items() for k in span]
            told = "; ".join(
                f"slices {span.start} to {span.stop - 1} of case {names[case]!r}"
                for case, span in spans.items()
            )
        else:  # the damage is in a file that this one refers to
            samples = [(names[case], k) for case, k in zip(cases, slices, strict=True)]
            told = "one or more of " + ", ".join(f"slice {k} of case {c!r}" for c, k in samples)
        return type(error)(
            f"{error.message} Samples concerned: {told}. policy='skip' leaves out cases that are "
            "damaged.",
            **{**error.facts, "samples": tuple(samples)},
        )

    def _inexact(self, name: str, position: int, value: Any) -> SampleError:
        cohort = self.reader.cohort
        number = int(self.samples.case[position])
        case, k = cohort.cases[number], int(self.samples.number[position])
        return SampleError(
            f"{cohort.where}: input {name!r}, case {case!r}, slice {k} holds the value {value}, "
            f"which {self._dtypes[name]} does not. Choose another dtype for {name!r}; None keeps "
            "the stored one.",
            file=cohort.files[cohort.file_of[number]],
            cases=(case,),
            inputs=(name,),
        )
