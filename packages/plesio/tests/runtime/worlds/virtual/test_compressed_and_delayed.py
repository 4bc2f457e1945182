"""Compressed and delayed exchanges: what they equal, what they refuse, and how long they take."""

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plesio
from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.cost.step_time import Constant
from plesio.policies import parse_policy
from plesio.runtime.worlds.virtual.group import VirtualGroup
from support.noted_training import (
    BATCH_SIZE,
    EPOCHS,
    NUM_SAMPLES,
    NUM_WORKERS,
    TOLERANCE,
    assert_processes_train_what_virtual_workers_do,
    run,
)
from support.workers import workers_of


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "local_sgd:4,delay=2", "delayed:2"])
def test_no_compression_is_what_it_is_without_the_option(policy: str):
    plain, named = run(policy).runs[0], run(f"{policy},compress=none").runs[0]
    assert named.parameters_sha256 == plain.parameters_sha256
    assert named.policy == plain.policy == policy


def test_short_local_steps_averaged_every_step_are_bsp():
    """With plain SGD the mean of the steps is the step of the mean gradient, at any length."""
    plain, short = (workers_of(run(policy, momentum=0.0)) for policy in ("bsp", "local_sgd:1,inner_rate=0.25"))
    torch.testing.assert_close(short[0].final, plain[0].final, **TOLERANCE)


def test_no_delay_is_bsp():
    assert run("delayed:0").runs[0].parameters_sha256 == run("bsp").runs[0].parameters_sha256


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "policy",
    [
        "delayed:2",
        "delayed:2,compress=qsgd:4",
        "bsp,compress=fp16",
        "bsp,compress=randk:0.2",
        "bsp,compress=powersgd:2",
        "local_sgd:4",
        "local_sgd:4,compress=fp16",
        "local_sgd:4,compress=topk:0.1",
        "local_sgd:4,compress=powersgd:2",
        "local_sgd:4,delay=2,compress=qsgd:4",
        "local_sgd:4,delay=4,compress=topk:0.1+no_feedback",
    ],
)
def test_replicas_are_equal_to_the_bit(policy: str):
    """After every step, or where a blocking average was taken, and at the end."""
    workers = workers_of(run(policy))
    parsed = parse_policy(policy)
    for other in workers[1:]:
        assert torch.equal(other.final, workers[0].final)
        for clock, (mine, theirs) in enumerate(zip(workers[0].after, other.after, strict=True), start=1):
            common = parsed.update == "gradient" or (parsed.delay == 0 and parsed.exchanges_at(clock))
            assert torch.equal(mine, theirs) == common, clock


@pytest.mark.parametrize("delay", [1, 2, 4])
def test_no_more_than_d_gradients_are_held_between_steps(delay: int, monkeypatch: pytest.MonkeyPatch):
    sent: dict[int, list[weakref.ref[Tensor]]] = {}
    all_reduce = VirtualGroup.all_reduce

    def remember(self: VirtualGroup, tensor: Tensor) -> Any:
        if tensor.numel() > 1:
            sent.setdefault(self.rank, []).append(weakref.ref(tensor))
        return all_reduce(self, tensor)

    held: list[int] = []

    def count(session: plesio.Session, model: nn.Module) -> None:
        held.append(sum(reference() is not None for reference in sent.get(session.rank, [])))

    monkeypatch.setattr(VirtualGroup, "all_reduce", remember)
    run(f"delayed:{delay}", before_step=count)
    assert max(held) == delay


NUM_STEPS = EPOCHS * NUM_SAMPLES // BATCH_SIZE // NUM_WORKERS


def wall_s(policy: str, *, latency_s: float) -> float:
    """Return what a run takes in steps of 20 ms, on a ring of three whose messages take no time but their latency."""
    cluster = Cluster(
        name="far",
        hosts=NUM_WORKERS,
        workers_per_host=1,
        cores_per_host=1,
        nic=Link(latency_s=latency_s, bytes_per_s=1e9),
        collectives="nccl",
    )
    return run(policy, step_time=Constant(mean_s=0.02), cluster=cluster).runs[0].wall_s


def test_delayed_gradients_hide_an_exchange_that_takes_no_longer_than_their_steps():
    """A ring of 3 passes four messages on, which take 12 ms, or 28 ms in all."""
    assert wall_s("bsp", latency_s=3e-3) == pytest.approx(NUM_STEPS * 0.032, rel=0.05)
    assert wall_s("delayed:1", latency_s=3e-3) == pytest.approx(NUM_STEPS * 0.020, rel=0.05)
    assert wall_s("delayed:2", latency_s=7e-3) == pytest.approx(NUM_STEPS * 0.028, rel=0.1), "one after the other"


