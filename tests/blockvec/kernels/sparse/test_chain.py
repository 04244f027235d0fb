"""Chains without a matrix: the division into blocks, the generated code, and the kernel run on the host."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from blockvec import models
from blockvec.kernels.device import DeviceInfo, host_device
from blockvec.kernels.families import SPARSE_FAMILIES
from blockvec.kernels.problem import DOTS, SpmmvProblem, itemsize
from blockvec.kernels.sparse.chain import ChainConfig as Config
from blockvec.kernels.sparse.chain import ChainPlan
from blockvec.kernels.sparse.chain_plan import Blocks, Chain, blocks_of
from tests.devices import H200
from tests.emulator.host import needs_host_compiler, sampled
from tests.emulator.products import SparseProduct, case

family: Any = SPARSE_FAMILIES["spmmv_chain"]
FEW: DeviceInfo = replace(H200, multiprocessors=3)
SPINS, ELECTRONS = "xxz:sites=10,up=5,delta=0.5", "hubbard:sites=5,up=3,down=2,u=2,t=0.5"


def problem(width: int, dtype: str = "float64", **changes: Any) -> SpmmvProblem:
    """A product with 24 spins or so."""
    n, real = 2704156, "float32" if dtype in ("float32", "complex64") else "float64"
    fields = {"index_bytes": 8, "pattern": "spins", "longest": 25} | changes
    return replace(SpmmvProblem(n, n, 13 * n, width, real, dtype, width, width), **fields)


def assembled(chain: Chain, blocks: Blocks) -> np.ndarray:
    """The matrix, from the definition of every table."""
    H = np.zeros((chain.n_rows, chain.n_rows))
    for a, kind in enumerate(blocks.kind):
        of, start = blocks.kinds[kind], blocks.starts[a]
        assert blocks.starts[a + 1] == start + of.rows
        here = np.arange(start, start + of.rows)
        for e in range(blocks.outer_starts[a], blocks.outer_starts[a + 1]):
            there = blocks.starts[blocks.outer[e]]
            assert blocks.kind[blocks.outer[e]] == kind
            H[here, there + np.arange(of.rows)] += blocks.outer_signs[e] * chain.hop
        for row, place in itertools.product(range(of.rows), range(of.inner.shape[1])):
            if of.inner[row, place] >= 0:
                H[start + row, start + of.inner[row, place]] += of.signs[row, place] * chain.hop
        q = np.bitwise_count(of.mark & blocks.mask[a]).astype(int) + of.inside + blocks.outside[a]
        for c in np.flatnonzero(blocks.crossing_signs):
            hops = np.flatnonzero(of.occupied[:, c] != blocks.occupied[a, c])
            there = blocks.starts[blocks.crossings[a, c]] + of.crossings[hops, c]
            H[here[hops], there] += blocks.crossing_signs[c] * chain.hop
            q[hops] += chain.pattern == "spins"
        H[here, here] += chain.value(q)
    return H


def check(spec: str) -> None:
    """Compare all divisions of a chain with the matrix of the model, exactly."""
    generator = models.generator(spec)
    assert generator.chain is not None
    chain, expected = generator.chain(), generator.matrix()
    for low in range(1, chain.bits + 1):
        blocks = blocks_of(chain, low)
        np.testing.assert_array_equal(assembled(chain, blocks), expected.toarray(), err_msg=f"{spec}, {low}")
        assert chain.class_rows(low) == max(kind.rows for kind in blocks.kinds)
    assert chain.longest >= np.diff(expected.indptr).max()
    if chain.sites > 2:  # both bonds of a ring of two are one entry of the matrix
        assert chain.nnz == expected.nnz


@pytest.mark.parametrize("sites", range(2, 8))
def test_all_divisions_of_all_chains_are_the_matrix(sites: int) -> None:
    for up, periodic in itertools.product(range(sites + 1), ("true", "false")):
        check(f"xxz:sites={sites},up={up},delta=0.5,j=3,periodic={periodic}")
        for down in range(sites + 1) if sites < 5 else ():
            check(f"hubbard:sites={sites},up={up},down={down},u=5,t=0.5,periodic={periodic}")


def test_a_chain_may_have_more_rows_than_32_bits_can_number() -> None:
    blocks = blocks_of(Chain(34, (17,), 0.5, 0.25), 16)
    assert blocks.starts[-1] == 2333606220
    assert blocks.starts.dtype == np.int64
    last = blocks.kinds[blocks.kind[-1]]
    assert blocks.starts[-1] - blocks.starts[-2] == last.rows


# ---- the kernel, run on the host

SUMS: dict[str, Any] = {"beta": 1, "shift": "scalar", "dots": DOTS}
HOST_CASES = [
    case(1, config=Config(1, 1, 1, 6, 2, 3, 1), spec=ELECTRONS),
    case(2, config=Config(1, 1, 2, 4, 3, 3, 1), delta=2, eta=-1),
    case(
        *(3, "float64", Config(3, 1, 1, 5, 4, 4, 2)),
        **{"spec": "xxz:sites=9,up=3,periodic=false", "alpha": 2, "beta": -1, "shift": "scalar", "align": 8},
    ),
    case(
        *(4, ("float64", "complex128"), Config(2, 2, 1, 3, 2, 3, 1)),
        **{"spec": "hubbard:sites=5,up=2,down=4,u=1", "alpha": 2j, "beta": 1, "shift": "column"},
    ),
    case(
        *(5, "float32", Config(2, 3, 1, 12, 4, 3, 1)),
        **{"spec": "hubbard:sites=4,up=2,down=2,u=2,t=1", "pitches": (2, 1), "align": 4},
    ),
    case(7, ("float64", "float32"), Config(4, 2, 1, 8, 3, 4, 1), align=8),
    case(8, config=Config(4, 1, 2, 5, 3, 4, 1), beta=2, pitches=(2, 4), shift="scalar"),
    case(
        *(9, ("float64", "complex128"), Config(3, 1, 1, 6, 2, 3, 1)),
        **{"spec": "xxz:sites=11,up=2,j=2", "shift": "column", "delta": 0},
    ),
    case(
        *(11, ("float32", "complex64"), Config(8, 1, 1, 4, 4, 5, 1)),
        **{"spec": "hubbard:sites=6,up=1,down=2,u=4,periodic=false", "align": 8},
    ),
    case(12, "float32", Config(2, 1, 4, 7, 2, 3, 1), alpha=3),
    case(13, config=Config(5, 1, 1, 5, 4, 3, 1), align=8, spec="xxz:sites=2,up=1,delta=3"),
    case(16, config=Config(2, 2, 2, 10, 4, 3, 1), shift="column", delta=2),
    case(5, config=Config(2, 2, 1, 5, 2, 3, 1), **SUMS),
    case(3, "float32", Config(3, 1, 1, 4, 2, 3, 1), **SUMS),
    case(5, ("float64", "complex128"), Config(2, 1, 1, 3, 2, 4, 1), spec=ELECTRONS, **SUMS),
]


@needs_host_compiler
@pytest.mark.parametrize("case", sampled(HOST_CASES), ids=lambda case: str(case["width"]))
def test_the_kernel_run_on_the_host_is_exact(case: dict[str, Any]) -> None:
    dtype_s, dtype_x = case["types"]
    generator = models.generator(case.get("spec", SPINS))
    assert generator.chain is not None
    chain = generator.chain()
    S = generator.matrix().astype(dtype_s)
    product = SparseProduct(S, case, pattern=chain.pattern, longest=chain.longest)
    p = product.problem
    sizes = {"x": min(16, case["config"].vector * itemsize(dtype_x))}
    sizes["y"] = min(16, case["config"].vector * itemsize(p.dtype))
    aligned = {
        "aligned_x": p.align_x % sizes["x"] == 0,
        "aligned_y": min(p.align_y, p.align_z) % sizes["y"] == 0,
    }
    config = replace(case["config"], **aligned)
    plan = ChainPlan(chain)
    product.run(family, config, FEW, plan, plan.tables(config, FEW)[0], index_bytes=8)


# ---- choices and generated code


def test_what_cannot_be_run_is_refused_with_a_reason() -> None:
    refused = {
        "asynchronous copies": (problem(8), host_device(2)),
        "takes chains": (problem(8, pattern="scattered"), H200),
        "no rows": (replace(problem(8), n_rows=0), H200),
        "bytes apart": (problem(8, ldx=2**28), H200),
        "on their own": (problem(8, gram=("xy",)), H200),
    }
    for reason, (p, device) in refused.items():
        assert reason in str(family.supports(p, device)), reason
    p, valid = problem(8), Config(4, 1, 2, 11)
    assert family.refuse(p, valid, H200) is None
    for reason, changes in {
        "shared memory": {"low": 14},
        "registers": {"lanes": 1, "vectors": 4, "unroll": 16, "blocks": 3},
    }.items():
        assert reason in str(family.refuse(p, replace(valid, **changes), H200)), reason
