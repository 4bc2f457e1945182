"""A holder of the secret who sends what no worker would send: the server refuses it, and goes on."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plesio.protocol.bulk import Initial, Pull, Push
from plesio.protocol.figures import RunInfo
from plesio.protocol.message import decode, encode, kind_of
from plesio.protocol.to_server import Distrusted, Ended, Goodbye, Join, LeaseRequest, ResultRequest, Serves, StageStop
from plesio.protocol.to_worker import Result
from plesio.runtime.transport import ClientEndpoint, Header
from plesio.runtime.transport.wire import encode_chunk, job_digest
from plesio.runtime.worker.machine import environment
from support.server_process import ServerUnderTest
from support.transport import JOB, PATIENCE_S


@pytest.fixture
def server() -> Iterator[ServerUnderTest]:
    with ServerUnderTest() as server:
        yield server


def join_of(**changes: Any) -> Join:
    fields: dict[str, Any] = {
        "policy": "bsp",  # for which a server does not import torch
        "info": RunInfo(),
        "num_workers": 1,
        "num_servers": 1,
        "snapshot_every": None,
        "folder": None,
        "layout": "x",
        "rack": 0,
        "environment": environment(),
    }
    return Join(**{**fields, **changes})


def refused(member: ClientEndpoint) -> dict[str, int]:
    """Return the server's count of refused messages in the run under way."""
    member.send_control(*encode(ResultRequest()))
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        for control in member.poll(PATIENCE_S):
            if control.kind == kind_of(Result):
                result = decode(control.kind, control.body, Result, peer="server 0").result
                return {} if result is None else result.refused_peers
    raise AssertionError("no result")


CONTROLS = [
    (255 - 20, {}),
    (kind_of(Join), {}),
    (kind_of(Join), {**join_of().body(), "policy": "nonsense"}),
    (kind_of(Join), {**join_of().body(), "num_workers": 10**12}),
    (kind_of(Join), {**join_of().body(), "num_workers": 0}),
    (kind_of(Join), {**join_of().body(), "num_servers": 10**12}),
    (kind_of(Join), {**join_of().body(), "snapshot_every": 0}),
    (kind_of(Join), {**join_of().body(), "rack": "first"}),
    (kind_of(Join), {**join_of().body(), "extra": 1}),
    (kind_of(Goodbye), {}),
    (kind_of(StageStop), {"clock": -5, "plan": -1}),
    (kind_of(LeaseRequest), {"plan": -1, "idle": True, "figures": {}}),
    encode(Serves()),
    encode(Distrusted(worker=0)),
    encode(Ended(sent={"tcp": -5}, refused={})),
]


@pytest.mark.parametrize("in_a_run", [pytest.param(False, marks=pytest.mark.slow), True])
def test_control_messages_that_make_no_sense_end_nothing(server: ServerUnderTest, in_a_run: bool):
    with server.member(b"worker-0") as member, server.control(b"worker-7") as stranger:
        if in_a_run:
            member.send_control(*encode(join_of()))
            member.poll(PATIENCE_S)
        for kind, body in CONTROLS:
            stranger.send(kind, body)
            assert server.answers(), (kind, body)
        if in_a_run:
            assert refused(member)["malformed"] >= 10


@pytest.mark.slow
def test_random_messages_of_a_member_of_the_run_end_nothing(server: ServerUnderTest):
    """Kinds at random, bodies that are nearly right; the member itself may be lost for it."""
    rng = random.Random(0)
    values = [None, -1, 0, 1, 2**70, float("nan"), "", "x", [], {}, [[0, 0, 0]], True]
    bodies = [
        join_of(policy="ssp:2").body(),
        {"plan": 0, "idle": False, "figures": {"num_samples": 10**15, "batch_size": 0}},
        {},
    ]
    with server.member(b"worker-0") as member:
        member.send_control(*encode(join_of(policy="ssp:2")))
        for _ in range(400):
            body = dict(rng.choice(bodies))
            for name in list(body):
                if rng.random() < 0.3:
                    body[name] = rng.choice(values)
            member.send_control(rng.randrange(0, 40), body)
            meta = {"num_steps": rng.choice(values), "num_samples": 1, "present": None, "finished": []}
            header = Header(kind=rng.randrange(0, 9), generation=0, clock=rng.randrange(2**40))
            member.push(header, meta=meta, payload=np.zeros(rng.randrange(100), dtype=np.uint8))
        assert server.answers()


def test_bulk_messages_that_make_no_sense_end_nothing(server: ServerUnderTest):
    slices = (("w", "parameter", "float32", 0, 0, 4, 0),)
    with server.member(b"worker-0") as other, server.member(b"worker-1") as member:
        for one in (other, member):
            one.send_control(*encode(join_of(policy="ssp:2", num_workers=2)))
        member.poll(PATIENCE_S)
        for message, payload in [
            (Initial(slices=(("w", "parameter", "complex99", 0, 0, 4, 0),), update="delta", optimizer=None), 16),
            (Initial(slices=(("w", "parameter", "float32", 0, 0, 2**60, 0),), update="delta", optimizer=None), 16),
            (Initial(slices=slices, update="gradient", optimizer=None), 16),
            (Initial(slices=slices, update="delta", optimizer=None), 3),
            (Initial(slices=slices, update="delta", optimizer=None), 16),
            (Push(num_steps=1, num_samples=1, present=None, finished=()), 3),
            (Push(num_steps=1, num_samples=1, present=(7,), finished=()), 16),
            (Push(num_steps=-1, num_samples=-1, present=None, finished=((1, 2, 3),)), 16),
            (Pull(after=-1, known=2**60), 0),
        ]:
            kind, meta = encode(message)
            header = Header(kind=kind, generation=0, worker=1)
            member.push(header, meta=meta, payload=np.zeros(payload, dtype=np.uint8))
        member.push(Header(kind=kind_of(Push), generation=0, worker=3), meta={}, payload=np.zeros(1, dtype=np.uint8))
        assert server.answers()
        assert refused(other)["malformed"] >= 6


def test_an_announced_size_takes_no_memory(server: ServerUnderTest):
    with server.member(b"worker-0") as member:
        member.send_control(*encode(join_of()))
        member.poll(PATIENCE_S)
        before = server.memory_bytes
        for total_bytes in (2**36, 2**36 + 1, 2**60):
            head = encode_chunk(
                Header(kind=1, generation=0), job=job_digest(JOB), total_bytes=total_bytes, offset=0, meta=None
            )
            member._data.socket.send_multipart([head, b"1234"])
        assert server.answers()
        assert server.memory_bytes - before < 2**24
        assert refused(member)["oversize"] >= 2


def test_results_go_only_where_the_server_s_starter_has_said(server: ServerUnderTest, tmp_path: Path):
    wanted, other = tmp_path / "wanted", tmp_path / "other"
    with (
        server.member(b"worker-0") as member,
        server.control(b"worker-1") as another,
        server.control(b"worker-2") as third,
    ):
        another.send(*encode(join_of(folder=str(other))))
        third.send(*encode(join_of(folder=str(wanted), policy="nonsense")))
        member.send_control(*encode(join_of(folder=str(wanted))))
        assert server.answers()
        assert not list(tmp_path.iterdir())
        server.tell({"folder": str(wanted)})
        member.poll(PATIENCE_S)
    server.close()
    assert [path.name for path in tmp_path.iterdir()] == ["wanted"]
    assert (wanted / "results.json").exists()
