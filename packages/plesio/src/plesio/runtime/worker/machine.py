"""The machine a run takes place on, as its results record it."""

import functools
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import numpy as np
import psutil
import torch

from plesio.core.results import Environment


@functools.cache
def environment() -> Environment:
    return Environment(
        plesio=version("plesio"),
        python=platform.python_version(),
        torch=torch.__version__,
        numpy=np.__version__,
        platform=platform.platform(),
        cpu=_cpu_name(),
        num_cpus=psutil.cpu_count() or 1,
        commit=_commit(),
    )


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Commit of the checkout that Plesio runs from; None when it is installed."""
    folder = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
