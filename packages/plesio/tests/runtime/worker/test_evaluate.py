"""Evaluation: modes of modules, several metrics by name, their goals, and what is no number."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import plesio
from plesio.core.errors import ConfigError
from plesio.core.results import read_results


def session_of(model: nn.Module, *, trace: Path | None = None, **info: Any) -> plesio.Session:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = plesio.JoinOptions(info=plesio.RunInfo(**info))
    return plesio.join(model, optimizer, policy="bsp", trace=trace, options=options)


def test_every_module_has_the_mode_again_that_it_had():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()), nn.Linear(2, 1))
    model[1][0].eval()  # type: ignore[index]
    before = [module.training for module in model.modules()]
    with session_of(model) as session:
        session.evaluate(lambda: float(any(module.training for module in model.modules())))
        assert session.report().final_metric == 0.0
        with pytest.raises(ZeroDivisionError):
            session.evaluate(lambda: 1 / 0)
        assert [module.training for module in model.modules()] == before


def validation_loss() -> float:
    return 0.25


@pytest.mark.parametrize(
    ("info", "metric", "goal", "name", "better", "final"),
    [
        ({}, lambda: 0.5, None, "metric", "max", 0.5),
        ({}, lambda: 0.5, "min", "metric", "min", 0.5),
        ({}, validation_loss, None, "validation_loss", "min", 0.25),
        ({"metric_name": "accuracy"}, validation_loss, None, "accuracy", "max", 0.25),
        ({"metric_name": "bits", "metric_goal": "min"}, lambda: np.float32(2.0), None, "bits", "min", 2.0),
        ({}, lambda: {"accuracy": torch.tensor(0.5), "val_loss": 2}, None, "accuracy", "max", 0.5),
        ({}, lambda: {"val_loss": 2, "accuracy": 0.5}, None, "val_loss", "min", 2.0),
        ({"metric_name": "accuracy"}, lambda: {"val_loss": 2, "accuracy": 0.5}, None, "accuracy", "max", 0.5),
        ({}, lambda: {"bits": 2, "accuracy": 0.5}, {"bits": "min"}, "bits", "min", 2.0),
    ],
)
def test_a_metric_has_a_name_and_a_goal(
    tmp_path: Path, info: dict[str, Any], metric: Callable[[], Any], goal: Any, name: str, better: str, final: float
):
    with session_of(nn.Linear(2, 1), trace=tmp_path, **info) as session:
        found = session.evaluate(metric, goal=goal)
    assert found == metric()
    [run] = read_results(tmp_path / "results.json")
    assert run == session.report()
    assert (run.metric_name, run.metric_goal, run.final_metric) == (name, better, final)
    assert run.evaluations[0].found == found


def test_the_target_of_a_loss_is_reached_from_above():
    losses = iter([0.9, 0.4, 0.2])
    with session_of(nn.Linear(2, 1), target=0.5, metric_name="val_loss", metric_goal="min") as session:
        for _ in range(3):
            session.evaluate(lambda: {"accuracy": 0.0, "val_loss": next(losses)})
    run = session.report()
    assert run.time_to_target_s == run.evaluations[1].at_s
    assert run.evaluations[1].goals == {"val_loss": "min", "accuracy": "max"}


@pytest.mark.parametrize(
    ("metric", "goal", "words"),
    [
        (lambda: None, None, "the metric is None; a single number is needed"),
        (lambda: "0.5", None, "the metric is '0.5'"),
        (lambda: torch.ones(3), None, r"a tensor of shape \(3,\)"),
        (dict, None, "gives no metric"),
        (lambda: {"accuracy": [1]}, None, r'"accuracy" is \[1\]'),
        (lambda: 0.5, "less", '"max" or "min"'),
        (lambda: {"accuracy": 0.5}, {"loss": "min"}, 'there is no "loss" among accuracy'),
    ],
)
def test_what_is_no_metric_is_refused_in_a_line(metric: Callable[[], Any], goal: Any, words: str):
    with session_of(nn.Linear(2, 1)) as session:
        with pytest.raises(ConfigError, match=words):
            session.evaluate(metric, goal=goal)
        assert session.report().evaluations == ()
