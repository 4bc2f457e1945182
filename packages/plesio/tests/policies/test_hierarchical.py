import dataclasses
import math
from typing import get_args

import hypothesis.strategies as st
import pytest
from hypothesis import given

from plesio.core.errors import PolicySpecError
from plesio.policies import (
    ASP,
    BSP,
    SSP,
    UNWEIGHTED,
    Apply,
    Arrived,
    Cap,
    Hierarchical,
    Inverse,
    Joined,
    LeaveReason,
    Left,
    LocalSGD,
    Policy,
    describe,
    parse_policy,
)
from plesio.policies.compression import NO_COMPRESSION, Qsgd, parse_compression
from plesio.policies.policy import UpdateKind


@st.composite
def hierarchies(draw: st.DrawFn) -> Hierarchical:
    period = draw(st.integers(1, 30))
    compression = draw(st.sampled_from(["none", "fp16", "qsgd:8+feedback", "topk:0.01+guard:20", "powersgd:2"]))
    local_sgd = LocalSGD(period=period, delay=draw(st.integers(0, period)), compression=parse_compression(compression))
    update = draw(st.sampled_from(get_args(UpdateKind)))
    ssp = SSP(bound=draw(st.one_of(st.integers(period - 1, 60), st.just(math.inf))), period=period, update=update)
    asp = ASP(period=period, update=update, weighting=draw(st.sampled_from([UNWEIGHTED, Inverse(), Cap(limit=8)])))
    return Hierarchical(outer=draw(st.sampled_from([local_sgd, ssp, asp])))


@given(hierarchies())
def test_spec_reads_back_as_the_same_policy(policy: Hierarchical):
    assert parse_policy(policy.spec) == policy
    assert hash(parse_policy(policy.spec)) == hash(policy)
    assert not hasattr(policy, "__dict__")


@given(hierarchies(), st.integers(0, 200))
def test_between_racks_it_does_what_its_outer_policy_does(policy: Hierarchical, clock: int):
    outer = policy.outer
    for name in ("period", "delay", "bound", "exchange", "update", "pushes", "weighting", "synchronous"):
        assert getattr(policy, name) == getattr(outer, name)
    assert policy.compression == getattr(outer, "compression", NO_COMPRESSION)
    assert policy.exchanges_at(clock) == outer.exchanges_at(clock)
    assert policy.merges_at(clock) == outer.merges_at(clock)
    assert policy.start().handle(Joined(worker=0)) == outer.start().handle(Joined(worker=0))


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("hier:bsp/local_sgd:8", Hierarchical()),
        ("hier:bsp/local_sgd:8,delay=4", Hierarchical(outer=LocalSGD(period=8, delay=4))),
        ("hier:bsp/local_sgd:8,compress=qsgd:8", Hierarchical(outer=LocalSGD(period=8, compression=Qsgd(bits=8)))),
        ("hier:bsp/local_sgd:8,compress=none", Hierarchical()),
        (" HIER : BSP / local_sgd : 2 , Delay = 1", Hierarchical(outer=LocalSGD(period=2, delay=1))),
        ("hier:bsp/ssp:4", Hierarchical(outer=SSP(bound=4))),
        ("hier:bsp/ssp:4,period=3,update=delta", Hierarchical(outer=SSP(bound=4, period=3, update="delta"))),
        ("hier:bsp/ssp:inf", Hierarchical(outer=SSP(bound=math.inf))),
        ("hier:bsp/asp,weight=inverse", Hierarchical(outer=ASP(weighting=Inverse()))),
        ("hier:bsp,exchange=collective/local_sgd:4,exchange=collective", Hierarchical(outer=LocalSGD(period=4))),
    ],
)
def test_text_by_hand(text: str, policy: Policy):
    assert parse_policy(text) == policy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hier", "needs a policy within racks and one between them"),
        ("hier:bsp", 'as in "hier:bsp/local_sgd:8,delay=4"'),
        ("hier,inner=bsp", "needs a policy within racks"),
        ("hier:bsp/", 'unknown policy ""'),
        ("hier:/local_sgd:8", 'unknown policy ""'),
        ("hier:bsp/lokal_sgd:8", 'did you mean "local_sgd"?'),
        ("hier:bsp/local_sgd:4,delay=9", "write a delay of 4 or less"),
        ("hier:bsp/local_sgd:4,dealy=1", 'did you mean "delay"?'),
        ("hier:ssp:2/local_sgd:4", '"ssp:2" cannot be run within a rack; write "bsp"'),
        ("hier:bsp,exchange=store/local_sgd:4", '"bsp,exchange=store" cannot be run within a rack'),
        ("hier:bsp/bsp", '"bsp" cannot be run between racks; write a local_sgd'),
        ("hier:bsp/bsp,exchange=store", 'or ssp or asp, as in "hier:bsp/ssp:4"'),
        ("hier:bsp/ssp:4,period=9", "write a period of 5 or less"),
        ("hier:bsp,compress=fp16/local_sgd:4", '"bsp,compress=fp16" cannot be run within a rack; write "bsp"'),
        ("hier:bsp/local_sgd:4,compress=qsgd:9", "write 2, 4 or 8"),
        ("hier:bsp/local_sgd:4,momentum=0.5,compress=fp16", "with a period and perhaps delay, moments and compress"),
        ("hier:bsp/ssp:4,compress=randk:0.1", "write qsgd, topk, fp16 or bf16"),
        ("hier:bsp/local_sgd:4,exchange=store", '"local_sgd:4,exchange=store" cannot be run between racks'),
        ("hier:bsp/hier:bsp/local_sgd:4", '"hier:bsp/local_sgd:4" cannot be run between racks'),
    ],
)
def test_bad_text_is_refused_with_what_to_write(text: str, message: str):
    with pytest.raises(PolicySpecError) as error:
        parse_policy(text)
    assert message in str(error.value)
    assert str(error.value).startswith(f'policy "{text}": ')
    assert "\n" not in str(error.value)


