"""File factories: small HDF5 files like those that people have, for tests, demos and benchmarks.

Everything is written through h5py (folders of cases through SimpleITK), from a seed, so that the
same call gives the same pixels. Importing this package loads NumPy only; h5py is imported when a
file is written.
"""

from __future__ import annotations

from hyperslab.testing.bdv import BdvFacts, make_bdv
from hyperslab.testing.cells import draw_cells
from hyperslab.testing.cohort import make_cohort
from hyperslab.testing.folders import make_case_folders
from hyperslab.testing.imaris import ImarisFacts, make_imaris
from hyperslab.testing.phantom import draw_phantom
from hyperslab.testing.sample import make_cells
from hyperslab.testing.stack import StackFacts, make_stack

__all__ = [
    "BdvFacts",
    "ImarisFacts",
    "StackFacts",
    "draw_cells",
    "draw_phantom",
    "make_bdv",
    "make_case_folders",
    "make_cells",
    "make_cohort",
    "make_imaris",
    "make_stack",
]
