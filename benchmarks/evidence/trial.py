"""One virtual run of a scenario under a policy."""

import contextlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from families import FAMILIES, Leapt, Problem
from families.problem import Rows
from plain import (
    NUM_EVALUATIONS,
    build_model,
    clip,
    make_optimizers,
    make_plateaus,
    make_schedule,
    plateau_parts,
    points_of,
)
from scenario import Scenario
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from tuning import Tuned

from plesio.core.errors import ExchangeError
from plesio.core.results import RunResult
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.cost.link import Link
from plesio.cost.link_changes import LinkChange
from plesio.cost.step_time import LogNormal, Stalls, StepTime
from plesio.policies import parse_policy
from plesio.protocol.figures import RunInfo
from plesio.protocol.plans import PlanFigures, num_rounds
from plesio.runtime.join import join
from plesio.runtime.join_options import JoinOptions
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worker.session import Session
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio.tasks.task import seeded

LATENCY_S = 50e-6
BALLAST, BALLAST_NUMBERS = "ballast", 2**15
FAST_SERVERS, SLOW_SERVERS = 2, 8
"""Hosts that have the store's parameters, at most: fewer messages to simulate. Fewer where links are no bottleneck."""
BOTTLENECK_SHARE = 0.2
"""Share of a step: with longer exchanges, links are a bottleneck."""
NOT_AVAILABLE = "not available"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The record of a run.

    Attributes:
        hash: `Scenario.hash`.
        status: ``finished``, `NOT_AVAILABLE` and what refuses to run the scenario under the policy, or why it failed.
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

    @property
    def available(self) -> bool:
        """The policy can run the scenario."""
        return not self.status.startswith(NOT_AVAILABLE)

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
    changes = tuple(
        LinkChange(at_s=change.at_share * it.expected_s, link="nic", bytes_per_s=nic.bytes_per_s * change.factor)
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


def run_trial(scenario: Scenario, tuned: Tuned, *, policy: str, seed: int, trace: Path | None = None) -> Trial:
    """Train under a policy in the virtual world; ``trace`` is a folder for its log."""
    problem = FAMILIES[scenario.family].make(scenario.seed, scenario.difficulty)
    with seeded(seed):
        model = _with_ballast(build_model(problem, scenario))
    num_bytes = sum(4 * parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    start = points_of(problem, model, leapt=scenario.leaps)
    given = _Given()

    def work(job: VirtualJob) -> RunResult | None:
        return _work(job, scenario, problem, given, policy=policy, rate=tuned.rate, seed=seed, trace=trace)

    cluster = cluster_of(scenario, num_bytes=num_bytes)
    try:
        simulation = simulate(
            work, num_workers=scenario.num_workers, cluster=cluster, faults=_faults(scenario), seed=seed
        )
    except Exception as error:  # a defect of Plesio is a result, too: the other runs go on, and the table shows it
        return _broken(scenario, start=start, why=f"crashed: {type(error).__name__}: {error}")
    errors = [outcome.error for outcome in simulation.outcomes.values() if outcome.error is not None]
    result = simulation.outcomes[0].value
    if errors and all(isinstance(error, ExchangeError) for error in errors) and not parse_policy(policy).adapts:
        return _broken(scenario, start=start, why=f"{NOT_AVAILABLE}: {errors[0]}")
    if errors or result is None:
        return _broken(scenario, start=start, why=f"{type(errors[0]).__name__}: {errors[0]}" if errors else "no result")
    in_order = sorted(result.evaluations, key=lambda point: point.samples)
    finite = [point for point in in_order if math.isfinite(point.metric)]
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


def _faults(scenario: Scenario) -> list[Fault]:
    """Lose a worker from the middle, which is no straggler, or have one join, at its share of BSP's time."""
    change = scenario.worker_change
    if change is None:
        return []
    lost = scenario.num_workers // 2 if change.kind == "lose" else -1
    return [Fault(at_s=change.at_share * scenario.expected_s, kind=change.kind, worker=lost)]


@dataclass(slots=True)
class _Given:
    """Samples that all workers have been given."""

    samples: int = 0


def _work(
    job: VirtualJob,
    scenario: Scenario,
    problem: Problem,
    given: _Given,
    *,
    policy: str,
    rate: float,
    seed: int,
    trace: Path | None,
) -> RunResult | None:
    """Train as one worker; the result is rank 0's."""
    rank = job.place.rank
    with seeded(seed):
        model = _with_ballast(build_model(problem, scenario))
    stream = seed * 1_000_003 + rank
    torch.manual_seed(stream)
    np.random.seed(stream % 2**32)
    random.seed(stream)
    optimizers = make_optimizers(scenario.optimizer, model, rate=rate)
    most_servers = SLOW_SERVERS if scenario.exchange_share > BOTTLENECK_SHARE else FAST_SERVERS
    session = join(
        model,
        optimizers if len(optimizers) > 1 else optimizers[0],
        policy=policy,
        trace=trace,
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
        _train(session, scenario, problem, optimizers, given)
        session.finish(lambda: points_of(problem, model, leapt=scenario.leaps))
    return session.report() if rank == 0 else None


def _train(
    session: Session, scenario: Scenario, problem: Problem, optimizers: Sequence[Optimizer], given: _Given
) -> None:
    after_step, after_part = _schedule(session, scenario, problem, optimizers)
    own = None
    if problem.rows_of is not None:
        own = problem.rows_of(session.rank % scenario.num_workers, scenario.num_workers)
    rows = Rows(problem.train if own is None else tuple(tensor[own] for tensor in problem.train))
    loader = DataLoader(rows, batch_size=scenario.batch_size, shuffle=True, collate_fn=_as_it_is)

    def step(loss: Tensor) -> None:
        clip(session.model, scenario)
        session.step(loss)
        after_step()

    for part in plateau_parts(scenario):
        passes = 0
        for batch in session.shard(loader, samples=part):
            passes += 1
            leapt, given.samples = given.samples >= scenario.leaps_after, given.samples + len(batch[0])
            with contextlib.nullcontext() if passes == scenario.accumulation else session.accumulate():
                loss = problem.loss(Leapt(session.model) if leapt else session.model, batch)
                whole = loss + 0.0 * session.model.get_parameter(BALLAST).sum()
                (whole / scenario.accumulation).backward()
            if passes == scenario.accumulation:
                step(loss)
                passes = 0
        if passes:
            step(loss)
        after_part()


def _schedule(
    session: Session, scenario: Scenario, problem: Problem, optimizers: Sequence[Optimizer]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Make the schedules; returns what is to be called after a step, and after a part of the run.

    In the first scenarios the script steps them; in wide ones the session does, by the progress of all workers.
    """
    if scenario.schedule == "plateau":
        plateaus = make_plateaus(optimizers)
        session.register(**{f"plateau{number}": plateau for number, plateau in enumerate(plateaus)})

        def look() -> None:
            metric = session.evaluate(lambda: points_of(problem, session.model, leapt=scenario.leaps), everywhere=True)
            for plateau in plateaus:
                plateau.step(metric)

        return _nothing, look
    if scenario.wide:
        # an epoch ends with a round that is not full, so there are more rounds than in a plain run
        data = PlanFigures(
            num_samples=problem.num_samples, batch_size=scenario.batch_size, budget_samples=scenario.num_samples
        )
        rounds = num_rounds(data, num_workers=scenario.num_workers)
        for one in optimizers:
            session.schedule(make_schedule(scenario.schedule, one, num_steps=rounds))
        return _nothing, _nothing
    schedules = [make_schedule(scenario.schedule, one, num_steps=scenario.num_steps) for one in optimizers]

    def after_step() -> None:
        if session.clock < scenario.num_steps:
            for schedule in schedules:
                schedule.step()

    return after_step, _nothing


def _nothing() -> None:
    pass


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
    """Return the speed of a worker; one that joins late has the usual one."""
    from_last = scenario.num_workers - 1 - rank
    return 1 / scenario.slow_factors[from_last] if 0 <= from_last < len(scenario.slow_factors) else 1.0
