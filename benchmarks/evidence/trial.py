"""One virtual run of a scenario under a policy."""

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from families import FAMILIES, Problem
from families.problem import Rows
from plain import NUM_EVALUATIONS, OPTIMIZERS, make_schedule, points_of
from scenario import Scenario
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tuning import Tuned

from plesio.core.results import RunResult
from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.cost.link_changes import LinkChange
from plesio.cost.step_time import LogNormal, Stalls, StepTime
from plesio.protocol.figures import RunInfo
from plesio.runtime.join import join
from plesio.runtime.join_options import JoinOptions
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio.tasks.task import seeded

__all__ = ["Trial", "cluster_of", "run_trial"]

LATENCY_S = 50e-6
BALLAST, BALLAST_NUMBERS = "ballast", 2**15
FAST_SERVERS, SLOW_SERVERS = 2, 8
"""Hosts that have the store's parameters, at most: fewer messages to simulate. Fewer where links are no bottleneck."""
BOTTLENECK_SHARE = 0.2
"""Share of a step: with longer exchanges, links are a bottleneck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The record of a run.

    Attributes:
        hash: `Scenario.hash`.
        status: ``finished``, or why not.
        samples: By evaluation; the first is before training.
        seconds: Virtual, by evaluation.
        points: By evaluation.
        wall_s: Virtual seconds of the run.
        bytes_sent: By all.
        decisions: What the policy changed.
        fallbacks: What was given up.
    """

    hash: str
    status: str
    samples: Sequence[float]
    seconds: Sequence[float]
    points: Sequence[float]
    wall_s: float
    bytes_sent: int
    decisions: Sequence[dict[str, Any]]
    fallbacks: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def cluster_of(scenario: Scenario, *, num_bytes: int) -> Cluster:
    """Hosts and links on which a model of ``num_bytes`` is exchanged as fast as the nominal model on nominal links.

    The latency is small beside the exchange: a tenth of it, or 50 microseconds a message if that is less.
    A change comes at its share of the time that BSP's steps and exchanges would take without stragglers.
    """
    it = scenario
    num_messages = 2 * (it.num_workers - 1)
    nic = Link(
        latency_s=min(LATENCY_S, 0.1 * it.exchange_share * it.step_s / num_messages),
        bytes_per_s=it.nic_bytes_per_s * num_bytes / it.nominal_bytes,
    )
    rack_bytes_per_s = nic.bytes_per_s * it.num_workers / it.racks / it.oversubscription
    expected_s = it.num_steps * it.step_s * (1 + it.exchange_share)
    changes = tuple(
        LinkChange(at_s=change.at_share * expected_s, link="nic", bytes_per_s=nic.bytes_per_s * change.factor)
        for change in sorted(it.link_changes, key=lambda change: change.at_share)
    )
    return Cluster(
        name=it.name,
        hosts=it.num_workers,
        workers_per_host=1,
        cores_per_host=1,
        racks=it.racks,
        nic=nic,
        uplink=Link(latency_s=nic.latency_s, bytes_per_s=rack_bytes_per_s) if it.racks > 1 else None,
        changes=changes,
    )


def run_trial(scenario: Scenario, tuned: Tuned, *, policy: str, seed: int) -> Trial:
    """Train under a policy in the virtual world."""
    problem = FAMILIES[scenario.family].make(scenario.seed, scenario.difficulty)
    with seeded(seed):
        model = _with_ballast(problem.build())
    num_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
    start = points_of(problem, model)

    def work(job: VirtualJob) -> RunResult | None:
        return _work(job, scenario, problem, policy=policy, rate=tuned.rate, seed=seed)

    cluster = cluster_of(scenario, num_bytes=num_bytes)
    try:
        simulation = simulate(work, num_workers=scenario.num_workers, cluster=cluster, seed=seed)
    except Exception as error:  # a defect of Plesio is a result, too: the other runs go on, and the table shows it
        return _broken(scenario, start=start, why=f"crashed: {type(error).__name__}: {error}")
    errors = [outcome.error for outcome in simulation.outcomes.values() if outcome.error is not None]
    result = simulation.outcomes[0].value
    if errors or result is None:
        return _broken(scenario, start=start, why=f"{type(errors[0]).__name__}: {errors[0]}" if errors else "no result")
    finite = [point for point in result.evaluations if math.isfinite(point.metric)]
    return Trial(
        hash=scenario.hash,
        status=result.status,
        samples=[0, *(point.samples for point in finite)],
        seconds=[0.0, *(point.at_s for point in finite)],
        points=[start, *(point.metric for point in finite)],
        wall_s=result.wall_s,
        bytes_sent=result.bytes_sent_total,
        decisions=result.decisions,
        fallbacks=result.fallbacks,
    )


