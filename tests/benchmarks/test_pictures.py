"""Pictures are functions of the results they are drawn from."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from blockvec.errors import OptionError
from tests.benchmarks.pictures.draw import Pictures, draw, of_products
from tests.benchmarks.plot import of_tables

pytest.importorskip("matplotlib")

ENVIRONMENT = {"device": "NVIDIA H200", "cores": 0, "date": "2026-11-21"}


def kernel(operation: str, M: int, N: int, dtype: str = "float64") -> dict[str, Any]:
    sizes = {"operation": operation, "dtype": dtype, "M": M, "N": N, "K": 1000}
    return sizes | {"time_s": 1.0, "fraction": 0.5 + 0.001 * M, "peers": {"cublas": 1.5}}


def solve(matrix: str, **ours: Any) -> dict[str, Any]:
    peers = {"scipy eigsh": {"time_s": 2.0, "missed": 1}, "scipy lobpcg": {"time_s": None, "note": "gave up"}}
    head = {"operation": "eigsh", "matrix": matrix, "n": 100, "k": 3, "which": "SA"}
    return head | {"time_s": 1.0, "missed": 0, "peers": peers} | ours


def blocks(matrix: str, k: int, b: int) -> dict[str, Any]:
    methods = {"lanczos": {"time_s": 1.0 / b, "operator_columns": 100 * b}, "primme": {"time_s": None}}
    return {"operation": "eigsh_blocks", "matrix": matrix, "k": k, "which": "SA", "block_size": b} | {
        "methods": methods
    }


def product(matrix: str, width: int, dtype: str, **more: Any) -> dict[str, Any]:
    return kernel("spmmv", width, width, dtype) | {"matrix": matrix, "fraction_gather": 0.9} | more


def loss(matrix: str, policy: str, width: int, kappa: float) -> dict[str, Any]:
    head = {"operation": "orthogonality", "matrix": matrix, "columns": 8, "width": width, "policy": policy}
    lost = kappa > 1e8 and policy == "PIP"
    return head | {"kappa": kappa, "loss": None if lost else 0.0, "bound": None if lost else 1e-14}


def davidson(table: str, **more: Any) -> dict[str, Any]:
    found = {"table": table, "block_size": 1, "converged": 3, "operator_columns": 90}
    return solve("bcsstk09", **found) | more


APART = {"peers": {"plain": 0.9, "separate": 1.4}}
DOCUMENTS = {
    "sparse": [
        *(product(matrix, width, dtype) for matrix in ("a", "b") for dtype in "DZ" for width in (1, 8)),
        product("a", 8, "D", **APART, dots=["xy"]),
        product("a", 8, "D", **APART, gram=["xy"]),
        product("c", 4, "D"),
    ],
    "a sparse matrix alone": [product("a", 3, "D")],
    "curves": [kernel(op, M, M, t) for op in ("tsmttsm", "spmmv") for t in "SD" for M in (31, 32, 1, 2)],
    "a single width": [kernel("gram", 4, 4)],
    "a map with holes": [kernel("tsmm", M, N) for M in (1, 2, 4) for N in (1, 2) if M != N],
    "sweeps that were cut short": [
        *(kernel(op, 64, 4) for op in ("combine_dot", "update_gram")),
        kernel("combine_dot", 64, 4) | {"dtype": "complex128"},
    ],
    "sweeps": [kernel(op, M, N) for op in ("combine_dot", "update_gram") for M in (64, 128) for N in (4, 8)],
    "losses of orthogonality": [
        loss(matrix, policy, width, kappa)
        for matrix in ("a", "b")
        for policy, width in (("PIP", 4), ("Adaptive", 4), ("SVQB", 8))
        for kappa in (1e12, 1.0, 1e4)
    ],
    "Jacobi-Davidson": [
        *(
            davidson("primme", correction=c, peers={"P": {"time_s": 1.0, "operator_columns": 80}})
            for c in ("davidson", "minres")
        ),
        davidson("primme", correction="minres", block_size=4, peers={"P": {"time_s": None}}),
        davidson("preconditioned", preconditioner="amg", peers={"lobpcg": {"time_s": None}}),
        davidson("interior", sigma=0.0, converged=2, peers={"shift-invert": {"time_s": 2.0}}),
        *(davidson("blocks", block_size=b, k=k, converged=3) for b in (2, 1) for k in (3, 5)),
    ],
    "block sizes": [blocks(matrix, k, b) for matrix, k in (("a", 5), ("a", 9), ("b", 5)) for b in (1, 4)],
    "accuracy": [
        {
            "operation": "accuracy",
            "matrix": "m",
            "value_error": 0.0,
            "residual": 0.1,
            "orthogonality": 1e-15,
            "right": r,
        }
        for r in (True, False)
    ]
    + [{"operation": "accuracy", "matrix": "m", "right": False, "refused": "M is indefinite"}],
    "solver": [solve("laplace3d:n=64"), solve("bcsstk09", time_s=None, missed=None)],
}


def document(records: list[dict[str, Any]]) -> dict[str, Any]:
    return {"environment": ENVIRONMENT, "ceilings": {}, "records": records}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_all_results_have_pictures(name: str, tmp_path: Path) -> None:
    draw(document(DOCUMENTS[name]), tmp_path / "one.svg", of_tables)
    assert (tmp_path / "one.svg").read_bytes().startswith(b"<?xml")


def test_the_same_results_give_the_same_picture(tmp_path: Path) -> None:
    for file in ("one.svg", "two.svg"):
        draw(document(DOCUMENTS["a single width"]), tmp_path / file, of_tables)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_a_picture_can_be_a_bitmap(tmp_path: Path) -> None:
    draw(document(DOCUMENTS["curves"]), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


ALONE = {"operation": "eigsh", "matrix": "A", "n": 100, "k": 3, "time_s": 1.0}  # beside no other solver


@pytest.mark.parametrize("records", [[], [{"operation": "something", "time_s": 1.0}], [ALONE]])
@pytest.mark.parametrize("pictures", [of_products, of_tables])
def test_results_that_there_is_no_picture_for_are_refused(
    records: list[dict[str, Any]], pictures: Pictures, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=r"p\.svg: these results hold no records"):
        draw(document(records), tmp_path / "p.svg", pictures)


@pytest.mark.parametrize("name", ["picture.txt", "picture"])
def test_an_unknown_ending_is_refused_with_those_that_are_known(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"\.svg, \.png or \.pdf"):
        draw(document(DOCUMENTS["curves"]), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(OptionError, match=r'pip install .*".*\[plot\].*"'):
        draw(document(DOCUMENTS["curves"]), tmp_path / "p.svg")
