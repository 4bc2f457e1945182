"""How tokens are routed to experts, and what devices then send to one another.

Tokens like expert i with a popularity of ``1/i^s`` (Zipf), each k different ones; experts are placed on devices.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "FEW_EXPERTS",
    "Counts",
    "Volumes",
    "draw_routing",
    "dropped_share",
    "expert_places",
    "popularities",
    "sent_volumes",
]

FEW_EXPERTS = 8
"""Of a token, which it is quicker to draw in turn."""
_MOST_AT_ONCE = 2**22
"""Affinities that are drawn at a time."""

Counts = NDArray[np.int64]
Volumes = NDArray[np.float64]


def popularities(num_experts: int, skew: float) -> NDArray[np.float64]:
    """Each expert's share of all tokens by Zipf's law; they add up to 1."""
    weights: NDArray[np.float64] = np.arange(1, num_experts + 1, dtype=np.float64) ** -skew
    return weights / float(weights.sum())


def expert_places(*, num_experts: int, num_devices: int, spread: bool) -> Counts:
    """Each expert's device: dealt out there and back again, or as many to each in turn."""
    if not spread:
        return np.arange(num_experts) * num_devices // num_experts
    there = np.arange(num_devices)
    return np.resize(np.concatenate([there, there[::-1]]), num_experts)


def draw_routing(
    popularity: NDArray[np.float64], *, num_devices: int, tokens: int, top_k: int, random: np.random.Generator
) -> Counts:
    """Tokens of each device for each expert.

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
    """Experts (top_k, tokens) of all devices: places among what the taken ones leave, and past those before."""
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
    """Tokens that devices send to devices, of those that they have for experts; what stays is not sent."""
    places_of = range(len(by_expert))
    sent: Volumes = np.stack(
        [by_expert[:, places == device].sum(axis=1, dtype=np.float64) for device in places_of], axis=1
    )
    np.fill_diagonal(sent, 0.0)
    return sent


def dropped_share(chances: NDArray[np.float64], capacity_factor: float) -> float:
    """Share of very many tokens that exceeds their expert's capacity."""
    return float(np.maximum(chances - capacity_factor / len(chances), 0).sum())
