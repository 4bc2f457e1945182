"""How tokens are routed to experts: load, drops, and what devices then send to one another.

Tokens like expert i with a popularity of ``1/i^s`` (Zipf), each k different ones; experts are placed on devices.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plesio.cost.collectives import unequal_all_to_all_s
from plesio.cost.link import Link

FEW_EXPERTS = 8
"""Experts of a token that it is quicker to draw in turn."""
_MOST_AT_ONCE = 2**22
"""Affinities that are drawn at a time."""

Counts = NDArray[np.int64]
Volumes = NDArray[np.float64]
Placement = Literal["in-order", "spread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The distribution of tokens with some skew.

    Attributes:
        skew: s.
        load: The fullest expert's tokens by the mean.
        load_ci95: Ends of its 95 % confidence interval.
        load_limit: The same with very many tokens.
        dropped: Share of the tokens, at the capacity that was asked for.
        dropped_ci95: Ends of its 95 % confidence interval.
        dropped_limit: The same with very many tokens.
        all_to_all_s: Seconds of one way without a capacity, experts in order of their popularity.
        spread_s: The same with popular experts on different devices.
        capped_s: The same with a capacity, as placed.
    """

    skew: float
    load: float
    load_ci95: tuple[float, float]
    load_limit: float
    dropped: float
    dropped_ci95: tuple[float, float]
    dropped_limit: float
    all_to_all_s: float
    spread_s: float
    capped_s: float


class Routed(NamedTuple):
    """The findings for a skew; the chances are each expert's share of all tokens, the bytes those of one draw."""

    routing: Routing
    chances: NDArray[np.float64]
    sent_bytes: Volumes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayer:
    """Experts on devices, and the links over which tokens' vectors reach them."""

    num_experts: int
    num_devices: int
    tokens_per_device: int
    top_k: int
    capacity_factor: float
    placement: Placement
    vector_bytes: int
    link: Link

    def routed(self, skew: float, *, num_draws: int, seed: int) -> Routed:
        """Load, drops and times with this skew, over some draws of the routing."""
        popularity = popularities(self.num_experts, skew)
        random = np.random.default_rng(seed)
        draws = [
            draw_routing(
                popularity, num_devices=self.num_devices, tokens=self.tokens_per_device, top_k=self.top_k, random=random
            )
            for _ in range(num_draws)
        ]
        capacity = self.capacity_factor
        loads = np.array([counts.sum(axis=0) for counts in draws]) * self.num_experts / draws[0].sum()
        # tokens beyond the capacity are dropped evenly from all senders
        kept = np.minimum(1.0, capacity / np.maximum(loads, capacity))
        # a token's k experts differ, so for k > 1 the shares are not the popularity
        chances = popularity if self.top_k == 1 else loads.mean(axis=0) / self.num_experts
        fullest, dropped = loads.max(axis=1), np.maximum(loads - capacity, 0).sum(axis=1) / self.num_experts
        capped = self._sent([counts * shares for counts, shares in zip(draws, kept, strict=True)], self.placement)
        routing = Routing(
            skew=skew,
            load=float(fullest.mean()),
            load_ci95=_ci95(fullest),
            load_limit=float(chances.max() * self.num_experts),
            dropped=float(dropped.mean()),
            dropped_ci95=_ci95(dropped),
            dropped_limit=dropped_share(chances, capacity),
            all_to_all_s=self._all_to_all_s(self._sent(draws, "in-order")),
            spread_s=self._all_to_all_s(self._sent(draws, "spread")),
            capped_s=self._all_to_all_s(capped),
        )
        return Routed(routing, chances, capped[0])

    def _sent(self, draws: Sequence[NDArray[Any]], placement: Placement) -> list[Volumes]:
        places = expert_places(num_experts=self.num_experts, num_devices=self.num_devices, spread=placement == "spread")
        return [sent_volumes(counts, places) * self.vector_bytes for counts in draws]

    def _all_to_all_s(self, sent: Sequence[Volumes]) -> float:
        """Return the seconds in the mean."""
        times_s = [unequal_all_to_all_s(one, link=self.link) for one in sent]
        return float(np.mean(times_s))


