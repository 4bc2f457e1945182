"""The generator of scenarios in benchmarks/evidence: what the tables of docs/evidence.md rest on."""

import hashlib
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from plesio.policies import spec

WIDE_FIELDS = ("accumulation", "clip_norm", "leap_at_share", "frozen", "worker_change")
FIRST_DRAWN = "0747647c32535efc"
"""Digest of every fiftieth of the first scenarios, as they were drawn when they were reported."""
EVIDENCE = Path(__file__).parents[4] / "benchmarks" / "evidence"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts import each other as siblings; they are forgotten afterwards, and what they register as well."""
    monkeypatch.syspath_prepend(str(EVIDENCE))
    monkeypatch.setattr(spec, "_FORMS", dict(spec._FORMS))
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
    assert set(families) == {name for name, family in FAMILIES.items() if not family.sparse}
    assert max(families.values()) - min(families.values()) <= 1
    assert Counter(it.stragglers for it in drawn) == {"equal": 16, "transient": 12, "persistent": 12}
    assert sum(it.exchange_share < 0.05 for it in drawn) == 12
    assert sum(it.nothing_to_gain for it in drawn) >= 3
    assert set(Counter(it.rate_factor for it in drawn).values()) == {8}
    assert {it.optimizer for it in drawn} == {"sgd", "momentum", "nesterov", "adam", "adamw", "adagrad", "rmsprop"}
    assert {it.num_workers for it in drawn} == {2, 3, 4, 6, 8, 12, 16, 24, 32}


def test_the_wide_axes_are_covered_evenly():
    from families import FAMILIES
    from scenario import SETS, draw

    drawn = [draw(seed) for seed in SETS["wide"]]
    families = Counter(it.family for it in drawn)
    assert set(families) == set(FAMILIES)
    assert max(families.values()) - min(families.values()) <= 1
    known = {name for family in FAMILIES.values() for name in (*family.optimizers, *family.more_optimizers)}
    assert {it.optimizer for it in drawn} == known
    schedules = Counter(it.schedule for it in drawn)
    assert len(schedules) == 7
    assert min(schedules.values()) >= 5
    assert max(Counter(it.rate_factor for it in drawn).values()) <= 11
    assert sum(it.exchange_share < 0.05 for it in drawn) == 15
    assert Counter(it.accumulation for it in drawn) == {1: 34, 2: 9, 4: 8}
    assert 20 <= sum(it.clip_norm is not None for it in drawn) <= 26
    assert sum(it.leaps for it in drawn) == 12
    assert 5 <= sum(it.frozen for it in drawn) <= 13
    changes = Counter(it.worker_change.kind for it in drawn if it.worker_change is not None)
    assert min(changes["lose"], changes["join"]) >= 5


def test_the_first_scenarios_have_nothing_of_the_wide_axes_and_are_what_they_were():
    from scenario import draw

    drawn = [draw(seed) for seed in range(0, 1100, 50)]
    assert all(not it.more and not it.wide for it in drawn)
    narrow = [field for field in drawn[0].__slots__ if field not in WIDE_FIELDS]
    text = repr([[getattr(it, field) for field in narrow] for it in drawn])
    assert hashlib.sha256(text.encode()).hexdigest().startswith(FIRST_DRAWN)


@pytest.mark.parametrize("seed", [0, 41, 99, 1000, 1039, 3100, 3141])
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


def _small(**changes: Any) -> Any:
    """Return a wide scenario of logistic regression with SGD on three workers, with these changes."""
    from dataclasses import replace

    from scenario import draw

    plain = {"family": "logistic", "optimizer": "sgd", "schedule": "constant", "difficulty": 0.5, "rate_factor": 1.0}
    shape = {"num_workers": 3, "batch_size": 8, "num_steps": 60, "racks": 1, "oversubscription": 1.0}
    time = {"slow_factors": (), "stall_probability": 0.0, "link_changes": (), "exchange_share": 0.5}
    wide = {"accumulation": 1, "clip_norm": None, "leap_at_share": None, "frozen": False, "worker_change": None}
    return replace(draw(3100), **(plain | shape | time | wide | changes))


def _found(scenario: Any, *, rate: float = 0.1) -> Any:
    from tuning import Tuned

    numbers = dict.fromkeys(("tuned_rate", "start", "final", "target", "target_share", "reached_share"), 0.0)
    return Tuned(hash=scenario.plain_hash, rate=rate, scores={}, **numbers)


def test_every_trained_parameter_has_one_optimizer():
    from families import FAMILIES
    from plain import OPTIMIZERS, build_model, make_optimizers

    for name, family in FAMILIES.items():
        scenario = _small(family=name, frozen=bool(family.backbone))
        model = build_model(family.make(0, 0.5), scenario)
        trained = [id(parameter) for parameter in model.parameters() if parameter.requires_grad]
        assert (len(trained) < len(list(model.parameters()))) == scenario.frozen, name
        for optimizer in {*family.optimizers, *family.more_optimizers} & OPTIMIZERS.keys():
            made = make_optimizers(optimizer, model, rate=0.1)
            taken = [id(parameter) for one in made for group in one.param_groups for parameter in group["params"]]
            assert sorted(taken) == sorted(trained), (name, optimizer)


def test_own_optimizers_step_as_they_say():
    import torch
    from own_optimizers import FixedLength, Lion

    one, other = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    fixed = FixedLength([one, other], lr=0.5)
    for scale in (1.0, 1000.0):
        before = torch.cat([one.detach().clone(), other.detach().clone()])
        one.grad, other.grad = scale * torch.tensor([3.0, 0.0]), scale * torch.tensor([0.0, 4.0])
        fixed.step()
        assert (torch.cat([one, other]) - before).norm().item() == pytest.approx(0.5, rel=1e-5)
    parameter = torch.nn.Parameter(torch.zeros(2))
    lion = Lion([parameter], lr=0.1, betas=(0.5, 0.5))
    for gradient in ([1.0, -2.0], [-0.1, 4.0]):  # the first is outweighed by the momentum, the second is not
        parameter.grad = torch.tensor(gradient)
        lion.step()
    assert torch.allclose(parameter, torch.tensor([-0.2, 0.0]))


def test_a_leap_changes_inputs_and_a_second_one_undoes_it():
    import torch
    from families import FAMILIES, Leapt

    for name in ("teacher", "gru", "copying", "factorisation", "tags"):
        problem = FAMILIES[name].make(0, 0.5)
        model, batch = problem.build().eval(), [tensor[:16] for tensor in problem.train]
        plain, leapt, back = (problem.loss(it, batch) for it in (model, Leapt(model), Leapt(Leapt(model))))
        assert torch.equal(plain, back), name
        assert not torch.equal(plain, leapt), name


def test_accumulated_passes_make_the_step_of_the_whole_batch():
    from families import FAMILIES
    from plain import train_plain

    problem = FAMILIES["logistic"].make(0, 0.5)
    curves = [
        train_plain(problem, _small(accumulation=passes, batch_size=8 // passes, clip_norm=0.5), rate=0.5, seed=0)
        for passes in (1, 4)
    ]
    assert curves[0].samples == curves[1].samples
    assert curves[0].points == pytest.approx(curves[1].points, abs=0.2)
    free = train_plain(problem, _small(), rate=0.5, seed=0)
    assert free.points != pytest.approx(curves[0].points, abs=0.2), "it was clipped"


def test_passes_of_a_run_whose_workers_change_have_all_samples():
    from scenario import WorkerChange

    for kind, workers in (("lose", 2), ("join", 4)):
        it = _small(accumulation=2, worker_change=WorkerChange(at_share=0.5, kind=kind))
        sizes = list(it.pass_sizes())
        assert sum(sizes) == it.num_samples
        assert set(sizes[:60]) == {24}
        assert set(sizes[60:-1]) == {8 * workers}


@pytest.mark.parametrize("schedule", ["constant", "cosine", "one-cycle-momentum", "plateau"])
def test_a_leap_is_in_the_plain_run_and_in_the_trial(schedule: str):
    """Points are of the leapt inputs: they rise little before the leap, and much after it."""
    from families import FAMILIES
    from plain import train_plain
    from trial import run_trial

    it = _small(schedule=schedule, leap_at_share=0.3, num_steps=120)
    plain = train_plain(FAMILIES["logistic"].make(it.seed, it.difficulty), it, rate=0.3, seed=900)
    trial = run_trial(it, _found(it, rate=0.3), policy="bsp", seed=0)
    assert trial.status == "finished"
    assert list(trial.samples) == sorted(trial.samples)
    for samples, points in ((plain.samples, plain.points), (trial.samples, trial.points)):
        before = max(point for sample, point in zip(samples, points, strict=True) if sample <= it.leaps_after)
        assert points[-1] > before + 10


@pytest.mark.parametrize("kind", ["lose", "join"])
@pytest.mark.parametrize("policy", ["bsp", "adaptive"])
def test_a_trial_goes_on_when_its_workers_change(policy: str, kind: str):
    from scenario import WorkerChange
    from trial import run_trial

    same = _small(accumulation=2, clip_norm=1.0, schedule="one-cycle")
    changes = _small(
        accumulation=2, clip_norm=1.0, schedule="one-cycle", worker_change=WorkerChange(at_share=0.3, kind=kind)
    )
    usual, changed = (run_trial(it, _found(it), policy=policy, seed=0) for it in (same, changes))
    assert changed.status == "finished"
    assert changed.samples[-1] == pytest.approx(changes.num_samples, rel=0.05)
    assert (changed.wall_s > usual.wall_s) == (kind == "lose")


def test_a_static_that_cannot_run_a_scenario_is_not_available(tmp_path: Path):
    from campaign import Campaign, _run

    it = _small(optimizer="lion", num_steps=20)
    campaign = Campaign(folder=tmp_path, label="main", set_name="wide", scenarios=[it], policies=["ssp:4"], seeds=[0])
    (tmp_path / "tuning").mkdir()
    (tmp_path / "tuning" / f"{it.name}.json").write_text(json.dumps(asdict(_found(it, rate=0.001))))
    assert _run(campaign, it, "ssp:4", 0).startswith("not available")
    trial = campaign.trial(it, "ssp:4", 0)
    assert trial is not None, "and it is not tried again"
    assert not trial.available
    assert campaign.outcome(it, "ssp:4", 0) is None
