"""Eigenproblems of the benchmarks, and the rule by which all solvers are judged.

A solver has done its work when every pair that it returns has a true residual ||A x - theta x|| of at most
1e-8 ||A||. Copies of multiple eigenvalues that it does not return are missed against the closed form, the
reference beside the matrix file, or all that the solvers found together.
"""

from __future__ import annotations

import json
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse.linalg as sla

from blockvec import array_namespace, as_operator, models, open_matrix
from blockvec.errors import BlockvecError

from . import drawn_problems

TARGET = 1e-8  # of ||A||
ORTHONORMAL = 1e-6  # beyond, two vectors might be one
CLOSED_FORMS = ("laplace3d", "graphene")  # named by their sizes alone
MAKERS = 8  # processes that make matrices
KNOWN = 64  # eigenvalues of a closed form that are kept, of each end
KEYS: dict[str, Callable[[float], float]] = {"SA": lambda w: -w, "LA": lambda w: w, "LM": abs}


@dataclass(frozen=True)
class Task:
    """Eigenvalues to compute."""

    matrix: str
    k: int
    which: str = "SA"


@dataclass(frozen=True)
class Source:
    """A matrix on the host and the ends of its spectrum, where a formula or a file knows them."""

    matrix: Any
    spectrum: tuple[np.ndarray, np.ndarray] | None

    @classmethod
    def of(cls, name: str, folder: Path | None) -> Source:
        if drawn_problems.is_drawn(name):
            return cls(drawn_problems.matrix(name), None)
        path = folder / f"{name}.mtx" if folder else None
        return cls(open_matrix(path if path and path.exists() else name), _known_spectrum(name, folder))


@dataclass
class Run:
    """What a solver returned, and what it took; operator columns where they were counted."""

    time_s: float
    operator_columns: int | None
    values: Any
    vectors: Any
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """A run under the common rule, or none and a note that says why; `limit_s` where time ran out."""

    run: Run | None
    residual: float
    orthogonality: float
    note: str = ""
    limit_s: float | None = None

    @property
    def values(self) -> np.ndarray:
        return np.sort(self.run.values) if self.run else np.empty(0)


class Problem:
    """A matrix on its device, its norm, and its wanted eigenvalues where they are known."""

    def __init__(self, task: Task, source: Source, device: str) -> None:
        self.task, self.host = task, source.matrix
        self.n = self.host.shape[0]
        self.operator = as_operator(self.host, device=device)
        if device == "cpu":
            self.matrix: Any = self.host
        else:
            from cupyx.scipy.sparse import csr_matrix

            self.matrix = csr_matrix(self.host)
        if source.spectrum is None:
            self.norm, self.reference = _norm(self.matrix, device), None
        else:
            lowest, highest = source.spectrum
            self.norm = float(max(abs(lowest[0]), abs(highest[-1])))
            self.reference = lowest[: task.k] if task.which == "SA" else highest[-task.k :]
        wanted = [self.norm] if self.reference is None else self.reference
        self.least = float(np.abs(wanted).min())  # of the wanted values; norm where they are not known yet

    def hide_entries(self) -> None:
        """Let solvers see a linear operator in place of the matrix."""
        if array_namespace(self.matrix.data) is np:
            from scipy.sparse.linalg import LinearOperator
        else:
            from cupyx.scipy.sparse.linalg import LinearOperator
        A = self.matrix
        self.matrix = LinearOperator(A.shape, lambda x: A @ x, matmat=lambda X: A @ X, dtype=A.dtype)

    def judge(self, run: Run) -> Judged:
        """Apply the common rule to true residuals."""
        xp = array_namespace(run.vectors)
        X, theta = run.vectors, xp.asarray(run.values)
        residuals = xp.linalg.norm(self.matrix @ X - X * theta, axis=0) / xp.linalg.norm(X, axis=0)
        gram = X.conj().T @ X - xp.eye(X.shape[1])
        return Judged(run, float(residuals.max()) / self.norm, float(abs(gram).max()))


