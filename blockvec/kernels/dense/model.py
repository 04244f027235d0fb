"""Search spaces and choices that the models of several dense families share."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

from ...errors import OptionError
from ..device import DeviceInfo
from ..family import C, Model
from ..problem import TsmmProblem, itemsize
from ..roofline import Ceilings, Traffic, partial_sectors, sector_traffic
from .layout import Product

PARTIAL_BYTES = 190
"""Bytes of other traffic that take as long as a sector that a row fills in part, not read before [H100]."""


@functools.lru_cache(maxsize=1024)
def view_traffic(problem: TsmmProblem, partial_bytes: int = PARTIAL_BYTES) -> Traffic:
    """Estimate the traffic in whole sectors, and as reads what those take that rows of B fill in part."""
    moved = sector_traffic(problem)
    partial = problem.K * partial_sectors(problem.N, problem.ldb, itemsize(problem.dtype))
    return Traffic(moved.read_bytes + int(partial * partial_bytes), moved.write_bytes)


class ProductModel(Model[Product, C]):
    """A model whose choices are cached, for row counts rounded to their two leading bits.

    Attributes
    ----------
    name : str
        Key of the family.
    ceilings : Ceilings
        Limits to assume where none were measured.
    """

    name: ClassVar[str]
    ceilings: ClassVar[Ceilings]

    @abstractmethod
    def supports(self, problem: Product, device: DeviceInfo) -> str | None:
        """Explain why the family cannot run a problem; None if it can."""

    @abstractmethod
    def refuse(self, problem: Product, config: C, device: DeviceInfo) -> str | None:
        """Explain why a configuration is invalid for a supported problem; None if it is valid."""

    @abstractmethod
    def candidates(self, problem: Product, device: DeviceInfo, is_short: bool) -> Iterable[C]:
        """Yield the configurations of the space, or the fewer ones that `choose` compares."""

    def shape(self, problem: Product) -> Product:
        """Reduce a problem to what its choice depends on, K apart."""
        return problem

    def space(self, problem: Product, device: DeviceInfo) -> tuple[C, ...]:
        """List the valid configurations worth measuring, a few hundred."""
        return () if self.supports(problem, device) else _valid(self, self.shape(problem), device, False)

    def choose(self, problem: Product, device: DeviceInfo, ceilings: Ceilings | None = None) -> C:
        """Choose the valid configuration with the shortest predicted time.

        Raises
        ------
        OptionError
            If the family does not support the problem on this device.
        """
        known = ceilings or self.ceilings
        normal = replace(self.shape(problem), K=problem.K)
        bandwidths = known.read_gb_s, known.write_gb_s, known.copy_gb_s
        chosen: C = _choose(self, normal, device, bandwidths, tuple(sorted(known.gflop_s.items())))
        return chosen


@functools.lru_cache(maxsize=1024)
def _valid(
    model: ProductModel[Any, Any], problem: Any, device: DeviceInfo, is_short: bool
) -> tuple[Any, ...]:
    configs = dict.fromkeys(model.candidates(problem, device, is_short))
    return tuple(config for config in configs if model.refuse(problem, config, device) is None)


@functools.lru_cache(maxsize=4096)
def _choose(
    model: ProductModel[Any, Any],
    problem: Any,
    device: DeviceInfo,
    bandwidths: tuple[float, float, float],
    rates: tuple[tuple[str, float], ...],
) -> Any:
    reason = model.supports(problem, device)
    configs = () if reason else _valid(model, model.shape(problem), device, True)
    configs = configs or model.space(problem, device)
    if not configs:
        reason = reason or "no configuration fits its shared memory and registers"
        raise OptionError(
            f"{model.name} cannot run on {device.name}: {reason}; let dispatch choose another family."
        )
    ceilings = Ceilings(*bandwidths, gflop_s=dict(rates))
    return min(configs, key=lambda config: model.predict(problem, config, device, ceilings))
