import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from plesio.advisor import Advice, FailureModel, Situation, advise, flips, sentences_of
from plesio.advisor.candidates import candidates
from plesio.advisor.price import price
from plesio.advisor.setting import paces
from plesio.core.errors import ConfigError
from plesio.core.units import format_seconds
from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from support.advisor import Clock, KnownWorld, question, situation

SLOW = Cluster(name="slow", hosts=4, workers_per_host=1, cores_per_host=1, nic=Link(latency_s=5e-5, bytes_per_s=12.5e6))
FAST = Cluster(name="fast", hosts=4, workers_per_host=1, cores_per_host=1, nic=Link(latency_s=5e-6, bytes_per_s=12.5e9))


def ask(world: KnownWorld, **others: object) -> Advice:
    return advise(question(world.at, **others), world, now_s=world.clock)  # type: ignore[arg-type]


COSTS = {
    "averaging": 0.02,
    "compressed averaging": 0.03,
    "two-rate averaging": 0.03,
    "delayed": 0.05,
    "store": 0.05,
    "racks": 0.02,
    "racks on the store": 0.05,
}
"""Samples more per step of slack; of a compression alone they are those more."""


def learns(**costs: float) -> dict[str, float]:
    """Samples that each candidate needs, over bsp's, if these are the costs of some families, with _ for a blank."""
    known = COSTS | {"compressed": 0.05, "adaptive": 0.5} | {key.replace("_", " "): one for key, one in costs.items()}
    needs = {}
    for one in candidates(has_racks=False, has_store=True):
        slack = 1.0 if one.family in ("compressed", "adaptive") else min(one.slack, 32.0)
        needs[one.spec] = 1 + known.get(one.family, 0.0) * slack
    return needs


def best_of(world: KnownWorld) -> float:
    """The least seconds per sample of bsp's that there are."""
    specs = [one.spec for one in candidates(has_racks=False, has_store=True) if one.runs]
    return min(price(spec, world.at).step_s * world.needs.get(spec, 1.0) for spec in specs)


@pytest.fixture(autouse=True)
def _few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce each axis of other settings to its ends and its middle."""
    for name in ("BANDWIDTHS", "IMBALANCES", "SCALES", "MTBFS_S"):
        points = getattr(flips, name)
        monkeypatch.setattr(flips, name, points[:: len(points) // 2])


def test_where_nothing_is_exchanged_for_long_the_answer_is_ddp_after_few_runs():
    world = KnownWorld(situation(FAST), Clock())
    advice = ask(world)
    assert advice.chosen.spec == "bsp"
    assert {policy for policy, _ in world.done} <= {"bsp", "adaptive"}
    assert sentences_of(advice)[0].startswith("Stay with bsp (DDP): accuracy 0.9 in")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("cluster", "costs"),
    [
        (SLOW, {}),
        (SLOW, {"delayed": 0.0, "averaging": 0.3}),
        ("4x1gbe", {"averaging": 0.2}),
        ("4x1gbe", {"compressed": 1.0}),
        pytest.param(SLOW, {"averaging": 0.2}, marks=pytest.mark.slow),
        pytest.param(SLOW, {"compressed": 1.0}, marks=pytest.mark.slow),
        pytest.param("4x1gbe", {}, marks=pytest.mark.slow),
        pytest.param("4x1gbe", {"delayed": 0.0, "averaging": 0.3}, marks=pytest.mark.slow),
    ],
)
def test_the_choice_is_near_the_best_of_all(cluster: Cluster | str, costs: dict[str, float]):
    world = KnownWorld(situation(cluster), Clock(), needs=learns(**costs), seed_spread=0.1)
    advice = ask(world)
    chosen = advice.chosen
    assert price(chosen.spec, world.at).step_s * world.needs[chosen.spec] <= 1.05 * best_of(world)
    assert sentences_of(advice)[0].startswith(f"Use {chosen.spec}: accuracy 0.9 in")
    assert chosen.num_seeds > 1
    assert chosen.low_s <= chosen.time_s <= chosen.high_s
    assert world.clock.now <= 60.0 * 1.1


SHORT_OF_TIME = {"most_samples": 12_000.0, "sample_s": 1.5e-3}
"""So that runs of one seed are shorter than the way to bsp's level."""


