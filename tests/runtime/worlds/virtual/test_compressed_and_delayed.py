"""Compressed and delayed exchanges, held against the same training written out by hand in plain PyTorch.

`train` is this file's one program; it runs on virtual workers, and by `LocalJob` on processes, which load this file.
"""

import json
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import plesio
from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.cost.step_time import Constant, LogNormal, StepTime
from plesio.policies import LocalSGD, parse_policy
from plesio.policies.compression import TopK
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.environment import Place
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.group import VirtualGroup
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio.testing import LocalJob
from support.problems import Problem, perceptron
from support.workers import workers_of

NUM_SAMPLES, NUM_FEATURES, BATCH_SIZE, NUM_WORKERS = 120, 5, 4, 3
EPOCHS = 2
LEARNING_RATE, MOMENTUM = 0.05, 0.9
STEP_TIME = LogNormal(mean_s=0.02, cv=0.3)
ONE_HOST = Cluster.one_host(NUM_WORKERS)
TOLERANCE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
"""float64, 20 steps."""
IN_FLOAT32: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}
"""What codecs send of a float64 is in float32: 6e-8 of numbers of about 1, in 20 steps with momentum."""


def build(*, batch_norm: bool = False, momentum: float = MOMENTUM) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = perceptron(NUM_FEATURES, 6, batch_norm=batch_norm)
    return model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=momentum)


