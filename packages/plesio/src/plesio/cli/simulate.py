"""`plesio simulate`: training code on workers that are not there, in virtual time."""

import inspect
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plesio.cli.compare import OUTPUT_NAMES, print_results
from plesio.cli.function_options import command_of
from plesio.cli.options import Arguments, Calibration, Json, Overwrite, Slow, TaskOption
from plesio.cli.output_files import check_output_file, prepared_folder, unused_folder
from plesio.cli.step_times import STEP_TIME, Table, pairs_table, parsed_time, slow_table, step_time_table
from plesio.core.errors import ConfigError
from plesio.core.files import check_script

if TYPE_CHECKING:
    from plesio.bench.recipe import Recipe
    from plesio.core.inputs import Input
    from plesio.core.results import RunResult
    from plesio.cost.calibration import Calibration as Calibrated
    from plesio.runtime.worlds.virtual import SimulationProgress

EXAMPLES = """\b
Examples:
  plesio simulate digits --workers 16 --cluster 16x1gbe --policy ssp:4 --step-time "20 ms"
  plesio simulate digits --workers 4 --policy asp --step-time "20 ms" --slow 3:0.33
  plesio simulate digits --batch-size 32 --option learning_rate=0.1 --target 0.97
  plesio simulate train.py --workers 8 --policy local_sgd:8 --step-time "50 ms" -- --lr 0.1
  plesio simulate digits --workers 16 --cluster 16x1gbe --calibration calibration.json
  plesio simulate digits --step-time lognormal:20ms,cv=0.3 --stalls probability=0.01,factor=10
  plesio simulate digits --workers 16 --cluster 2-racks --slowdowns factor=3,every=5s,lasting=1s
  plesio simulate digits --policy asp --lose 2@1.5s --join 3s
  plesio simulate digits --policy asp --failures mtbf=20s,rejoin_after=2s
  plesio simulate digits --checkpoint runs/checkpoints --every "100 steps"
  plesio simulate train.py --checkpoint runs/checkpoints --every "100 steps"
  plesio simulate digits --policy grid:2x2 --step-time "20 ms"
\b
Gradients are real; how long computing and sending take is modelled. A script is run
as each of the workers, and its plesio.join finds the others; what follows -- is its own.
docs/recipes.md explains the keys: those of [workers] in a recipe."""

FOLDER = Path("runs/simulation")

EXAMPLE_TABLES = {
    "stalls": "probability=0.01,factor=10",
    "slowdowns": "factor=3,every=20s,lasting=2s",
    "failures": "mtbf=20s,rejoin_after=2s",
}

FLAGS: Mapping[tuple[str, ...], str] = {
    ("workers", "count"): "--workers",
    ("workers", "cluster"): "--cluster",
    ("task", "batch_size"): "--batch-size",
    ("run", "target"): "--target",
    ("run", "epochs"): "--epochs",
    ("checkpoint", "folder"): "--checkpoint",
    ("checkpoint", "every"): "--every",
    ("checkpoint", "keep"): "--keep",
    ("checkpoint", "resume"): "--resume",
}
"""Options whose values stand in a recipe as they are."""


What = Annotated[str, typer.Argument(metavar="TASK|SCRIPT", help="A task's name, or a .py file.", show_default=False)]
Policy = Annotated[
    str | None,
    typer.Option("--policy", metavar="POLICY", help="As `plesio list policies` lists them. [default: adaptive]"),
]
Seed = Annotated[
    int, typer.Option("--seed", metavar="N", help="Seed of the parameters, the order of samples and the step times.")
]
Lose = Annotated[
    list[str] | None, typer.Option("--lose", metavar="RANK@TIME", help="A worker that is lost; may be repeated.")
]
Join = Annotated[list[str] | None, typer.Option("--join", metavar="TIME", help="A worker that joins; may be repeated.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="Folder for results.json, traces and report.html; else a new one in runs."
    ),
]
SUMMARY = """Train on virtual workers, in virtual time, in this process.

Shows accuracy, throughput, waiting, bytes and staleness on a cluster that you do not have. Equal arguments give equal
results, to the bit.
"""


def simulate() -> Any:
    """Train on virtual workers, in virtual time, in this process."""
    more = {
        "what": (What, inspect.Parameter.empty),
        "args": (Arguments, None),
        "policy": (Policy, None),
        "seed": (Seed, 0),
        "slow": (Slow, None),
        "lose": (Lose, None),
        "join": (Join, None),
        "option": (TaskOption, None),
        "calibration": (Calibration, None),
        "out": (Folder, None),
        "overwrite": (Overwrite, False),
        "json_file": (Json, None),
    }
    return command_of("plesio simulate", _inputs(), _simulate, summary=SUMMARY, more=more, examples=EXAMPLES)


