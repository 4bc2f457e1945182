"""The output of every benchmark: median and spread, a table, a verdict, and a JSON file."""

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

__all__ = ["Spread", "print_table", "print_verdict", "save"]

RESULTS = Path(__file__).parent / "results"


class Spread(dict[str, float]):
    """Median and quartiles of repeated measurements, as JSON takes them.

    >>> Spread([1.0, 2.0, 3.0]).text(".1f")
    '2.0 (1.0 to 3.0)'
    """

    def __init__(self, values: Sequence[float]) -> None:
        low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
        super().__init__(median=median, low=low, high=high, repeats=len(values))

    def text(self, form: str, *, scale: float = 1.0) -> str:
        """``median (quartile to quartile)``, each times ``scale``."""
        median, low, high = (format(scale * self[name], form) for name in ("median", "low", "high"))
        return f"{median} ({low} to {high})"


def print_table(title: str, *, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with numbers to the right of their names."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)


def print_verdict(criterion: str, *, met: bool) -> None:
    """Print the benchmark's criterion and whether the numbers above meet it."""
    print(f"criterion: {criterion}: {'met' if met else 'NOT MET'}")


def save(name: str, *, settings: Mapping[str, Any], results: Any, met: bool) -> None:
    """Write benchmarks/results/``name``.json with the machine that it was measured on."""
    machine = {
        "cpu": _cpu_name(),
        "num_cpus": os.cpu_count(),
        "kernel": platform.release(),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = {"machine": machine, "settings": settings, "results": results, "criterion_met": met}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
