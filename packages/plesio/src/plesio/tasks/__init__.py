"""Tasks: a model with its data, loss, metric and optimizer, ready for any harness.

Importing this package does not import torch; `Task`, `Chain` and `check_task` do so when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from plesio.tasks.load import TASK_NAMES, load_task

if TYPE_CHECKING:
    from plesio.tasks.chain import Chain
    from plesio.tasks.check import check_task
    from plesio.tasks.task import Task

__all__ = ["TASK_NAMES", "Chain", "Task", "check_task", "load_task"]

_PLACES = {"Chain": "chain", "Task": "task", "check_task": "check"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