def _norm(matrix: Any, device: str) -> float:
    """Return ||A||, by the device's own library."""
    if device == "cpu":
        return float(abs(sla.eigsh(matrix, k=1, tol=1e-4, return_eigenvectors=False)[0]))
    from cupyx.scipy.sparse.linalg import eigsh

    return float(abs(eigsh(matrix, k=1, tol=1e-4, return_eigenvectors=False)[0]))


def problems(tasks: Sequence[Task], folder: Path | None, device: str) -> Iterator[Problem]:
    """Yield the problems one by one; for a GPU other processes make matrices ahead, into files."""
    names = list(dict.fromkeys(task.matrix for task in tasks))
    ahead: dict[str, Future[Path]] = {}
    pool = None
    sources: dict[str, Source | None] = {}
    with tempfile.TemporaryDirectory() as made:
        if device != "cpu" and names:
            pool = ProcessPoolExecutor(min(len(names), MAKERS), mp_context=get_context("spawn"))
            files = (Path(made, f"{i}.pickle") for i in range(len(names)))
            ahead = {name: pool.submit(_make, name, folder, next(files)) for name in names}
        try:
            for task in tasks:
                if task.matrix not in sources:
                    if device == "cpu":
                        sources.clear()  # the one before is let go
                    sources[task.matrix] = _source(task.matrix, folder, ahead)
                source = sources[task.matrix]
                if source is not None:
                    yield Problem(task, source, device)
        finally:
            if pool is not None:
                pool.shutdown(cancel_futures=True)


def _make(name: str, folder: Path | None, path: Path) -> Path:
    """Write a source to a file: received from a process, it would hold up the thread that is timed."""
    path.write_bytes(pickle.dumps(Source.of(name, folder)))
    return path


def _source(name: str, folder: Path | None, ahead: dict[str, Future[Path]]) -> Source | None:
    try:
        if not ahead:
            return Source.of(name, folder)
        source: Source = pickle.loads(ahead.pop(name).result().read_bytes())
    except (BlockvecError, OSError) as error:
        print(f"{name}: left out: {error}", file=sys.stderr)
        return None
    return source


def _known_spectrum(name: str, folder: Path | None) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the lowest and the highest eigenvalues, ascending, from a closed form or a reference file."""
    model, _, text = name.partition(":")
    numbers = [pair.partition("=")[2] for pair in text.split(",")] if model in CLOSED_FORMS else []
    sizes = [int(number) for number in numbers if number.isdigit()]
    known = bool(sizes) and len(sizes) == len(numbers)  # not of disorder
    if known and model == "laplace3d":
        values = models.spectra.laplace_eigenvalues(sizes * 3)
    elif known and model == "graphene":
        values = models.spectra.graphene_eigenvalues(*sizes)
    else:
        listed = folder / "reference_eigenvalues.json" if folder else None
        if listed and listed.exists() and name in (ends := json.loads(listed.read_text())):
            return np.array(ends[name]["lowest"]), np.array(ends[name]["highest"])
        return None
    return values[:KNOWN], values[-KNOWN:]


def missed(values: np.ndarray, wanted: np.ndarray, tolerance: float) -> int:
    """Count the wanted eigenvalues, with their copies, that values do not hold."""
    rest = list(values)
    count = 0
    for value in wanted:
        near = min(rest, key=lambda other: abs(other - value), default=None)
        if near is not None and abs(near - value) <= tolerance:
            rest.remove(near)
        else:
            count += 1
    return count


def union(found: Sequence[np.ndarray], task: Task, tolerance: float) -> np.ndarray:
    """Return the wanted end of all that was found: of each value the most copies that one solver has."""
    merged: list[float] = []
    for values in found:
        rest = merged.copy()
        for value in values:
            near = min(rest, key=lambda other: abs(other - value), default=None)
            if near is not None and abs(near - value) <= tolerance:
                rest.remove(near)
            else:
                merged.append(float(value))
    merged.sort(key=KEYS[task.which], reverse=True)
    return np.sort(merged[: task.k])
