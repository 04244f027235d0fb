"""BlockVector: tall and skinny row-major matrices and the products block methods live on."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import arrays, products, sweeps
from .arithmetic import Arithmetic
from .arrays import as_rows
from .backends import Array
from .errors import OptionError, ShapeError
from .transposed import Transposed

__all__ = ["BlockVector"]


class BlockVector(Arithmetic):
    """A block of K-vectors: a K x M row-major matrix, K large and M small, on a CPU or a GPU.

    Wraps a 2-D array without copying it: C-contiguous, or a column range of a wider one (leading
    dimension ``ld >= M``). Anything with DLPack or ``__cuda_array_interface__`` is taken zero-copy.

    Parameters
    ----------
    a : array-like, shape (K, M) or (K,)
        float32, float64, complex64 or complex128. One dimension becomes one column.
    copy : bool
        Copy to contiguous row-major memory, which accepts any layout.
    dtype : dtype, optional
        Convert (with a copy) where the type differs.
    comm : communicator, optional
        An mpi4py-like communicator over which the rows are split; only inner products know about it.

    Raises
    ------
    ShapeError, DTypeError, LayoutError
        For arrays that are not two-dimensional, of another type, or not row-major.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import BlockVector
    >>> V = BlockVector(np.ones((1000, 3)))
    >>> V
    BlockVector(1000x3, float64, ld=3, cpu)
    >>> (V.T @ V)[0, 0]
    np.float64(1000.0)
    >>> V @ np.eye(3)[:, :2]
    BlockVector(1000x2, float64, ld=2, cpu)
    """

    __slots__ = ()

    @property
    def T(self) -> Transposed:
        """Marker for ``V.T @ W``; moves no data."""
        return Transposed(self, conj=False)

    @property
    def H(self) -> Transposed:
        """Marker for ``V.H @ W``, the conjugate transpose; moves no data."""
        return Transposed(self, conj=True)

    # --- products -------------------------------------------------------------------------------

    def dot(
        self, W: Any, *, conj: bool = True, alpha: complex = 1, beta: complex = 0, out: Array | None = None
    ) -> Array:
        """Return ``alpha V^H W + beta out``, or with ``V^T`` where `conj` is False (TSMTTSM).

        Parameters
        ----------
        W : BlockVector or row-major array, shape (K, N) or (K,)
            On the same device; mixed types promote as NumPy's do. A plain 1-D array gives a 1-D result.
        conj : bool
            Conjugate V.
        alpha, beta : scalar
            Factors; with ``beta=0`` `out` is never read.
        out : array, shape (M, N), optional
            Where to put the result; of the promoted type, not sharing memory with V or W.

        Returns
        -------
        array, shape (M, N)
            On the same device, not waited for.

        Raises
        ------
        ShapeError, DTypeError, DeviceError, LayoutError
            For operands that do not fit together; the message gives both values.

        References
        ----------
        Ernst, Hager, Thies, Wellein, Int. J. High Perform. Comput. Appl. 35 (2021), operation TSMTTSM.
        """
        if out is None and beta != 0:
            raise OptionError(f"dot: beta={beta!r} needs out=, the array that it multiplies.")
        vector = getattr(W, "ndim", 2) == 1
        if vector and out is not None:
            out = out[:, None] if out.ndim == 1 else out
        product = products.dot(
            self._place(), self._tall("dot", W), conj=conj, alpha=alpha, beta=beta, out=out, comm=self.comm
        )
        return product[:, 0] if vector else product

    def gram(self) -> Array:
        """Return V^H V, shape (M, M), reading V once."""
        return self.dot(self)

    def combine(
        self, C: Any, *, alpha: complex = 1, beta: complex = 0, out: BlockVector | Array | None = None
    ) -> BlockVector:
        """Return ``alpha V C + beta out`` (TSMM).

        Parameters
        ----------
        C : array, shape (M, N) or (M,)
            Small matrix on the same device.
        alpha, beta : scalar
            Factors; with ``beta=0`` `out` is never read.
        out : BlockVector or row-major array, shape (K, N), optional
            Where to put the result. It may be the leading columns of V itself (in place); any other overlap
            with V is refused.

        Returns
        -------
        BlockVector, shape (K, N)

        Raises
        ------
        ShapeError, DTypeError, DeviceError, LayoutError
            For operands that do not fit together; the message gives both values.

        References
        ----------
        Ernst, Hager, Thies, Wellein, Int. J. High Perform. Comput. Appl. 35 (2021), operation TSMM.
        """
        if out is None and beta != 0:
            raise OptionError(f"combine: beta={beta!r} needs out=, the block that it multiplies.")
        C = arrays.as_array(C)
        target = out.array if isinstance(out, BlockVector) else None if out is None else as_rows(out)
        result = products.combine(
            self._place(), C[:, None] if C.ndim == 1 else C, alpha=alpha, beta=beta, out=target
        )
        return out if isinstance(out, BlockVector) else self._wrap(result)

    def combine_dot(self, C: Any, W: Any) -> Array:
        """Set V = V C and return W^H V of the new V, reading V once.

        The first half of an orthogonalisation: C = R^-1 makes V orthonormal, then it is multiplied by the
        basis.

        Parameters
        ----------
        C : array, shape (N, N)
            Small matrix on the same device; V C must be of V's type.
        W : BlockVector or row-major array, shape (K, M)
            The basis, sharing no memory with V (other columns of one array are fine).

        Returns
        -------
        array, shape (M, N)
            On the same device, not waited for; summed over the processes of V's communicator.

        Raises
        ------
        ShapeError, DTypeError, DeviceError, LayoutError
            For operands that do not fit together; the message gives both values.

        References
        ----------
        Roehrig-Zoellner et al., SIAM J. Sci. Comput. 37 (2015) C695, section 4: kernels of one sweep.

        Examples
        --------
        >>> import numpy as np
        >>> from blockvec import BlockVector
        >>> V, W = BlockVector(np.ones((100, 1))), BlockVector(np.ones((100, 2)))
        >>> V.combine_dot(np.array([[0.5]]), W).tolist()
        [[50.0], [50.0]]
        """
        return sweeps.combine_dot(
            self.array, arrays.as_array(C), self._tall("combine_dot", W).array, comm=self.comm
        )

    def update_gram(self, W: Any, C: Any) -> Array:
        """Set V = V - W C and return V^H V of the new V, reading V once.

        The second half of an orthogonalisation: with C = W^H V, V is projected out of the basis, and its Gram
        matrix says how to make it orthonormal.

        Parameters
        ----------
        W : BlockVector or row-major array, shape (K, M)
            The basis, sharing no memory with V (other columns of one array are fine).
        C : array, shape (M, N)
            Small matrix on the same device; V - W C must be of V's type.

        Returns
        -------
        array, shape (N, N)
            Hermitian to the last bit, on the same device, not waited for; summed over the processes of V's
            communicator.

        Raises
        ------
        ShapeError, DTypeError, DeviceError, LayoutError
            For operands that do not fit together; the message gives both values.

        References
        ----------
        As for `combine_dot`.

        Examples
        --------
        >>> import numpy as np
        >>> from blockvec import BlockVector
        >>> V, W = BlockVector(np.full((100, 1), 3.0)), BlockVector(np.ones((100, 1)))
        >>> V.update_gram(W, np.array([[2.0]])).tolist()
        [[100.0]]
        """
        return sweeps.update_gram(
            self.array, self._tall("update_gram", W).array, arrays.as_array(C), comm=self.comm
        )

    def __matmul__(self, C: Any) -> BlockVector:
        if isinstance(C, BlockVector | Transposed) or not hasattr(C, "ndim"):
            return NotImplemented
        return self.combine(C)

    def __imatmul__(self, C: Any) -> BlockVector:
        n_cols = np.shape(C)[-1] if np.ndim(C) == 2 else 1
        if n_cols > self.n_cols:
            raise ShapeError(
                f"V @= C: C has {n_cols} columns but V only {self.n_cols}; write V = V @ C to widen."
            )
        return self.combine(C, out=self if n_cols == self.n_cols else self[:, :n_cols])

    def __rmatmul__(self, left: Any) -> Array:
        if getattr(left, "ndim", 0) not in (1, 2):
            return NotImplemented
        product = self._wrap(as_rows(left.T)).dot(self, conj=False)
        return product[0] if left.ndim == 1 else product
