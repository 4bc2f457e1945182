"""The harness of the benchmarks: medians and means with their spread, Markdown tables, verdicts, and a JSON file."""

import json
import math
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


class Spread(dict[str, float]):
    """Median and quartiles of repeated measurements, as JSON takes them.

    >>> Spread([1.0, 2.0, 3.0]).text(".1f")
    '2.0 (1.0 to 3.0)'
    """

    def __init__(self, values: Sequence[float]) -> None:
        low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
        low, high = max(low, min(values)), min(high, max(values))  # of two values the quartiles would lie beyond them
        super().__init__(median=median, low=low, high=high, repeats=len(values))

    def text(self, form: str, *, scale: float = 1.0) -> str:
        """``median (quartile to quartile)``, each times ``scale``."""
        median, low, high = (format(scale * self[name], form) for name in ("median", "low", "high"))
        return f"{median} ({low} to {high})"


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error; NaN where a value is not finite, and the error of one value is NaN."""
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error


def with_error(mean: float, error: float, form: str) -> str:
    """``mean ± error``; the mean alone where the error is NaN.

    >>> with_error(1.5, 0.25, "+.1f"), with_error(1.5, math.nan, "+.1f")
    ('+1.5 ± 0.2', '+1.5')
    """
    return f"{mean:{form}}" if math.isnan(error) else f"{mean:{form}} ± {error:{form.lstrip('+')}}"


def plus_minus(values: Sequence[float], form: str = ".2f") -> str:
    """``mean ± standard error``; of values that are not all finite, how many are."""
    num_finite = sum(map(math.isfinite, values))
    if num_finite < len(values):
        return f"{num_finite} of {len(values)}"
    return with_error(*mean_and_error(values), form)


def table_text(*, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with numbers to the right of their names."""
    marks = [":--", *["--:"] * (len(columns) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, marks, *rows))


def print_table(title: str, *, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table below its title."""
    lines = [title, ""] if title else []
    print("\n".join(["", *lines, table_text(columns=columns, rows=rows), ""]), flush=True)


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
