"""Recorded operations on blocks: CUDA graphs on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from ..backends import backend_for
from ..parallel.communicator import Communicator, MpiCommunicator


class Recorder:
    """Record operations on the blocks of one device, and repeat them without the calls from Python.

    A step of an iteration is a dozen operations, and each takes some 50 us to call from Python. On a GPU that
    exceeds the time of the kernels for blocks up to about 100 MB. A recorded step takes the time of its
    kernels.

    Inside ``with recorder:`` work is queued on a stream of the recorder's own: after all work queued on
    CuPy's current stream before, and before all work queued there afterwards. On the host the context has no
    effect, and recorded operations are called again.

    Parameters
    ----------
    device : str
        ``"cpu"``, ``"gpu"`` or ``"cuda:1"``.
    comm : Communicator, optional
        If the operations communicate: that of their blocks, ``V.layout.comm``. All of its processes record
        and repeat the same operations; if one of them cannot record, all call the operations again.

    Raises
    ------
    DeviceError
        For a device that does not exist or is not known.

    Examples
    --------
    >>> import blockvec
    >>> V = blockvec.BlockVector.full(1000, 2, 1)
    >>> W = V.copy()
    >>> def step():
    ...     W.axpy(2, V).scale(0.5)
    >>> recorder = blockvec.Recorder("cpu")
    >>> with recorder:
    ...     step()
    ...     again = recorder.record(step)
    ...     again()
    >>> W.array[0].tolist()
    [1.75, 1.75]
    """

    def __init__(self, device: str, comm: Communicator | None = None) -> None:
        self._graphs, self._comm = backend_for(device).graphs(), comm

    def __enter__(self) -> Self:
        if self._graphs is not None:
            self._graphs.enter()
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._graphs is not None:
            self._graphs.leave()

    def record(self, operations: Callable[[], object]) -> Callable[[], object]:
        """Record operations; return a function that repeats them on CuPy's current stream.

        That is either the one that was current when the recorder was made, or that of the recorder inside its
        context: recordings share memory, which no two streams may use at once.
        Recording computes nothing. The operations must have run once, so that their kernels are compiled.
        They must neither read values on the host nor wait for the device, since control flow is fixed by the
        recording. Blocks that they create belong to the recording and do not outlive it. If a library call
        cannot be captured, the operations themselves are returned.
        """
        if self._graphs is None:
            return operations
        if isinstance(self._comm, MpiCommunicator):
            return self._comm.record(self._graphs.record, operations)
        return self._graphs.record(operations)