def flat_of(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


@dataclass(kw_only=True)
class Worker:
    """What one worker saw, step by step, and ended with."""

    batches: list[list[int]] = field(default_factory=list)
    after: list[Tensor] = field(default_factory=list)
    final: Tensor = field(default_factory=lambda: torch.empty(0))
    buffers: list[Tensor] = field(default_factory=list)
    rank: int = 0


def train(
    policy: str,
    *,
    batch_norm: bool = False,
    momentum: float = MOMENTUM,
    pacer: Pacer | None = None,
    job: Any = None,
    trace: Path | None = None,
    before_step: Callable[[plesio.Session, nn.Module], None] = lambda session, model: None,
    settle_at: int | None = None,
) -> Worker:
    """An ordinary loop; ``settle_at`` is a step after which the exchange is settled, as when a policy changes."""
    model, optimizer = build(batch_norm=batch_norm, momentum=momentum)
    saw = Worker()
    with plesio.join(
        model,
        optimizer,
        policy=policy,
        trace=trace,
        options=plesio.JoinOptions(pacer=pacer, job=job, info=RunInfo(seed=7), elastic=settle_at is None),
    ) as session:
        saw.rank = session.rank
        loader = DataLoader(Problem(NUM_SAMPLES, NUM_FEATURES), batch_size=BATCH_SIZE)
        for index, x, y in session.shard(loader, samples=EPOCHS * NUM_SAMPLES):
            saw.batches.append(index.tolist())
            loss = (model(x) - y).square().mean()
            loss.backward()
            before_step(session, model)
            session.step(loss)
            if session.clock == settle_at:
                session._exchange.settle()  # type: ignore[attr-defined]  # collective exchanges have it
            saw.after.append(flat_of(model))
    saw.final = flat_of(model)
    saw.buffers = [buffer.clone() for buffer in model.buffers()]
    return saw


def run(
    policy: str,
    *,
    step_time: StepTime = STEP_TIME,
    cluster: Cluster = ONE_HOST,
    **options: Any,
) -> Simulation[Worker]:
    def work(job: VirtualJob) -> Worker:
        return train(
            policy, pacer=Pacer(step_time=step_time, seed=0, worker=job.place.rank, clock=job.clock), **options
        )

    return simulate(work, num_workers=NUM_WORKERS, cluster=cluster)


def train_on_processes(*, policies: list[str]) -> list[list[float]]:
    """`train` under each policy, for `LocalJob`, whose workers pickle what they return."""
    torch.set_num_threads(1)
    place = Place.from_environment()
    assert place is not None
    with plesio.Job(place) as job:
        return [train(policy, job=job).final.tolist() for policy in policies]


class TopKByHand:
    """The mean over the workers of the largest of each, with what was left out added to the next."""

    def __init__(self, compression: Any) -> None:
        self.compression = compression
        self.residuals: dict[int, Tensor] = {}

    def mean(self, vectors: Sequence[Tensor], *, in_full: bool = False) -> Tensor:
        total = torch.zeros_like(vectors[0])
        for worker, vector in enumerate(vectors):
            update = vector / len(vectors) + self.residuals.get(worker, torch.zeros_like(vector))
            sent = update
            if isinstance(self.compression, TopK) and not in_full:
                numbers = update.float()
                places = numbers.abs().topk(self.compression.num_kept(len(numbers))).indices
                sent = torch.zeros_like(update)
                sent[places] = numbers[places].double()
            self.residuals[worker] = update - sent
            total += sent
        return total


class ByHand:
    """The same training without Plesio: a model for each worker, and sums in plain sight."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.models, self.optimizers = zip(*(build() for _ in range(NUM_WORKERS)), strict=True)
        self.data = Problem(NUM_SAMPLES, NUM_FEATURES)
        self.codecs = [TopKByHand(policy.compression) for _ in range(max(1, policy.delay))]
        self.under_way: deque[Tensor] = deque()
        self.base = flat_of(self.models[0])
        self.velocity = torch.zeros_like(self.base)
        self.num_steps = 0
        self.pending: tuple[int, list[Tensor], Tensor] | None = None

    def train(self, workers: Sequence[Worker], *, settle_at: int | None = None) -> Tensor:
        num_steps = len(workers[0].batches)
        for clock in range(1, num_steps + 1):
            gradients = self.gradients([worker.batches[clock - 1] for worker in workers])
            if isinstance(self.policy, LocalSGD):
                self.local_step(clock)
            else:
                codec = self.codecs[clock % len(self.codecs)]
                self.under_way.append(codec.mean(gradients))
                if len(self.under_way) > self.policy.delay:
                    self.apply(self.under_way.popleft())
            if clock in (settle_at, num_steps):
                self.settle(clock)
        return flat_of(self.models[0])

    def gradients(self, batches: Sequence[Sequence[int]]) -> list[Tensor]:
        found = []
        for model, batch in zip(self.models, batches, strict=True):
            model.zero_grad()
            (model(self.data.x[batch]) - self.data.y[batch]).square().mean().backward()
            found.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]))
        return found

    def apply(self, gradient: Tensor) -> None:
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            for parameter, part in zip(model.parameters(), self.parts(model, gradient), strict=True):
                parameter.grad = part.clone()
            optimizer.step()

    @staticmethod
    def parts(model: nn.Module, flat: Tensor) -> list[Tensor]:
        parameters = list(model.parameters())
        cut = torch.split(flat, [p.numel() for p in parameters])
        return [part.view_as(p) for p, part in zip(parameters, cut, strict=True)]

    def local_step(self, clock: int) -> None:
        for optimizer in self.optimizers:
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * self.policy.inner_rate
            optimizer.step()
        self.num_steps += 1
        if self.policy.delay and self.pending is not None and self.pending[0] + self.policy.delay == clock:
            self.merge()
        if clock % self.policy.period == 0:
            self.start(clock)
            if self.policy.delay == 0:
                self.merge()

    def start(self, clock: int, *, in_full: bool = False) -> None:
        deltas = [flat_of(model) - self.base for model in self.models]
        progress = self.codecs[0].mean(deltas, in_full=in_full)
        if self.num_steps or self.policy.compression.keeps_residual:  # else nothing is left to settle
            num_steps, kept = max(1, self.num_steps), self.policy.momentum
            self.velocity = kept * self.velocity + (1 - kept) * progress / num_steps
            self.pending = clock, deltas, self.velocity * num_steps / self.policy.inner_rate
        self.num_steps = 0

    @torch.no_grad()
    def merge(self) -> None:
        if self.pending is None:
            return
        (_, deltas, mean), self.pending = self.pending, None
        self.base = self.base + mean
        for model, delta in zip(self.models, deltas, strict=True):
            for parameter, part in zip(model.parameters(), self.parts(model, mean - delta), strict=True):
                parameter.add_(part)

    @torch.no_grad()
    def settle(self, clock: int) -> None:
        if isinstance(self.policy, LocalSGD):
            self.merge()
            self.start(clock, in_full=True)
            self.merge()
            return
        while self.under_way:
            self.apply(self.under_way.popleft())
        nothing = [torch.zeros_like(self.base)] * NUM_WORKERS
        rest = sum(codec.mean(nothing, in_full=True) for codec in self.codecs)
        assert isinstance(rest, Tensor)
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            for parameter, part in zip(model.parameters(), self.parts(model, rest), strict=True):
                parameter.sub_(LEARNING_RATE * part)
                optimizer.state[parameter]["momentum_buffer"].add_(part)


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "local_sgd:4,delay=2", "delayed:2"])
def test_no_compression_is_what_it_is_without_the_option(policy: str):
    plain, named = run(policy).runs[0], run(f"{policy},compress=none").runs[0]
    assert named.parameters_sha256 == plain.parameters_sha256
    assert named.policy == plain.policy == policy


def test_short_local_steps_averaged_every_step_are_bsp():
    """Of plain SGD: the mean of the steps is that of the gradients, at whatever length it is taken."""
    plain, short = (workers_of(run(policy, momentum=0.0)) for policy in ("bsp", "local_sgd:1,inner_rate=0.25"))
    torch.testing.assert_close(short[0].final, plain[0].final, **TOLERANCE)


def test_no_delay_is_bsp():
    assert run("delayed:0").runs[0].parameters_sha256 == run("bsp").runs[0].parameters_sha256


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "local_sgd:4,delay=2", "delayed:2"])
def test_sending_all_numbers_of_a_top_k_is_sending_them(policy: str):
    plain, sent = workers_of(run(policy)), workers_of(run(f"{policy},compress=topk:1"))
    torch.testing.assert_close(sent[0].final, plain[0].final, **IN_FLOAT32)


@pytest.mark.parametrize("settle_at", [None, 8])
@pytest.mark.parametrize(
    "policy",
    [
        "delayed:1",
        "delayed:2",
        "delayed:5",
        "bsp,compress=topk:0.2",
        "delayed:1,compress=topk:0.2",
        "delayed:3,compress=topk:0.2",
        "local_sgd:4,compress=topk:0.2",
        "local_sgd:4,delay=2,compress=topk:0.2",
        "local_sgd:3,delay=3,compress=topk:0.2",
        "local_sgd:4,inner_rate=0.5",
        "local_sgd:4,momentum=0.5",
        "local_sgd:4,delay=2,inner_rate=0.25,momentum=0.5",
    ],
)
def test_it_is_the_run_written_out_by_hand(policy: str, settle_at: int | None):
    simulation = run(policy, settle_at=settle_at)
    workers = workers_of(simulation)
    assert simulation.runs[0].fallbacks == (), "by hand nothing is flushed"
    expected = ByHand(parse_policy(policy)).train(workers, settle_at=settle_at)
    tolerance = IN_FLOAT32 if "topk" in policy else TOLERANCE
    for worker in workers:
        torch.testing.assert_close(worker.final, expected, **tolerance)
    if "delayed" in policy:
        assert float((expected - workers_of(run("bsp"))[0].final).abs().max()) > 1e-3, "or it says nothing"


def test_averaging_every_step_one_step_late_corrects_own_gradients_as_delayed_gradient_averaging_does():
    """Zhu et al. 2021, for plain SGD: own gradients at once, replaced by the mean when it has come."""
    workers = workers_of(run("local_sgd:1,delay=1", momentum=0.0))
    hand = ByHand(parse_policy("delayed:1"))
    own = [torch.zeros_like(hand.base)] * NUM_WORKERS
    for clock in range(len(workers[0].batches)):
        late, mean = own, sum(own) / NUM_WORKERS
        own = hand.gradients([worker.batches[clock] for worker in workers])
        for model, mine, before in zip(hand.models, own, late, strict=True):
            with torch.no_grad():
                for parameter, part in zip(model.parameters(), hand.parts(model, mine - before + mean), strict=True):
                    parameter.sub_(LEARNING_RATE * part)
        for worker, model in zip(workers, hand.models, strict=True):
            torch.testing.assert_close(worker.after[clock], flat_of(model), **TOLERANCE)


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


def test_delayed_gradients_hide_an_exchange_that_takes_no_longer_than_their_steps():
    """Steps of 20 ms; a ring of 3 passes four messages on, which take 12 ms, or 28 ms in all."""

    def wall_s(policy: str, *, latency_s: float) -> float:
        cluster = Cluster(
            name="far",
            hosts=NUM_WORKERS,
            workers_per_host=1,
            cores_per_host=1,
            nic=Link(latency_s=latency_s, bytes_per_s=1e9),
        )
        return run(policy, step_time=Constant(mean_s=0.02), cluster=cluster).runs[0].wall_s

    num_steps = EPOCHS * NUM_SAMPLES // BATCH_SIZE // NUM_WORKERS
    assert wall_s("bsp", latency_s=3e-3) == pytest.approx(num_steps * 0.032, rel=0.05)
    assert wall_s("delayed:1", latency_s=3e-3) == pytest.approx(num_steps * 0.020, rel=0.05)
    assert wall_s("delayed:2", latency_s=7e-3) == pytest.approx(num_steps * 0.028, rel=0.1), "one after the other"


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
    with LocalJob(NUM_WORKERS) as job:
        endings = job.run(Path(__file__), "train_on_processes", timeout_s=100, policies=list(ON_PROCESSES))
    for ending in endings.values():
        assert ending.error is None, ending.trace
    for number, (policy, tolerance) in enumerate(ON_PROCESSES.items()):
        ours = workers_of(run(policy))[0].final
        for rank in range(NUM_WORKERS):
            theirs = torch.tensor(endings[rank].value[number], dtype=torch.float64)
            torch.testing.assert_close(
                theirs, ours, rtol=0, atol=tolerance, msg=lambda text, at=policy: f"{at}: {text}"
            )
            assert torch.equal(theirs, torch.tensor(endings[0].value[number], dtype=torch.float64))
