"""Parameters in the errors of planning: each that they name is one, so that it has an option."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import plesio_planning
from plesio.core.errors import ArgumentError, ConfigError
from plesio.core.inputs import inputs_of
from plesio_planning.estimate.estimate import estimate
from plesio_planning.studies import STUDIES
from plesio_planning.theory import THEOREMS


def named() -> Iterator[tuple[str, str]]:
    """Every parameter that a message names, and where."""
    for path in sorted(Path(plesio_planning.__path__[0]).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                for name in re.findall(r"`([a-z]\w*)(?:`| = )", node.value):
                    yield name, f"{path.name}:{node.lineno}"


def test_whatever_a_message_names_is_an_input():
    functions = [*(study.function for study in STUDIES), *(theorem.function for theorem in THEOREMS), estimate]
    known = {one.name for function in functions for one in inputs_of(function)}
    assert {where: name for name, where in named() if name not in known} == {}


def test_an_error_of_a_value_is_about_its_parameter():
    error = ArgumentError.about("cluster", ArgumentError("`dp` is 3; write `dp = 2`"))
    assert error.parameters == ("cluster", "dp")
    assert error.worded({"cluster": "--cluster"}) == "--cluster: dp is 3; write dp = 2"
    assert str(ArgumentError.about("cluster", ConfigError('unknown accelerator "h10"'))) == (
        'cluster: unknown accelerator "h10"'
    )
