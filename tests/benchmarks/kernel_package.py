"""Build the package of compiled kernels for common solves, a wheel that pip installs; no GPU is needed.

    python -m tests.benchmarks.kernel_package --output dist [--architectures sm_90] [--list]

The kernels are those that solves on a pretended GPU ask for, for several numbers of rows and kinds of
matrices, on one device per architecture. Those that are in the cache folder are not compiled again.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import os
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockvec
import blockvec.backends.cuda.backend as cuda
from blockvec import models
from blockvec.backends import Backend
from blockvec.kernels.build import PACKAGE, PACKAGE_FORMAT, compiler_version, key_of, machine_code
from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.elementwise import inverse_factor_kernel, within_kernel
from blockvec.kernels.families import SPARSE_FAMILIES
from blockvec.kernels.family import choose
from blockvec.kernels.problem import SpmmvProblem, SweepProblem, TsmmProblem, TsmttsmProblem
from blockvec.kernels.records import packed
from blockvec.kernels.sparse import codes, pieces
from blockvec.operations import dispatch
from blockvec.system.config import options
from solvers import eigsh
from tests.devices import A100, B200, H200
from tests.pretended_cupy import CuPy
from tests.pretended_gpu import PretendedGpu, pretended_gpu

__all__ = ["pretended_backend", "requests", "sources", "wheel"]

DEVICES = (A100, H200, B200)
SOLVES: dict[str, dict[str, Sequence[Any]]] = {  # element types by method, and numbers of eigenpairs
    "lanczos": {"dtypes": ("float64", "complex128", "float32", "complex64"), "pairs": (1, 6, 10, 20)},
    "filter": {"dtypes": ("float64", "complex128", "float32"), "pairs": (1, 6, 10, 20)},
    "jd": {"dtypes": ("float64", "complex128"), "pairs": (1, 6, 10)},
}
TOLERANCES = {"float64": 1e-8, "complex128": 1e-8, "float32": 1e-4, "complex64": 1e-4}
ROWS = (1 << 12, 1 << 16, 1 << 20)
"""One number for each of `ROW_CLASSES`."""
MATRICES = (("planes", 7), ("lines", 5), ("scattered", 4), ("scattered", 8), ("uneven", 10))
"""Pattern and entries per row of the matrices that products are compiled for."""
ENTRY_TYPES = ("float32", "float64", "complex64", "complex128")
CODED_ENTRIES = 1 << 21  # of matrices whose entries may be encoded
MODEL = "laplace3d:n=12"
EPOCH = (1980, 1, 1, 0, 0, 0)  # of all members: equal kernels make equal wheels


def requests(method: str, dtype: str, pairs: Iterable[int]) -> dict[Any, None]:
    """List what solves ask for, on a pretended GPU."""
    found: dict[Any, None] = {}
    A = models.model(MODEL).astype(dtype)
    for k in pairs:
        with pretended_gpu() as watched, np.errstate(all="ignore"):
            how: dict[str, Any] = {"which": "SA", "tol": TOLERANCES[dtype], "rng": 0, "maxiter": 40}
            eigsh(A, k, method=method, device="gpu", on_unconverged="return", **how)
        found |= {request: None for solve in watched.solves for request in solve.requests}
    return found


@contextlib.contextmanager
def pretended_backend(device: DeviceInfo) -> Iterator[Backend]:
    """Provide the CUDA backend of a device that is not there; only its models choose."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", CuPy())
        yield cuda.CudaBackend(PretendedGpu(0, device))


def sources(request: Any, backend: Backend, rows: int) -> Iterator[str]:
    """Generate the sources of the kernels that a request runs, with another number of rows."""
    if isinstance(request, TsmttsmProblem | TsmmProblem | SweepProblem):
        chosen = dispatch.preferred(dataclasses.replace(request, K=rows), backend)
        if chosen is not None and chosen.name not in ("cublas", "cublas_splitk", "column_dot"):
            yield chosen.source()
    elif isinstance(request, SpmmvProblem):
        for (pattern, entries), coded in itertools.product(MATRICES, (False, True)):
            if coded and rows * entries < CODED_ENTRIES:
                continue
            extents: Any = {"n_rows": rows, "n_cols": rows, "nnz": rows * entries, "longest": entries}
            product = dataclasses.replace(request, **extents, pattern=pattern, coded=coded)
            chosen = dispatch.preferred(product, backend)
            if chosen is not None:
                family = SPARSE_FAMILIES[chosen.name]
                config = choose(family, product, backend.device)
                kernels = family.kernels(product, config, backend.device).values()
                yield from (kernel.source() for kernel in kernels)
    else:
        yield request.source()


