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
    compare,
    explain,
    policies,
    probe,
    report,
    run,
    simulate,
    sweep,
    tasks,
    testbed,
    validate,
)
from plesio.cli.function_options import DerivedCommand
from plesio.cli.plug_ins import add_commands, home_of
from plesio.core.errors import PlesioError
from plesio.core.logs import set_up_logging

__all__ = ["app", "invoke"]

# typer stands on click or, by release, on a copy of it; the class of all usage errors is BadParameter's base in both.
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])

app = typer.Typer(
    name="plesio",
    help="Train one PyTorch model with many workers under a consistency policy you choose, and measure what it costs.",
    epilog="`plesio COMMAND --help` explains a command and shows examples.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("compare", cls=DerivedCommand)(compare.compare)
app.command("run", epilog=run.EXAMPLES, context_settings={"allow_interspersed_args": False})(run.run)
app.command("simulate", cls=DerivedCommand)(simulate.simulate)
app.command("advise", cls=DerivedCommand)(advise.advise)
app.command("calibrate", cls=DerivedCommand)(calibrate.calibrate)
app.command("probe", epilog=probe.EXAMPLES)(probe.probe)
app.command("sweep", cls=DerivedCommand)(sweep.sweep)
app.command("characterise", epilog=characterise.EXAMPLES)(characterise.characterise)
app.command("validate", epilog=validate.EXAMPLES)(validate.validate)
app.command("report", epilog=report.EXAMPLES)(report.report)
app.command("explain", epilog=explain.EXAMPLES)(explain.explain)
app.command("policies", epilog=policies.EXAMPLES)(policies.policies)
app.add_typer(checkpoint.app)
app.add_typer(testbed.app)
app.command("tasks", epilog=tasks.EXAMPLES)(tasks.tasks)
add_commands(app)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"plesio {version('plesio')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _plesio(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def invoke(args: Sequence[str]) -> int:
    """Run one command; a user's mistake is one or two lines on stderr and status 2, never a traceback.

    Returns:
        The exit status: 0; 1 when runs failed; 2 for a mistake; 130 for Ctrl-C; that of the workers under `plesio run`.
    """
    try:
        set_up_logging()
        return app(list(args), standalone_mode=False) or 0
    except PlesioError as error:
        _complain(str(error))
    except _UsageError as error:
        _complain(home_of(next(iter(args), "")) or _usage(error))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    return 2


def _usage(error: Exception) -> str:
    """Say what is wrong with the arguments, and which command shows how to write them."""
    context = getattr(error, "ctx", None)
    # typer converts values by pydantic, whose messages of its own begin with the kind of exception
    said = error.format_message().rstrip(".").replace("Value error, ", "")  # type: ignore[attr-defined]
    return (
        said
        if context is None or said.endswith("?")
        else f"{said}; `{context.command_path} --help` shows how to write it"
    )


def _complain(message: str) -> None:
    print(f"plesio: error: {message}", file=sys.stderr)
