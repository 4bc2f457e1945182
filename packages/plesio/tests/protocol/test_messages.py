"""Every message there and back, and what becomes of those that cannot be read."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from plesio.core.clock import MonotonicClock
from plesio.core.errors import TransportError
from plesio.core.records import to_values
from plesio.core.results import Environment, Evaluation, RunResult
from plesio.policies import Arrived, RefuseReason, Reviewed, Steer
from plesio.protocol import bulk
from plesio.protocol.effects import (
    AdmitOrder,
    ApplyOrder,
    CreditOrder,
    DropOrder,
    EndRun,
    FromFirst,
    HaltOrder,
    Order,
    Orders,
    SnapshotOrder,
    StayOrder,
)
from plesio.protocol.figures import Report, RunFigures, RunInfo, Snapshot, WorkerFigure
from plesio.protocol.message import Message, decode, encode, kind_of
from plesio.protocol.peers import worker_identity
from plesio.protocol.plans import Block, PlanFigures, Remainder, Span
from plesio.protocol.positions import Position
from plesio.protocol.to_server import (
    Distrusted,
    Ended,
    EvaluationRequest,
    Evaluations,
    Finish,
    Goodbye,
    Heartbeat,
    Holding,
    Join,
    LeaseRequest,
    Leave,
    NotFinite,
    PartArrived,
    PositionReport,
    ProgressRequest,
    Regrouped,
    Release,
    ResultRequest,
    Review,
    SaveRequest,
    Saving,
    ServerStatePage,
    Serves,
    StageStop,
    ToServer,
    UpdateHead,
)
from plesio.protocol.to_worker import (
    Alive,
    Entered,
    Expelled,
    Failed,
    Hold,
    KnownEvaluation,
    Lease,
    Lost,
    MayLeave,
    Progress,
    Regroup,
    Regrouping,
    Result,
    RunEnded,
    ServerState,
    StageEnd,
    Start,
    Steering,
    Stop,
    ToWorker,
    UpdateRefused,
)
from plesio.runtime.server.job_server import JobServer
from plesio.runtime.transport import Bulk, Control, Header, Refusal, Traffic

ENVIRONMENT = Environment(plesio="1", python="3", torch="2", numpy="2", platform="p", cpu="c", num_cpus=2)
FIGURES = PlanFigures(num_samples=8, batch_size=2, budget_samples=16)
REMAINDER = Remainder(num_samples=8, spans=(Span(0, 1, 3), Span(0, 6, 8)), epoch=1, num_fresh=9)
REPORT = Report(clock=3, losses=[(3, 0.5, 2.0)], blocked=[(3, 0.1)], bytes_sent={"tcp": 4}, fallbacks=["none"])
RESULT = RunResult(policy="bsp", task="t", world="process", seed=0, num_workers=1, status="finished",
                   steps=1, samples=2, wall_s=0.5)  # fmt: skip
POSITION = Position(base=1, settled=3, trained=4, clock=9, plan=1, samples=7)
STEERING = Steering(clock=5, before="bsp", policy="ssp:2", shares=(0.5, 0.5), next_review=7, next_clock=9)
EXAMPLES: list[Message] = [
    Join(policy="bsp", info=RunInfo(target=0.5), num_workers=2, num_servers=0, snapshot_every=None, folder=None,
         layout="", rack=0, environment=ENVIRONMENT),
    Join(policy="bsp", info=RunInfo(), num_workers=2, num_servers=0, snapshot_every=None, folder=None,
         layout="", rack=0, environment=ENVIRONMENT, saving=Saving(every_s=5.0, clock=3, elapsed_s=0.5, num_pages=1)),
    ServerStatePage(text="{}"),
    SaveRequest(),
    Heartbeat(report=REPORT),
    LeaseRequest(plan=0, idle=True, figures=FIGURES),
    Finish(plan=0, block=1, num_samples=2),
    Release(),
    NotFinite(event=UpdateHead(worker=1, clock=2, base_version=3), finished=((0, 1, 2),)),
    Leave(),
    Evaluations(evaluations=(Evaluation(samples=1, at_s=0.5, metric=0.25),), parameters_sha256=None),
    Evaluations(evaluations=(), parameters_sha256=None, number=3),
    EvaluationRequest(number=3),
    ResultRequest(),
    ProgressRequest(),
    Goodbye(status="failed", error="x", report=REPORT),
    Review(event=Reviewed(worker=0, clock=4, samples=(2,), compute_s=(0.5,), blocked_s=(0.0,), loss=1.5, rack=1)),
    StageStop(clock=3, plan=1, figures=FIGURES, remainder=REMAINDER, samples=7),
    PartArrived(event=Arrived(worker=1, clock=2), num_samples=4, finished=((0, 1, 4),), server=1),
    Ended(sent={"tcp": 1}, refused={}),
    Serves(),
    Distrusted(worker=1),
    PositionReport(position=POSITION, meeting="127.0.0.1:5"),
    PositionReport(position=None, meeting=""),
    PositionReport(position=POSITION, meeting="h:2", agreed=True),
    Holding(generation=2, begun=7),
    Regrouped(samples=12, own=9, dropped=1),
    Start(clock=0, elapsed_s=0.0, workers=(0, 1)),
    Failed(message="other model"),
    Alive(lease_s=2.5),
    Lost(workers=(1,), fatal=True),
    Expelled(),
    Regrouping(generation=2),
    Hold(generation=2),
    Stop(generation=2, clock=7),
    Regroup(generation=2, members=(0, 3), positions=(POSITION, None), meeting="h:1", steer=STEERING),
    Lease(plan=0, block=Block(id=1, epoch=0, start=2, stop=4, batch_size=2), clock=3),
    UpdateRefused(clock=2, reason=RefuseReason.TOO_STALE),
    MayLeave(evaluates=True),
    KnownEvaluation(evaluation=Evaluation(samples=1, at_s=0.5, metric=0.25, metrics={"a": 0.25})),
    KnownEvaluation(evaluation=None),
    STEERING,
    replace(STEERING, save=True, savers=(0, 2)),
    ServerState(text="{}", left=0, elapsed_s=1.5),
    Entered(),
    StageEnd(steer=STEERING, remainder=REMAINDER, samples=3, leader=1),
    StageEnd(steer=STEERING, regroup=True),
    Result(result=RESULT),
    Progress(figures=RunFigures(policy="bsp", steps=1, samples=2, elapsed_s=0.5, loss=0.25, staleness=0.0)),
    Progress(figures=RunFigures(
        policy="ssp:2", steps=1, samples=2, elapsed_s=0.5, loss=0.25, staleness=0.0, in_force="ssp:2", total_samples=9,
        workers=(WorkerFigure(worker=0, clock=1, lead=0, live=True, step_s=0.5, silent_s=0.1, within="step"),),
        checkpoint=(1, 0.5))),
    RunEnded(result=RESULT),
    Orders.of([CreditOrder(worker=0, clock=3)]),
    EndRun(),
]  # fmt: skip
BULK_EXAMPLES: list[Message] = [
    bulk.Initial(slices=(("w", "parameter", "float32", 0, 0, 4, 0),), update="gradient",
                 optimizer=bulk.OptimizerSpec(names=("SGD",), groups=({"lr": 0.1},)),
                 state=[[["step", "value", None, 3]]]),
    bulk.Push(num_steps=2, num_samples=8, present=(0, 2), finished=((0, 1, 8),), groups=({"lr": 0.2},)),
    bulk.Pull(after=3, known=None),
    bulk.Pulled(present=None, credit=4, held_s=0.25, halted=True),
    bulk.SharedRequest(snapshot=1, optimizer=True),
    bulk.Shared(present=None, snapshots=(Snapshot(0, 8, 0.5),), state=[]),
    bulk.Initialised(),
]  # fmt: skip
CONTROL = ToServer | ToWorker | FromFirst
BULK = bulk.BulkFromWorker | bulk.BulkFromServer


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_survives_its_text(message: Message) -> None:
    kind, body = encode(message)
    assert decode(kind, json.loads(json.dumps(body)), CONTROL, peer="p") == message


@pytest.mark.parametrize("message", BULK_EXAMPLES, ids=lambda message: type(message).__name__)
def test_what_goes_beside_tensors_survives_its_text(message: Message) -> None:
    kind, body = encode(message)
    assert decode(kind, json.loads(json.dumps(body)), BULK, peer="p") == message


@pytest.mark.parametrize(("kinds", "examples"), [(CONTROL, EXAMPLES), (BULK, BULK_EXAMPLES)])
def test_every_type_has_a_kind_of_its_own_and_is_tried_above(kinds: Any, examples: list[Message]) -> None:
    numbers = Counter(kind_of(kind) for kind in get_args(kinds))
    assert set(numbers.values()) == {1}
    assert max(numbers) < 240, "from there on they are the transport's"
    assert {type(example) for example in examples} == set(get_args(kinds))


@pytest.mark.parametrize(
    "message",
    [
        StageEnd(steer=None, to_the_end=True),
        Lease(plan=0, block=None, halted=True),
        bulk.Push(num_steps=1, num_samples=2, present=None, finished=()),
        StageStop(clock=0),
        Progress(figures=None),
        Result(result=None),
    ],
)
def test_what_is_left_out_is_what_it_was(message: Message) -> None:
    kind, body = encode(message)
    assert decode(kind, json.loads(json.dumps(body)), type(message), peer="p") == message


def test_a_loss_that_is_not_a_number_is_still_none_behind_its_text() -> None:
    review = Review(event=Reviewed(worker=0, clock=4, samples=(), compute_s=(), blocked_s=()))
    kind, body = encode(review)
    assert math.isnan(decode(kind, json.loads(json.dumps(body)), Review, peer="p").event.loss)


def test_the_end_of_a_stage_says_what_depends_on_its_steer_and_no_more() -> None:
    assert StageEnd(steer=None).body() == {"steer": None, "to_the_end": False}
    assert StageEnd(steer=STEERING).body().keys() == {"steer", "remainder", "samples", "leader"}


def test_orders_come_out_as_they_went_in() -> None:
    orders: list[Order] = [
        AdmitOrder(worker=0, clock=1),
        CreditOrder(worker=0, clock=3),
        ApplyOrder(updates=((0, 1), (1, 1)), weight=0.5, version=1, num_live=2, counts=(2, 1), share=0.25, age=1.0),
        ApplyOrder(updates=((0, 2),), weight=1.0, version=2, num_live=2),
        DropOrder(worker=0, clock=3),
        SnapshotOrder(number=0),
        HaltOrder(),
        StayOrder(),
    ]
    assert {type(order) for order in orders} == set(get_args(Order))
    kind, body = encode(Orders.of(orders))
    assert decode(kind, json.loads(json.dumps(body)), FromFirst, peer="p").unpacked() == orders


def test_steering_is_what_workers_must_know_of_a_steer() -> None:
    values = to_values(STEERING)
    del values["kind"]
    steer = Steer(**values, reason="why", inputs=(("step_s", 0.5),))
    assert Steering.of(steer, workers=(0, 1)) == STEERING


class Endpoint:
    """A server's connections that keep what is sent."""

    def __init__(self) -> None:
        self.generation = 0
        self.traffic = Traffic()
        self.refused: Counter[Refusal] = Counter()
        self.sent: list[tuple[bytes, int]] = []
        self.released: list[Bulk] = []

    def send_control(self, peer: bytes, kind: int, body: Mapping[str, Any]) -> bool:
        self.sent.append((peer, kind))
        return True

    def release(self, bulk: Bulk) -> None:
        self.released.append(bulk)


