"""A policy's run as a log: what it heard, what it answered, and whether it would answer the same again.

A machine is a function of its events, so the log of a run in one world can be checked in another process, another world
or a later version. The file is JSON lines: a header, then one line for each event with the actions it drew.

    {"schema": 1, "policy": "ssp:4"}
    {"event": {"kind": "joined", "worker": 0}, "actions": [{"kind": "admit", "worker": 0, "clock": 0}, ...]}
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from plesio.core.errors import DataError, PolicySpecError, nearest
from plesio.core.files import write_whole
from plesio.policies.events import Action, Event, LeaveReason, RefuseReason
from plesio.policies.policy import Machine, Policy
from plesio.policies.spec import parse_policy

__all__ = [
    "LOG_SCHEMA_VERSION",
    "Difference",
    "Entry",
    "EventLog",
    "Recorder",
    "decode_action",
    "decode_event",
    "encode_action",
    "encode_event",
    "read_log",
    "replay",
    "verify",
    "write_log",
]

LOG_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One event and the actions that answered it."""

    event: Event
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLog:
    """All that one machine of ``policy`` heard and answered, in order."""

    policy: Policy
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where a replay first departs from its record; ``index`` counts entries from 0."""

    index: int
    event: Event
    recorded: tuple[Action, ...]
    replayed: tuple[Action, ...]


class Recorder:
    """A machine of ``policy`` that remembers its entries; takes the place of ``policy.start()``.

    >>> from plesio.policies import BSP, Joined
    >>> recorder = Recorder(BSP())
    >>> _ = recorder.handle(Joined(worker=0))
    >>> verify(recorder.log) is None
    True
    """

    __slots__ = ("_entries", "_machine", "_policy")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._machine: Machine = policy.start()
        self._entries: list[Entry] = []

    def handle(self, event: Event) -> tuple[Action, ...]:
        """Answer as the policy's machine does."""
        actions = self._machine.handle(event)
        self._entries.append(Entry(event=event, actions=actions))
        return actions

    def validate(self) -> None:
        """Raise AssertionError when an invariant of the machine does not hold."""
        self._machine.validate()

    @property
    def log(self) -> EventLog:
        """What was heard and answered up to now."""
        return EventLog(policy=self._policy, entries=tuple(self._entries))


def replay(policy: Policy, events: Iterable[Event]) -> list[tuple[Action, ...]]:
    """The actions with which a fresh machine of ``policy`` answers each of ``events``."""
    machine = policy.start()
    return [machine.handle(event) for event in events]


def verify(log: EventLog) -> Difference | None:
    """The first entry that a fresh machine answers otherwise, or None when it answers all as recorded.

    Raises:
        DataError: An event that no world sends at its place, such as an update of a worker that has not joined.
    """
    machine = log.policy.start()
    for index, entry in enumerate(log.entries):
        try:
            actions = machine.handle(entry.event)
        except AssertionError as error:
            raise DataError(f"entry {index + 1} of the log cannot follow those before it: {error}") from error
        if actions != entry.actions:
            return Difference(index=index, event=entry.event, recorded=entry.actions, replayed=actions)
    return None


def encode_event(event: Event) -> dict[str, Any]:
    """The event as a dictionary of JSON values.

    >>> from plesio.policies import Joined
    >>> encode_event(Joined(worker=3))
    {'kind': 'joined', 'worker': 3}
    """
    return _encode(event)


def encode_action(action: Action) -> dict[str, Any]:
    """The action as a dictionary of JSON values."""
    return _encode(action)


def decode_event(data: object) -> Event:
    """The event that `encode_event` wrote.

    Raises:
        DataError: It is no event, or a field is missing, unknown or of another type.
    """
    event: Event = _decode(data, kinds=_EVENTS, what="event")
    return event


def decode_action(data: object) -> Action:
    """The action that `encode_action` wrote.

    Raises:
        DataError: It is no action, or a field is missing, unknown or of another type.
    """
    action: Action = _decode(data, kinds=_ACTIONS, what="action")
    return action


def write_log(path: Path, log: EventLog) -> None:
    """Write ``log`` to ``path`` so that a reader sees the old file or the new one, never half of one."""
    header = {"schema": LOG_SCHEMA_VERSION, "policy": log.policy.spec}
    lines = [header, *(_encode_entry(entry) for entry in log.entries)]
    write_whole(path, "".join(json.dumps(line) + "\n" for line in lines))


