"""Step times and speeds on the command line, as tables of a recipe."""

import re

from plesio.core.errors import ConfigError, nearest

Table = dict[str, object]
"""A table of a recipe."""

STEP_TIME = "20 ms"
"""The duration of a step on a machine that was not measured."""

_KINDS = {"constant": "mean", "lognormal": "mean", "gamma": "mean", "pareto": "min", "trace": "path"}
"""The key whose name need not be written, for each kind of step time."""


def step_time_table(text: str) -> Table:
    """Parse a recipe's ``step_time``.

    >>> step_time_table("20 ms")
    {'kind': 'constant', 'mean': '20 ms'}
    >>> step_time_table("pareto:15 ms,shape=2.5")
    {'kind': 'pareto', 'min': '15 ms', 'shape': 2.5}
    """
    kind, colon, rest = text.partition(":")
    if not colon:
        return {"kind": "constant", "mean": parsed_time("--step-time", text)}
    if kind not in _KINDS:
        raise ConfigError(f'--step-time "{text}": there is no kind "{kind}"; {nearest(kind, _KINDS)}')
    if "=" not in rest.split(",")[0]:
        rest = f"{_KINDS[kind]}={rest}"
    return {"kind": kind} | pairs_table("--step-time", rest, example="lognormal:20ms,cv=0.3")


def slow_table(text: str, *, num_workers: int) -> Table:
    """Make an entry of a recipe's ``[[workers.unequal]]``, from a rank and its speed.

    >>> slow_table("3:0.33", num_workers=4)
    {'rank': 3, 'speed': 0.33}
    """
    match = re.fullmatch(r"(\d+):(\d*\.?\d+)", text)
    if match is None or float(match[2]) == 0:
        raise ConfigError(f'--slow "{text}": write a rank and its speed, as in 3:0.33')
    rank = int(match[1])
    if rank >= num_workers:
        raise ConfigError(f'--slow "{text}": there is no rank {rank} among {num_workers} workers (0 is the first)')
    return {"rank": rank, "speed": float(match[2])}


def pairs_table(flag: str, text: str, *, example: str) -> Table:
    """Parse a table of a recipe in one text.

    >>> pairs_table("--stalls", "probability=0.01, factor=10", example="")
    {'probability': 0.01, 'factor': 10.0}
    """
    table: Table = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise ConfigError(f'{flag} "{text}": write keys and their values, as in {example}')
        if key in table:
            raise ConfigError(f'{flag} "{text}": {key} is there twice; write it once')
        table[key] = _number_or_text(value)
    return table


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def parsed_time(flag: str, text: str) -> str:
    from plesio.core.units import parse_seconds

    try:
        parse_seconds(text)
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error}") from None
    return text
