"""DiLoCo on the store: the run that its log describes, done again by hand; and what losses, joins and processes make.

The reference follows the papers: each delta is of a worker's own steps from the version that it had, and a version is
an outer step of the mean of a quorum's deltas, of which momentum takes note once a round.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plesio
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.cost.link import Link
from plesio.cost.step_time import LogNormal
from plesio.policies import Apply, Arrived, DiLoCo, EventLog, parse_policy, read_log, verify
from plesio.policies.compression import NO_COMPRESSION
from plesio.protocol.figures import RunInfo
from plesio.runtime.parameters.codecs import make_codec
from plesio.runtime.worker.exchange.fragments import fragments_of
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.by_hand import flat_of, parameters_of
from support.noted_training import BATCH_SIZE, NUM_FEATURES, NUM_SAMPLES, TOLERANCE, build
from support.problems import Problem
from support.processes import on_processes, own_job
from support.workers import workers_of

STEP_S, SPEEDS = 0.02, (1.0, 1.0, 0.5, 0.25)
NUM_STEPS = 22


@dataclass(kw_only=True)
class Worker:
    """The record of one worker, whose batches are its own."""

    final: Tensor = field(default_factory=lambda: torch.empty(0))
    steps: int = 0


def batch_of(rank: int, step: int) -> list[int]:
    """The samples of a worker's step."""
    return [(37 * rank + 11 * step + 5 * one) % NUM_SAMPLES for one in range(BATCH_SIZE)]


def learn(model: nn.Module, batch: Sequence[int]) -> None:
    data = Problem(NUM_SAMPLES, NUM_FEATURES)
    (model(data.x[list(batch)]) - data.y[list(batch)]).square().mean().backward()


def train(
    policy: str, *, rank: int, num_steps: int = NUM_STEPS, trace: Path | None = None, pacer: Pacer | None = None,
    job: Any = None, num_servers: int | None = None,
) -> Worker:  # fmt: skip
    model, optimizer = build()
    options = plesio.JoinOptions(pacer=pacer, job=job, info=RunInfo(seed=7), num_servers=num_servers)
    saw = Worker()
    with plesio.join(model, optimizer, policy=policy, trace=trace, options=options) as session:
        for step in range(num_steps):
            learn(model, batch_of(rank, step))
            session.step(samples=BATCH_SIZE)
            saw.steps += 1
        session.finish(lambda: 0.0)
        saw.final = flat_of(model)
    return saw


def run(
    policy: str, *, trace: Path | None = None, speeds: Sequence[float] = SPEEDS, faults: Sequence[Fault] = (),
    cv: float = 0.2, num_steps: int = NUM_STEPS, num_servers: int | None = None,
) -> Simulation[Worker]:  # fmt: skip
    def work(job: VirtualJob) -> Worker:
        rank = job.place.rank
        speed = speeds[rank] if rank < len(speeds) else 1.0
        pacer = Pacer(step_time=LogNormal(mean_s=STEP_S, cv=cv), speed=speed, seed=5, worker=rank, clock=job.clock)
        return train(policy, rank=rank, trace=trace, pacer=pacer, num_steps=num_steps, num_servers=num_servers)

    hosts = len(speeds) + sum(fault.kind == "join" for fault in faults)
    link = Link(latency_s=1e-4, bytes_per_s=1e7)
    cluster = Cluster(name="c", hosts=hosts, workers_per_host=1, cores_per_host=1, nic=link)
    return simulate(work, num_workers=len(speeds), cluster=cluster, faults=faults)


