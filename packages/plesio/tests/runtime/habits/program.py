"""Runs in the processes of `test_habits`: all habits, or some, under one policy."""

import importlib
from collections.abc import Sequence

from runtime.habits.table import Outcome, run_all

for part in ("data", "models", "loops", "optimizers"):
    importlib.import_module(f"runtime.habits.{part}")


def run(*, policy: str, names: Sequence[str]) -> dict[str, Outcome]:
    return run_all(policy=policy, names=names)
