"""Commands whose options are read off a function (`plesio.core.inputs`)."""

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plesio.core.errors import ConfigError, PlesioError

if TYPE_CHECKING:
    from plesio.core.inputs import Input

__all__ = ["command_of", "in_options", "make_folder"]


def command_of(
    words: str,
    inputs: "tuple[Input, ...]",
    act: Callable[..., None],
    *,
    summary: str,
    more: Mapping[str, tuple[Any, Any]],
) -> Any:
    """A command with an option for each input, which calls ``act`` with what was given.

    Args:
        words: The command as it is typed, without its options: ``plesio study pipeline``.
        inputs: What it can be asked with; those that are left out are not passed on.
        act: Called with the inputs that were given, and with all of ``more``.
        summary: Its help.
        more: Other options, by name: annotation and default.
    """

    def run(**options: Any) -> None:
        given = {one.name: options.pop(one.name) for one in inputs}
        try:
            act({name: value for name, value in given.items() if value is not None}, **options)
        except ConfigError as error:
            raise ConfigError(in_options(str(error), {one.name: one.option for one in inputs})) from None

    run.__doc__ = summary
    parameters = [_parameter(one) for one in inputs]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in more.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    name = words.rpartition(" ")[2]
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, epilog=_examples(words, name, inputs))(run)
    return typer.main.get_command(alone)


def in_options(message: str, options: Mapping[str, str]) -> str:
    """A message about parameters in the words of who wrote options; after a number, a word is what is counted.

    >>> in_options("dp is 3; write dp = 2, or num_workers for 4 dp", {"dp": "--dp", "num_workers": "--workers"})
    '--dp is 3; write --dp 2, or --workers for 4 dp'
    """
    names = "|".join(map(re.escape, options))
    return re.sub(rf"(?<![\w-])(?<!\d )({names})(?![\w-])(?: =(?= ))?", lambda found: options[found[1]], message)


def _parameter(one: "Input") -> inspect.Parameter:
    if one.kind == "switch":
        annotation: Any = Annotated[bool, typer.Option(f"{one.option}/--no-{one.option[2:]}", help=one.help)]
        return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=annotation)
    option = typer.Option(
        one.option,
        metavar=one.metavar,
        help=f"{one.help} [default: {one.format(one.default)}]",
        parser=_parser(one),
        show_default=False,
    )
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Any, option])


def _parser(one: "Input") -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return one.parse(text)
        except PlesioError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


def _examples(words: str, name: str, inputs: "tuple[Input, ...]") -> str:
    asked = next(one for one in inputs if one.default is not None and one.kind != "switch")
    text = _one_word(asked.format(asked.default))
    return f"\b\nExamples:\n  {words} {asked.option} {text} --out runs/{name}"


def _one_word(text: str) -> str:
    """``text`` as a shell's word."""
    return f'"{text}"' if " " in text else text


def make_folder(out: Path) -> None:
    """Make the folder that ``--out`` names, if it is not there.

    Raises:
        ConfigError: It cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to --out {out}: {error.strerror}") from None
