"""Plans that keep to a day and a budget: their chances, the order among them, and what changes are worth."""

import functools
import math
import random
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import pytest

from plesio.core.errors import ConfigError
from plesio_planning.estimate import (
    Conditions,
    Limits,
    RunPlan,
    RunPlans,
    find_model,
    find_plans,
    parse_machine,
    search_layouts,
)
from refusals import refusal_of

MODEL = find_model("llama-3-8b")
DAY = {"start": "2027-01-01", "by": "2027-03-01"}


@functools.cache
def plans_of(
    kinds: str = "h100", *, tokens: float = 1e12, conditions: Conditions | None = None, **limits: object
) -> RunPlans:
    machines = [parse_machine(f"8x{kind}") for kind in kinds.split(",")]
    asked = Limits(**limits)  # type: ignore[arg-type]
    return find_plans(MODEL, machines, limits=asked, tokens=tokens, global_batch=512, conditions=conditions)


def test_a_chance_is_that_of_drawn_runs():
    found = plans_of("h100,a100", budget_dollars=250e3, **DAY)
    plan = min(found.plans, key=lambda one: abs(one.chance - 0.5))
    training, (margin, error) = plan.training, plan.limits.margin_and_error
    draw = random.Random(1)
    kept = 0
    for _ in range(20_000):
        slower = margin * draw.lognormvariate(0, training.time_error) * draw.lognormvariate(0, error)
        dearer = draw.lognormvariate(0, training.price_error)
        kept += slower * training.total_s <= plan.limits.seconds and slower * dearer * training.cost <= 250e3
    assert plan.chance == pytest.approx(kept / 20_000, abs=0.015)


def test_one_limit_alone_has_the_chance_of_a_normal_quantile():
    plan = plans_of(margin=1.0, **DAY).plans[-1]
    late = math.log(plan.limits.seconds / plan.total_s) / plan.training.time_error
    assert plan.chance == pytest.approx(NormalDist().cdf(late))


def test_more_time_and_more_money_never_hurt():
    few, many = plans_of(budget_dollars=220e3, **DAY), plans_of(budget_dollars=300e3, **DAY)
    later = plans_of(budget_dollars=220e3, start="2027-01-01", by="2027-04-01")
    chances = [max(plan.chance for plan in found.plans) for found in (few, many, later)]
    assert chances[0] < chances[1]
    assert chances[0] <= chances[2]


def test_the_best_is_the_cheapest_that_is_sure_enough():
    found = plans_of("h100,a100", **DAY)
    sure = [plan for plan in found.plans if plan.chance >= 0.9]
    assert found.best == min(sure, key=lambda plan: plan.cost)
    # without a day it is the fastest that the money allows
    paid = plans_of("h100", budget_dollars=300e3)
    assert paid.best == min((plan for plan in paid.plans if plan.sure), key=lambda plan: plan.total_s)


def test_a_surer_answer_takes_more_devices_or_as_many():
    devices = [
        plans_of(conditions=Conditions(confidence=confidence), **DAY).best.training.machine.num_devices
        for confidence in (0.6, 0.99)
    ]
    assert devices == sorted(devices)
    assert devices[0] < devices[-1]


def test_a_layout_that_is_carried_over_is_nearly_that_of_a_search():
    found = plans_of("h100,a100", **DAY)
    for plan in (found.of_kind("h100")[0], found.of_kind("a100")[-1]):
        training = plan.training
        searched = search_layouts(
            MODEL,
            training.machine,
            global_batch=training.step.num_samples,
            may_be_lean=True,
            fixed={"cp": 1, "software": replace(training.layout.software, master_weight_remainders=False)},
        )
        assert training.step.sample_s <= 1.05 * searched.best.step.sample_s, training.machine.name


@pytest.mark.parametrize(
    ("name", "cluster"), [("mixtral-8x7b", "8xh100"), ("llama-70b", "8xh100"), ("llama-3-8b", "1xh100")]
)
def test_a_machine_without_room_for_the_usual_layouts_has_the_plan_of_a_whole_search(name: str, cluster: str):
    model, machine = find_model(name), parse_machine(cluster)
    limits = Limits(budget_dollars=3e6)
    found = find_plans(model, [machine], limits=limits, tokens=1e9, global_batch=512, num_devices=[machine.num_devices])
    searched = search_layouts(model, machine, global_batch=512, may_be_lean=True, top=1)
    assert found.best.training.step.sample_s == pytest.approx(searched.best.step.sample_s)
    # what is asked of a changed machine is answered with the same layout
    failures = next(change for change in found.changes if change.what == "twice the failures")
    assert failures.same.training.step == found.best.training.step


