"""Results of a solve, whether one may be the answer of a call, and the exceptions that say why not."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence

from blockvec import BlockVector, array_namespace
from blockvec.errors import BlockvecError, OptionError
from blockvec.interchange import native
from blockvec.system.frozen import frozen

from .blocks import Block, RealArray, columns_of, to_host
from .problem import (
    SAME_VALUE,
    Counts,
    IterationOptions,
    IterationState,
    Problem,
    Stop,
    Verification,
    Verify,
    excess,
)
from .runtime.processes import delivered
from .small_matrices import clusters

if TYPE_CHECKING:
    from matplotlib.axes import Axes


HEADER = "", "eigenvalue", "residual", "/ limit", "copies"
DECIDED = {Verification.PROVED: " (proved)", Verification.SEARCHED: " (checked)", Verification.NOT_NEEDED: ""}


def counted(number: int, noun: str) -> str:
    """Write a number with a noun in singular or plural."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def not_symmetric(asymmetry: Mapping[str, float]) -> str:
    """Describe matrices that are not Hermitian to rounding, with the remedy."""
    sizes = " and ".join(f"{name} differs from {name}^H by {size:.1e}" for name, size in asymmetry.items())
    names = " and ".join(f"({name} + {name}.conj().T) / 2" for name in asymmetry)
    return (
        f"{sizes} of its size, which is more than rounding and than what was asked for; pass {names}, or tol "
        f"above {2 * max(asymmetry.values()):.0e}"
    )


def described(problem: Problem, counts: Counts, **entries: Any) -> dict[str, Any]:
    """Describe a solve: its problem, its costs, and further entries or other ones."""
    info = {
        "n": problem.n,
        "k": problem.k,
        "which": problem.which,
        "sigma": problem.target,
        "interval": None,
        "counted": None,
        "count_error": None,
        "tol": problem.tolerance.tol,
        "convergence": problem.tolerance.convergence,
        "dtype": problem.operator.dtype.name,
        "device": problem.operator.device,
        **{name: getattr(counts, name) for name in Counts.__slots__},
        "time_s": time.perf_counter() - problem.begin_s,
    }
    return info | entries


