"""`plesio sweep`: how the time to a target depends on bound and bandwidth, in virtual time or on a testbed."""

import inspect
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plesio.cli.compare import load, split_policies
from plesio.cli.function_options import command_of
from plesio.cli.options import Arguments, Calibration, Json, NamedFolder, Overwrite, RecipeOrScript, Resume, Slow
from plesio.cli.output_files import check_output_file, folder_of, prepared_folder, write_json
from plesio.cli.script_recipe import run_options, worker_options
from plesio.cli.step_times import STEP_TIME
from plesio.cli.terminal import do_runs, exit_code_of, show
from plesio.cli.testbed import prepare_for_hosts
from plesio.core.errors import ConfigError
from plesio.core.files import write_whole

if TYPE_CHECKING:
    from plesio.core.results import RunResult

EXAMPLES = """\b
Examples:
  plesio sweep recipes/demo.toml --out runs/sweep --cluster 4x1gbe --bounds 0,1,2,4,8,16,inf
  plesio sweep recipes/demo.toml --out runs/sweep --cluster 4x1gbe --bounds 0,4,inf --policies bsp,local_sgd:8
  plesio sweep recipes/demo.toml --out runs/wide --cluster 2-racks --bandwidths "1 Gbit/s,25 Gbit/s" --target 0.95
  plesio sweep recipes/demo.toml --out runs/sweep --cluster 4x1gbe --bounds 0,4,inf --target 0.97 --resume
  plesio sweep recipes/demo.toml --out runs/hosts --cluster 4x1gbe --world testbed --bandwidths "100 Mbit/s,1 Gbit/s"
  plesio sweep train.py --cluster 4x1gbe --bounds 0,4,inf --target 0.95 --step-time "20 ms" -- --lr 0.1
\b
Ctrl-C keeps the runs that are finished; --resume goes on."""

DEFAULT_BANDWIDTHS = "100 Mbit/s,1 Gbit/s,10 Gbit/s"
_UNITS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))


Bounds = Annotated[
    str | None,
    typer.Option("--bounds", metavar="LIST", help="Policies ssp:B instead of the recipe's: 0,1,2,4,8,16,inf"),
]
Period = Annotated[
    int | None,
    typer.Option(
        "--period", metavar="STEPS", help="Steps between exchanges, under all --bounds; else each ssp:B's own."
    ),
]
Bandwidths = Annotated[
    str, typer.Option("--bandwidths", metavar="LIST", help="Bandwidths of the hosts' network interfaces, with units.")
]


class SweptWorld(StrEnum):
    """The world of a sweep's runs."""

    VIRTUAL = "virtual"
    TESTBED = "testbed"


World = Annotated[
    SweptWorld, typer.Option("--world", help="virtual: in virtual time. testbed: on hosts of the cluster made here.")
]
SUMMARY = """Show how time to target depends on bound and bandwidth.

Runs the recipe, or a script with --target, once for each bandwidth, policy and seed, in the virtual world or on a
testbed. Prints the median time
to the target and the throughput, says which policy is best where, and writes report.html and a comparison per
bandwidth.
"""


def sweep() -> Any:
    """Show how time to target depends on bound and bandwidth."""
    from plesio.bench.recipe import RunSection
    from plesio.cli.recipe_options import RECIPES, key_option

    inputs = (
        *run_options(", or those of --bounds alone"),
        key_option(RunSection, "target", instead=RECIPES),
        *worker_options(),
    )
    more = {
        "what": (RecipeOrScript, inspect.Parameter.empty),
        "args": (Arguments, None),
        "out": (NamedFolder, None),
        "slow": (Slow, None),
        "bounds": (Bounds, None),
        "period": (Period, None),
        "bandwidths": (Bandwidths, DEFAULT_BANDWIDTHS),
        "world": (World, SweptWorld.VIRTUAL),
        "calibration": (Calibration, None),
        "resume": (Resume, False),
        "overwrite": (Overwrite, False),
        "json_file": (Json, None),
    }
    return command_of("plesio sweep", inputs, _sweep, summary=SUMMARY, more=more, examples=EXAMPLES)


