"""A world of which all is known, for the advisor: how many samples each candidate needs, and how long they take."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from plesio.advisor import FailureModel, ModelSizes, Question, Situation
from plesio.advisor.price import price
from plesio.core.results import Evaluation, RunResult
from plesio.cost.cluster import Cluster, parse_cluster
from plesio.cost.host_costs import HostCosts

NUM_EVALUATIONS = 50


def situation(
    cluster: Cluster | str = "4x1gbe",
    *,
    num_workers: int = 4,
    step_s: float = 0.02,
    parameters: int = 500_000,
    slow: float = 1.0,
) -> Situation:
    compute_s = np.full((num_workers, 64), step_s)
    compute_s[-1] *= slow
    return Situation(
        cluster=parse_cluster(cluster) if isinstance(cluster, str) else cluster,
        num_workers=num_workers,
        batch_size=32,
        compute_s=compute_s,
        sizes=ModelSizes(
            shapes=((1000, parameters // 1000),),
            optimizer_bytes=4 * parameters,
            activation_bytes=100_000,
            block_bytes=parameters,
        ),
        costs=HostCosts(),
    )


def question(
    at: Situation,
    *,
    target: float | None = 0.9,
    must_reach: bool = True,
    measure_s: float = 60.0,
    failures: FailureModel | None = None,
    price_per_hour: float | None = None,
    tolerance: float = 0.5,
    shares_moments: bool = False,
) -> Question:
    return Question(
        name="known",
        at=at,
        has_store=True,
        shares_moments=shares_moments,
        metric_name="accuracy",
        metric_goal="max",
        target=target,
        must_reach=must_reach,
        tolerance=tolerance,
        failures=failures,
        price_per_hour=price_per_hour,
        measure_s=measure_s,
    )


@dataclass(slots=True)
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class Told:
    result: RunResult | None
    samples: float
    virtual_s: float
    real_s: float
    problem: str | None = None
    whole: bool = False


@dataclass(slots=True)
class KnownWorld:
    """A rehearsal: the metric is ``best (1 - e^(-samples / needs))``, and a round takes what the prices say.

    Attributes:
        needs: Samples, by policy, over those of bsp.
        paces: Seconds of a step, by policy, over those of its price.
        best: What the metric comes to in the end, by policy.
        problems: Policies that cannot be run.
        seed_spread: By how much the samples differ from seed to seed.
    """

    at: Situation
    clock: Clock
    needs: Mapping[str, float] = field(default_factory=dict)
    paces: Mapping[str, float] = field(default_factory=dict)
    best: Mapping[str, float] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    seed_spread: float = 0.0
    most_samples: float = 40_000.0
    sample_s: float = 1e-4
    by_loss: bool = False
    done: list[tuple[str, int]] = field(default_factory=list)

    def run(
        self, policy: str, *, seed: int, servers: int | None, until_samples: float, within_s: float, budget_s: float
    ) -> Told:
        self.done.append((policy, seed))
        if policy in self.problems:
            return Told(None, 0, 0.0, 0.0, problem=self.problems[policy])
        samples = min(until_samples, self.most_samples)
        rate = price(policy, self.at).step_s * self.paces.get(policy, 1.0) / (self.at.num_workers * self.at.batch_size)
        cut = samples * rate > within_s or samples * self.sample_s > budget_s
        samples = min(samples, within_s / rate, budget_s / self.sample_s)
        self.clock.now += samples * self.sample_s
        if cut:
            return Told(None, samples, samples * rate, samples * self.sample_s)
        places = np.linspace(0, samples, NUM_EVALUATIONS + 1)[1:]
        needed = 4000 * self.needs.get(policy, 1.0) * math.exp(self.seed_spread * math.sin(3 * seed))
        metrics = self.best.get(policy, 1.0) * (1 - np.exp(-places / needed))
        result = RunResult(
            policy=policy,
            task="known",
            world="virtual",
            seed=seed,
            num_workers=self.at.num_workers,
            status="finished",
            steps=1,
            samples=round(samples),
            wall_s=samples * rate,
            metric_name="accuracy",
            evaluations=tuple(
                Evaluation(samples=round(place), at_s=place * rate, metric=metric)
                for place, metric in zip(places, metrics, strict=True)
            ),
        )
        whole = samples >= self.most_samples
        return Told(result, samples, samples * rate, samples * self.sample_s, whole=whole)
