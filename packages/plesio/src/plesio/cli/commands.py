"""The command line: which commands there are, and how errors leave it.

Starting is kept fast: typer renders plain help (no rich), and each command imports what it needs when it is called.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, cast

import typer

from plesio.cli import (
    advise,
    calibrate,
    characterise,
    checkpoint,
    clusters,
    compare,
    launch,
    listing,
    policies,
    probe,
    report,
    run,
    simulate,
    sweep,
    tasks,
    testbed,
    validate,
    watch,
)
from plesio.cli.function_options import DerivedCommand
from plesio.cli.given_once import Commands
from plesio.cli.plug_ins import add_commands, home_of
from plesio.core.errors import PlesioError
from plesio.core.logs import set_up_logging

# typer stands on click or, by release, on a copy of it; the class of all usage errors is BadParameter's base in both.
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])

app = Commands(
    name="plesio",
    help="Train one PyTorch model with many workers under a consistency policy you choose, and measure what it costs.",
    epilog="`plesio COMMAND --help` explains a command and shows examples.",
    pretty_exceptions_enable=False,
)
lab = Commands(
    name="lab",
    help="Measure this machine, networks, and how good predictions are.",
    epilog="`plesio lab COMMAND --help` explains a command and shows examples.",
)
app.command("compare", cls=DerivedCommand)(compare.compare)
app.command("run", epilog=run.EXAMPLES, context_settings={"allow_interspersed_args": False})(run.run)
app.command("watch", epilog=watch.EXAMPLES)(watch.watch)
app.command("simulate", cls=DerivedCommand)(simulate.simulate)
app.command("advise", cls=DerivedCommand)(advise.advise)
app.command("sweep", cls=DerivedCommand)(sweep.sweep)
app.command("report", epilog=report.EXAMPLES)(report.report)
app.add_typer(launch.app)
app.add_typer(checkpoint.app)
app.add_typer(listing.app)
app.add_typer(lab)
listing.add_kind("policies", policies.policies, count=policies.num_policies, examples=policies.EXAMPLES)
listing.add_kind("tasks", tasks.tasks, count=tasks.num_tasks, examples=tasks.EXAMPLES)
listing.add_kind("clusters", clusters.clusters, count=clusters.num_clusters, examples=clusters.EXAMPLES)
lab.command("characterise", epilog=characterise.EXAMPLES)(characterise.characterise)
lab.command("validate", epilog=validate.EXAMPLES)(validate.validate)
lab.command("calibrate", cls=DerivedCommand)(calibrate.calibrate)
lab.command("probe", epilog=probe.EXAMPLES)(probe.probe)
lab.add_typer(testbed.app)
add_commands(app)


def _print_version(asked: bool) -> None:
    if asked:
        import plesio

        typer.echo(f"plesio {plesio.__version__}")
        raise typer.Exit


@app.callback()
def _plesio(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def invoke(args: Sequence[str]) -> int:
    """Run one command; a user's mistake is one or two lines on stderr and status 2, never a traceback.

    Returns:
        The exit status: 0; 1 when runs failed; 2 for a mistake; 130 for Ctrl-C; that of the workers under `plesio run`.
    """
    try:
        set_up_logging()
        return app(list(args), prog_name="plesio", standalone_mode=False) or 0
    except PlesioError as error:
        _complain(str(error))
    except _UsageError as error:
        group = getattr(error, "ctx", None)
        if group is not None and error.format_message() == "Missing command.":  # type: ignore[attr-defined]
            typer.echo(group.get_help())
            return 0
        words = args[1:] if args[:1] == ["list"] else args
        _complain(home_of(next(iter(words), "")) or _usage(error, args))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    return 2


def _usage(error: Exception, args: Sequence[str]) -> str:
    """Say what is wrong with the arguments, and which command shows how to write them."""
    context = getattr(error, "ctx", None)
    said = _refused_value(error) or error.format_message().rstrip(".")  # type: ignore[attr-defined]
    script = next((word for word in args if word.endswith(".py")), None)
    if script and said.startswith("No such option") and context is not None and context.allow_interspersed_args:
        said += f"; options of {script} itself come after --"
    return (
        said
        if context is None or said.endswith("?")
        else f"{said}; `{context.command_path} --help` shows how to write it"
    )


def _refused_value(error: Exception) -> str:
    """Name the option, its value and what to write, where typer's pydantic could not convert it; else empty."""
    from pydantic import ValidationError

    parameter, cause = getattr(error, "param", None), error.__cause__
    if parameter is None or not isinstance(cause, ValidationError):
        return ""
    from plesio.bench.recipe_errors import explain

    where = parameter.opts[0] if parameter.param_type_name == "option" else parameter.name
    return explain(cause, where=where, flags={}).rstrip(".")


def _complain(message: str) -> None:
    print(f"plesio: error: {message}", file=sys.stderr)
