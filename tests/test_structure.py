"""The code base as a whole: a public class's name stands once, and modules do not import each other in a circle."""

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGES = Path(__file__).parents[1] / "packages"


def test_a_public_class_has_a_name_of_its_own():
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGES.glob("*/src/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(PACKAGES).as_posix())
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_modules_do_not_import_each_other_in_a_circle():
    paths = {
        ".".join(path.relative_to(src).with_suffix("").parts).removesuffix(".__init__"): path
        for src in PACKAGES.glob("*/src")
        for path in src.glob("**/*.py")
    }
    imports: dict[str, set[str]] = {}
    for module, path in paths.items():
        named = {
            inner if (inner := f"{node.module}.{alias.name}") in paths else str(node.module)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        imports[module] = {name for name in named if name in paths} - {module}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from error
