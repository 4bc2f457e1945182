"""A run whose policy changes while it trains, held against the same run written out by hand in plain PyTorch."""

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import plesio
from plesio.core.results import RunResult
from plesio.cost.cluster import Cluster, Link
from plesio.cost.step_time import Constant, LogNormal, Stalls, StepTime
from plesio.policies import Reviewed, Steer, parse_policy, read_log, verify
from plesio.policies.adaptive.system.setting import ON_THE_STORE, Setting
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support import noted_training
from support.adaptive_specs import BY_TIME
from support.by_hand import ByHand, flat_of, parameters_of, parts_of
from support.decisions import Decision, script, to, to_setting
from support.noted_training import BATCH_SIZE, NUM_FEATURES, NUM_WORKERS, Worker, build, train
from support.problems import Problem
from support.processes import on_processes
from support.workers import workers_of

NUM_SAMPLES = 240
EPOCHS = 8
TOLERANCE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}
"""float64, 160 steps of a contraction."""
BSP = Setting.of(period=1, delay=0)
UNEQUAL = (0.5, 0.25, 0.25)


def run(
    policy: str,
    *,
    steps: Sequence[StepTime] = (Constant(mean_s=0.02),) * NUM_WORKERS,
    poison: Mapping[int, int] | None = None,
    leap: int | None = None,
    broken: tuple[int, int] | None = None,
    **options: Any,
) -> Simulation[Worker]:
    """Train on virtual workers; ``poison`` makes a worker's gradients useless from a clock on, ``leap`` all rates.

    ``broken`` names one whose gradients are no numbers from a clock on, though its losses are.
    """

    def on_loss(session: plesio.Session, optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
        if leap is not None and session.clock == leap:
            optimizer.param_groups[0]["lr"] *= 30
        return 1e3 * loss if poison and session.clock >= poison.get(session.rank, 10**9) else loss

    def before_step(session: plesio.Session, model: nn.Module) -> None:
        if broken and broken[0] == session.rank and session.clock >= broken[1]:
            next(iter(model.parameters())).grad.fill_(torch.nan)

    return noted_training.run(
        policy, step_time=steps, num_samples=NUM_SAMPLES, epochs=EPOCHS, on_loss=on_loss, before_step=before_step,
        **options,
    )  # fmt: skip


def train_on_process(*, rank_s: list[float]) -> dict[str, Any]:
    """The same on a real process, for `LocalJob`."""
    rank = int(os.environ["RANK"])
    pacer = Pacer(step_time=Constant(mean_s=rank_s[rank]), seed=5, worker=rank)
    # without what the test's own hand cannot do: rounding, the store, what the guard does
    policy = "adaptive,guard=off,compress=off,store=off"
    saw = train(policy, pacer=pacer, num_samples=NUM_SAMPLES, epochs=EPOCHS)
    assert saw.result is not None
    return {"batches": saw.batches, "parameters": saw.final.tolist(), "result": saw.result.to_json()}


def by_hand(workers: Sequence[Worker], changes: Mapping[int, tuple[str, tuple[float, ...]]], *, first: str) -> Tensor:
    """Train on the batches that the workers saw, with the changes after the steps given."""
    hand = ByHand(parse_policy(first), build, sizes=(NUM_WORKERS,), data=Problem(NUM_SAMPLES, NUM_FEATURES))
    return flat_of(hand.train(workers, changes=changes))


def changes_of(result: RunResult) -> dict[int, tuple[str, tuple[float, ...]]]:
    return {one["clock"]: (one["policy"], tuple(one["shares"])) for one in result.decisions}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "decisions",
    [
        pytest.param([to(4), to(1)], id="there and back", marks=pytest.mark.slow),
        pytest.param([to(4, 2), to(1)], id="with a delay", marks=pytest.mark.slow),
        pytest.param([to(1, 1), to(8, 8), to(2), to(1), to(4)], id="up and down"),
        pytest.param(
            [to(8, 4, memory=1), to(4, memory=1), to(2, memory=1), to(4), to(1), to(4, 2, memory=4)], id="short steps"
        ),
        pytest.param([to(4, 2, memory=4, shares=UNEQUAL), to(1)], id="short steps in shares"),
        pytest.param([to(1, shares=UNEQUAL)], id="bsp in shares", marks=pytest.mark.slow),
        pytest.param([to(4, shares=UNEQUAL), to(4, 4, shares=UNEQUAL), to(1)], id="averages in shares, and back"),
    ],
)
def test_a_run_that_changes_its_policy_is_the_one_written_out_by_hand(
    decisions: list[Decision], monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, *decisions)
    simulation = run("adaptive")
    workers, [result] = workers_of(simulation), simulation.runs
    changes = changes_of(result)
    assert [spec for spec, _ in changes.values()] == [decision.setting.spec for decision in decisions]
    first = result.decisions[0]["before"]
    assert first == "bsp"
    expected = by_hand(workers, changes, first=first)
    torch.testing.assert_close(workers[0].final, expected, **TOLERANCE)
    for changed in workers[1:]:  # and rank 0's is everybody's model
        assert changed.transitions == workers[0].transitions
    news = [one["clock"] for one in result.decisions if one["policy"] != one["before"]]
    assert [transition.clock for transition in workers[0].transitions] == news


