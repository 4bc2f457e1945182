"""An MLP whose two matrices are cut over two processes, beside `plesio_planning.studies.tensor_parallel`.

PyTorch's own DTensor cuts them: the first by columns and the second by rows (Megatron's pair), or each by itself with
its output made whole. Each rank is on a host of its own with a link of a set bandwidth where this machine has network
namespaces for us, and on its loopback otherwise. Bytes are counted at the process group's connections; times are of a
forward and a backward pass. The model is told how long a rank's part of the matrices takes by itself and how long
all-reduces of a few other sizes take.
"""

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from plesio.core.charts import Axis, LineChart, Series
from plesio.core.predictions import Prediction
from plesio.core.units import format_bandwidth, format_seconds
from plesio.core.within import Within
from plesio.cost.collectives import all_gather_s, bytes_sent_per_rank, ring_all_reduce_s
from plesio.cost.fit import AlphaBeta
from plesio.runtime.transport.tcp_traffic import TcpTraffic
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.testbed.namespaces import why_no_namespaces
from plesio_planning.measured.ranks import Ranks, fitted_links, ranks_on_hosts, slowest_s, timed
from plesio_planning.studies.measured import Measured

__all__ = ["FOUND", "all_reduce_times", "computing_times", "cut_times", "measure", "measure_cuts"]

FOUND = ("device_tflops", "local_latency_s")
NUM_RANKS = 2
BYTES_PER_S = 25e6
HIDDEN = 512
TOKENS = (64, 128, 256, 512)
FITTED_BYTES = (50_000, 200_000, 800_000)
REPEATS = 7

Cut = str
CUTS: tuple[Cut, ...] = ("Megatron", "columns", "rows")