def test_one_run_to_the_level_comes_before_further_ones_that_are_too_short():
    world = KnownWorld(situation(SLOW), Clock(), needs=learns(), **SHORT_OF_TIME)  # type: ignore[arg-type]
    advice = ask(world, target=None)
    assert advice.chosen.spec != "bsp"
    assert advice.chosen.time_s < 0.5 * advice.baseline.time_s
    assert advice.raced.prospect is None


def test_that_runs_were_too_short_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("plesio.advisor.race.SPENT_SHARE", 0.25)
    monkeypatch.setattr("plesio.advisor.race.EXPLORING", ((0.25, 0.02),))
    world = KnownWorld(situation(SLOW), Clock(), needs=learns(), **SHORT_OF_TIME)  # type: ignore[arg-type]
    advice = ask(world, target=None)
    assert advice.raced.prospect is not None
    spec, expected_s = advice.raced.prospect
    assert expected_s < advice.baseline.time_s
    verdict = sentences_of(advice)[0]
    assert verdict.startswith("Stay with bsp (DDP) for now: ")
    assert f"{spec} would be there in" in verdict
    assert verdict.endswith("Give it more time with --measure.")
    assert advice.to_json()["hope"] == [spec, expected_s]


def test_under_adam_local_steps_that_keep_the_mean_s_moments_are_asked_about_too():
    names = candidates(has_racks=False, has_store=True, shares_moments=True)
    needs = {one.spec: 1.0 if one.spec == "bsp" or "moments" in one.family else 3.0 for one in names}
    chosen = ask(KnownWorld(situation(SLOW), Clock(), needs=needs), shares_moments=True).chosen
    assert chosen.spec.endswith(",moments=mean")
    world = KnownWorld(situation(SLOW), Clock(), needs=needs)
    ask(world)
    assert not any("moments" in policy for policy, _ in world.done)


def test_bsp_is_named_where_all_others_need_more_samples_than_they_save():
    needs = {spec: 1.0 if spec == "bsp" else 20.0 for spec in learns()}
    advice = ask(KnownWorld(situation("4x1gbe"), Clock(), needs=needs))
    assert advice.chosen.spec == "bsp"
    assert any(row.how == "too late" for row in advice.rows)


@pytest.mark.parametrize("need", [1.3, pytest.param(2.0, marks=pytest.mark.slow), 20.0])
def test_nothing_is_run_again_and_again_for_as_long(need: float):
    world = KnownWorld(situation(SLOW), Clock(), needs={spec: 1.0 if spec == "bsp" else need for spec in learns()})
    ask(world)
    assert max(Counter(world.done).values()) <= 4


def test_one_of_each_kind_of_slack_is_run_before_two_of_one_kind():
    world = KnownWorld(situation(SLOW), Clock(), needs=learns())
    ask(world)
    before_rounds = world.done[: next(place for place, (_, seed) in enumerate(world.done) if seed)]
    places = {policy: before_rounds.index((policy, seed)) for policy, seed in reversed(before_rounds)}
    scouts = {one.spec for one in candidates(has_racks=False, has_store=True) if one.is_scout} & places.keys()
    assert {"adaptive", "local_sgd:16"} <= scouts
    assert len(scouts) >= 3
    assert max(places[spec] for spec in scouts) <= len(scouts)


def test_what_is_left_of_the_budget_goes_to_those_that_their_price_left_out(monkeypatch: pytest.MonkeyPatch):
    """Its steps take 1 / 1.7 of what the price says: by that it was never run, and it is the best by far."""
    dear = "asp"
    needs = dict.fromkeys(learns(), 3.0) | {"bsp": 1.0, dear: 1.0}
    world = KnownWorld(situation("4x1gbe"), Clock(), needs=needs, paces={dear: 1 / 1.7})
    assert price(dear, world.at).step_s > price("bsp", world.at).step_s
    advice = ask(world)
    assert advice.chosen.spec == dear
    assert advice.raced.shortfalls.keys() >= {dear}, "a new winner is checked"
    assert world.clock.now <= 60.0
    monkeypatch.setattr("plesio.advisor.race.DEAREST", 0.0)
    assert ask(KnownWorld(world.at, Clock(), needs=needs, paces=world.paces)).chosen.spec == "bsp"


def test_what_is_named_in_place_of_bsp_was_run_on_several_seeds_though_seeds_scatter():
    world = KnownWorld(situation(SLOW), Clock(), needs=learns(), seed_spread=0.3)
    advice = ask(world)
    assert advice.chosen.spec != "bsp"
    assert advice.chosen.num_seeds >= 3
    assert advice.baseline.num_seeds >= advice.chosen.num_seeds


