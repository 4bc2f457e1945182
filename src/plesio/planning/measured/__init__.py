"""Measurements: for those studies whose subject this machine has, the real thing beside the model.

A measurement is a module with the name of its study and a function ``measure``. It reports its progress by ``on_step``,
because it may take a minute; nothing else should run meanwhile.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from plesio.core.errors import ConfigError

if TYPE_CHECKING:
    from plesio.planning.studies.measured import Measured

__all__ = ["MEASURED", "measure_study"]

MEASURED: tuple[str, ...] = (
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
"""The studies that have a measurement."""


def measure_study(study: str, *, on_step: Callable[[str], None]) -> "Measured":
    """Do what the study ``study`` models.

    Args:
        study: Its name.
        on_step: Is told what is being measured.

    Raises:
        ConfigError: The study has no measurement.
    """
    if study not in MEASURED:
        raise ConfigError(f"the study {study} has no measurement; these have: {', '.join(MEASURED)}")
    module = import_module(f"plesio.planning.measured.{study.replace('-', '_')}")
    measured: Measured = module.measure(on_step=on_step)
    return measured
