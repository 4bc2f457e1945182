"""The laws of a grid's schedule, over all of them."""

from collections.abc import Iterator
from dataclasses import astuple
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio.policies.grid import (
    Action,
    Backward,
    BeginMixing,
    EndMixing,
    Forward,
    GridSetting,
    StageMachine,
    StageState,
    Update,
)


@st.composite
def settings(draw: st.DrawFn) -> GridSetting:
    schedule = draw(st.sampled_from(["decoupled", "decoupled", "gpipe", "1f1b", "2bw"]))
    stages = draw(st.integers(1, 5))
    every = draw(st.integers(1, 6))
    return GridSetting(
        groups=draw(st.integers(1, 4)),
        stages=stages,
        schedule=schedule,
        delay=draw(st.integers(0, 4)),
        micro_batches=(1 if schedule == "decoupled" else stages) + draw(st.integers(0, 4)),
        every=every,
        bound=draw(st.integers(0, every - 1)),
    )


def actions_of(setting: GridSetting, stage: int, count: int) -> Iterator[Action]:
    machine = StageMachine(setting, stage=stage)
    for _ in range(count):
        yield from machine.give()
        machine.validate()
    yield from machine.end()
    machine.validate()


@given(settings(), st.integers(1, 30))
def test_every_micro_batch_goes_forward_and_back_once_in_order(setting: GridSetting, count: int) -> None:
    for stage in range(setting.stages):
        actions = list(actions_of(setting, stage, count))
        assert [one.micro_batch for one in actions if isinstance(one, Forward)] == list(range(count))
        assert [one.micro_batch for one in actions if isinstance(one, Backward)] == list(range(count))
        assert sum(one.num_micro_batches for one in actions if isinstance(one, Update)) == count


@given(settings(), st.integers(1, 30))
def test_the_delay_is_what_theory_says(setting: GridSetting, count: int) -> None:
    for stage, delay in enumerate(setting.delays):
        for action in actions_of(setting, stage, count):
            if isinstance(action, Backward):
                number, each = action.micro_batch, setting.micro_batches
                if setting.schedule == "2bw":
                    assert action.staleness <= 1
                else:
                    late = 0 if setting.flushes else delay
                    assert action.staleness == number // each - max(0, number - late) // each
    if setting.schedule == "decoupled" and setting.delay == 2:
        assert max(setting.delays) == 2 * (setting.stages - 1)


@given(settings(), st.integers(1, 25))
def test_no_schedule_deadlocks(setting: GridSetting, count: int) -> None:
    """All stages get to the end if each does its actions in their order, as soon as what one needs has been done."""
    orders = [list(actions_of(setting, stage, count)) for stage in range(setting.stages)]
    places = [0] * setting.stages
    done: set[tuple[str, int, int]] = set()
    last = setting.stages - 1

    def ready(stage: int, action: Action) -> bool:
        match action:
            case Forward(micro_batch=number):
                return stage == 0 or ("forward", stage - 1, number) in done
            case Backward(micro_batch=number):
                return stage == last or ("backward", stage + 1, number) in done
        return True

    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while places[stage] < len(order) and ready(stage, order[places[stage]]):
                action = order[places[stage]]
                if isinstance(action, Forward | Backward):
                    done.add((type(action).__name__.lower(), stage, action.micro_batch))
                places[stage] += 1
                moved = True
    assert places == [len(order) for order in orders]


@given(settings(), st.integers(1, 40))
def test_mixings_begin_and_end_in_order_and_in_time(setting: GridSetting, count: int) -> None:
    version, begun = 0, []
    for action in actions_of(setting, 0, count):
        match action:
            case Update():
                version = action.version
            case BeginMixing():
                assert action.version == version
                assert version % setting.every == 0
                begun.append(version)
            case EndMixing():
                assert action.version == begun.pop(0)
                assert version <= action.version + setting.bound
    assert not begun
    if setting.groups == 1:
        assert not any(isinstance(one, BeginMixing) for one in actions_of(setting, 0, count))


