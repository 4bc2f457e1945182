import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from plesio.core.clock import MonotonicClock
from plesio.core.errors import DataError
from plesio.core.trace import TraceWriter
from plesio.runtime.worker.exchange.exchange import StepProgress
from plesio.runtime.worker.meter import Meter, WorkerTimeline
from plesio.runtime.worker.monitor import Sketch, StepMonitor, WorkerTraits
from plesio.runtime.worker.rounds import RoundRecords


def sketch_of(parts: list[torch.Tensor], *, size: int = 64) -> np.ndarray:
    sketch = Sketch(size)
    for part in parts:
        sketch.add(part)
    return np.array(sketch.take())


def test_the_norm_is_exact_and_the_sketch_linear():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(1000, generator=generator) for _ in range(2))
    assert sketch_of([x])[0] == pytest.approx(float(x.square().sum()), rel=1e-6)
    np.testing.assert_allclose(sketch_of([x])[1:] - sketch_of([y])[1:], sketch_of([x - y])[1:], atol=1e-4)


def test_parts_make_the_whole_and_positions_matter():
    x = torch.arange(200, dtype=torch.float32)
    assert sketch_of([x]).shape == (65,)
    assert sketch_of([x[:64], x[64:]]) == pytest.approx(sketch_of([x]), rel=1e-5)
    assert not np.allclose(sketch_of([x[:60], x[60:]])[1:], sketch_of([x[60:], x[:60]])[1:])


def test_inner_products_are_kept_without_bias():
    """Over 400 pairs the mean of <s(x), s(y)> - <x, y> is within four of its standard errors of 0."""
    generator = torch.Generator().manual_seed(2)
    errors = []
    for _ in range(400):
        x, y = (torch.randn(2048, generator=generator) for _ in range(2))
        y += 0.5 * x
        exact = float(torch.dot(x, y))
        errors.append((float(sketch_of([x])[1:] @ sketch_of([y])[1:]) - exact) / float(x.norm() * y.norm()))
    assert abs(np.mean(errors)) < 4 * np.std(errors) / 20
    assert np.std(errors) < 1.5 * np.sqrt(2 / 64)


def sparse_of(dense: torch.Tensor) -> torch.Tensor:
    """The same gradient, and its first row in two halves."""
    rows = dense.clone()
    rows[0] /= 2
    rows = torch.cat([rows, rows[:1]])
    places = torch.tensor([[*range(len(dense)), 0]])
    return torch.sparse_coo_tensor(places, rows, dense.shape, check_invariants=False)


def test_the_sketch_of_a_sparse_gradient_is_that_of_the_same_dense_one():
    generator = torch.Generator().manual_seed(6)
    table = torch.randn(30, 7, generator=generator) * (torch.rand(30, 1, generator=generator) < 0.3)
    before = torch.randn(50, generator=generator)
    dense, sparse = Sketch(64), Sketch(64)
    for sketch in (dense, sparse):
        sketch.add(before)
    dense.add(table.reshape(-1))
    sparse.add_rows(table.to_sparse(1))
    assert sparse.take() == pytest.approx(dense.take(), rel=1e-5, abs=1e-5)


def test_nothing_measured_is_nothing_told():
    assert Sketch(8).take() == ()


Cut = Callable[[torch.Tensor], list[list[torch.Tensor]]]
PIECES: dict[str, Cut] = {
    "one": lambda g: [[g]],
    "parameters": lambda g: [[g[:300], g[300:310], g[310:]]],
    "buckets": lambda g: [[g[:600]], [g[600:]]],
}


def make_timeline() -> WorkerTimeline:
    clock = MonotonicClock()
    return WorkerTimeline(Meter(), TraceWriter(None, header={}, on_failure=print, clock=clock), clock=clock)


def monitor_of(
    *,
    guard: bool = True,
    timeline: WorkerTimeline | None = None,
    scales_loss: bool = False,
    total_samples: int | None = None,
) -> StepMonitor:
    return StepMonitor(
        WorkerTraits(0, scales_loss=scales_loss),
        guard=guard,
        timeline=timeline or make_timeline(),
        rounds=RoundRecords(0, 4, warn=pytest.fail),
        total_samples=total_samples,
    )


def gradients(num_steps: int, *, size: int = 1000) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(size, generator=generator) for _ in range(num_steps)]


def step(
    monitor: StepMonitor, clock: int, pieces: list[list[torch.Tensor]], *, loss: float | None = 1.0, rate: float = 0.1
) -> bool:
    finite = all([monitor.measure(parts) for parts in pieces])  # noqa: C419 (every piece is to be measured)
    monitor.step(StepProgress(clock, 4, None, loss, 0.0), rate=rate)
    return finite


