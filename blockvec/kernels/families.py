"""The families of generated kernels by name and by problem."""

from __future__ import annotations

from typing import Any

from .dense.family import DenseFamily
from .dense.sweep_mma import SweepMma
from .dense.tsmm_fma import TsmmFma
from .dense.tsmm_mma import Tsmm3m, TsmmMma
from .dense.tsmttsm_fma import TsmttsmFma
from .dense.tsmttsm_mma import Tsmttsm3m, TsmttsmMma
from .problem import Problem, SpmmvProblem, SweepProblem, TsmmProblem
from .sparse.chain import SpmmvChain
from .sparse.csr import SpmmvCsr
from .sparse.family import SparseFamily
from .sparse.sell import SpmmvSell

FAMILIES: dict[str, DenseFamily[Any, Any]] = {
    family.name: family
    for family in (
        SweepMma("sweep_mma", SweepProblem),
        TsmttsmMma(),
        Tsmttsm3m(),
        TsmttsmFma(),
        TsmmMma(),
        Tsmm3m(),
        SweepMma("tsmm_sweep", TsmmProblem),  # of a basis of more than 64 columns
        TsmmFma(),
    )
}
"""Families for products of dense blocks, in order of preference."""

CSR = SpmmvCsr()

SPARSE_FAMILIES: dict[str, SparseFamily[Any]] = {
    family.name: family for family in (CSR, SpmmvSell(CSR), SpmmvChain())
}
"""Families of sparse products, which launch several kernels or take the matrix in another form."""


def families_of(problem: Problem) -> list[DenseFamily[Any, Any]]:
    """List the families for the operation of a product, in order of preference."""
    families = [family for family in FAMILIES.values() if type(problem) is family.problem_type]
    return sorted(families, key=lambda family: not family.is_faster(problem))


def sparse_families_of(problem: SpmmvProblem) -> list[SparseFamily[Any]]:
    """Order the families of sparse products by preference."""
    families = (family for family in SPARSE_FAMILIES.values() if family.stored == problem.stored)
    return sorted(families, key=lambda family: not family.is_faster(problem))