def measure(
    on_step: Callable[[str], None],
    /,
    *,
    hidden_size: Annotated[int, Within(16, 1024)] = HIDDEN,
    sequence_length: Annotated[int, Within(64, 1024)] = TOKENS[-1],
    local_bytes_per_s: Annotated[float, Within(5e6, 1e8)] = BYTES_PER_S,
) -> Measured:
    """Measure two ranks over links of 25 MB/s, or on loopback; takes about half a minute.

    Args:
        on_step: Is told what is being measured.
        hidden_size: Width of the MLP, rounded up to an even number.
        sequence_length: The most rows of its input; an eighth, a quarter and half as many are measured, too.
        local_bytes_per_s: Bandwidth that links are set to; on loopback it is what it is.
    """
    return measure_cuts(
        on_step=on_step,
        tokens=[sequence_length // part for part in (8, 4, 2, 1)],
        hidden=hidden_size + hidden_size % NUM_RANKS,
        bytes_per_s=local_bytes_per_s,
    )


def measure_cuts(
    *,
    on_step: Callable[[str], None],
    tokens: Sequence[int] = TOKENS,
    fitted_bytes: Sequence[int] = FITTED_BYTES,
    repeats: int = REPEATS,
    hidden: int = HIDDEN,
    bytes_per_s: float = BYTES_PER_S,
) -> Measured:
    """Measure and compare.

    Args:
        on_step: Is told what is being measured.
        tokens: Rows of the input.
        fitted_bytes: All-reduces that latency and bandwidth are fitted to; three or more.
        repeats: Repetitions of each.
        hidden: Width of the MLP, even.
        bytes_per_s: Bandwidth of the links, where they are set.
    """
    on_hosts = why_no_namespaces() is None
    predictions: list[Prediction] = []
    with _ranks(bytes_per_s=bytes_per_s if on_hosts else None) as ranks:

        def reduced_s(size: int) -> list[float]:
            on_step(f"all-reduce of {size:,} bytes")
            return slowest_s(ranks.run(all_reduce_times, num_bytes=size, repeats=repeats))

        links = fitted_links(fitted_bytes, reduced_s, num_ranks=NUM_RANKS)
        on_step("computing")
        computing = ranks.run(computing_times, hidden=hidden, tokens=list(tokens), repeats=repeats)
        on_step("the MLP, cut")
        cut = ranks.run(cut_times, hidden=hidden, tokens=list(tokens), repeats=repeats)
        for name, number in computing[0]:
            predictions += _predictions(
                name,
                number,
                hidden=hidden,
                computing_s=statistics.median(slowest_s([answer[name, number] for answer in computing])),
                links=links,
                measured_s=statistics.median(slowest_s([answer[name, number][0] for answer in cut])),
                sent_bytes=statistics.fmean(answer[name, number][1] for answer in cut),
            )
    times, sizes = (
        [one for one in predictions if one.quantity == quantity] for quantity in ("time (s)", "sent (bytes)")
    )
    errors = [statistics.median(abs(one.error) for one in each) for each in (times, sizes)]
    where = f"links of {format_bandwidth(bytes_per_s)}" if on_hosts else "this machine's loopback"
    return Measured(
        study="tensor-parallel",
        finding=f"DTensor sends what the model says within {100 * errors[1]:.1f} % and takes as long within "
        f"{100 * errors[0]:.1f} % (medians).",
        setting=f"An MLP of {hidden} by {4 * hidden} and back in FP32, forward and backward, on {NUM_RANKS} Gloo ranks "
        f"of one thread over {where}; medians of {repeats}. Fitted: {format_seconds(links.latency_s)}, "
        f"{format_bandwidth(links.bytes_per_s)}. The baseline of times is computing alone; that of bytes is one "
        "all-reduce of the output.",
        predictions=tuple(predictions),
        charts=(_chart(times),),
        rivals="cut",
    )


@contextlib.contextmanager
def _ranks(*, bytes_per_s: float | None) -> Iterator[Ranks]:
    with Ranks(NUM_RANKS) if bytes_per_s is None else ranks_on_hosts(NUM_RANKS, bytes_per_s=bytes_per_s) as ranks:
        yield ranks


def all_reduce_times(group: TorchGroup, *, num_bytes: int, repeats: int) -> list[tuple[float, float]]:
    """All-reduce so many bytes on a rank."""
    tensor = torch.ones(num_bytes // 4)
    return timed(group, lambda: group.all_reduce(tensor).wait(), repeats=repeats)


def computing_times(
    group: TorchGroup, *, hidden: int, tokens: list[int], repeats: int
) -> dict[tuple[Cut, int], list[tuple[float, float]]]:
    """Do the two products of a rank's part of the matrices, forward and backward; nothing is sent."""
    wide, part, wide_part = 4 * hidden, hidden // NUM_RANKS, 4 * hidden // NUM_RANKS
    shapes = {
        "Megatron": ((hidden, wide_part), (wide_part, hidden)),
        "columns": ((hidden, wide_part), (wide, part)),
        "rows": ((part, wide), (wide_part, hidden)),
    }

    def times(cut: Cut, number: int) -> list[tuple[float, float]]:
        layers = [nn.Linear(*shape, bias=False) for shape in shapes[cut]]
        inputs = [torch.randn(number, width, requires_grad=True) for width, _ in shapes[cut]]

        def both() -> None:
            for layer, given in zip(layers, inputs, strict=True):
                made = layer(given)
                made.backward(torch.ones_like(made))

        return timed(group, both, repeats=repeats)

    return {(cut, number): times(cut, number) for number in tokens for cut in CUTS}


def _styles(cut: Cut) -> dict[str, ParallelStyle]:
    columns = ColwiseParallel(output_layouts=Replicate())
    rows = RowwiseParallel(input_layouts=Replicate())
    styles: dict[Cut, dict[str, ParallelStyle]] = {
        "Megatron": {"0": ColwiseParallel(), "2": RowwiseParallel()},
        "columns": {"0": columns, "2": columns},
        "rows": {"0": rows, "2": rows},
    }
    return styles[cut]


def cut_times(
    group: TorchGroup, *, hidden: int, tokens: list[int], repeats: int
) -> dict[tuple[Cut, int], tuple[list[tuple[float, float]], float]]:
    """Run the MLP, cut by DTensor, forward and backward: when each began and ended, and bytes sent in each."""
    traffic = TcpTraffic()
    with traffic.recording():
        alone = dist.new_group(list(range(group.size)), backend="gloo")
        dist.all_reduce(torch.ones(1), group=alone)
    mesh = DeviceMesh.from_group(alone, "cpu")

    def times(cut: Cut, number: int) -> tuple[list[tuple[float, float]], float]:
        torch.manual_seed(0)
        wide = 4 * hidden
        mlp = nn.Sequential(nn.Linear(hidden, wide, bias=False), nn.ReLU(), nn.Linear(wide, hidden, bias=False))
        parallelize_module(mlp, mesh, _styles(cut))
        given = torch.randn(number, hidden, requires_grad=True)
        calls = itertools.count()

        def both() -> None:
            next(calls)
            made = mlp(given)
            made.backward(torch.ones_like(made))

        before = _settled_bytes(traffic)
        begun_and_ended = timed(group, both, repeats=repeats)
        return begun_and_ended, (_settled_bytes(traffic) - before) / next(calls)

    return {(cut, number): times(cut, number) for number in tokens for cut in CUTS}


def _settled_bytes(traffic: TcpTraffic) -> int:
    """Bytes sent, once those under way are acknowledged: receivers may hold an acknowledgement back for 40 ms."""
    now, before = traffic.bytes_sent(), -1
    while now != before:
        time.sleep(0.1)
        now, before = traffic.bytes_sent(), now
    return now


def _predictions(
    cut: Cut, tokens: int, *, hidden: int, computing_s: float, links: AlphaBeta, measured_s: float, sent_bytes: float
) -> list[Prediction]:
    narrow, wide = 4.0 * tokens * hidden, 16.0 * tokens * hidden
    # forward outputs, then gradients of inputs: of the second matrix, of the first
    exchanged: dict[Cut, tuple[list[float], list[float]]] = {
        "Megatron": ([narrow, narrow], []),
        "columns": ([wide, narrow], [wide, narrow]),
        "rows": ([wide, narrow], [wide, narrow]),
    }
    reduced, gathered = exchanged[cut]
    sending_s = sum(ring_all_reduce_s(size, num_ranks=NUM_RANKS, link=links.link) for size in reduced)
    sending_s += sum(all_gather_s(size, num_ranks=NUM_RANKS, link=links.link) for size in gathered)
    modelled = sum(bytes_sent_per_rank(size, num_ranks=NUM_RANKS) for size in reduced)
    modelled += sum(bytes_sent_per_rank(size, num_ranks=NUM_RANKS, collective="all_gather") for size in gathered)
    setting = {"cut": cut, "tokens": str(tokens)}
    return [
        Prediction(
            setting=setting,
            quantity="time (s)",
            scale="relative",
            predicted=computing_s + sending_s,
            measured=measured_s,
            baseline=computing_s,
        ),
        Prediction(
            setting=setting,
            quantity="sent (bytes)",
            scale="relative",
            predicted=modelled,
            measured=sent_bytes,
            baseline=bytes_sent_per_rank(narrow, num_ranks=NUM_RANKS),
        ),
    ]


def _chart(times: Sequence[Prediction]) -> LineChart:
    series = []
    by_cut: Mapping[str, list[Prediction]] = {
        cut: [one for one in times if one.setting["cut"] == cut]
        for cut in dict.fromkeys(o.setting["cut"] for o in times)
    }
    for cut, points in by_cut.items():
        tokens = [int(one.setting["tokens"]) for one in points]
        series.append(Series(name=f"{cut}, modelled", group=cut, x=tokens, y=[1e3 * one.predicted for one in points]))
        measured = [1e3 * one.measured for one in points]
        series.append(Series(name=f"{cut}, measured", group=cut, x=tokens, y=measured, style="points"))
    longer = by_cut["columns"][-1].measured / by_cut["Megatron"][-1].measured
    return LineChart(
        slug="measured",
        title=f"Measured, matrices cut by columns each take {longer:.2g} times as long as Megatron's pair",
        caption="Forward and backward pass of an MLP on two ranks by number of tokens; medians.",
        x=Axis(title="tokens", log=True),
        y=Axis(title="time (ms)", log=True),
        series=series,
    )
