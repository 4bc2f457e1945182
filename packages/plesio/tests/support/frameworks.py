"""Parts that the tests of other frameworks' loops have in common."""

import functools
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from plesio.core.errors import ConfigError
from support.processes import on_processes

POLICIES = ["bsp", "ssp:2", "local_sgd:4"]
LIMIT_S = 400.0
"""A worker imports the framework, half a minute on a busy machine, and does all parts of its job."""
RAY_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # it would write a token into the user's home
    "RAY_worker_niceness": "0",  # at Ray's own 15 workers starve beside other tests
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "OMP_NUM_THREADS": "1",
}
"""Variables of a Ray cluster in a test."""


Part = tuple[str, Mapping[str, Any]]
"""A function of a program, and its arguments."""


def by_part(program: Path, part_of: Callable[[str], Part], *, together: tuple[str, ...]) -> Callable[[str], list[Any]]:
    """Ask two workers for parts of a program, each once; those ``together`` are of one job: an import takes seconds."""

    @functools.cache
    def job_of(names: tuple[str, ...]) -> list[dict[str, Any]]:
        parts = {name: part_of(name) for name in names}
        return on_processes(2, __file__, "called", limit_s=LIMIT_S, program=program, parts=parts)

    return lambda name: [worker[name] for worker in job_of(together if name in together else (name,))]


def called(*, program: Path, parts: Mapping[str, Part]) -> dict[str, Any]:
    """Do one worker's share."""
    spec = importlib.util.spec_from_file_location(program.stem, program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: getattr(module, function)(**arguments) for name, (function, arguments) in parts.items()}


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
