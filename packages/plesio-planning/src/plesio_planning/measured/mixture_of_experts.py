"""An all-to-all with unequal parts between real processes, beside `plesio_planning.studies.mixture_of_experts`.

Each rank is on a host of its own with a link of a set bandwidth where this machine has network namespaces for us, and
on its loopback otherwise. Latency and bandwidth are fitted to messages of a few sizes from one rank to another, and how
far a rank sends while it receives to all pairs at once. These three predict all-to-alls of tokens that are routed with
a skew, with and without a capacity.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from plesio.core.charts import Axis
from plesio.core.units import format_bandwidth, format_bytes, format_seconds
from plesio.core.within import Within
from plesio.cost.collectives import all_to_all_s, unequal_all_to_all_s
from plesio.cost.fit import fit_line
from plesio.cost.link import Link
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio_planning.measured.ranks import Times, ranks_over_links, timed
from plesio_planning.measured.twin import Twin, beside, lines_of, median_off, where_text
from plesio_planning.studies import mixture_of_experts
from plesio_planning.studies.measured import Measured

FOUND = ("latency_s",)
NUM_RANKS = 4
NUM_EXPERTS = 16
BYTES_PER_S = 25e6
TOKEN_BYTES = 1024
FITTED_TOKENS = (64, 512, 2048)
"""Tokens of a message."""
TOKENS = 1024
"""Tokens of a rank, when routed."""
SKEW = 1.5
CAPACITY = 1.25
REPEATS = 7
QUANTITY = "all-to-all (s)"


def measure(
    twin: Twin,
    fitted_tokens: Sequence[int] = FITTED_TOKENS,
    repeats: int = REPEATS,
    /,
    *,
    num_experts: Annotated[int, Within(4, 256)] = NUM_EXPERTS,
    tokens_per_device: Annotated[int, Within(64, 4096)] = TOKENS,
    experts_per_token: Annotated[int, Within(1, 4)] = 1,
    skew: Annotated[float, Within(0, 4)] = SKEW,
    capacity_factor: Annotated[float, Within(0.5, 16)] = CAPACITY,
    placement: Literal["in-order", "spread"] = "in-order",
    bytes_per_s: Annotated[float, Within(5e6, 1e8)] = BYTES_PER_S,
) -> Measured:
    """Measure four ranks over links of 25 MB/s, or on loopback; takes about half a minute."""
    routing = {"num_experts": num_experts, "experts_per_token": experts_per_token, "placement": placement}
    rate, most = twin.bandwidth(bytes_per_s), max(fitted_tokens)
    with ranks_over_links(NUM_RANKS, bytes_per_s=rate) as ranks:

        def median_s(sent_bytes: NDArray[np.float64]) -> float:
            splits = np.round(sent_bytes / TOKEN_BYTES).astype(int).tolist()
            return twin.median(ranks.times_s(all_to_all_times, tokens=splits, repeats=repeats))

        alone_s = {}
        for number in fitted_tokens:
            twin.say(f"a message of {format_bytes(number * TOKEN_BYTES)}")
            alone_s[number] = median_s(_messages([(0, 1)], number))
        fit = fit_line([number * TOKEN_BYTES for number in fitted_tokens], list(alone_s.values()))
        link = Link(latency_s=fit.intercept / (NUM_RANKS - 1), bytes_per_s=1 / fit.slope)
        twin.say("messages both ways")
        both_s = median_s(_messages([(rank, rank ^ 1) for rank in range(NUM_RANKS)], most))
        duplex = min(1.0, max(0.0, 2 - both_s / alone_s[most]))
        for number in (tokens_per_device // 2, tokens_per_device):
            for own_skew in [round(part * skew / 3, 3) for part in range(4)] if skew else (0.0,):
                for limit in (None, capacity_factor):
                    size = format_bytes(number * TOKEN_BYTES)
                    twin.say(f"skew {own_skew:g}, {size} a rank, capacity {limit}")
                    sent = routed(number, own_skew, limit, routing=routing)
                    a_rank = float(sent.sum()) / (NUM_RANKS - 1)  # of the whole tensor, an n-th of which stays
                    twin.predict(
                        QUANTITY,
                        {"tokens": size, "skew": f"{own_skew:g}", "capacity": f"{limit:g}" if limit else "none"},
                        predicted=unequal_all_to_all_s(sent, duplex=duplex, link=link),
                        measured=median_s(sent),
                        baseline=all_to_all_s(a_rank, num_ranks=NUM_RANKS, link=link),
                    )
    return _compared(
        twin,
        size=format_bytes(tokens_per_device * TOKEN_BYTES),
        duplex=duplex,
        setting=f"{NUM_RANKS} Gloo ranks of one thread over {where_text(rate)}, {num_experts} experts, tokens of "
        f"{format_bytes(TOKEN_BYTES)}; medians of {repeats}, which vary by {twin.spread:.0f} %. Fitted: "
        f"{format_seconds(fit.intercept)} and {format_bandwidth(1 / fit.slope)}. The baseline sends as many bytes in "
        "equal parts.",
    )


def _compared(twin: Twin, *, size: str, duplex: float, setting: str) -> Measured:
    skewed = [one for one in twin.predictions if one.setting["skew"] != "0"] or twin.predictions
    free = twin.rows(QUANTITY, tokens=size, capacity="none")
    slower = free[-1].measured / free[0].measured
    return twin.measured(
        "mixture-of-experts",
        finding="The busiest rank predicts all-to-alls of skewed routing from single messages with a median error of "
        f"{median_off(skewed):.1f} %; as if parts were equal it would be {median_off(skewed, baseline=True):.0f} %. "
        f"While a rank receives, it sends {100 * duplex:.0f} % of the time as well.",
        setting=setting,
        charts=[
            beside(
                lines_of(
                    twin.rows(QUANTITY, tokens=size),
                    along="skew",
                    by="capacity",
                    called="capacity {}",
                    place=float,
                    times=1e3,
                ),
                title=f"Measured, a skew of {free[-1].setting['skew']} takes {slower:.2g} times as long as none",
                caption=f"One way of an all-to-all of {size} a rank by skew; medians.",
                x=Axis(title="skew (exponent of Zipf's law)"),
                y=Axis(title="time (ms)"),
            )
        ],
    )


def all_to_all_times(group: TorchGroup, *, tokens: list[list[int]], repeats: int) -> Times:
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
    """Send so many tokens from the first of each pair to the second."""
    sent = np.zeros((NUM_RANKS, NUM_RANKS))
    for source, target in pairs:
        sent[source, target] = tokens * TOKEN_BYTES
    return sent


def routed(tokens: int, skew: float, capacity: float | None, *, routing: Mapping[str, Any]) -> NDArray[np.float64]:
    """Draw the bytes that ranks send to ranks, as the study does."""
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
