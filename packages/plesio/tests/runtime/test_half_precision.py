"""A scaled loss under every policy: held against single-process PyTorch, and in both worlds."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.utils.data import DataLoader

import plesio
from plesio.core.errors import ConfigError, TaskError
from plesio.core.trace import read_trace
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from runtime.half_precision_programs import (
    ALL,
    BATCH_SIZE,
    TOLERANCE,
    TOO_LARGE,
    Noisy,
    Worker,
    build,
    flat_of,
    loss_of,
    loss_with,
    on_processes,
    plain_loop,
    run,
    simulated,
    steps_of,
    train,
)
from support.workers import cluster_of_racks, workers_of

pytestmark = pytest.mark.timeout(120)

COMMON = ["bsp", "bsp,compress=fp16", "bsp,compress=topk:1", "hier:bsp/local_sgd:1"]


@pytest.mark.parametrize("policy", COMMON)
def test_replicas_step_as_one_process_does_and_have_its_scale(policy: str):
    """The first steps overflow; later the scale grows every 5 steps, until it has gone too far again."""
    options: dict[str, Any] = {"scale": TOO_LARGE, "growth_interval": 5, "overflows": [(1, 12)]}
    workers = workers_of(run(policy, autocast="float16", cluster=cluster_of_racks((3,)), **options))
    expected, scales, state = plain_loop(steps_of(workers), **options)
    assert len(set(scales)) > 3
    for worker in workers:
        assert worker.scales == scales
        assert worker.scaler == state
        tolerance = {"rel": 1e-2, "abs": 1e-3} if "fp16" in policy else TOLERANCE
        assert worker.final == pytest.approx(expected, **tolerance)
        assert worker.final == workers[0].final


def test_the_whole_batch_in_one_process_has_the_same_scales():
    options: dict[str, Any] = {"scale": 2.0**40, "growth_interval": 1000}
    workers = workers_of(run("bsp", autocast="float16", **options))
    expected, scales, state = plain_loop(steps_of(workers), whole=True, **options)
    assert scales[-1] < scales[0]
    # by one factor of two, as a worker's batch is a third of the whole and its gradients in float16 are three times
    assert workers[0].scaler["scale"] in (state["scale"], state["scale"] / 2, state["scale"] / 4)
    assert len(expected) == len(workers[0].final)


def skipped(worker: Worker) -> int:
    """Steps after which the scale was smaller."""
    scales = [*worker.scales, worker.scaler["scale"]]
    return sum(after < before for before, after in pairwise(scales))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("policy", "num_workers"), ALL)
def test_overflows_cost_steps_and_nothing_else(policy: str, num_workers: int):
    """All begin with a scale that is too large, and one worker alone overflows later; every step of it is counted."""
    workers = workers_of(simulated(policy, num_workers, scale=TOO_LARGE, autocast="float16", overflows=[(1, 10)]))
    report = workers[0]
    assert loss_with(report.final) < 0.5 * loss_with(flat_of(build()[0]))
    for rank, worker in enumerate(workers):
        assert torch.tensor(worker.final).isfinite().all()
        assert skipped(worker) > 0
        assert set(report.refused[str(rank)]) == {"overflow"}
    assert not any("not finite" in line or "alarm" in line or "diverge" in line for line in report.fallbacks)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("policy", ["local_sgd:2", "delayed:1", "ssp:2", "asp", "asp,update=delta"])
def test_where_steps_are_not_common_each_worker_has_a_scale_of_its_own(policy: str):
    simulation = run(policy, scale=1024.0, autocast="float16", overflows=[(1, 3), (1, 7)])
    workers = workers_of(simulation)
    assert [worker.scaler["scale"] for worker in workers] == [1024.0, 256.0, 1024.0]
    assert workers[0].refused == {"1": {"overflow": 2}}


def test_who_begins_to_step_together_takes_the_smallest_scale():
    workers = workers_of(run("switch:local_sgd:2/bsp@6", scale=1024.0, autocast="float16", overflows=[(1, 3)]))
    assert [worker.scales[4] for worker in workers] == [1024.0, 512.0, 1024.0]
    assert all(set(worker.scales[6:]) == {512.0} for worker in workers)
    assert all(worker.scaler == workers[0].scaler for worker in workers)


def test_a_step_skipped_in_the_last_step_of_a_stage_is_judged_before_all_agree():
    workers = workers_of(run("switch:local_sgd:2/bsp@6", scale=1024.0, autocast="float16", overflows=[(2, 6)]))
    assert all(set(worker.scales[6:]) == {512.0} for worker in workers)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("policy", "num_workers"), [("bsp", 3), ("asp", 3), ("adaptive", 3), ("hier:bsp/ssp:2", 4)])
def test_a_run_is_the_same_to_the_bit_when_it_is_repeated(policy: str, num_workers: int):
    options: dict[str, Any] = {"scale": TOO_LARGE, "autocast": "float16", "overflows": [(1, 9)]}
    first, second = (workers_of(simulated(policy, num_workers, **options)) for _ in range(2))
    assert first == second


@pytest.mark.one_in(2)
@pytest.mark.parametrize("policy", ["bsp", "local_sgd:2", "ssp:2", "adaptive"])
def test_a_scale_that_loses_nothing_changes_nothing_in_float32(policy: str):
    """By a power of two; what is exchanged, measured and compared with earlier gradients is in true units."""
    scaled, plain = (workers_of(run(policy, scale=scale)) for scale in (2.0**16, None))
    for one, other in zip(scaled, plain, strict=True):
        assert one.final == pytest.approx(other.final, rel=1e-6, abs=1e-7)
        assert one.fallbacks == other.fallbacks


def test_adaptive_raises_no_alarm_for_overflows():
    simulation = run("adaptive", scale=2.0**40, growth_interval=3, autocast="float16")
    decisions = [decision for decision in simulation.runs[0].decisions if "alarm" in str(decision).lower()]
    assert decisions == []
    assert not simulation.runs[0].fallbacks


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:2", "asp", "delayed:1"])
def test_a_loss_that_is_not_finite_is_no_overflow(policy: str):
    """No scale explains it."""

    def work(job: VirtualJob) -> dict[str, dict[str, int]]:
        model, optimizer = build()
        scaler = GradScaler("cpu", init_scale=8.0)
        with plesio.join(model, optimizer, policy=policy, scaler=scaler) as session:
            for step in range(4):
                loss = model(torch.ones(2, 6)).square().mean()
                if step == 2:
                    loss = loss * math.nan
                scaler.scale(loss).backward()
                session.step(loss)
        return session.report().refused_updates

    found = simulate(work, num_workers=2, cluster=Cluster.one_host(2)).values()
    assert found[0] == {"0": {"not_finite": 1}, "1": {"not_finite": 1}}


def test_clipping_is_of_true_gradients():
    options: dict[str, Any] = {"scale": TOO_LARGE, "clip": 0.3}
    [worker] = workers_of(run("bsp", num_workers=1, autocast="float16", **options))
    expected, scales, _ = plain_loop(steps_of([worker]), **options)
    assert worker.scales == scales
    assert worker.final == pytest.approx(expected, **TOLERANCE)


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:2", "asp", "delayed:1"])
def test_clipping_by_value_does_not_hide_an_overflow(policy: str):
    """Clipping turns infinity into a number."""
    workers = workers_of(run(policy, scale=TOO_LARGE, autocast="float16", clip_value=0.1))
    for rank, worker in enumerate(workers):
        assert workers[0].refused[str(rank)] == {"overflow": skipped(worker)}


def one_step(**options: Any) -> tuple[Any, GradScaler, torch.optim.Optimizer, Tensor]:
    model, optimizer = build()
    scaler = GradScaler("cpu", init_scale=8.0)
    session = plesio.join(model, optimizer, scaler=scaler, **options)
    return session, scaler, optimizer, loss_of(model, torch.ones(2, 6), torch.ones(2, 1), autocast=None)


def test_who_steps_the_scaler_too_is_told():
    _, scaler, optimizer, loss = one_step()
    scaler.scale(loss).backward()
    with pytest.raises(TaskError, match=r"leave it out, and scaler\.step\(optimizer\)"):
        scaler.step(optimizer)


@pytest.mark.parametrize(("updates", "what"), [(False, r"step\(optimizer\)"), (True, r"update\(\)")])
def test_who_does_so_with_an_overflow_which_steps_nothing_is_told(updates: bool, what: str):
    session, scaler, optimizer, loss = one_step()
    scaler.scale(loss * float("inf")).backward()
    scaler.step(optimizer)
    if updates:
        scaler.update()
    with pytest.raises(ConfigError, match=rf"leave out scaler\.{what}: session\.step\(loss\) steps"):
        session.step(loss)


def test_who_does_not_scale_the_loss_is_told():
    session, _, _, loss = one_step()
    loss.backward()
    with pytest.raises(ConfigError, match=r"has scaled no loss: scaler\.scale\(loss\)\.backward\(\)"):
        session.step(loss)


def test_a_scaler_is_given_to_join_and_not_registered():
    model, optimizer = build()
    with (
        plesio.join(model, optimizer) as session,
        pytest.raises(ConfigError, match=r"give it to plesio\.join\(\.\.\., scaler=grad_scaler\), which also saves it"),
    ):
        session.register(grad_scaler=GradScaler("cpu"))


def test_a_scaler_for_float16_parameters_is_refused():
    model, optimizer = build("float16")
    with pytest.raises(TaskError, match=r'"0.weight" is float16, and a loss scale is for float32 parameters'):
        Replica(model, optimizer, scaler=GradScaler("cpu"))
    assert Replica(model, optimizer, scaler=GradScaler("cpu", enabled=False)).scaling is None


def test_the_scaler_is_in_the_state_of_the_run():
    session, scaler, _, loss = one_step()
    with session:
        (scaler.scale(loss) * math.inf).backward()
        session.step(loss)
        state = session.state_dict()
    assert state["scaler"]["scale"] == 4.0
    other, scaler, _, _ = one_step()
    with other:
        other.load_state_dict(state)
        assert scaler.get_scale() == 4.0


def test_a_changed_scale_is_in_the_trace(tmp_path: Path):
    worker = train("bsp", scale=8.0, overflows=[(0, 2)], trace=str(tmp_path))
    records = [record for record in read_trace(tmp_path / "trace-0.jsonl").records if record.kind == "loss_scale"]
    assert [(record.clock, record.fields["scale"]) for record in records] == [(2, 4.0)]
    assert worker.refused == {"0": {"overflow": 1}}


def test_a_resumed_run_goes_on_with_its_scale(tmp_path: Path):
    def work(*, steps: int, folder: Path) -> list[float]:
        model, optimizer = build()
        scaler, scales = GradScaler("cpu", init_scale=64.0, growth_interval=2), []
        with plesio.join(model, optimizer, scaler=scaler, checkpoint=folder, every="3 steps") as session:
            loader = DataLoader(Noisy(), batch_size=BATCH_SIZE, shuffle=True)
            for _, x, y in session.shard(loader):
                loss = loss_of(model, x, y, autocast=None)
                scaler.scale(loss).backward()
                scales.append(scaler.get_scale())
                session.step(loss)
                if session.clock == steps:
                    break
        return scales

    whole = work(steps=10, folder=tmp_path / "whole")
    first = work(steps=6, folder=tmp_path / "cut")
    assert first + work(steps=10, folder=tmp_path / "cut") == whole


@pytest.mark.one_in(3)
@pytest.mark.parametrize("at_s", [0.11, 0.21, *(pytest.param(at_s, marks=pytest.mark.slow) for at_s in (0.16, 0.27))])
@pytest.mark.parametrize("policy", ["bsp", "bsp,compress=topk:1", "switch:local_sgd:2/bsp@5", "adaptive"])
@pytest.mark.parametrize("kind", ["lose", "join"])
def test_the_scale_is_that_of_all_when_one_is_lost_or_joins(kind: str, policy: str, at_s: float):
    fault = Fault(at_s=at_s, worker=1, kind="lose") if kind == "lose" else Fault(at_s=at_s, kind="join")
    options: dict[str, Any] = {"scale": TOO_LARGE, "growth_interval": 3, "autocast": "float16", "overflows": [(2, 6)]}
    workers = workers_of(run(policy, faults=[fault], **options))
    assert len(workers) == (2 if kind == "lose" else 4)
    last = [worker.scales[-3:] for worker in workers]
    if policy != "adaptive":  # which may be anywhere then
        assert all(scales == last[0] for scales in last)
        assert all(worker.scaler == workers[0].scaler for worker in workers)
        assert all(worker.final == workers[0].final for worker in workers)


def test_a_newcomer_takes_over_a_scale_that_has_grown():
    workers = workers_of(run("bsp", faults=[Fault(at_s=0.21, kind="join")], scale=8.0, growth_interval=2))
    assert len(workers) == 4
    assert workers[0].scales == sorted(workers[0].scales)
    assert workers[3].scales[0] > 8.0
    assert all(worker.scaler == workers[0].scaler for worker in workers)


def test_all_go_on_from_a_loss_with_the_smallest_scale():
    """Only one of two workers that stepped together may know of a step's overflow when the group broke."""
    lost = Fault(at_s=0.21, worker=1, kind="lose")
    options: dict[str, Any] = {"scale": 1024.0, "autocast": "float16", "overflows": [(0, 2)]}
    workers = workers_of(run("local_sgd:2", faults=[lost], **options))
    assert [worker.scales[3] for worker in workers] == [512.0, 1024.0]
    assert [worker.scaler["scale"] for worker in workers] == [512.0, 512.0]


