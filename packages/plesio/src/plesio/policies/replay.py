"""A policy's run as a log: its events and answers, and a check that it would answer the same again.

A machine is a function of its events, so the log of a run in one world can be checked in another process, another world
or a later version. The file is JSON lines: a header, then one line for each event with the actions it drew.

    {"schema": 1, "policy": "ssp:4"}
    {"event": {"kind": "joined", "worker": 0}, "actions": [{"kind": "admit", "worker": 0, "clock": 0}, ...]}
"""

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_args

from plesio.core.errors import DataError, PolicySpecError, nearest
from plesio.core.files import reason_of, write_whole
from plesio.core.records import from_values, to_values
from plesio.policies.events import Action, Event, Steer
from plesio.policies.policy import Policy, PolicyMachine
from plesio.policies.spec import parse_policy

LOG_SCHEMA_VERSION = 1
LEFT_OUT = {"left_out": "updates"}
"""The line after which updates, and the answers to them, are not in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One event and the actions that answered it."""

    event: Event
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLog:
    """The events and answers of one machine of ``policy``, started at ``clock``, in order.

    Attributes:
        entries: All of them, or all but updates after the first ``num_whole``.
        num_whole: Number of first entries that follow each other without a gap; None for all.
    """

    policy: Policy
    entries: tuple[LogEntry, ...]
    clock: int = 0
    num_whole: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """The first departure of a replay from its record; ``index`` counts entries from 0."""

    index: int
    event: Event
    recorded: tuple[Action, ...]
    replayed: tuple[Action, ...]


class Entries(Protocol):
    """Takes a log as it comes."""

    def begin(self, clock: int) -> None:
        """Begin the log of a machine that was started at this clock, and drop earlier entries."""
        ...

    def add(self, entry: LogEntry) -> None:
        """Add the next entry."""
        ...


class KeptEntries(list[LogEntry]):
    """A log in memory."""

    def begin(self, clock: int) -> None:
        """Begin the log of a machine that was started at this clock, and drop earlier entries."""
        self.clear()

    def add(self, entry: LogEntry) -> None:
        """Add the next entry."""
        self.append(entry)


class Recorder:
    """A machine of ``policy`` that records its events and answers; it replaces ``policy.start(clock=clock)``.

    Args:
        entries: Destination of its log; None keeps it, for `log`.
        keeps_events: True to keep the events, for `events`.

    >>> from plesio.policies import BSP, Joined
    >>> recorder = Recorder(BSP())
    >>> _ = recorder.handle(Joined(worker=0))
    >>> verify(recorder.log) is None
    True
    """

    def __init__(
        self,
        policy: Policy,
        *,
        clock: int = 0,
        entries: Entries | None = None,
        keeps_events: bool = False,
    ) -> None:
        self._policy = policy
        self.began = clock
        """The clock at which the machine was started."""
        self.machine: PolicyMachine = policy.start(clock=clock)
        self._entries: Entries = KeptEntries() if entries is None else entries
        self._entries.begin(clock)
        self._events: list[Event] | None = [] if keeps_events else None
        self.last_steer: Steer | None = None
        """The last one to all workers."""

    def handle(self, event: Event) -> tuple[Action, ...]:
        """Answer as the policy's machine does."""
        actions = self.machine.handle(event)
        self.record(event, actions)
        return actions

    def record(self, event: Event, actions: tuple[Action, ...]) -> None:
        """Record an answer that the machine gave without this recorder."""
        self._entries.add(LogEntry(event=event, actions=actions))
        if self._events is not None:
            self._events.append(event)
        for action in actions:
            if isinstance(action, Steer):
                self.last_steer = action

    def resume(self, events: Iterable[Event], *, clock: int) -> None:
        """Start the machine at ``clock``, and replay the events of a run that is resumed: it is then what it was."""
        self.began = clock
        self.machine = self._policy.start(clock=clock)
        self._entries.begin(clock)
        self.last_steer = None
        if self._events is not None:
            self._events.clear()
        for event in events:
            self.handle(event)

    @property
    def events(self) -> list[Event]:
        """The events up to now, if the recorder keeps them."""
        assert self._events is not None, "not kept"
        return self._events

    def validate(self) -> None:
        """Raise AssertionError when an invariant of the machine does not hold."""
        self.machine.validate()

    @property
    def log(self) -> EventLog:
        """The events and answers up to now, if the recorder keeps them."""
        assert isinstance(self._entries, KeptEntries), "it goes elsewhere"
        return EventLog(policy=self._policy, entries=tuple(self._entries), clock=self.began)


