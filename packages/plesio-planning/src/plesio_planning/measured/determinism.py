"""Orders of real gradients and of Gloo's sums, and what being deterministic costs, beside `studies.determinism`.

Each rank has the gradient of its own batch of ``digits``. They are added up in the order of the ranks, in reverse, and
by Gloo's all-reduce (a ring: every part of the tensor has an order of its own). The study's random numbers, of as many
ranks, predict how many elements differ. A sum in a fixed order can be had by gathering all tensors: that sends
``(n-1) S`` a rank where a ring sends ``2(n-1)/n S``, which makes n/2 times as long where bandwidth is what counts. And
torch's deterministic algorithms are timed on a training step, for which the model is that they cost nothing: on a CPU
the operations of this network are deterministic as they are. (With them torch also fills memory before it is used.)
"""

import statistics
import time
from typing import Annotated

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from plesio.core.charts import Axis, LineChart, Series
from plesio.core.predictions import Prediction
from plesio.core.units import format_percent
from plesio.core.within import Within
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.tasks.load import load_task
from plesio.tasks.task import take_batch
from plesio_planning.measured.ranks import Ranks, Times, timed
from plesio_planning.measured.real_gradients import flat_gradient
from plesio_planning.measured.twin import Twin
from plesio_planning.studies.measured import Measured
from plesio_planning.studies.reduction_order import order_effect

FOUND = ()
MOST_RANKS = 4
NUM_ELEMENTS = 1_000_000
REPEATS = 11
STEPS = 60
REVERSE, GLOO = "reverse order", "Gloo's order"
DIFFERING = "elements that differ"


def measure(
    twin: Twin,
    repeats: int = REPEATS,
    /,
    *,
    num_tensors: Annotated[int, Within(2, 6)] = MOST_RANKS,
    num_elements: Annotated[int, Within(1000, 10_000_000)] = NUM_ELEMENTS,
    num_steps: Annotated[int, Within(10, 1000)] = STEPS,
) -> Measured:
    """Measure two to four ranks on loopback; takes about half a minute."""
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal((num_tensors, 100_000)).astype(np.float32)
    repeatable = True
    for count in range(2, num_tensors + 1):
        twin.say(f"sums of {count} ranks")
        modelled = order_effect(drawn[:count]).differing
        with Ranks(count) as ranks:
            found = ranks.run(reductions, repeats=repeats)
            reduced_s, gathered_s = (
                twin.median(ranks.times_s(timed_sums, way=way, num_elements=num_elements, repeats=repeats))
                for way in ("all-reduce", "gathered")
            )
        repeatable &= all(one["repeats_agree"] for one in found) and len({one["sha"] for one in found}) == 1
        for order, measured in ((REVERSE, found[0]["reverse"]), (GLOO, found[0]["gloo"])):
            twin.predict(
                DIFFERING,
                {"ranks": count, "order": order},
                predicted=modelled,
                measured=measured,
                baseline=0.0,
                scale="points",
            )
        twin.predict(
            "time of a sum in a fixed order / all-reduce",
            {"ranks": count},
            predicted=count / 2,
            measured=gathered_s / reduced_s,
            baseline=1.0,
        )
    twin.say("deterministic algorithms")
    usual, strict, same = step_times(num_steps)
    twin.predict(
        "time of a step with deterministic algorithms / without",
        {"ranks": 1},
        predicted=1.0,
        measured=strict / usual,
        baseline=1.0,
    )
    reverse, gloo = (twin.rows(DIFFERING, order=order)[-1] for order in (REVERSE, GLOO))
    return twin.measured(
        "determinism",
        finding=f"Of {num_tensors} ranks' gradients {format_percent(reverse.measured)} of the sums differ in reverse "
        f"order and {format_percent(gloo.measured)} in Gloo's, with {format_percent(reverse.predicted)} predicted; "
        f"repeated, Gloo's sums are {'the same to the bit' if repeatable else 'not the same'}, and two trainings with "
        f"the same seed are {'too' if same and repeatable else 'the same to the bit' if same else 'not'}.",
        setting=f"Gloo on loopback, one thread a rank; gradients of digits. Timed are sums of {num_elements:,} "
        f"numbers, medians of {repeats}, which vary by {format_percent(twin.spread / 100, digits=0)}, and "
        f"{num_steps} steps of a training.",
        charts=[_chart(twin.rows(DIFFERING))],
    )


