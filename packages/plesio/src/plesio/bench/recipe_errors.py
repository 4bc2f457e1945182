"""Pydantic's findings about a recipe, in plain lines: which file, which key, what to write instead."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from plesio.core.errors import nearest

MAX_LINES = 2

_TEMPLATES = {
    "missing": "is missing",
    "int_type": "is {input!r}; write a whole number",
    "int_from_float": "is {input!r}; write a whole number",
    "int_parsing": "is {input!r}; write a whole number",
    "float_parsing": "is {input!r}; write a number",
    "float_type": "is {input!r}; write a number",
    "finite_number": "is {input!r}; write a finite number",
    "string_type": "is {input!r}; write a text in quotes",
    "tuple_type": "is {input!r}; write a list in [ ]",
    "dict_type": "is {input!r}; write a table",
    "model_type": "is {input!r}; write a table",
    "model_attributes_type": "is {input!r}; write a table",
    "too_short": "is empty; write one or more",
    "greater_than": "is {input!r}; write more than {gt}",
    "greater_than_equal": "is {input!r}; write {ge} or more",
    "union_tag_not_found": 'has no kind; write one, as in {{ kind = "constant", mean = "20 ms" }}',
}


def explain(error: ValidationError, *, where: str, flags: Mapping[tuple[str, ...], str]) -> str:
    """Explain each finding in one line, two lines at most.

    Args:
        error: Findings of pydantic.
        where: The file, as the user wrote it.
        flags: Command-line flags whose values replaced those of the file, by the keys they replaced.
    """
    lines: list[str] = []
    said: list[tuple[int | str, ...]] = []
    for finding in error.errors(include_url=False):
        loc = finding["loc"]
        if any(earlier[: len(loc)] == loc for earlier in said):
            continue  # follows from one within it: a list without its bad item is too short
        said.append(loc)
        flag = flags.get(tuple(str(part) for part in loc[:2]))
        place = [where, _key(loc)] if flag is None else [flag]
        lines.append(f"{': '.join(part for part in place if part)}{_message(finding)}")
    if len(lines) > MAX_LINES:
        lines = [lines[0], f"(and {len(lines) - 1} more)"]
    return "\n".join(lines)


def _key(loc: tuple[int | str, ...]) -> str:
    """Write a key as ``run.policies[2]``; the name of a step time's kind is no part of the path in the file."""
    text = ""
    for index, part in enumerate(loc):
        if isinstance(part, int):
            text += f"[{part}]"
        elif index == 0 or loc[index - 1] != "step_time":
            text += f".{part}" if text else part
    return text


def _message(finding: Mapping[str, Any]) -> str:
    context = finding.get("ctx", {})
    kind = finding["type"]
    if kind == "value_error":
        return f": {context['error']}"
    if kind == "union_tag_invalid":
        kinds = [tag.strip(" '") for tag in context["expected_tags"].split(",")]
        return f' has the unknown kind "{context["tag"]}"; {nearest(context["tag"], kinds)}'
    if kind in _TEMPLATES:
        return " " + _TEMPLATES[kind].format(input=finding["input"], **context)
    return f" is {finding['input']!r}: {finding['msg']}"