@given(settings(), st.integers(0, 20), st.integers(1, 20))
def test_a_machine_goes_on_from_its_state(setting: GridSetting, before: int, after: int) -> None:
    for stage in range(setting.stages):
        machine = StageMachine(setting, stage=stage)
        for _ in range(before):
            machine.give()
        other = machine.at(StageState(*astuple(machine.state())))
        for _ in range(after):
            assert machine.give() == other.give()
        assert machine.end() == other.end()


@given(settings(), st.integers(1, 20))
def test_what_the_stage_behind_has_gone_back_with(setting: GridSetting, count: int) -> None:
    if setting.flushes:
        count *= setting.micro_batches
    machines = [StageMachine(setting, stage=stage) for stage in range(setting.stages)]
    for machine in machines:
        for _ in range(count):
            machine.give()
    for machine, behind in pairwise(machines):
        assert machine.returned_behind == behind.returned


@given(settings())
def test_a_setting_is_its_text(setting: GridSetting) -> None:
    assert GridSetting.parse(setting.spec) == setting


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2", "is no grid; write groups x stages"),
        ("99999x99999", "groups is 99999; write a whole number of 1 to 1024"),
        ("0x2", "groups is 0; write a whole number of 1 to 1024"),
        ("2x2,foo=1", 'a grid has no option "foo"'),
        ("2x2,every=x", "every=x cannot be read"),
        ("2x2,delay=2,delay=3", "write delay=VALUE, once"),
        ("1x2,schedule=zigzag", 'schedule is "zigzag"'),
        ("1x4,schedule=2bw,micro_batches=2", "write 4 or more"),
        ("1x2,schedule=2bw,micro_batches=2,weights=recompute", "leave weights=recompute out"),
        ("2x1,bound=1", "write every = 2 or more"),
        ("1x2,shrink=0", "write a number of more than 0, at most 1"),
        ("2x1,mixing=0.5 a/a 0.5", "write rows of numbers"),
        ("2x1,mixing=star", 'there is no graph "star"'),
        ("2x1,mixing=0.5 0.5/0.4 0.6", "is symmetric; this one has 0.5 at (0, 1) and 0.4 at (1, 0)"),
        ("2x1,mixing=0.5 0.4/0.4 0.5", "its row 0 adds up to 0.9, not 1"),
        ("3x1,mixing=0.5 0.5/0.5 0.5", "the mixing matrix is for 2 groups, the grid has 3"),
        ("2x1,mixing=1 0/0 1", "is not connected: group 1 never hears of group 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GridSetting.parse(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@given(settings(), st.integers(0, 6), st.integers(1, 20))
def test_a_newcomer_counts_updates_and_mixes_as_the_others_and_skips_what_it_was_not_given(
    setting: GridSetting, num_windows: int, count: int
) -> None:
    begun = num_windows * setting.micro_batches
    later = setting.regrouped(range(setting.groups), num_joined=1)
    for stage in range(setting.stages):
        first = StageMachine(setting, stage=stage)
        for _ in range(begun):
            first.give()
        others = first.regrouped(later)
        newcomer = others.at(others.state().of_newcomer())
        told: list[list[Action]] = [[], []]
        for machine, actions in zip((others, newcomer), told, strict=True):
            for _ in range(count):
                actions += machine.give()
                machine.validate()
            actions += machine.end()
        versions, mixings = (
            [[one for one in actions if isinstance(one, kind)] for actions in told]
            for kind in (Update, BeginMixing | EndMixing)
        )
        assert [one.version for one in versions[0]] == [one.version for one in versions[1]]
        assert mixings[0] == mixings[1]
        back = [one.micro_batch for one in told[1] if isinstance(one, Backward)]
        assert back == list(range(begun, begun + count))
        assert sum(one.num_micro_batches for one in versions[1]) == count