def test_both_halves_of_a_compressed_exchange_are_hidden_behind_local_steps():
    """Each passes two messages on, in 36 ms of the 40 of two steps; behind one step 16 of the first half are seen."""
    assert wall_s("local_sgd:4,delay=4,compress=qsgd:8", latency_s=18e-3) == pytest.approx(NUM_STEPS * 0.02, rel=0.05)
    seen_s = (NUM_STEPS / 4 - 1) * (0.016 + 0.036)  # the last is behind no step, and not in a run's time
    late_s = wall_s("local_sgd:4,delay=1,compress=qsgd:8", latency_s=18e-3)
    assert late_s == pytest.approx(NUM_STEPS * 0.02 + seen_s, rel=0.05)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("compress", ["topk:0.1", "powersgd:2", "qsgd:4"])
def test_buffers_are_sent_in_full(compress: str):
    """A running variance that is sent late and added up could become negative."""
    for policy in ("local_sgd:4", "local_sgd:4,delay=2", "bsp"):
        workers = workers_of(run(f"{policy},compress={compress}", batch_norm=True))
        for worker in workers:
            mean, variance, _ = worker.buffers
            assert torch.isfinite(mean).all()
            assert (variance > 0).all()
            assert torch.equal(mean, workers[0].buffers[0])
            assert torch.equal(variance, workers[0].buffers[1])


@pytest.mark.parametrize(
    "policy", ["bsp,compress=topk:0.1", "bsp,compress=fp16", "delayed:2", "delayed:2,compress=topk:0.1"]
)
def test_a_gradient_that_is_not_finite_is_refused_for_all(policy: str):
    def poison(session: plesio.Session, model: nn.Module) -> None:
        if session.rank == 1 and session.clock == 5:
            next(model.parameters()).grad.fill_(float("nan"))  # type: ignore[union-attr]

    simulation = run(policy, before_step=poison)
    assert sum(sum(reasons.values()) for reasons in simulation.runs[0].refused_updates.values()) == 1
    workers = workers_of(simulation)
    for worker in workers:
        assert torch.isfinite(worker.final).all()
        assert torch.equal(worker.final, workers[0].final)


@pytest.mark.parametrize("delay", [0, 2])
def test_a_delta_that_is_not_finite_is_refused_and_its_worker_goes_back_to_the_base(delay: int):
    def poison(session: plesio.Session, model: nn.Module) -> None:
        if session.rank == 1 and session.clock == 6:
            with torch.no_grad():
                next(model.parameters()).fill_(float("inf"))

    simulation = run(f"local_sgd:4,delay={delay},compress=topk:0.1", before_step=poison)
    refused = simulation.runs[0].refused_updates
    assert refused["1"]["not_finite"] >= 1
    assert refused.keys() == {"1"}
    workers = workers_of(simulation)
    for worker in workers:
        assert torch.isfinite(worker.final).all()
        assert torch.equal(worker.final, workers[0].final)


@pytest.mark.parametrize("policy", ["bsp", "delayed:2", "local_sgd:2"])
def test_what_a_guard_does_is_told(policy: str, tmp_path: Path):
    [result] = run(f"{policy},compress=topk:0.05+guard:0.5", trace=tmp_path).runs
    [line] = result.fallbacks
    assert line.startswith("topk:0.05+guard:0.5: ")
    assert line.endswith("exchanges were sent in full, because what had been kept back outgrew its limit")
    lines = [json.loads(text) for text in (tmp_path / "trace-0.jsonl").read_text().splitlines()]
    assert {line["reason"] for line in lines if line.get("k") == "flush"} == {"guard", "settle"}
    [figures, *_] = [line for line in lines if line.get("k") == "compression"]
    assert figures["spec"] == "topk:0.05+guard:0.5"
    assert figures["num_flushes"] > 0
    assert 0 < figures["sent_bytes"] < figures["uncompressed_bytes"]


ON_PROCESSES = {
    "bsp,compress=fp16": 2e-3,  # by DDP's own hook: of other roundings to 11 bits, over 20 steps
    "bsp,compress=topk:0.2": 1e-6,
    "delayed:2": 1e-10,
    "delayed:1,compress=powersgd:1": 1e-6,
    "local_sgd:4,compress=topk:0.1": 1e-6,
    "local_sgd:4,delay=2,compress=qsgd:8": 1e-6,
}
"""How far the two worlds may be apart: they add in another order, and codecs send float32."""


def test_three_processes_train_what_virtual_workers_do():
    assert_processes_train_what_virtual_workers_do(ON_PROCESSES, virtually=run)
