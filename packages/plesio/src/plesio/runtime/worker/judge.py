"""Results of a metric's function as the run records them: numbers by name, each with its goal.

A function gives one number, or several by name. The run is judged by one of them: the run's metric if that is among
them, else the first. More of a metric is better, unless its name is a loss's, or the caller sets another goal.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, get_args

import torch
from msgspec import UNSET

from plesio.core.errors import ConfigError
from plesio.core.results import Evaluation, Goal
from plesio.protocol.figures import RunInfo

__all__ = ["Goals", "Judge", "Metric", "evaluation_mode", "number_of"]

Metric = Callable[[], Any]
"""Gives a number, or a mapping of numbers by name."""

Goals = Goal | Mapping[str, Goal] | None
"""The goal of the metric that the run is judged by, or those of several by name."""

_LESS_IS_BETTER = re.compile(r"loss|error|perplexity|(^|_)(mse|mae|rmse|nll|ppl|wer|cer)($|_)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Judge:
    """Calls the metric functions of a run and records their results.

    Args:
        info: The run's own name of the metric, and its goal.
    """

    info: RunInfo

    def judged(self, metric: Metric, goal: Goals, *, samples: int, at_s: float) -> Evaluation:
        """Call ``metric`` and take down what it gives.

        Raises:
            ConfigError: It gives no number, or the goal is of no metric.
        """
        found, own = metric(), self.info.metric_name
        if not isinstance(found, Mapping):
            value = number_of(found, call="session.evaluate", what="the metric")
            goals = self._goals([self._name_of(metric)], goal)
            return Evaluation(samples=samples, at_s=at_s, metric=value, goals=self._news(goals))
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
        """Return the goal of each metric; the run is judged by the first."""
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

    def _news(self, goals: dict[str, Goal]) -> Any:
        """Return ``goals``, unless they are the run's own."""
        return UNSET if goals == {self.info.metric_name: self.info.metric_goal} else goals


def number_of(value: Any, *, call: str, what: str) -> float:
    """Return the value as a float: a number, or a tensor with one.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, Real):  # numpy's numbers are, too
        return float(value)
    kind = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:60]
    raise ConfigError(f"{call}(...): {what} is {kind}; a single number is needed, as a number or a tensor with one")


@contextlib.contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode, without gradients, and every module back into its mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:  # a module's own parts come after it
            if module.training != training:
                module.train(training)
