"""A results folder, and the page built from it.

DIR/results.json                        what was measured
DIR/runs/<policy>-seed<seed>/           one run: trace-<worker>.jsonl, from them perfetto.json
DIR/report.html                         the page
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from plesio.core.errors import DataError
from plesio.core.files import write_whole
from plesio.core.results import read_results
from plesio.report.grid_stages import RunStages, read_stages
from plesio.report.model import Comparison
from plesio.report.operation import Operation, read_operation
from plesio.report.page import TraceLink, render_page
from plesio.report.perfetto import PERFETTO_NAME, trace_paths, write_perfetto
from plesio.report.summarise import compare_runs
from plesio.report.timelines import Window, read_window
from plesio.report.utilisation import RunUtilisation, read_utilisation

__all__ = ["REPORT_NAME", "RESULTS_NAME", "build_report", "read_comparison", "read_operations"]

_T = TypeVar("_T", Window, RunUtilisation, Operation, RunStages)

REPORT_NAME = "report.html"
RESULTS_NAME = "results.json"


def read_comparison(directory: Path) -> Comparison:
    """The comparison in ``directory/results.json``.

    Raises:
        DataError: The file is missing, holds no runs or is garbled, or its runs cannot be compared.
    """
    path = directory / RESULTS_NAME
    runs = read_results(path)
    try:
        return compare_runs(runs)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def build_report(directory: Path) -> Path:
    """Write ``directory/report.html``, and each run's ``perfetto.json`` where its traces are newer.

    A trace that cannot be read is named in the page and stops nothing.

    Returns:
        The page.

    Raises:
        DataError: The results are missing, empty or garbled, or cannot be compared; or the page cannot be written.
    """
    comparison = read_comparison(directory)
    page = render_page(
        comparison,
        traces=_trace_links(directory),
        windows=_of_policies(read_window, directory, comparison),
        utilisations=_of_policies(read_utilisation, directory, comparison),
        operations=read_operations(directory, comparison),
        stages=_of_policies(read_stages, directory, comparison),
    )
    path = directory / REPORT_NAME
    write_whole(path, page)
    return path


def read_operations(directory: Path, comparison: Comparison) -> list[Operation]:
    """How the first run of each policy went from step to step; without those whose traces cannot be read.

    A run's own trace folder has one run, whose traces are beside its results.
    """
    found = _of_policies(read_operation, directory, comparison)
    with contextlib.suppress(DataError):
        own = None if found or not trace_paths(directory) else read_operation(directory)
        found += [] if own is None else [own]
    return found


def _trace_links(directory: Path) -> list[TraceLink]:
    folders = [folder for folder in sorted((directory / "runs").glob("*")) if trace_paths(folder)]
    return [_trace_link(folder, directory=directory) for folder in folders]


def _of_policies(read: Callable[[Path], _T | None], directory: Path, comparison: Comparison) -> list[_T]:
    """Read the first run of each policy, in their order; where a trace cannot be read, its link says so."""
    found: dict[str, _T] = {}
    for folder in sorted((directory / "runs").glob("*")):
        with contextlib.suppress(DataError):
            one = read(folder)
            if one is not None:
                found.setdefault(one.policy, one)
    return [found[summary.policy] for summary in comparison.policies if summary.policy in found]


def _trace_link(folder: Path, *, directory: Path) -> TraceLink:
    path = folder / PERFETTO_NAME
    try:
        if not path.exists() or path.stat().st_mtime_ns < max(
            trace.stat().st_mtime_ns for trace in trace_paths(folder)
        ):
            write_perfetto(folder)
    except DataError as error:
        return TraceLink(name=folder.name, href=None, problem=str(error))
    return TraceLink(name=folder.name, href=quote(path.relative_to(directory).as_posix()))