@pytest.mark.parametrize("cut", PIECES.values(), ids=PIECES.keys())
def test_ordinary_gradients_are_left_as_they_are_and_a_spike_is_scaled_down(cut: Cut) -> None:
    monitor = monitor_of()
    for clock, gradient in enumerate(gradients(100), start=1):
        before = gradient.clone()
        assert step(monitor, clock, cut(gradient))
        assert torch.equal(gradient, before)
    assert monitor.clipped is None
    (spike,) = gradients(1)
    unspoilt = spike.clone()
    spike *= 50
    assert step(monitor, 101, cut(spike))
    torch.testing.assert_close(spike, unspoilt / 4, rtol=0.1, atol=0.05)  # the usual norm is not this one's
    assert monitor.take(101, learning_rate=0.1).num_clipped == 1
    assert monitor.take(102, learning_rate=0.1).num_clipped == 0
    assert "in 1 steps, first in step 101" in str(monitor.clipped)


def worded(value: Any) -> Any:
    """A value as checkpoints had it in which every list and table carried its type's name."""
    if isinstance(value, list | tuple):
        return ["tuple" if isinstance(value, tuple) else "list", *map(worded, value)]
    if isinstance(value, dict) and all(isinstance(key, tuple) for key in value):
        return {"kind of part": "table", "items": [[worded(key), worded(one)] for key, one in value.items()]}
    if isinstance(value, dict):
        last = {"_last": {"kind of part": "deque", "items": value["_last"], "most": 5}}
        return {"kind of part": "SpikeDetector", "values": {name: worded(one) for name, one in value.items()} | last}
    return value


@pytest.mark.parametrize("written", [lambda own: own, lambda own: {name: worded(one) for name, one in own.items()}])
def test_another_monitor_goes_on_from_a_checkpoint_of_this_version_and_of_the_one_before(
    written: Callable[[dict[str, Any]], dict[str, Any]],
):
    first, second = monitor_of(), monitor_of()
    *usual, spike = gradients(70)
    for clock, gradient in enumerate(usual, start=1):
        step(first, clock, [[gradient[:300]], [gradient[300:]]])
    second.take_own(written(first.own()))
    assert repr(second.own()) == repr(first.own())
    for monitor in (first, second):
        step(monitor, 70, [[50 * spike[:300]], [50 * spike[300:]]])
    one, other = (monitor.take(70, learning_rate=0.1) for monitor in (first, second))
    assert (one.num_clipped, one.gradients, one.samples) == (other.num_clipped, other.gradients, other.samples)
    assert one.num_clipped == 1


def test_what_no_monitor_has_written_is_refused_with_its_place():
    own = monitor_of().own()
    with pytest.raises(DataError, match=r"Expected `float`, got `str` - at `\$._factor`"):
        monitor_of().take_own({**own, "_factor": "half"})


def test_sparse_gradients_are_judged_scaled_down_and_found_not_finite_as_dense_ones_are():
    plain, mixed = monitor_of(), monitor_of()
    for clock, gradient in enumerate([*gradients(100), 50 * gradients(1)[0]], start=1):
        layer, table = gradient[:400].clone(), gradient[400:].view(60, 10)
        rows = sparse_of(table)
        assert step(plain, clock, [[gradient]])
        assert step(mixed, clock, [[layer, rows]])
        torch.testing.assert_close(layer, gradient[:400])
        torch.testing.assert_close(rows.to_dense(), table)
    seen = [monitor.take(101, learning_rate=0.1) for monitor in (plain, mixed)]
    assert [review.num_clipped for review in seen] == [1, 1]
    norms = [[row[1] for row in review.gradients] for review in seen]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    table[3, 3] = torch.inf
    assert not step(mixed, 102, [[layer, sparse_of(table)]])


def test_while_the_loss_is_extraordinary_the_gradient_counts_as_if_it_were():
    monitor = monitor_of()
    steps = gradients(104)
    for clock, gradient in enumerate(steps[:100], start=1):
        step(monitor, clock, [[gradient]])
    clipped = []
    for clock, (gradient, loss) in enumerate(zip(steps[100:], [9.0, 9.0, 1.0, 1.0], strict=True), start=101):
        before = gradient.norm()
        step(monitor, clock, [[gradient]], loss=loss)
        clipped.append(bool(gradient.norm() < before))
    assert clipped == [False, True, True, False]


def test_a_review_has_the_sketch_of_the_parameters_and_the_rates_of_its_steps():
    generator = torch.Generator().manual_seed(5)
    before = [torch.randn(300, generator=generator, requires_grad=True), torch.randn(7, 10, generator=generator)]
    way = [0.01 * torch.randn(part.shape, generator=generator) for part in before]
    after = [part.detach() + more for part, more in zip(before, way, strict=True)]
    before[1], after[1] = before[1].double(), after[1].double()
    unspoilt = [part.clone() for part in after]
    monitor = monitor_of()
    reviews = []
    for clock, parameters in enumerate((before, after), start=1):
        step(monitor, clock, [gradients(1)], rate=0.3 * clock)
        monitor.forget()  # a change between two reviews is part of the way
        reviews.append(monitor.take(clock, learning_rate=0.1, parameters=parameters))
    assert [review.summed_rate for review in reviews] == [0.3, 0.6]
    assert [len(review.gradients) for review in reviews] == [1, 1]
    sketched = np.array(reviews[1].position) - np.array(reviews[0].position)
    assert all(map(torch.equal, after, unspoilt))
    np.testing.assert_allclose(sketched, sketch_of([torch.cat([part.flatten() for part in way])])[1:], atol=1e-5)
    assert monitor_of(guard=False).take(1, learning_rate=0.1, parameters=before).position == ()


