"""A text made a `Task`: a name of the catalogue, ``module:attribute`` or ``path/file.py:attribute``.

The catalogue holds texts, not functions, so that listing the names imports neither torch nor scikit-learn.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from plesio.core.errors import PlesioError, TaskError, nearest

if TYPE_CHECKING:
    from plesio.tasks.task import Task

TASKS: Mapping[str, str] = MappingProxyType(
    {
        "digits": "plesio.tasks.digits:digits",
        "images": "plesio.tasks.images:images",
        "quadratic": "plesio.tasks.quadratic:quadratic",
        "stdlib_lm": "plesio.tasks.stdlib_lm:stdlib_lm",
        "vision": "plesio.tasks.vision:vision",
    }
)
"""The places where the catalogue's tasks are made: name to ``module:attribute``."""

TASK_NAMES: tuple[str, ...] = tuple(TASKS)


def load_task(spec: str, /, **options: Any) -> "Task":
    """Load the task that ``spec`` names, made with ``options``.

    The attribute is a `Task`, or a callable that returns one and takes the options as keyword arguments. Like the
    folder of a script that Python runs, a file's folder (or for a module the current one) is put on the import path, at
    its end so that nothing in it hides an installed package.

    >>> load_task("quadratic", dimension=8).metric_name
    'suboptimality'

    Args:
        spec: A name in `TASK_NAMES`, ``module:attribute``, or ``path/file.py:attribute``.
        options: Keyword arguments of the callable.

    Raises:
        TaskError: There is no such task, file, module or attribute; it cannot be imported; it is no task; or an option
            is unknown, missing or out of range.
    """
    origin = TASKS.get(spec, spec)
    place, colon, attribute = origin.rpartition(":")
    if not colon or not place or not attribute:
        raise TaskError(
            f'there is no task "{spec}": {nearest(spec, TASKS)} '
            '(your own is written "module:attribute" or "path/file.py:attribute")'
        )
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    try:
        found = getattr(module, attribute)
    except AttributeError:
        public = [name for name in vars(module) if not name.startswith("_")]
        raise TaskError(f'task "{spec}": {place} has no "{attribute}": {nearest(attribute, public)}') from None
    return _make(spec, found, options)


def _make(spec: str, found: object, options: Mapping[str, Any]) -> "Task":
    from plesio.tasks.task import Task

    made = found
    if not isinstance(found, Task) and callable(found):
        _check_options(spec, found, options)
        try:
            made = found(**options)
        except PlesioError:
            raise
        except Exception as error:
            raise TaskError(f'task "{spec}" cannot be made: {_where_and_why(error)}') from error
    elif options:
        raise TaskError(f'task "{spec}" is a finished Task and takes no options; got {", ".join(options)}')
    if not isinstance(made, Task):
        raise TaskError(f'task "{spec}" gives a {type(made).__name__}; give a plesio.tasks.Task or a function of one')
    return made


def _check_options(spec: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Say which option is unknown or missing before the call does it in Python's words."""
    parameters = inspect.signature(factory).parameters.values()
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    accepts_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [name for name in options if name not in named]
    if unknown and not accepts_any:
        accepted = f"it accepts {', '.join(named)}" if named else "it accepts none"
        raise TaskError(f'task "{spec}" has no option "{unknown[0]}"; {accepted}')
    missing = [name for name, p in named.items() if p.default is p.empty and name not in options]
    if missing:
        raise TaskError(f'task "{spec}" needs a value for its option {", ".join(missing)}')


def _load_module(name: str) -> ModuleType:
    _add_to_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise TaskError(f'the module "{name}" of a task cannot be imported: {_where_and_why(error)}') from error


def _load_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise TaskError(f"there is no file {path} to take a task from")
    # The path is in the name, so two files called task.py are two modules, and one file is executed only once.
    name = f"plesio_task_{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    _add_to_path(path.parent)
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None, "the suffix is .py, which has a loader"
    assert found.loader is not None, "the suffix is .py, which has a loader"
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # before it is executed: dataclasses and pickle look themselves up there
    try:
        found.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise TaskError(f"{path} cannot be imported: {_where_and_why(error)}") from error
    return module


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _where_and_why(error: Exception) -> str:
    """Describe the error in one line, with the innermost place in Python source."""
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    if isinstance(error, SyntaxError) or not frames:
        return what
    return f"{what} ({frames[-1].filename}, line {frames[-1].lineno})"
