"""A perceptron trained with DistributedDataParallel in buckets of several sizes, beside `planning.studies.overlap`.

Two ranks on hosts of their own, with a slow link between them, so that communication is waiting and not computing. The
layers are paced for the same reason: each computes its real gradient and sleeps before that, as a host does whose
accelerator computes. Otherwise ranks and communication would want the same cores, and there would be nothing to hide
behind, which the model says of itself.

Layers' times are measured without communication, by hooks that fire when a gradient is there; latency and bandwidth are
fitted to all-reduces of other sizes than any bucket has.

Gloo works on two all-reduces at a time, where the model has one; they share the link, so the last one ends when the
model's would, but for a latency.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from plesio.core.charts import Axis, LineChart, Series
from plesio.core.predictions import Prediction
from plesio.core.units import format_bandwidth, format_bytes, format_seconds
from plesio.core.within import Within
from plesio.cost.collectives import ring_all_reduce_s
from plesio.cost.fit import AlphaBeta
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio_planning.measured.collectives import all_reduce_times
from plesio_planning.measured.ranks import Ranks, fitted_links, ranks_on_hosts, slowest_s, timed
from plesio_planning.studies.buckets import Buckets, Layers, buckets_of_bytes, ddp_buckets
from plesio_planning.studies.measured import Measured

__all__ = ["FOUND", "measure", "measure_overlap"]

FOUND = ("latency_s",)

NUM_RANKS = 2
BYTES_PER_S = 25e6
WIDTH = 256
LAYER_MIB = 4 * WIDTH * WIDTH / 2**20
BATCH = 32
PAUSE_S = 0.01
"""Length of each layer's backward pass."""
NUM_LAYERS = 24
CAPS_MIB = (0.25, 0.5, 1, 2, 3, 6)
FITTED_BYTES = (100_000, 700_000, 4_000_000)
REPEATS = 9
WARM_UP = 3
"""DistributedDataParallel fills its buckets anew after the first step."""
_MIB = 2**20
DEFAULT = "PyTorch's default"


def measure(
    on_step: Callable[[str], None],
    /,
    *,
    num_layers: Annotated[int, Within(6, 48)] = NUM_LAYERS,
    backward_s: Annotated[float, Within(0.02, 2)] = NUM_LAYERS * PAUSE_S,
    num_workers: Annotated[int, Within(2, 4)] = NUM_RANKS,
    bytes_per_s: Annotated[float, Within(5e6, 1e8)] = BYTES_PER_S,
) -> Measured:
    """Measure 24 layers of 0.25 MiB over a link of 25 MB/s; takes about half a minute.

    Args:
        on_step: Is told what is being measured.
        num_layers: Layers, each of 0.25 MiB.
        backward_s: What their backward pass takes.
        num_workers: Ranks.
        bytes_per_s: Bandwidth that links are set to.

    Raises:
        ConfigError: This machine has no network namespaces for us.
    """
    whole_mib = num_layers * LAYER_MIB
    return measure_overlap(
        on_step=on_step,
        caps_mib=(*(cap for cap in CAPS_MIB[:-1] if cap < whole_mib), whole_mib),
        pause_s=backward_s / num_layers,
        num_ranks=num_workers,
        bytes_per_s=bytes_per_s,
    )


def measure_overlap(
    *,
    on_step: Callable[[str], None],
    caps_mib: Sequence[float] = CAPS_MIB,
    pause_s: float = PAUSE_S,
    fitted_bytes: tuple[int, ...] = FITTED_BYTES,
    repeats: int = REPEATS,
    num_ranks: int = NUM_RANKS,
    bytes_per_s: float = BYTES_PER_S,
) -> Measured:
    """Measure and compare.

    Args:
        on_step: Is told what is being measured.
        caps_mib: Limits of a bucket; the last one holds all layers, which are of 0.25 MiB each.
        pause_s: That each layer sleeps in the backward pass.
        fitted_bytes: Sizes that latency and bandwidth are fitted to; three or more.
        repeats: Repetitions of each size of a bucket.
        num_ranks: Ranks.
        bytes_per_s: Bandwidth that links are set to.

    Raises:
        ConfigError: This machine has no network namespaces for us.
    """
    caps, num_layers = {f"{mib:g} MiB": mib for mib in caps_mib}, round(caps_mib[-1] / LAYER_MIB)
    shape = {"num_layers": num_layers, "pause_s": pause_s, "repeats": repeats}
    measured_s: dict[str, list[float]] = {}
    with ranks_on_hosts(num_ranks, bytes_per_s=bytes_per_s) as ranks:
        links = _links(ranks, num_ranks=num_ranks, fitted_bytes=fitted_bytes, repeats=repeats, on_step=on_step)
        on_step("the layers")
        layers = _layers(ranks.run(ready_times, **shape))
        for name, cap_mib in {**caps, DEFAULT: None}.items():
            on_step(f"buckets of {name}")
            measured_s[name] = slowest_s(ranks.run(step_times, cap_mib=cap_mib, **shape))
    all_reduce_s = partial(ring_all_reduce_s, num_ranks=num_ranks, link=links.link)
    modelled = {name: buckets_of_bytes(layers, cap_mib * _MIB, all_reduce_s) for name, cap_mib in caps.items()}
    modelled[DEFAULT] = ddp_buckets(layers, all_reduce_s)
    return _compared(
        modelled,
        measured_s,
        setting=f"{num_ranks} ranks of one thread on hosts of their own, a link of {format_bandwidth(bytes_per_s)}; "
        f"{num_layers} layers of {LAYER_MIB:g} MiB, paced to {format_seconds(layers.backward_s / num_layers)}; medians "
        f"of {repeats}. Fitted to all-reduces of {', '.join(map(format_bytes, fitted_bytes))}: "
        f"{format_seconds(links.latency_s)}, {format_bandwidth(links.bytes_per_s)}.",
    )


