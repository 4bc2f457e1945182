"""An all-to-all with unequal parts between real processes, beside `plesio_planning.studies.mixture_of_experts`.

Each rank is on a host of its own with a link of a set bandwidth where this machine has network namespaces for us, and
on its loopback otherwise. Latency and bandwidth are fitted to messages of a few sizes from one rank to another, and how
far a rank sends while it receives to all pairs at once. These three predict all-to-alls of tokens that are routed with
a skew, with and without a capacity.
"""

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from plesio.core.charts import Axis, LineChart, Series
from plesio.core.predictions import Prediction
from plesio.core.units import format_bandwidth, format_bytes, format_seconds
from plesio.core.within import Within
from plesio.cost.collectives import all_to_all_s, unequal_all_to_all_s
from plesio.cost.fit import LineFit, fit_line
from plesio.cost.link import Link
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.testbed.namespaces import why_no_namespaces
from plesio_planning.measured.ranks import Ranks, ranks_on_hosts, slowest_s, timed
from plesio_planning.studies import mixture_of_experts
from plesio_planning.studies.measured import Measured

__all__ = ["FOUND", "all_to_all_times", "measure", "measure_routings"]

FOUND = ("latency_s",)
NUM_RANKS = 4
NUM_EXPERTS = 16
BYTES_PER_S = 25e6
TOKEN_BYTES = 1024
FITTED_TOKENS = (64, 512, 2048)
"""Tokens of a message."""
TOKENS = (512, 1024)
"""Tokens of a rank, when routed."""
SKEWS = (0.0, 0.5, 1.0, 1.5)
CAPACITY = 1.25
REPEATS = 7


