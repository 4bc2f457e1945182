"""DiLoCo on the store: the machine's answers, and its laws under losses, joins, rests and grace windows."""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from plesio.core.errors import PolicySpecError
from plesio.policies import (
    Action,
    Admit,
    Apply,
    Arrived,
    Await,
    DiLoCo,
    Elapsed,
    Event,
    Grant,
    Joined,
    LeaveReason,
    Left,
    LocalSGD,
    Refuse,
    RefuseReason,
    decode_event,
    encode_event,
    parse_policy,
    replay,
)
from plesio.testing import Fault, play
from support.machines import start

H = 4


def decoupled(**options: object) -> DiLoCo:
    return DiLoCo(local_steps=H, exchange="store", **options)  # type: ignore[arg-type]


def test_each_delta_is_merged_as_it_arrives_and_lets_its_worker_go_on():
    machine = start(decoupled(), num_workers=2)
    assert machine.handle(Arrived(worker=1, clock=4, num_steps=4)) == (
        Apply(updates=((1, 4),), weight=0.5, version=1, staleness=(0,), share=0.5),
        Grant(worker=1, clock=8),
    )
    assert machine.handle(Arrived(worker=0, clock=4, num_steps=4)) == (
        Apply(updates=((0, 4),), weight=0.5, version=2, staleness=(1,), share=0.5),
        Grant(worker=0, clock=8),
    )


def test_the_last_of_a_round_counts_no_more_because_the_others_have_left():
    machine = start(decoupled(), num_workers=3)
    weights = []
    for clock in (4, 8, 12):
        for worker in (1, 2, 0):
            if clock < 12 or worker == 0:
                [apply, *_] = machine.handle(Arrived(worker=worker, clock=clock, num_steps=4))
                weights.append(apply.weight)
            if clock == 8 and worker:
                machine.handle(Left(worker=worker, reason=LeaveReason.CLOSED))
    assert weights == [1 / 3] * 6 + [1.0]


def test_a_quorum_makes_a_version_and_the_others_are_not_waited_for():
    machine = start(decoupled(quorum=2), num_workers=3)
    assert machine.handle(Arrived(worker=2, clock=4, num_steps=4)) == ()
    assert machine.handle(Arrived(worker=0, clock=4, num_steps=4)) == (
        Apply(updates=((2, 4), (0, 4)), weight=2 / 3, version=1, staleness=(0, 0), share=2 / 3),
        Grant(worker=0, clock=8),
        Grant(worker=2, clock=8),
    )


def test_others_may_join_a_quorum_until_the_grace_is_over():
    machine = start(decoupled(quorum=2, grace=0.5), num_workers=4)
    assert machine.handle(Arrived(worker=2, clock=4, num_steps=4)) == ()
    assert machine.handle(Arrived(worker=0, clock=4, num_steps=4)) == (Await(number=1, for_s=0.5),)
    assert machine.handle(Arrived(worker=1, clock=4, num_steps=4)) == ()
    [apply, *_] = machine.handle(Elapsed(number=1))
    assert isinstance(apply, Apply)
    assert apply.updates == ((2, 4), (0, 4), (1, 4))
    assert machine.handle(Elapsed(number=1)) == (), "it is over"


def test_no_grace_is_waited_for_once_all_are_there():
    machine = start(decoupled(quorum=1, grace=9.0), num_workers=2)
    assert machine.handle(Arrived(worker=0, clock=4, num_steps=4)) == (Await(number=1, for_s=9.0),)
    [apply, *_] = machine.handle(Arrived(worker=1, clock=4, num_steps=4))
    assert isinstance(apply, Apply)
    assert (len(apply.updates), apply.weight, apply.share) == (2, 1.0, 1.0)


def test_an_automatic_grace_is_as_long_as_the_hidden_steps_of_the_first():
    machine = start(decoupled(quorum=2, grace="auto", delay=3), num_workers=3)
    assert machine.handle(Arrived(worker=0, clock=4, num_steps=4)) == (Await(number=1, steps=3),)
    assert machine.handle(Elapsed(number=1)) == (), "no quorum"
    [apply, *grants] = machine.handle(Arrived(worker=1, clock=4, num_steps=4))
    assert isinstance(apply, Apply)
    assert grants == [Grant(worker=0, clock=11), Grant(worker=1, clock=11)]