@frozen
class EigenResult:
    """Eigenpairs, their accuracy, and how they were computed.

    Attributes
    ----------
    eigenvalues : array, shape (k,)
        Ascending, on the device of the matrix; the argument `like` of `eigsh` selects the kind of array.
    eigenvectors : array, shape (n, k), or None
        Orthonormal columns in the same order, of the same kind. If rows are split over processes, a
        `BlockVector` with this process's rows.
    residuals : numpy.ndarray, shape (k,)
        True residual norms ||A x - theta x||_2.
    limits : numpy.ndarray, shape (k,)
        Residual norms at which a pair counts as converged.
    converged : numpy.ndarray of bool, shape (k,)
    verification : Verification
        Whether copies of multiple eigenvalues may be missing; ``verification.is_decided`` is False if so.
    info : dict
        How the pairs were computed: the ``plan``, and as plain values ``method`` and ``why``, ``stopped``;
        ``verification`` in words, for display; ``block_size`` and ``ncv``, None for dense LAPACK; ``degree``
        of the highest polynomial of A. Costs: ``operator_columns`` that A was applied to, of which
        ``verification_columns`` only served to look for missed eigenvalues and ``single_columns`` were in
        single precision; ``block_applications``, ``preconditioner_columns``, ``restarts``; ``reductions``,
        the inner products over the tall dimension; ``time_s``. The problem: ``n``, ``k``, ``dtype``,
        ``device``, ``tol``, ``convergence``; ``norm`` of A, given or estimated; ``which``, ``sigma`` and
        ``mode`` as they were given. ``missing`` vectors are wanted, known to exist and not computed. Of an
        ``interval``, whose infinite ends are None: ``counted``, the number of its eigenvalues, counted apart
        from their computation, with the standard error ``count_error``, 0 for a proof. ``asymmetry`` of A and
        M, ``||(A - A^H) z|| / ||A z||`` for a random z, where it is more than rounding. With rows in several
        ``processes`` those in rank order, each with its ``device``, ``transport``, ``rows``, ``entries``,
        ``halo_rows`` that a product needs of others, ``products``, ``reductions`` and ``bytes_sent``, and on
        the host's clock ``product_s``, ``exchange_s`` and ``reduction_s``, the times of products and those
        that halos and sums took, including the time for slower processes; ``gpu_s`` are estimates of these
        times on a GPU.
    history : sequence of IterationState
        One entry per restart.
    """

    eigenvalues: Any
    eigenvectors: Any
    residuals: NDArray[np.float64]
    limits: NDArray[np.float64]
    converged: NDArray[np.bool_]
    verification: Verification
    info: dict[str, Any]
    history: Sequence[IterationState]

    @classmethod
    def from_pairs(
        cls,
        theta: RealArray,
        X: Any,
        residuals: RealArray,
        limits: RealArray,
        verification: Verification,
        info: dict[str, Any],
        history: Sequence[IterationState] = (),
    ) -> EigenResult:
        """Form a result from values, residuals and limits on the host, and vectors on the device of A."""
        rows = X.array if isinstance(X, BlockVector) else X
        values = array_namespace(rows).asarray(theta.astype(rows.real.dtype))
        return cls(values, X, residuals, limits, residuals <= limits, verification, info, history)

    def with_info(self, *, history: Sequence[IterationState] | None = None, **entries: Any) -> EigenResult:
        """Replace entries of `info`, and the history if given."""
        return replace(self, info=self.info | entries, history=self.history if history is None else history)

    def with_more_columns(self, columns: int, applications: int) -> EigenResult:
        """Add products that were computed beside the solve."""
        return self.with_info(
            operator_columns=self.info["operator_columns"] + columns,
            block_applications=self.info["block_applications"] + applications,
        )

    def part(self, which: slice | NDArray[np.intp]) -> EigenResult:
        """Return some of the pairs."""
        X, values = self.eigenvectors, self.eigenvalues
        vectors = X[:, which] if isinstance(which, slice) else columns_of(X, which)
        values = array_namespace(values).asarray(to_host(values)[which])
        accuracy = {name: getattr(self, name)[which] for name in ("residuals", "limits", "converged")}
        return replace(self, eigenvalues=values, eigenvectors=vectors, **accuracy)

    @property
    def multiplicities(self) -> list[tuple[float, int]]:
        """Distinct eigenvalues, each with its number of computed copies.

        Values count as copies of one where they agree to what the tolerance resolves.
        """
        values, groups = self._groups()
        return [(float(values[begin]), end - begin) for begin, end in groups]

    def _groups(self) -> tuple[RealArray, list[tuple[int, int]]]:
        """Return the values on the host, and the ranges of the copies of each."""
        values = to_host(native(self.eigenvalues))
        return values, clusters(values.astype(np.float64), SAME_VALUE * self.limits)

    def __iter__(self) -> Iterator[Any]:
        """Yield the values and the vectors: ``w, X = result``."""
        return iter((self.eigenvalues, self.eigenvectors))

    def __repr__(self) -> str:
        info, count = self.info, int(self.converged.sum())
        worst = float(np.max(self.residuals, initial=0.0))
        return (
            f"EigenResult(k={info['k']}, converged {count}/{info['k']}, copies {self.verification.value}, "
            f"residual <= {worst:.1e}, {info['method']}, {info['time_s']:.3g} s)"
        )

    def _rows(self) -> Iterator[tuple[str, ...]]:
        """Write each pair: its number, value and residual, that relative to its limit, and its copy."""
        values, groups = self._groups()
        relative = excess(self.residuals, self.limits)
        for begin, end in groups:
            for i in range(begin, end):
                copies = f"{i - begin + 1} of {end - begin}" if end - begin > 1 else "1"
                copies = copies if self.converged[i] else "?  not converged"
                numbers = f"{values[i]:.14g}", f"{self.residuals[i]:.1e}", f"{relative[i]:.1e}"
                yield str(i + 1), *numbers, copies

    def __str__(self) -> str:
        """Format a table of values, residuals and multiplicities."""
        rows = HEADER, *self._rows()
        lines = ["{:>4} {:>22}  {:>9}  {:>9}  {:>7}".format(*row) for row in rows]
        return "\n".join([*lines, self.summary()])

    def _repr_html_(self) -> str:
        """Format the table for notebooks."""
        from html import escape

        def row(tag: str, cells: tuple[str, ...]) -> str:
            return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

        pairs = "".join(row("td", cells) for cells in self._rows())
        return f"<table>{row('th', HEADER)}{pairs}</table><p>{escape(self.summary())}</p>"

    def summary(self) -> str:
        """Describe the outcome in a few sentences: convergence, multiplicities, and costs.

        As "4 eigenvalues, all converged; no copy of a multiple eigenvalue is missing (checked). Method
        lanczos: 351 products of A with a column, 9 restarts, 0.22 s."
        """
        info, count = self.info, int(self.converged.sum())
        of = "all converged" if count == info["k"] else f"{count} converged"
        found = f"{counted(info['k'], 'eigenvalue')}, {of}" if info["k"] else "No eigenvalue found"
        if info["missing"]:
            verb = "is" if info["missing"] == 1 else "are"
            copies = f"at least {counted(info['missing'], 'wanted eigenvector')} {verb} missing"
        elif self.verification.is_decided:
            copies = f"no copy of a multiple eigenvalue is missing{DECIDED[self.verification]}"
        else:
            copies = f"copies of multiple eigenvalues may be missing (not checked: {info['verification']})"
        products = counted(info["operator_columns"], "product")
        return (
            f"{found}; {copies}. Method {info['method']}: {products} of A with "
            f"a column, {counted(info['restarts'], 'restart')}, {info['time_s']:.3g} s."
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert everything except the vectors to plain numbers, lists and text, ready for JSON."""
        arrays = {name: getattr(self, name).tolist() for name in ("residuals", "limits", "converged")}
        plan = self.info.get("plan")
        costs, shown = ("restart", "operator_columns", "time_s", "converged"), ("eigenvalues", "residuals")
        return {
            "eigenvalues": to_host(native(self.eigenvalues)).tolist(),
            **arrays,
            "verification": self.verification.value,
            "multiplicities": [list(group) for group in self.multiplicities],
            "info": self.info | ({} if plan is None else {"plan": plan.to_dict()}),
            "history": [
                {name: getattr(state, name) for name in costs}
                | {name: getattr(state, name).tolist() for name in shown}
                for state in self.history
            ],
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the residual of every wanted pair, relative to its limit, over the operator columns spent.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Default: those of a new figure.

        Raises
        ------
        OptionError
            If there is no history, as after dense LAPACK.
        """
        info = self.info
        if not self.history:
            raise OptionError(
                f"plot: method {info['method']!r} does not iterate, there is no history to draw."
            )
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots(figsize=(7, 4.5), layout="constrained")[1]
        ax.axhline(1.0, color="black", linestyle="--", linewidth=1)
        ax.set_xlabel("operator columns")
        for _, states in itertools.groupby(self.history, lambda state: len(state.residuals)):
            drawn = list(states)
            columns = [state.operator_columns for state in drawn]
            ratios = np.array([excess(state.residuals, state.limits) for state in drawn])
            ax.semilogy(columns, np.maximum(ratios, 1e-4), ".-", markersize=3, linewidth=0.8)
        ax.set_ylabel("residual estimate / limit")
        sizes = f"n = {info['n']}, block size {info['block_size']}"
        ax.set_title(f"{info['k']} eigenvalues {info['which']}, {sizes}")
        return ax


def result_of(
    problem: Problem,
    options: IterationOptions,
    theta: RealArray,
    X: Block,
    residuals: RealArray,
    limits: RealArray,
    verified: Verification,
    counts: Counts,
    history: Sequence[IterationState] = (),
    **entries: Any,
) -> EigenResult:
    """Form the result of one run, its pairs ascending; X may be a view of workspace."""
    method, why, sizes = options.method, options.why, (options.block_size, options.ncv)
    if method == "filter" and problem.method == "auto" and entries["degree"] == 1:
        method, why = "lanczos", "it was predicted to converge before a filter would pay"
    block_size, ncv = (None, None) if method == "dense" else sizes
    info = described(problem, counts, method=method, why=why, block_size=block_size, ncv=ncv, **entries)
    order = np.argsort(theta, kind="stable")
    theta, residuals, limits = theta[order], residuals[order], limits[order]
    vectors = delivered(columns_of(X.array, order), problem.operator.layout)
    states = [state.times(problem.exponent) for state in history] if problem.exponent else list(history)
    return EigenResult.from_pairs(theta, vectors, residuals, limits, verified, info, states)


class ConvergenceWarning(UserWarning):
    """Warning about pairs that did not converge."""


class SingularError(OptionError):
    """Error for a matrix that has no inverse where the problem needs one."""


class InfiniteError(OptionError):
    """Error for wanted eigenvalues that are infinite, or too large to be told from these."""


class NoConvergence(BlockvecError, ArpackNoConvergence):
    """Error for pairs that did not converge.

    Subclasses SciPy's exception, so that code written for ``scipy.sparse.linalg.eigsh`` keeps working.

    Attributes
    ----------
    eigenvalues, eigenvectors : array
        The converged pairs only.
    result : EigenResult
        All pairs, flagged.
    """

    def __init__(self, message: str, result: EigenResult) -> None:
        where = np.flatnonzero(result.converged)
        vectors: Any = None if result.eigenvectors is None else result.eigenvectors[:, where]
        values: Any = result.eigenvalues[where]
        ArpackNoConvergence.__init__(self, message, values, vectors)
        self.message = message
        self.result = result

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[type[NoConvergence], tuple[str, EigenResult]]:
        return type(self), (self.message, self.result)


class Interrupted(KeyboardInterrupt):
    """Error for Ctrl-C during a solve; `result`, an EigenResult, holds the pairs computed so far."""

    def __init__(self, message: str, result: EigenResult) -> None:
        super().__init__(message)
        self.result = result


def refuse_more(count: float, most: int | None, about: str = "") -> None:
    """Refuse an interval with more eigenvalues than wanted."""
    if most is not None and count > most:
        raise OptionError(
            f"k: got {most}, but the interval holds {about}{count:.0f} eigenvalues; leave k out to "
            "compute all of them, or give a smaller interval."
        )


# What ended a solve before all pairs had converged, and the remedy, by `info["stopped"]`.
CAUSES: dict[Stop, str] = {
    "maxiter": "after {restarts}: raise maxiter or ncv, or loosen tol",
    "time_limit": "in {time_s:.3g} s: raise time_limit",
    "callback": "when the callback stopped the iteration",
    "costly": "in {operator_columns} applications of A to a column, which took far longer than dense LAPACK "
    "does: use method='auto' or 'dense', or give maxiter",
    "stagnated": "before the residuals ceased to fall: raise ncv or block_size, give a preconditioner, or "
    "loosen tol",
    "inexact": "by an OPinv that is not accurate enough, whose solves cannot be refined, as `why` of the "
    "result tells: solve with smaller residuals, or loosen tol",
    "converged": "to their limit in working precision: loosen tol",
}
# How to decide whether copies are missing, by what ended the solve before it was; otherwise as below.
LIMITS: dict[Stop, str] = {
    "maxiter": "raise maxiter",
    "time_limit": "raise time_limit",
    "callback": "let the callback stop later",
    "costly": "use method='auto' or 'dense', or without an interval give maxiter",
}
DECIDE = "give method='dense', sigma or an interval, whose factors count eigenvalues, or another k"


def is_complete(result: EigenResult, verify: Verify) -> bool:
    """Check that all pairs have converged and, unless nobody asks for that, that no copy may be missing."""
    has_converged = int(result.converged.sum()) == result.info["k"] and not result.info["missing"]
    return has_converged and (verify == "never" or result.verification.is_decided)


def settle(result: EigenResult, verify: Verify, on_unconverged: str, transformed: str = "LM") -> None:
    """Raise or warn if a result must not, or not silently, be returned as the answer of a call.

    An interrupted solve always raises `Interrupted`, with the pairs that it has. Pairs that have not
    converged and copies that are known to be missing follow `on_unconverged`. Copies that may be missing are
    warned of, also with ``on_unconverged="return"``, since no flag of a pair tells of them; with
    ``verify="always"`` they are refused as pairs that have not converged are. `transformed` is the selection
    of transformed values, "LM" without a shift.
    """
    info, count = result.info, int(result.converged.sum())
    if info["stopped"] == "interrupted":
        message = f"interrupted: {count} of {info['k']} pairs had converged; see the exception's result."
        raise Interrupted(message, result)
    if is_complete(result, verify):
        return
    if message := doubt(result, verify):
        is_refused = verify == "always" and on_unconverged == "raise"
    else:
        message, is_refused = _unconverged(result, count, transformed), on_unconverged == "raise"
        if on_unconverged == "return":
            return
    if is_refused:
        raise NoConvergence(message, result)
    warnings.warn(message, ConvergenceWarning, stacklevel=4)


def doubt(result: EigenResult, verify: Verify) -> str:
    """Say that copies may be missing although all pairs converged, and how to decide it; or nothing."""
    info = result.info
    if is_complete(result, verify) or not is_complete(result, "never"):
        return ""
    is_skipped = result.verification is Verification.SKIPPED
    return (
        f"All {info['k']} pairs converged, but copies of multiple eigenvalues may be missing: the search for "
        f"them was {'skipped' if is_skipped else 'not decided'} ({info['verification']}). To decide it, "
        f"{LIMITS.get(info['stopped'], DECIDE)}; verify='never' does without."
    )


def _unconverged(result: EigenResult, count: int, transformed: str) -> str:
    info = result.info
    cause = CAUSES[info["stopped"]].format(**info | {"restarts": counted(info["restarts"], "restart")})
    if info["stopped"] in ("converged", "stagnated") and "asymmetry" in info:
        cause = f"to their limit: {not_symmetric(info['asymmetry'])}"
    worst = float(np.max(excess(result.residuals, result.limits), initial=0.0))
    message = (
        f"{count} of {info['k']} pairs converged {cause} (largest residual {worst:.2g} times its limit)."
    )
    if count == info["k"]:  # others are wanted more
        message = f"All {count} pairs converged."
    if info["missing"]:
        copies = "1 copy of a wanted value is" if info["missing"] == 1 else f"{info['missing']} copies are"
        message += f" At least {copies} known to be missing."
    if count == info["k"]:
        message += f" To find what is missing, {LIMITS.get(info['stopped'], DECIDE)}."
    if transformed != "LM":
        message += (
            f" With sigma, which={transformed!r} selects transformed eigenvalues, 1 / (lambda - sigma) in "
            "mode 'normal'; the values nearest to sigma are which='LM'."
        )
    return message
