"""Checkpoints that an earlier version wrote are refused for their version, and stay as they are.

The contents below are literal copies, so that a change of a name, a field or a hash shows here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec.errors import FormatError
from solvers import eigsh

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
blockvec checkpoint 3
block_size blockvec columns of orthogonal_to columns of v0 convergence correction degree dtype inner_steps k
method min_basis n ncv norm preconditioner rng rounding sigma tol unit verify which
counts defect degree elapsed_s filter_calls history krylov_norm least m missing most norm rng
search_width verification verification_text w
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
