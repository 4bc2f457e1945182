"""`plesio lab validate`: how far predictions are from this machine's runs, or estimates from what others published."""

import os
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plesio.cli.options import Arguments, Json, Overwrite
from plesio.cli.output_files import check_output_file, prepared_folder, write_json
from plesio.cli.plug_ins import home_of, plug_ins
from plesio.cli.terminal import show
from plesio.cli.testbed import prepare_for_hosts
from plesio.core.errors import ConfigError, nearest
from plesio.core.files import write_whole

if TYPE_CHECKING:
    from plesio.core.predictions import Prediction

    Predict = Callable[[Path], Sequence[Prediction]]
    """Does the runs in a folder, and compares."""

WORLDS = "worlds"


class MeasuredWorld(StrEnum):
    """The world of the runs that predictions are compared with."""

    PROCESS = "process"
    TESTBED = "testbed"


SEEDS = "0,1,2"
POLICIES = ("bsp", "ssp:4", "asp", "local_sgd:8")
PAGE = "report.html"
OUTPUT_NAMES = ("calibration", "process", "testbed", "virtual", PAGE)

EXAMPLES = """\b
Examples:
  plesio lab validate
  plesio lab validate --json errors.json --seeds 0 --policies bsp,asp
  plesio lab validate --resume
  plesio lab validate --world testbed --out runs/testbed
  plesio lab validate --world testbed --oversubscription 1,2,4,8 --out runs/racks
  plesio lab validate estimator --out runs/estimator
  plesio lab validate published
  plesio lab validate train.py --workers 2 --policies bsp,asp --seeds 0 -- --lr 0.1
\b
Takes about ten minutes with three seeds; let nothing else run meanwhile. `estimator` and
`published` take seconds and run nothing."""


What = Annotated[
    str,
    typer.Argument(
        metavar="worlds|estimator|published|SCRIPT",
        help="Which predictions: of the virtual world, of time and memory of a training step, of steps over shaped "
        "links that others measured, or of a .py file.",
        show_default=False,
    ),
]
Folder = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Folder for the runs and report.html; else runs/validation.")
]
World = Annotated[
    MeasuredWorld,
    typer.Option(
        "--world", help="Where runs are measured: real workers on this machine, or on hosts that are made here."
    ),
]
Policies = Annotated[
    str | None, typer.Option("--policies", metavar="LIST", help="Instead of bsp,ssp:4,asp,local_sgd:8")
]
Oversubscription = Annotated[
    str | None,
    typer.Option(
        "--oversubscription",
        metavar="LIST",
        help="On a testbed of two racks: bandwidth of a rack's interfaces over its uplink's, as in 1,2,4,8",
    ),
]
Workers = Annotated[
    int | None, typer.Option("--workers", "-n", metavar="N", help="Of a script. [default: one a core, 2 to 4]")
]
Seeds = Annotated[str, typer.Option("--seeds", metavar="LIST", help="A row is a median over them.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Keep what the folder has of an earlier validation, do the rest.")
]


