"""DiLoCo, held against the formulas of its papers written out in numpy, and against the policies that it can be."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from numpy.typing import NDArray
from torch import nn

import plesio
from plesio.core.errors import ConfigError
from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.cost.step_time import Constant
from plesio.policies import DiLoCo
from plesio.runtime.worker.exchange.fragments import fragments_of
from support.by_hand import flat_of, parameters_of
from support.noted_training import (
    NUM_FEATURES,
    NUM_SAMPLES,
    NUM_WORKERS,
    TOLERANCE,
    Worker,
    assert_processes_train_what_virtual_workers_do,
    build,
    run,
)
from support.problems import Problem
from support.workers import workers_of

NUM_TENSORS = 4
PLAIN = "outer=sgd,outer_lr=1,outer_momentum=0"
"""The outer step is the mean itself."""


class ByHand:
    """The same training on the batches that workers saw, with outer steps in numpy, which rounds as torch does."""

    def __init__(self, policy: DiLoCo, workers: Sequence[Worker]) -> None:
        self.policy = policy
        models, optimizers = zip(*(build() for _ in workers), strict=True)
        self.own = [[p.detach().numpy() for p in parameters_of(model)] for model in models]
        self.shared = [tensor.copy() for tensor in self.own[0]]
        self.velocity = [np.zeros_like(tensor) for tensor in self.shared]
        self.age = [0] * len(self.shared)
        self.under_way: tuple[int, dict[int, tuple[float, list[NDArray[Any]]]]] = 0, {}
        fragments = fragments_of([tensor.size for tensor in self.shared], num_fragments=policy.fragments)
        self.shared_after = [self.flat()]
        for clock, batches in enumerate(zip(*(worker.batches for worker in workers), strict=True), start=1):
            for model, optimizer, batch in zip(models, optimizers, batches, strict=True):
                optimizer.zero_grad()
                data = Problem(NUM_SAMPLES, NUM_FEATURES)
                (model(data.x[batch]) - data.y[batch]).square().mean().backward()
                optimizer.step()
            self.age = [age + 1 for age in self.age]
            if self.under_way[0] + policy.delay == clock:
                self.merge(clock)
            if clock % policy.period == 0:
                self.send(fragments[(clock // policy.period - 1) % policy.fragments], clock)
            if policy.delay == 0:
                self.merge(clock)
            self.shared_after.append(self.flat())
        self.merge(clock)
        self.send([place for place, age in enumerate(self.age) if age], clock)
        self.merge(clock)

    def flat(self) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([tensor.reshape(-1) for tensor in self.shared]))

    def send(self, places: Sequence[int], clock: int) -> None:
        found = {}
        for place in places:
            found[place] = (
                self.age[place] / self.policy.local_steps,
                [own[place] - self.shared[place] for own in self.own],
            )
            self.age[place] = 0
        self.under_way = clock, found

    def merge(self, clock: int) -> None:
        started, found = self.under_way
        kept, momentum = self.policy.own_share if started < clock else 0.0, self.policy.outer_momentum
        for place, (share, deltas) in found.items():
            progress, before = mean_of(deltas, self.policy.merge), self.velocity[place]
            self.velocity[place] = momentum**share * before + progress
            ahead = self.velocity[place] if self.policy.outer == "nesterov" else before
            self.shared[place] = self.shared[place] + self.policy.outer_lr * (progress + share * momentum * ahead)
            for own in self.own:
                own[place][...] = kept * own[place] + (1 - kept) * self.shared[place] if kept else self.shared[place]
        self.under_way = started, {}


def mean_of(deltas: Sequence[NDArray[Any]], merge: str) -> NDArray[Any]:
    weight = 1 / len(deltas)
    if merge == "mean":
        return sum(delta * weight for delta in deltas)
    lengths = [np.linalg.norm(delta) for delta in deltas]
    direction = sum(weight * delta / length for delta, length in zip(deltas, lengths, strict=True))
    return direction * (np.mean(lengths) / np.linalg.norm(direction))


@st.composite
def policies(draw: st.DrawFn) -> DiLoCo:
    fragments, period = draw(st.integers(1, NUM_TENSORS)), draw(st.integers(1, 5))
    delay = draw(st.integers(0, period))
    return DiLoCo(
        local_steps=fragments * period,
        fragments=fragments,
        delay=delay,
        alpha=draw(st.sampled_from([0.0, 0.25, 0.5, 0.8])) if delay else 0.5,
        outer=draw(st.sampled_from(["nesterov", "sgd"])),
        outer_lr=draw(st.sampled_from([0.4, 0.7, 1.0])),
        outer_momentum=draw(st.sampled_from([0.0, 0.3, 0.9])),
    )


@settings(max_examples=15)
@given(policies(), st.integers(2, 4))
def test_it_is_the_run_written_out_in_numpy_to_the_bit(policy: DiLoCo, num_workers: int):
    workers = workers_of(run(policy.spec, num_workers=num_workers, cluster=Cluster.one_host(num_workers)))
    hand = ByHand(policy, workers)
    for worker in workers:
        assert torch.equal(worker.final, hand.flat()), policy.spec


@pytest.mark.parametrize("text", ["diloco:4,merge=rda", "diloco:6,fragments=2,delay=1,merge=rda"])
def test_lengths_and_directions_are_averaged_apart(text: str):
    """To rounding: torch's norm and numpy's add up squares in different orders."""
    workers = workers_of(run(text))
    torch.testing.assert_close(workers[0].final, ByHand(plesio.parse_policy(text), workers).flat(), **TOLERANCE)
    plain = workers_of(run(text.replace(",merge=rda", "")))
    assert float((workers[0].final - plain[0].final).abs().max()) > 1e-3, "or it says nothing"


@pytest.mark.parametrize(
    "text", ["diloco:4,outer=adam,outer_lr=0.02", "diloco:5,outer=adam,outer_lr=0.01,outer_momentum=0"]
)
def test_outer_adam_is_torch_s_adam(text: str):
    """With the mean progress of a round as its negative gradient; the run ends with a whole round."""
    policy = plesio.parse_policy(text)
    assert isinstance(policy, DiLoCo)
    workers = workers_of(run(text))
    models, optimizers = zip(*(build() for _ in workers), strict=True)
    shared = [torch.nn.Parameter(flat_of(models[0]))]
    adam = torch.optim.Adam(shared, lr=policy.outer_lr, betas=(policy.outer_momentum, 0.99))
    data = Problem(NUM_SAMPLES, NUM_FEATURES)
    for clock, batches in enumerate(zip(*(worker.batches for worker in workers), strict=True), start=1):
        for model, optimizer, batch in zip(models, optimizers, batches, strict=True):
            optimizer.zero_grad()
            (model(data.x[batch]) - data.y[batch]).square().mean().backward()
            optimizer.step()
        if clock % policy.local_steps == 0:
            progress = torch.stack([flat_of(model) for model in models]).mean(0) - shared[0].detach()
            shared[0].grad = -progress
            adam.step()
            for model in models:
                nn.utils.vector_to_parameters(shared[0].detach().clone(), parameters_of(model))
    assert clock % policy.local_steps == 0
    torch.testing.assert_close(workers[0].final, shared[0].detach(), **TOLERANCE)


@pytest.mark.parametrize("text", ["diloco:4", "diloco:6,fragments=3,delay=2"])
@pytest.mark.parametrize("at", [7, 8, 11])
def test_the_outer_parameters_are_what_is_evaluated(text: str, at: int):
    seen: list[torch.Tensor] = []

    def before_step(session: plesio.Session, model: nn.Module) -> None:
        if session.clock == at:
            session.evaluate(lambda: seen.append(flat_of(model)) or 0.0)

    workers = workers_of(run(text, before_step=before_step))
    [evaluated] = seen
    assert torch.equal(evaluated, ByHand(plesio.parse_policy(text), workers).shared_after[at])


@pytest.mark.parametrize(("text", "is_told"), [("diloco:9", True), ("diloco:7", False), ("local_sgd:9", False)])
def test_an_evaluation_before_the_first_round_is_over_is_told_of(text: str, is_told: bool):
    def before_step(session: plesio.Session, model: nn.Module) -> None:
        if session.clock == 8:
            session.evaluate(lambda: 0.0)

    [result] = run(text, before_step=before_step).runs
    assert any("no round was over when it was evaluated" in line for line in result.fallbacks) is is_told


def test_an_exchange_at_every_step_with_plain_outer_steps_is_bsp():
    """To rounding: BSP averages the gradients, this the parameters that they lead to."""
    ours, bsp = (workers_of(run(policy, momentum=0.0)) for policy in (f"diloco:1,{PLAIN}", "bsp"))
    torch.testing.assert_close(ours[0].final, bsp[0].final, **TOLERANCE)


def test_with_plain_outer_steps_it_is_local_sgd():
    ours, averaged = (workers_of(run(policy)) for policy in (f"diloco:4,{PLAIN}", "local_sgd:4"))
    torch.testing.assert_close(ours[0].final, averaged[0].final, **TOLERANCE)


def test_one_worker_that_exchanges_at_every_step_trains_as_alone():
    [worker] = workers_of(run(f"diloco:1,{PLAIN}", num_workers=1, cluster=Cluster.one_host(1)))
    model, optimizer = build()
    data = Problem(NUM_SAMPLES, NUM_FEATURES)
    for batch in worker.batches:
        optimizer.zero_grad()
        (model(data.x[batch]) - data.y[batch]).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(worker.final, flat_of(model), **TOLERANCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOnce(DiLoCo):
    """All fragments have one offset."""

    @property
    def period(self) -> int:
        return self.local_steps

    def fragments_at(self, clock: int) -> tuple[int, ...]:
        return tuple(range(self.fragments))


def test_fragments_at_one_offset_are_the_whole_to_the_bit():
    together, whole = (run(policy) for policy in (AtOnce(local_steps=6, fragments=3), "diloco:6"))
    assert together.runs[0].parameters_sha256 == whole.runs[0].parameters_sha256


@pytest.mark.parametrize("compress", ["qsgd:8", "qsgd:4+feedback"])
def test_a_compression_is_of_tensors_of_any_shape_and_costs_little(compress: str):
    """Matrices, vectors and a single number; what is left out of an outer gradient is in a later one."""
    plain, sent = (run(policy) for policy in ("diloco:4", f"diloco:4,compress={compress}"))
    assert all(torch.equal(worker.final, workers_of(sent)[0].final) for worker in workers_of(sent))
    losses = [whole_loss(workers_of(simulation)[0]) for simulation in (plain, sent)]
    assert losses[1] < 1.1 * losses[0] + 0.01


def whole_loss(worker: Worker) -> float:
    model, _ = build()
    nn.utils.vector_to_parameters(worker.final, parameters_of(model))
    data = Problem(NUM_SAMPLES, NUM_FEATURES)
    return float((model(data.x) - data.y).square().mean().detach())


def test_more_fragments_than_tensors_are_refused_in_one_line():
    with pytest.raises(ConfigError, match="5 fragments of whole tensors are asked for, and the model has 4") as error:
        run("diloco:5,fragments=5").values()
    assert "\n" not in str(error.value)


def test_behind_the_steps_fragments_take_no_time_where_the_whole_does():
    slow = Cluster(
        name="slow", hosts=NUM_WORKERS, workers_per_host=1, cores_per_host=1, nic=Link(latency_s=0.02, bytes_per_s=1e4)
    )
    walls = [
        run(policy, cluster=slow, step_time=Constant(mean_s=0.1)).runs[0].wall_s
        for policy in ("diloco:4", "diloco:4,fragments=2,delay=2")
    ]
    assert walls[1] < 0.95 * walls[0]


@pytest.mark.timeout(120)
def test_real_processes_train_what_virtual_workers_do():
    """To what Gloo's order of adding up makes of float64; rounding at random is of float32 numbers."""
    tolerances = {"diloco:4": 1e-12, "diloco:6,fragments=3,delay=1": 1e-12, "diloco:4,compress=qsgd:4+feedback": 1e-2}
    assert_processes_train_what_virtual_workers_do(tolerances, virtually=run)