def test_a_contribution_that_is_cut_short_is_a_smaller_part_of_a_round():
    machine = start(decoupled(quorum=2), num_workers=2)
    machine.handle(Arrived(worker=0, clock=4, num_steps=4))
    [apply, *_] = machine.handle(Arrived(worker=1, clock=2, num_steps=2))
    assert isinstance(apply, Apply)
    assert (apply.weight, apply.share) == (1.0, 0.75)


def test_an_update_that_is_not_finite_makes_no_quorum():
    machine = start(decoupled(quorum=2), num_workers=2)
    assert machine.handle(Arrived(worker=0, clock=4, finite=False)) == (
        Refuse(worker=0, clock=4, reason=RefuseReason.NOT_FINITE),
        Grant(worker=0, clock=8),
    )


def test_what_was_kept_back_moves_parameters_at_once_and_momentum_not():
    machine = start(decoupled(quorum=2), num_workers=2)
    for worker in (0, 1):
        machine.handle(Arrived(worker=worker, clock=4, num_steps=4))
    machine.handle(Left(worker=0, reason=LeaveReason.CLOSED))
    assert machine.handle(Arrived(worker=1, clock=4, num_steps=0, base_version=1)) == (
        Apply(updates=((1, 4),), weight=0.5, version=2, staleness=(0,), share=0.0),
    )


def test_slow_workers_make_fewer_steps_in_proportion():
    policy = DiLoCo(local_steps=12, exchange="store", steps="dynamic")
    machine = start(policy, num_workers=2)
    machine.handle(Arrived(worker=0, clock=12, num_steps=12, step_s=0.1))
    assert machine.handle(Arrived(worker=1, clock=12, num_steps=12, step_s=0.4))[1] == Grant(worker=1, clock=15)
    assert machine.handle(Arrived(worker=0, clock=24, num_steps=12, step_s=0.1))[1] == Grant(worker=0, clock=36)


@given(st.integers(1, 4), st.integers(0, H - 1), st.integers(0, 2**32))
@settings(max_examples=30)
def test_a_quorum_of_all_is_a_barrier(num_workers: int, delay: int, seed: int):
    """Action for action: rounds of all, however fast each one is."""
    chance = random.Random(seed)
    paces = [chance.choice((1.0, 1.5, 4.0)) for _ in range(num_workers)]
    options = {"step_s": [lambda pace=pace: pace for pace in paces], "num_steps": 20 * num_workers}
    local = LocalSGD(period=H, delay=delay)
    barrier = play(local.start(), exchanges_at=local.exchanges_at, **options)
    ours = play(decoupled(quorum=4, delay=delay).start(), exchanges_at=local.exchanges_at, **options)
    in_rounds = [
        tuple(
            replace(action, staleness=(0,) * len(action.updates)) if isinstance(action, Apply) else action
            for action in answer
        )
        for answer in ours.answers
    ]
    assert tuple(in_rounds) == barrier.answers


def test_no_worker_waits_for_a_slower_one():
    """Played with steps of 1, 1, 2 and 4 seconds."""
    policy = decoupled()
    options = {"step_s": [lambda: 1.0, lambda: 1.0, lambda: 2.0, lambda: 4.0], "num_steps": 220}
    played = play(policy.start(), exchanges_at=lambda clock: clock % H == 0, **options)
    assert played.waited_share == 0.0
    assert played.steps == (80, 80, 40, 20)


# Laws


@dataclass
class Worker:
    """It runs to what its credit allows, contributes, and stands still until that is merged; with a delay later."""

    clock: int
    credit: int
    version: int
    contributed: int
    in_flight: deque[Arrived] = field(default_factory=deque)
    begun: int = 0
    turn: int = 0
    merged_at: dict[int, int] = field(default_factory=dict)
    sharing: int = 0