def wanted(device: DeviceInfo, asked: Iterable[Any]) -> list[str]:
    """Generate the sources of all kernels for a device."""
    found: dict[str, None] = {}
    with pretended_backend(device) as backend:
        for request, rows in itertools.product(asked, ROWS):
            found |= dict.fromkeys(sources(request, backend, rows))
    found |= {inverse_factor_kernel(dtype, 1).source(): None for dtype in ENTRY_TYPES}
    found |= {within_kernel(dtype).source(): None for dtype in ("int32", "int64")}
    found |= {codes.kernel_of(dtype).source(): None for dtype in ENTRY_TYPES}
    of_rows = itertools.product(pieces.KERNELS, ("int32", "int64"))
    found |= {pieces.kernel_of(kernel, index).source(): None for kernel, index in of_rows}
    return list(found)


def archive(kernels: Iterable[str], architecture: str, cache_dir: Path, threads: int) -> bytes:
    """Compile sources in parallel into the archive of an architecture."""
    stream = io.BytesIO()

    def record(source: str) -> tuple[str, bytes]:
        cubin = machine_code(source, architecture, cache_dir=cache_dir)
        key = key_of(source, architecture, cubin.compiler)
        return key, packed(key, *cubin.record())

    with zipfile.ZipFile(stream, "w") as members, ThreadPoolExecutor(threads) as executor:
        for key, content in sorted(executor.map(record, kernels)):
            members.writestr(zipfile.ZipInfo(key, EPOCH), content, zipfile.ZIP_LZMA)
    return stream.getvalue()


def wheel(archives: dict[str, bytes], folder: Path) -> Path:
    """Write the wheel of the archives of some architectures."""
    compiler = compiler_version()
    name, version = f"{PACKAGE}_cu{compiler.partition('.')[0]}", blockvec.__version__
    info = f"{name}-{version}.dist-info"
    about = {"format": PACKAGE_FORMAT, "blockvec": version, "compiler": compiler}
    files = {f"{PACKAGE}/{architecture}.zip": content for architecture, content in archives.items()}
    texts = {
        f"{PACKAGE}/__init__.py": '"""Compiled kernels of blockvec."""\n',
        f"{PACKAGE}/about.json": json.dumps(about) + "\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        "Summary: Compiled CUDA kernels of blockvec\nLicense: BSD-3-Clause\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: blockvec\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    files |= {path: text.encode() for path, text in texts.items()}
    lines = [f"{path},sha256={_digest(content)},{len(content)}" for path, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"{name}-{version}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as whole:
        for member, content in files.items():
            whole.writestr(zipfile.ZipInfo(member, EPOCH), content, zipfile.ZIP_STORED)
    return path


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def main() -> int:
    """Build the wheel, or count its kernels."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [device.architecture for device in DEVICES]
    parser.add_argument("--output", type=Path, default=Path("dist"))
    parser.add_argument("--architectures", nargs="+", default=known, choices=known)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true", help="count kernels instead of compiling them")
    arguments = parser.parse_args()
    asked: dict[Any, None] = {}
    for method, solves in SOLVES.items():
        for dtype in solves["dtypes"]:
            asked |= requests(method, dtype, solves["pairs"])
            print(f"{method} {dtype}: {len(asked)} requests", flush=True)
    archives = {}
    for device in DEVICES:
        if device.architecture in arguments.architectures:
            found = wanted(device, asked)
            print(f"{device.architecture}: {len(found)} kernels", flush=True)
            if not arguments.list:
                how = (device.architecture, options().cache_dir, arguments.threads)
                archives[device.architecture] = archive(found, *how)
    if archives:
        path = wheel(archives, arguments.output)
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
