"""The schedule of a switching policy, and the machine that changes from one policy to another, without a world."""

import random
from collections.abc import Mapping

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from plesio.core.errors import PolicySpecError
from plesio.policies import (
    ASP,
    BSP,
    Action,
    Admit,
    Apply,
    Arrived,
    Event,
    Grant,
    Halt,
    Hierarchical,
    Joined,
    LeaveReason,
    Left,
    Pause,
    Policy,
    Ready,
    Reviewed,
    Stay,
    Steer,
    Switch,
    describe,
    parse_policy,
    replay,
)
from plesio.policies.interruptible import Interruptible
from plesio.policies.policy import NEVER, Decision
from plesio.policies.steered import SteeredMachine

NUM_WORKERS = 3


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("switch:", "the step at which it begins"),
        ("switch:bsp", "the step at which it begins"),
        ("switch:bsp/asp", "the step at which it begins"),
        ("switch:bsp/asp@soon", "write a whole number"),
        ("switch:bsp/asp@1", "a whole number of 2 or more"),
        ("switch:bsp/asp@9/bsp@9", "write them in their order"),
        ("switch:bsp/bsp@9", "write it once"),
        ("switch:bsp/delayed:1@9", "write bsp or local_sgd on the collective"),
        ("switch:bsp,exchange=store/asp@9", "write bsp or local_sgd on the collective"),
        ("switch:bsp/hier:bsp@9", "hier needs a policy within racks and one between them"),
        ("switch:hier:bsp/bsp@9", "the step at which it begins"),
        ("switch:switch:bsp/asp@9/bsp@9", '"switch" cannot be switched to'),
        ("switch:bsp/ssp:1,period=7@9", "period 7 with bound 1"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_in_a_line(text: str, complaint: str) -> None:
    with pytest.raises(PolicySpecError, match=complaint):
        parse_policy(text)


@pytest.mark.parametrize(
    ("text", "pushes", "bound"),
    [
        ("switch:bsp/local_sgd:4,delay=2@10", None, 5),
        ("switch:bsp/ssp:4,update=delta@10/bsp@20", "delta", 4),
        ("switch:asp,update=delta/ssp:4,weight=inverse+cap:8@10", "gradient", float("inf")),
        ("switch:bsp/hier:bsp/ssp:4@20/bsp@40", "gradient", 4),
        (
            "switch:hier:bsp/local_sgd:8,delay=4/hier:bsp/asp,update=delta@10/hier:bsp/local_sgd:2@20",
            "delta",
            float("inf"),
        ),
    ],
)
def test_a_schedule_is_read_and_written(text: str, pushes: str | None, bound: float) -> None:
    policy = parse_policy(text)
    assert isinstance(policy, Switch)
    assert (policy.spec, policy.pushes, policy.bound) == (text, pushes, bound)
    assert f"From step {policy.clocks[0] + 1} on: " in describe(policy)


class World:
    """Runs a machine's workers in a random order; obeys credit, halts and steers as a runtime does."""

    def __init__(self, policy: Switch, *, seed: int, loses: bool) -> None:
        self.policy, self.machine = policy, policy.start()
        self.random = random.Random(seed)
        self.events: list[Event] = []
        self.answers: list[tuple[Action, ...]] = []
        self.stage = policy.first
        self.on_store = False
        self.halted = False
        self.under_way: set[int] = set()
        """The workers that had credit for a step before the halt, and may have begun it or not."""
        self.loses = loses
        self.lost = False
        self.clocks = dict.fromkeys(range(NUM_WORKERS), 0)
        self.credit = dict.fromkeys(range(NUM_WORKERS), 0)
        self.pulled = dict.fromkeys(range(NUM_WORKERS), 0)
        self.version = 0
        self.standing: set[int] = set()
        self.mates: dict[int, int] = {}
        """The worker that represents worker 1, where it is in worker 0's rack."""
        self.review, self.holds = policy.first_review
        self.changes: list[tuple[int, str]] = []

    def tell(self, event: Event) -> None:
        actions = self.machine.handle(event)
        self.machine.validate()
        self.events.append(event)
        self.answers.append(actions)
        for action in actions:
            self.obey(action)

    def obey(self, action: Action) -> None:
        match action:
            case Admit(worker=worker, clock=clock):
                self.clocks[worker] = clock
                self.clocks |= {mate: clock for mate, speaker in self.mates.items() if speaker == worker}
                self.pulled[worker] = self.version
            case Grant(worker=worker, clock=clock):
                self.credit[worker] = clock
            case Apply(version=version):
                assert version == self.version + 1
                self.version = version
            case Halt():
                assert self.on_store
                self.halted = True
                self.under_way = {worker for worker, clock in self.clocks.items() if self.credit[worker] > clock}
            case Stay():
                assert self.on_store
                if self.standing:  # they are let in again
                    for worker in sorted(self.standing):
                        self.standing.discard(worker)
                        self.tell(Joined(worker=worker))
                self.halted = False
            case Steer():
                self.turn(action)

    def turn(self, steer: Steer) -> None:
        assert steer.before == self.stage.spec
        if self.on_store:
            assert self.halted
            assert steer.clock == max(self.clocks.values())
            assert self.lost or not self.stage.synchronous or steer.clock == min(self.clocks.values())
            self.clocks = dict.fromkeys(self.clocks, steer.clock)
        else:
            assert set(self.clocks.values()) <= {steer.clock, steer.clock - 1, steer.clock - 2}
        self.changes.append((steer.clock, steer.policy))
        assert not (self.lost and parse_policy(steer.policy).exchange == "collective")
        self.stage = parse_policy(steer.policy)
        self.on_store = self.halted = False
        self.standing.clear()
        self.mates.clear()
        self.review, self.holds = steer.next_review, steer.next_clock
        self.begins_at = steer.clock

    def run(self, until: int) -> None:
        self.begins_at = 0
        for worker in range(NUM_WORKERS):
            self.tell(Joined(worker=worker))
        while min(self.clocks.values()) < until:
            if self.stage.exchange == "collective":
                self.step_together()
            elif not self.on_store:
                self.enter()
            else:
                self.step_one()

    def step_together(self) -> None:
        self.clocks = {worker: clock + 1 for worker, clock in self.clocks.items()}
        [clock] = set(self.clocks.values())
        if clock == self.review:
            for worker in self.clocks:
                self.tell(Reviewed(worker=worker, clock=clock, samples=(), compute_s=(), blocked_s=()))
            if self.stage.exchange == "store":  # and until the answer holds they go on as they were
                self.clocks = dict.fromkeys(self.clocks, self.begins_at)

    def enter(self) -> None:
        self.on_store, self.version = True, 0
        if isinstance(self.stage, Hierarchical) and {0, 1} <= self.clocks.keys():
            self.mates = {1: 0}
        for worker, clock in list(self.clocks.items()):
            self.tell(Ready(worker=worker, clock=clock, speaker=self.mates.get(worker)))
        assert all(self.credit[worker] > self.begins_at for worker in self.clocks)

    def step_one(self) -> None:
        if self.loses and not self.lost and self.random.random() < 0.05:
            worker = self.random.choice(sorted(self.clocks))
            self.lost = True
            lost = [worker] if worker not in (0, 1) or not self.mates else [worker, 1 - worker]
            for gone in lost:
                for book in (self.clocks, self.credit, self.pulled):
                    del book[gone]
                self.standing.discard(gone)
            if len(lost) == 2:
                self.mates.clear()
            for gone in lost:
                self.tell(Left(worker=gone, reason=LeaveReason.LOST))
            self.go_on_if_all_stand()
            return
        speaking = self.clocks.keys() - self.mates.keys()
        able = [
            w for w in sorted(speaking)
            if w not in self.standing and (self.credit[w] > self.clocks[w] or self.halted)
        ]  # fmt: skip
        if not able:
            return
        worker = self.random.choice(able)
        begins = not self.halted or (worker in self.under_way and self.random.random() < 0.5)
        if self.credit[worker] > self.clocks[worker] and begins:
            self.clocks[worker] += 1
            self.clocks |= {mate: self.clocks[worker] for mate, speaker in self.mates.items() if speaker == worker}
            self.tell(Arrived(worker=worker, clock=self.clocks[worker], base_version=self.pulled[worker]))
            self.pulled[worker] = self.version
        if self.on_store and self.halted and worker not in self.standing:
            self.standing.add(worker)
            self.tell(Left(worker=worker, reason=LeaveReason.RESTING))
            self.go_on_if_all_stand()

    def go_on_if_all_stand(self) -> None:
        if self.on_store and self.halted and self.standing == self.clocks.keys() - self.mates.keys():
            for one in sorted(self.standing):
                self.tell(Ready(worker=one, clock=self.clocks[one]))


SCHEDULES = [
    "switch:bsp/asp@5/bsp@12",
    "switch:ssp:2/local_sgd:4@7/asp@15/bsp@22",
    "switch:bsp/ssp:3@3/asp@9/bsp@14/ssp:1@16",
    "switch:bsp/ssp:0@4/bsp@9",
    "switch:ssp:0/ssp:2@5/ssp:0@11/hier:bsp/ssp:0@17/bsp@23",
    "switch:bsp/hier:bsp/ssp:4@20/bsp@30",
    "switch:hier:bsp/ssp:2/asp@6/hier:bsp/local_sgd:4@12/hier:bsp/asp@20/ssp:1@26/bsp@33",
]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SCHEDULES), st.integers(0, 10**6), st.booleans())
def test_every_schedule_of_workers_ends_and_replays(text: str, seed: int, loses: bool) -> None:
    policy = parse_policy(text)
    assert isinstance(policy, Switch)
    world = World(policy, seed=seed, loses=loses)
    world.run(40)
    assert replay(policy, world.events) == world.answers
    if not world.lost:
        assert [spec for _, spec in world.changes] == [stage.spec for stage in policy.policies[1:]]
        strict = [at for at, stage in enumerate(policy.policies[:-1]) if stage.synchronous]
        assert all(world.changes[at][0] == policy.clocks[at] for at in strict)  # on the very step that was named
    for (clock, _), due in zip(world.changes, policy.clocks, strict=False):
        assert clock >= due or world.lost  # the one that had come so far may be the lost one
    said = [one.reason for actions in world.answers for one in actions if isinstance(one, Stay | Steer)]
    assert any("was lost" in reason for reason in said) == world.lost


