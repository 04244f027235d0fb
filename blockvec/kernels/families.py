"""The families of generated kernels: what each module offers, and the list of them by operation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from .dense import sweep_mma, tsmm_fma, tsmm_mma, tsmttsm_fma, tsmttsm_mma
from .device import DeviceInfo
from .problem import Problem, SpmmvProblem, SweepProblem, TsmmProblem, TsmttsmProblem
from .roofline import Ceilings
from .sparse.csr import SpmmvCsr
from .sparse.csr_model import SpmmvCsrModel
from .sparse.family import SparseFamily
from .sparse.planes import SpmmvPlanes
from .sparse.planes_model import SpmmvPlanesModel
from .sparse.sell import SpmmvSell
from .sparse.sell_model import SpmmvSellModel

__all__ = [
    "CONFIGURED",
    "CSR",
    "FAMILIES",
    "SPARSE_FAMILIES",
    "Family",
    "config_from",
    "current_name",
    "families_of",
    "ranked",
    "sparse_families_of",
]


class Family(Protocol):
    """What a family's module offers; problems and configurations are of its own types. No GPU is needed."""

    Config: Any
    """A frozen dataclass: one way to run the kernel."""

    def supports(self, problem: Any, device: DeviceInfo) -> str | None:
        """Say why the family cannot run a problem, or None when it can."""

    def space(self, problem: Any, device: DeviceInfo) -> Iterable[Any]:
        """Return the configurations worth measuring; some may be refused."""

    def refuse(self, problem: Any, config: Any, device: DeviceInfo) -> str | None:
        """Say why a configuration is not valid for a problem, or None when it is."""

    def predict(
        self, problem: Any, config: Any, device: DeviceInfo, ceilings: Ceilings | None = None
    ) -> float:
        """Return the modelled time in seconds of a valid configuration."""

    def choose(self, problem: Any, device: DeviceInfo, ceilings: Ceilings | None = None) -> Any:
        """Return the configuration with the shortest modelled time among those known to measure well."""

    def source(self, problem: Any, config: Any, device: DeviceInfo) -> str:
        """Return the CUDA source of a configuration."""

    def kernel_name(self, problem: Any) -> str:
        """Return the kernel's name."""

    def shared_bytes(self, problem: Any, config: Any, device: DeviceInfo) -> int:
        """Return the dynamic shared memory of a block."""

    def workspace_bytes(self, problem: Any, config: Any, device: DeviceInfo) -> int:
        """Return the bytes of scratch memory a launch takes, 0 if it takes none."""

    def bind(self, function: Any, problem: Any, config: Any, device: DeviceInfo) -> Callable[..., None]:
        """Return what starts the kernel on CuPy's current stream."""


FAMILIES: dict[str, Family] = {
    "sweep_mma": sweep_mma,
    "tsmttsm_mma": tsmttsm_mma,
    "tsmttsm_sweep": sweep_mma,
    "tsmttsm_fma": tsmttsm_fma,
    "tsmm_mma": tsmm_mma,
    "tsmm_sweep": sweep_mma,
    "tsmm_fma": tsmm_fma,
}


CSR = SpmmvCsr(SpmmvCsrModel(), SpmmvCsrModel(in_order=True))

SPARSE_FAMILIES: dict[str, SparseFamily[Any]] = {
    family.name: family
    for family in (CSR, SpmmvPlanes(SpmmvPlanesModel(), CSR), SpmmvSell(SpmmvSellModel(), CSR))
}
"""Families of sparse products, which launch several kernels or take the matrix in another form."""

CONFIGURED: dict[str, Any] = {**FAMILIES, **SPARSE_FAMILIES}
"""All families whose configurations are put on record."""

_RENAMED = {"spmmv_march": "spmmv_planes"}
"""Families that records of earlier versions call by another name."""

_NARROW = {
    TsmttsmProblem: 12,
    TsmmProblem: 24,
}  # columns up to which multiply-adds stream single precision better


def families_of(problem: Problem) -> tuple[str, ...]:
    """Return the names of the families for a problem's operation, the preferred ones first.

    Where nothing was tuned: tensor cores, but multiply-adds for narrow products of single precision. Beside
    a basis of more than 64 columns the sweeps' kernel takes a sixth longer for A^H B than the other one,
    and is alone for A C.
    """
    prefix = {TsmttsmProblem: "tsmttsm_", TsmmProblem: "tsmm_", SweepProblem: "sweep_"}.get(type(problem))
    names = [name for name in FAMILIES if prefix and name.startswith(prefix)]
    single = problem.dtype in ("float32", "complex64")
    if (
        single
        and isinstance(problem, TsmttsmProblem | TsmmProblem)
        and max(problem.M, problem.N) <= _NARROW[type(problem)]
    ):
        names.sort(key=lambda name: not name.endswith("_fma"))
    return tuple(names)


def sparse_families_of(problem: SpmmvProblem) -> list[SparseFamily[Any]]:
    """Order the families of sparse products by preference where nothing was tuned."""
    families = SPARSE_FAMILIES.values()
    return sorted(families, key=lambda family: not family.is_faster(problem))


def current_name(kernel: str) -> str:
    """Translate the name of a kernel in a record to that of this version."""
    return _RENAMED.get(kernel, kernel)


def ranked(
    name: str, problem: Problem, device: DeviceInfo, ceilings: Ceilings | None = None
) -> list[tuple[float, Any]]:
    """Return a family's valid configurations with their modelled times in seconds, the shortest first."""
    family = FAMILIES[name]
    valid = [c for c in family.space(problem, device) if family.refuse(problem, c, device) is None]
    configs = dict.fromkeys((*valid, family.choose(problem, device, ceilings)))
    timed = [(family.predict(problem, config, device, ceilings), config) for config in configs]
    return sorted(timed, key=lambda pair: pair[0])


def config_from(name: str, record: Any) -> Any | None:
    """Rebuild a configuration from its fields; None for what is none of this version of the family."""
    family = CONFIGURED.get(name)
    if family is None or not isinstance(record, dict):
        return None
    fields = {field.name: field.type for field in dataclasses.fields(family.Config)}
    if set(record) != set(fields) or not all(isinstance(v, int | str) for v in record.values()):
        return None
    return family.Config(**record)