def test_a_gain_below_two_percent_is_none():
    at = situation(FAST)
    gain = price("adaptive", at).step_s / price("bsp", at).step_s
    advice = ask(KnownWorld(at, Clock(), needs={"adaptive": 0.985 / gain}))
    assert advice.chosen.spec == "bsp"
    assert "you would win 1.5 % with adaptive" in sentences_of(advice)[0]


def test_what_is_worse_in_the_end_is_left_out():
    quick = "bsp,compress=powersgd:4"
    needs = learns() | {quick: 0.9}
    world = KnownWorld(situation("4x1gbe"), Clock(), needs=needs, best={quick: 0.98})
    advice = ask(world, target=0.8)
    assert advice.chosen.spec != quick
    assert any(f"{quick} is left out, for its accuracy" in sentence for sentence in sentences_of(advice))
    tolerant = KnownWorld(situation("4x1gbe"), Clock(), needs=needs, best={quick: 0.98})
    assert ask(tolerant, target=0.8, tolerance=5.0).chosen.spec == quick


def test_without_a_target_all_are_timed_to_a_level_of_bsp():
    advice = ask(KnownWorld(situation(SLOW), Clock()), target=None)
    assert advice.raced.goal.target is None
    assert "to which bsp comes after 85 % of a run" in sentences_of(advice)[-1]


def test_a_target_beyond_the_budget_is_said_to_be_beyond_it():
    world = KnownWorld(situation(SLOW), Clock(), sample_s=5e-3)
    advice = ask(world, target=0.999)
    assert not advice.raced.goal.complete
    assert "The target of 0.999 is beyond what was run." in sentences_of(advice)[-1]
    assert world.clock.now < 90.0


def test_a_target_that_nobody_comes_to_is_one_line():
    with pytest.raises(ConfigError, match=r"no strategy comes to the target .* best comes to") as raised:
        ask(KnownWorld(situation(FAST), Clock()), target=1.5)
    assert "\n" not in str(raised.value)


def test_the_tasks_own_target_that_nobody_comes_to_is_no_error():
    assert ask(KnownWorld(situation(FAST), Clock()), target=1.5, must_reach=False).raced.goal.target is None


def test_a_policy_that_cannot_be_run_is_told_and_passed_over():
    world = KnownWorld(situation(SLOW), Clock(), problems={"adaptive": "TaskError: no"})
    row = next(row for row in ask(world).rows if row.spec == "adaptive")
    assert (row.how, row.problem) == ("failed", "TaskError: no")


def test_bsp_that_cannot_be_run_is_an_error():
    with pytest.raises(ConfigError, match="bsp cannot be run: TaskError: no"):
        ask(KnownWorld(situation(SLOW), Clock(), problems={"bsp": "TaskError: no"}))


def with_memory(at: Situation, num_bytes: int) -> Situation:
    return replace(at, cluster=replace(at.cluster, memory_bytes=num_bytes))


def test_where_ddp_does_not_fit_fsdp_does():
    at = with_memory(situation(SLOW), 4_000_000)  # 2 MB each of parameters, gradients and optimizer state
    advice = ask(KnownWorld(at, Clock()))
    assert advice.chosen.spec == "fsdp"
    assert sentences_of(advice)[0] == (
        "bsp (DDP) does not fit: it needs 6.1 MB a worker, which has 4 MB; fsdp does, with 2.6 MB."
    )


def test_where_nothing_fits_is_one_line():
    with pytest.raises(ConfigError, match="nothing fits: a worker has 100 kB, and fsdp, which needs least"):
        ask(KnownWorld(with_memory(situation(SLOW), 100_000), Clock()))


def test_failures_and_a_price_are_counted():
    at = situation(SLOW)
    failures = FailureModel(mtbf_s=600.0, num_workers=4, state_bytes=4e6)
    advice = ask(KnownWorld(at, Clock()), failures=failures, price_per_hour=3600.0)
    chosen = advice.chosen
    assert chosen.slowdown > 1
    assert chosen.cost == pytest.approx(chosen.time_s * 4)
    assert any("With a failure of some worker every 2 min 30 s" in sentence for sentence in sentences_of(advice))
    assert advice.to_json()["ranking"][0]["cost"] is not None


