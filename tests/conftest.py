"""Fixtures and options of all tests: the GPU, the real matrices, the profile of hypothesis."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

import blockvec
import solvers
from solvers import planning
from tests.array_libraries import LIBRARIES, Library, library

ROOT = Path(__file__).resolve().parent.parent

# A module that is imported while a test replaces a name elsewhere would keep the replacement.
for _package in (blockvec, solvers):
    for _module in pkgutil.walk_packages(_package.__path__, f"{_package.__name__}."):
        if not {"cuda", "__main__"} & set(_module.name.split(".")):
            importlib.import_module(_module.name)

hypothesis.settings.register_profile(
    "blockvec",
    derandomize=True,
    deadline=None,
    max_examples=30,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("blockvec")

_cache = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu", action="store_true", help="fail, instead of skipping, where no GPU is found")


def pytest_configure(config: pytest.Config) -> None:
    # Set before blockvec is imported and inherited by commands under test, so the user's cache is unchanged.
    # Processes that share the tests inherit it too.
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.stash[_cache] = tempfile.TemporaryDirectory(
            prefix="blockvec-tests-", ignore_cleanup_errors=True
        )  # threads may still store kernels
        os.environ["BLOCKVEC_CACHE_DIR"] = config.stash[_cache].name
        if config.getoption("numprocesses", None):  # the processes share the cores
            os.environ.setdefault("OMP_NUM_THREADS", "1")
    # A shell's background job ignores Ctrl-C, and so would the tests that press it, here and in commands.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    planning.HOST_WORK = 0  # small matrices of a GPU are those of most tests on it
    if config.getoption("--gpu") and (reason := _no_gpu()):
        raise pytest.UsageError(f"--gpu: {reason}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and (reason := _no_gpu()):
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason=reason))


def _no_gpu() -> str:
    """Reason why tests marked gpu cannot run on this machine; empty if they can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns on import if it finds no CUDA
        try:
            import cupy
        except ImportError as error:
            return f"no GPU tests: CuPy cannot be imported ({error})"
        return "" if cupy.cuda.is_available() else "no GPU tests: CuPy finds no GPU"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report each reason for skipped tests once: without a GPU pytest lists hundreds of places."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} skipped: {reason}")


@pytest.fixture(scope="module", params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Name of a device."""
    return str(request.param)


@pytest.fixture(params=LIBRARIES)
def lib(request: pytest.FixtureRequest) -> Iterator[Library]:
    """The arrays of torch, JAX, and a stand-in for torch."""
    with library(request.param) as lent:
        yield lent


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root folder."""
    return ROOT


@pytest.fixture(scope="session")
def matrices() -> Path:
    """The folder of real test matrices, with their `reference_eigenvalues.json`."""
    named = os.environ.get("BLOCKVEC_TEST_MATRICES")
    folder = Path(named) if named else ROOT.parent / "shared" / "data" / "matrices"
    if not folder.is_dir():
        pytest.skip(f"no real matrices in {folder}; BLOCKVEC_TEST_MATRICES names their folder")
    return folder


MPI_DEADLINE_S = 240
MPI_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    # Open MPI refuses root, which containers have, and binds each of two processes to one core, where kernels
    # take long to compile; versions 4 and 5 have one variable each for the latter.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}


@pytest.fixture(scope="module")
def under_mpi(root: Path) -> Callable[..., str]:
    """Run a Python program with some processes, and return its output; fail after a deadline."""
    mpiexec = shutil.which("mpiexec", path=Path(sys.executable).parent) or shutil.which("mpiexec")
    if mpiexec is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("no mpi4py or no mpiexec: pip install 'blockvec[mpi-local]' brings both")

    def run(size: int, *arguments: str, succeeds: bool = True) -> str:
        command = [mpiexec, "-n", str(size), sys.executable, *arguments]
        process = subprocess.Popen(
            command,
            cwd=root,
            env={**os.environ, **MPI_VARIABLES},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=MPI_DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"no end after {MPI_DEADLINE_S} s: {output}")
        assert (process.returncode == 0) == succeeds, output
        return output

    return run


_exit_status = pytest.StashKey[int]()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_exit_status] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Exit with the status of the tests, without unloading the kernels that were compiled for the host.

    Dozens of C++ libraries are in this process by then, and tearing them down beside the compiler's own
    library was seen to abort after every test had passed.
    """
    if _cache in config.stash:
        config.stash[_cache].cleanup()
    status = config.stash.get(_exit_status, None)
    if status is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