def _sweep(
    given: Mapping[str, Any],
    *,
    what: Path,
    args: list[str] | None,
    out: Path | None,
    slow: list[str] | None,
    bounds: str | None,
    period: int | None,
    bandwidths: str,
    world: SweptWorld,
    calibration: Path | None,
    resume: bool,
    overwrite: bool,
    json_file: Path | None,
) -> int:
    check_output_file("--json", json_file, overwrite=overwrite or resume)
    chosen_bandwidths = split_bandwidths(bandwidths)

    from plesio.cost import calibration as calibrations

    wanted = _policies(bounds, period=period, policies=given.get("policies"))
    if calibration is not None and world is SweptWorld.TESTBED:
        raise ConfigError(f"--calibration {calibration} describes the virtual world; leave out --world testbed")
    measured = None if calibration is None else calibrations.Calibration.read(calibration)
    step_time = STEP_TIME if world is SweptWorld.VIRTUAL and measured is None else None
    loaded = load(
        what, given, policies=wanted, arguments=args or [], slow=slow, step_time=step_time, command="plesio sweep"
    )
    if "target" in given:
        loaded = loaded.model_copy(update={"run": loaded.run.model_copy(update={"target": given["target"]})})
    out = folder_of(out, what, anew=not (resume or overwrite))
    if world is SweptWorld.TESTBED:
        prepare_for_hosts()

    from plesio.bench.plan import check_plan, describe_network, plan_sweep, run_plan
    from plesio.bench.recipe import FLAGS

    plan = plan_sweep(loaded, bandwidths=chosen_bandwidths, resume=resume, world=world.value, calibration=measured)
    check_plan(plan)  # whatever is wrong is said before anything is removed
    options = {
        "--bounds": bounds,
        "--period": period,
        "--policies": given.get("policies"),
        "--bandwidths": None if bandwidths == DEFAULT_BANDWIDTHS else bandwidths,
        **{FLAGS.get(name, f"--{name}"): given[name] for name in given if name != "policies"},
        "--slow": slow,
        "--world": None if world is SweptWorld.VIRTUAL else world.value,
        "--calibration": calibration,
        "--json": json_file,
    }
    with prepared_folder(out, resume=resume, overwrite=overwrite, names=_output_names(out)):
        done = do_runs(
            partial(run_plan, plan, out=out, resume=resume),
            ["plesio", "sweep", str(what), "--out", str(out)],
            options=options,
            arguments=args or (),
        )
    assert loaded.workers.cluster is not None, "planned"
    swept = dict(zip(chosen_bandwidths, done.values(), strict=True))
    _show(swept, network=describe_network(loaded.workers.cluster), page=out / "report.html", json_file=json_file)
    return exit_code_of(run for runs in swept.values() for run in runs)


def _show(swept: "Mapping[str, Sequence[RunResult]]", *, network: str, page: Path, json_file: Path | None) -> None:
    from plesio.report.sweep import render_sweep, render_sweep_page, summarise_sweep, sweep_values

    result = summarise_sweep(swept, network=network)
    write_whole(page, render_sweep_page(result))
    show(render_sweep(result))
    typer.echo(f"\n{page}")
    write_json(json_file, sweep_values(result))


def split_bounds(text: str) -> list[str]:
    """Split bounds at commas or spaces.

    >>> split_bounds("0,4, inf")
    ['0', '4', 'inf']

    Raises:
        ConfigError: One is no bound, is there twice, or there is none.
    """
    bounds = [part.lower() for part in filter(None, re.split(r"[,\s]+", text))]
    if not bounds or not all(re.fullmatch(r"[0-9]+|inf", bound) for bound in bounds):
        raise ConfigError(f'--bounds "{text}": write whole numbers of 0 or more, or inf, as in 0,1,2,4,8,16,inf')
    bounds = [bound if bound == "inf" else str(int(bound)) for bound in bounds]
    _check_all_different(bounds, what=f'--bounds "{text}"')
    return bounds


def split_bandwidths(text: str) -> list[str]:
    """Split bandwidths at commas, from the smallest to the largest, each written in bits.

    >>> split_bandwidths("10Gbps, 100 MB/s")
    ['800 Mbit/s', '10 Gbit/s']

    Raises:
        ConfigError: One is no bandwidth, is 0, is there twice, or there is none.
    """
    from plesio.core.units import parse_bandwidth

    try:
        values = sorted(8 * parse_bandwidth(part) for part in text.split(",") if part.strip())
    except ConfigError as error:
        raise ConfigError(f"--bandwidths: {error}") from None
    if not values or values[0] < 1:
        raise ConfigError(f'--bandwidths "{text}": write one or more above 0, as in "{DEFAULT_BANDWIDTHS}"')
    bandwidths = []
    for bits_per_s in values:
        prefix, scale = next(unit for unit in _UNITS if bits_per_s >= unit[1])
        bandwidths.append(f"{bits_per_s / scale:.6g} {prefix}bit/s")
    _check_all_different(bandwidths, what=f'--bandwidths "{text}"')
    return bandwidths


def _check_all_different(values: Sequence[str], *, what: str) -> None:
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise ConfigError(f"{what}: {twice} is there {values.count(twice)} times; write it once")


def _policies(bounds: str | None, *, period: int | None, policies: str | None) -> list[str] | None:
    """Return the specs of the command line, those of the bounds first; None leaves the recipe's."""
    from plesio.policies import parse_policy

    if bounds is None:
        if period is not None:
            raise ConfigError(f"--period {period} is that of the policies of --bounds; add --bounds, as in 0,4,16,inf")
        return None if policies is None else split_policies(policies)
    options = "" if period is None else f",period={period}"
    wanted = [f"ssp:{bound}{options}" for bound in split_bounds(bounds)]
    try:
        specs = [parse_policy(spec).spec for spec in wanted]
    except ConfigError as error:
        raise ConfigError(f"--bounds {bounds}{'' if period is None else f' --period {period}'}: {error}") from None
    others = [] if policies is None else split_policies(policies)
    return [*specs, *(other for other in others if other not in specs)]


def _output_names(out: Path) -> list[str]:
    """Return the names of a sweep's output in ``out``, at whichever bandwidths."""
    return ["report.html", *(path.name for path in out.glob("[0-9]*bit-s"))]