def test_without_a_guard_nothing_is_scaled_down():
    monitor = monitor_of(guard=False)
    for clock, gradient in enumerate(gradients(101), start=1):
        spoilt = gradient * (1000 if clock == 101 else 1)
        before = spoilt.clone()
        step(monitor, clock, [[spoilt]])
        assert torch.equal(spoilt, before)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_said_and_left_to_be_refused(value: float):
    monitor = monitor_of()
    assert step(monitor, 1, [[torch.ones(4), torch.ones(2)]])
    assert not step(monitor, 2, [[torch.ones(4), torch.tensor([1.0, value])]])
    assert not step(monitor, 3, [[torch.tensor([1.0, value])]])
    assert step(monitor, 4, [[]])


@pytest.mark.parametrize("loss", [1.0, math.nan, None])
def test_a_step_whose_gradient_is_not_finite_is_reported_once_whatever_its_loss(loss: float | None):
    monitor = monitor_of()
    ok, broken = [torch.ones(4)], [torch.tensor([1.0, math.nan])]
    step(monitor, 1, [ok, ok])
    step(monitor, 2, [broken, broken, ok], loss=loss)
    step(monitor, 3, [ok])
    review = monitor.take(3, learning_rate=0.1)
    assert (review.num_refused, review.loss) == (1, 1.0)
    step(monitor, 4, [ok])
    assert monitor.take(4, learning_rate=0.1).num_refused == 0


@pytest.mark.parametrize(("loss", "num_refused"), [(1.0, 0), (None, 0), (math.nan, 1)])
def test_an_overflow_of_a_scaled_loss_is_no_refused_step_unless_the_loss_is_not_finite(
    loss: float | None, num_refused: int
):
    monitor = monitor_of(scales_loss=True)
    assert not step(monitor, 1, [[torch.tensor([1.0, math.inf])]], loss=loss)
    assert monitor.take(1, learning_rate=0.1).num_refused == num_refused


def test_a_review_without_a_finite_loss_says_that_it_is_infinite_and_one_without_a_loss_that_it_is_unknown():
    monitor = monitor_of()
    for clock, loss in enumerate([math.nan, math.inf], start=1):
        step(monitor, clock, [[torch.ones(4)]], loss=loss)
    review = monitor.take(2, learning_rate=0.1)
    assert (review.num_refused, review.loss) == (2, math.inf)
    step(monitor, 3, [[torch.ones(4)]], loss=None)
    assert math.isnan(monitor.take(3, learning_rate=0.1).loss)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_floating_dtype_and_sparse_gradients_are_measured(dtype: torch.dtype):
    monitor = monitor_of()
    sparse = torch.sparse_coo_tensor([[1, 1]], [3.0, 4.0], (4,), dtype=torch.float32, check_invariants=True)
    dense = torch.full((2,), 300.0, dtype=dtype)  # its square is beyond float16
    assert step(monitor, 1, [[dense, sparse]])
    review = monitor.take(1, learning_rate=0.1)
    assert review.gradients[0][1] == pytest.approx(2 * 300.0**2 + 49.0)


def test_gradients_of_a_scaled_loss_are_noted_down_without_the_scale():
    monitor, scaled = (monitor_of() for _ in range(2))
    for number, gradient in enumerate(gradients(140, size=64), start=1):
        part = gradient if number < 140 else gradient * 1000
        scale = 2.0 ** (number % 30)
        large = part * scale
        assert monitor.measure([part])
        assert scaled.measure([large], scale=scale)
        torch.testing.assert_close(large / scale, part)  # the last is scaled down by as much
        for one in (monitor, scaled):
            one.step(StepProgress(clock=number, samples=4, global_samples=None, loss=None, at_s=0.0))
    reviews = [one.take(140, learning_rate=0.1) for one in (monitor, scaled)]
    np.testing.assert_allclose(reviews[1].gradients, reviews[0].gradients, rtol=1e-4)
    assert reviews[1].num_clipped == reviews[0].num_clipped == 1


def test_what_a_change_took_is_no_steps_time():
    timeline = make_timeline()
    monitor = monitor_of(guard=False, timeline=timeline)
    timeline.blocked(0.0, 0.1, clock=1)
    step(monitor, 1, [])
    timeline.blocked(0.1, 0.7, clock=1)
    monitor.forget()
    timeline.blocked(0.7, 0.9, clock=2)
    step(monitor, 2, [])
    assert monitor.take(2, learning_rate=0.1).blocked_s == pytest.approx((0.2,))


def test_on_the_store_progress_is_what_it_would_be_if_all_trained_alike() -> None:
    monitor = monitor_of(total_samples=200)
    monitor.step(StepProgress(1, 4, 40, None, 0.0))
    for clock in range(2, 7):
        monitor.step(StepProgress(clock, 4, None, None, 0.0))
    review = monitor.take(6, learning_rate=0.1, momentum=0.0, normalises=False, parameters=[])
    assert review.progress == (40 + 5 * 4 * 4) / 200
