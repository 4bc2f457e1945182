"""Plesio trains one PyTorch model with many workers under a consistency policy.

Layers (imports go downward only): cli > bench | report | watch > testbed > runtime | tasks > protocol > advisor > sim >
policies | cost > core. Parts that need torch are loaded at first use, so that ``import plesio`` and the command line
answer at once. The package ``plesio_planning`` plans runs; this one does not import it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from plesio.core.errors import (
    ConfigError,
    DataError,
    ExchangeError,
    PlesioError,
    PolicySpecError,
    TaskError,
    TransportError,
    WorkerLostError,
)
from plesio.core.last_words import tell_errors

if TYPE_CHECKING:
    from plesio.policies import (
        ASP,
        BSP,
        FSDP,
        SSP,
        Adaptive,
        Delayed,
        DiLoCo,
        Hierarchical,
        LocalSGD,
        Policy,
        PostLocalSGD,
        Switch,
        TorchHook,
        parse_policy,
    )
    from plesio.protocol.figures import RunInfo
    from plesio.runtime.grid.join_grid import grid
    from plesio.runtime.island import island
    from plesio.runtime.job import Job
    from plesio.runtime.join import join
    from plesio.runtime.join_options import JoinOptions
    from plesio.runtime.worker.callbacks import Transition
    from plesio.runtime.worker.session import Session
    from plesio.tasks.task import Task

    __version__: str

__all__ = [
    "ASP",
    "BSP",
    "FSDP",
    "SSP",
    "Adaptive",
    "ConfigError",
    "DataError",
    "Delayed",
    "DiLoCo",
    "ExchangeError",
    "Hierarchical",
    "Job",
    "JoinOptions",
    "LocalSGD",
    "PlesioError",
    "Policy",
    "PolicySpecError",
    "PostLocalSGD",
    "RunInfo",
    "Session",
    "Switch",
    "Task",
    "TaskError",
    "TorchHook",
    "Transition",
    "TransportError",
    "WorkerLostError",
    "grid",
    "island",
    "join",
    "parse_policy",
]

_POLICIES = (
    "ASP",
    "BSP",
    "FSDP",
    "SSP",
    "Adaptive",
    "Delayed",
    "DiLoCo",
    "Hierarchical",
    "LocalSGD",
    "Policy",
    "PostLocalSGD",
    "Switch",
    "TorchHook",
    "parse_policy",
)
_LAZY = {
    "Job": "plesio.runtime.job",
    "JoinOptions": "plesio.runtime.join_options",
    "RunInfo": "plesio.protocol.figures",
    "Session": "plesio.runtime.worker.session",
    "Task": "plesio.tasks.task",
    "Transition": "plesio.runtime.worker.callbacks",
    "grid": "plesio.runtime.grid.join_grid",
    "island": "plesio.runtime.island",
    "join": "plesio.runtime.join",
} | dict.fromkeys(_POLICIES, "plesio.policies")


tell_errors()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("plesio")
    if name == "callbacks":
        return import_module("plesio.callbacks")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'plesio' has no attribute '{name}'")
