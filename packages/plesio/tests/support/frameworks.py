"""Parts that the tests of other frameworks' loops have in common."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from plesio.core.errors import ConfigError

__all__ = ["LIMIT_S", "POLICIES", "RAY_QUIET", "is_one_model", "lines_of"]

POLICIES = ["bsp", "ssp:2", "local_sgd:4"]
LIMIT_S = 280.0
"""A worker imports the framework: half a minute on a busy machine."""
RAY_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # it would write a token into the user's home
    "RAY_worker_niceness": "0",  # at Ray's own 15 workers starve beside other tests
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "OMP_NUM_THREADS": "1",
}
"""Variables of a Ray cluster in a test."""


def is_one_model(found: list[dict[str, Any]]) -> None:
    """Check that all workers have evaluated one model after every epoch, and have it at the end."""
    first, second = found
    assert first["values"] == second["values"]
    assert first["losses"] == second["losses"]
    assert first["after"] == pytest.approx(first["losses"][-1], rel=1e-4), "the last evaluation had the final model"
    assert first["losses"][-1] < first["losses"][0]


def lines_of(asked: Mapping[str, Callable[[], Any]]) -> dict[str, str]:
    """Ask for what cannot be, and return what is said to each."""
    found = {}
    for name, ask in asked.items():
        try:
            ask()
        except ConfigError as error:
            found[name] = str(error)
    return found
