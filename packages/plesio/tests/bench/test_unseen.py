"""The generator of scenarios in benchmarks/evidence: what the tables of docs/evidence.md rest on."""

import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

EVIDENCE = Path(__file__).parents[4] / "benchmarks" / "evidence"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts import each other as siblings; what they are called is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(EVIDENCE))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(EVIDENCE) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def test_a_line_is_smoothed_to_itself():
    from smooth import smoothed

    samples = [0, 3, 5, 9, 12, 20, 21]
    assert smoothed(samples, [2.0 * it - 7 for it in samples]) == pytest.approx([2.0 * it - 7 for it in samples])


def test_time_to_a_target_is_interpolated_in_samples_and_then_in_seconds():
    from smooth import samples_to, seconds_to

    samples = list(range(0, 410, 10))
    points = [it / 4 for it in samples]
    assert samples_to(51.0, samples, points) == pytest.approx(204.0)
    seconds = [it if it <= 200 else 200 + 3 * (it - 200) for it in samples]  # three times slower from 200 samples on
    assert seconds_to(51.0, samples, seconds, points) == pytest.approx(212.0)
    assert seconds_to(101.0, samples, seconds, points) == math.inf


def test_one_lucky_evaluation_does_not_decide():
    from smooth import samples_to

    samples = list(range(0, 410, 10))
    points = [it / 4 for it in samples]
    lucky = [85.0 if it == 100 else point for it, point in zip(samples, points, strict=True)]
    assert samples_to(80.0, samples, lucky) == pytest.approx(samples_to(80.0, samples, points), rel=0.01)


def test_the_report_covers_every_axis_evenly():
    from families import FAMILIES
    from scenario import SETS, draw

    drawn = [draw(seed) for seed in SETS["report"]]
    families = Counter(it.family for it in drawn)
    assert set(families) == set(FAMILIES)
    assert max(families.values()) - min(families.values()) <= 1
    assert Counter(it.stragglers for it in drawn) == {"equal": 16, "transient": 12, "persistent": 12}
    assert sum(it.exchange_share < 0.05 for it in drawn) == 12
    assert sum(it.nothing_to_gain for it in drawn) >= 3
    assert set(Counter(it.rate_factor for it in drawn).values()) == {8}
    assert {it.optimizer for it in drawn} == {"sgd", "momentum", "nesterov", "adam", "adamw", "adagrad", "rmsprop"}
    assert {it.num_workers for it in drawn} == {2, 3, 4, 6, 8, 12, 16, 24, 32}


@pytest.mark.parametrize("seed", [0, 41, 99, 1000, 1039])
def test_a_scenario_is_possible_and_is_the_same_when_drawn_again(seed: int):
    from scenario import draw
    from trial import cluster_of

    it = draw(seed)
    assert it == draw(seed)
    assert 10e6 / 8 <= it.nic_bytes_per_s <= 25e9 / 8
    cluster = cluster_of(it, num_bytes=10_000)
    ring_s = 2 * (it.num_workers - 1) / it.num_workers * 10_000 / cluster.nic.bytes_per_s
    assert ring_s == pytest.approx(it.exchange_share * it.step_s, rel=1e-3), "as long as the nominal model's exchange"


def test_a_problem_is_made_anew_from_its_seed_and_its_points_are_finite():
    import torch
    from families import FAMILIES
    from plain import points_of

    for name, family in FAMILIES.items():
        one, same, other = (family.make(seed, 0.5) for seed in (3, 3, 4))
        assert all(map(torch.equal, one.train, same.train)), name
        assert not all(map(torch.equal, one.train, other.train)), name
        model = one.build()
        assert -100.0 <= points_of(one, model) < 60.0, name
        loss = one.loss(model, [tensor[:8] for tensor in one.train])
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters()), name


def test_workers_of_non_iid_families_have_rows_of_their_own():
    from families import FAMILIES

    for name in ("non_iid", "ordered"):
        problem = FAMILIES[name].make(0, 0.9)
        assert problem.rows_of is not None
        first, last = (problem.train[1][problem.rows_of(worker, 4)] for worker in (0, 3))
        assert len(first) == len(last) == problem.num_samples
        shares = [(classes.bincount(minlength=8) / len(classes)) for classes in (first, last)]
        assert (shares[0] - shares[1]).abs().sum() > 0.2, name


def test_a_plain_run_and_a_trial_of_bsp_agree(tmp_path: Path):
    """The same rate on the same global batch: a policy that is BSP ends where the plain run does, but for the seed."""
    from dataclasses import replace

    from scenario import draw
    from trial import run_trial
    from tuning import tuned

    short = replace(draw(0), family="logistic", optimizer="sgd", num_workers=2, num_steps=60, racks=1, slow_factors=())
    plain = tuned(short, folder=tmp_path)
    trial = run_trial(short, plain, policy="bsp", seed=0)
    assert trial.status == "finished"
    assert trial.points[-1] == pytest.approx(plain.final, abs=4.0)
    assert trial.seconds[-1] <= trial.wall_s
