"""How large benchmarks are."""

from __future__ import annotations

import pytest

DEFAULT_ROWS = 2000  # also where this file is found too late for its option


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--benchmark-rows", type=int, default=DEFAULT_ROWS, metavar="N", help="rows of a block")


@pytest.fixture
def rows(request: pytest.FixtureRequest) -> int:
    """Rows of a block."""
    count: int = request.config.getoption("--benchmark-rows", DEFAULT_ROWS)
    return count