def read_log(path: Path) -> EventLog:
    """The log in a file written by `write_log`.

    Raises:
        DataError: The file is missing, broken, or of another schema version; the message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the event log {path}: {error}") from error
    policy = _decode_header(path, lines[0] if lines else "")
    entries = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            entries.append(_decode_entry(json.loads(line)))
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not JSON: {error}") from error
        except DataError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
    return EventLog(policy=policy, entries=tuple(entries))


def _decode_header(path: Path, line: str) -> Policy:
    try:
        header = json.loads(line)
        version, spec = header["schema"], header["policy"]
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} is not an event log: its first line is no header") from None
    if version != LOG_SCHEMA_VERSION:
        raise DataError(f"{path} has event log schema version {version}; this Plesio reads {LOG_SCHEMA_VERSION}")
    try:
        return parse_policy(str(spec))
    except PolicySpecError as error:
        raise DataError(f"{path}, line 1: {error}") from error


def _encode_entry(entry: Entry) -> dict[str, Any]:
    return {"event": encode_event(entry.event), "actions": [encode_action(action) for action in entry.actions]}


def _decode_entry(data: object) -> Entry:
    if not isinstance(data, dict) or data.keys() != {"event", "actions"} or not isinstance(data["actions"], list):
        raise DataError('an entry is {"event": {...}, "actions": [...]}')
    return Entry(event=decode_event(data["event"]), actions=tuple(decode_action(item) for item in data["actions"]))


def _encode(value: Event | Action) -> dict[str, Any]:
    values = {field.name: getattr(value, field.name) for field in fields(value)}
    omitted = {field.name for field in fields(value) if _is_optional(field) and values[field.name] == field.default}
    return {"kind": type(value).__name__.lower(), **{name: values[name] for name in values if name not in omitted}}


def _decode(data: object, *, kinds: Mapping[str, type], what: str) -> Any:
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise DataError(f'an {what} is an object with a "kind"')
    values = {key: value for key, value in data.items() if key != "kind"}
    kind = kinds.get(data["kind"])
    if kind is None:
        raise DataError(f'unknown {what} "{data["kind"]}"; {nearest(data["kind"], kinds)}')
    hints = get_type_hints(kind)
    needed = {field.name for field in fields(kind) if not _is_optional(field)}
    if not needed <= values.keys() <= hints.keys():
        raise DataError(f"{what} {data['kind']} has fields {', '.join(values)}; expected {', '.join(hints)}")
    try:
        return kind(**{name: _READERS[hints[name]](value) for name, value in values.items()})
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} {data['kind']}: {error}") from error


def _is_optional(field: Field[Any]) -> bool:
    return "omitted_by_default" in field.metadata


def _exactly(kind: type) -> Callable[[Any], Any]:
    def read(value: object) -> object:
        # `type(...) is`, because True is an int to isinstance.
        if type(value) is not kind:
            raise TypeError(f"{value!r} is not {kind.__name__}")
        return value

    return read


def _read_wholes(values: Any) -> tuple[int, ...]:
    return tuple(_READERS[int](value) for value in _READERS[list](values))


def _read_updates(values: Any) -> tuple[tuple[int, ...], ...]:
    pairs = tuple(_read_wholes(value) for value in _READERS[list](values))
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"updates {values!r} are not pairs of worker and clock")
    return pairs


def _read_figures(values: Any) -> tuple[float, ...]:
    return tuple(_READERS[float](value) for value in _READERS[list](values))


def _read_rows(values: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(_read_figures(value) for value in _READERS[list](values))


def _read_inputs(values: Any) -> tuple[tuple[str, float], ...]:
    return tuple((_READERS[str](name), _READERS[float](value)) for name, value in _READERS[list](values))


def _read_sequence(values: object) -> list[Any] | tuple[Any, ...]:
    if not isinstance(values, list | tuple):
        raise TypeError(f"{values!r} is no list")
    return values


_READERS: dict[Any, Callable[[Any], Any]] = {
    bool: _exactly(bool),
    int: _exactly(int),
    int | None: _exactly(int),  # None is left out
    float: _exactly(float),
    str: _exactly(str),
    list: _read_sequence,
    LeaveReason: LeaveReason,
    RefuseReason: RefuseReason,
    tuple[int, ...]: _read_wholes,
    tuple[float, ...]: _read_figures,
    tuple[tuple[float, ...], ...]: _read_rows,
    tuple[tuple[str, float], ...]: _read_inputs,
    tuple[tuple[int, int], ...]: _read_updates,
}
_EVENTS = {kind.__name__.lower(): kind for kind in get_args(Event)}
_ACTIONS = {kind.__name__.lower(): kind for kind in get_args(Action)}
