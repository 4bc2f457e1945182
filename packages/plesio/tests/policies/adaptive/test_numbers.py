"""The text form of the policy: one flat key for each number and each switch."""

import dataclasses

import pytest

from plesio.core.errors import PolicySpecError
from plesio.policies import Adaptive, parse_policy
from plesio.policies.adaptive.numbers import Numbers, Options

SWITCHES = {one.name for one in dataclasses.fields(Options)} - {one.name for one in dataclasses.fields(Numbers)}


def test_at_most_fourteen_numbers_can_be_set_and_each_says_what_it_is_and_where_it_comes_from():
    names = [one.name for one in dataclasses.fields(Numbers)]
    assert len(names) <= 14
    said = " ".join((Numbers.__doc__ or "").split())
    for name, following in zip(names, [*names[1:], None], strict=True):
        about = said.partition(f" {name}: ")[2]
        about = about if following is None else about.partition(f" {following}: ")[0]
        assert "(tuned" in about or "(derived" in about, name


@pytest.mark.parametrize(
    "text", ["adaptive", "adaptive,price=0.03,store=off", "adaptive,every=32,balance=off", "adaptive,warm_up=0"]
)
def test_the_text_form_reads_back(text: str):
    policy = parse_policy(text)
    assert isinstance(policy, Adaptive)
    assert policy.spec == text
    assert parse_policy(policy.spec) == policy


def test_each_number_and_each_switch_has_a_key():
    for one in dataclasses.fields(Options):
        value = "off" if one.name in SWITCHES else "8" if isinstance(one.default, int) else "0.5"
        policy = parse_policy(f"adaptive,{one.name}={value}")
        assert getattr(policy, one.name) == (False if value == "off" else float(value))
        assert policy.spec == f"adaptive,{one.name}={value}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adaptive,prce=0.1", 'unknown key "prce"; did you mean "price"'),
        ("adaptive,system.gain=0.1", 'unknown key "system.gain"'),
        ("adaptive,phase=off", 'unknown key "phase"'),
        ("adaptive,window=12", 'unknown key "window"'),
        ("adaptive,price=much", "write a number"),
        ("adaptive,every=4.5", "write a whole number"),
        ("adaptive,store=yes", 'write "on" or "off"'),
        ("adaptive:4", "takes no"),
    ],
)
def test_mistakes_in_the_text_form_are_named(text: str, message: str):
    with pytest.raises(PolicySpecError, match=message):
        parse_policy(text)


@pytest.mark.parametrize(
    "wrong",
    [
        *(f"{name}=-1" for name in ("price", "store_price", "momentum_price", "caution", "lost_steps")),
        *(f"{name}=0" for name in ("doubt", "store_doubt", "finish_time", "trial")),
        *(f"{name}=-1" for name in ("gain", "warm_up", "begins", "finish")),
        *("every=3", "begins=1", "finish=1", "finish_time=1", "price=nan"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(wrong: str):
    # behind the text, which has the name in any case
    with pytest.raises(PolicySpecError, match=rf'": {wrong.partition("=")[0]} is '):
        parse_policy(f"adaptive,{wrong}")
