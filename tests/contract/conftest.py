"""Every test here runs on every backend: the properties of a block do not depend on where it lives."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from blockvec.backends import backend_for
from blockvec.system.config import options, set_default_options
from tests.contract.blocks import CEILINGS


@pytest.fixture(scope="module")
def backend(device: str) -> Any:
    """The backend behind a device's name."""
    return backend_for(device)


@pytest.fixture
def known_ceilings(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings on record, so that a test of profiles need not measure any."""
    profile = importlib.import_module("blockvec.operations.profile")
    monkeypatch.setitem(profile.known_ceilings, backend.device.fingerprint, CEILINGS)


@pytest.fixture(scope="module", params=["never", "always"])
def jit(request: pytest.FixtureRequest, device: str) -> Iterator[None]:
    """Sparse products of the host by SciPy's kernels and by compiled ones."""
    if request.param == "always":
        if device != "cpu":
            pytest.skip("only kernels of the host are compiled by LLVM")
        pytest.importorskip("llvmlite")
    before = options().jit
    set_default_options(jit=request.param)
    yield
    set_default_options(jit=before)
