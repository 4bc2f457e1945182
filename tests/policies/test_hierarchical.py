import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import given

from plesio.core.errors import PolicySpecError
from plesio.policies import BSP, SSP, Hierarchical, Joined, LocalSGD, Policy, describe, parse_policy


@st.composite
def hierarchies(draw: st.DrawFn) -> Hierarchical:
    period = draw(st.integers(1, 30))
    return Hierarchical(outer=LocalSGD(period=period, delay=draw(st.integers(0, period))))


@given(hierarchies())
def test_spec_reads_back_as_the_same_policy(policy: Hierarchical):
    assert parse_policy(policy.spec) == policy
    assert hash(parse_policy(policy.spec)) == hash(policy)
    assert not hasattr(policy, "__dict__")


@given(hierarchies(), st.integers(0, 200))
def test_between_racks_it_does_what_its_outer_policy_does(policy: Hierarchical, clock: int):
    outer = policy.outer
    assert (policy.period, policy.delay, policy.bound) == (outer.period, outer.delay, outer.bound)
    assert policy.exchanges_at(clock) == outer.exchanges_at(clock)
    assert policy.merges_at(clock) == outer.merges_at(clock)
    assert policy.start().handle(Joined(worker=0)) == outer.start().handle(Joined(worker=0))


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("hier:bsp/local_sgd:8", Hierarchical()),
        ("hier:bsp/local_sgd:8,delay=4", Hierarchical(outer=LocalSGD(period=8, delay=4))),
        (" HIER : BSP / local_sgd : 2 , Delay = 1", Hierarchical(outer=LocalSGD(period=2, delay=1))),
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
        Hierarchical(outer=SSP(bound=4))
    with pytest.raises(PolicySpecError, match="within a rack"):
        Hierarchical(inner=BSP(exchange="store"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Hierarchical().inner = BSP()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("outer", "ending"),
    [
        ("local_sgd:1", "racks average their parameters every step."),
        ("local_sgd:8,delay=1", "racks average their parameters every 8 steps, while they train on for 1 step."),
    ],
)
def test_it_is_described_in_one_sentence(outer: str, ending: str):
    sentence = describe(parse_policy(f"hier:bsp/{outer}"))
    assert sentence.endswith(ending)
    assert sentence.count(".") == 1
