"""Commands whose options are read off a function, or off the fields of a class (`plesio.core.inputs`)."""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plesio.cli.given_once import Commands
from plesio.core.errors import ArgumentError, ConfigError

if TYPE_CHECKING:
    from plesio.core.inputs import Input


def command_of(
    words: str,
    inputs: "tuple[Input, ...]",
    act: Callable[..., int | None],
    *,
    summary: str,
    more: Mapping[str, tuple[Any, Any]],
    examples: str = "",
) -> Any:
    """Make a command, typed as ``words``, with an option for each input, which calls ``act`` with the given values.

    ``act`` gets the inputs that were given, and all of ``more``, other options by name with their annotation and
    default; it returns the exit status, None for 0. Without ``examples`` one asks for the first input's default.
    """

    def run(**options: Any) -> int | None:
        given = {one.name: options.pop(one.name) for one in inputs}
        try:
            return act({name: value for name, value in given.items() if value is not None}, **options)
        except ArgumentError as error:
            raise ConfigError(error.worded({one.name: one.option for one in inputs})) from None

    run.__doc__ = summary
    parameters = [_parameter(one) for one in inputs]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in more.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    name = words.rpartition(" ")[2]
    alone = Commands(add_completion=False)
    alone.command(name, epilog=examples or _examples(words, name, inputs))(run)
    return typer.main.get_command(alone)


class DerivedCommand(typer.core.TyperCommand):
    """A command that is made when it is called, since its options are read off what takes a second to import.

    Its function takes nothing and returns the command (`command_of`).
    """

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        assert self.callback is not None
        return self.callback().make_context(info_name, args, parent, **extra)


def _parameter(one: "Input") -> inspect.Parameter:
    if one.kind == "switch":
        switch = f"{one.option}/--no-{one.option[2:]}" if one.default or one.optional else one.option
        text = f"{one.help} [default: {one.written.instead}]" if one.written.instead else one.help
        shown = not one.written.instead
        annotation: Any = Annotated[bool | None, typer.Option(switch, help=text, show_default=shown)]
        return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=annotation)
    instead = one.written.instead or ("" if one.required or one.default is None else one.format(one.default))
    option = typer.Option(
        one.option,
        *([f"-{one.written.short}"] if one.written.short else []),
        metavar=one.metavar,
        help=f"{one.help} [default: {instead}]" if instead else one.help,
        parser=_parser(one),
        show_default=False,
    )
    return inspect.Parameter(
        one.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if one.required else None,
        annotation=Annotated[Any, option],
    )


def _parser(one: "Input") -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return one.parse(text)
        except ConfigError as error:
            raise ConfigError(f"{one.option}: {error}") from None

    return parse


def _examples(words: str, name: str, inputs: "tuple[Input, ...]") -> str:
    asked = next(one for one in inputs if one.default is not None and one.kind != "switch")
    text = _one_word(asked.format(asked.default))
    return f"\b\nExamples:\n  {words} {asked.option} {text} --out runs/{name}"


def _one_word(text: str) -> str:
    return f'"{text}"' if " " in text else text