REAL: list[tuple[str, dict[str, Any]]] = [
    ("bsp", {"scale": TOO_LARGE, "growth_interval": 5, "autocast": "float16", "overflows": [(1, 12)]}),
    ("bsp,compress=topk:1", {"scale": TOO_LARGE, "autocast": "float16", "overflows": [(1, 12)]}),
    ("delayed:1", {"scale": 1024.0, "autocast": "float16", "overflows": [(1, 12)]}),
    ("local_sgd:3", {"scale": TOO_LARGE, "autocast": "float16", "overflows": [(1, 12)]}),
    ("bsp,exchange=store", {"scale": TOO_LARGE, "autocast": "float16", "overflows": [(1, 12)]}),
    ("switch:local_sgd:2/bsp@6", {"scale": TOO_LARGE, "autocast": "float16", "overflows": [(1, 3)]}),
]
ON_THEIR_OWN: list[tuple[str, dict[str, Any]]] = [
    ("bsp,compress=fp16", {"scale": TOO_LARGE, "autocast": "float16"}),
    ("ssp:2", {"scale": TOO_LARGE, "autocast": "float16", "overflows": [(1, 9)]}),
    ("asp", {"scale": TOO_LARGE, "autocast": "float16", "overflows": [(1, 9)]}),
    ("adaptive", {"scale": TOO_LARGE, "autocast": "float16", "overflows": [(1, 9)]}),
    # what the guard looks at is in true units: else a gradient would be 16384 times the one before
    (
        "adaptive,warm_up=999,store=off",
        {"scale": 1.0, "growth_interval": 70, "growth_factor": 2.0**14, "overflows": [(1, 9)], "epochs": 14},
    ),
]


