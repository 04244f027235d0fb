"""Backends: the block operations on one kind of device each."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

import numpy as np

from ..errors import DeviceError
from .base import Array as Array
from .base import Backend as Backend
from .base import Candidate as Candidate
from .base import DeviceArray as DeviceArray
from .base import is_cupy as is_cupy
from .host.backend import HOST
from .host.threads import run_in_threads as run_in_threads
from .host.threads import single_threaded_blas as single_threaded_blas


def backend_of(array: Array) -> Backend:
    """Look up the backend of the device that holds an array."""
    if isinstance(array, np.ndarray) or not is_cupy(array):
        return HOST
    memory: Any = array.data  # CuPy's, not NumPy's memoryview
    return _on_gpu(memory.device_id)


@functools.cache
def _on_gpu(device_id: int) -> Backend:
    from .cuda.backend import cuda_backend

    return cuda_backend(device_id)


def backend_for(device: str) -> Backend:
    """Look up the backend of a device by name: ``"cpu"``, ``"gpu"`` (the current one) or ``"cuda:1"``."""
    is_name = isinstance(device, str)  # not an array, whose comparison is one
    if is_name and device == "cpu":
        return HOST
    if is_name and (device == "gpu" or device.startswith("cuda:")):
        from .cuda.backend import cuda_backend, find_device

        return cuda_backend(find_device(device))
    raise DeviceError(f"device {device!r} is not known; give 'cpu', 'gpu' or 'cuda:0'.")


def array_namespace(array: Array) -> ModuleType:
    """Look up the module of an array: NumPy or CuPy.

    Examples
    --------
    >>> import numpy, blockvec
    >>> blockvec.array_namespace(numpy.eye(2)) is numpy
    True
    """
    return importlib.import_module("cupy") if is_cupy(array) else np
