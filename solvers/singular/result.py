"""The result of `svds`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blockvec.interchange import native
from blockvec.system.frozen import frozen

from ..blocks import to_host
from ..problem import IterationState, Verification, excess
from ..result import counted, history_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@frozen
class SvdResult:
    """Singular triplets, their accuracy, and how they were computed; unpacks to ``u, s, vh``.

    Attributes
    ----------
    u : array, shape (m, k), or None
        Orthonormal left singular vectors. The entry of largest magnitude of every column is positive, as by
        scikit-learn's ``svd_flip``.
    s : array, shape (k,)
        Singular values, ascending.
    vh : array, shape (k, n), or None
        Right singular vectors in its rows, conjugated.
    residuals : numpy.ndarray, shape (k,)
        The larger one of the true residual norms ||A v - s u||_2 and ||A^H u - s v||_2.
    limits : numpy.ndarray, shape (k,)
        Residual norms at which a triplet counts as converged: tol s, but at least 100 u (||A|| + s).
    converged : numpy.ndarray of bool, shape (k,)
    verification : Verification
        Whether copies of multiple values may be missing; ``verification.is_decided`` is False if so.
    info : dict
        Method and costs: ``solver`` as given, ``method`` and ``why``, ``plan``, ``stopped``,
        ``verification``, ``m``, ``n``, ``k``, ``which``, ``tol``, ``norm``, ``dtype``, ``device``,
        ``center``, ``block_size``, ``ncv``, ``stages``, ``operator_columns`` (those of A, each with one of
        A^H), ``verification_columns``, ``restarts``, ``time_s``; of ``solver="randomized"`` also ``error``, a
        bound of ||A - u s vh||_2 that holds but with the probability ``error_probability``.
    history : sequence of IterationState
        One entry per restart, with the squares of singular values, and residuals of A^H A.
    """

    u: Any
    s: Any
    vh: Any
    residuals: NDArray[np.float64]
    limits: NDArray[np.float64]
    converged: NDArray[np.bool_]
    verification: Verification
    info: dict[str, Any]
    history: Sequence[IterationState]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.u, self.s, self.vh))

    @property
    def eigenvalues(self) -> Any:
        """The singular values, under the name that `NoConvergence` has for values."""
        return self.s

    @property
    def eigenvectors(self) -> Any:
        """The right singular vectors in columns, under the name that `NoConvergence` has for vectors."""
        return None if self.vh is None else self.vh.T.conj()

    def __str__(self) -> str:
        """Format a table of values and residuals."""
        values = to_host(native(self.s))
        lines = [f"{'':>4} {'singular value':>22}  {'residual':>9}"]
        for i, value in enumerate(values.tolist()):
            flag = "" if self.converged[i] else "  not converged"
            lines.append(f"{i + 1:4d} {value:22.14g}  {self.residuals[i]:9.1e}{flag}")
        return "\n".join([*lines, self.summary()])

    def summary(self) -> str:
        """Describe the outcome in a few sentences: convergence, copies of multiple values, and costs."""
        info, count = self.info, int(self.converged.sum())
        of = f"All {count}" if count == info["k"] else f"{count} of {info['k']}"
        copies = "complete" if self.verification.is_decided else "not verified"
        columns = counted(info["operator_columns"], "operator column")
        return (
            f"{of} converged ({info['method']}: {info['why']}). Multiplicities {copies} "
            f"({info['verification']}). {columns}, {counted(info['restarts'], 'restart')}, "
            f"{info['time_s']:.3g} s."
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the largest residual of A^H A relative to its limit over the operator columns.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Default: those of a new figure.

        Raises
        ------
        OptionError
            If there is no history, as after dense LAPACK.
        """
        ax = history_axes(self, ax)
        columns = [state.operator_columns for state in self.history]
        worst = [float(excess(state.residuals, state.limits).max()) for state in self.history]
        ax.semilogy(columns, np.maximum(worst, 1e-4), ".-")
        ax.set_ylabel("largest residual estimate / limit")
        return ax