class Laws:
    """The machine, driven by what a schedule asks for; every answer is checked."""

    def __init__(self, policy: DiLoCo) -> None:
        self.policy = policy
        self.machine = policy.start()
        self.live: dict[int, Worker] = {}
        self.asking: set[int] = set()
        self.resting: set[int] = set()
        self.unsettled: dict[tuple[int, int], Arrived] = {}
        self.among: dict[int, int] = {}
        self.covers: dict[tuple[int, int], int] = {}
        self.merged_at: dict[int, list[int]] = {}
        self.windows: list[int] = []
        self.version = 0
        self.merged_steps = self.arrived_steps = 0
        self.events: list[Event] = []
        self.answers: list[tuple[Action, ...]] = []

    def join(self, number: int) -> None:
        if number not in self.live and number not in self.asking:
            self.asking.add(number)
            self.resting.discard(number)
            self.tell(Joined(worker=number))

    def run(self, number: int, *, num_steps: int, finite: bool) -> None:
        worker = self.live[number]
        for _ in range(num_steps):
            if worker.in_flight or worker.clock >= worker.credit:
                return
            worker.clock += 1
            if worker.clock + self.policy.delay == worker.credit and self.settled(number):
                self.contribute(number, finite=finite, num_steps=worker.clock - worker.contributed)

    def settled(self, number: int) -> bool:
        return all(worker != number for worker, _ in self.unsettled)

    def contribute(self, number: int, *, finite: bool, num_steps: int) -> None:
        worker = self.live[number]
        steps, worker.contributed = num_steps, worker.clock
        fragment, worker.turn = worker.turn, (worker.turn + 1) % self.policy.fragments
        pace_s = 0.1 * (1 + number)
        worker.in_flight.append(
            Arrived(
                worker=number,
                clock=worker.clock,
                num_steps=steps,
                base_version=worker.version,
                finite=finite,
                step_s=pace_s if self.policy.looks_at_pace else 0.0,
                fragment=fragment,
            )
        )

    def deliver(self, number: int) -> None:
        if self.live[number].in_flight:
            worker = self.live[number]
            event = worker.in_flight.popleft()
            self.unsettled[number, event.clock] = event
            since = worker.merged_at.get(event.fragment, worker.begun)
            self.covers[number, event.clock] = event.clock - since
            worker.merged_at[event.fragment] = event.clock
            self.arrived_steps += event.num_steps if event.finite else 0
            self.tell(event)

    def leave(self, number: int, reason: LeaveReason) -> None:
        """It is gone; one that rests has handed in what it had, and that was merged."""
        if reason is LeaveReason.RESTING and (self.live[number].in_flight or not self.settled(number)):
            return
        if reason in (LeaveReason.RESTING, LeaveReason.CLOSED) and self.settled(number):
            self.send_rest(number)
        del self.live[number]
        if reason is LeaveReason.RESTING:
            self.resting.add(number)
        self.tell(Left(worker=number, reason=reason))

    def send_rest(self, number: int) -> None:
        """Send what compression kept back of the last contribution: it is merged at once, by itself."""
        worker = self.live[number]
        fragments = [one for one, clock in worker.merged_at.items() if clock == worker.contributed]
        if worker.in_flight or not fragments:
            return
        rest = Arrived(
            worker=number,
            clock=worker.contributed,
            num_steps=0,
            base_version=self.version,
            fragment=fragments[0],
        )
        self.unsettled[number, rest.clock], self.covers[number, rest.clock] = rest, 0
        self.tell(rest)
        assert self.settled(number)

    def elapse(self) -> None:
        if self.windows:
            self.tell(Elapsed(number=self.windows.pop(0)))

    def tell(self, event: Event) -> None:
        actions = self.machine.handle(event)
        self.machine.validate()
        self.events.append(decode_event(encode_event(event)))
        self.answers.append(actions)
        for action in actions:
            self.obey(action)
        if self.live and not self.windows:
            free = [one for number, one in self.live.items() if self.settled(number) or one.clock < one.credit]
            assert free, "all wait for each other"
        if not self.live:
            assert not self.asking
            assert not self.unsettled

    def obey(self, action: Action) -> None:
        match action:
            case Admit(worker=number, clock=clock):
                self.asking.remove(number)
                assert clock <= min((other.clock for other in self.live.values()), default=clock)
                self.among.pop(number, None)
                self.live[number] = Worker(
                    clock=clock, credit=clock, version=self.version, contributed=clock, begun=clock
                )
            case Grant(worker=number, clock=clock):
                worker = self.live[number]
                assert clock > worker.credit, "credit grows"
                assert 1 <= clock - self.policy.delay - worker.contributed <= self.policy.period
                worker.credit, worker.version = clock, self.version
            case Refuse(worker=number, clock=clock):
                assert not self.unsettled.pop((number, clock)).finite
            case Apply():
                self.check(action)
            case Await(number=number):
                self.windows.append(number)

    def check(self, apply: Apply) -> None:
        """Each contribution is merged once; a version has a quorum, or all there are, each of them once."""
        merged = [self.unsettled.pop(update) for update in apply.updates]
        self.merged_steps += sum(event.num_steps for event in merged)
        assert len({event.worker for event in merged}) == len(merged)
        assert {event.fragment for event in merged} == {apply.fragment}
        waiting = {update[0] for update, event in self.unsettled.items() if event.fragment != apply.fragment}
        is_rest = merged[0].num_steps == 0
        assert is_rest or len(waiting) == len(self.unsettled), "all that had arrived of it are merged"
        absent = self.live.keys() - {event.worker for event in merged}
        assert is_rest or len(merged) >= self.policy.quorum or absent <= waiting
        assert apply.version == self.version + 1
        before = self.merged_at.setdefault(apply.fragment, [])
        assert apply.staleness == tuple(sum(one > event.base_version for one in before) for event in merged)
        before.append(apply.version)
        now = len(self.live.keys() | self.resting | {event.worker for event in merged})
        members = [self.live[event.worker] for event in merged if event.worker in self.live]
        num_workers = max([now, *(member.sharing for member in members)])
        for member in members:
            member.sharing = now
        if is_rest:  # as much as the contribution that it is left of, when others may have been there
            num_workers = self.among.get(merged[0].worker, num_workers)
        self.among.update({event.worker: num_workers for event in merged})
        assert apply.weight == len(merged) / num_workers
        assert apply.share == pytest.approx(sum(self.covers[update] for update in apply.updates) / (H * num_workers))
        self.version = apply.version

    def end(self) -> None:
        """All get on, and leave; the events replay to the same answers, so every server merges in one order."""
        goal = {number: worker.clock + 3 * H for number, worker in self.live.items()}
        for _ in range(40):
            for number in list(self.live):
                self.run(number, num_steps=H, finite=True)
                self.deliver(number)
            self.elapse()
        assert all(self.live[number].clock >= clock for number, clock in goal.items()), "a worker is held back for ever"
        assert not self.asking
        for number in list(self.live):
            self.leave(number, LeaveReason.CLOSED)
        assert not self.unsettled
        assert self.merged_steps == self.arrived_steps, "nothing is lost, nothing counts twice"
        assert replay(self.policy, self.events) == self.answers