def test_a_smaller_size_without_room_for_the_usual_layouts_is_searched_beside_larger_ones():
    model, limits = find_model("llama-70b"), Limits(budget_dollars=3e6)
    found = find_plans(
        model, [parse_machine("8xh100")], limits=limits, tokens=1e9, global_batch=512, num_devices=[8, 64]
    )
    assert [plan.training.machine.name for plan in found.of_kind("h100")] == ["8xh100", "64xh100"]


def test_a_machine_with_too_little_memory_is_refused_for_it():
    model, limits = find_model("llama-70b"), Limits(budget_dollars=3e6)
    machines = [parse_machine(f"8x{kind}") for kind in ("a100-40gb", "h100")]
    with pytest.raises(ConfigError, match=r"fits into the memory of 2xh100 .*; write 4xh100, or devices with more"):
        find_plans(model, machines, limits=limits, tokens=1e9, global_batch=512, num_devices=2)
    # one kind has room for it, but not by the day
    machines = [parse_machine(f"8x{kind}") for kind in ("a100-40gb", "h200")]
    limits = Limits(start="2027-01-01", by="2027-01-02")
    refusal = r"by 2027-01-02; the nearest is 4xh200, .* \(a100-40gb is short of memory, h200 is too slow\)"
    with pytest.raises(ConfigError, match=refusal):
        find_plans(model, machines, limits=limits, tokens=1e9, global_batch=512, num_devices=[4])


def test_a_kind_without_a_plan_says_which_of_its_limits_is_why():
    def refusal(**how: Any) -> str:
        machines = [parse_machine(f"8x{kind}") for kind in ("v100", "h100")]
        limits = Limits(start="2027-01-01", by="2027-01-02")
        how = {"tokens": 1e12, "global_batch": 512, "num_devices": [64], "limits": limits, **how}
        return refusal_of(lambda: find_plans(find_model("llama-3-8b"), machines, **how))

    often, fixed = Conditions(device_mtbf_s=60.0), {"precision": "fp16"}
    assert "v100 is failing too often" in refusal(conditions=often, fixed=fixed)
    assert "tp = 3 cannot be had" in refusal(fixed={"tp": 3, **fixed})


def test_changes_are_worth_what_they_say():
    found = plans_of(budget_dollars=220e3, **DAY)
    changes = {change.what: change for change in found.changes}
    assert changes["a week more"].same.chance >= found.best.chance >= changes["a week less"].same.chance
    assert changes["a tenth more money"].best.chance > found.best.chance
    assert changes["half the network between hosts"].same.chance <= found.best.chance
    assert changes["twice the failures"].same.chance < found.best.chance


def test_what_nothing_keeps_to_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"^no machine of up to 32,768 devices trains it by 2027-01-03 for \$20,000"):
        plans_of(start="2027-01-01", by="2027-01-03", budget_dollars=20e3)
    with pytest.raises(ConfigError, match="by is 2026-01-01, and the run begins on 2027-01-01; write a later day"):
        Limits(start="2027-01-01", by="2026-01-01")
    with pytest.raises(ConfigError, match='by is "soon", no day; write one as in 2027-03-01'):
        Limits(by="soon")
    for days in ({"by": "9999-12-31"}, {"budget_dollars": 1e6, "start": "9999-12-30"}):
        with pytest.raises(ConfigError, match=r"(by|start) is 9999-12-3.; write a day of 2000 to 2100"):
            Limits(**days)  # type: ignore[arg-type]


def test_a_given_margin_is_sure_and_stretches_the_run():
    plan, other = (plans_of(margin=margin, **DAY).plans[0] for margin in (1.0, 2.0))
    assert isinstance(plan, RunPlan)
    assert plan.total_s == plan.training.total_s
    assert other.total_s == 2 * other.training.total_s


def test_numbers_that_fill_no_hosts_of_a_kind_leave_it_out():
    machines = [parse_machine("8xh100"), parse_machine("16xtrainium2")]
    found = find_plans(MODEL, machines, limits=Limits(**DAY), tokens=1e12, global_batch=512, num_devices=(24, 40))
    assert {plan.training.machine.name for plan in found.plans} == {"24xh100", "40xh100"}
    assert found.refused == {"trainium2": "not in whole hosts of such numbers"}
    refusal = refusal_of(
        lambda: find_plans(
            MODEL, machines[1:], limits=Limits(**DAY), tokens=1e12, global_batch=512, num_devices=(24, 40)
        )
    )
    assert "trainium2 is not in whole hosts of such numbers" in refusal
