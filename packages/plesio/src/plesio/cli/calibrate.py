"""`plesio lab calibrate`: measure this machine, or read what others have measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plesio.cli.compare import warn_of_code
from plesio.cli.function_options import command_of
from plesio.cli.options import Json, Overwrite
from plesio.cli.output_files import check_output_files, write_json
from plesio.cli.terminal import console
from plesio.core.errors import ConfigError
from plesio.core.files import make_writable, write_whole
from plesio.core.units import format_bandwidth, format_bytes, format_seconds

if TYPE_CHECKING:
    from plesio.bench.recipe import TaskSection
    from plesio.core.charts import Table
    from plesio.cost.calibration import Calibration
    from plesio.cost.fit import AlphaBeta, LineFit

EXAMPLES = """\b
Examples:
  plesio lab calibrate digits --workers 4 --out calibration.json
  plesio lab calibrate recipe.toml --out calibration.json
  plesio lab calibrate my_task.py:make_task --batch-size 64 --out calibration.json
  plesio compare recipe.toml --world virtual --calibration calibration.json --out runs/predicted
  plesio lab calibrate --nccl-tests all_reduce_perf.txt
  plesio lab calibrate --kineto trace.json.gz --out steps.txt
\b
Measuring takes about a minute; let nothing else run meanwhile."""


Task = Annotated[
    str | None,
    typer.Argument(
        metavar="TASK|RECIPE",
        help="A task's name, module:attribute or file.py:attribute; or a recipe, for its task and workers.",
        show_default=False,
    ),
]
Workers = Annotated[
    int | None, typer.Option("--workers", "-n", metavar="N", help="Workers that exchange; else the recipe's, or 4.")
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Where the calibration goes; of a trace, its step times.")
]
NcclTests = Annotated[
    Path | None, typer.Option("--nccl-tests", metavar="FILE", help="Fit the output of all_reduce_perf instead.")
]
Kineto = Annotated[Path | None, typer.Option("--kineto", metavar="FILE", help="Read a PyTorch profiler trace instead.")]
SUMMARY = """Measure what predictions need to know of a machine.

