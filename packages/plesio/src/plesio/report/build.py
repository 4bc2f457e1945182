"""A results folder, and the page built from it.

DIR/results.json                        what was measured
DIR/runs/<policy>-seed<seed>/           one run: trace-<worker>.jsonl, from them perfetto.json
DIR/report.html                         the page
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from plesio.core.errors import DataError
from plesio.core.files import write_whole
from plesio.core.results import read_results
from plesio.report.grid_stages import stages_of
from plesio.report.model import Comparison
from plesio.report.operation import Operation, operation_of, read_result
from plesio.report.page import TraceLink, render_page
from plesio.report.perfetto import PERFETTO_NAME, write_perfetto
from plesio.report.resource_charts import utilisation_of
from plesio.report.spans import RunTraces, read_traces, trace_paths
from plesio.report.summarise import compare_runs
from plesio.report.timelines import window_of

REPORT_NAME = "report.html"
RESULTS_NAME = "results.json"


def read_comparison(directory: Path) -> Comparison:
    """Read the comparison in ``directory/results.json``.

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
    runs = _first_runs(directory, comparison)
    traces = runs.values()
    page = render_page(
        comparison,
        traces=_trace_links(directory),
        windows=[window for run in traces if (window := window_of(run)) is not None],
        utilisations=[used for run in traces if (used := utilisation_of(run)) is not None],
        operations=_operations(runs, directory, comparison),
        stages=[stages for run in traces if (stages := stages_of(run)) is not None],
    )
    path = directory / REPORT_NAME
    write_whole(path, page)
    return path


def read_operations(directory: Path, comparison: Comparison) -> list[Operation]:
    """Read how the first run of each policy went from step to step; a policy without a finished run has none."""
    return _operations(_first_runs(directory, comparison), directory, comparison)


def _operations(runs: Mapping[Path, RunTraces], directory: Path, comparison: Comparison) -> list[Operation]:
    """Tell how runs went whose traces can be read; a run's own trace folder has its traces beside its results."""
    finished = {summary.policy for summary in comparison.policies if summary.seeds}
    found = []
    for folder, run in runs.items() or [(directory, None)]:
        with contextlib.suppress(DataError):
            one = operation_of(run or read_traces(folder), read_result(folder))
            found += [] if one is None or one.policy not in finished else [one]
    return found


def _first_runs(directory: Path, comparison: Comparison) -> dict[Path, RunTraces]:
    """Read the first run of each policy by its folder; where a trace cannot be read, its link says so."""
    found: dict[str, tuple[Path, RunTraces]] = {}
    for folder in sorted((directory / "runs").glob("*")):
        with contextlib.suppress(DataError):
            run = read_traces(folder)
            if run.by_worker:
                found.setdefault(run.policy, (folder, run))
    return dict(found[summary.policy] for summary in comparison.policies if summary.policy in found)


def _trace_links(directory: Path) -> list[TraceLink]:
    folders = [folder for folder in sorted((directory / "runs").glob("*")) if trace_paths(folder)]
    return [_trace_link(folder, directory=directory) for folder in folders]


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