def _inputs() -> "tuple[Input, ...]":
    from plesio.bench.recipe import RunSection, TaskSection
    from plesio.bench.recipe_checkpoint import CheckpointSection
    from plesio.bench.recipe_step_time import SlowdownsSection, StallsSection
    from plesio.bench.recipe_workers import FailuresSection, WorkersSection
    from plesio.cli.recipe_options import checkpoint_options, key_option, table_option

    times, usual = "TIME|KIND:TIME,...", f"as calibrated, or {STEP_TIME}"
    return (
        key_option(WorkersSection, "count", option="workers", short="n", instead="4, or those of a grid"),
        key_option(WorkersSection, "cluster", metavar="NAME|FILE"),
        key_option(WorkersSection, "step_time", metavar=times, instead=usual),
        table_option(WorkersSection, "stalls", table=StallsSection),
        table_option(WorkersSection, "slowdowns", table=SlowdownsSection),
        table_option(WorkersSection, "failures", table=FailuresSection),
        key_option(TaskSection, "batch_size"),
        key_option(RunSection, "epochs", default=4.0),
        key_option(RunSection, "target"),
        *checkpoint_options(CheckpointSection, "resume"),
    )


def _simulate(
    given: Mapping[str, Any],
    *,
    what: str,
    args: list[str] | None,
    policy: str | None,
    seed: int,
    slow: list[str] | None,
    lose: list[str] | None,
    join: list[str] | None,
    option: list[str] | None,
    calibration: Path | None,
    out: Path | None,
    overwrite: bool,
    json_file: Path | None,
) -> int:
    from plesio.bench.recipe import make_recipe, names_script
    from plesio.cli.recipe_options import checkpoint_table
    from plesio.cost import calibration as calibrations
    from plesio.cost.cluster import parse_cluster
    from plesio.policies.grid import canonical_spec, is_grid
    from plesio.runtime.worker.environment import launcher_policy

    check_output_file("--json", json_file, overwrite=overwrite)
    spec = canonical_spec(policy or "adaptive")
    if not is_grid(spec):
        told = launcher_policy(policy)
        spec = spec if told is None else told.spec
    count = _count(spec, given.get("count"))
    measured = None if calibration is None else calibrations.Calibration.read(calibration)
    # a calibration knows how long a step takes, unless the user says otherwise
    step_time = given.get("step_time", STEP_TIME if measured is None else None)
    table: Table = {
        "count": count,
        **({} if step_time is None else {"step_time": step_time_table(step_time)}),
        "unequal": [slow_table(text, num_workers=count) for text in slow or ()],
        "faults": [*map(_loss, lose or ()), *map(_join, join or ())],
        **({"cluster": given["cluster"]} if "cluster" in given else {}),
        **{
            key: pairs_table(f"--{key}", given[key], example=EXAMPLE_TABLES[key])
            for key in EXAMPLE_TABLES
            if key in given
        },
    }
    if out is None:
        out = FOLDER if overwrite else unused_folder(FOLDER)
    batch_size, target = given.get("batch_size"), given.get("target")
    checkpoint, is_script = checkpoint_table(given), names_script(what)
    task: Table
    length: Table = {}
    if is_script:
        refuse_for_script(what, {"--batch-size": batch_size, "--option": option, "--target": target})
        check_script(Path(what))
        task = {"name": what, "arguments": args or []}
    elif args:
        raise ConfigError(f"{' '.join(args)}: only a script has arguments of its own; {what} is a task")
    else:
        task = {"name": what, "batch_size": batch_size, "options": options_table(option or ())}
        length = {"epochs": given.get("epochs", 4.0), "target": target}
    made: Table = {
        "task": task,
        "run": {"policies": [spec], "seeds": [seed], **length},
        "workers": table,
        **({"checkpoint": checkpoint} if checkpoint else {}),
    }
    recipe = make_recipe(made, folder=Path.cwd(), where="plesio simulate", flags=FLAGS)
    do = _simulate_script if is_script else _simulate_task
    runs = do(recipe, calibration=measured, out=out, overwrite=overwrite)
    cluster = parse_cluster(given["cluster"]) if "cluster" in given else None
    print_results(out, cluster=cluster, json_file=json_file)
    if any(run.status == "interrupted" for run in runs):
        raise KeyboardInterrupt
    return 1 if any(run.status != "finished" for run in runs) else 0


def _count(spec: str, told: int | None) -> int:
    from plesio.policies.grid import GridSetting, is_grid

    if is_grid(spec):
        num_workers = GridSetting.parse(spec).num_workers
        if told not in (None, num_workers):
            raise ConfigError(f"--workers {told}: {spec} has {num_workers}; leave --workers out")
        return num_workers
    count = 4 if told is None else told
    if count < 2:
        raise ConfigError(f"--workers {count}: write 2 or more; one alone has nobody to be consistent with")
    return count