def test_a_wider_network_flips_the_ranking_to_bsp():
    advice = ask(KnownWorld(situation("4x1gbe"), Clock(), needs=learns()))
    flip = next(flip for flip in advice.flips if flip.axis == "bandwidth")
    assert flip.winners[-1] == "bsp"
    assert flip.turns
    assert {line.spec for line in flip.lines} >= {"bsp", advice.chosen.spec}
    assert any(sentence.startswith("By the bandwidth of the links: ") for sentence in sentences_of(advice))


def test_a_backup_worker_is_a_candidate_where_one_is_slow():
    def specs(slow: float) -> set[str]:
        return {row.spec for row in ask(KnownWorld(situation(SLOW, slow=slow), Clock())).rows}

    assert "bsp,backup=1" in specs(3.0)
    assert "bsp,backup=1" not in specs(1.0)


def test_slow_workers_are_told_with_shares():
    sentences = sentences_of(ask(KnownWorld(situation(FAST, slow=3.0), Clock())))
    assert any("in proportion would be 30.0, 30.0, 30.0, 10.0 %" in sentence for sentence in sentences)


def test_the_verdict_claims_nothing_of_what_was_not_run():
    needs = {spec: 1.0 if spec == "bsp" else math.inf for spec in learns()}
    advice = ask(KnownWorld(situation("4x1gbe"), Clock(), needs=needs), measure_s=12.0)
    num_run = sum(row.num_seeds > 0 for row in advice.rows)
    sentences = sentences_of(advice)
    assert advice.chosen.spec == "bsp"
    assert 1 < num_run < len(advice.raced.entries)
    assert f"of {num_run - 1} other candidates that were run none is one to name" in sentences[0]
    assert f"Of {len(advice.raced.entries)} candidates {num_run} were run, the others priced." in sentences[-1]


def test_a_tolerance_that_was_not_checked_is_told():
    world = KnownWorld(situation(SLOW), Clock(), needs=learns(), sample_s=5e-3)
    advice = ask(world, target=None)
    assert advice.chosen.spec != "bsp"
    assert not advice.raced.goal.complete
    told = "within the tolerance of 0.5 points was not checked: bsp's own run was not a whole one"
    assert any(told in sentence for sentence in sentences_of(advice))
    checked = sentences_of(ask(KnownWorld(situation(SLOW), Clock(), needs=learns())))
    assert not any("was not checked" in sentence for sentence in checked)


def noisy(at: Situation) -> Situation:
    """Steps of all workers are drawn alike, with a coefficient of variation of 0.5."""
    drawn = np.random.default_rng(3).lognormal(sigma=0.47, size=at.compute_s.shape)
    return replace(at, compute_s=at.compute_s * drawn)


def test_waiting_for_each_steps_slowest_is_not_exchanging():
    at = noisy(situation("4x1gbe"))
    alike = price("bsp", situation("4x1gbe"))
    [why] = [one for one in sentences_of(ask(KnownWorld(at, Clock()))) if one.startswith("A step of bsp takes")]
    longest_s, mean_s = at.compute_s.max(axis=0).mean(), at.compute_s.mean()
    assert f"{format_seconds(longest_s - mean_s)} waiting for the slowest" in why
    assert f"{format_seconds(alike.exchange_s)} exchanging" in why


@pytest.mark.parametrize(("slow", "ranks"), [(1.0, ()), (1.3, (7,)), (3.0, (7,))])
def test_chance_is_not_told_as_unequal_workers(slow: float, ranks: tuple[int, ...]):
    at = noisy(situation("8x10g-cloud", num_workers=8, slow=slow))
    assert max(paces(at.compute_s)) > 1.1 * min(paces(at.compute_s))
    assert at.slow_ranks == ranks


@pytest.mark.parametrize("place", [-1, 1], ids=["the slowest", "the second"])
def test_where_the_question_is_the_chosen_one_is_the_best_of_every_figure(place: int):
    """Others may seem faster there, and not be chosen for the doubt about them."""
    at = situation("4x1gbe", slow=1.3)
    failures = FailureModel(mtbf_s=3600.0, num_workers=4, state_bytes=4e6)
    advice = ask(KnownWorld(at, Clock(), needs=learns()), failures=failures)
    spec = [row.spec for row in advice.rows if row.how == "measured" and row.spec != "adaptive"][place]
    rows = [replace(row, time_s=1.2 * row.time_s if row.spec == spec else row.time_s) for row in advice.rows]
    found = flips.flips_of(at, rows, chosen=spec, failures=failures)
    for flip in found:
        assert flip.winners[flip.values.index(flip.here)] == spec, flip.axis
