"""Every test here runs on every backend: the properties of a block do not depend on where it lives."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from blockvec.backends import backend_for
from blockvec.kernels.roofline import Ceilings


@pytest.fixture(scope="module")
def backend(device: str) -> Any:
    """The backend behind a device's name."""
    return backend_for(device)


@pytest.fixture
def known_ceilings(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings on record, so that a test of profiles need not measure any."""
    known = Ceilings(10.0, 8.0, 9.0, {"float64": 50.0, "float32": 99.0}, 20.0)
    profile = importlib.import_module("blockvec.profile")  # the package's own name is the function's
    monkeypatch.setitem(profile.known_ceilings, backend.device.fingerprint, known)