def serve(endpoint: Endpoint) -> JobServer:
    """A run of one worker, on collectives, that has begun."""
    server = JobServer(0, endpoint=endpoint, first=None, clock=MonotonicClock())
    join = Join(policy="bsp", info=RunInfo(), num_workers=1, num_servers=0, snapshot_every=None, folder=None,
                layout="", rack=0, environment=ENVIRONMENT)  # fmt: skip
    say(server, *encode(join))
    assert endpoint.sent == [(b"worker-0", kind_of(Start))]
    return server


def say(server: JobServer, kind: int, body: Mapping[str, Any]) -> None:
    server.handle([Control(peer=worker_identity(0).encode(), kind=kind, generation=0, body=body)])


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        (239, {}, "kind 239, which has no place here"),
        (kind_of(Start), {}, "which has no place here"),
        (kind_of(Finish), {}, "missing required field"),
        (kind_of(Finish), {"plan": 0, "block": "first", "num_samples": 2}, "Expected `int`, got `str` - at `$.block`"),
        (kind_of(Finish), {"plan": 0, "block": 1, "num_samples": 2, "more": 3}, "unknown field `more`"),
        (kind_of(Heartbeat), {"report": {"losses": [[1, 2.0]]}}, "at `$.report.losses[0]`"),
        (kind_of(Review), {"event": {"kind": "reviewd"}}, "Invalid value 'reviewd'"),
        (kind_of(Review), {"event": {"kind": "joined", "worker": 0}}, "its event is a Joined"),
    ],
)
def test_a_message_that_cannot_be_read_is_refused_in_one_line_and_the_server_goes_on(
    kind: int, body: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = Endpoint()
    server = serve(endpoint)
    say(server, kind, body)
    [said] = caplog.messages
    assert "\n" not in said
    assert why in said
    assert "worker-0" in said or "worker 0" in said
    assert endpoint.refused == {Refusal.MALFORMED: 1}
    say(server, *encode(Heartbeat(report=Report())))
    assert endpoint.sent[-1] == (b"heartbeat-0", kind_of(Alive))
    server.run.end()


def test_a_bulk_message_that_cannot_be_read_is_refused_and_its_memory_given_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    endpoint = Endpoint()
    server = serve(endpoint)
    push = Bulk(peer=b"worker-0", header=Header(kind=kind_of(bulk.Push), generation=0), meta={}, payload=None)
    server.handle([push])
    assert "worker-0 sent a message Push that cannot be read" in caplog.text
    assert (endpoint.refused, endpoint.released) == ({Refusal.MALFORMED: 1}, [push])
    server.run.end()


def test_a_worker_says_whose_answer_it_cannot_read() -> None:
    with pytest.raises(TransportError, match="server-0 sent a message Lease that cannot be read"):
        decode(kind_of(Lease), {"plan": 0}, ToWorker, peer="server-0")