def validate(
    what: What = WORLDS,
    args: Arguments = None,
    out: Folder = None,
    json_file: Json = None,
    world: World = MeasuredWorld.PROCESS,
    policies: Policies = None,
    oversubscription: Oversubscription = None,
    workers: Workers = None,
    seeds: Seeds = SEEDS,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> int:
    """Predict what can be measured, and show the errors.

    worlds (unless you say otherwise): two workloads, two step times, four workers of which one is three times slower,
    under each policy: in the virtual world, calibrated to this machine, and with real workers. Prints predicted,
    measured and error of throughput, wait share, bytes, staleness and final metric, with those of a trivial model. With
    --world testbed: four equal workers on hosts of their own, at three bandwidths and three latencies, or in two racks
    with --oversubscription. Needs root.

    SCRIPT: one that calls plesio.join: with real workers on this machine, and in the virtual world by the time that a
    step takes in a short probe. What follows -- is its own.

    estimator: step times and memory of language models on up to 16384 accelerators, beside what their authors reported
    and a constant utilisation, with every family of models and every program left out of the calibration in turn. It
    takes --out, --json and --overwrite, and no other option.

    published: steps of DDP, local SGD and DiLoCo on four GPUs over links of 50 Mbit/s to 5 Gbit/s, beside what virtual
    time charges for their exchanges; rows that nothing was fitted to come first. It takes the same options.
    """
    is_script = what.endswith(".py")
    if not is_script and (args or workers is not None):
        raise ConfigError(f"{args[0] if args else f'--workers {workers}'} is for a script; {what} is none")
    plugged = plug_ins("plesio.validations")
    on_hosts = world is not MeasuredWorld.PROCESS or oversubscription is not None
    if what in plugged:
        if policies is not None or seeds != SEEDS or resume or on_hosts:
            raise ConfigError(f"validate {what} does no runs; leave out all options but --out, --json and --overwrite")
        return int(plugged[what].load()(json_file, out=out, overwrite=overwrite))
    # whatever is wrong is said before anything is removed
    if is_script:
        if on_hosts:
            raise ConfigError(f"--world and --oversubscription: {what} runs as workers on this machine; leave them out")
        predict = _of_script(Path(what), args or (), policies=policies, seeds=seeds, workers=workers)
    elif what == WORLDS:
        predict = _of_workloads(world, policies=policies, seeds=seeds, oversubscription=oversubscription)
    else:
        raise ConfigError(f'validate "{what}"; {home_of(what) or nearest(what, (WORLDS, *plugged))}')
    check_output_file("--json", json_file, overwrite=overwrite or resume)
    out = out or Path("runs/validation")
    with prepared_folder(out, resume=resume, overwrite=overwrite, names=OUTPUT_NAMES):
        predictions = predict(out)
    _show(predictions, out=out, json_file=json_file)
    return 0


def _show(predictions: "Sequence[Prediction]", *, out: Path, json_file: Path | None) -> None:
    from plesio.core.predictions import predictions_to_json
    from plesio.report.validation import render_validation, render_validation_page

    write_whole(out / PAGE, render_validation_page(predictions))
    show(render_validation(predictions))
    typer.echo(f"\n{out / PAGE}")
    write_json(json_file, predictions_to_json(predictions))


def _of_workloads(world: MeasuredWorld, *, policies: str | None, seeds: str, oversubscription: str | None) -> "Predict":
    """Check the options for the built-in workloads, and return what does their runs."""
    on_testbed = world is MeasuredWorld.TESTBED
    if oversubscription is not None and not on_testbed:
        raise ConfigError("--oversubscription is of racks on a testbed; write --world testbed too, or leave it out")
    if on_testbed:
        prepare_for_hosts()
    from plesio.bench.validate import matrix, matrix_on_hosts, validate
    from plesio.cli.compare import split_policies, split_seeds
    from plesio.cli.progress_display import progress_display

    specs, numbers = POLICIES if policies is None else split_policies(policies), split_seeds(seeds)
    if on_testbed:
        ratios = [] if oversubscription is None else _ratios(oversubscription)
        settings = matrix_on_hosts(policies=specs, seeds=numbers, oversubscriptions=ratios)
    else:
        settings = matrix(policies=specs, seeds=numbers)

    def predict(out: Path) -> "Sequence[Prediction]":
        with progress_display() as progress:
            return validate(
                settings,
                out=out,
                progress=progress,
                world=world.value,
                on_measured=lambda what: print(f"measured: {what}", file=sys.stderr),
            )

    return predict


def _ratios(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f'--oversubscription "{text}"; write numbers above 0, as in 1,2,4,8') from None


def _of_script(
    script: Path, arguments: Sequence[str], *, policies: str | None, seeds: str, workers: int | None
) -> "Predict":
    """Check the options for a script, and return what does its runs."""
    from plesio.bench.advise_probe import probe_script
    from plesio.bench.validate import validate_script
    from plesio.cli.compare import split_policies, split_seeds
    from plesio.cli.script_recipe import script_recipe
    from plesio.cli.terminal import with_progress

    recipe = script_recipe(
        script,
        arguments,
        {"count": min(4, max(2, len(os.sched_getaffinity(0)))) if workers is None else workers},
        policies=POLICIES if policies is None else split_policies(policies),
        seeds=split_seeds(seeds),
        slow=None,
        step_time=None,
        where="plesio lab validate",
    )

    def predict(out: Path) -> "Sequence[Prediction]":
        told = [text.replace("{seed}", str(recipe.run.seeds[0])) for text in recipe.task.arguments]
        probed = probe_script(script, told, count=recipe.workers.count)
        return with_progress(partial(validate_script, recipe, probed, out=out))

    return predict