def replay(policy: Policy, events: Iterable[Event]) -> list[tuple[Action, ...]]:
    """Return the actions with which a fresh machine of ``policy`` answers each of ``events``."""
    machine = policy.start()
    return [machine.handle(event) for event in events]


def verify(log: EventLog) -> Departure | None:
    """Return the first entry that a fresh machine answers otherwise, or None when it answers all as recorded.

    In a log with a gap, only the entries before the gap are compared.

    Raises:
        DataError: An event that no world sends at its place, such as an update of a worker that has not joined.
    """
    machine = log.policy.start(clock=log.clock)
    for index, entry in enumerate(log.entries[: log.num_whole]):
        try:
            actions = machine.handle(entry.event)
        except AssertionError as error:
            raise DataError(f"entry {index + 1} of the log cannot follow those before it: {error}") from error
        if actions != entry.actions:
            return Departure(index=index, event=entry.event, recorded=entry.actions, replayed=actions)
    return None


def encode_event(event: Event) -> dict[str, Any]:
    """Encode the event as a dictionary of JSON values.

    >>> from plesio.policies import Joined
    >>> encode_event(Joined(worker=3))
    {'kind': 'joined', 'worker': 3}
    """
    return to_values(event)


def decode_event(data: object) -> Event:
    """Decode an event that `encode_event` wrote; raise `DataError` for anything else."""
    event: Event = _decode(data, kinds=Event, what="event")
    return event


def decode_action(data: object) -> Action:
    """Decode an action; raise `DataError` for anything else."""
    action: Action = _decode(data, kinds=Action, what="action")
    return action


def write_log(path: Path, log: EventLog) -> None:
    """Write ``log`` to ``path`` so that a reader sees the old file or the new one, never half of one."""
    lines = [header_of(log.policy, clock=log.clock), *(encode_entry(entry) for entry in log.entries)]
    if log.num_whole is not None:
        lines.insert(1 + log.num_whole, LEFT_OUT)
    write_whole(path, "".join(json.dumps(line) + "\n" for line in lines))


def header_of(policy: Policy, *, clock: int) -> dict[str, Any]:
    """Return the first line of the log of a machine that was started at ``clock``."""
    header: dict[str, Any] = {"schema": LOG_SCHEMA_VERSION, "policy": policy.spec}
    if clock:
        header["clock"] = clock
    return header


def rest_of(path: Path) -> Path:
    """Return the path of the compressed file in which the long log at ``path`` continues."""
    return path.with_name(path.name + ".gz")


def read_log(path: Path) -> EventLog:
    """Read a log that `write_log` or a run (`plesio.policies.log_writer`) wrote.

    Raises:
        DataError: The file is missing, broken, or of another schema version; the message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        rest = rest_of(path)
        if rest.exists():
            lines += _unpacked(rest).splitlines()
    except (OSError, UnicodeDecodeError, zlib.error) as error:
        raise DataError(f"cannot read the event log {path}: {reason_of(error)}") from error
    policy, clock = _decode_header(path, lines[0] if lines else "")
    entries: list[LogEntry] = []
    num_whole = None
    for number, line in enumerate(lines[1:], start=2):
        try:
            values = json.loads(line)
            if values == LEFT_OUT:
                num_whole = len(entries)
            else:
                entries.append(_decode_entry(values))
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not JSON: {error}") from error
        except DataError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
    return EventLog(policy=policy, entries=tuple(entries), clock=clock, num_whole=num_whole)


def _unpacked(path: Path) -> str:
    """Return the whole lines of a compressed file, which may end early where its writer was killed."""
    text = zlib.decompressobj(wbits=31).decompress(path.read_bytes()).decode("utf-8", errors="ignore")
    return text[: text.rfind("\n") + 1]


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


def encode_entry(entry: LogEntry) -> dict[str, Any]:
    """Encode the entry as a dictionary of JSON values."""
    return {"event": encode_event(entry.event), "actions": [to_values(action) for action in entry.actions]}


def _decode_entry(data: object) -> LogEntry:
    if not isinstance(data, dict) or data.keys() != {"event", "actions"} or not isinstance(data["actions"], list):
        raise DataError('an entry is {"event": {...}, "actions": [...]}')
    return LogEntry(event=decode_event(data["event"]), actions=tuple(decode_action(item) for item in data["actions"]))


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