class Reference:
    """The run of a log: workers' steps and outer steps, one event after the other; without a delay."""

    def __init__(self, policy: DiLoCo, log: EventLog, *, num_workers: int) -> None:
        self.policy, self.eta, self.mu = policy, policy.outer_lr, policy.outer_momentum
        self.workers = [build() for _ in range(num_workers)]
        self.made = [0] * num_workers
        self.shared = [flat_of(self.workers[0][0])]
        sizes = [p.numel() for p in parameters_of(self.workers[0][0])]
        all_places = torch.arange(sum(sizes)).split(sizes)
        parts = fragments_of(sizes, num_fragments=policy.fragments)
        self.sizes = [[sizes[tensor] for tensor in part] for part in parts]
        self.places = [torch.cat([all_places[tensor] for tensor in part]) for part in parts]
        self.bases = [[self.shared[0][places] for places in self.places] for _ in range(num_workers)]
        self.kept_back = [torch.zeros_like(self.shared[0]) for _ in range(num_workers)]
        self.velocity, self.total = torch.zeros_like(self.shared[0]), torch.zeros_like(self.shared[0])
        self.part = [0.0] * policy.fragments
        arrived = [entry.event for entry in log.entries if isinstance(entry.event, Arrived)]
        self.steps_of = {one.worker: one.clock for one in arrived}
        self.left = {worker: [one for one in arrived if one.worker == worker] for worker in self.steps_of}
        self.pushed: dict[int, int] = {}
        deltas: dict[tuple[int, int], Tensor] = {}
        for entry in log.entries:
            if isinstance(entry.event, Arrived):
                deltas[entry.event.worker, entry.event.clock] = self.delta(entry.event)
            for action in entry.actions:
                if isinstance(action, Apply):
                    self.merge(action, [deltas.pop(update) for update in action.updates])

    def pull(self, worker: int) -> None:
        """Take over the fragment that was pushed last: of which version, the next update of it says."""
        if worker not in self.pushed:
            return
        fragment = self.pushed.pop(worker)
        version = next((one.base_version for one in self.left[worker] if one.fragment == fragment), None)
        if version is None:
            return
        model, places = self.workers[worker][0], self.places[fragment]
        compression, base = self.policy.compression, self.bases[worker][fragment]
        if compression == NO_COMPRESSION:
            self.bases[worker][fragment] = self.shared[version][places]
        else:
            codec = make_codec(compression, num_elements=len(places), seed=0, rank=worker)
            payload = codec.encode((self.shared[version][places] - base).float(), clock=version)
            self.bases[worker][fragment] = base + codec.decode(payload, clock=version).to(base.dtype)
        nn.utils.vector_to_parameters(
            flat_of(model).index_copy(0, places, self.bases[worker][fragment]), parameters_of(model)
        )

    def delta(self, update: Arrived) -> Tensor:
        worker, fragment = update.worker, update.fragment
        self.pull(worker)
        self.left[worker].remove(update)
        model, optimizer = self.workers[worker]
        for _ in range(update.num_steps):
            optimizer.zero_grad()
            learn(model, batch_of(worker, self.made[worker]))
            optimizer.step()
            self.made[worker] += 1
        self.pushed[worker] = fragment
        return self.sent(flat_of(model)[self.places[fragment]] - self.bases[worker][fragment], update)

    def sent(self, delta: Tensor, update: Arrived) -> Tensor:
        """Return the part of its delta that a worker pushes, with its earlier rests; at the end that is all."""
        compression, places = self.policy.compression, self.places[update.fragment]
        if compression == NO_COMPRESSION:
            return delta
        at_end = update.clock == self.steps_of[update.worker] and update.num_steps < self.policy.period
        delta = delta + self.kept_back[update.worker][places]
        codec = make_codec(compression, num_elements=len(delta), seed=7, rank=update.worker)
        sent = delta if at_end else codec.decode(codec.encode(delta, clock=update.clock), clock=0).to(delta.dtype)
        if compression.keeps_residual:
            self.kept_back[update.worker][places] = delta - sent
        return sent

    def merge(self, action: Apply, deltas: Sequence[Tensor]) -> None:
        places, fragment = self.places[action.fragment], action.fragment
        before = self.shared[-1][places]
        if action.share == 0:
            after = before.add(deltas[0], alpha=action.weight * self.eta)
        else:
            gradient = self.mean(deltas, action) * -(action.weight / action.share)
            after = self.stepped(before, gradient, action)
        assert action.age == 0.0, "momentum remembers as long as it is told to"
        self.shared.append(self.shared[-1].index_copy(0, places, after))
        if self.part[fragment] >= 1 - 1e-6:
            self.end_round(fragment)

    def mean(self, deltas: Sequence[Tensor], action: Apply) -> Tensor:
        """Tensor by tensor: of late deltas with less of what is along the momentum, and perhaps by directions."""
        velocities = self.velocity[self.places[action.fragment]].split(self.sizes[action.fragment])
        merged = []
        for velocity, *parts in zip(
            velocities, *(delta.split(self.sizes[action.fragment]) for delta in deltas), strict=True
        ):
            if action.corrected:
                parts = [
                    self.turned(part, velocity) if tau else part
                    for part, tau in zip(parts, action.staleness, strict=True)
                ]
            mean = torch.stack(parts if not action.by_directions else [part / part.norm() for part in parts]).sum(0)
            mean.div_(len(parts))
            radius = sum(float(part.norm()) for part in parts) / len(parts)
            merged.append(mean * (radius / (float(mean.norm()) or 1.0)) if action.by_directions else mean)
        return torch.cat(merged)

    def turned(self, delta: Tensor, velocity: Tensor) -> Tensor:
        along = -float((delta * velocity).sum())
        if along <= 0:
            return delta
        return delta.add(velocity, alpha=self.mu * along / float((velocity * velocity).sum()))

    def end_round(self, fragment: int) -> None:
        if not self.part[fragment]:
            return
        places, gain = self.places[fragment], 1 / (1 - self.mu)
        kept = (1 - 1 / gain) ** self.part[fragment]
        mean = self.total[places].div_(self.part[fragment])
        self.velocity[places] = (self.velocity[places] * kept).add_(mean, alpha=(1 - kept) * gain)
        self.total[places], self.part[fragment] = 0.0, 0.0

    def stepped(self, before: Tensor, gradient: Tensor, action: Apply) -> Tensor:
        places, fragment = self.places[action.fragment], action.fragment
        if action.share == 1.0:
            self.end_round(fragment)
            self.velocity[places] = velocity = self.velocity[places] * self.mu + gradient
            return before.add(gradient.add(velocity, alpha=self.mu), alpha=-self.eta)
        gain = 1 / (1 - self.mu)
        kept = (1 - 1 / gain) ** 2
        after = before.add(gradient, alpha=-self.eta * action.share * gain * (1 - kept))
        self.total[places] = self.total[places].add(gradient, alpha=action.share)
        self.part[fragment] += action.share
        return after.add_(self.velocity[places], alpha=-self.eta * action.share * kept)


