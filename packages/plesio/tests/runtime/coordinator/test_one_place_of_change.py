"""Fields of a run's members and of its ledger are changed in one place each: by the modules that define them."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import plesio
from plesio.protocol.figures import RunInfo
from plesio.runtime.coordinator.ledger import Ledger
from plesio.runtime.coordinator.members import Member

RUNTIME = Path(plesio.__file__).parent / "runtime"
MODULES = [path for part in ("coordinator", "server", "worlds", "grid") for path in RUNTIME.glob(f"{part}/*.py")]
MEMBER = {field.name for field in fields(Member)}
LEDGER = {name for name in vars(Ledger(policy="bsp", info=RunInfo(), num_workers=1)) if not name.startswith("_")}
CHANGES = {"add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "setdefault", "update"}


def changed(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what this piece of code assigns, deletes, or changes by a method of collections."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            for target in targets:
                yield from target.elts if isinstance(target, ast.Tuple) else [target]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            yield target
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in CHANGES:
            yield value


def foreign(text: str, names: set[str], *, of: str) -> list[str]:
    """The changes in this code to attributes of these names, of others than ``self`` whose names end like ``of``."""
    found = []
    for node in ast.walk(ast.parse(text)):
        for target in changed(node):
            inner = target.value if isinstance(target, ast.Subscript) else target
            if isinstance(inner, ast.Attribute) and inner.attr in names:
                owner = ast.unparse(inner.value)
                if owner != "self" and owner.endswith(of):
                    found.append(ast.unparse(node))
    return found


def test_a_members_fields_are_changed_by_its_own_methods():
    modules = [path for path in RUNTIME.glob("coordinator/*.py") if path.name != "members.py"]
    elsewhere = {path.name: foreign(path.read_text(), MEMBER, of="") for path in modules}
    assert {name: found for name, found in elsewhere.items() if found} == {}


def test_the_ledgers_fields_are_changed_by_its_own_methods():
    elsewhere = {path.name: foreign(path.read_text(), LEDGER, of="ledger") for path in MODULES}
    assert {name: found for name, found in elsewhere.items() if found} == {}


def test_changes_are_found():
    """Planted: an assignment, one of several, a sum, a deletion, an item, and a call."""
    text = "a.clock = 1\na.live, a.left = 0, 0\na.rack += 1\ndel a.lost[0]\na.racks[3] = 1\na.lost.append(2)\n"
    assert len(foreign(text, MEMBER | LEDGER, of="a")) == 7
    assert foreign("self.clock = 1\nclock = a.clock\nself.lost.append(1)", MEMBER | LEDGER, of="") == []
