"""Kernels that belong to no family compile without spills; for the others see `test_families`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from blockvec.backends.cuda.probes import FMA, HOLD, TENSOR, cache_probe, read_probe
from blockvec.kernels.build import compile_source
from blockvec.kernels.elementwise import fill_kernel, inverse_factor_kernel, within_kernel
from blockvec.kernels.sparse import codes, pieces
from blockvec.kernels.steps import STATIC_BYTES, KrylovStepsKernel, RecurrenceKernel
from tests.blockvec.kernels import test_elementwise, test_krylov_steps, test_recurrence, test_rows
from tests.devices import H200, needs_compiler, resources_of
from tests.emulator.host import sampled

DTYPES = ("float32", "float64", "complex64", "complex128")
ANY = 255, 48 << 10  # registers and bytes of shared memory
THREE_BLOCKS = 85, 48 << 10  # of 256 threads on a multiprocessor


def sources() -> Iterator[Any]:
    """Yield sources of kernels, each with an architecture and what it may take."""
    for kernel in (
        *(*test_elementwise.KERNELS[::16], read_probe(8), cache_probe(8), FMA, TENSOR, HOLD),
        # Cosines have a stack frame, for arguments of any size.
        *(test_rows.kernel_of(name) for name in test_rows.FUNCTIONS if name != "normal"),
        *map(fill_kernel, ("float64", "float32")),
        *(within_kernel("int32"), *(inverse_factor_kernel(dtype, 8) for dtype in DTYPES)),
    ):
        for architecture, marks in (("sm_90", ()), ("sm_80", pytest.mark.slow)):
            yield pytest.param(kernel.source(), architecture, THREE_BLOCKS, marks=marks)
    of_rows = {f"codes {dtype}": codes.kernel_of(dtype) for dtype in DTYPES}
    for name in pieces.KERNELS:
        of_rows |= {f"{name} {index}": pieces.kernel_of(name, index) for index in ("int32", "int64")}
    for name, kernel in of_rows.items():
        for architecture in ("sm_80", "sm_90"):
            yield pytest.param(kernel.source(), architecture, ANY, id=f"{name} {architecture}")
    for case in sampled(test_krylov_steps.KERNELS):
        source = KrylovStepsKernel(*case.values, piece=16).kernel(H200).source()
        yield pytest.param(source, "sm_90", (255, STATIC_BYTES), id=f"steps {case.values}", marks=case.marks)
    for case in sampled(test_recurrence.KERNELS):
        for lanczos in (False, True):
            if (steps := RecurrenceKernel(*case.values, lanczos)).fits:
                source = steps.kernel().source()
                yield pytest.param(source, "sm_90", ANY, id=f"recurrence {case}", marks=case.marks)


@needs_compiler
@pytest.mark.parametrize(("source", "architecture", "limits"), list(sources()))
def test_kernels_compile_without_spills(source: str, architecture: str, limits: tuple[int, int]) -> None:
    used = resources_of(compile_source(source, architecture).log)
    assert (used.spill_bytes, used.stack_bytes) == (0, 0)
    assert 0 < used.registers <= limits[0]
    assert used.shared_bytes <= limits[1]