@st.composite
def policies(draw: st.DrawFn) -> DiLoCo:
    fragments, quorum = draw(st.sampled_from([1, 2])), draw(st.integers(1, 4))
    period = H // fragments
    delay = draw(st.integers(0, period - 1))
    grace = draw(st.sampled_from([0.0, 0.5, *(["auto"] if delay else [])]))
    return decoupled(
        quorum=quorum,
        delay=delay,
        grace=grace,
        fragments=fragments,
        steps=draw(st.sampled_from(["even", *(["dynamic"] if delay < period - 1 else [])])),
        weight=draw(st.sampled_from(["equal", *(["tokens"] if fragments == 1 and (quorum > 1 or grace) else [])])),
    )


@given(policies(), st.integers(0, 2**32))
@settings(max_examples=150)
def test_laws_hold_under_any_schedule(policy: DiLoCo, seed: int):
    laws, chance = Laws(policy), random.Random(seed)
    kinds: Sequence[str] = chance.choices(
        ("join", "run", "deliver", "leave", "elapse"), (4, 9, 9, 1.5, 2), k=chance.choice((10, 40, 80))
    )
    for kind in ("join", "join", *kinds):
        if kind == "join":
            laws.join(chance.randrange(4))
        elif kind == "elapse":
            laws.elapse()
        elif laws.live:
            number = chance.choice(sorted(laws.live))
            if kind == "run":
                laws.run(number, num_steps=chance.randint(1, 7), finite=chance.random() < 0.9)
            elif kind == "deliver":
                laws.deliver(number)
            else:
                laws.leave(number, chance.choice(list(LeaveReason)))
    laws.end()


