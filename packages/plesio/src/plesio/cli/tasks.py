"""`plesio list tasks`: the tasks of the catalogue, one line each."""

import ast
from importlib.util import find_spec
from pathlib import Path

from plesio.cli.listing import tell
from plesio.cli.options import Json, Overwrite

EXAMPLES = """\b
Examples:
  plesio list tasks
\b
A recipe names one of them, or your own: name = "my_module:make_task" or
name = "my_task.py:make_task" (beside the recipe)."""


def tasks(json_file: Json = None, overwrite: Overwrite = False) -> None:
    """List the tasks that a recipe can name.

    A task is a model with its data, loss, metric and optimizer.
    """
    from plesio.tasks.load import TASKS

    lines = {name: _explanation(origin) for name, origin in TASKS.items()}
    tell({"tasks": lines}, json_file=json_file, overwrite=overwrite)


def num_tasks() -> int:
    from plesio.tasks.load import TASKS

    return len(TASKS)


def _explanation(origin: str) -> str:
    """Read the first line of the docstring of ``module:attribute`` from its source: an import would import torch."""
    module, _, attribute = origin.partition(":")
    spec = find_spec(module)
    assert spec is not None, f"the catalogue names {module}"
    assert spec.origin is not None, f"{module} is a file"
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == attribute:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    raise AssertionError(f"{module} has no function {attribute}")