def test_a_pause_lets_the_open_round_of_all_complete():
    machine = Interruptible(policy=parse_policy("bsp,exchange=store")).start()
    for worker in range(2):
        machine.handle(Joined(worker=worker))
    for worker in range(2):
        machine.handle(Ready(worker=worker, clock=0))
    machine.handle(Arrived(worker=0, clock=1, base_version=0))
    assert machine.handle(Pause(reason="a checkpoint is due")) == ()
    halt, *rest = machine.handle(Arrived(worker=1, clock=1, base_version=0))
    assert halt == Halt()
    assert [type(action) for action in rest] == [Apply, Grant, Grant]


def test_a_loss_while_all_stop_for_a_checkpoint_does_not_put_it_off():
    machine = Interruptible(policy=parse_policy("asp")).start()
    for worker in range(2):
        machine.handle(Joined(worker=worker))
    for worker in range(2):
        machine.handle(Ready(worker=worker, clock=0))
    assert machine.handle(Pause(reason="a checkpoint is due")) == (Halt(),)
    assert machine.handle(Ready(worker=0, clock=3)) == ()
    [steer] = machine.handle(Left(worker=1, reason=LeaveReason.LOST))
    assert isinstance(steer, Steer)
    assert steer.save
    assert steer.clock == 3
    assert "worker 1 was lost under asp" in steer.reason