QUORA = ["5", "5,quorum=2", "5,quorum=3,outer_momentum=0.3", "5,quorum=4", "5,quorum=2,grace=30ms", "5,steps=dynamic",
         "6,fragments=2", "6,fragments=3,quorum=2", "8,fragments=4,quorum=3,grace=30ms", "6,fragments=2,quorum=4",
         "8,fragments=2,steps=dynamic", "5,late=heloco", "6,fragments=2,quorum=2,merge=rda",
         "5,quorum=3,grace=30ms,merge=rda,late=heloco"]  # fmt: skip
COMPRESSED = ["5,compress=topk:0.2", "5,quorum=2,compress=qsgd:4+feedback", "5,compress=qsgd:8",
              "5,compress=fp16+feedback", "5,compress=qsgd:2", "5,quorum=2,compress=topk:0.25+chunks:8+bits:2",
              "10,fragments=2,compress=topk:0.2"]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "num_steps"),
    [*((one, NUM_STEPS) for one in QUORA), *((one, num_steps) for one in COMPRESSED for num_steps in (20, NUM_STEPS))],
)
def test_it_is_the_run_of_its_log_to_the_bit(options: str, num_steps: int, tmp_path: Path):
    name, *others = options.split(",")
    policy = parse_policy(",".join([f"diloco:{name},exchange=store", *others]))
    assert isinstance(policy, DiLoCo)
    workers = workers_of(run(policy.spec, trace=tmp_path, num_steps=num_steps))
    log = read_log(tmp_path / "events.jsonl")
    assert verify(log) is None
    reference = Reference(policy, log, num_workers=len(SPEEDS))
    assert reference.made == [worker.steps for worker in workers]
    assert torch.equal(workers[0].final, reference.shared[-1]), options
    rests = [one.event for one in log.entries if isinstance(one.event, Arrived) and one.event.num_steps == 0]
    expected = policy.fragments - 1 + (policy.compression.keeps_residual and num_steps == 20)
    assert len(rests) == 4 * expected or num_steps % policy.local_steps, "what was left at the end"


OUTER = ["5", "5,delay=2", "5,delay=3,alpha=0", "5,outer_momentum=0.5,outer_lr=1", "5,outer=adam,outer_lr=0.02",
         "10,fragments=2,outer_momentum=0", "8,fragments=4,delay=1,alpha=0.3,outer_momentum=0",
         "5,merge=rda"]  # fmt: skip


@pytest.mark.parametrize("options", OUTER)
def test_a_quorum_of_all_is_what_the_collective_trains(options: str):
    together, decoupled = (
        workers_of(run(f"diloco:{options}{kind}", num_steps=20)) for kind in ("", ",exchange=store,quorum=4")
    )
    torch.testing.assert_close(decoupled[0].final, together[0].final, **TOLERANCE)


@pytest.mark.parametrize("compress", ["", ",compress=bf16+feedback"])
def test_servers_that_share_the_tensors_come_to_the_same(compress: str):
    policy = f"diloco:6,exchange=store,quorum=4,fragments=3,delay=1{compress}"
    one, three = (workers_of(run(policy, num_servers=number)) for number in (1, 3))
    torch.testing.assert_close(three[0].final, one[0].final, **TOLERANCE)