def test_losses_and_joins_hold_up_nobody():
    policy = decoupled(quorum=2)
    faults = [
        Fault(kind="lose", worker=0, at_s=5.5),
        Fault(kind="join", at_s=9.0),
        Fault(kind="lose", worker=1, at_s=30.0),
    ]
    played = play(
        policy.start(),
        step_s=[lambda: 1.0, lambda: 1.1, lambda: 2.0],
        num_steps=120,
        faults=faults,
        exchanges_at=lambda clock: clock % H == 0,
    )
    assert played.waited_share < 0.35
    assert played.steps[2] > 20


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("diloco:8,quorum=2", "quorum is for workers that do not all wait for each other; .* exchange=store"),
        ("diloco:8,grace=1s", "grace is for workers"),
        ("diloco:8,weight=tokens", "weight is for workers"),
        ("diloco:8,steps=dynamic", "steps is for workers"),
        ("diloco:8,exchange=store,quorum=0", "1 or more"),
        ("diloco:8,exchange=store,grace=-1s", 'grace is "-1s"; write a time'),
        ("diloco:8,exchange=store,grace=soon", 'grace is "soon"; write a time, as in "200 ms", or "auto"'),
        ("diloco:8,exchange=store,grace=2h", "0 to 3600"),
        ("diloco:8,exchange=store,grace=auto", "write a delay, or a grace in seconds"),
        ("diloco:8,exchange=store,fragments=2,delay=4", "write a delay of 3 or less"),
        ("diloco:8,exchange=store,merge=rda", "quorum of 2 or more or a grace above 0, or leave merge out"),
        ("diloco:8,exchange=store,late=heloco,outer_momentum=0", "write an outer_momentum above 0, or leave late out"),
        ("diloco:8,exchange=store,late=heloco,outer=sgd", "write outer=nesterov, or leave late out"),
        ("diloco:8,late=heloco", "write exchange=store"),
        ("diloco:8,exchange=store,late=heloco,delay=2", "leave delay or late out"),
        ("diloco:8,exchange=store,quorum=2,weight=tokens,fragments=2", "leave fragments or weight out"),
        ("diloco:8,exchange=store,compress=powersgd:2", "write qsgd, topk, fp16 or bf16, or use a policy on the"),
        ("diloco:8,exchange=store,weight=loss", "equal.*tokens"),
        ("diloco:8,outer=adam", "needs one of its own; write .* as in outer_lr=0.003"),
        ("diloco:8,outer=adam,outer_lr=0.01,compress=topk:0.1+chunks", "topk:0.1.chunks.no_feedback, or leave it out"),
        ("diloco:8,exchange=shop", "collective.*store"),
        ("diloco:8,exchange=store,delay=8", "write a delay of 7 or less"),
        ("diloco:8,exchange=store,delay=7,steps=dynamic", "write more local steps, or leave steps out"),
        ("diloco:8,exchange=store,weight=tokens", "quorum of 2 or more or a grace above 0, or leave weight out"),
        ("diloco:8,exchange=store,outer=sgd", "leave outer out, write outer_momentum=0, or use exchange=collective"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(text: str, line: str):
    with pytest.raises(PolicySpecError, match=line) as error:
        parse_policy(text)
    assert "\n" not in str(error.value)


def test_a_spec_is_written_as_it_is_read():
    text = "diloco:8,exchange=store,quorum=3,grace=0.2,weight=tokens,steps=dynamic"
    assert parse_policy(text).spec == text
    assert parse_policy(text.replace("grace=0.2", "grace=200ms")) == parse_policy(text)