def gradient_of_rank(rank: int) -> Tensor:
    """Compute the gradient of batch number ``rank`` of the training set, at the first parameters."""
    task = load_task("digits")
    model, _ = task.build(0)
    samples = range(rank * task.batch_size, (rank + 1) * task.batch_size)
    task.loss(model, take_batch(task.train_set(), list(samples))).backward()  # type: ignore[no-untyped-call]
    return flat_gradient(model)


def reductions(group: TorchGroup, *, repeats: int) -> dict[str, object]:
    """How many sums of a rank differ from those in the order of the ranks; whether Gloo's are always the same."""
    own = gradient_of_rank(group.rank)
    sums = []
    for _ in range(repeats):
        total = own.clone()
        group.all_reduce(total).wait()
        sums.append(total)
    gathered = group.all_gather(own).wait()
    forward, reverse = _in_order(gathered), _in_order(gathered[::-1])
    return {
        "reverse": float((forward != reverse).double().mean()),
        "gloo": float((forward != sums[0]).double().mean()),
        "repeats_agree": all(torch.equal(sums[0], other) for other in sums),
        "sha": hash(sums[0].numpy().tobytes()),
    }


def timed_sums(group: TorchGroup, *, way: str, num_elements: int, repeats: int) -> Times:
    """Return when each sum began and ended on a rank; ``way`` is ``all-reduce`` or ``gathered``."""
    own = torch.ones(num_elements)
    parts = [torch.empty_like(own) for _ in range(group.size)]

    def work() -> None:
        if way == "all-reduce":
            group.all_reduce(own).wait()
        else:
            dist.all_gather(parts, own, group=group.process_group)
            _in_order(parts)

    return timed(group, work, repeats=repeats)


def _in_order(tensors: list[Tensor]) -> Tensor:
    total = tensors[0].clone()
    for other in tensors[1:]:
        total += other
    return total


def step_times(steps: int) -> tuple[float, float, bool]:
    """Return seconds of a training step without and with deterministic algorithms, medians of steps taken in turn.

    And whether two trainings with the same seed, one of each kind, end with the same parameters.
    """
    task = load_task("digits")
    samples = task.train_set()
    trainings = [task.build(0), task.build(0)]
    times: tuple[list[float], list[float]] = ([], [])
    before = torch.are_deterministic_algorithms_enabled()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for step in range(steps):
            first = step * task.batch_size % (len(samples) - task.batch_size)  # type: ignore[arg-type]
            batch = take_batch(samples, list(range(first, first + task.batch_size)))
            for strict, (model, optimizer) in enumerate(trainings):
                torch.use_deterministic_algorithms(bool(strict))
                begun_s = time.perf_counter()
                task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
                times[strict].append(time.perf_counter() - begun_s)
    finally:
        torch.use_deterministic_algorithms(before)
        torch.set_num_threads(threads)
    (one, _), (other, _) = trainings
    same = all(torch.equal(left, right) for left, right in zip(one.parameters(), other.parameters(), strict=True))
    return statistics.median(times[0]), statistics.median(times[1]), same


def _chart(of_orders: list[Prediction]) -> LineChart:
    orders = list(dict.fromkeys(one.setting["order"] for one in of_orders))
    ranks = list(dict.fromkeys(int(one.setting["ranks"]) for one in of_orders))
    by_order = {order: [one for one in of_orders if one.setting["order"] == order] for order in orders}
    series = [Series(name="modelled", x=ranks, y=[100 * one.predicted for one in by_order[orders[0]]])]
    series += [
        Series(name=order, x=ranks, y=[100 * one.measured for one in of_it], style="points")
        for order, of_it in by_order.items()
    ]
    return LineChart(
        slug="measured",
        title=f"With {ranks[-1]} ranks {format_percent(of_orders[-1].measured, digits=0)} of Gloo's sums are not those "
        "in the order of the ranks",
        caption="Share of a gradient's sums that differ from those in the order of the ranks.",
        x=Axis(title="ranks"),
        y=Axis(title="sums that differ (%)"),
        series=series,
    )
