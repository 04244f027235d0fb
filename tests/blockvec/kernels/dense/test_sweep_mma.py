"""Sweeps over a basis and a block, without a GPU: choices, compilation, the kernel itself run on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockvec.kernels.dense import sweep_mma as settings
from blockvec.kernels.dense.sweep_mma import SweepMmaConfig as Config
from blockvec.kernels.device import H200
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.launch import partials_bytes
from blockvec.kernels.problem import SweepProblem, TsmmProblem, TsmttsmProblem
from tests.blocks import address, aligned, counters_are_ready, draw, parts
from tests.emulator.host import HostKernel, every_second, needs_host_compiler

family = FAMILIES["sweep_mma"]

ROWS = 1 << 20
KINDS = ("dot", "combine", "combine_dot", "update_gram")


def problem(kind: str, M: int, N: int, dtype: str = "float64", K: int = ROWS, **changes: object) -> Any:
    plain: Any
    if kind == "dot":
        plain = TsmttsmProblem(K, M, N, dtype, dtype, M, N, conj=dtype == "complex128")
    elif kind == "combine":
        plain = TsmmProblem(K, M, N, dtype, dtype, M, N)
    else:
        plain = SweepProblem(kind, K, M, N, dtype, dtype, dtype, M, N)  # type: ignore[arg-type]
    return replace(plain, **changes)


BOTH = pytest.mark.parametrize("dtype", ["float64", "complex128"])
EACH = pytest.mark.parametrize("kind", KINDS)


def test_what_the_family_cannot_run_is_refused_with_a_reason() -> None:
    assert "float64 or complex128" in str(family.supports(problem("dot", 128, 8, "float32"), H200))
    assert "float64 or complex128" in str(
        family.supports(problem("combine_dot", 128, 8, dtype_c="complex128"), H200)
    )
    assert "no rows" in str(family.supports(problem("update_gram", 128, 8, K=0), H200))
    assert "aligned" in str(family.supports(problem("combine", 128, 8, align_b=4), H200))
    assert "at most 512" in str(family.supports(problem("combine", 600, 8), H200))
    assert "more than 64 columns" in str(family.supports(problem("combine", 8, 16), H200))
    assert "sm_90" in str(family.supports(problem("dot", 128, 8), replace(H200, architecture="sm_80")))
    assert "registers" in str(family.supports(problem("dot", 512, 32, "complex128"), H200))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Config(16, 3, 8, 3), "cannot share"),
        (Config(24, 3, 8, 4), "no multiple of 32"),
        (Config(16, 1, 8, 8), "at least two"),
        (Config(32, 9, 8, 4), "shared memory"),
        (Config(32, 2, 16, 8), "registers"),
    ],
)
def test_the_validity_rule_says_what_is_wrong(config: Config, reason: str) -> None:
    assert reason in str(
        family.refuse(
            problem("update_gram", 512, 16) if reason == "registers" else problem("update_gram", 128, 16),
            config,
            H200,
        )
    )


def test_rows_move_as_bulk_copies_where_their_alignment_allows() -> None:
    assert settings.shape_of(problem("dot", 128, 8)).w_piece == 0
    assert settings.shape_of(problem("dot", 96, 8, lda=200)).w_piece == 0
    assert settings.shape_of(problem("dot", 97, 8, lda=200)).w_piece == 16
    assert settings.shape_of(problem("dot", 97, 8)).w_piece == 8
    assert settings.shape_of(problem("update_gram", 64, 5)).w_piece == 0
    assert settings.shape_of(problem("update_gram", 64, 4)).w_piece == 16  # narrow blocks
    assert settings.shape_of(problem("update_gram", 32, 4)).w_piece == 16  # short rows
    assert settings.shape_of(problem("dot", 96, 8, lda=201, align_a=8)).w_piece == 8


# ---- compiled for a Hopper GPU, without one


# ---- the kernel, thread by thread


HOST_CASES = [
    (problem("dot", 33, 5, K=101), Config(16, 3, 4, 2), 3),
    (problem("dot", 40, 9, "complex128", K=61), Config(8, 2, 4, 4), 2),
    (
        problem("dot", 40, 9, "complex128", K=61, conj=False, alpha="general", beta="general"),
        Config(8, 2, 4, 4),
        2,
    ),
    (problem("dot", 9, 40, "complex128", K=61, beta="general"), Config(16, 2, 4, 2), 2),
    (
        problem("dot", 3, 40, K=61, lda=5, ldb=41, align_a=8, align_b=8, alpha="general"),
        Config(16, 2, 4, 1),
        2,
    ),
    (problem("dot", 64, 16, K=7), Config(16, 2, 4, 1), 1),
    (problem("combine", 33, 5, K=101), Config(32, 3, 4, 2), 3),
    (problem("combine", 32, 16, K=101, beta="one"), Config(64, 2, 4, 1), 2),
    (problem("combine", 21, 7, "complex128", K=61, alpha="general", beta="general"), Config(16, 2, 4, 2), 3),
    (
        problem("combine", 53, 3, K=61, lda=55, ldb=9, align_a=8, align_b=8, alpha="general"),
        Config(16, 2, 4, 4),
        1,
    ),
    (problem("combine", 24, 16, K=61, ldb=24, inplace=True), Config(32, 2, 4, 2), 2),
    (problem("combine_dot", 33, 5, K=101), Config(16, 3, 4, 2), 3),
    (problem("combine_dot", 48, 16, K=133), Config(32, 3, 4, 1), 2),
    (problem("combine_dot", 20, 9, "complex128", K=61), Config(8, 3, 4, 2), 2),
    (problem("combine_dot", 20, 3, "complex128", K=61, ldw=31, ldv=31, align_v=8), Config(16, 2, 4, 2), 2),
    (problem("combine_dot", 17, 3, K=61, ldw=20, ldv=20, align_v=8), Config(32, 2, 4, 1), 1),
    (problem("update_gram", 33, 5, K=101), Config(32, 3, 4, 2), 3),
    (problem("update_gram", 64, 16, K=133), Config(16, 3, 4, 4), 2),
    (problem("update_gram", 20, 9, "complex128", K=61), Config(16, 3, 4, 2), 2),
    (problem("update_gram", 30, 4, "complex128", K=61, ldw=31, ldv=31), Config(8, 2, 4, 4), 2),
    (
        problem("update_gram", 5, 8, K=61, ldw=13, ldv=13, align_w=8, align_v=8),
        Config(64, 2, 4, 1),
        1,
    ),
]


def reference(p: Any, W: Any, V: Any, C: Any, S: Any, alpha: complex, beta: complex) -> tuple[Any, Any]:
    """Return the new V and S; W and V are the kernel's, wide and narrow."""
    if isinstance(p, TsmttsmProblem):
        A, B = (W, V) if p.M >= p.N else (V, W)
        return V, alpha * ((A.conj() if p.conj else A).T @ B) + beta * S
    if isinstance(p, TsmmProblem):
        return alpha * (W @ C) + beta * V, S
    if p.operation == "combine_dot":
        return V @ C, W.conj().T @ (V @ C)
    new = V - W @ C
    return new, new.conj().T @ new