def test_a_step_without_finite_gradients_drops_no_earlier_steps_of_its_fragment():
    """Two workers that do the same come to what one does that leaves the step out."""

    def work(job: VirtualJob | None) -> Tensor:
        model, optimizer = build()
        options = plesio.JoinOptions(job=job, info=RunInfo(seed=7))
        policy = "diloco:3,exchange=store,fragments=3,quorum=2,outer_lr=1,outer_momentum=0"
        with plesio.join(model, optimizer, policy=policy if job else "bsp", options=options) as session:
            for step in range(8):
                if step == 4 and job is None:
                    continue
                learn(model, batch_of(0, step))
                if step == 4:
                    parameters_of(model)[0].grad.fill_(float("nan"))
                session.step(samples=BATCH_SIZE)
            session.finish(lambda: 0.0)
            return flat_of(model)

    found = workers_of(simulate(work, num_workers=2, cluster=Cluster.one_host(2)))
    torch.testing.assert_close(found[0], work(None), **TOLERANCE)


def test_no_worker_waits_for_a_slower_one(tmp_path: Path):
    """Each makes its steps at its own speed; what all share is not far from where rounds of all get."""
    [alone] = run("diloco:5,exchange=store").runs
    [together] = run("diloco:5").runs
    waited_s = [worker.wait_s for worker in alone.workers]
    assert max(waited_s) < 0.02 * alone.wall_s
    assert max(worker.wait_s for worker in together.workers) > 0.5 * together.wall_s


def test_slow_workers_contribute_as_often_as_fast_ones(tmp_path: Path):
    run("diloco:8,exchange=store,steps=dynamic", trace=tmp_path, num_steps=48, cv=0.05)
    log = read_log(tmp_path / "events.jsonl")
    arrived = [one.event for one in log.entries if isinstance(one.event, Arrived)]
    end = max(place for place, one in enumerate(arrived) if one.worker == 0)
    latest = {one.worker: one.num_steps for one in arrived[:end]}
    assert latest == {0: 8, 1: 8, 2: 4, 3: 2}
    assert arrived[-1].num_steps > 2, "once the fast ones are done it is slow no more"


@pytest.mark.parametrize(
    "options", ["5", "5,quorum=2", "5,quorum=2,grace=40ms", "5,quorum=3,delay=2,grace=auto", "6,fragments=3,quorum=2"]
)
def test_lost_workers_and_newcomers_change_nothing_for_the_others(options: str, tmp_path: Path):
    faults = [Fault(kind="lose", worker=1, at_s=0.31), Fault(kind="join", at_s=0.4)]
    simulation = run(f"diloco:{options},exchange=store", trace=tmp_path, faults=faults, num_steps=30)
    [result] = simulation.runs
    assert result.status == "finished"
    assert list(result.lost_workers) == [1]
    log = read_log(tmp_path / "events.jsonl")
    assert verify(log) is None
    merged = [
        update for entry in log.entries for one in entry.actions if isinstance(one, Apply) for update in one.updates
    ]
    arrived = [(one.event.worker, one.event.clock) for one in log.entries if isinstance(one.event, Arrived)]
    assert sorted(merged) == sorted(arrived), "nothing is lost, nothing counts twice"
    steps = {worker: sum(1 for one, _ in merged if one == worker) for worker in range(5)}
    assert steps[0] >= 5
    assert steps[4] >= 3, "the newcomer contributes"


def train_each(*, policies: list[str]) -> list[list[float]]:
    with own_job() as job:
        return [train(policy, rank=job.place.rank, job=job, num_steps=20).final.tolist() for policy in policies]


@pytest.mark.timeout(120)
def test_real_processes_train_what_virtual_workers_do():
    """With a quorum of all, their order does not matter; without, they end nearer to it than to the start."""
    policies = ["diloco:5,exchange=store,quorum=3", "diloco:4,exchange=store,quorum=3,fragments=2,compress=topk:0.2"]
    uncertain = "diloco:5,exchange=store,quorum=2,grace=20ms"
    expected = [workers_of(run(one, speeds=(1.0, 1.0, 1.0), num_steps=20))[0].final for one in policies]
    found = torch.tensor(
        on_processes(3, __file__, "train_each", policies=[*policies, uncertain])[0], dtype=torch.float64
    )
    torch.testing.assert_close(found[:2], torch.stack(expected), rtol=0, atol=1e-12)
    assert float((found[2] - expected[0]).norm()) < float((found[2] - flat_of(build()[0])).norm())


def test_bytes_count_as_packed():
    """Two pushes and pulls of each worker have 4 or 8 bits a number, in messages that are otherwise as long."""
    four, eight = (run(f"diloco:10,exchange=store,compress=qsgd:{bits}", num_steps=25).runs[0] for bits in (4, 8))
    numbers = 5 * 6 + 6 + 6 * 1 + 1
    assert eight.bytes_sent_total - four.bytes_sent_total == 4 * 2 * 2 * (numbers - -(-numbers // 2))