@pytest.mark.parametrize("loader_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_every_sample_is_seen_once_an_epoch_whatever_the_shares(
    loader_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, to(1, shares=UNEQUAL), to(4, shares=(0.2, 0.2, 0.6)), to(1))
    workers = workers_of(run("adaptive", loader_workers=loader_workers))
    rounds = list(zip(*(worker.batches for worker in workers), strict=True))
    seen = [index for one in rounds for batch in one for index in batch]
    for epoch in range(EPOCHS):
        assert sorted(seen[epoch * NUM_SAMPLES : (epoch + 1) * NUM_SAMPLES]) == list(range(NUM_SAMPLES))
    sizes = {tuple(map(len, one)) for one in rounds}
    assert {(4, 4, 4), (6, 3, 3), (2, 2, 8)} <= sizes


def test_with_nothing_to_gain_it_is_bsp_to_the_bit() -> None:
    adaptive, bsp = run("adaptive"), run("bsp")
    assert [one["policy"] for one in adaptive.runs[0].decisions] == ["bsp"]
    assert adaptive.runs[0].parameters_sha256 == bsp.runs[0].parameters_sha256
    assert adaptive.runs[0].wall_s == pytest.approx(bsp.runs[0].wall_s, rel=0.01)


@pytest.mark.parametrize(
    ("policy", "latency_s", "first"),
    [("adaptive", 0.3, "bsp,compress=qsgd:8"), ("adaptive,compress=off", 0.3, "bsp"), ("adaptive", 0.05, "bsp")],
)
def test_where_sending_all_parameters_takes_seconds_the_first_steps_are_rounded(
    tmp_path: Path, policy: str, latency_s: float, first: str
) -> None:
    link = Link(latency_s=latency_s, bytes_per_s=1e9)
    far = Cluster(name="far", hosts=NUM_WORKERS, workers_per_host=1, cores_per_host=1, nic=link)
    run(policy, cluster=far, trace=tmp_path)
    log = read_log(tmp_path / "events.jsonl")
    reviews = [entry.event for entry in log.entries if isinstance(entry.event, Reviewed)]
    clock, _ = parse_policy(policy).first_review
    assert [one.began_slow for one in reviews] == [first != "bsp" and one.clock == clock for one in reviews]
    steers = [action for entry in log.entries for action in entry.actions if isinstance(action, Steer)]
    assert steers[0].before == first
    assert verify(log) is None


def test_a_slow_worker_is_given_less_to_do() -> None:
    slow = [Constant(mean_s=0.02)] * (NUM_WORKERS - 1) + [Constant(mean_s=0.06)]
    adaptive, bsp = run("adaptive", steps=slow), run("bsp", steps=slow)
    shares = adaptive.runs[0].decisions[-1]["shares"]
    assert shares == pytest.approx([3 / 7, 3 / 7, 1 / 7], rel=0.15)
    # 12 samples in 3/7, 3/7, 1/7 take 12 * 3/7 / 4 * 20 ms = 25.7 ms and not 60; in whole samples 5, 5, 2: 30 ms
    assert adaptive.runs[0].wall_s == pytest.approx(bsp.runs[0].wall_s / 2, rel=0.1)


def test_chance_alone_moves_no_shares() -> None:
    simulation = run("adaptive", steps=[LogNormal(mean_s=0.02, cv=0.3)] * NUM_WORKERS)
    assert all(one["shares"] == [] for one in simulation.runs[0].decisions)


