"""Operations on blocks, repeated without the Python around them: CUDA graphs on a GPU.

A step of an iteration is a dozen operations, each of which takes some fifty microseconds to call from Python,
and on a GPU as long as its blocks are large: less, up to some 100 MB. A step that is recorded once and then
repeated takes the time of its kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from .backends import backend_for

__all__ = ["Recorder"]


class Recorder:
    """Repeats operations on the blocks of one device.

    Inside ``with recorder:`` work goes to a stream of the recorder's own: after everything that CuPy's
    current stream has been given before, and before everything that it is given later. On the host it is a
    context without effect, and what is recorded is called again.

    Parameters
    ----------
    device : str
        ``"cpu"``, ``"gpu"`` or ``"cuda:1"``.

    Raises
    ------
    DeviceError
        For a device that is not there or not known.

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

    def __init__(self, device: str) -> None:
        self._graphs: Any = None
        backend = backend_for(device)
        if backend.name != "cpu":
            from .backends.cuda.graphs import Graphs

            self._graphs = Graphs(backend.device_id)  # type: ignore[attr-defined]

    def __enter__(self) -> Self:
        if self._graphs is not None:
            self._graphs.enter()
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._graphs is not None:
            self._graphs.leave()

    def record(self, operations: Callable[[], object]) -> Callable[[], object]:
        """Return a function that repeats operations on the same blocks, inside the recorder's context.

        Recording computes nothing. The operations must have run once, so that their kernels are there; what
        they do is settled by now, so they neither look at values nor wait for any. Blocks that they make
        themselves are gone when they are over. Where a library's call cannot be captured, they are called
        again instead.
        """
        return operations if self._graphs is None else self._graphs.record(operations)
