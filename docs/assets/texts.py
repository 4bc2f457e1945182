"""Tables that pages take from data files, here or of `plesio_planning.texts`, so that no page repeats them by hand.

A line ``<!-- texts: chapter proofs -->`` becomes the table of that part; ``statements A`` has the twenty of the text,
and ``statements other`` the rest. ``adaptive numbers`` has the numbers and switches of the policy, from its code.
"""

import dataclasses
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plesio.core.inputs import explanations
from plesio.policies.adaptive.numbers import Numbers, Options
from plesio.policies.fields import as_text

_TEXTS = Path(__file__).parents[2] / "packages" / "plesio-planning" / "src" / "plesio_planning" / "texts"
_OWN = Path(__file__).parent
_NOTEBOOK = re.compile(r"\[([^\]]+)\]\((?:\.\./)*log\.md(?:#[\w-]+)?\)")
_MARK = re.compile(r"^<!-- texts: (\w+) (\w+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace each mark by its table, and a link to the notebook, which the site leaves out, by its words."""
    return _MARK.sub(lambda mark: _table(mark[1], mark[2]), _NOTEBOOK.sub(r"\1", markdown))


def _table(file: str, part: str) -> str:
    if file == "adaptive":
        return _lines(("key", "default", "meaning"), list(_numbers()))
    folder = _OWN if (_OWN / f"{file}.toml").exists() else _TEXTS
    texts = tomllib.loads((folder / f"{file}.toml").read_text(encoding="utf-8"))
    if file != "statements":
        head = ("where", "claim", "stands", "why", "command")
        rows = [(e["place"], e["claim"], e["stand"], e["reason"], _code(e)) for e in texts[part]["entries"]]
    else:
        own = [each for each in texts["statements"] if each["place"].startswith("A.") == (part == "A")]
        head = ("where", "statement", "verdict", "why", "the text", "more")
        rows = [(e["place"], e["claim"], e["verdict"], e["reason"], e.get("answer", ""), _code(e)) for e in own]
    return _lines(head, rows)


def _lines(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ("---",) * len(head), *rows])


def _numbers() -> Iterator[tuple[str, str, str]]:
    """Yield key, default and meaning of each number and switch, as `plesio list policies` lists them."""
    meanings = explanations(Numbers, "Attributes") | explanations(Options, "Attributes")
    for one in dataclasses.fields(Options):
        yield f"`{one.name}`", as_text(one.default), meanings[one.name].rstrip(".").replace("``", "`")


def _code(entry: dict[str, str]) -> str:
    return f"`{entry['command']}`" if entry.get("command") else ""