def test_levels_that_cannot_be_are_refused_in_python_too():
    with pytest.raises(PolicySpecError, match="between racks"):
        Hierarchical(outer=BSP(exchange="store"))
    with pytest.raises(PolicySpecError, match="within a rack"):
        Hierarchical(inner=BSP(exchange="store"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Hierarchical().inner = BSP()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("outer", "ending"),
    [
        ("local_sgd:1", "racks average their parameters every step."),
        ("local_sgd:8,delay=1", "racks average their parameters every 8 steps, while they train on for 1 step."),
        (
            "local_sgd:8,delay=4,compress=qsgd:8",
            "racks average their parameters every 8 steps, while they train on for 4 steps, sent as qsgd:8.",
        ),
        ("ssp:0", "racks do the same among each other with their gradients, on the store."),
        (
            "ssp:4,period=3",
            "no rack begins a step more than 4 steps ahead of the slowest, and each sends its gradient every 3 steps "
            "and it is applied as it arrives.",
        ),
        ("asp,weight=inverse", "applied as it arrives, weighted by its staleness (inverse)."),
    ],
)
def test_it_is_described_in_one_sentence(outer: str, ending: str):
    sentence = describe(parse_policy(f"hier:bsp/{outer}"))
    assert sentence.endswith(ending)
    assert sentence.count(".") == 1


@pytest.mark.parametrize(("outer", "times"), [("asp,period=2", 2), ("asp,period=2,update=delta", 1)])
def test_a_racks_update_counts_by_its_workers_also_while_others_rest(outer: str, times: int):
    machine = parse_policy(f"hier:bsp/{outer}").start()
    for worker, num_workers in ((0, 3), (3, 1), (4, 4)):
        machine.handle(Joined(worker=worker, num_workers=num_workers))

    def weight(worker: int, clock: int) -> float:
        [apply, *_] = machine.handle(Arrived(worker=worker, clock=clock, num_steps=2))
        machine.validate()
        assert isinstance(apply, Apply)
        return apply.weight

    assert [weight(0, 2), weight(3, 2), weight(4, 2)] == [times * 3 / 8, times * 1 / 8, times * 4 / 8]
    machine.handle(Left(worker=4, reason=LeaveReason.RESTING))
    assert weight(0, 4) == times * 3 / 8
    machine.handle(Left(worker=4, reason=LeaveReason.LOST))
    assert weight(0, 6) == times * 3 / 4
    machine.handle(Joined(worker=4, num_workers=2))
    assert weight(3, 4) == times * 1 / 6
