"""Sparse products with blocks of small integers, framed by NaN, for kernels that run on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.problem import ALL_ROWS, SpmmvProblem, beta_class, itemsize, promote, scalar_class
from blockvec.kernels.sparse.arrays import address
from blockvec.kernels.sparse.csr_plan import Plan
from blockvec.operations.arrays import memory_of
from tests.blocks import aligned
from tests.contract.blocks import exact_values
from tests.emulator.host import HostKernel
from tests.host_rows import HostPlan
from tests.kernel_problems import coded

SCALAR_SHIFT = 3
SIMPLE: dict[str, Any] = {
    **{"alpha": 1, "beta": 0, "shift": None, "delta": None, "eta": 1, "dots": (), "gram": ()},
    **{"index": np.int32, "pitches": (0, 0), "align": 16, "line": 0, "plane": 0, "coded": False},
}


def case(
    width: int, types: str | tuple[str, str] = "float64", config: Any = None, **changes: Any
) -> dict[str, Any]:
    """Describe a product by types of matrix and block, a configuration, and what differs from `SIMPLE`."""
    pair = (types, types) if isinstance(types, str) else types
    return SIMPLE | {"width": width, "types": pair, "config": config} | changes


def planned(S: sp.csr_array, case: Mapping[str, Any]) -> HostPlan:
    """Plan the products with a matrix."""
    plan = HostPlan(S.indptr, S.indices, S.data)
    plan.line, plan.plane, plan.codes = case["line"], case["plane"], coded(plan) if case["coded"] else None
    return plan


def entries_of(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    return (plan.codes.entries, plan.codes.table) if plan.codes else (plan.indices, plan.data)


class SparseProduct:
    """Operands of Y = alpha (S - shift I) X + beta Y, Z = delta Z + eta Y, and what they must become.

    Parameters
    ----------
    S : csr_array
    case : mapping
        width; types, of which the second one is that of X; alpha, beta, shift (None, "scalar" or "column");
        delta (None: no Z) and eta; pitches, the columns beside X and beside Y; align, of bytes.
    of_problem
        Further fields of the problem.
    """

    def __init__(self, S: sp.csr_array, case: Mapping[str, Any], **of_problem: Any) -> None:
        width, dtype_x, align = case["width"], case["types"][1], case["align"]
        dtype = promote(S.dtype.name, dtype_x)
        self.alpha, self.beta, self.delta, self.eta = (case[key] for key in ("alpha", "beta", "delta", "eta"))
        self.shift = case["shift"]
        rng, (n_rows, n_cols) = np.random.default_rng(width), S.shape
        self.X, _ = aligned(exact_values(rng, (n_cols, width), dtype_x), width + case["pitches"][0], align)
        self.given_y, self.given_z = (exact_values(rng, (n_rows, width), dtype) for _ in range(2))
        self.Y, memory_y = aligned(self.given_y, width + case["pitches"][1], align)
        self.Z, memory_z = aligned(self.given_z, width, align)
        self.frames = ((self.Y, memory_y), (self.Z, memory_z))
        self.shifts = exact_values(rng, (width,), dtype) if self.shift == "column" else np.zeros(0, dtype)
        expected = S @ self.X.astype(dtype)
        if self.shift:
            expected = expected - (self.shifts if self.shift == "column" else SCALAR_SHIFT) * self.X
        self.expected = self.alpha * expected + self.beta * self.given_y
        self.problem = SpmmvProblem(
            *(n_rows, n_cols, S.nnz, width, S.dtype.name, dtype_x),
            *(self.X.strides[0] // self.X.itemsize, self.Y.strides[0] // self.Y.itemsize),
            *(S.indices.itemsize, memory_of(self.X).align, memory_of(self.Y).align),
            *(scalar_class(self.alpha), beta_class(self.beta), self.shift or "none"),
            chain="none" if self.delta is None else beta_class(self.delta),
            ldz=width,
            align_z=memory_of(self.Z).align,
            **{name: case[name] for name in ("dots", "gram", "coded")},
            **of_problem,
        )

    @property
    def readable(self) -> list[np.ndarray]:
        """What a kernel may read."""
        return [self.X, self.Y, self.Z, self.shifts]

    @property
    def writable(self) -> list[np.ndarray]:
        """What a kernel may write."""
        return [self.Y, self.Z]

    def check(self, launch: Callable[..., None], rows: tuple[int, int] = ALL_ROWS, **more: Any) -> None:
        """Start kernels on the operands; fail where a result is not exact, or a frame was written to.

        Of Z the `rows` from one up to another change.
        """
        self.Y[...] = self.given_y if self.beta else np.nan
        self.Z[...] = self.given_z if self.delta else np.nan
        launch(
            *(address(self.X), address(self.Y), self.alpha, self.beta),
            shift=SCALAR_SHIFT if self.shift == "scalar" else 0,
            shifts_ptr=address(self.shifts) if self.shift == "column" else 0,
            Z_ptr=address(self.Z),
            delta=self.delta or 0,
            eta=self.eta,
            rows=rows,
            **more,
        )
        np.testing.assert_array_equal(self.Y, self.expected.astype(self.Y.dtype))
        if self.delta is not None:
            expected = self.given_z.copy() if self.delta else np.full_like(self.Z, np.nan)
            taken = slice(*rows)
            expected[taken] = self.delta * self.given_z[taken] + self.eta * self.expected[taken]
            np.testing.assert_array_equal(self.Z, expected)
        for block, memory in self.frames:
            block[...] = np.frombuffer(b"\xff" * itemsize(block.dtype.name), block.dtype)
            assert (memory == 0xFF).all(), "a write outside the results"

    def sums(self, p: SpmmvProblem, rows: tuple[int, int]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Compute the column dots and Gram matrices over the rows from one up to another."""
        blocks = {"x": self.X[slice(*rows)], "y": self.expected[slice(*rows)]}
        dots = {kind: np.sum(blocks[kind[0]].conj() * blocks[kind[1]], axis=0) for kind in p.dots}
        dots = {kind: sums if kind == "xy" else sums.real.copy() for kind, sums in dots.items()}
        return dots, {kind: blocks[kind[0]].conj().T @ blocks[kind[1]] for kind in p.gram}

    def run(
        self,
        family: Any,
        config: Any,
        device: DeviceInfo,
        plan: Any,
        readable: Sequence[np.ndarray],
        form: Any = None,
        **changes: Any,
    ) -> dict[str, HostKernel]:
        """Run the kernels of a family on the host, again for a part of the rows if it sums; return them.

        Fail where a result is not exact. `readable` is the matrix, `changes` are of the problem.
        """
        p = replace(self.problem, **changes)
        assert family.refuse(p, config, device) is None
        dots, grams = self.sums(p, ALL_ROWS)
        found = [{kind: np.full_like(sums, np.nan) for kind, sums in each.items()} for each in (dots, grams)]
        needed = family.workspace_bytes(p, config, device, plan)
        workspace = np.full(needed // 16 + 1, np.nan, np.complex128)
        read = [*readable, *self.readable, workspace]
        written = [*self.writable, workspace, *found[0].values(), *found[1].values()]
        described = family.kernels(p, config, device, plan)
        kernels = {part: HostKernel(each.source(), read, written) for part, each in described.items()}
        more: dict[str, Any] = {}
        if needed or dots or grams:
            places = ({kind: address(sums) for kind, sums in each.items()} for each in found)
            more = dict(zip(("dots", "gram"), places, strict=True), workspace_ptr=address(workspace))
        n = p.n_rows
        for seed, rows in ((1, ALL_ROWS), (2, (n // 5, n - n // 7)))[: 2 if dots or grams else 1]:
            for part in kernels.keys() - {"totals"}:
                kernels[part].seed = seed
            self.check(family.bind(kernels, p, config, device, form or plan), rows, **more)
            for each, expected in zip(found, self.sums(p, rows), strict=True):
                for kind, sums in each.items():
                    np.testing.assert_array_equal(sums, expected[kind])
        return kernels
