"""Runs to report on: made up, but with the shapes that real ones have."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from plesio.core.results import Environment, Evaluation, LossPoint, RunResult, Staleness, WorkerTimes
from plesio.report.explanation import Explanation, explanation_of
from support.adaptive_logs import NETWORK

ENVIRONMENT = Environment(
    plesio="0.1.0",
    python="3.11.2",
    torch="2.13.0",
    numpy="2.4.6",
    platform="Linux-6.1-x86_64",
    cpu="Example CPU @ 2.10GHz",
    num_cpus=2,
    commit="0123456789ab",
)


@dataclass(frozen=True)
class Behaviour:
    """The behaviour of a made-up policy: its duration, its final quality, the uses of its time."""

    wall_s: float
    accuracy: float
    speed: float
    loss: float
    wait_share: tuple[float, float, float, float]
    communicate_share: float
    num_bytes: int
    links: dict[str, float]
    staleness_mean: float
    max_lead: int


BEHAVIOURS = {
    "bsp": Behaviour(9.8, 0.983, 1.0, 0.03, (0.61, 0.60, 0.62, 0.02), 0.07, 71_000_000, {"collective": 1.0}, 0, 0),
    "ssp:4": Behaviour(
        9.3, 0.982, 1.02, 0.032, (0.52, 0.50, 0.53, 0.01), 0.05, 43_000_000, {"ipc": 0.98, "tcp": 0.02}, 2.9, 5
    ),
    "asp": Behaviour(4.1, 0.968, 0.9, 0.07, (0.0, 0.0, 0.0, 0.0), 0.11, 142_000_000, {"ipc": 1.0}, 3.4, 210),
    "asp,weight=inverse": Behaviour(
        4.15, 0.981, 0.95, 0.045, (0.0, 0.0, 0.0, 0.0), 0.11, 142_000_000, {"ipc": 1.0}, 3.3, 205
    ),
    "local_sgd:8": Behaviour(
        8.9, 0.979, 0.98, 0.04, (0.58, 0.57, 0.58, 0.01), 0.01, 8_900_000, {"collective": 1.0}, 0, 8
    ),
}


def made_up_run(policy: str, seed: int, **overrides: Any) -> RunResult:
    behaviour = BEHAVIOURS[policy]
    random = np.random.default_rng([seed, *policy.encode()])
    wall_s = behaviour.wall_s * float(random.normal(1, 0.015))
    final = min(0.999, behaviour.accuracy + float(random.normal(0, 0.0025)))
    evaluations = _evaluations(behaviour, wall_s=wall_s, final=final, random=random)
    reached = [point.at_s for point in evaluations if point.metric >= 0.97]
    clocks = range(0, 400, 2)
    losses = tuple(
        LossPoint(
            clock=clock,
            at_s=wall_s * clock / 400,
            loss=(behaviour.loss + 2.3 * math.exp(-clock * behaviour.speed / 45)) * float(random.lognormal(0, 0.12)),
        )
        for clock in clocks
    )
    values: dict[str, Any] = {
        "policy": policy,
        "task": "digits",
        "world": "process",
        "seed": seed,
        "num_workers": 4,
        "status": "finished",
        "steps": 1600,
        "samples": 51_200,
        "wall_s": wall_s,
        "samples_per_s": 51_200 / wall_s,
        "metric_name": "accuracy",
        "final_metric": evaluations[-1].metric,
        "target": 0.97,
        "time_to_target_s": reached[0] if reached else None,
        "bytes_sent_total": behaviour.num_bytes,
        "bytes_sent": {link: round(share * behaviour.num_bytes) for link, share in behaviour.links.items()},
        "workers": _workers(behaviour, wall_s=wall_s, random=random),
        "staleness": _staleness(behaviour.staleness_mean, random=random),
        "max_lead": behaviour.max_lead,
        "parameters_sha256": "ab" * 32,
        "evaluations": evaluations,
        "losses": losses,
        "environment": ENVIRONMENT,
    }
    return RunResult(**{**values, **overrides})


def _evaluations(
    behaviour: Behaviour, *, wall_s: float, final: float, random: np.random.Generator
) -> tuple[Evaluation, ...]:
    points = []
    for index in range(1, 17):
        progress = index / 16
        metric = final - 0.88 * math.exp(-9 * progress * behaviour.speed) + float(random.normal(0, 0.002))
        points.append(Evaluation(samples=3200 * index, at_s=wall_s * progress, metric=min(metric, 1.0)))
    return tuple(points)


def _workers(behaviour: Behaviour, *, wall_s: float, random: np.random.Generator) -> tuple[WorkerTimes, ...]:
    return tuple(
        WorkerTimes(
            worker=worker,
            compute_s=wall_s * (1 - wait - behaviour.communicate_share) * float(random.normal(1, 0.01)),
            wait_s=wall_s * wait,
            communicate_s=wall_s * behaviour.communicate_share,
            steps=400,
            samples=12_800,
            peak_memory_bytes=310_000_000,
        )
        for worker, wait in enumerate(behaviour.wait_share)
    )


def _staleness(mean: float, *, random: np.random.Generator) -> Staleness:
    draws = random.negative_binomial(4, 4 / (4 + mean), size=1600) if mean > 0 else np.zeros(400, dtype=int)
    return Staleness.of({int(tau): int((draws == tau).sum()) for tau in np.unique(draws)})


@pytest.fixture(scope="session")
def make_run() -> Callable[..., RunResult]:
    return made_up_run


@pytest.fixture(scope="session")
def all_runs() -> list[RunResult]:
    return [made_up_run(policy, seed) for policy in BEHAVIOURS for seed in range(3)]


@pytest.fixture
def adaptive_run(make_run: Callable[..., RunResult]) -> Callable[..., RunResult]:
    def make(*, seed: int = 0, policy: str = "adaptive", steps: int = 40, **values: Any) -> RunResult:
        losses = tuple(LossPoint(clock=clock, at_s=0.04 * clock, loss=1 / clock) for clock in range(1, steps))
        values = {"steps": 4 * steps, "wall_s": 0.04 * steps, "losses": losses, **values}
        return dataclasses.replace(make_run("bsp", seed), policy=policy, **values)

    return make


@pytest.fixture
def network(adaptive_run: Callable[..., RunResult]) -> Explanation:
    return explanation_of(NETWORK, adaptive_run(bytes_sent_total=31_000))