def _simulate_task(
    recipe: "Recipe", *, calibration: "Calibrated | None", out: Path, overwrite: bool
) -> "list[RunResult]":
    from plesio.bench.compare import run_comparison
    from plesio.bench.virtual_pool import VirtualPool
    from plesio.cli.progress_display import progress_display

    VirtualPool(recipe, calibration=calibration)  # whatever is wrong is said before anything is removed
    with prepared_folder(out, overwrite=overwrite, names=OUTPUT_NAMES), progress_display() as progress:
        return run_comparison(
            recipe, out=out, resume=False, progress=progress, world="virtual", calibration=calibration
        )


def _simulate_script(
    recipe: "Recipe", *, calibration: "Calibrated | None", out: Path, overwrite: bool
) -> "list[RunResult]":
    from plesio.bench.assignment import Assignment, checkpoint_variables, run_name
    from plesio.bench.progress import RunLabel, RunSnapshot
    from plesio.bench.simulate import VirtualScript
    from plesio.cli.progress_display import progress_display
    from plesio.core.results import write_results
    from plesio.policies.grid import is_grid
    from plesio.runtime.worker.job_handle import Chosen

    if calibration is not None and recipe.workers.cluster is None:
        calibration.check_workers(recipe.workers.count)
    script, [policy], [seed] = recipe.task.script, recipe.run.policies, recipe.run.seeds
    trace = out / "runs" / run_name(policy, seed=seed)
    told = VirtualScript(
        path=script,
        arguments=recipe.task.arguments,
        workers=recipe.workers,
        calibration=calibration,
        own_checkpoints=recipe.checkpoint is None,
        variables=checkpoint_variables(recipe, Assignment(policy=policy, seed=seed, folder=trace)),
    )
    # whatever is wrong has been said before anything is removed
    with prepared_folder(out, overwrite=overwrite, names=OUTPUT_NAMES), progress_display() as progress:
        progress.run_started(RunLabel(policy=policy, seed=seed, number=1, num_runs=1), num_samples=None)

        def advance(state: "SimulationProgress") -> None:
            progress.run_advanced(
                RunSnapshot(
                    samples=state.samples,
                    step=state.steps,
                    samples_per_s=state.samples / state.virtual_s if state.virtual_s else 0.0,
                    loss=None if math.isnan(state.loss) else state.loss,
                    mean_staleness=state.mean_staleness,
                )
            )

        own: list[Chosen] = []  # by the script
        runs = told.run(policy, seed=seed, trace=trace, on_progress=advance, chosen=own)
        for run in runs:
            (progress.run_finished if run.status == "finished" else progress.run_failed)(run)
    write_results(out / "results.json", runs)
    if own and own[0].policy not in (None, "adaptive", policy) and not is_grid(policy):
        line = f"{script} asks for the policy {own[0].policy} itself; here it trains under {policy}"
        typer.echo(f"plesio: {line}", err=True)
    if own and own[0].checkpoint is not None and recipe.checkpoint is not None:
        line = f"{script} asks for checkpoints in {own[0].checkpoint}; here they are those of --checkpoint alone"
        typer.echo(f"plesio: {line}", err=True)
    return runs


def options_table(texts: Sequence[str]) -> Table:
    """Parse a recipe's ``[task.options]``: values are written as there, and a text may be without its quotes.

    >>> options_table(["learning_rate=0.1", "hidden=[32, 32]", "folder=~/data"])
    {'learning_rate': 0.1, 'hidden': [32, 32], 'folder': '~/data'}
    """
    options: Table = {}
    for text in texts:
        key, equals, value = (piece.strip() for piece in text.partition("="))
        if not (key and equals and value):
            raise ConfigError(f'--option "{text}": write a key and its value, as in learning_rate=0.1')
        if key in options:
            raise ConfigError(f"--option {key} is there twice; write it once")
        try:
            options[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            options[key] = value
    return options


def refuse_for_script(script: str, given: Mapping[str, object]) -> None:
    """Make sure that none of these options, which are a task's, is given for a script.

    Raises:
        ConfigError: One is.
    """
    for flag, value in given.items():
        if value is not None:
            raise ConfigError(f"{flag} is for a task; {script} is a script, whose own arguments follow --")


def _loss(text: str) -> Table:
    match = re.fullmatch(r"(\d+)@(.+)", text)
    if match is None:
        raise ConfigError(f'--lose "{text}": write a rank and a time, as in 2@1.5s')
    return {"at": parsed_time("--lose", match[2]), "kind": "lose", "worker": int(match[1])}


def _join(text: str) -> Table:
    return {"at": parsed_time("--join", text), "kind": "join"}
