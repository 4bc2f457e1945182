"""Commands that refuse an option given twice, of which only the last value would count."""

from collections.abc import Callable
from typing import Any

import typer

from plesio.core.errors import ConfigError


class _Command(typer.core.TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _check(self, ctx, args)
        return super().parse_args(ctx, args)


class CommandGroup(typer.core.TyperGroup):
    """A group of commands, whose own options come before the command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _check(self, ctx, args)
        return super().parse_args(ctx, args)


class Commands(typer.Typer):
    """A group all of whose commands refuse an option given twice; their help is plain."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"cls": CommandGroup, "rich_markup_mode": None, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Add a function as a command."""
        return super().command(name, **{"cls": _Command, **settings})


def _check(command: Any, ctx: Any, args: list[str]) -> None:
    if ctx.resilient_parsing:  # which completes a line
        return
    _, _, given = command.make_parser(ctx).parse_args(args=list(args))  # which takes them out of its list
    for one in command.params:
        if given.count(one) > 1 and one.param_type_name == "option" and not one.multiple:
            raise ConfigError(f"{one.opts[0]} is given twice; write it once")
