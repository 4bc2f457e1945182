"""The code base as a whole: a public class's name stands once."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGES = Path(__file__).parents[1] / "packages"


def test_a_public_class_has_a_name_of_its_own():
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGES.glob("*/src/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(PACKAGES).as_posix())
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