def test_a_decision_has_the_reason_of_the_latest_review_that_left_it_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = replace(to(4), reason="the noise is known", inputs=(("bsp.step_s", 7.0),))
    script(monkeypatch, to(1), to(4), known)
    [result] = run("adaptive", trace=tmp_path).runs
    entries = read_log(tmp_path / "events.jsonl").entries
    answers = [action for entry in entries for action in entry.actions if isinstance(action, Steer)]
    first, second = result.decisions
    assert "latest" not in first
    assert second["reason"] == "as scripted"
    latest = second["latest"]
    assert (latest["clock"], latest["reason"], latest["inputs"]) == (
        answers[-1].clock,
        "the noise is known",
        {"bsp.step_s": 7.0},
    )
    assert second["at_s"] < latest["at_s"] <= result.wall_s


def test_back_to_the_last_good_state(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, to(4, 2, keep=True), to(4, 2), to(1, restore=True, alarm=True))
    simulation = run("adaptive", poison={1: 30})
    [result] = simulation.runs
    assert [(one["policy"], one["restore"]) for one in result.decisions][-1] == ("bsp", True)
    assert len([line for line in result.fallbacks if "as scripted" in line]) == 1
    assert workers_of(simulation)[0].transitions[-1].restored


def test_a_good_state_is_kept_on_the_store_too(monkeypatch: pytest.MonkeyPatch) -> None:
    on_store = to_setting(ON_THE_STORE[1])
    script(monkeypatch, on_store, replace(on_store, keep=True), on_store, to(1, restore=True, alarm=True))
    simulation = run("adaptive")
    workers, [result] = workers_of(simulation), simulation.runs
    assert [one["policy"] for one in result.decisions][-2:] == ["ssp:7", "bsp"]
    assert all(worker.transitions[-1].restored for worker in workers)  # nothing was kept before the store
    for worker in workers[1:]:
        assert torch.equal(worker.final, workers[0].final)


def test_without_samples_to_deal_out_or_an_optimizer_of_the_servers_it_stays_off_the_store() -> None:
    class Own(torch.optim.SGD):
        """No server knows it."""

    stalls = Stalls(steps=LogNormal(mean_s=0.04, cv=0.1), probability=0.05, factor=5.0)

    def work(job: VirtualJob, *, own: bool) -> int:
        model, _ = build()
        optimizer = (Own if own else torch.optim.SGD)(model.parameters(), lr=0.05)
        data = Problem(NUM_SAMPLES, NUM_FEATURES)
        pacer = Pacer(step_time=stalls, seed=5, worker=job.place.rank, clock=job.clock)
        with plesio.join(model, optimizer, policy=BY_TIME, options=plesio.JoinOptions(pacer=pacer)) as session:
            batches = (
                session.shard(DataLoader(data, batch_size=BATCH_SIZE, shuffle=True), samples=20 * NUM_SAMPLES)
                if own
                else None
            )
            for _, x, y in itertools.repeat(data[:BATCH_SIZE], 100) if batches is None else batches:
                loss = (model(x) - y).square().mean()
                loss.backward()
                session.step(loss)
        return session.clock

    for own in (False, True):
        simulation = simulate(
            lambda job, own=own: work(job, own=own), num_workers=NUM_WORKERS, cluster=Cluster.one_host(NUM_WORKERS)
        )
        assert min(simulation.values()) >= 100
        policies = {one["policy"] for one in simulation.runs[0].decisions}
        assert policies
        assert not any(policy.startswith("ssp") for policy in policies)


def test_an_alarm_is_told_once_even_where_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, to(1), to(1, alarm=True))
    [result] = run("adaptive").runs
    clock = result.decisions[-1]["clock"]
    assert (result.decisions[-1]["policy"], result.decisions[-1]["restore"]) == ("bsp", False)
    assert result.fallbacks == (f"at step {clock}: as scripted",)


def test_divergence_ends_in_bsp_and_the_last_good_state() -> None:
    policy = "adaptive,price=0,momentum_price=0,gain=0.01,store=off"
    [result] = run(policy, steps=[LogNormal(mean_s=0.02, cv=0.3)] * NUM_WORKERS, poison={1: 60}).runs
    restored = [one for one in result.decisions if one["restore"]]
    assert restored
    assert restored[0]["before"] != restored[0]["policy"] == "bsp"
    assert any("last good state" in line for line in result.fallbacks)


