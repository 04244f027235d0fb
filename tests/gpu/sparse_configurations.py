"""Run every kind of sparse kernel once on small matrices and exact numbers; meant for compute-sanitizer.

    compute-sanitizer --tool memcheck python -m tests.gpu.sparse_configurations
    compute-sanitizer --tool racecheck python -m tests.gpu.sparse_configurations uneven spmmv_sell

Words name matrices and kernels to be run alone.
Exits with 1 if a result is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from blockvec import BlockVector, as_operator, models
from blockvec.backends import backend_for
from blockvec.kernels.families import CSR, SPARSE_FAMILIES
from blockvec.kernels.problem import SpmmvProblem
from blockvec.kernels.sparse.csr import CsrConfig
from blockvec.kernels.sparse.sell import SellConfig
from tests.benchmarks.contest import Variant
from tests.benchmarks.sparse_operands import SparseOperands

SELL = SPARSE_FAMILIES["spmmv_sell"]
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"planes": 2, "warps": 2, "blocks": 1},
    {"flat": True, "rows": 16, "entries": 128, "long_row": 64, "warps": 4, "blocks": 1},
    {"split": 2, "warps": 4, "blocks": 2, "entries": 256, "long_row": 128},
    {"lanes": 2, "vectors": 1, "warps": 1, "blocks": 1},
)
SHAPES = (("float64", 1), ("float64", 16), ("complex128", 3), ("complex128", 16), ("float32", 20))


def matrices() -> Iterator[tuple[str, Any]]:
    """Yield a grid, and a matrix with empty, long and very long rows in both index types."""
    yield "grid", models.laplace3d(n=24)
    yield "lattice", models.graphene(nx=40, ny=40)
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.pareto(1.1, 4000) * 3, 6000).astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    columns = rng.integers(0, 4000, indptr[-1])
    uneven = sp.csr_array((np.ones(indptr[-1]), columns, indptr), shape=(4000, 4000))
    yield "uneven, 64-bit indices", uneven
    uneven = sp.csr_array(
        (uneven.data, columns.astype(np.int32), indptr.astype(np.int32)), shape=(4000, 4000)
    )
    yield "uneven", uneven


def configurations(problem: SpmmvProblem, device: Any) -> Iterator[CsrConfig]:
    """Yield valid configurations of every kind."""
    choice = CSR.choose(problem, device)
    for variant in VARIANTS:
        config = replace(choice, **variant)
        if config.lanes * config.split <= 32 and not (
            problem.gram and (config.split > 1 or config.tile < problem.width)
        ):
            config = replace(config, rows=max(config.rows // config.groups, 1) * config.groups)
            if CSR.refuse(problem, config, device) is None:
                yield config


def converted(problem: SpmmvProblem, device: Any) -> Iterator[SellConfig]:
    """Yield valid configurations for the matrix in SELL-C form, of every kind."""
    if SELL.supports(problem, device) is None:
        choice = SELL.choose(problem, device)
        yield from (choice, replace(choice, persistent=not choice.persistent))


def main(words: Sequence[str]) -> int:
    """Run what words name, or all, print what is wrong, and return the exit code."""
    kernels = set(SPARSE_FAMILIES)
    named, kernels = set(words) - kernels, set(words) & kernels or kernels
    backend: Any = backend_for("gpu")
    count, wrong = 0, 0
    for name, matrix in matrices():
        for dtype, width in SHAPES if not named or name in named else ():
            operator = as_operator(matrix.astype(dtype), device="gpu")
            problem, _ = operator.explain(BlockVector.empty(matrix.shape[1], width, dtype, device="gpu"))
            setup = SparseOperands(backend._gpu, problem, operator.prepared, {}, backend.stopwatch)
            field = [Variant("spmmv_csr", config) for config in configurations(problem, backend.device)]
            field += [Variant("spmmv_sell", config) for config in converted(problem, backend.device)]
            for variant in dict.fromkeys(e for e in field if e.kernel in kernels):
                fault = setup.check(variant)
                count, wrong = count + 1, wrong + bool(fault)
                if fault:
                    print(f"{name}, {dtype}, {width} columns, {variant}: {fault}")
            if name == "grid":
                X = BlockVector.random(matrix.shape[1], width, dtype, device="gpu", rng=0)
                operator.apply(X, shift=2.0, dots=("xx", "xy", "yy"), gram=("xy", "yy"))
    print(f"{count} configurations, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
