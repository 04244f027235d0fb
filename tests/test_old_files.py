"""Tuned winners that an earlier version wrote still load; kernels are compiled again.

The contents below are literal copies, so that a change of a name, a field or a hash shows here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from blockvec.kernels import compile as compiler
from blockvec.kernels.device import H200
from blockvec.kernels.problem import SpmmvProblem, TsmttsmProblem
from blockvec.kernels.tuning import winners

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