@pytest.mark.slow
def test_processes_train_as_virtual_workers_do():
    for (policy, options), found in zip(REAL, on_processes(REAL), strict=True):
        mine = workers_of(run(policy, num_workers=2, **options))
        for one, other in zip(mine, found, strict=True):
            assert other.scales == one.scales, policy
            assert other.final == pytest.approx(one.final, **TOLERANCE), policy
            assert other.refused == one.refused


@pytest.mark.slow
def test_where_ddp_averages_it_is_the_mean_that_is_clipped():
    options: dict[str, Any] = {"scale": TOO_LARGE, "clip": 0.3}
    [workers] = on_processes([("bsp", {**options, "autocast": "float16"})])
    expected, scales, _ = plain_loop(steps_of(workers), **options)
    for worker in workers:
        assert worker.scales == scales
        assert worker.final == pytest.approx(expected, **TOLERANCE)


@pytest.mark.slow
def test_processes_go_on_after_overflows():
    for (policy, _), found in zip(ON_THEIR_OWN, on_processes(ON_THEIR_OWN), strict=True):
        assert loss_with(found[0].final) < 0.5 * loss_with(flat_of(build()[0])), policy
        assert set(found[0].refused["1"]) == {"overflow"}
        assert not any("not finite" in line or "scaled down" in line for line in found[0].fallbacks)
