"""All that a user can name: commands with their options, policies, public names with their parameters.

``surface.txt`` lists it, so that nothing goes or is renamed unnoticed; ``python tests/test_surface.py`` writes it anew.
"""

import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from plesio.cli.commands import app
from plesio.cli.function_options import DerivedCommand

LIST = Path(__file__).with_name("surface.txt")
REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
MODULES = (
    "plesio",
    "plesio.callbacks",
    "plesio.testing",
    "plesio.advisor",
    "plesio_planning.estimate",
    "plesio_planning.studies",
    "plesio_planning.theory",
)


def commands(command: Any, path: str, context: Any = None) -> Iterator[str]:
    """A line for a command, its arguments and options, and for those below it."""
    if isinstance(command, DerivedCommand):
        command = command.callback()
    context = command.context_class(command, info_name=path.rpartition(" ")[2], parent=context)
    shown = [
        f"[{name}]" if parameter.param_type_name == "argument" else name
        for parameter in command.get_params(context)
        for name in ([parameter.name] if parameter.param_type_name == "argument" else parameter.opts)
    ]
    yield " ".join([path, *shown])
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from commands(command.get_command(context, name), f"{path} {name}", context)


def names(module: str) -> Iterator[str]:
    """A line for a public name of a module; a class has its own public names behind it."""
    found = import_module(module)
    for name in sorted(found.__all__):
        value = getattr(found, name)
        if inspect.isclass(value):
            own = {field.name for field in fields(value)} if is_dataclass(value) else set()
            own |= {key for key in vars(value) if not key.startswith("_")}
            yield f"{module}.{name}: {', '.join(sorted(own))}"
        elif callable(value):
            yield f"{module}.{name}({', '.join(inspect.signature(value).parameters)})"
        else:
            yield f"{module}.{name}"


def surface() -> str:
    command = typer.main.get_command(app)
    lines = [*commands(command, "plesio"), *(line for module in MODULES for line in names(module))]
    return "\n".join(lines) + "\n"


def test_nothing_goes_unnoticed():
    assert surface().splitlines() == LIST.read_text(encoding="utf-8").splitlines()


def undocumented(value: Any, name: str) -> Iterator[str]:
    """Yield the names at and below one of the reference's that have no docstring; dunder methods need none."""
    is_code = inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value)
    if is_code and not inspect.getdoc(value):
        yield name
    if inspect.isclass(value) or inspect.ismodule(value):
        for own, member in vars(value).items():
            inside = getattr(member, "__module__", None) == (
                value.__name__ if inspect.ismodule(value) else value.__module__
            )
            if isinstance(member, property):
                inside, member = True, member.fget
            if inside and not own.startswith("_"):
                yield from undocumented(member, f"{name}.{own}")


def test_all_that_the_reference_shows_has_a_docstring():
    shown = {name for page in REFERENCE.glob("*.md") for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)}
    assert len(shown) > 100
    assert [one for name in sorted(shown) for one in undocumented(pkgutil.resolve_name(name), name)] == []


if __name__ == "__main__":
    LIST.write_text(surface(), encoding="utf-8")
