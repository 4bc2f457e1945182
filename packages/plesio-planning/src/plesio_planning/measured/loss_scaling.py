"""Casts of real gradients to 16 bits, beside `plesio_planning.studies.loss_scaling`.

Predicted are the shares of some steps' gradients of ``digits`` that FP16 makes infinite and zero, by scale. All that
the model knows of a step is the mean and the standard deviation of ``log|g|`` one step before, with another batch;
they make a lognormal distribution; the baseline is a normal one with the standard deviation of ``g`` there. Numbers
that are exactly zero in 32 bits as well are left out. And a dynamic scale is really run, with a short growth interval.
"""

import statistics
import time
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from plesio.core.charts import Axis, LineChart, Series
from plesio.core.units import format_percent
from plesio.core.within import Within
from plesio.tasks.load import load_task
from plesio.tasks.task import take_batch
from plesio_planning.measured.real_gradients import flat_gradient, set_gradient, training_gradients
from plesio_planning.measured.twin import Twin
from plesio_planning.studies.half_precision_descent import LARGEST, SMALLEST, LossScale
from plesio_planning.studies.measured import Measured
from plesio_planning.studies.models.loss_scaling import Range

FOUND = ("distribution", "standard_deviation", "log_mean", "log_deviation", "num_elements")

STEPS = (1, 20, 100, 200, 400, 600)
ZERO_POWERS = (-12, -8, -4, 0, 4)
INFINITE_POWERS = (16, 18, 20, 22, 24, 26)
INTERVAL = 20
INITIAL_SCALE = 2.0**20
RUN_STEPS = 400


def measure(
    twin: Twin,
    steps: Sequence[int] = STEPS,
    /,
    *,
    initial_scale: Annotated[float, Within(1, 2.0**40)] = INITIAL_SCALE,
    growth_interval: Annotated[int, Within(5, 100)] = INTERVAL,
    num_steps: Annotated[int, Within(100, 2000)] = RUN_STEPS,
) -> Measured:
    """Measure on gradients of a training, and run a dynamic scale; takes about ten seconds."""
    twin.say(f"gradients of digits up to step {max(steps)}")
    # a scale is chosen before its step, so the fit must not see it
    before = [step - 1 for step in steps]
    gradients = dict(zip(sorted({*before, *steps}), training_gradients({*before, *steps}), strict=True))
    model, baseline = zip(*(_fitted(gradients[step]) for step in before), strict=True)
    later = torch.cat([gradients[step] for step in steps])
    # exact zeros underflow at no scale
    later = later[later != 0].double()
    for what, powers in (("zero", ZERO_POWERS), ("infinite", INFINITE_POWERS)):
        for power in powers:
            twin.predict(
                f"{what} in FP16",
                {"scale": f"2^{power}"},
                predicted=_modelled(model, power, what),
                measured=_measured(later, power, what),
                baseline=_modelled(baseline, power, what),
                scale="points",
            )
    casts = list(twin.predictions)
    twin.say(f"{num_steps} steps with a dynamic scale")
    skipped, check_share = _dynamic_run(num_steps, scale=LossScale(initial_scale, growth_interval=growth_interval))
    # a dynamic scale overflows once after each interval
    expected = 1 / (growth_interval + 1)
    twin.predict(
        "steps skipped",
        {"growth interval": growth_interval},
        predicted=expected,
        measured=skipped,
        baseline=0.0,
        scale="points",
    )
    worst = max(abs(one.error) for one in casts)
    normal_worst = max(abs(one.baseline_error) for one in casts)
    return twin.measured(
        "loss-scaling",
        finding=f"A lognormal distribution is off by {worst:.1f} points at most, a normal one by {normal_worst:.1f}; a "
        f"dynamic scale skips {format_percent(skipped)} of the steps, with {format_percent(expected)} predicted.",
        setting=f"Gradients of digits, cast at steps {', '.join(map(str, steps))} ({len(later):,} numbers that are not "
        "zero), each fitted one step before. Casting, looking for infinities and dividing by the scale took "
        f"{format_percent(check_share)} of a step of one thread (median).",
        charts=[_chart(later, model=model, baseline=baseline)],
    )


def _fitted(gradient: Tensor) -> tuple[Range, Range]:
    sizes = gradient[gradient != 0].double().abs()
    logarithms = sizes.log()
    return (
        Range(name="lognormal", log_mean=float(logarithms.mean()), deviation=float(logarithms.std())),
        Range(name="normal", log_mean=None, deviation=float(gradient.double().square().mean().sqrt())),
    )


def _measured(gradient: Tensor, power: int, what: str) -> float:
    cast = (gradient * 2.0**power).to(torch.float16)
    return float((cast == 0 if what == "zero" else cast.isinf()).double().mean())


def _modelled(steps: Sequence[Range], power: int, what: str) -> float:
    """Return the modelled share, as a mean over some steps."""
    if what == "zero":
        return statistics.fmean(1 - sizes.share_above(SMALLEST / 2.0**power) for sizes in steps)
    return statistics.fmean(sizes.share_above(LARGEST / 2.0**power) for sizes in steps)


def _dynamic_run(num_steps: int, *, scale: LossScale) -> tuple[float, float]:
    """Train with gradients in FP16: the share of the steps that is skipped once the first was, and what checking costs.

    The latter is a share of the whole step.
    """
    task = load_task("digits")
    model, optimizer = task.build(0)
    samples = task.train_set()
    generator = torch.Generator().manual_seed(1)
    skips: list[int] = []
    shares = []
    for step in range(num_steps):
        begun_s = time.perf_counter()
        chosen = torch.randint(len(samples), (task.batch_size,), generator=generator)  # type: ignore[arg-type]
        task.loss(model, take_batch(samples, chosen.tolist())).backward()  # type: ignore[no-untyped-call]
        checked_s = time.perf_counter()
        cast = (flat_gradient(model) * scale.value).to(torch.float16)
        found_inf = not bool(cast.isfinite().all())
        unscaled = cast.float() / scale.value
        check_s = time.perf_counter() - checked_s
        if found_inf:
            skips.append(step)
        else:
            set_gradient(model, unscaled)
            optimizer.step()
        optimizer.zero_grad()
        scale.update(found_inf=found_inf)
        shares.append(check_s / (time.perf_counter() - begun_s))
    steady = (len(skips) - 1) / (skips[-1] - skips[0]) if len(skips) > 1 else 0.0
    return steady, statistics.median(shares)


def _chart(gradient: Tensor, *, model: Sequence[Range], baseline: Sequence[Range]) -> LineChart:
    powers = list(range(-16, 31))
    series = []
    for what in ("zero", "infinite"):
        modelled, plain = ([100 * _modelled(one, power, what) for power in powers] for one in (model, baseline))
        measured = [100 * _measured(gradient, power, what) for power in powers[::2]]
        series += [
            Series(name=f"{what}, lognormal", group=what, x=powers, y=modelled),
            Series(name=f"{what}, normal", group=what, x=powers, y=plain, style="dashed"),
            Series(name=f"{what}, measured", group=what, x=powers[::2], y=measured, style="points"),
        ]
    lost = [max(_measured(gradient, power, "zero"), _measured(gradient, power, "infinite")) for power in powers]
    best = powers[min(range(len(powers)), key=lambda place: lost[place])]
    return LineChart(
        slug="measured",
        title=f"Fewest of the gradients of digits are lost at 2^{best}",
        caption="Share of the gradients that FP16 makes infinite or zero, by scale.",
        x=Axis(title="scale (power of 2)"),
        y=Axis(title="gradients (%)"),
        series=series,
    )
