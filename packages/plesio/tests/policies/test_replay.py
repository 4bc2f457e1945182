import json
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from plesio.core.errors import DataError
from plesio.core.records import to_values
from plesio.policies import (
    SSP,
    Action,
    Admit,
    Apply,
    Arrived,
    Event,
    EventLog,
    Grant,
    Joined,
    LeaveReason,
    Left,
    Recorder,
    Refuse,
    RefuseReason,
    parse_policy,
    read_log,
    replay,
    verify,
    write_log,
)
from plesio.policies.replay import decode_action, decode_event, encode_event

WHOLE = st.integers(0, 2**62)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Joined, worker=WHOLE, num_workers=st.integers(1, 9)),
    st.builds(Left, worker=WHOLE, reason=st.sampled_from(LeaveReason)),
    st.builds(Arrived, worker=WHOLE, clock=WHOLE, num_steps=WHOLE, base_version=WHOLE, finite=st.booleans()),
)
ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.builds(Admit, worker=WHOLE, clock=WHOLE),
    st.builds(Grant, worker=WHOLE, clock=WHOLE),
    st.builds(Refuse, worker=WHOLE, clock=WHOLE, reason=st.sampled_from(RefuseReason)),
    st.builds(
        Apply,
        updates=st.lists(st.tuples(WHOLE, WHOLE), max_size=3).map(tuple),
        weight=st.floats(0, 1e9),
        version=WHOLE,
        staleness=st.lists(WHOLE, max_size=3).map(tuple),
    ),
)


@given(EVENTS)
def test_events_survive_json(event: Event):
    assert decode_event(json.loads(json.dumps(encode_event(event)))) == event


@given(ACTIONS)
def test_actions_survive_json(action: Action):
    assert decode_action(json.loads(json.dumps(to_values(action)))) == action


def recorded(spec: str = "ssp:4,period=1,weight=inverse") -> EventLog:
    recorder = Recorder(parse_policy(spec))
    for event in (
        Joined(worker=0),
        Joined(worker=1),
        Arrived(worker=0, clock=1, base_version=0),
        Arrived(worker=1, clock=1, base_version=0, finite=False),
        Arrived(worker=0, clock=2, base_version=1),
        Left(worker=1, reason=LeaveReason.LOST),
    ):
        recorder.handle(event)
        recorder.validate()
    return recorder.log


@pytest.mark.parametrize("spec", ["bsp", "ssp:4,period=1", "asp,weight=exp:0.3", "local_sgd:1,delay=1"])
def test_record_is_what_the_machine_did_and_reads_back(spec: str, tmp_path: Path):
    log = recorded(spec)
    events = [entry.event for entry in log.entries]
    assert replay(parse_policy(spec), events) == [entry.actions for entry in log.entries]
    write_log(tmp_path / "events.jsonl", log)
    assert read_log(tmp_path / "events.jsonl") == log
    assert verify(log) is None


def test_verify_names_the_first_entry_that_differs():
    log = recorded()
    difference = verify(replace(log, policy=SSP(bound=4, period=1)))
    assert difference is None, "no update of this log is stale, so the weighting plays no part"
    difference = verify(replace(log, policy=SSP(bound=5, period=1)))
    assert difference is not None
    assert (difference.index, difference.event) == (0, Joined(worker=0))
    assert difference.recorded == (Admit(worker=0, clock=0), Grant(worker=0, clock=5))
    assert difference.replayed == (Admit(worker=0, clock=0), Grant(worker=0, clock=6))


def test_verify_refuses_events_that_no_world_sends():
    log = recorded()
    with pytest.raises(DataError, match="entry 1 of the log cannot follow"):
        verify(replace(log, entries=log.entries[2:]))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"event": ', "line 3: not JSON"),
        ("[]", "line 3: an entry is"),
        ('{"event": {"kind": "joined", "worker": 1}}', "line 3: an entry is"),
        ('{"event": {"worker": 1}, "actions": []}', 'line 3: an event is an object with a "kind"'),
        ('{"event": {"kind": "joind", "worker": 1}, "actions": []}', 'unknown event "joind"; did you mean "joined"?'),
        ('{"event": {"kind": "joined"}, "actions": []}', "event joined: Object missing required field `worker`"),
        ('{"event": {"kind": "joined", "worker": true}, "actions": []}', "Expected `int`, got `bool` - at `$.worker`"),
        ('{"event": {"kind": "joined", "worker": 1, "x": 2}, "actions": []}', "unknown field `x`"),
        (
            '{"event": {"kind": "left", "worker": 1, "reason": "bored"}, "actions": []}',
            "Invalid enum value 'bored' - at `$.reason`",
        ),
        ('{"event": {"kind": "joined", "worker": 1}, "actions": [{"kind": "joined", "worker": 1}]}', "unknown action"),
        (
            '{"event": {"kind": "joined", "worker": 1}, "actions": '
            '[{"kind": "apply", "updates": [[1]], "weight": 1.0, "version": 1, "staleness": [0]}]}',
            "Expected `array` of length 2, got 1 - at `$.updates[0]`",
        ),
    ],
)
def test_broken_line_is_named(line: str, message: str, tmp_path: Path):
    path = tmp_path / "events.jsonl"
    write_log(path, EventLog(policy=SSP(bound=4), entries=recorded().entries[:1]))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError) as error:
        read_log(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "its first line is no header"),
        ("[1]\n", "its first line is no header"),
        ('{"schema": 99, "policy": "bsp"}\n', "schema version 99"),
        ('{"schema": 1, "policy": "bps"}\n', 'did you mean "bsp"?'),
    ],
)
def test_broken_header_is_named(text: str, message: str, tmp_path: Path):
    (tmp_path / "events.jsonl").write_text(text)
    with pytest.raises(DataError) as error:
        read_log(tmp_path / "events.jsonl")
    assert message in str(error.value)


def test_missing_file_is_named(tmp_path: Path):
    with pytest.raises(DataError, match="cannot read the event log"):
        read_log(tmp_path / "none.jsonl")