def test_reviews_come_only_where_a_stage_on_a_collective_ends() -> None:
    assert parse_policy("switch:bsp/asp@20").first_review == (18, 20)  # type: ignore[attr-defined]
    assert parse_policy("switch:bsp/asp@2").first_review == (1, 2)  # type: ignore[attr-defined]
    assert parse_policy("switch:asp/bsp@20").first_review == (NEVER, NEVER)  # type: ignore[attr-defined]


def test_an_alarm_that_is_called_off_is_told_all_the_same() -> None:
    class Alarmed:
        """Begins on the store, and wants plain BSP at the first review."""

        @property
        def first(self) -> Policy:
            return ASP()

        def review(self, reviews: Mapping[int, Reviewed]) -> Decision:
            return Decision(policy=BSP(), alarm=True, reason="the loss is infinite: back to bsp")

        def over(self, clock: int) -> Decision | None:
            return None

        def next_review(self, since: int) -> tuple[int, int]:
            return since + 2, since + 4

    machine = SteeredMachine(Alarmed())
    for worker in range(2):
        machine.handle(Joined(worker=worker))
    for worker in range(2):
        machine.handle(Ready(worker=worker, clock=0))
    machine.handle(Reviewed(worker=0, clock=2, samples=(), compute_s=(), blocked_s=()))
    assert machine.handle(Reviewed(worker=1, clock=2, samples=(), compute_s=(), blocked_s=())) == (Halt(),)
    [stay] = [one for one in machine.handle(Left(worker=1, reason=LeaveReason.LOST)) if isinstance(one, Stay)]
    assert stay.reason.startswith("the loss is infinite: back to bsp; that was called off, for worker 1 was gone")
    assert "worker 1 was lost under asp: the others go on" in stay.reason
