"""Files that an earlier version wrote still load: checkpoints and tuned winners; kernels are compiled again.

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

import blockvec
from blockvec import models
from blockvec.errors import OptionError
from blockvec.kernels import compile as compiler
from blockvec.kernels.device import H200
from blockvec.kernels.problem import SpmmvProblem, TsmttsmProblem
from blockvec.kernels.tuning import winners
from solvers import EigenResult, eigsh

# Of eigsh(models.model("laplace1d:n=8"), 1, **OPTIONS), ended in the callback of its second restart.
OPTIONS: dict[str, Any] = {
    "which": "SA",
    "method": "lanczos",
    "block_size": 1,
    "ncv": 4,
    "rng": 0,
    "tol": 1e-9,
    "verify": "never",
}
PROBLEM = """
{"n": 8, "method": "lanczos", "k": 1, "which": "SA", "block_size": 1, "ncv": 4, "norm": null,
 "verify": "never", "degree": 1, "sigma": null, "tol": 1e-09, "convergence": "value",
 "unit": 1.1102230246251565e-16, "columns of v0": 0, "columns of orthogonal_to": 0,
 "preconditioner": false, "correction": "auto", "inner_steps": null, "inner_stop": "adaptive",
 "inner_base": 0.1, "inner_together": false, "extraction": "auto", "retained": null, "min_basis": null,
 "look_ahead": null, "start": "auto", "start_basis": null, "initial_shift": null,
 "initial_shift_iterations": 0, "dtype": "float64", "rng": "PCG64"}
"""
STATE = """
{"least": -3.8873896747219736, "search_width": 1, "found_missed": 0, "missing": 0,
 "verification": "not reached", "degree": 1, "norm": 3.420199888309937,
 "rng": {"bit_generator": "PCG64", "state": {"state": 309019961079606187284900980202903920827,
  "inc": 87136372517582989555478159403783844777}, "has_uint32": 0, "uinteger": 0},
 "counts": {"operator_columns": 4, "block_applications": 4, "verification_columns": 0, "reductions": 13,
  "restarts": 1, "preconditioner_columns": 0},
 "history": [{"restart": 0, "eigenvalues": [0.20803815604216894], "residuals": [0.23636092815275334],
  "limits": [2.0803815604216895e-10], "operator_columns": 4, "time_s": 0.00724528599948826}],
 "elapsed_s": 0.007425363000038487, "m": 1, "w": 1, "krylov_norm": 3.420199888309937,
 "most": 2.6966652259802792, "full_until": 2}
"""
IMAGE = """
-0.9827281834543111 -0.8248155471484429 1.2551098090995032 -0.5461971771495706
-0.5350984547040558 0.7726321411585597 0.6719861498756934 -0.6644215148871273
"""
FIRST_COLUMN = """
0.30879091637372186 0.4904408847238255 0.48429190428896207 0.4506206383239571
0.4015215111322906 0.24341189969312763 0.05399280287933437 -0.055983932839050864
"""
SECOND_COLUMN = """
-0.26612120569270475 -0.36287102166015534 0.3098181657882102 0.3313509811324866
-0.10779569051194139 0.08177949522925076 0.38362907505327065 0.6528738722073497
"""


def write_checkpoint(path: Path, version: str) -> None:
    """Write the checkpoint of an earlier tree, with the version of the package that it is said to be of."""
    header = {
        "format": "blockvec checkpoint 1",
        "problem": json.loads(PROBLEM) | {"blockvec": version},
        "state": json.loads(STATE),
    }
    image, *basis = (np.array(text.split(), float) for text in (IMAGE, FIRST_COLUMN, SECOND_COLUMN))
    arrays: dict[str, Any] = {
        "state/theta": np.array([0.20803815604216894]),
        "state/estimates": np.array([0.23636092815275334]),
        "state/next": basis[1][:, None],
        "state/basis": np.stack(basis, axis=1),
        "state/H": np.array([[0.20803815604216894], [-0.23636092815275334]]),
    }
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, header=text, image=image[:, None], **arrays)


def test_a_checkpoint_of_an_earlier_tree_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    write_checkpoint(path, blockvec.__version__)
    A = models.model("laplace1d:n=8")
    result = eigsh(A, 1, **OPTIONS, checkpoint=path, return_info=True)
    assert isinstance(result, EigenResult)
    assert result.history[0].time_s == 0.00724528599948826, "the first restart is the file's"
    assert [state.restart for state in result.history] == list(range(result.info["restarts"]))
    whole = eigsh(A, 1, **OPTIONS, return_info=True)
    assert isinstance(whole, EigenResult)
    assert [state.operator_columns for state in result.history] == [
        state.operator_columns for state in whole.history
    ]
    exact = 4 * np.sin(np.pi / 18) ** 2
    np.testing.assert_allclose(result.eigenvalues, [exact], rtol=1e-9)
    assert not path.exists()


def test_a_checkpoint_of_another_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    write_checkpoint(path, "0.0.9")
    with pytest.raises(OptionError) as caught:
        eigsh(models.model("laplace1d:n=8"), 1, **OPTIONS, checkpoint=path)
    assert f"blockvec = '0.0.9', now it is {blockvec.__version__!r}" in str(caught.value)
    assert path.exists()


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
 "fraction": 0.97, "kernel": "spmmv_march",
 "problem": {"align_x": 16, "align_y": 16, "align_z": 16, "alpha": "one", "beta": "zero", "chain": "none",
  "dots": [], "dtype_matrix": "float64", "dtype_x": "float64", "gram": [], "index_bytes": 4, "ldx": 16,
  "ldy": 16, "ldz": 0, "longest": 0, "n_cols": 1, "n_rows": 1, "nnz": 7, "pattern": "planes",
  "shift": "none", "width": 16},
 "rows": 10000000, "time_s": 0.00047}
""",
    ),
]


@pytest.mark.parametrize(
    ("problem", "kernel", "name", "text"), WINNERS, ids=["dense", "sparse, under a former name"]
)
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