def _links(
    ranks: Ranks, *, num_ranks: int, fitted_bytes: Sequence[int], repeats: int, on_step: Callable[[str], None]
) -> AlphaBeta:
    def times_s(size: int) -> list[float]:
        on_step(f"an all-reduce of {format_bytes(size)}")
        return slowest_s(ranks.run(all_reduce_times, algorithm="ring", num_bytes=size, repeats=repeats))

    return fitted_links(fitted_bytes, times_s, num_ranks=num_ranks)


def _layers(answers: Sequence[Sequence[Sequence[float]]]) -> Layers:
    """Layers as the later of both ranks has them; medians over the steps."""
    ready_s = [
        max(statistics.median(each) for each in of_ranks)
        for of_ranks in zip(*(zip(*answer, strict=True) for answer in answers), strict=True)
    ]
    seconds = (after - before for before, after in zip([0.0, *ready_s], ready_s, strict=False))
    return Layers(seconds=tuple(seconds), bytes=(4.0 * WIDTH * WIDTH,) * len(ready_s))


def ready_times(group: TorchGroup, *, num_layers: int, pause_s: float, repeats: int) -> list[list[float]]:
    """Seconds on a rank from the backward pass's begin to each gradient, the last layer first, by step."""
    model, inputs = _model(num_layers, pause_s=pause_s), torch.randn(BATCH, WIDTH)
    ready: list[float] = []
    for layer in model:
        assert isinstance(layer, _Paced)
        layer.weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda _: ready.append(time.monotonic())
        )
    steps = []

    def backward(loss: torch.Tensor) -> None:
        begun_s = time.monotonic()
        loss.backward()  # type: ignore[no-untyped-call]
        steps.append([at_s - begun_s for at_s in ready])

    for _ in range(WARM_UP + repeats):
        loss = model(inputs).square().mean()
        ready.clear()
        timed(group, partial(backward, loss), repeats=1, warm_up=0)
    return steps[WARM_UP:]


def step_times(
    group: TorchGroup, *, cap_mib: float | None, num_layers: int, pause_s: float, repeats: int
) -> list[tuple[float, float]]:
    """When backward passes begin and end on a rank; they end when all gradients are added up."""
    inputs = torch.randn(BATCH, WIDTH)
    model = DistributedDataParallel(
        _model(num_layers, pause_s=pause_s),
        process_group=group.process_group,
        bucket_cap_mb=cap_mib,
    )
    times = []
    for _ in range(WARM_UP + repeats):
        loss = model(inputs).square().mean()
        times += timed(group, loss.backward, repeats=1, warm_up=0)
        model.zero_grad(set_to_none=True)
    return times[WARM_UP:]


class _Sleep(torch.autograd.Function):
    """Nothing forward; sleeps backward."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradients[0], None


class _Paced(nn.Linear):
    """A layer whose backward pass begins with a pause."""

    def __init__(self, *, pause_s: float) -> None:
        super().__init__(WIDTH, WIDTH, bias=False)
        self._pause_s = pause_s

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        paused: torch.Tensor = _Sleep.apply(super().forward(input), self._pause_s)  # type: ignore[no-untyped-call]
        return paused.relu()


def _model(num_layers: int, *, pause_s: float) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(_Paced(pause_s=pause_s) for _ in range(num_layers)))


def _compared(modelled: Mapping[str, Buckets], measured_s: Mapping[str, Sequence[float]], *, setting: str) -> Measured:
    medians_s = {name: statistics.median(times) for name, times in measured_s.items()}
    caps = [name for name in modelled if name != DEFAULT]
    whole = modelled[caps[-1]]
    predictions = tuple(
        Prediction(
            setting={"buckets": name},
            quantity="until added up (s)",
            scale="relative",
            predicted=buckets.end_s,
            measured=medians_s[name],
            baseline=whole.end_s,
        )
        for name, buckets in modelled.items()
    )
    error = statistics.median(abs(one.error) for one in predictions)
    best = min(caps, key=lambda name: modelled[name].end_s)
    fastest = min(caps, key=medians_s.__getitem__)
    spread = statistics.median(statistics.stdev(times) / statistics.median(times) for times in measured_s.values())
    mib = [float(name.removesuffix(" MiB")) for name in caps]
    return Measured(
        study="overlap",
        finding=f"The model is off by {100 * error:.1f} % (median). It has buckets of {best} for the fastest; "
        f"measured, {fastest} are, at {format_seconds(medians_s[fastest])}, and the model's choice takes "
        f"{format_seconds(medians_s[best])}; one bucket takes {format_seconds(medians_s[caps[-1]])}.",
        setting=f"{setting} Steps vary by {100 * spread:.0f} %. The baseline is no overlap at all.",
        predictions=predictions,
        rivals="buckets",
        charts=(
            LineChart(
                slug="measured",
                title=f"Measured, buckets of {fastest} are the fastest; modelled, of {best}",
                caption="Time from the backward pass's begin until all gradients are added up, by bucket_cap_mb.",
                x=Axis(title="limit of a bucket (MiB)"),
                y=Axis(title="time (ms)"),
                series=[
                    Series(name="modelled", x=mib, y=[1e3 * modelled[name].end_s for name in caps]),
                    Series(name="measured", x=mib, y=[1e3 * medians_s[name] for name in caps], style="points"),
                    Series(name="no overlap", x=mib, y=[1e3 * whole.end_s] * len(caps), style="dashed"),
                ],
            ),
        ),
    )
