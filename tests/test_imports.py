"""Modules that tests may import: a contract that only tightens.

Any test may import a package by its name (``plesio.policies``, ``plesio.runtime.transport``), which is its public
surface, the vocabulary that all layers share (``plesio.core`` and ``plesio.protocol``), and a framework's module of
``plesio.integrations``, which users import by its own name. Any other module is an internal one, which a test of its
own folder may need; each import of one makes it harder to move. So the number of internal modules that the tests of a
folder import may only fall. Lower its limit when it does.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGES = Path(__file__).parents[1] / "packages"
PUBLIC = ("plesio.core.", "plesio.protocol.", "plesio.integrations.")

MOST_INTERNAL = {
    "plesio-planning": 2,
    "plesio-planning/cli": 3,
    "plesio-planning/estimate": 16,
    "plesio-planning/measured": 26,
    "plesio-planning/report": 5,
    "plesio-planning/sim": 8,
    "plesio-planning/studies": 46,
    "plesio-planning/theory": 19,
    "plesio/advisor": 9,
    "plesio/bench": 32,
    "plesio/cli": 20,
    "plesio/cost": 19,
    "plesio/integrations": 1,
    "plesio/policies": 42,
    "plesio/protocol": 2,
    "plesio/report": 30,
    "plesio/runtime": 36,
    "plesio/runtime/checkpoints": 16,
    "plesio/runtime/coordinator": 11,
    "plesio/runtime/grid": 15,
    "plesio/runtime/habits": 1,
    "plesio/runtime/parameters": 3,
    "plesio/runtime/server": 19,
    "plesio/runtime/transport": 10,
    "plesio/runtime/worker": 36,
    "plesio/runtime/worlds": 21,
    "plesio/sim": 5,
    "plesio/support": 22,
    "plesio/tasks": 11,
    "plesio/testbed": 8,
    "plesio/watch": 2,
}


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of this repository that a file imports names from."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.ImportFrom(module=str(module)):
                yield module
            case ast.Import(names=names):
                yield from (alias.name for alias in names)


def is_internal(module: str) -> bool:
    package = module.partition(".")[0].replace("_", "-")
    path = PACKAGES / package / "src" / Path(*module.split("."))
    return path.with_suffix(".py").exists() and not module.startswith(PUBLIC)


def internal_modules() -> dict[str, set[str]]:
    """The internal modules that the tests of each folder import; the runtime's folders count one by one."""
    found = defaultdict(set)
    for package in PACKAGES.iterdir():
        for path in (package / "tests").rglob("*.py"):
            folders = path.relative_to(package / "tests").parts[:-1]
            name = "/".join([package.name, *folders[: 1 + ("runtime" in folders)]])
            found[name] |= {module for module in imported(path) if is_internal(module)}
    return found


def test_no_folder_of_tests_imports_more_internal_modules_than_before():
    more = {
        folder: f"{len(modules)}, {MOST_INTERNAL.get(folder, 0)} before: {', '.join(sorted(modules))}"
        for folder, modules in internal_modules().items()
        if len(modules) > MOST_INTERNAL.get(folder, 0)
    }
    assert not more, "import a package's public names instead, or test through the layer above"


def test_a_package_and_the_vocabulary_are_no_internals():
    assert [
        is_internal(name) for name in ("plesio.policies", "plesio.core.errors", "plesio.policies.ssp", "torch")
    ] == [
        False,
        False,
        True,
        False,
    ]
