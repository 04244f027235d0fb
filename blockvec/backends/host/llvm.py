"""Compilation of functions in LLVM's intermediate representation, by the optional package llvmlite.

A function takes about 4 ms to compile, and the first one another 25 ms, to load LLVM; nothing is stored on
disk. The text is compiled as it is, without LLVM's optimisation passes, for the processor of this computer.
Compiled functions release the interpreter lock.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ...system.installation import install_command

OLDEST = 20  # the version of LLVM, in llvmlite 0.45: all pointers are of one type
NAME = "kernel"  # of the function in every source

_lock = threading.Lock()
_engines: list[Any] = []  # they own the machine code


@functools.cache
def machine() -> tuple[Any, str, bool]:
    """Load LLVM; return its target machine, a description, and whether there are 32 registers of 64 bytes."""
    import llvmlite.binding as llvm

    if llvm.llvm_version_info[0] < OLDEST:
        raise ImportError(f"llvmlite has LLVM {llvm.llvm_version_info[0]}, at least {OLDEST} is needed")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    try:
        features = llvm.get_host_cpu_features().flatten()
    except RuntimeError:  # LLVM does not tell on some processors
        features = ""
    processor = llvm.get_host_cpu_name()
    target = llvm.Target.from_default_triple()
    made = target.create_target_machine(cpu=processor, features=features, opt=3)
    version = ".".join(map(str, llvm.llvm_version_info))
    return made, f"LLVM {version} for {processor}", "+avx512f" in features.split(",")


@functools.cache
def missing() -> str:
    """Return the reason why nothing can be compiled; empty if it can."""
    try:
        machine()
    except (ImportError, OSError, RuntimeError) as error:
        return f"no compiler ({error}): {install_command('jit')}"
    return ""


def describe() -> str:
    """Name the version of LLVM and the processor it compiles for."""
    return machine()[1]


def load(source: str, types: Sequence[Any]) -> Callable[..., None]:
    """Compile the function `NAME` of a source; `types` are those of its arguments, of ctypes."""
    import llvmlite.binding as llvm

    target = machine()[0]
    with _lock:
        module = llvm.parse_assembly(source)
        module.verify()
        engine = llvm.create_mcjit_compiler(module, target)
        engine.finalize_object()
        _engines.append(engine)
    return ctypes.CFUNCTYPE(None, *types)(engine.get_function_address(NAME))
