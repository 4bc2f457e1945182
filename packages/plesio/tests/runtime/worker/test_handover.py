"""A joining worker's news beside the parameters: options, registered objects, and evaluations' results."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import plesio
from plesio.core.errors import ConfigError
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.cost.step_time import Constant
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.problems import Problem, perceptron


@dataclass
class Counter:
    """An object of the script's with a state: steps by loop."""

    steps: list[int] = field(default_factory=list)
    average: torch.Tensor = field(default_factory=lambda: torch.zeros(2))

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.average = state["steps"], state["average"]


@dataclass
class Seen:
    """The observations of a script on one worker."""

    first_clock: int
    rates: list[float]
    counter: Counter
    metrics: list[float | None]
    parameters: list[float]
    fallbacks: list[str]


def train(policy: str, *, registers: bool, joins: bool) -> Simulation[Seen]:
    def work(job: VirtualJob) -> Seen:
        pacer = Pacer(step_time=Constant(mean_s=0.02), seed=0, worker=job.place.rank, clock=job.clock)
        model, data, counter = perceptron(5, 6), Problem(60, 5), Counter()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        rates, metrics = [], []
        with plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(pacer=pacer)) as session:
            first_clock = session.clock
            if registers:
                session.register(counter=counter)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            if registers:
                session.register(scheduler=scheduler)
            for _ in range(4):
                counter.steps.append(0)
                counter.average = counter.average + len(counter.steps)
                for _, x, y in session.shard(DataLoader(data, batch_size=4)):
                    (model(x) - y).square().mean().backward()
                    session.step()
                    rates.append(optimizer.param_groups[0]["lr"])
                    counter.steps[-1] = session.clock
                scheduler.step()
                metrics.append(session.evaluate(lambda: float((model(data.x) - data.y).square().mean())))
        parameters = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
        return Seen(first_clock, rates, counter, metrics, parameters, list(session.report().fallbacks))

    faults = [Fault(at_s=0.3, kind="join")] if joins else []
    return simulate(work, num_workers=2, cluster=Cluster.one_host(3), faults=faults)


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:2"])
def test_who_joins_goes_on_with_the_others_rate_objects_and_metrics(policy: str):
    first, second, joined = train(policy, registers=True, joins=True).values()
    assert first.first_clock == second.first_clock == 0 < joined.first_clock
    assert joined.rates == first.rates[-len(joined.rates) :]
    assert joined.counter.steps == first.counter.steps
    assert torch.equal(joined.counter.average, first.counter.average)
    assert len(joined.counter.steps) == 4, "loops that were over count"
    assert joined.metrics == first.metrics
    assert joined.parameters == first.parameters == second.parameters
    assert joined.fallbacks == []


def test_a_scheduler_that_is_not_registered_is_warned_of_where_somebody_joins():
    lines = [line for seen in train("bsp", registers=False, joins=True).values() for line in seen.fallbacks]
    assert any("begins it anew and trains with another learning rate" in line for line in lines), lines


def test_a_state_that_cannot_be_told_is_refused_when_it_is_registered():
    counter = Counter()
    counter.average = object()  # type: ignore[assignment]
    model = torch.nn.Linear(2, 1)
    with (
        plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), policy="bsp") as session,
        pytest.raises(ConfigError, match="counter"),
    ):
        session.register(counter=counter)