@pytest.mark.parametrize("optimizer", ["SGD", pytest.param("AdamW", marks=pytest.mark.slow)])
def test_labels_that_change_are_nothing_to_go_back_from(optimizer: str) -> None:
    """Losses leap at step 240 on all workers, and gradients are scaled down no longer than until the next review."""

    def work(job: VirtualJob) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        rate = {"SGD": 0.3, "AdamW": 3e-3}[optimizer]
        own = getattr(torch.optim, optimizer)(model.parameters(), lr=rate)
        centres = 0.6 * torch.randn(4, 16, generator=torch.Generator().manual_seed(7))
        drawn = torch.Generator().manual_seed(job.place.rank)
        losses = []
        with plesio.join(model, own, policy="adaptive") as session:
            for step in range(320):
                y = torch.randint(4, (16,), generator=drawn)
                x = centres[y] + torch.randn(16, 16, generator=drawn)
                loss = nn.functional.cross_entropy(model(x), (y + (step >= 240)) % 4)
                loss.backward()
                session.step(loss)
                losses.append(loss.item())
        return losses

    simulation = simulate(work, num_workers=NUM_WORKERS, cluster=Cluster.one_host(NUM_WORKERS))
    [result] = simulation.runs
    assert not any(one["restore"] for one in result.decisions)
    assert any("all workers' losses leapt to" in line for line in result.fallbacks)
    losses = simulation.outcomes[0].value
    assert losses is not None
    assert sum(losses[300:320]) < sum(losses[240:260]) / 2


def test_gradients_that_are_no_numbers_are_an_alarm_though_losses_are_finite() -> None:
    [result] = run("adaptive", broken=(1, 60)).runs
    assert any("gradients in" in line and "were not finite" in line for line in result.fallbacks)


def final_loss(simulation: Simulation[Worker]) -> float:
    model, _ = build()
    for parameter, trained in zip(parameters_of(model), parts_of(model, workers_of(simulation)[0].final), strict=True):
        parameter.data.copy_(trained)
    data = Problem(NUM_SAMPLES, NUM_FEATURES)
    with torch.no_grad():
        return float((model(data.x) - data.y).square().mean())


def test_what_one_worker_spoils_is_scaled_down_at_once_and_told(tmp_path: Path) -> None:
    simulation = run("adaptive", poison={1: 100}, trace=tmp_path)
    [result] = simulation.runs
    told = re.compile(r"worker 1 scaled down its gradient in (\d+) steps, first in step 10\d")
    assert [found for line in result.fallbacks if (found := told.search(line)) and int(found[1]) > 40], result.fallbacks
    log = read_log(tmp_path / "events.jsonl")
    assert max(entry.event.num_clipped for entry in log.entries if isinstance(entry.event, Reviewed)) >= 15
    assert verify(log) is None
    assert final_loss(simulation) < 1
    assert not final_loss(run("adaptive,guard=off", poison={1: 100})) < 1000  # perhaps it is no number


def test_a_rate_that_leaps_is_held_and_told() -> None:
    simulation = run("adaptive", leap=100)
    [result] = simulation.runs
    assert [line for line in result.fallbacks if "at step 101 the learning rate leapt" in line]
    healthy = final_loss(run("adaptive"))
    assert final_loss(simulation) < 2 * healthy
    assert not final_loss(run("adaptive,guard=off", leap=100)) < 1000 * healthy  # perhaps it is no number


@pytest.mark.slow
def test_on_processes_a_changing_run_is_the_one_written_out_by_hand() -> None:
    """DDP with a hook, Gloo, reviews over sockets; what it changes to is decided by the time that steps really take."""
    found = on_processes(NUM_WORKERS, __file__, "train_on_process", rank_s=[0.01, 0.01, 0.03])
    result = RunResult.from_json(found[0]["result"])
    changes = changes_of(result)
    assert any(shares for _, shares in changes.values()), "the slow worker has less to do"
    workers = [Worker(batches=one["batches"]) for one in found]
    expected = by_hand(workers, changes, first=result.decisions[0]["before"])
    mine = torch.tensor(found[0]["parameters"], dtype=torch.float64)
    torch.testing.assert_close(mine, expected, **TOLERANCE)