def popularities(num_experts: int, skew: float) -> NDArray[np.float64]:
    """Return each expert's share of all tokens by Zipf's law; they add up to 1."""
    weights: NDArray[np.float64] = np.arange(1, num_experts + 1, dtype=np.float64) ** -skew
    return weights / float(weights.sum())


def expert_places(*, num_experts: int, num_devices: int, spread: bool) -> Counts:
    """Return each expert's device: dealt out there and back again, or as many to each in turn."""
    if not spread:
        return np.arange(num_experts) * num_devices // num_experts
    there = np.arange(num_devices)
    return np.resize(np.concatenate([there, there[::-1]]), num_experts)


def draw_routing(
    popularity: NDArray[np.float64], *, num_devices: int, tokens: int, top_k: int, random: np.random.Generator
) -> Counts:
    """Return the tokens of each device for each expert.

    A token takes those k experts whose exponential clocks, of rates that are the popularities, ring first: the first is
    each with its popularity, and the next likewise of those left. Few are drawn so, one after another.
    """
    if top_k == 1:
        return random.multinomial(tokens, popularity, size=num_devices)
    if top_k <= FEW_EXPERTS:
        chosen = _in_turn(popularity, num_devices=num_devices, tokens=tokens, top_k=top_k, random=random)
        cells = chosen + len(popularity) * (np.arange(num_devices * tokens) // tokens)
        return np.bincount(cells.ravel(), minlength=num_devices * len(popularity)).reshape(num_devices, -1)
    counts = np.zeros((num_devices, len(popularity)), dtype=np.int64)
    at_once = max(1, _MOST_AT_ONCE // len(popularity))
    for device in range(num_devices):
        for begin in range(0, tokens, at_once):
            clocks = random.standard_exponential((min(at_once, tokens - begin), len(popularity))) / popularity
            chosen = np.argpartition(clocks, top_k - 1, axis=1)[:, :top_k]
            counts[device] += np.bincount(chosen.ravel(), minlength=len(popularity))
    return counts


def _in_turn(
    popularity: NDArray[np.float64], *, num_devices: int, tokens: int, top_k: int, random: np.random.Generator
) -> Counts:
    """Turn places among the experts that are left into experts (top_k, tokens), past those that were taken before."""
    ends = np.cumsum(popularity)
    begins = ends - popularity
    chosen = np.empty((top_k, num_devices * tokens), dtype=np.int64)
    firsts = random.multinomial(tokens, popularity, size=num_devices)
    chosen[0] = np.repeat(np.tile(np.arange(len(popularity)), num_devices), firsts.ravel())
    left = 1 - popularity[chosen[0]]
    for turn in range(1, top_k):
        place = left * random.random(len(left))
        for taken in np.sort(chosen[:turn], axis=0):
            place += popularity[taken] * (place >= begins[taken])
        chosen[turn] = np.minimum(np.searchsorted(ends, place, side="right"), len(popularity) - 1)
        left -= popularity[chosen[turn]]
    return chosen


def sent_volumes(by_expert: NDArray[Any], places: Counts) -> Volumes:
    """Return the tokens that devices send to devices, of those that they have for experts; what stays is not sent."""
    places_of = range(len(by_expert))
    sent: Volumes = np.stack(
        [by_expert[:, places == device].sum(axis=1, dtype=np.float64) for device in places_of], axis=1
    )
    np.fill_diagonal(sent, 0.0)
    return sent


def dropped_share(chances: NDArray[np.float64], capacity_factor: float) -> float:
    """Share of very many tokens that exceeds their expert's capacity."""
    return float(np.maximum(chances - capacity_factor / len(chances), 0).sum())


def _ci95(values: NDArray[np.float64]) -> tuple[float, float]:
    mean, half = float(values.mean()), 1.96 * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean - half, mean + half
