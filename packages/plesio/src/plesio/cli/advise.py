"""`plesio advise`: which strategy to train with, from short runs of one's own code in the virtual world."""

import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plesio.cli.function_options import command_of
from plesio.cli.options import Arguments, Calibration, Json, Overwrite, Slow, TaskOption
from plesio.cli.output_files import prepare_pages, write_json
from plesio.cli.simulate import options_table, refuse_for_script
from plesio.cli.step_times import slow_table, step_time_table
from plesio.cli.terminal import show
from plesio.core.errors import ConfigError
from plesio.core.files import check_script, write_whole
from plesio.core.units import format_seconds, parse_seconds

if TYPE_CHECKING:
    from plesio.advisor import Advice, Question
    from plesio.bench.advise import ScriptRehearsal, TaskRehearsal
    from plesio.bench.advise_probe import Probed
    from plesio.core.inputs import Input
    from plesio.cost.calibration import Calibration as Calibrated
    from plesio.cost.cluster import Cluster

EXAMPLES = """\b
Examples:
  plesio advise digits --cluster 4x1gbe --step-time "20 ms"
  plesio advise digits --cluster 16x1gbe --slow 15:0.33 --target 0.97 --out runs/advice
  plesio advise my_task.py:spirals --cluster cluster.toml --measure 30s --json advice.json
  plesio advise train.py --cluster 2-racks --workers 8 --step-time "50 ms" -- --epochs 4
  plesio advise stdlib_lm --cluster 8x10g-cloud --calibration calibration.json --tolerance 1
  plesio advise digits --cluster 16x1gbe --failures "8 h" --price 1.20
\b
Runs your code under one strategy after another, in virtual time, for --measure seconds of
this machine; a task to its target, a script by its training loss. Without --step-time or
--calibration, a step takes as long as it does here. docs/advise.md says how it decides."""

SUMMARY = """Say which strategy to train with, and why.

Ranks policies and settings by predicted time and cost to a target, under the cluster's memory and an accuracy
tolerance, and prints the code to use. "Stay with DDP" is an answer.
"""
PAGE, RECIPE = "advice.html", "recipe.toml"
Table = dict[str, Any]

What = Annotated[
    str,
    typer.Argument(metavar="TASK|SCRIPT", help="A task's name, file.py:attribute, or a .py file.", show_default=False),
]
Measure = Annotated[str, typer.Option("--measure", metavar="TIME", help="How long this machine may run your code.")]
Tolerance = Annotated[
    float,
    typer.Option(
        "--tolerance", metavar="POINTS", help="What the final metric may be worse than bsp's: points of a share, or %."
    ),
]
Failures = Annotated[
    str | None, typer.Option("--failures", metavar="MTBF", help="Mean time until a worker fails, as in 8h.")
]
Hourly = Annotated[float | None, typer.Option("--price", metavar="X", help="What a worker costs an hour.")]
Folder = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder for advice.html and recipe.toml.")]


def advise() -> Any:
    """Say which strategy to train with, and why."""
    more = {
        "what": (What, inspect.Parameter.empty),
        "args": (Arguments, None),
        "slow": (Slow, None),
        "option": (TaskOption, None),
        "measure": (Measure, "60s"),
        "tolerance": (Tolerance, 0.5),
        "failures": (Failures, None),
        "price": (Hourly, None),
        "calibration": (Calibration, None),
        "out": (Folder, None),
        "overwrite": (Overwrite, False),
        "json_file": (Json, None),
    }
    return command_of("plesio advise", _inputs(), _advise, summary=SUMMARY, more=more, examples=EXAMPLES)


def _inputs() -> "tuple[Input, ...]":
    from plesio.bench.recipe import RunSection, TaskSection
    from plesio.bench.recipe_workers import WorkersSection
    from plesio.cli.recipe_options import key_option

    return (
        replace(
            key_option(WorkersSection, "cluster", metavar="NAME|FILE"),
            help="Hosts, links and memory: a cluster's name, or its TOML file (docs/cost.md).",
        ),
        key_option(WorkersSection, "count", option="workers", short="n", instead="as many as there is room for"),
        key_option(
            WorkersSection, "step_time", metavar="TIME|KIND:TIME,...", instead="as calibrated, or as it takes here"
        ),
        key_option(TaskSection, "batch_size"),
        key_option(RunSection, "epochs", instead="the task's"),
        key_option(RunSection, "target", instead="the task's, or a level of bsp's own"),
    )


