"""The library's own codecs on gradients of the task ``digits``, beside `plesio_planning.studies.compression`.

Bytes are predicted in closed form, places and scales counted; the baseline counts the numbers alone. The loss of a
codec, ``‖C(g) - g‖²/‖g‖²``, follows from how the gradient's magnitudes are distributed. They are taken to be a Weibull
distribution, whose shape is fitted to the share of ``‖g‖²`` that the largest twentieth has at the first of the steps,
and to nothing else. Normal numbers are the baseline. Then

- the largest share ρ has ``Q(1 + 2/c, ln 1/ρ)`` of it, with the shape c and the upper incomplete gamma function Q, so
  top-k loses the rest;
- random-k loses ``1 - ρ``, whatever the gradient;
- QSGD and rounding to 16 bits lose what they lose of numbers drawn from the distribution. The draws are independent:
  that a bucket's numbers are of one layer, and so more alike than all of them, is not in the model.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from plesio.core.charts import Axis, LineChart, Series
from plesio.core.within import Within
from plesio.policies.compression import Compression, Qsgd, RandomK, TopK, parse_compression
from plesio.runtime.parameters.codecs import make_codec
from plesio_planning.measured.real_gradients import training_gradients
from plesio_planning.measured.twin import Twin, median_off
from plesio_planning.studies.measured import Measured

FOUND = ()
SPECS = ("topk:0.5", "topk:0.1", "topk:0.01", "topk:0.001", "randk:0.1", "qsgd:4", "qsgd:8", "fp16", "bf16")
STEPS = (0, 10, 30, 100, 200, 400, 600)
PAYLOAD, ERROR = "payload (B)", "relative error"
_FITTED_SHARE = 0.05


def measure(
    twin: Twin, steps: Sequence[int] = STEPS, /, *, schemes: Annotated[tuple[str, ...], Within(most=20)] = SPECS
) -> Measured:
    """Measure at seven steps of a training; takes a few seconds.

    A step length or a feedback after a compression changes nothing here.

    Raises:
        ConfigError: A compression that policies do not have.
    """
    plain = (text.partition("@")[0].removesuffix("+no_feedback") for text in schemes)
    twin.say(f"gradients of digits up to step {max(steps)}")
    gradients = training_gradients(steps)
    number = len(gradients[0])
    # fitted to one gradient, and compared with all
    shape = weibull_shape(measured_share(gradients[0], _FITTED_SHARE), share=_FITTED_SHARE)
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], number)
    # stand-ins for codecs whose loss has no closed form
    drawn = torch.from_numpy((signs * rng.weibull(shape, number)).astype(np.float32))
    normal = torch.from_numpy(rng.standard_normal(number).astype(np.float32))
    for spec in dict.fromkeys(text for text in plain if text != "none"):
        twin.say(spec)
        stage = parse_compression(spec)
        payloads, losses = zip(*(_compressed(stage, gradient) for gradient in gradients), strict=True)
        # a payload's size does not depend on the numbers
        (num_bytes,) = set(payloads)
        twin.predict(
            PAYLOAD,
            {"compression": spec},
            predicted=-(-stage.payload_bits(number) // 8),
            measured=num_bytes,
            baseline=_bytes_of_numbers(stage, number),
        )
        twin.predict(
            ERROR,
            {"compression": spec},
            predicted=_modelled_error(stage, shape=shape, drawn=drawn),
            measured=statistics.median(losses),
            baseline=_normal_error(stage, normal=normal),
        )
    exact = all(one.error == 0 for one in twin.rows(PAYLOAD))
    return twin.measured(
        "compression",
        finding=f"Bytes are {'exactly' if exact else 'not'} those of the closed forms; what is lost is off by "
        f"{twin.off(ERROR):.0f} % (median), and by {median_off(twin.rows(ERROR), baseline=True):.0f} % for normal "
        "numbers.",
        setting=f"{number:,} numbers of the gradient of digits at steps {', '.join(map(str, steps))}; errors are "
        f"medians over them. The Weibull shape is {shape:.2f}, fitted at step {steps[0]}.",
        charts=[_chart(gradients, shape=shape, steps=steps)],
    )


def measured_share(gradient: Tensor, share: float) -> float:
    """Return the part of ``‖g‖²`` that the largest ``share`` of the numbers has."""
    squares = gradient.double().square().sort(descending=True).values
    return float(squares[: math.ceil(share * len(squares))].sum() / squares.sum())


def kept_share(shape: float, *, share: float) -> float:
    """Return the same of a Weibull distribution: ``Q(1 + 2/c, ln 1/ρ)``.

    >>> round(kept_share(1.0, share=0.1), 3)  # exponential: ρ (1 + ln(1/ρ) + ln²(1/ρ)/2)
    0.595
    """
    from scipy.special import gammaincc

    return float(gammaincc(1 + 2 / shape, math.log(1 / share)))


def weibull_shape(kept: float, *, share: float) -> float:
    """Return the shape whose largest ``share`` has so much of the squares.

    >>> round(weibull_shape(kept_share(0.7, share=0.05), share=0.05), 3)
    0.7
    """
    from scipy.optimize import brentq

    return float(brentq(lambda shape: kept_share(shape, share=share) - kept, 0.1, 20.0))


def _compressed(stage: Compression, gradient: Tensor) -> tuple[int, float]:
    """Return the bytes of the payload, and the share of ``‖g‖²`` that is lost."""
    codec = make_codec(stage, num_elements=len(gradient), seed=0, rank=0)
    payload = codec.encode(gradient, clock=0)
    lost = (codec.decode(payload, clock=0) - gradient).double().square().sum()
    return payload.numel() * payload.element_size(), float(lost / gradient.double().square().sum())


def _bytes_of_numbers(stage: Compression, number: int) -> float:
    """Return the bytes of the numbers, without places and scales."""
    if isinstance(stage, (TopK, RandomK)):
        return 4 * stage.num_kept(number)
    return stage.bits * number / 8 if isinstance(stage, Qsgd) else 2 * number


def _modelled_error(stage: Compression, *, shape: float, drawn: Tensor) -> float:
    if isinstance(stage, TopK):
        return 1 - kept_share(shape, share=stage.density)
    return _error_of_any(stage, drawn)


def _normal_error(stage: Compression, *, normal: Tensor) -> float:
    if isinstance(stage, TopK):
        quantile = statistics.NormalDist().inv_cdf(1 - stage.density / 2)
        return 1 - stage.density - 2 * quantile * statistics.NormalDist().pdf(quantile)
    return _error_of_any(stage, normal)


def _error_of_any(stage: Compression, numbers: Tensor) -> float:
    return 1 - stage.density if isinstance(stage, RandomK) else _compressed(stage, numbers)[1]


def _chart(gradients: Sequence[Tensor], *, shape: float, steps: Sequence[int]) -> LineChart:
    shares = [10 ** (power / 8) for power in range(-24, 0)]
    series = [Series(name="modelled", x=shares, y=[kept_share(shape, share=share) for share in shares])]
    for place in sorted({0, len(steps) // 2, len(steps) - 1}):
        kept = [measured_share(gradients[place], share) for share in shares]
        series.append(Series(name=f"measured, step {steps[place]}", x=shares, y=kept, style="points"))
    tenth = measured_share(gradients[-1], 0.1)
    return LineChart(
        slug="measured",
        title=f"The largest tenth has {100 * tenth:.0f} % of the squares at step {steps[-1]}",
        caption="Share of ‖g‖² by the share of the numbers that is sent, the largest first.",
        x=Axis(title="share sent", log=True),
        y=Axis(title="share of ‖g‖²"),
        series=series,
    )
