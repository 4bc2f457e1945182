"""A policy's run as a log: what it heard, what it answered, and whether it would answer the same again.

A machine is a function of its events, so the log of a run in one world can be checked in another process, another world
or a later version. The file is JSON lines: a header, then one line for each event with the actions it drew.

    {"schema": 1, "policy": "ssp:4"}
    {"event": {"kind": "joined", "worker": 0}, "actions": [{"kind": "admit", "worker": 0, "clock": 0}, ...]}
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from plesio.core.errors import DataError, PolicySpecError, nearest
from plesio.core.files import write_whole
from plesio.core.records import from_values, to_values
from plesio.policies.events import Action, Event, Steer
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
    """All that one machine of ``policy``, started at ``clock``, heard and answered, in order."""

    policy: Policy
    entries: tuple[Entry, ...]
    clock: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where a replay first departs from its record; ``index`` counts entries from 0."""

    index: int
    event: Event
    recorded: tuple[Action, ...]
    replayed: tuple[Action, ...]


class Recorder:
    """A machine of ``policy`` that remembers its entries; takes the place of ``policy.start(clock=clock)``.

    >>> from plesio.policies import BSP, Joined
    >>> recorder = Recorder(BSP())
    >>> _ = recorder.handle(Joined(worker=0))
    >>> verify(recorder.log) is None
    True
    """

    __slots__ = ("_entries", "_machine", "_policy", "began")

    def __init__(self, policy: Policy, *, clock: int = 0) -> None:
        self._policy = policy
        self.began = clock
        """The clock at which the machine was started."""
        self._machine: Machine = policy.start(clock=clock)
        self._entries: list[Entry] = []

    def handle(self, event: Event) -> tuple[Action, ...]:
        """Answer as the policy's machine does."""
        actions = self._machine.handle(event)
        self._entries.append(Entry(event=event, actions=actions))
        return actions

    def hear_again(self, events: Iterable[Event], *, clock: int) -> None:
        """Start the machine at ``clock``, and hear what a run that is resumed has heard: it is then what it was."""
        self.began = clock
        self._machine = self._policy.start(clock=clock)
        self._entries.clear()
        for event in events:
            self.handle(event)

    @property
    def last_steer(self) -> Steer | None:
        """How all were last told to go on."""
        said = (action for entry in reversed(self._entries) for action in entry.actions if isinstance(action, Steer))
        return next(said, None)

    @property
    def events(self) -> list[Event]:
        """What was heard up to now."""
        return [entry.event for entry in self._entries]

    def validate(self) -> None:
        """Raise AssertionError when an invariant of the machine does not hold."""
        self._machine.validate()

    @property
    def log(self) -> EventLog:
        """What was heard and answered up to now."""
        return EventLog(policy=self._policy, entries=tuple(self._entries), clock=self.began)


def replay(policy: Policy, events: Iterable[Event]) -> list[tuple[Action, ...]]:
    """The actions with which a fresh machine of ``policy`` answers each of ``events``."""
    machine = policy.start()
    return [machine.handle(event) for event in events]


def verify(log: EventLog) -> Difference | None:
    """The first entry that a fresh machine answers otherwise, or None when it answers all as recorded.

    Raises:
        DataError: An event that no world sends at its place, such as an update of a worker that has not joined.
    """
    machine = log.policy.start(clock=log.clock)
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
    return to_values(event)


def encode_action(action: Action) -> dict[str, Any]:
    """The action as a dictionary of JSON values."""
    return to_values(action)


def decode_event(data: object) -> Event:
    """The event that `encode_event` wrote.

    Raises:
        DataError: It is no event, or a field is missing, unknown or of another type.
    """
    event: Event = _decode(data, kinds=Event, what="event")
    return event


def decode_action(data: object) -> Action:
    """The action that `encode_action` wrote.

    Raises:
        DataError: It is no action, or a field is missing, unknown or of another type.
    """
    action: Action = _decode(data, kinds=Action, what="action")
    return action


def write_log(path: Path, log: EventLog) -> None:
    """Write ``log`` to ``path`` so that a reader sees the old file or the new one, never half of one."""
    header: dict[str, Any] = {"schema": LOG_SCHEMA_VERSION, "policy": log.policy.spec}
    if log.clock:
        header["clock"] = log.clock
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
    policy, clock = _decode_header(path, lines[0] if lines else "")
    entries = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            entries.append(_decode_entry(json.loads(line)))
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not JSON: {error}") from error
        except DataError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
    return EventLog(policy=policy, entries=tuple(entries), clock=clock)


def _decode_header(path: Path, line: str) -> tuple[Policy, int]:
    try:
        header = json.loads(line)
        version, spec, clock = header["schema"], header["policy"], int(header.get("clock", 0))
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} is not an event log: its first line is no header") from None
    if version != LOG_SCHEMA_VERSION:
        raise DataError(f"{path} has event log schema version {version}; this Plesio reads {LOG_SCHEMA_VERSION}")
    try:
        return parse_policy(str(spec)), clock
    except PolicySpecError as error:
        raise DataError(f"{path}, line 1: {error}") from error


def _encode_entry(entry: Entry) -> dict[str, Any]:
    return {"event": encode_event(entry.event), "actions": [encode_action(action) for action in entry.actions]}


def _decode_entry(data: object) -> Entry:
    if not isinstance(data, dict) or data.keys() != {"event", "actions"} or not isinstance(data["actions"], list):
        raise DataError('an entry is {"event": {...}, "actions": [...]}')
    return Entry(event=decode_event(data["event"]), actions=tuple(decode_action(item) for item in data["actions"]))


def _decode(data: object, *, kinds: Any, what: str) -> Any:
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise DataError(f'an {what} is an object with a "kind"')
    known = [kind.__struct_config__.tag for kind in get_args(kinds)]
    if data["kind"] not in known:
        raise DataError(f'unknown {what} "{data["kind"]}"; {nearest(data["kind"], known)}')
    try:
        return from_values(data, kinds)
    except DataError as error:
        raise DataError(f"{what} {data['kind']}: {error}") from error
