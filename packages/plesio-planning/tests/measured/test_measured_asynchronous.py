"""Local SGD, staleness weighting and stragglers, each measured once and small: laws that a busy machine keeps."""

import statistics

import numpy as np
import pytest
import torch

from plesio.core.predictions import Prediction
from plesio.cost.step_time import LogNormal
from plesio.runtime.worker.pacing import Pacer
from plesio_planning.measured import local_sgd, staleness_weighting, stragglers
from plesio_planning.measured.quadratics import problem_of, unlike_quadratics
from plesio_planning.measured.twin import Twin
from plesio_planning.studies.measured import Measured


def quantity(measured: Measured, name: str) -> list[Prediction]:
    return [one for one in measured.predictions if one.quantity == name]


def test_a_step_of_the_task_is_the_step_that_is_modelled():
    task = unlike_quadratics(num_workers=3, learning_rate=0.1).for_worker(1, 3)
    problem = problem_of(num_workers=3)
    model, optimizer = task.build(0)
    (noise,) = task.train_set()[0]  # type: ignore[misc]
    task.loss(model, [noise[None]]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    expected = 1 - 0.1 * (problem.eigenvalues[1] * (1 - problem.optima[1]) + noise.numpy())
    np.testing.assert_allclose(next(model.parameters()).detach().numpy(), expected, rtol=1e-12)
    curvature = torch.tensor(problem.eigenvalues.mean(axis=0))
    assert task.metric(model) == pytest.approx(float(0.5 * (curvature * torch.tensor(expected) ** 2).sum()))


@pytest.mark.slow
def test_local_sgd():
    told: list[str] = []
    measured = local_sgd.measure(Twin(told.append), 512, (0,), periods=(1, 4, 16))
    assert [one.setting["K"] for one in quantity(measured, "seconds of a step")] == ["4"]
    losses = quantity(measured, "loss in the end")
    assert [one.setting["K"] for one in losses] == ["1", "4", "16"]
    assert losses[0].predicted < losses[1].predicted < losses[2].predicted
    # at K of 1 the start has not quite been forgotten in so few steps; what drift adds to that is the closed form's
    assert losses[2].measured == pytest.approx(losses[2].predicted, rel=0.25)
    rise, modelled_rise = (
        value[2] - value[0] for value in ([one.measured for one in losses], [one.predicted for one in losses])
    )
    assert rise == pytest.approx(modelled_rise, rel=0.25)
    assert len(told) == 3
    assert len(measured.charts) == 2


@pytest.mark.slow
def test_staleness_weighting():
    measured = staleness_weighting.measure(Twin(lambda _: None), 40, weightings=())
    none, inverse = quantity(measured, "updates to a tenth of the loss")
    assert none.predicted < inverse.predicted
    assert none.measured < inverse.measured
    assert none.baseline == inverse.baseline
    assert [one.measured for one in (none, inverse)] == pytest.approx([none.predicted, inverse.predicted], rel=0.3)
    staleness = measured.charts[1]
    assert staleness.slug == "measured-staleness"


def test_stragglers():
    measured = stragglers.measure(Twin(lambda _: None), num_workers=2, num_steps=20)
    (one,) = measured.predictions
    assert one.predicted > one.baseline
    pacers = [Pacer(step_time=LogNormal(mean_s=0.02, cv=0.5), seed=0, worker=worker) for worker in range(2)]
    slowest_s = [max(pacer.draw_s(step) for pacer in pacers) for step in range(1, 21)]
    assert statistics.fmean(slowest_s) > 0.022
    assert one.measured > statistics.fmean(slowest_s)
