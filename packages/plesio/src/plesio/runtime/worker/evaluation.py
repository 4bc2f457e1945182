"""Evaluates what the workers have made together, at a place of the training loop and after its end.

A metric's function gives one number, or several by name, each with its goal. The run is judged by one of them: the
run's metric if that is among them, else the first. More of a metric is better, unless its name is a loss's, or the
caller sets another goal.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import torch
from msgspec import UNSET

from plesio.core.errors import ConfigError
from plesio.core.results import Evaluation, Found, Goal
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.exchange.exchange import Exchange, SharedState
from plesio.runtime.worker.exchange.replica import Replica, State, parameters_sha256
from plesio.runtime.worker.meter import Meter, number_of
from plesio.runtime.worker.sharing import Sharing
from plesio.runtime.worker.world import World

Metric = Callable[[], Any]
"""Gives a number, or a mapping of numbers by name."""

Goals = Goal | Mapping[str, Goal] | None
"""The goal of the metric that the run is judged by, or those of several by name."""

_LESS_IS_BETTER = re.compile(r"loss|error|perplexity|(^|_)(mse|mae|rmse|nll|ppl|wer|cer)($|_)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Judge:
    """Calls the metric functions of a run and records their results."""

    info: RunInfo

    def judged(self, metric: Metric, goal: Goals, *, samples: int, at_s: float) -> Evaluation:
        """Call ``metric`` and take down what it gives; ConfigError if no number, or if the goal is of no metric."""
        found, own = metric(), self.info.metric_name
        if not isinstance(found, Mapping):
            value = number_of(found, call="session.evaluate", what="the metric")
            goals = self._goals([self._name_of(metric)], goal)
            news: Any = UNSET if goals == {own: self.info.metric_goal} else goals
            return Evaluation(samples=samples, at_s=at_s, metric=value, goals=news)
        if not found:
            raise ConfigError("session.evaluate(...): the function gives no metric; return at least one by name")
        values = {
            str(name): number_of(value, call="session.evaluate", what=f'"{name}"') for name, value in found.items()
        }
        first = own if own in values else next(iter(values))
        goals = self._goals([first, *(name for name in values if name != first)], goal)
        return Evaluation(samples=samples, at_s=at_s, metric=values[first], metrics=values, goals=goals)

    def _name_of(self, metric: Metric) -> str:
        """Name the metric: by the run's name, or if the run has none, by the function's, if that is a loss's."""
        name, own = getattr(metric, "__name__", ""), self.info.metric_name
        return name if own == RunInfo().metric_name and _LESS_IS_BETTER.search(name) else own

    def _goals(self, names: list[str], goal: Goals) -> dict[str, Goal]:
        given: dict[str, Any] = dict(goal) if isinstance(goal, Mapping) else {} if goal is None else {names[0]: goal}
        for name, aim in given.items():
            if aim not in get_args(Goal):
                raise ConfigError(
                    f'session.evaluate(goal={goal!r}): write "max" or "min", or one of them for each name'
                )
            if name not in names:
                raise ConfigError(f'session.evaluate(goal={goal!r}): there is no "{name}" among {", ".join(names)}')
        return {name: given.get(name) or self._usual(name) for name in names}

    def _usual(self, name: str) -> Goal:
        if name == self.info.metric_name:
            return self.info.metric_goal
        return "min" if _LESS_IS_BETTER.search(name) else "max"


@contextlib.contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:  # a module's own parts come after it
            if module.training != training:
                module.train(training)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """Evaluates the shared parameters on one worker."""

    replica: Replica
    world: World
    exchange: Exchange
    sharing: Sharing
    meter: Meter

    def evaluate(
        self, metric: Metric, goal: Goals, *, samples: int | None, at_s: float, number: int | None = None
    ) -> Found:
        """Evaluate the snapshots and the present parameters, where this worker has them.

        ``number`` counts this worker's evaluations, where all workers are to have its result.
        """

        def find() -> Found:
            state = self.exchange.shared()
            if state is None:
                return None
            present = SharedState(self._samples(samples), at_s, state)
            kept = self.exchange.snapshots() if number is None or self.world.rank == 0 else []
            points = [self._measure(metric, goal, shared) for shared in [*kept, present]]
            self.world.evaluated(points, parameters_sha256=None, number=number)
            self._tell(points)
            return points[-1].found

        return self.sharing.share_metric(find, number=number)

    def finish(self, state: State, metric: Metric | None, goal: Goals, *, samples: int | None, at_s: float) -> None:
        """Evaluate what the run has ended with, ``state``, and leave it in the model."""
        snapshots = self.exchange.snapshots()
        final = SharedState(self._samples(samples), at_s, state)
        if metric is not None:
            if not snapshots or snapshots[-1].samples < final.samples:
                snapshots.append(final)
            points = [self._measure(metric, goal, shared) for shared in snapshots]
            self.world.evaluated(points, parameters_sha256=None)
            self._tell(points)
        self.replica.load(state)
        own = self.replica.parameters
        self.world.evaluated([], parameters_sha256=parameters_sha256(own, state, placed=own))

    def _tell(self, points: list[Evaluation]) -> None:
        for point in points:
            self.meter.callbacks.tell("on_evaluation", point)

    def _samples(self, samples: int | None) -> int:
        return samples if samples is not None else self.world.result(reports=False).samples

    def _measure(self, metric: Metric, goal: Goals, shared: SharedState) -> Evaluation:
        with self.replica.loaded(shared.state), evaluation_mode(self.replica.model), self.meter.within("metric"):
            return Judge(self.world.info).judged(metric, goal, samples=shared.samples, at_s=shared.at_s)
