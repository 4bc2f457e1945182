"""An MLP whose two matrices are cut over two processes, beside `plesio_planning.studies.tensor_parallel`.

PyTorch's own DTensor cuts them: the first by columns and the second by rows (Megatron's pair), or each by itself with
its output made whole. Each rank is on a host of its own with a link of a set bandwidth where this machine has network
namespaces for us, and on its loopback otherwise. Bytes are counted at the process group's connections; times are of a
forward and a backward pass. The model is told how long a rank's part of the matrices takes by itself and how long
all-reduces of a few other sizes take.
"""

import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from plesio.core.charts import Axis
from plesio.core.within import Within
from plesio.cost.collectives import all_gather_s, bytes_sent_per_rank, ring_all_reduce_s
from plesio.cost.link import Link
from plesio.runtime.transport.tcp_traffic import TcpTraffic
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio_planning.measured.ranks import Times, ranks_over_links, slowest_s, timed
from plesio_planning.measured.twin import Twin, beside, fit_text, lines_of, where_text
from plesio_planning.studies.measured import Measured

FOUND = ("device_tflops", "local_latency_s")
NUM_RANKS = 2
BYTES_PER_S = 25e6
HIDDEN = 512
TOKENS = 512
FITTED_BYTES = (50_000, 200_000, 800_000)
REPEATS = 7

Cut = str
CUTS: tuple[Cut, ...] = ("Megatron", "columns", "rows")


def measure(
    twin: Twin,
    parts: Sequence[int] = (8, 4, 2, 1),
    fitted_bytes: Sequence[int] = FITTED_BYTES,
    repeats: int = REPEATS,
    /,
    *,
    hidden_size: Annotated[int, Within(16, 1024)] = HIDDEN,
    sequence_length: Annotated[int, Within(64, 1024)] = TOKENS,
    local_bytes_per_s: Annotated[float, Within(5e6, 1e8)] = BYTES_PER_S,
) -> Measured:
    """Measure two ranks over links of 25 MB/s, or on loopback; takes about half a minute.

    The width is rounded up to an even number. On loopback the bandwidth is what it is.
    """
    hidden, rate = hidden_size + hidden_size % NUM_RANKS, twin.bandwidth(local_bytes_per_s)
    shape = {"hidden": hidden, "tokens": [sequence_length // part for part in parts], "repeats": repeats}
    with ranks_over_links(NUM_RANKS, bytes_per_s=rate) as ranks:
        links = twin.links(ranks, fitted_bytes, num_ranks=NUM_RANKS, repeats=repeats)
        twin.say("computing")
        # products of the cut shapes without communication: what the model adds all-reduces to
        computing = ranks.run(computing_times, **shape)
        twin.say("the MLP, cut")
        cut = ranks.run(cut_times, **shape)
    for name, number in computing[0]:
        _predict(
            twin,
            {"cut": name, "tokens": number},
            narrow=4.0 * number * hidden,
            computing_s=twin.median(slowest_s([answer[name, number] for answer in computing])),
            link=links.link,
            measured_s=twin.median(slowest_s([answer[name, number][0] for answer in cut])),
            sent_bytes=statistics.fmean(answer[name, number][1] for answer in cut),
        )
    columns, pair = (twin.rows("time (s)", cut=name)[-1].measured for name in ("columns", "Megatron"))
    return twin.measured(
        "tensor-parallel",
        finding=f"DTensor sends what the model says within {twin.off('sent (bytes)'):.1f} % and takes as long within "
        f"{twin.off('time (s)'):.1f} % (medians).",
        setting=f"An MLP of {hidden} by {4 * hidden} and back in FP32, forward and backward, on {NUM_RANKS} Gloo ranks "
        f"of one thread over {where_text(rate)}; medians of {repeats}. Fitted: {fit_text(links)}. The baseline of "
        "times is computing alone; that of bytes is one all-reduce of the output.",
        charts=[
            beside(
                lines_of(twin.rows("time (s)"), along="tokens", by="cut", times=1e3),
                title=f"Measured, matrices cut by columns each take {columns / pair:.2g} times as long as Megatron's "
                "pair",
                caption="Forward and backward pass of an MLP on two ranks by number of tokens; medians.",
                x=Axis(title="tokens", log=True),
                y=Axis(title="time (ms)", log=True),
            )
        ],
        rivals="cut",
    )


def computing_times(group: TorchGroup, *, hidden: int, tokens: list[int], repeats: int) -> dict[tuple[Cut, int], Times]:
    """Do the two products of a rank's part of the matrices, forward and backward; nothing is sent."""
    wide, part, wide_part = 4 * hidden, hidden // NUM_RANKS, 4 * hidden // NUM_RANKS
    shapes = {
        "Megatron": ((hidden, wide_part), (wide_part, hidden)),
        "columns": ((hidden, wide_part), (wide, part)),
        "rows": ((part, wide), (wide_part, hidden)),
    }

    def times(cut: Cut, number: int) -> Times:
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
) -> dict[tuple[Cut, int], tuple[Times, float]]:
    """Run the MLP, cut by DTensor, forward and backward: when each began and ended, and bytes sent in each."""
    traffic = TcpTraffic()
    with traffic.recording():
        alone = dist.new_group(list(range(group.size)), backend="gloo")
        dist.all_reduce(torch.ones(1), group=alone)
    mesh = DeviceMesh.from_group(alone, "cpu")

    def times(cut: Cut, number: int) -> tuple[Times, float]:
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


def _predict(
    twin: Twin,
    setting: dict[str, Any],
    *,
    narrow: float,
    computing_s: float,
    link: Link,
    measured_s: float,
    sent_bytes: float,
) -> None:
    """Predict time and bytes of a cut; ``narrow`` are the bytes of its output."""
    wide = 4 * narrow
    # forward outputs, then gradients of inputs: of the second matrix, of the first
    exchanged: dict[Cut, tuple[list[float], list[float]]] = {
        "Megatron": ([narrow, narrow], []),
        "columns": ([wide, narrow], [wide, narrow]),
        "rows": ([wide, narrow], [wide, narrow]),
    }
    reduced, gathered = exchanged[setting["cut"]]
    sending_s = sum(ring_all_reduce_s(size, num_ranks=NUM_RANKS, link=link) for size in reduced)
    sending_s += sum(all_gather_s(size, num_ranks=NUM_RANKS, link=link) for size in gathered)
    modelled = sum(bytes_sent_per_rank(size, num_ranks=NUM_RANKS) for size in reduced)
    modelled += sum(bytes_sent_per_rank(size, num_ranks=NUM_RANKS, collective="all_gather") for size in gathered)
    twin.predict("time (s)", setting, predicted=computing_s + sending_s, measured=measured_s, baseline=computing_s)
    twin.predict(
        "sent (bytes)",
        setting,
        predicted=modelled,
        measured=sent_bytes,
        baseline=bytes_sent_per_rank(narrow, num_ranks=NUM_RANKS),
    )
