"""Measured twins: for those studies whose subject this machine has, the real thing beside the model.

A twin is a module with the name of its study and a function ``measure``. It says what it does by ``on_step``, for it
may take a minute; nothing else should run meanwhile.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from plesio.core.errors import ConfigError

if TYPE_CHECKING:
    from plesio.studies.measured import Measured

__all__ = ["TWINS", "measure_twin"]

TWINS: tuple[str, ...] = (
    "checkpointing",
    "collectives",
    "compression",
    "data-parallel",
    "determinism",
    "hierarchical",
    "local-sgd",
    "loss-scaling",
    "mixture-of-experts",
    "overlap",
    "pipeline",
    "staleness-weighting",
    "stragglers",
    "tensor-parallel",
)
"""The studies that have one."""


def measure_twin(study: str, *, on_step: Callable[[str], None]) -> "Measured":
    """Do what the study ``study`` models.

    Args:
        study: Its name.
        on_step: Is told what is being measured.

    Raises:
        ConfigError: The study has no twin.
    """
    if study not in TWINS:
        raise ConfigError(f"the study {study} has no measured twin; these have: {', '.join(TWINS)}")
    module = import_module(f"plesio.bench.twins.{study.replace('-', '_')}")
    measured: Measured = module.measure(on_step=on_step)
    return measured
