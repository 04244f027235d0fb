"""Tuned winners that an earlier version wrote still load; kernels are compiled again, checkpoints refused.

The contents below are literal copies, so that a change of a name, a field or a hash shows here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec.errors import FormatError
from blockvec.kernels import compile as compiler
from blockvec.kernels.device import H200
from blockvec.kernels.problem import SpmmvProblem, TsmttsmProblem
from blockvec.kernels.tuning import winners
from solvers import eigsh

PRODUCT = TsmttsmProblem(1 << 24, 8, 8, "float64", "float64", 8, 8)
PLANES = SpmmvProblem(10**7, 10**7, 7 * 10**7, 16, "float64", "float64", 16, 16, pattern="planes")
WINNERS: list[tuple[Any, str, str, str]] = [
    (
        PRODUCT,
        "tsmttsm_mma",
        "tsmttsm-float64-m8-n8-ec7a314c2612.json",
        """
{"config": {"ahead": false, "blocks": 1, "fold": 1, "gapless": false, "kstep": 1, "producers": 1,
  "rows": 516, "stages": 3, "unroll": 4, "wk": 8, "wm": 1, "wn": 1},
 "fraction": 0.97, "kernel": "tsmttsm_mma",
 "problem": {"K": 0, "M": 8, "N": 8, "align_a": 16, "align_b": 16, "alpha": "one", "beta": "zero",
  "conj": false, "dtype_a": "float64", "dtype_b": "float64", "lda": 8, "ldb": 8, "same": false},
 "rows": 16777216, "time_s": 0.00047}
""",
    ),
    (
        PLANES,
        "spmmv_planes",
        "spmmv-float64-w16-eba9395cf932.json",
        """
{"config": {"across": 16, "aligned_y": true, "blocks": 2, "entries": 1, "lanes": 2, "lines": 8,
  "unroll": 3, "vector": 2, "vectors": 4, "warps": 8},
 "fraction": 0.97, "kernel": "spmmv_planes",
 "problem": {"align_x": 16, "align_y": 16, "align_z": 16, "alpha": "one", "beta": "zero", "chain": "none",
  "dots": [], "dtype_matrix": "float64", "dtype_x": "float64", "gram": [], "index_bytes": 4, "ldx": 16,
  "ldy": 16, "ldz": 0, "longest": 0, "n_cols": 1, "n_rows": 1, "nnz": 7, "pattern": "planes",
  "shift": "none", "width": 16},
 "rows": 10000000, "time_s": 0.00047}
""",
    ),
]


@pytest.mark.parametrize(("problem", "kernel", "name", "text"), WINNERS, ids=["dense", "sparse"])
def test_a_tuned_winner_of_an_earlier_tree_is_found(
    problem: Any, kernel: str, name: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "tuned" / "d83d775a44540061" / name  # the fingerprint of an H200
    path.parent.mkdir(parents=True)
    path.write_text(text)
    found = winners.find(problem, H200, tmp_path)
    assert found is not None
    assert found.origin == "tuned on this NVIDIA H200"
    assert (found.kernel, found.time_s, found.fraction) == (kernel, 0.00047, 0.97)
    assert dataclasses.asdict(found.config) == json.loads(text)["config"]
    assert path.read_text() == text


SOURCE = 'extern "C" __global__ void none() {}'


def write_cubin(cache_dir: Path, magic: bytes) -> None:
    """Write an entry of the cache of compiled kernels, with another image than the compiler's."""
    options = "--std=c++17", "--device-as-default-execution-space", "--ftz=false", "--ptxas-options=-v"
    determined_by = "\0".join((compiler.compiler_version(), "sm_90", *options, SOURCE))
    report = '{"registers": 77, "spill_bytes": 1, "stack_bytes": 2, "shared_bytes": 3}'
    payload = report.encode() + b"\nan earlier image\nof two lines"
    path = cache_dir / "cubins" / f"{hashlib.sha256(determined_by.encode()).hexdigest()}.cubin"
    path.parent.mkdir()
    path.write_bytes(magic + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)


@pytest.mark.parametrize("magic", [b"blockvec cubin 1\n", b"blockvec cubin 2\n", b"other\n"])
def test_a_kernel_that_an_earlier_tree_compiled_is_compiled_again(magic: bytes, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    write_cubin(tmp_path, magic)
    assert compiler.build(SOURCE, "sm_90", cache_dir=tmp_path).image.startswith(b"\x7fELF")


CHECKPOINT = """
{"format": "blockvec checkpoint 1", "problem": {"n": 40, "method": "lanczos", "k": 1, "which": "SA",
  "block_size": 1, "ncv": 6, "norm": null, "verify": "auto", "degree": 1, "sigma": null, "tol": 1e-08,
  "convergence": "value", "unit": 1.1102230246251565e-16, "columns of v0": 0, "columns of orthogonal_to": 0,
  "preconditioner": false, "correction": "auto", "inner_steps": null, "inner_stop": "adaptive",
  "inner_base": 0.1, "inner_together": false, "extraction": "auto", "retained": null, "min_basis": null,
  "look_ahead": null, "start": "auto", "start_basis": null, "initial_shift": null,
  "initial_shift_iterations": 0, "dtype": "float64", "rng": "PCG64", "blockvec": "0.2.0"},
 "state": {"least": -40.09029297136705, "search_width": 1, "found_missed": 0, "missing": 0,
  "verification": "not reached", "filter_calls": 0, "degree": 1, "norm": 38.76908564336778}}
"""
# Of this tree: format, fingerprint, state.
NAMES = """
blockvec checkpoint 2
block_size blockvec columns of orthogonal_to columns of v0 convergence correction degree dtype extraction
initial_shift initial_shift_iterations inner_base inner_steps inner_stop inner_together k look_ahead method
min_basis n ncv norm preconditioner retained rng rounding sigma start start_basis tol unit verify which
counts defect degree elapsed_s filter_calls first_rng found_missed history krylov_norm least m missing most
norm rate ripens rng search_width verification verification_text w
"""


def test_a_checkpoint_of_an_earlier_tree_is_refused_for_its_version(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    np.savez(path, header=np.frombuffer(CHECKPOINT.encode(), np.uint8), image=np.zeros((40, 1)))
    written = path.read_bytes()
    with pytest.raises(FormatError, match=r"of this version \(its format is 'blockvec checkpoint 1', not"):
        solve_with_checkpoint(path)
    assert path.read_bytes() == written


def test_a_format_with_other_names_has_another_number(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    solve_with_checkpoint(path, maxiter=1, on_unconverged="return")
    with np.load(path) as members:
        header = json.loads(members["header"].tobytes())
    names = " ".join((header["format"], *sorted(header["problem"]), *sorted(header["state"])))
    assert names == NAMES.replace("\n", " ").strip()


def solve_with_checkpoint(path: Path, **options: Any) -> None:
    A = sp.diags_array(np.arange(1.0, 41.0), format="csr")
    options |= {"which": "SA", "method": "lanczos", "ncv": 6, "block_size": 1, "tol": 1e-8}
    eigsh(A, 1, rng=0, checkpoint=path, **options)