def _advise(
    given: Mapping[str, Any],
    *,
    what: str,
    args: list[str] | None,
    slow: list[str] | None,
    option: list[str] | None,
    measure: str,
    tolerance: float,
    failures: str | None,
    price: float | None,
    calibration: Path | None,
    out: Path | None,
    overwrite: bool,
    json_file: Path | None,
) -> int:
    measure_s = _positive("--measure", measure)
    if tolerance < 0:
        raise ConfigError(f"--tolerance {tolerance:g}: write 0 or more points")
    if price is not None and price < 0:
        raise ConfigError(f"--price {price:g}: write 0 or more")
    mtbf_s = None if failures is None else _positive("--failures", failures)
    # a file alone is a script; with a colon it names a task in a file
    is_script = what.endswith(".py") and ":" not in what
    if is_script:
        flags = {"--batch-size": given.get("batch_size"), "--option": option, "--epochs": given.get("epochs")}
        refuse_for_script(what, flags)
    elif args:
        raise ConfigError(f"{' '.join(args)}: only a script has arguments of its own; {what} is a task")
    # after the checks, which need no imports
    from plesio.cost import calibration as calibrations

    cluster, count = _place(given)
    measured = None if calibration is None else calibrations.Calibration.read(calibration)
    workers: Table = {
        "count": count,
        "cluster": cluster,
        "unequal": [slow_table(text, num_workers=count) for text in slow or ()],
    }
    if "step_time" in given:
        workers["step_time"] = step_time_table(given["step_time"])
    case = _Case(what=what, args=args or [], workers=workers, given=given, calibration=measured, measure_s=measure_s)
    prepare_pages(out, PAGE, RECIPE, json_file=json_file, overwrite=overwrite)
    # the probe runs first, as the question needs the model's sizes
    with _progress(measure_s) as on_run:
        rehearsal, probed = case.script() if is_script else case.task(options_table(option or ()))
        question = case.question(
            rehearsal, probed, tolerance=tolerance, mtbf_s=mtbf_s, price_per_hour=price, is_script=is_script
        )
        from plesio.advisor import advise as answer

        advice = answer(
            question, rehearsal, now_s=time.monotonic, on_run=lambda policy, seed: on_run(f"{policy}, seed {seed}")
        )
    _show(advice, recipe=case.recipe(advice, is_script=is_script), out=out, json_file=json_file)
    return 0


def _positive(option: str, text: str) -> float:
    try:
        value_s = parse_seconds(text)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from None
    if value_s <= 0:
        raise ConfigError(f"{option} {text}: write more than 0 s")
    return value_s


def _place(given: Mapping[str, Any]) -> "tuple[Cluster, int]":
    from plesio.cost.cluster import parse_cluster

    if "cluster" not in given:
        raise ConfigError("--cluster is missing: write a name or a file, as in --cluster 4x1gbe (docs/cost.md)")
    cluster = parse_cluster(given["cluster"])
    count = given.get("count", cluster.num_slots)
    if count < 2:
        raise ConfigError(f"{count} worker: write --workers 2 or more; one alone has nobody to be consistent with")
    return cluster.for_workers(count), count


