import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.core.errors import TaskError
from plesio.tasks.quadratic import _Setting, problem, quadratic, worker_shifts


def setting(**changes: float) -> _Setting:
    values = {
        "dimension": 6,
        "condition_number": 50.0,
        "heterogeneity": 0.0,
        "noise": 0.3,
        "num_samples": 40,
        **changes,
    }
    return _Setting(**values)  # type: ignore[arg-type]


@settings(max_examples=25, deadline=None)
@given(dimension=st.integers(2, 20), condition_number=st.floats(1.0, 1e4), extra=st.integers(1, 30))
def test_the_hessian_has_exactly_the_condition_number_asked_for(
    dimension: int, condition_number: float, extra: int
) -> None:
    squares = problem(setting(dimension=dimension, condition_number=condition_number, num_samples=dimension + extra))
    eigenvalues = np.linalg.eigvalsh(squares.rows.T @ squares.rows / len(squares.rows))
    assert eigenvalues[-1] == pytest.approx(1.0, rel=1e-9)
    assert eigenvalues[-1] / eigenvalues[0] == pytest.approx(condition_number, rel=1e-6)
    assert np.allclose(np.diff(np.log(eigenvalues)), np.log(condition_number) / (dimension - 1), atol=1e-6)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_optimum_is_what_a_solver_finds(noise: float) -> None:
    squares = problem(setting(noise=noise))
    solved = np.linalg.lstsq(squares.rows, squares.targets, rcond=None)[0].astype(np.float64)
    assert np.allclose(squares.optimum, solved, atol=1e-10)
    assert squares.value(solved) == pytest.approx(squares.optimal_value, abs=1e-12)
    assert squares.optimal_value == pytest.approx(noise**2 / 2)


def test_suboptimality_is_the_distance_to_the_optimal_value() -> None:
    squares = problem(setting())
    for seed in range(5):
        point = np.random.default_rng(seed).standard_normal(6, dtype=np.float64)
        assert squares.suboptimality(point) == pytest.approx(squares.value(point) - squares.optimal_value, rel=1e-9)
    assert squares.suboptimality(squares.optimum) == 0


def test_the_loss_of_all_samples_is_the_objective() -> None:
    task = quadratic(dimension=6, condition_number=50.0, noise=0.3, num_samples=40)
    model, _ = task.build(0)
    loss = task.loss(model, task.train_set()[:])
    squares = problem(setting())
    point = next(model.parameters()).detach().double().numpy().ravel()
    assert loss.item() == pytest.approx(squares.value(point), rel=1e-4)
    assert task.metric(model) == pytest.approx(squares.value(point) - squares.optimal_value, rel=1e-6)


def test_full_gradient_descent_converges_at_the_rate_of_the_spectrum() -> None:
    task = quadratic(dimension=6, condition_number=10.0, noise=0.0, num_samples=40, learning_rate=1.0)
    model, optimizer = task.build(0)
    batch = task.train_set()[:]
    start = task.metric(model)
    for _ in range(20):
        task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    # With step 1 / largest eigenvalue every component shrinks by at least 1 - 1/10 a step, and f by its square.
    assert task.metric(model) <= start * 0.9**40 * 1.01


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_the_workers_objectives_have_the_common_optimum_on_average(num_workers: int) -> None:
    task = quadratic(dimension=6, condition_number=50.0, heterogeneity=2.0, noise=0.3, num_samples=40)
    squares = problem(setting())
    model, _ = task.build(0)
    parameter = next(model.parameters())
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(squares.optimum))
    gradients = []
    for worker in range(num_workers):
        own = task.for_worker(worker, num_workers)
        model.zero_grad()
        own.loss(model, own.train_set()[:]).backward()  # type: ignore[no-untyped-call]
        assert parameter.grad is not None
        gradients.append(parameter.grad.clone())
    assert torch.stack(gradients).mean(0).norm() < 1e-5
    if num_workers > 1:
        assert min(gradient.norm() for gradient in gradients) > 1e-3


def test_a_worker_s_own_optimum_is_the_common_one_shifted() -> None:
    task = quadratic(dimension=6, condition_number=50.0, heterogeneity=2.0, noise=0.3, num_samples=40)
    shifts = worker_shifts(setting(heterogeneity=2.0), num_workers=3)
    for worker in range(3):
        rows, targets = task.for_worker(worker, 3).train_set()[:]
        solved, *_ = np.linalg.lstsq(rows.double().numpy(), targets.double().numpy(), rcond=None)
        assert np.allclose(solved, problem(setting()).optimum + shifts[worker], atol=1e-4)


def test_shifts_sum_to_zero_and_have_the_length_asked_for() -> None:
    shifts = worker_shifts(setting(heterogeneity=2.0), num_workers=4)
    assert np.allclose(shifts.sum(axis=0), 0)
    assert np.sqrt(np.square(shifts).sum(axis=1).mean()) == pytest.approx(2.0)


def test_without_heterogeneity_every_worker_has_the_same_task() -> None:
    task = quadratic()
    assert task.for_worker(1, 4) is task


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"condition_number": 0.5}, "condition_number = 0.5; write a number of 1 or more"),
        ({"condition_number": float("nan")}, "condition_number = nan; write a finite number"),
        ({"dimension": 0}, "dimension = 0; write a whole number of 1 or more"),
        ({"dimension": 1}, "one eigenvalue"),
        ({"dimension": 32, "num_samples": 32}, "num_samples = 32; write a whole number of 33 or more"),
        ({"noise": -1}, "noise = -1"),
        ({"heterogeneity": True}, "heterogeneity = True"),
        ({"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_bad_options_are_one_clear_line(options: dict[str, float], message: str) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        quadratic(**options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
