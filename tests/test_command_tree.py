"""All commands at once: options that they share, completion."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from plesio.cli.commands import app, invoke
from plesio.cli.function_options import DerivedCommand

NO_TABLE = {
    "checkpoint export",
    "checkpoint verify",
    "lab testbed clean",
    "lab testbed run",
    "launch k8s",
    "launch slurm",
    "launch torchx",
    "run",
    "study all",
    "watch",
}
"""Commands that print no table."""


def leaves(command: Any, path: str = "", context: Any = None) -> Iterator[tuple[str, set[str]]]:
    """Yield each command that does something, with its options."""
    if isinstance(command, DerivedCommand):
        command = command.callback()  # type: ignore[misc]
    context = command.context_class(command, info_name=path.rpartition(" ")[2] or "plesio", parent=context)
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            yield from leaves(command.get_command(context, name), f"{path} {name}".strip(), context)
    else:
        yield path, {name for parameter in command.get_params(context) for name in parameter.opts}


def groups(command: Any, path: str = "", context: Any = None) -> Iterator[str]:
    """Yield each group of commands."""
    if hasattr(command, "list_commands"):
        yield path
        for name in command.list_commands(context):
            yield from groups(command.get_command(context, name), f"{path} {name}".strip(), context)


OPTIONS = dict(leaves(typer.main.get_command(app)))


def test_a_command_that_prints_a_table_has_json():
    assert {path for path, options in OPTIONS.items() if "--json" not in options} - NO_TABLE == set()


def test_a_command_that_writes_what_it_found_overwrites_it_only_when_asked():
    writing = {path for path, options in OPTIONS.items() if options & {"--json", "--out"}}
    assert {path for path in writing if "--overwrite" not in OPTIONS[path]} == set()


@pytest.mark.parametrize("group", [*groups(typer.main.get_command(app))])
def test_a_group_by_itself_is_its_help_or_what_it_lists(group: str, capsys: pytest.CaptureFixture[str]):
    assert invoke(group.split()) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert invoke([*group.split(), "--help"]) == 0
    assert group == "list" or told == capsys.readouterr()


@pytest.mark.parametrize("line", ["study pipeline", "estimate", "list bounds", "lab validate estimator"])
def test_what_planning_adds_is_named_where_it_is_not_installed(line: str):
    code = """
import importlib.metadata, sys
importlib.metadata.entry_points = lambda group: []
from plesio.cli.commands import invoke
sys.exit(invoke(sys.argv[1:]))
"""
    done = subprocess.run([sys.executable, "-c", code, *line.split()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("`: pip install plesio-planning\n")


def complete(*words: str) -> list[str]:
    """Complete a line as bash asks for it; fails if that loads torch."""
    code = """
import atexit, sys
atexit.register(lambda: "torch" in sys.modules and print("torch"))
from plesio.cli.main import main
main()
"""
    line = {"_PLESIO_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **line}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("plesio", "com"), ["compare"]),
        (("plesio", "lab", "ch"), ["characterise"]),
        (("plesio", "list", "po"), ["policies"]),
        (("plesio", "compare", "--clu"), ["--cluster"]),
        (("plesio", "report", "--po"), ["--policy"]),
        (("plesio", "calib"), []),
    ],
)
def test_a_line_is_completed_without_torch(words: tuple[str, ...], found: list[str]):
    assert complete(*words) == found


def test_the_shells_own_part_of_completion_is_shown():
    done = subprocess.run(
        [sys.executable, "-m", "plesio", "--show-completion", "bash"],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},  # no shell may be among the parents
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "_PLESIO_COMPLETE=complete_bash" in done.stdout