Step time and memory by batch size, times of all-reduce and store by message size, with fitted lines, their confidence
intervals and residuals. Or fit links to what nccl-tests printed, or take step times from a trace.
"""


def calibrate() -> Any:
    """Measure what predictions need to know of a machine."""
    from plesio.bench.recipe import TaskSection
    from plesio.cli.recipe_options import key_option

    more = {
        "task": (Task, None),
        "workers": (Workers, None),
        "out": (Out, None),
        "nccl_tests": (NcclTests, None),
        "kineto": (Kineto, None),
        "json_file": (Json, None),
        "overwrite": (Overwrite, False),
    }
    inputs = (key_option(TaskSection, "batch_size"),)
    return command_of("plesio lab calibrate", inputs, _calibrate, summary=SUMMARY, more=more, examples=EXAMPLES)


def _calibrate(
    given: Mapping[str, int],
    *,
    task: str | None,
    workers: int | None,
    out: Path | None,
    nccl_tests: Path | None,
    kineto: Path | None,
    json_file: Path | None,
    overwrite: bool,
) -> int:
    batch_size = given.get("batch_size")
    if sum(source is not None for source in (task, nccl_tests, kineto)) != 1:
        raise ConfigError("say what to measure or read, one of them: a task, --nccl-tests FILE, --kineto FILE")
    if task is None and batch_size is not None:
        raise ConfigError("--batch-size is for measuring a task")
    if nccl_tests is not None and out is not None:
        raise ConfigError("--nccl-tests prints the lines of a cluster file, and writes none; leave out --out")
    if out is None and task is not None:
        out = Path("calibration.json")
    if out is not None:
        make_writable(out.parent, "what is found")
    check_output_files({"--out": out, "--json": json_file}, overwrite=overwrite)
    if nccl_tests is not None:
        return _show_nccl_tests(nccl_tests, json_file=json_file)
    if kineto is not None:
        return _show_kineto(kineto, out=out, json_file=json_file)
    assert task is not None
    assert out is not None

    from plesio.bench.recipe import load_recipe, make_task_section

    # a recipe brings its own workers; a task alone has as many as usual
    if task.endswith(".toml"):
        recipe = load_recipe(Path(task))
        warn_of_code(Path(task), task=recipe.task.name)
        section, count = recipe.task, workers or recipe.workers.count
        if batch_size is not None:
            section = section.model_copy(update={"batch_size": batch_size})
    else:
        section, count = make_task_section(task, batch_size=batch_size), 4 if workers is None else workers
    if count < 2:
        raise ConfigError(f"--workers {count}: write 2 or more; one alone has nobody to exchange with")
    return _measure(section, workers=count, out=out, json_file=json_file)


def _measure(section: "TaskSection", *, workers: int, out: Path, json_file: Path | None) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from plesio.bench.calibrate import NUM_MEASUREMENTS, calibrate
    from plesio.report.charts.terminal import plain_table

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("starting", total=NUM_MEASUREMENTS)
        calibration = calibrate(
            section, num_workers=workers, on_measured=lambda what: progress.update(bar, advance=1, description=what)
        )
    calibration.write(out)
    terminal = console(plain=True)
    terminal.print(plain_table(_table(calibration), num_texts=2))
    terminal.print(
        f"{calibration.num_workers} workers computing at once get the work of {calibration.cores:.2f} of "
        f"{calibration.num_cores} cores done. A step's end takes {format_seconds(calibration.step_s)}."
    )
    if calibration.all_reduce.fit.slope > 0:
        terminal.print(_links(calibration.ring))
    else:
        terminal.print("An all-reduce took as long whatever its size: no bandwidth follows from that.")
    typer.echo(f"\n{out}")
    write_json(json_file, calibration.to_json())
    return 0


def _table(calibration: "Calibration") -> "Table":
    from plesio.core.charts import Table

    lines: list[tuple[str, str, LineFit]] = [
        ("gradient", "sample", calibration.gradient.fit),
        ("all-reduce", "MB", calibration.all_reduce.fit),
        ("exchange with a server", "MB", calibration.exchange.fit),
        ("of that, worker's processor", "MB", calibration.worker.fit),
        ("of that, server's processor", "MB", calibration.server.fit),
    ]
    rows = []
    for name, unit, fit in lines:
        scale = 1e6 if unit == "MB" else 1.0
        slope = _with_interval(fit.slope * scale, (fit.slope_ci95[0] * scale, fit.slope_ci95[1] * scale))
        rows.append((name, unit, _with_interval(fit.intercept, fit.intercept_ci95), slope, _worst(fit)))
    # bytes, not seconds, so without intervals
    memory = calibration.memory.fit
    rows.append(("peak memory", "sample", format_bytes(memory.intercept), format_bytes(memory.slope), _worst(memory)))
    headers = ("measured", "by", "fixed (95 %)", "per unit (95 %)", "worst residual")
    return Table(title="", headers=headers, rows=rows)


def _worst(fit: "LineFit") -> str:
    return f"{max(fit.residuals, key=abs):+.0%}"


def _with_interval(value_s: float, ends: tuple[float, float]) -> str:
    return f"{format_seconds(value_s)} ({format_seconds(ends[0])} to {format_seconds(ends[1])})"


def _links(ring: "AlphaBeta") -> str:
    low_s, high_s = ring.latency_ci95_s
    slow, fast = ring.bytes_per_s_ci95
    return (
        f"As a ring: latency {format_seconds(ring.latency_s)} ({format_seconds(low_s)} to {format_seconds(high_s)}) "
        f"and bandwidth {format_bandwidth(ring.bytes_per_s)} ({format_bandwidth(slow)} to "
        f"{'no limit' if fast == float('inf') else format_bandwidth(fast)}) a step."
    )


def _show_nccl_tests(path: Path, *, json_file: Path | None) -> int:
    from plesio.cost.fit import alpha_beta_of_all_reduce, fit_line
    from plesio.cost.nccl_tests import read_nccl_tests

    tests = read_nccl_tests(path)
    if tests.operation not in (None, "all_reduce"):
        raise ConfigError(f"{path} is of {tests.operation}; links are fitted to all_reduce_perf")
    rows = [row for row in tests.rows if row.num_bytes > 0]
    expected = 2 * (tests.num_ranks - 1) / tests.num_ranks
    # bandwidths are printed with two decimals: of slow rows their ratio says little
    ratios = [row.bus_bytes_per_s / row.algorithm_bytes_per_s for row in rows if row.algorithm_bytes_per_s > 1e9]
    if ratios and abs(ratios[-1] / expected - 1) > 0.05:
        raise ConfigError(
            f"{path} lists {tests.num_ranks} ranks, but its busbw is {ratios[-1]:.3g} times its algbw and not "
            f"{expected:.3g} times; keep the lines of all ranks"
        )
    fit = fit_line([row.num_bytes for row in rows], [row.time_s for row in rows])
    ring = alpha_beta_of_all_reduce(fit, num_ranks=tests.num_ranks)
    typer.echo(f"{len(rows)} sizes, {tests.num_ranks} ranks{'' if tests.complete else ', not complete'}.")
    terminal = console(plain=True)
    terminal.print(_links(ring))
    for row, residual in zip(rows, fit.residuals, strict=True):
        typer.echo(f"  {format_bytes(row.num_bytes):>8}  {format_seconds(row.time_s):>8}  residual {residual:+.0%}")
    terminal.print("For a cluster file, as [local] of accelerators of one host or as [nic] between hosts:")
    typer.echo(f'latency = "{ring.latency_s * 1e6:.3g} us"\nbandwidth = "{ring.bytes_per_s / 1e9:.4g} GB/s"')
    write_json(json_file, {"rows": rows, "fit": fit, "ring": ring})
    return 0


def _show_kineto(path: Path, *, out: Path | None, json_file: Path | None) -> int:
    from collections import defaultdict

    from plesio.cost.kineto import read_kineto

    trace = read_kineto(path)
    spread = "" if trace.cv is None else f", coefficient of variation {trace.cv:.2f}"
    typer.echo(f"{len(trace.durations_s)} steps, median {format_seconds(trace.median_s)}{spread}.")
    if trace.overlap is not None:
        typer.echo(f"{trace.overlap:.0%} of the communication is behind computing.")
    if trace.num_untimed:
        typer.echo(f"{trace.num_untimed} collectives were launched whose times the trace does not hold.")
    by_kind: dict[tuple[str, int | None], list[float]] = defaultdict(list)
    for one in trace.collectives:
        by_kind[one.operation, one.num_bytes].append(one.duration_s)
    for (operation, num_bytes), durations_s in sorted(by_kind.items(), key=str):
        size = "size unknown" if num_bytes is None else format_bytes(num_bytes)
        mean_s = sum(durations_s) / len(durations_s)
        typer.echo(f"  {operation} of {size}: {len(durations_s)} times, {format_seconds(mean_s)} in the mean")
    if out is not None:
        lines = [f"# steps of {path.name}", *(f"{duration_s * 1e3:.6g} ms" for duration_s in trace.durations_s)]
        write_whole(out, "\n".join(lines) + "\n")
        typer.echo(f'For a recipe: step_time = {{ kind = "trace", path = "{out.name}" }}\n\n{out}')
    write_json(json_file, trace)
    return 0