class _Case:
    """The command line's values, and the objects that follow from them."""

    def __init__(
        self,
        *,
        what: str,
        args: list[str],
        workers: Table,
        given: Mapping[str, Any],
        calibration: "Calibrated | None",
        measure_s: float,
    ) -> None:
        self._what, self._args = what, args
        self._workers = workers
        self._given = given
        self._calibration = calibration
        self._measure_s = measure_s
        self._options: Table = {}
        self._epochs: float | None = None

    def task(self, options: Table) -> "tuple[TaskRehearsal, Probed]":
        from plesio.bench.advise import TaskRehearsal
        from plesio.bench.advise_probe import probe_task
        from plesio.bench.recipe import make_recipe
        from plesio.bench.trainer import recipe_task

        self._options = options
        table: Table = {
            "task": {"name": self._what, "batch_size": self._given.get("batch_size"), "options": options},
            "run": {"policies": ["bsp"], "epochs": self._given.get("epochs", 1.0), "target": self._given.get("target")},
            "workers": self._workers if "step_time" in self._workers else {**self._workers, "unequal": []},
        }
        task = recipe_task(make_recipe(table, folder=Path.cwd(), where="plesio advise"))
        probed = probe_task(task)
        self._time(probed)
        table["workers"] = self._workers
        self._epochs = table["run"]["epochs"] = self._given.get("epochs", float(task.num_epochs))
        return (TaskRehearsal(table, probed=probed, measure_s=self._measure_s, calibration=self._calibration), probed)

    def script(self) -> "tuple[ScriptRehearsal, Probed]":
        from plesio.bench.advise import ScriptRehearsal
        from plesio.bench.advise_probe import probe_script
        from plesio.bench.recipe import make_workers
        from plesio.bench.simulate import VirtualScript

        script = Path(self._what)
        check_script(script)
        probed = probe_script(script, self._args, count=self._workers["count"])
        self._time(probed)
        section = make_workers(self._workers, folder=Path.cwd(), where="plesio advise")
        told = VirtualScript(path=script, arguments=self._args, workers=section, calibration=self._calibration)
        return ScriptRehearsal(told, probed=probed), probed

    def _time(self, probed: "Probed") -> None:
        """Let steps take as long as here, unless their duration is given."""
        unequal = bool(self._workers["unequal"])
        if "step_time" not in self._workers and (self._calibration is None or unequal):
            gradient_s = probed.gradient_s
            if self._calibration is not None:
                gradient_s = self._calibration.gradient.fit.at(probed.batch_size)
            self._workers["step_time"] = {"kind": "constant", "mean": f"{1e6 * gradient_s:.0f} us"}

    def question(
        self,
        rehearsal: "TaskRehearsal | ScriptRehearsal",
        probed: "Probed",
        *,
        tolerance: float,
        mtbf_s: float | None,
        price_per_hour: float | None,
        is_script: bool,
    ) -> "Question":
        from plesio.advisor import FailureModel, Question
        from plesio.bench.advise import situation_of

        at = situation_of(rehearsal.workers, self._calibration, sizes=probed.sizes, batch_size=probed.batch_size)
        target = self._given.get("target")
        # a lost worker's state is what a checkpoint would have
        failures = None
        if mtbf_s is not None:
            state_bytes = at.sizes.parameter_bytes + at.sizes.optimizer_bytes
            failures = FailureModel(mtbf_s=mtbf_s, num_workers=at.num_workers, state_bytes=state_bytes)
        return Question(
            name=probed.name,
            at=at,
            has_store=probed.has_store,
            shares_moments=probed.shares_moments,
            metric_name=rehearsal.metric_name,
            metric_goal=rehearsal.metric_goal,
            target=rehearsal.target if target is None else target,
            must_reach=target is not None,
            tolerance=tolerance,
            failures=failures,
            price_per_hour=price_per_hour,
            measure_s=self._measure_s,
        )

    def recipe(self, advice: "Advice", *, is_script: bool) -> str | None:
        """Write the TOML that compares the choice with bsp again; a script has none."""
        from plesio.advisor import recipe_for

        if is_script:
            return None
        policies = dict.fromkeys(["bsp", advice.chosen.spec])
        goal = advice.raced.goal
        tables: dict[str, Table] = {
            "task": {
                "name": _absolute(self._what),
                "batch_size": self._given.get("batch_size"),
                "options": self._options or None,
            },
            "run": {
                "policies": list(policies),
                "seeds": [0, 1, 2],
                "epochs": self._epochs,
                "target": advice.level if goal.target is not None else None,
                "servers": advice.chosen.price.servers,
            },
            "workers": {
                "count": self._workers["count"],
                "cluster": _absolute(self._given["cluster"]),
                "step_time": self._workers.get("step_time"),
                "unequal": self._workers["unequal"],
            },
        }
        return recipe_for(tables)


def _absolute(name: str) -> str:
    path, colon, attribute = name.partition(":")
    return f"{Path(path).resolve()}{colon}{attribute}" if path.endswith((".py", ".toml")) else name


@contextmanager
def _progress(measure_s: float) -> Iterator[Callable[[str], None]]:
    """Show a bar of the seconds in a terminal; elsewhere a line for each run, on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    begun_s = time.monotonic()
    if not sys.stderr.isatty():
        yield lambda what: print(f"[{time.monotonic() - begun_s:4.0f} s] {what}", file=sys.stderr, flush=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[limit]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("measuring a step", total=measure_s, limit=f"of about {format_seconds(measure_s)}")
        yield lambda what: progress.update(bar, description=what, completed=time.monotonic() - begun_s)


def _show(advice: "Advice", *, recipe: str | None, out: Path | None, json_file: Path | None) -> None:
    from plesio.report.advice import render_advice, render_advice_page

    show(render_advice(advice))
    typer.echo()
    write_json(json_file, advice.to_json())
    if out is not None:
        write_whole(out / PAGE, render_advice_page(advice, recipe=recipe))
        typer.echo(out / PAGE)
        if recipe is not None:
            write_whole(out / RECIPE, f"# plesio compare {out / RECIPE} --world virtual\n{recipe}\n")
            typer.echo(out / RECIPE)