@needs_host_compiler
@pytest.mark.parametrize(("p", "config", "blocks"), every_second(HOST_CASES), ids=lambda v: str(v)[:70])
def test_the_kernel_run_on_the_host_is_exact_and_repeats_bit_for_bit(
    p: Any, config: Config, blocks: int, tmp_path: Path
) -> None:
    assert family.refuse(p, config, H200) is None
    shape = settings.shape_of(p)
    rng = np.random.default_rng(p.K)
    dtype, inplace = p.dtype, getattr(p, "inplace", False)
    alignments = [16, 16]
    match p:
        case SweepProblem():
            alignments = [p.align_w, p.align_v]
        case _:
            alignments = [p.align_a, p.align_b][:: -1 if shape.transposed else 1]
    W, _ = aligned(draw(rng, (p.K, shape.M), dtype), shape.ldw, alignments[0])
    V = W[:, : p.N] if inplace else aligned(draw(rng, (p.K, shape.N), dtype), shape.ldv, alignments[1])[0]
    C = draw(rng, (shape.N if shape.scale else shape.M, shape.N), dtype)
    S = draw(rng, (shape.N, shape.N) if shape.gram else (p.M, p.N), dtype)
    alpha = 1 if shape.alpha == "one" else 2
    beta = 0 if shape.beta == "zero" else (3 if dtype == "float64" else 1 - 2j)
    if shape.gram:
        alpha, beta = -1, 1
    elif shape.beta == "one":
        beta = 1
    expected_v, expected_s = reference(p, W, V, C, S, alpha, beta)
    if shape.update and beta == 0 and not inplace:
        V[...] = np.nan  # never read
    if shape.has_sum and (beta == 0 or shape.gram):
        S[...] = np.nan

    workspace = np.full(partials_bytes(blocks, shape.sum_bytes // 8) // 8, np.nan)
    workspace[:16] = 0
    source, shared = family.source(p, config, H200), family.shared_bytes(p, config, H200)
    start_w, start_v, results = W.copy(), V.copy(), []
    for seed in (1, 2):
        W[...], V[...] = start_w, start_v
        S_run = S.copy()
        extents = p.K, W.strides[0], V.strides[0]
        arguments = *map(address, (W, V, C, S_run)), *extents, *parts((alpha, beta)), address(workspace)
        kernel = HostKernel(source, tmp_path, readable=[W, V], seed=seed)
        kernel((blocks,), (32 * config.warps,), arguments, shared)
        assert counters_are_ready(workspace)
        np.testing.assert_array_equal(V, expected_v)
        if shape.has_sum:
            np.testing.assert_array_equal(S_run, expected_s)
        if not inplace:
            np.testing.assert_array_equal(W, start_w)
        results.append(V.tobytes() + S_run.tobytes())
    assert results[0] == results[1]