def measure(
    on_step: Callable[[str], None],
    /,
    *,
    num_experts: Annotated[int, Within(4, 256)] = NUM_EXPERTS,
    tokens_per_device: Annotated[int, Within(64, 4096)] = TOKENS[-1],
    experts_per_token: Annotated[int, Within(1, 4)] = 1,
    skew: Annotated[float, Within(0, 4)] = SKEWS[-1],
    capacity_factor: Annotated[float, Within(0.5, 16)] = CAPACITY,
    placement: Literal["in-order", "spread"] = "in-order",
    bytes_per_s: Annotated[float, Within(5e6, 1e8)] = BYTES_PER_S,
) -> Measured:
    """Measure four ranks over links of 25 MB/s, or on loopback; takes about half a minute.

    Args:
        on_step: Is told what is being measured.
        num_experts: Experts, a multiple of the four ranks.
        tokens_per_device: The most tokens of a rank; half as many are measured, too.
        experts_per_token: Experts of a token.
        skew: The largest skew; none, and a third and two thirds of it are measured, too.
        capacity_factor: Capacity of an expert beside none.
        placement: Which experts are on which rank.
        bytes_per_s: Bandwidth that links are set to; on loopback it is what it is.
    """
    return measure_routings(
        on_step=on_step,
        tokens=(tokens_per_device // 2, tokens_per_device),
        skews=[round(part * skew / 3, 3) for part in range(4)] if skew else (0.0,),
        capacity=capacity_factor,
        routing={"num_experts": num_experts, "experts_per_token": experts_per_token, "placement": placement},
        bytes_per_s=bytes_per_s,
    )


def measure_routings(
    *,
    on_step: Callable[[str], None],
    fitted_tokens: Sequence[int] = FITTED_TOKENS,
    tokens: Sequence[int] = TOKENS,
    skews: Sequence[float] = SKEWS,
    repeats: int = REPEATS,
    capacity: float = CAPACITY,
    routing: Mapping[str, Any] | None = None,
    bytes_per_s: float = BYTES_PER_S,
) -> Measured:
    """Measure and compare.

    Args:
        on_step: Is told what is being measured.
        fitted_tokens: Tokens of messages that latency and bandwidth are fitted to; three or more.
        tokens: Tokens of a rank, in all-to-alls.
        skews: Skews of the routing.
        repeats: Repetitions of each.
        capacity: Capacity of an expert beside none.
        routing: Inputs of the study that draws who is sent what.
        bytes_per_s: Bandwidth of the links, where they are set.
    """
    routing = {"num_experts": NUM_EXPERTS, **(routing or {})}
    on_hosts = why_no_namespaces() is None
    spreads: list[float] = []
    with _ranks(bytes_per_s=bytes_per_s if on_hosts else None) as ranks:

        def median_s(sent_bytes: NDArray[np.float64]) -> float:
            splits = np.round(sent_bytes / TOKEN_BYTES).astype(int).tolist()
            times_s = slowest_s(ranks.run(all_to_all_times, tokens=splits, repeats=repeats))
            spreads.append(statistics.stdev(times_s) / statistics.median(times_s) if len(times_s) > 1 else 0.0)
            return statistics.median(times_s)

        alone_s = {}
        for number in fitted_tokens:
            on_step(f"a message of {format_bytes(number * TOKEN_BYTES)}")
            alone_s[number] = median_s(_messages([(0, 1)], number))
        fit = fit_line([number * TOKEN_BYTES for number in fitted_tokens], list(alone_s.values()))
        most = max(fitted_tokens)
        on_step("messages both ways")
        pairs = [(rank, rank ^ 1) for rank in range(NUM_RANKS)]
        both_s = median_s(_messages(pairs, most))
        duplex = min(1.0, max(0.0, 2 - both_s / alone_s[most]))
        predictions = []
        for number in tokens:
            for skew in skews:
                for limit in (None, capacity):
                    on_step(f"skew {skew:g}, {format_bytes(number * TOKEN_BYTES)} a rank, capacity {limit}")
                    sent = _routed(number, skew, limit, routing=routing)
                    predictions.append(
                        _prediction(number, skew, limit, sent=sent, measured_s=median_s(sent), fit=fit, duplex=duplex)
                    )
    skewed = [one for one in predictions if one.setting["skew"] != "0"] or predictions
    error, baseline = (
        statistics.median(abs(each) for each in errors)
        for errors in ([one.error for one in skewed], [one.baseline_error for one in skewed])
    )
    where = f"links of {format_bandwidth(bytes_per_s)}" if on_hosts else "this machine's loopback"
    return Measured(
        study="mixture-of-experts",
        finding="The busiest rank predicts all-to-alls of skewed routing from single messages with a median error of "
        f"{100 * error:.1f} %; as if parts were equal it would be {100 * baseline:.0f} %. While a rank receives, it "
        f"sends {100 * duplex:.0f} % of the time as well.",
        setting=f"{NUM_RANKS} Gloo ranks of one thread over {where}, {routing['num_experts']} experts, tokens of "
        f"{format_bytes(TOKEN_BYTES)}; medians of {repeats}, which vary by "
        f"{100 * statistics.median(spreads):.0f} %. Fitted: {format_seconds(fit.intercept)} and "
        f"{format_bandwidth(1 / fit.slope)}. The baseline sends as many bytes in equal parts.",
        predictions=tuple(predictions),
        charts=(_chart(predictions, tokens=max(tokens), capacity=capacity),),
    )


@contextlib.contextmanager
def _ranks(*, bytes_per_s: float | None) -> Iterator[Ranks]:
    with Ranks(NUM_RANKS) if bytes_per_s is None else ranks_on_hosts(NUM_RANKS, bytes_per_s=bytes_per_s) as ranks:
        yield ranks


def all_to_all_times(group: TorchGroup, *, tokens: list[list[int]], repeats: int) -> list[tuple[float, float]]:
    """Send so many tokens from each rank to each."""
    given, taken = tokens[group.rank], [row[group.rank] for row in tokens]
    width = TOKEN_BYTES // 4
    sent, received = torch.ones(sum(given), width), torch.empty(sum(taken), width)

    def exchange() -> None:
        dist.all_to_all_single(
            received, sent, output_split_sizes=taken, input_split_sizes=given, group=group.process_group
        )

    return timed(group, exchange, repeats=repeats)


def _messages(pairs: Sequence[tuple[int, int]], tokens: int) -> NDArray[np.float64]:
    """So many tokens from the first of each pair to the second."""
    sent = np.zeros((NUM_RANKS, NUM_RANKS))
    for source, target in pairs:
        sent[source, target] = tokens * TOKEN_BYTES
    return sent


def _routed(tokens: int, skew: float, capacity: float | None, *, routing: Mapping[str, Any]) -> NDArray[np.float64]:
    """What ranks send to ranks, as the study draws it."""
    answer = mixture_of_experts(
        num_devices=NUM_RANKS,
        tokens_per_device=tokens,
        skew=skew,
        capacity_factor=float(routing["num_experts"]) if capacity is None else capacity,
        hidden_size=TOKEN_BYTES // 4,
        element_bytes=4,
        num_trials=2,
        **routing,
    )
    return np.array(answer.sent_bytes)


def _prediction(
    tokens: int,
    skew: float,
    capacity: float | None,
    *,
    sent: NDArray[np.float64],
    measured_s: float,
    fit: LineFit,
    duplex: float,
) -> Prediction:
    link = Link(latency_s=fit.intercept / (NUM_RANKS - 1), bytes_per_s=1 / fit.slope)
    a_rank = float(sent.sum()) / (NUM_RANKS - 1)  # of the whole tensor, an n-th of which stays
    return Prediction(
        setting={
            "tokens": format_bytes(tokens * TOKEN_BYTES),
            "skew": f"{skew:g}",
            "capacity": "none" if capacity is None else f"{capacity:g}",
        },
        quantity="all-to-all (s)",
        scale="relative",
        predicted=unequal_all_to_all_s(sent, duplex=duplex, link=link),
        measured=measured_s,
        baseline=all_to_all_s(a_rank, num_ranks=NUM_RANKS, link=link),
    )


def _chart(predictions: Sequence[Prediction], *, tokens: int, capacity: float) -> LineChart:
    of_size: Mapping[str, list[Prediction]] = {
        name: [
            one
            for one in predictions
            if one.setting["tokens"] == format_bytes(tokens * TOKEN_BYTES) and one.setting["capacity"] == name
        ]
        for name in ("none", f"{capacity:g}")
    }
    series = []
    for name, points in of_size.items():
        skews = [float(one.setting["skew"]) for one in points]
        series.append(
            Series(
                name=f"capacity {name}, modelled",
                group=name,
                x=skews,
                y=[1e3 * one.predicted for one in points],
            )
        )
        measured = [1e3 * one.measured for one in points]
        series.append(Series(name=f"capacity {name}, measured", group=name, x=skews, y=measured, style="points"))
    free = of_size["none"]
    slower = free[-1].measured / free[0].measured
    return LineChart(
        slug="measured",
        title=f"Measured, a skew of {free[-1].setting['skew']} takes {slower:.2g} times as long as none",
        caption=f"One way of an all-to-all of {format_bytes(tokens * TOKEN_BYTES)} a rank by skew; medians.",
        x=Axis(title="skew (exponent of Zipf's law)"),
        y=Axis(title="time (ms)"),
        series=series,
    )
