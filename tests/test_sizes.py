"""Limits of length for files and functions; and no docstring begins with a relative clause.

Complexity is ruff's matter (C901 in pyproject.toml). A function is counted without its docstring and its decorators:
a docstring is what people read instead of the code, and a study's is the help of its command, where every input has
its line.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ROOT / "packages"

MOST_FILE_LINES = 450
MOST_FUNCTION_LINES = 80
CLAUSES = {"Who", "Whoever", "What", "Whatever", "Of", "Where", "Those", "As", "Nobody", "Whether"}
"""First words of a relative clause; a docstring begins with a verb or, for a value, with a noun."""


def function_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` to the end, without those of the docstring."""
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    docstring = function.body[0]
    return lines - (docstring.end_lineno - docstring.lineno + 1)


def functions() -> Iterator[tuple[str, int]]:
    for path in sorted(PACKAGES.glob("*/src/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(PACKAGES).as_posix()}: {node.name}", function_lines(node)


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the place and text of all docstrings in the repository's code, those of attributes too."""
    for folder in ("packages", "tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        yield f"{path.relative_to(ROOT).as_posix()}:{node.lineno}", text


def test_docstrings_begin_with_a_verb_or_a_noun():
    assert {place for place, text in docstrings() if text.partition(" ")[0] in CLAUSES} == set()


def test_no_file_is_too_long():
    lines = {
        path.relative_to(PACKAGES).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in PACKAGES.glob("*/src/**/*.py")
    }
    assert {name for name, number in lines.items() if number > MOST_FILE_LINES} == set()


def test_no_function_is_too_long():
    assert {name for name, number in functions() if number > MOST_FUNCTION_LINES} == set()


def test_docstrings_and_decorators_do_not_count():
    text = '@decorated\n@again\ndef f(\n    x,\n):\n    """One.\n\n    Two.\n    """\n    return x\n'
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    assert function_lines(function) == 4