def _broken(scenario: Scenario, *, start: float, why: str) -> Trial:
    return Trial(
        hash=scenario.hash,
        status=why,
        samples=[0],
        seconds=[0.0],
        points=[start],
        wall_s=math.nan,
        bytes_sent=0,
        decisions=(),
        fallbacks=(),
    )


def _work(
    job: VirtualJob, scenario: Scenario, problem: Problem, *, policy: str, rate: float, seed: int
) -> RunResult | None:
    """Train as one worker; the result is rank 0's."""
    rank = job.place.rank
    with seeded(seed):
        model = _with_ballast(problem.build())
    stream = seed * 1_000_003 + rank
    torch.manual_seed(stream)
    np.random.seed(stream % 2**32)
    random.seed(stream)
    make, _ = OPTIMIZERS[scenario.optimizer]
    optimizer = make(model.parameters(), lr=rate)
    most_servers = SLOW_SERVERS if scenario.exchange_share > BOTTLENECK_SHARE else FAST_SERVERS
    session = join(
        model,
        optimizer,
        policy=policy,
        total_samples=scenario.num_samples,
        options=JoinOptions(
            num_servers=min(most_servers, scenario.num_workers),
            snapshot_every=max(1, scenario.num_samples // NUM_EVALUATIONS),
            pacer=Pacer(
                step_time=_step_time(scenario),
                speed=_speed(scenario, rank),
                seed=seed,
                worker=rank,
                clock=job.clock,
                began_s=0.0,
            ),
            info=RunInfo(task=scenario.name, seed=seed, metric_name="points", metric_goal="max", target=None),
            job=job,
        ),
    )
    with session:
        schedule = make_schedule(scenario.schedule, optimizer, num_steps=scenario.num_steps)
        own = None if problem.rows_of is None else problem.rows_of(rank, scenario.num_workers)
        rows = Rows(problem.train if own is None else tuple(tensor[own] for tensor in problem.train))
        loader = DataLoader(rows, batch_size=scenario.batch_size, shuffle=True, collate_fn=_as_it_is)
        for batch in session.shard(loader, samples=scenario.num_samples):
            loss = problem.loss(model, batch)
            (loss + 0.0 * model.get_parameter(BALLAST).sum()).backward()
            session.step(loss)
            if session.clock < scenario.num_steps:
                schedule.step()
        session.finish(lambda: points_of(problem, model))
    return session.report() if rank == 0 else None


def _with_ballast(model: nn.Module) -> nn.Module:
    """Add zeros to the model that are exchanged and trained like all else, and stay zeros.

    Reviews and other messages are as long for a tiny model as for a large one. On links that are slowed down until the
    tiny model's exchange takes as long as a large one's they would be as long as gradients, which no real run has.
    """
    model.register_parameter(BALLAST, nn.Parameter(torch.zeros(BALLAST_NUMBERS)))
    return model


def _as_it_is(batch: list[Tensor]) -> list[Tensor]:
    return batch


def _step_time(scenario: Scenario) -> StepTime:
    steps = LogNormal(mean_s=scenario.step_s, cv=scenario.step_cv)
    if not scenario.stall_probability:
        return steps
    return Stalls(steps=steps, probability=scenario.stall_probability, factor=scenario.stall_factor)


def _speed(scenario: Scenario, rank: int) -> float:
    from_last = scenario.num_workers - 1 - rank
    return 1 / scenario.slow_factors[from_last] if from_last < len(scenario.slow_factors) else 1.0
