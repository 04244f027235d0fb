"""Every test here runs on every backend: the properties of a block do not depend on where it lives."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from blockvec.backends import backend_for
from blockvec.config import options
from blockvec.kernels.cache import store_json


@pytest.fixture(scope="module", params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Name of a device."""
    return str(request.param)


@pytest.fixture(scope="module")
def backend(device: str) -> Any:
    """The backend behind a device's name."""
    return backend_for(device)


@pytest.fixture
def known_ceilings(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings on record, so that a test of profiles need not measure any."""
    record = {
        "read_gb_s": 10.0,
        "write_gb_s": 8.0,
        "copy_gb_s": 9.0,
        "gflop_s": {"float64": 50.0, "float32": 99.0},
        "l2_gb_s": 20.0,
        "mixed_gb_s": [],
    }
    profile = importlib.import_module("blockvec.profile")  # the package's own name is the function's
    monkeypatch.setattr(profile, "_known_ceilings", {})
    path = options().cache_dir / "ceilings" / f"{backend.device.fingerprint}.json"
    assert store_json(path, {"ceilings": record})
