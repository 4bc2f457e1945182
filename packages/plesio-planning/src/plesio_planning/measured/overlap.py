"""A perceptron trained with DistributedDataParallel in buckets of several sizes, beside `studies.overlap`.

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
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from plesio.core.charts import Axis, Series
from plesio.core.units import format_bandwidth, format_bytes, format_seconds
from plesio.core.within import Within
from plesio.cost.buckets import Layers, buckets_of_bytes, ddp_buckets
from plesio.cost.collectives import ring_all_reduce_s
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio_planning.measured.ranks import Times, ranks_on_hosts, timed
from plesio_planning.measured.twin import Twin, beside, fit_text
from plesio_planning.studies.measured import Measured

FOUND = ("latency_s",)

NUM_RANKS = 2
BYTES_PER_S = 25e6
WIDTH = 256
LAYER_MIB = 4 * WIDTH * WIDTH / 2**20
BATCH = 32
PAUSE_S = 0.01
"""Length of each layer's backward pass."""
NUM_LAYERS = 24
CAPS_MIB = (0.25, 0.5, 1, 2, 3)
"""Limits of a bucket; one more holds all layers."""
FITTED_BYTES = (100_000, 700_000, 4_000_000)
REPEATS = 9
WARM_UP = 3
"""DistributedDataParallel fills its buckets anew after the first step."""
_MIB = 2**20
DEFAULT = "PyTorch's default"


def measure(
    twin: Twin,
    caps_mib: Sequence[float] = CAPS_MIB,
    fitted_bytes: Sequence[int] = FITTED_BYTES,
    repeats: int = REPEATS,
    /,
    *,
    num_layers: Annotated[int, Within(6, 48)] = NUM_LAYERS,
    backward_s: Annotated[float, Within(0.02, 2)] = NUM_LAYERS * PAUSE_S,
    num_workers: Annotated[int, Within(2, 4)] = NUM_RANKS,
    bytes_per_s: Annotated[float, Within(5e6, 1e8)] = BYTES_PER_S,
) -> Measured:
    """Measure 24 layers of 0.25 MiB over a link of 25 MB/s; takes about half a minute.

    Raises:
        ConfigError: This machine has no network namespaces for us.
    """
    # one bucket for all is the case without overlap
    whole_mib = num_layers * LAYER_MIB
    caps = {f"{mib:g} MiB": mib for mib in (*(mib for mib in caps_mib if mib < whole_mib), whole_mib)}
    shape = {"num_layers": num_layers, "pause_s": backward_s / num_layers, "repeats": repeats}
    medians_s: dict[str, float] = {}
    with ranks_on_hosts(num_workers, bytes_per_s=bytes_per_s) as ranks:
        links = twin.links(ranks, fitted_bytes, num_ranks=num_workers, repeats=repeats)
        twin.say("the layers")
        layers = _layers(ranks.run(ready_times, **shape))
        for name, cap_mib in {**caps, DEFAULT: None}.items():
            twin.say(f"buckets of {name}")
            medians_s[name] = twin.median(ranks.times_s(step_times, cap_mib=cap_mib, **shape))
    all_reduce_s = partial(ring_all_reduce_s, num_ranks=num_workers, link=links.link)
    modelled_s = {name: buckets_of_bytes(layers, cap * _MIB, all_reduce_s).end_s for name, cap in caps.items()}
    # DDP's own limits make a small first bucket
    modelled_s[DEFAULT] = ddp_buckets(layers, all_reduce_s).end_s
    whole, whole_s = list(caps)[-1], modelled_s[list(caps)[-1]]
    for name, end_s in modelled_s.items():
        twin.predict(
            "until added up (s)", {"buckets": name}, predicted=end_s, measured=medians_s[name], baseline=whole_s
        )
    best, fastest = min(caps, key=modelled_s.__getitem__), min(caps, key=medians_s.__getitem__)
    mib = list(caps.values())
    return twin.measured(
        "overlap",
        finding=f"The model is off by {twin.off():.1f} % (median). It has buckets of {best} for the fastest; "
        f"measured, {fastest} are, at {format_seconds(medians_s[fastest])}, and the model's choice takes "
        f"{format_seconds(medians_s[best])}; one bucket takes {format_seconds(medians_s[whole])}.",
        setting=f"{num_workers} ranks of one thread on hosts of their own, a link of {format_bandwidth(bytes_per_s)}; "
        f"{num_layers} layers of {LAYER_MIB:g} MiB, paced to {format_seconds(layers.backward_s / num_layers)}; medians "
        f"of {repeats}. Fitted to all-reduces of {', '.join(map(format_bytes, fitted_bytes))}: {fit_text(links)}. "
        f"Steps vary by {twin.spread:.0f} %. The baseline is no overlap at all.",
        rivals="buckets",
        charts=[
            beside(
                {"": (mib, [1e3 * modelled_s[name] for name in caps], [1e3 * medians_s[name] for name in caps])},
                title=f"Measured, buckets of {fastest} are the fastest; modelled, of {best}",
                caption="Time from the backward pass's begin until all gradients are added up, by bucket_cap_mb.",
                x=Axis(title="limit of a bucket (MiB)"),
                y=Axis(title="time (ms)"),
                more=[Series(name="no overlap", x=mib, y=[1e3 * whole_s] * len(mib), style="dashed")],
            )
        ],
    )


def _layers(answers: Sequence[Sequence[Sequence[float]]]) -> Layers:
    """Return the layers as the later of both ranks has them; medians over the steps."""
    ready_s = [
        max(statistics.median(each) for each in of_ranks)
        for of_ranks in zip(*(zip(*answer, strict=True) for answer in answers), strict=True)
    ]
    seconds = (after - before for before, after in zip([0.0, *ready_s], ready_s, strict=False))
    return Layers(seconds=tuple(seconds), bytes=(4.0 * WIDTH * WIDTH,) * len(ready_s))


def ready_times(group: TorchGroup, *, num_layers: int, pause_s: float, repeats: int) -> list[list[float]]:
    """Return the seconds on a rank from the backward pass's begin to each gradient, the last layer first, by step."""
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


def step_times(group: TorchGroup, *, cap_mib: float | None, num_layers: int, pause_s: float, repeats: int) -> Times:
    """Return when backward passes begin and end on a rank; they end when all gradients are added up."""
    inputs = torch.randn(BATCH, WIDTH)
    model = DistributedDataParallel(
        _model(num_layers, pause_s=pause_s), process_group=group.process_group, bucket_cap_mb=cap_mib
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
