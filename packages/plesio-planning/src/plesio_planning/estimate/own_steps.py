"""Steps that a user measured: a table, a trace, or a log of a program."""

import csv
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plesio.core.errors import ConfigError, DataError, nearest
from plesio.core.files import read_given
from plesio.core.inputs import Input
from plesio.core.trace import read_trace
from plesio.core.units import counted, parse_seconds

_MEGATRON = re.compile(r"elapsed time per iteration \(ms\): ([0-9.]+)")
_STEP_COLUMNS = ("step", "step_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStep:
    """A measured step.

    Attributes:
        given: Inputs of the estimate in which it differs from the one that was asked for.
        step_s: Seconds that it took.
    """

    given: Mapping[str, Any]
    step_s: float


def read_own_steps(path: Path, inputs: Sequence[Input]) -> list[OwnStep]:
    """Read measured steps: a table, a trace, or a log of Megatron-LM.

    A table (.csv) has a column ``step`` of seconds or durations; its others are options of the estimate, without
    dashes, in which a step differs from the one that is asked for. A trace (.jsonl) and a log are of the asked one.

    Raises:
        ConfigError: There are none, or a column or a value is none. One line, with its place.
    """
    if path.suffix == ".jsonl":
        try:
            return [OwnStep(given={}, step_s=_step_of_trace(path))]
        except DataError as error:
            raise ConfigError(str(error)) from None
    text = read_given(path, "file", instead="write a table of steps, a trace or a log")
    if path.suffix == ".csv":
        return list(_rows(path, text, inputs))
    steps = [float(found) / 1e3 for found in _MEGATRON.findall(text)]
    if not steps:
        raise ConfigError(
            f'{path} has no "elapsed time per iteration (ms)" of Megatron-LM; write a .csv with a column step'
        )
    return [OwnStep(given={}, step_s=statistics.median(steps))]


def _step_of_trace(path: Path) -> float:
    """Return the median time from one step's computing to the next one's."""
    begins = {record.clock: record.at_s for record in read_trace(path, kind="compute").records}
    steps = [begins[clock + 1] - start for clock, start in begins.items() if clock + 1 in begins]
    if not steps:
        raise ConfigError(f"{path} has no two steps after each other; write the trace of a longer run")
    return statistics.median(steps)


def _rows(path: Path, text: str, inputs: Sequence[Input]) -> Iterator[OwnStep]:
    known = {one.option[2:]: one for one in inputs} | {one.name: one for one in inputs}
    rows = list(csv.reader(line for line in text.splitlines() if line.strip() and not line.startswith("#")))
    if len(rows) < 2:
        raise ConfigError(f"{path} has no rows; write a header with a column step, and a row for each step")
    columns = [name.strip().lower() for name in rows[0]]
    for number, row in enumerate(rows[1:], start=1):
        if len(row) > len(columns):
            raise ConfigError(
                f"{path}, row {number}: {counted(len(row), 'value')} below {counted(len(columns), 'column')}; "
                "write commas between values, and points in decimals"
            )
    step = next((name for name in _STEP_COLUMNS if name in columns), None)
    if step is None:
        raise ConfigError(f"{path} has no column step; write one with the seconds of each step")
    for name in columns:
        if name != step and name not in known:
            raise ConfigError(f'{path}: "{name}" is no option of plesio estimate; {nearest(name, known)}')
    names = [name if name == step else known[name].name for name in columns]
    if repeated := next((name for name, one in zip(columns, names, strict=True) if names.count(one) > 1), None):
        raise ConfigError(f'{path} has two columns for "{repeated}"; write one')
    for number, row in enumerate(rows[1:], start=1):
        values = {name: value.strip() for name, value in zip(columns, row, strict=False)}
        try:
            given = {
                known[name].name: _value(known[name], text) for name, text in values.items() if text and name != step
            }
            step_s = _seconds(values.get(step, ""))
        except ConfigError as error:
            raise ConfigError(f"{path}, row {number}: {error}") from None
        yield OwnStep(given=given, step_s=step_s)


def _value(one: Input, text: str) -> Any:
    if one.kind == "switch":
        if text.lower() not in ("yes", "no", "true", "false", "1", "0"):
            raise ConfigError(f'"{text}" for {one.option[2:]}; write yes or no')
        return text.lower() in ("yes", "true", "1")
    return one.parse(text)


def _seconds(text: str) -> float:
    try:
        step_s = float(text)
    except ValueError:
        step_s = parse_seconds(text)
    if not 0 < step_s < math.inf:
        raise ConfigError(f'a step of "{text}"; write seconds, more than 0')
    return step_s
